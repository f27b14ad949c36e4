"""Runs the decoders and encoders of quantized types: by the compiled library or, without it, in
numpy, all blocks of a chunk at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from glft_schema.errors import TensorError
from glft_schema.scalar.kinds import KINDS
from glft_schema.storage.dtypes import FLOAT32, Array, address, name_of, words
from glft_schema.tensor_types.chunks import row_chunks
from glft_schema.tensor_types.conversions import LONGEST, convert
from glft_schema.tensor_types.declaration import Declaration
from glft_schema.tensor_types.library.loading import DTYPES, command, encoder_of, function_of
from glft_schema.tensor_types.payload_layout import Fields
from glft_schema.tensor_types.scalar_layout import Encoder, ScalarLayout
from glft_schema.tensor_types.workers import parts_of, run_parts

Step: TypeAlias = Callable[[Array, Fields], None]  # writes the fields of weights, float32 [rows, numbers]

LEAST, MOST = 1 << 19, 1 << 20  # weights in a part: fewer are done before another thread has begun


def decode(type_: Declaration, fields: Fields, out: Array) -> None:
    """Writes the weights of fields [rows, numbers per row] into `out` [rows, columns], contiguous.
    The caller has checked the shapes.

    Raises:
        ScalarError: if the library lacks the type, and its formula cannot run in numpy.
    """
    layout = type_.scalar_layout
    if not _decode_by_library(layout, [fields[name] for name, _ in type_.fields()], out):
        _decode_in_numpy(type_, fields, out.reshape(-1, layout.weights or out.shape[1]))


def encoder(type_: Declaration, importance: Array | None, columns: int, name: str) -> tuple[Step, bool]:
    """Returns an encoder, and whether it may run in several threads.

    Args:
        type_: with encoders.
        importance: float32 [columns], if the encoder uses it.
        columns: of a row of the tensor.
        name: of the tensor, for the TensorError if the library lacks the encoder, and it cannot run
            in numpy.
    """
    layout, source = type_.scalar_layout, type_.encoders[-1 if importance is not None else 0]
    if compiled := _encoder_of_library(layout, importance, columns):
        return compiled, True
    return _encoder_in_numpy(source, layout, importance, columns, name), False


# In the library


def _decode_by_library(layout: ScalarLayout, fields: Sequence[Array], out: Array) -> bool:
    """Decodes. Returns False if the library lacks the type, or a row is too long."""
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

    def run(part: slice) -> None:
        weights, parts = out[part], [np.ascontiguousarray(field[part]) for field in fields]
        target = weights if is_written else np.empty(weights.shape, FLOAT32)
        sizes = [weights.size // layout.weights] if layout.weights else weights.shape
        function(*map(address, parts), address(target), *sizes)
        if not is_written:
            words(weights)[...] = words(convert(target, out.dtype))

    run_parts(run, parts_of(len(out), max(LEAST // columns, 1), max(MOST // columns, 1)))
    return True


def _encoder_of_library(layout: ScalarLayout, importance: Array | None, columns: int) -> Step | None:
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


# In numpy


def _decode_in_numpy(type_: Declaration, fields: Fields, out: Array) -> None:
    """Decodes [blocks, weights] or [rows, columns]."""
    from glft_schema.scalar.language import ScalarError  # slow to import, as below
    from glft_schema.scalar.side_by_side import run_side_by_side

    layout, columns_of = type_.scalar_layout, dict[str, Array]()
    for name, part in type_.fields():
        columns_of |= part.columns(name, fields[name])
    unit = layout.unit
    function = _check(type_.formula, layout, unit)
    for rows in row_chunks(*out.shape):
        units = out[rows].size // unit
        arrays = {"w": np.empty((unit, units), FLOAT32)}
        for field in layout.fields:
            given = columns_of[field.name][rows]
            numbers = given.repeat(units // len(given), 0) if field.count else given.reshape(units, -1)
            arrays[field.name] = numbers.T.astype(KINDS[field.number].computed)
        try:
            run_side_by_side(function, arrays, units)
        except ScalarError as error:
            raise ScalarError(f"{error}; glft.types.compile compiles it as C") from None
        words(out[rows])[...] = words(convert(arrays["w"].T.reshape(out[rows].shape), out.dtype))


def _encoder_in_numpy(source: Encoder, layout: ScalarLayout, importance: Array | None, columns: int, name: str) -> Step:
    from glft_schema.scalar.checking import check
    from glft_schema.scalar.language import ScalarError
    from glft_schema.scalar.side_by_side import run_side_by_side
    from glft_schema.tensor_types.library.printing import MEAN_SQUARE, mean_square_of_row

    function, of_row = _check(source, layout), check(mean_square_of_row, MEAN_SQUARE)

    def step(weights: Array, out: Fields) -> None:
        rows, width = np.ascontiguousarray(weights).reshape(-1, columns), layout.weights or columns
        blocks = rows.size // width
        arrays = {"w": rows.reshape(blocks, width).T}
        if importance is not None:
            arrays["importance"] = np.tile(importance.reshape(-1, width).T, len(rows))
        if "mean_square" in function.parameters:
            means = np.empty((1, len(rows)), FLOAT32)
            run_side_by_side(of_row, {"w": rows.T, "mean_square": means}, len(rows))
            arrays["mean_square"] = means.repeat(columns // width, 1)
        for field in layout.fields:
            arrays[field.name] = np.zeros((field.count_in(columns), blocks), KINDS[field.number].computed)
        try:
            run_side_by_side(function, arrays, blocks)
        except ScalarError as error:
            how = f"compile the library with {command()}, or your own type with glft_schema.types.compile"
            raise TensorError(f"{error}; {how}", name) from None
        with np.errstate(over="ignore"):
            stored = {field.name: arrays[field.name].T.astype(KINDS[field.number].numpy) for field in layout.fields}
        if layout.weights:
            parts = [np.ascontiguousarray(part).view(np.uint8).reshape(blocks, -1) for part in stored.values()]
            stored = {next(iter(out)): np.concatenate(parts, 1)}
        for key, part in stored.items():
            out[key][...] = part.reshape(out[key].shape)

    return step


@lru_cache(maxsize=1 << 8)
def _check(function: Any, layout: ScalarLayout, unit: int | None = None) -> Any:
    """Returns the tree of a decoder of `unit` weights, or of an encoder."""
    from glft_schema.scalar.checking import check

    return check(function, layout.arrays(columns=unit) if unit else layout.encoder_arrays())
