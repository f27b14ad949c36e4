"""Types without an encoder: their tensors are read and copied, but no dtype is converted to them.

Sources: `Dtype` in tensor.rs of safetensors 0.8; OCP Microscaling Formats v1.0 (F4, F6, F8_E8M0),
OCP 8-bit Floating Point v1.0 (F8_E4M3, F8_E5M2), and arXiv 2206.02915 (FNUZ).
"""

from __future__ import annotations

from glft_schema.codec.numbers import Number, u8
from glft_schema.codec.predicates import meets
from glft_schema.codec.rules import Rule
from glft_schema.codec.structs import Struct
from glft_schema.tensor_types.payload_layout import DIMS, IN, OUT
from glft_schema.tensor_types.tensor_type import TensorType


def copied_type(name: str, numpy_kind: str, dtype: str, sentence: str) -> TensorType:
    """Declares a type of one kind of number."""
    payload = Struct("weights" / Number(name.lower(), numpy_kind, dtype)[DIMS] * sentence)
    return TensorType(name, name, payload, exact=dtype)


def packed_type(name: str, dtype: str, bits: int, sentence: str) -> TensorType:
    """Declares a type of numbers smaller than a byte, for which numpy has no dtype."""
    payload = Struct(
        "bits" / u8[OUT * IN * bits // 8] * sentence,
        Rule(f"{name.lower()}-bytes", DIMS, meets(OUT * IN * bits % 8 == 0, f"numbers of {bits} bits that fill whole bytes")),
    )
    return TensorType(name, name, payload, exact=dtype)


# fmt: off
BOOL        = copied_type("BOOL",        "u1", "bool",             "0 or 1")
F4          = copied_type("F4",          "u1", "float4_e2m1fn_x2", "two E2M1 floats in a byte")
F6_E2M3     = packed_type("F6_E2M3",     "float6_e2m3fn", 6,       "E2M3 floats of six bits")
F6_E3M2     = packed_type("F6_E3M2",     "float6_e3m2fn", 6,       "E3M2 floats of six bits")
U8          = copied_type("U8",          "u1", "uint8",            "unsigned")
F8_E5M2     = copied_type("F8_E5M2",     "u1", "float8_e5m2",      "E5M2 float")
F8_E4M3     = copied_type("F8_E4M3",     "u1", "float8_e4m3fn",    "E4M3 float without infinities")
F8_E8M0     = copied_type("F8_E8M0",     "u1", "float8_e8m0fnu",   "a power of two: the exponent only")
F8_E4M3FNUZ = copied_type("F8_E4M3FNUZ", "u1", "float8_e4m3fnuz",  "E4M3 float without infinities and -0")
F8_E5M2FNUZ = copied_type("F8_E5M2FNUZ", "u1", "float8_e5m2fnuz",  "E5M2 float without infinities and -0")
U16         = copied_type("U16",         "u2", "uint16",           "unsigned")
U32         = copied_type("U32",         "u4", "uint32",           "unsigned")
C64         = copied_type("C64",         "c8", "complex64",        "real and imaginary part, IEEE 754 singles")
U64         = copied_type("U64",         "u8", "uint64",           "unsigned")
COPIED_TYPES = (BOOL, F4, F6_E2M3, F6_E3M2, U8, F8_E5M2, F8_E4M3, F8_E8M0, F8_E4M3FNUZ, F8_E5M2FNUZ, U16, U32, C64, U64)
# fmt: on
