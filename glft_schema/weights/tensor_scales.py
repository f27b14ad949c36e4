"""Scales of whole tensors, chosen by the error of a sample and stored in companion tensors.

The scales of NVFP4's blocks are unsigned E4M3 floats, from 2^-9 to 448. A tensor scale moves the
weights into their range. GGUF stores it as a tensor ``NAME.scale`` beside ``NAME.weight``, F32 with
one number, or one for each expert of a stack, by which llama.cpp multiplies the product with the
weights.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from glft_schema.codec.type_codes import TypeTable
from glft_schema.families.registry import family_with
from glft_schema.formats.gguf_names import ARCHITECTURE, scale_of
from glft_schema.storage.dtypes import FLOAT32, Array
from glft_schema.tensor_types import TensorType
from glft_schema.tensor_types.chunks import CHUNK, importance_rows, slices
from glft_schema.tensor_types.conversions import float32_of
from glft_schema.tensors.stored_tensor import StoredTensor
from glft_schema.weights.payloads import PlannedPayload
from glft_schema.weights.schemes import TypeChoice

STEPS = 4  # scales that are tried, from 1 to 2 times the smallest: powers of two make no difference
ROWS = 64  # of each matrix, in the sample
LEAST = 2.0**-126  # a normal float32


class TensorScale:
    """The scales of a tensor's matrices, computed when they are first needed.

    The smallest scale maps the largest weight to the largest number of the type. Of multiples of
    it, the one with the least error in `ROWS` rows is chosen.

    Args:
        name: of the tensor.
        stored: the tensor, of 2 or 3 dims.
        type_: the type that it gets.
    """

    def __init__(self, name: str, stored: StoredTensor, type_: TensorType) -> None:
        self.name, self._stored, self._type = name, stored, type_

    @property
    def count(self) -> int:
        """The number of scales: 1, or the number of matrices in a stack."""
        return self._stored.shape[0] if len(self._stored.shape) > 2 else 1

    @cached_property
    def values(self) -> Array:
        """The scales, f32[count]. Raises TensorError if the importance is invalid."""
        importance, dims = self._stored.importance, self._stored.shape
        rows = [None] if importance is None else importance_rows(importance, dims, self.name)
        scales = [self._scale_of(parts, rows[number % len(rows)]) for number, parts in enumerate(self._matrices())]
        return np.array(scales, FLOAT32)

    def load(self) -> Array:
        """Returns the scales."""
        return self.values

    def of(self, rows: slice) -> Array:
        """Returns the scales of some rows of the tensor's matrix, f32[rows or 1, 1]."""
        return self.values[rows if self.count > 1 else slice(None)].reshape(-1, 1)

    def _matrices(self) -> Iterator[Iterable[Array]]:
        """Yields the parts of each matrix, f32[rows, columns]."""
        rows, columns = self._stored.shape[-2:]
        read = self._stored.rows if self._stored.has_parts else self._stored.values().__getitem__
        if len(self._stored.shape) > 2:
            yield from ([float32_of(read(slice(n, n + 1))[0])] for n in range(self.count))
        else:
            yield (float32_of(read(part)) for part in slices(rows, max(CHUNK // max(columns, 1), 1)))

    def _scale_of(self, parts: Iterable[Array], importance: Array | None) -> float:
        step, row, peak, sample = max(-(-self._stored.shape[-2] // ROWS), 1), 0, 0.0, []
        for part in parts:
            peak = float(np.maximum(peak, abs(part).max(initial=0)))  # NaN if one is NaN
            sample.append(part[-row % step :: step].copy())
            row += len(part)
        if not 0 < peak < math.inf:  # zeros, or numbers that the encoder refuses
            return 1.0
        rows, counts = np.concatenate(sample), np.float64(1) if importance is None else importance.astype(np.float64)
        scales = [self._at_least(2 ** (n / STEPS) * peak / self._type.largest) for n in range(STEPS)]
        errors = [float((counts * np.square(self._errors(rows, scale, importance))).sum()) for scale in scales]
        return scales[int(np.argmin(errors))]

    @staticmethod
    def _at_least(least: float) -> float:
        """Rounds a scale up to a normal float32."""
        scale = np.float32(max(least, LEAST))
        return float(scale if float(scale) >= least else np.nextafter(scale, np.float32(math.inf)))

    def _errors(self, rows: Array, scale: float, importance: Array | None) -> Array:
        """Returns the errors of encoding, f64[rows, columns]."""
        fields = self._type.encode(rows / scale, self.name, importance=importance, lost=Counter(), search=True)
        errors: Array = scale * self._type.decode(fields, rows.shape[1]).astype(np.float64) - rows
        return errors


def with_search(
    stored: Mapping[str, StoredTensor],
    choices: Mapping[str, TypeChoice],
    metadata: Mapping[str, Any],
    types: TypeTable[TensorType],
) -> tuple[dict[str, StoredTensor], dict[str, TypeChoice]]:
    """Returns the tensors of a file and their types, with encoders that search and the companions
    of tensor scales.

    A tensor gets a scale if blocks of its type reach only a limited number, it is encoded, and
    llama.cpp multiplies by the companion in models of this architecture.

    Args:
        stored: the tensors.
        choices: their types.
        metadata: of the file.
        types: of its format.
    """
    page, tensors, searching = family_with(metadata.get(ARCHITECTURE)), dict(stored), dict[str, TypeChoice]()
    for name, choice in choices.items():
        scale, beside = None, scale_of(name)
        is_encoded = math.isfinite(choice.type.largest) and not PlannedPayload(name, stored[name], choice).copy_of
        if is_encoded and page and page.multiplies(beside) and beside not in stored:
            scale = TensorScale(name, stored[name], choice.type)
            tensors[beside] = StoredTensor((scale.count,), FLOAT32, scale.load)
        searching[name] = replace(choice, search=True, scale=scale)
        if scale:
            searching[beside] = TypeChoice(types["f32"])
    return tensors, searching
