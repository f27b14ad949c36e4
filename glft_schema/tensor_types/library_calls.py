"""Calls the decoders and encoders of the compiled library for arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from glft_schema.storage.dtypes import FLOAT32, Array, address, name_of, words
from glft_schema.tensor_types.engine.conversions import LONGEST, convert
from glft_schema.tensor_types.engine.functions import Fields
from glft_schema.tensor_types.engine.workers import run_parts
from glft_schema.tensor_types.library.loading import DTYPES, encoder_of, function_of
from glft_schema.tensor_types.scalar_layout import ScalarLayout

Step: TypeAlias = Callable[[Array, Fields], None]  # writes the fields of weights, float32 [rows, numbers]

LEAST, MOST = 1 << 19, 1 << 20  # weights in a part: fewer are done before another thread has begun


def decode(layout: ScalarLayout, fields: Sequence[Array], out: Array) -> bool:
    """Writes the weights of fields [rows, numbers per row] into `out` [rows, columns], contiguous.
    The caller has checked the shapes.

    Returns False if the library lacks the type, or a row is too long.
    """
    if layout.weights is None and out.shape[1] > LONGEST:
        return False
    dtype = name_of(out.dtype)
    is_written = dtype in DTYPES and words(out).flags.aligned
    function = function_of(layout.name, dtype if is_written else "float32")
    if function is None:
        return False
    if layout.weights and fields[0].flags.c_contiguous:  # any blocks make up a part
        out = out.reshape(-1, layout.weights)
        fields = [fields[0].reshape(len(out), -1)]
    columns = out.shape[1]

    def run(first: int, last: int) -> None:
        count, weights = last - first, out[first:last]
        parts = [np.ascontiguousarray(field[first:last]) for field in fields]
        target = weights if is_written else np.empty((count, columns), FLOAT32)
        sizes = [count * columns // layout.weights] if layout.weights else [count, columns]
        function(*map(address, parts), address(target), *sizes)
        if not is_written:
            words(weights)[...] = words(convert(target, out.dtype))

    run_parts(run, len(out), max(LEAST // columns, 1), max(MOST // columns, 1))
    return True


def encoder(layout: ScalarLayout, importance: Array | None, columns: int) -> Step | None:
    """Returns an encoder, which may run in several threads, or None if the library lacks the type.

    Args:
        layout: of a block or a row.
        importance: float32 [columns], if the encoder uses it.
        columns: of a row of the tensor.
    """
    function = encoder_of(layout.name, importance is not None)
    if function is None:
        return None
    row = [] if importance is None else [np.ascontiguousarray(importance)]

    def step(weights: Array, out: Fields) -> None:
        weights = np.ascontiguousarray(weights)
        fields = {name: np.ascontiguousarray(field) for name, field in out.items()}
        function(*map(address, (weights, *row, *fields.values())), weights.size // columns, columns)
        for name, field in fields.items():
            if field is not out[name]:
                out[name][...] = field

    return step
