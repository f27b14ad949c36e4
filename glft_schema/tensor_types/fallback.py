"""Runs the scalar functions of types in numpy, without the compiled library: all blocks of a chunk
at once."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from glft_schema.errors import TensorError
from glft_schema.scalar.kinds import KINDS
from glft_schema.storage.dtypes import FLOAT32, Array, words
from glft_schema.tensor_types.engine.chunks import row_chunks
from glft_schema.tensor_types.engine.conversions import convert
from glft_schema.tensor_types.engine.functions import Encoder, Fields, Formula
from glft_schema.tensor_types.library.loading import command
from glft_schema.tensor_types.library_calls import Step
from glft_schema.tensor_types.scalar_layout import ScalarLayout


def decode(formula: Formula, layout: ScalarLayout, fields: Fields, out: Array) -> None:
    """Writes the weights of blocks or rows.

    Args:
        formula: a scalar function.
        layout: of the block or row.
        fields: [blocks, numbers] or [rows, numbers], by name.
        out: [blocks, weights] or [rows, columns].

    Raises:
        ScalarError: if the function cannot run in numpy.
    """
    from glft_schema.scalar.language import ScalarError  # slow to import, as below
    from glft_schema.scalar.side_by_side import run_side_by_side

    unit = layout.unit
    function = _check(formula, layout, unit)
    for rows in row_chunks(*out.shape):
        units = out[rows].size // unit
        arrays = {"w": np.empty((unit, units), FLOAT32)}
        for field in layout.fields:
            given = fields[field.name][rows]
            numbers = given.repeat(units // len(given), 0) if field.count else given.reshape(units, -1)
            arrays[field.name] = numbers.T.astype(_dtype(field.number))
        try:
            run_side_by_side(function, arrays, units)
        except ScalarError as error:
            raise ScalarError(f"{error}; glft.types.compile compiles it as C") from None
        words(out[rows])[...] = words(convert(arrays["w"].T.reshape(out[rows].shape), out.dtype))


def encoder(source: Encoder, layout: ScalarLayout, importance: Array | None, columns: int, name: str) -> Step:
    """Returns an encoder, see `library_calls.encoder`. It raises TensorError for the tensor `name`
    if the function cannot run in numpy."""
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
            arrays[field.name] = np.zeros((field.count_in(columns), blocks), _dtype(field.number))
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


def _dtype(number: str) -> str:
    """Returns the dtype that scalar functions compute with numbers of a kind in."""
    return KINDS[number].computed


@lru_cache(maxsize=1 << 8)
def _check(function: Any, layout: ScalarLayout, unit: int | None = None) -> Any:
    """Returns the tree of a decoder of `unit` weights, or of an encoder."""
    from glft_schema.scalar.checking import check

    return check(function, layout.arrays(columns=unit) if unit else layout.encoder_arrays())
