"""A file against the weights that it was made from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from glft_schema.checkpoints import StoredTensor
from glft_schema.errors import TensorError
from glft_schema.file import File
from glft_schema.lazy import torch
from glft_schema.tensor_types import TensorType


@dataclass(frozen=True)
class Comparison:
    """One tensor of a file beside its source.

    Attributes:
        name: of the tensor.
        type: its type in the file, or None where it is missing there.
        error: max |stored - expected| over its numbers, NaN counting as equal to NaN; infinite where they cannot be compared.
        problem: why they cannot be; mostly empty.
    """

    name: str
    type: TensorType | None
    error: float
    problem: str = ""


def compare(file: File, source: Mapping[str, StoredTensor]) -> Iterator[Comparison]:
    """Compares each tensor of `file` with what its source should have become; then names those that the file lacks."""
    for name, tensor in file.tensors.items():
        if name not in source:
            yield Comparison(name, tensor.dtype, float("inf"), "not in the source")
        elif source[name].shape != tensor.shape:
            shapes = f"{list(source[name].shape)} in the source, {list(tensor.shape)} in the file"
            yield Comparison(name, tensor.dtype, float("inf"), shapes)
        else:
            try:
                expected = source[name].load()
                packed = source[name].packed
                if packed is None or packed.dtype != tensor.dtype:
                    expected = tensor.dtype.round_trip(expected, name)
            except TensorError as error:
                yield Comparison(name, tensor.dtype, float("inf"), error.problem)
                continue
            yield Comparison(name, tensor.dtype, max_error(tensor.dequantize(), expected))
    for name in source:
        if name not in file.tensors:
            yield Comparison(name, None, float("inf"), "not in the file")


def max_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Returns max |found - expected|, where equal numbers, infinities and NaN of both sides included, count 0."""
    if not found.numel():
        return 0.0
    narrow = all(tensor.is_floating_point() and tensor.itemsize <= 4 for tensor in (found, expected))
    for dtype in (torch.float32, torch.float64)[not narrow :]:  # the latter holds every number, but for integers beyond 2^53
        one, other = found.to(dtype), expected.to(dtype)
        errors = one - other
        low, high = (float(extreme) for extreme in errors.aminmax())  # NaN, where there is one
        if math.isfinite(low) and math.isfinite(high):
            return max(0.0, -low, high)
    same = (one == other) | (one.isnan() & other.isnan())
    return float(errors.abs().masked_fill(same, 0.0).nan_to_num(float("inf"), float("inf")).max())
