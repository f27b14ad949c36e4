"""Types that store numbers one after another, in C order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from glft_schema.codec.numbers import Number
from glft_schema.codec.structs import Struct
from glft_schema.storage.dtypes import Array, name_of
from glft_schema.tensor_types.engine.chunks import Fault, are_finite
from glft_schema.tensor_types.engine.conversions import convert, widen
from glft_schema.tensor_types.payload_layout import DIMS
from glft_schema.tensor_types.tensor_type import TensorType


def number_type(
    name: str, code: int, number: Number, sentence: str, rounded: Callable[[Array], Array] | None = None
) -> TensorType:
    """Declares a type of one kind of number. `rounded` converts other numbers to this kind."""

    def quantize(weights: Array) -> Array:
        return rounded(weights) if rounded else convert(weights, number.dtype)

    payload, faults = Struct("weights" / number[DIMS] * sentence), find_changed if number.is_signed else overflow
    return TensorType(name, code, payload, None, quantize, faults, exact=name_of(number.dtype))


def overflow(weights: Array, fields: Mapping[str, Array]) -> Iterable[Fault]:
    """Finds finite numbers that became infinite. NaN and infinities are stored unchanged."""
    stored = fields["weights"]
    if not are_finite(stored):
        name = name_of(stored.dtype)
        yield True, f"a finite number is too large for {name}", np.isinf(widen(stored)) & np.isfinite(widen(weights))


def find_changed(weights: Array, fields: Mapping[str, Array]) -> Iterable[Fault]:
    """Finds integers that are out of range for the stored dtype."""
    stored = fields["weights"]
    if not np.can_cast(weights.dtype, stored.dtype):
        yield True, f"an integer is too large for {name_of(stored.dtype)}", stored.astype(weights.dtype) != weights
