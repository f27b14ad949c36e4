"""Encodes rows with scalar functions, compiled in the library or run in numpy."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from glft_schema.errors import TensorError
from glft_schema.scalar.block_layout import NUMPY, ScalarLayout
from glft_schema.storage.dtypes import Array, address
from glft_schema.tensor_types.engine.functions import Encoder, Fields
from glft_schema.tensor_types.library.loading import command, encoder_of

Step = Callable[[Array, Fields], None]  # writes the fields of weights, float32 [rows, numbers]


def by_library(layout: ScalarLayout, importance: Array | None, columns: int) -> Step | None:
    """Returns an encoder of the library, which may run in several threads, or None if the library
    lacks the type.

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


def by_arrays(source: Encoder, layout: ScalarLayout, importance: Array | None, columns: int, name: str) -> Step:
    """Returns an encoder like `by_library`, but runs it in numpy. The encoder raises TensorError
    for the tensor `name` if it cannot run on arrays."""
    from glft_schema.scalar import tree
    from glft_schema.scalar.as_c import mean_square_of_row  # slow to import, as below
    from glft_schema.scalar.checking import check
    from glft_schema.scalar.language import ScalarError
    from glft_schema.scalar.side_by_side import run_side_by_side

    function = _check(source, layout)
    of_row = check(mean_square_of_row, {"w": tree.ArrayType("f32", None), "mean_square": tree.ArrayType("f32", 1, "out")})

    def step(weights: Array, out: Fields) -> None:
        rows = np.ascontiguousarray(weights).reshape(-1, columns)
        width = layout.weights or columns
        arrays = {"w": rows.reshape(-1, width).T}
        blocks = arrays["w"].shape[1]
        per_row = columns // width
        if importance is not None:
            arrays["importance"] = np.tile(importance.reshape(-1, width).T, len(rows))
        if "mean_square" in function.parameters:
            means = np.zeros((1, len(rows)), np.float32)
            run_side_by_side(of_row, {"w": rows.T, "mean_square": means}, len(rows))
            arrays["mean_square"] = means.repeat(per_row, 1)
        counts = {field.name: field.count or columns // field.weights for field in layout.fields}
        for field in layout.fields:
            arrays[field.name] = np.zeros((counts[field.name], blocks), np.float32 if field.number[0] == "f" else np.int32)
        try:
            run_side_by_side(function, arrays, blocks)
        except ScalarError as error:
            how = f"compile the library with {command()}, or your own type with glft_schema.types.compile"
            raise TensorError(f"{error}; {how}", name) from None
        with np.errstate(over="ignore"):
            stored = {field.name: arrays[field.name].T.astype(NUMPY[field.number]) for field in layout.fields}
        if layout.weights:
            parts = [np.ascontiguousarray(part).view(np.uint8).reshape(blocks, -1) for part in stored.values()]
            stored = {next(iter(out)): np.concatenate(parts, 1)}
        for key, part in stored.items():
            out[key][...] = part.reshape(out[key].shape)

    return step


@lru_cache(maxsize=1 << 8)
def _check(source: Encoder, layout: ScalarLayout) -> Any:
    from glft_schema.scalar.checking import check

    return check(source, layout.encoder_arrays())
