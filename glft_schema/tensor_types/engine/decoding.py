"""Decodes fields into weights: by the compiled library, or by operations of numpy on arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from glft_schema.scalar.block_layout import ScalarLayout
from glft_schema.storage.dtypes import FLOAT32, Array, address, name_of, words
from glft_schema.tensor_types.engine.chunks import row_chunks, take
from glft_schema.tensor_types.engine.conversions import LONGEST, convert
from glft_schema.tensor_types.engine.functions import Fields, Formula
from glft_schema.tensor_types.engine.memory import keep_freed_memory
from glft_schema.tensor_types.engine.workers import run_parts
from glft_schema.tensor_types.library.loading import DTYPES, function_of

WRITTEN = tuple(DTYPES)  # dtypes that the library writes
LEAST, MOST = 1 << 19, 1 << 20  # weights in a part: fewer are done before another thread has begun


def by_library(layout: ScalarLayout, fields: Sequence[Array], out: Array) -> bool:
    """Writes the weights of fields [rows, numbers per row] into `out` [rows, columns], contiguous,
    by the compiled library. The caller has checked the shapes.

    Returns False if the library lacks the type, `out` is not aligned, or a row is too long.
    """
    if not words(out).flags.aligned or (layout.weights is None and out.shape[1] > LONGEST):
        return False
    dtype = name_of(out.dtype)
    is_written = dtype in WRITTEN
    function = function_of(layout.name, dtype if is_written else WRITTEN[0])
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


Step = Callable[[Fields, Array], None]  # writes the weights of fields


def by_arrays(formula: Formula, layout: ScalarLayout, fields: Fields, out: Array) -> None:
    """Writes the weights of blocks, groups or rows into `out` by running a scalar function in
    numpy.

    Args:
        formula: a scalar function.
        layout: of the block or row.
        fields: [rows, numbers], see `TensorType.columns`.
        out: [rows, weights], contiguous.

    Raises:
        ScalarError: if the function cannot run on arrays.
    """
    step, fields = _as_arrays(formula, layout, out.shape[1]), {name: _to_signed(field) for name, field in fields.items()}
    keep_freed_memory()
    for rows in row_chunks(*out.shape):
        step(take(fields, rows), out[rows])


def _to_signed(field: Array) -> Array:
    """Returns unsigned words as signed ones."""
    is_word = field.dtype.kind == "u" and field.itemsize > 1
    return field.view(f"i{field.itemsize}") if is_word else field


@lru_cache(maxsize=1 << 8)
def _as_arrays(formula: Formula, layout: ScalarLayout, weights: int) -> Step:
    """Returns a scalar formula as operations on arrays. Raises ScalarError if it cannot run on
    them."""
    from glft_schema.scalar import numpy_arrays  # slow to import, as below
    from glft_schema.scalar.as_arrays import decoder
    from glft_schema.scalar.checking import check
    from glft_schema.scalar.language import ScalarError

    function = check(formula, layout.arrays(columns=None if layout.weights else weights))
    try:
        run = decoder(function, numpy_arrays)
    except ScalarError as error:
        raise ScalarError(f"{error}; glft.types.compile compiles it as C") from None

    def step(fields: Fields, out: Array) -> None:
        target = out if out.dtype == FLOAT32 else np.empty(out.shape, FLOAT32)
        with np.errstate(all="ignore"):
            run(w=target, **{name: fields[name] for name in function.parameters if name != "w"})
        if target is not out:
            words(out)[...] = words(convert(target, out.dtype))

    return step
