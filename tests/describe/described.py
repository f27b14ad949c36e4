"""Formats and types that the tests of writers describe, among them an extended GLFT."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from glft_schema.codec.numbers import f16, u8, u32
from glft_schema.codec.structs import Struct
from glft_schema.codec.type_codes import TypeTable
from glft_schema.formats.format import Format
from glft_schema.formats.gguf import GGUF
from glft_schema.formats.glft import GLFT, Header
from glft_schema.tensor_types.blocks import block_type
from glft_schema.tensor_types.ggml import GGML_TYPES
from glft_schema.tensor_types.tensor_type import TensorType

DESCRIBED: dict[str, Format | TensorType] = {"glft": GLFT, "gguf": GGUF, "q4_per_group_64": GLFT.types["q4_per_group_64"]}
DESCRIBED |= {name: GGML_TYPES[name] for name in ("q4_k", "iq1_m", "bf16")}


@cache
def extended_glft() -> Format:
    """Returns GLFT with one more header field, ``checksum``, and one more type, ``Q4_more``."""
    fields = [field for field in Header.subcons if field.name]
    header = Struct(*fields, "checksum" / u32 * "of the rest", title="header")
    type_ = block_type("Q4_more", 9, 32, Struct("d" / f16[1] * "scale", "qs" / u8[16] * "codes"), lambda d, qs: qs)
    struct = Struct("header" / header * "first", *GLFT.struct.subcons[1:])
    return replace(GLFT, struct=struct, types=TypeTable("GLFT", *GLFT.types, type_))
