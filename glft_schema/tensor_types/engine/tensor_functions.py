"""Runs formulas and encoders that are functions of torch tensors on arrays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from glft_schema.storage.dtypes import Array
from glft_schema.storage.torch_tensors import as_tensor
from glft_schema.tensor_types.engine.functions import Encoder, Fields, Formula


def formula_of_tensors(formula: Formula, are_bytes: bool) -> Callable[[Fields, Array], None]:
    """Returns a step that runs a function of torch tensors on arrays.

    Args:
        formula: returns a tensor.
        are_bytes: whether unsigned words are given as their bytes, the lowest first.
    """

    def step(fields: Fields, out: Array) -> None:
        given = {name: as_tensor(_bytes_of_words(field) if are_bytes else field) for name, field in fields.items()}
        weights = formula(**given)
        if weights.numel() != out.size:
            expected, found = list(out.shape), list(weights.shape)
            raise ValueError(f"expected weights {expected} from the formula, found {found}")
        as_tensor(out).copy_(weights.reshape(out.shape))

    return step


def encoder_of_tensors(encoder: Encoder, importance: Array | None, columns: int) -> Callable[[Array, Fields], None]:
    """Returns a step that runs an encoder of torch tensors on arrays."""

    def step(numbers: Array, out: Fields) -> None:
        given = {}
        if importance is not None:
            given["importance"] = as_tensor(importance).expand(numbers.size // columns, columns)
        for key, stored in encoder(as_tensor(numbers), **given).items():
            as_tensor(out[key]).copy_(stored)

    return step


def _bytes_of_words(field: Array) -> Array:
    is_word = field.dtype.kind == "u" and field.itemsize > 1
    return np.ascontiguousarray(field).view(np.uint8) if is_word else field
