"""Numbers stored unchanged, one after another, in C order. GLFT and GGUF give F32 and F16 the same
codes; the rest is GGUF's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from glft_schema.codec.numbers import Number, bf16, f16, f32, f64, i8, i16, i32, i64
from glft_schema.codec.structs import Struct
from glft_schema.storage.dtypes import Array, name_of
from glft_schema.tensor_types.chunks import Fault, are_finite
from glft_schema.tensor_types.conversions import convert, to_bf16, to_f16, widen
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


# fmt: off
F32  = number_type("F32",   0, f32,  "IEEE 754 single")
F16  = number_type("F16",   1, f16,  "IEEE 754 half", to_f16)
BF16 = number_type("BF16", 30, bf16, "the upper half of an IEEE 754 single", to_bf16)
F64  = number_type("F64",  28, f64,  "IEEE 754 double")
I8   = number_type("I8",   24, i8,   "two's complement")
I16  = number_type("I16",  25, i16,  "two's complement")
I32  = number_type("I32",  26, i32,  "two's complement")
I64  = number_type("I64",  27, i64,  "two's complement")
# fmt: on
