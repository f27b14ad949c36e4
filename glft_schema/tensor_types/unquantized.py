"""Numbers stored unchanged. GLFT and GGUF give F32 and F16 the same codes; the rest is GGUF's."""

from __future__ import annotations

from glft_schema.codec.numbers import bf16, f16, f32, f64, i8, i16, i32, i64
from glft_schema.tensor_types.engine.conversions import to_bf16, to_f16
from glft_schema.tensor_types.number_types import number_type

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
