"""safetensors (README of safetensors 0.8). Little-endian.

    HEADER | TENSOR_INFOS | DATA

HEADER is the length of TENSOR_INFOS in bytes. TENSOR_INFOS is a JSON object with an object (dtype,
shape and data_offsets) for each tensor name, and texts by key under ``__metadata__``. Offsets count
from the start of DATA. The payloads are in C order. New files store them without gaps, sorted by
dtype and name, and pad TENSOR_INFOS with spaces to a multiple of 8 bytes.

`spec` rules come from the README, `rust` rules from the library's reader, tensor.rs. The reader
also accepts forms that serde's derived code accepts: an entry as the array of its values, and a
dtype as ``{"F32": null}``.

For F4, the file's shape counts weights, as the library writes it, although version 0.8 cannot load
such tensors. Two weights share a byte and torch counts bytes, so dims have half of the last size.

The library accepts exactly the files that this package opens and that follow the `rust` rules, with
two exceptions, which this package refuses: F4 with an odd last size, and tensors of no elements
whose other sizes have a product of 2^59 or more. The library opens such files, unless the sizes
before the first 0 overflow 64 bits. It cannot load the F4 tensors, and loads the empty ones if
torch supports the shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from construct import this

from glft_schema.codec.json_table import IntegerAt, IntegersAt, JsonTable, JsonTexts, Key, TextAt, json_rules, nbytes_of_json
from glft_schema.codec.numbers import u64
from glft_schema.codec.predicates import at_most, equals
from glft_schema.codec.rules import RUST, SPEC, Rule
from glft_schema.codec.structs import Count, Derived, Struct
from glft_schema.codec.type_codes import TypeCode, TypeTable
from glft_schema.formats.format import Format, ShardIndex
from glft_schema.tensor_types.copied import (
    BOOL,
    C64,
    F4,
    F6_E2M3,
    F6_E3M2,
    F8_E4M3,
    F8_E4M3FNUZ,
    F8_E5M2,
    F8_E5M2FNUZ,
    F8_E8M0,
    U8,
    U16,
    U32,
    U64,
)
from glft_schema.tensor_types.ggml.unquantized import BF16, F16, F32, F64, I8, I16, I32, I64
from glft_schema.tensor_types.tensor_type import TensorType
from glft_schema.tensors.layout_rules import Indexed, nothing_after
from glft_schema.tensors.region import TensorData, TensorFits, nbytes_of_payload

METADATA = "__metadata__"  # the entry that is not a tensor
BOTH = (SPEC, RUST)

# In the library's order. New files sort tensors in reverse, the last type first.
TYPES = TypeTable[TensorType]("safetensors", {type_.name: type_ for type_ in (
    BOOL, F4, F6_E2M3, F6_E3M2, U8, I8, F8_E5M2, F8_E4M3, F8_E8M0, F8_E4M3FNUZ, F8_E5M2FNUZ,
    I16, U16, F16, BF16, I32, U32, F32, C64, F64, I64, U64,
)})  # fmt: skip
RANKS = {type_: rank for rank, type_ in enumerate(TYPES)}
END = this.offset + nbytes_of_payload(this)


def by_dtype_and_name(row: Mapping[str, Any]) -> tuple[int, str]:
    """Returns the key by which new files sort their rows."""
    return -RANKS[TYPES[row["dtype"]]], row["name"]


def has_length(start: bytes) -> bool:
    """Tells whether a file begins with the length of a JSON object, which no text does."""
    return start[8:].lstrip(b" \t\n\r")[:1] == b"{" and int.from_bytes(start[:8], "little") < 1 << 48


# fmt: off
Header = Struct(
    "length" / Count(u64, nbytes_of_json("tensor_infos")) * "bytes of the JSON text, with the spaces after it",
    Rule("safetensors-header-size", this.length, at_most(100_000_000, "bytes"), sets=BOTH),
    title="header",
)

TensorInfo = Struct(
    "name"   / Key()                                            * "name of the tensor: the key of its object",
    "dtype"  / TypeCode(TextAt("dtype"), TYPES)                 * "how the payload is stored",
    "dims"   / IntegersAt("shape", "dims", paired=this.dtype == F4) * "sizes in torch's order; `shape` in the specification",
    "shape"  / Derived(this.dims)                               * "the same sizes as dims",
    "offset" / IntegerAt("data_offsets", 0, of=2)               * "first byte of the payload, counted from the start of DATA",
    "end"    / Count(IntegerAt("data_offsets", 1, of=2), END)  * "offset of the byte after the payload",
    TensorFits("safetensors-dims-fit-type", "dims"),
    Rule("safetensors-size", this.end, equals(END, "the offset plus the bytes of such a tensor")),
    title="tensor_info",
)

SAFETENSORS = Format("safetensors", (), TYPES, Struct(
    "header"       / Header                                  * "the length of the JSON text",
    "tensor_infos" / JsonTable(this.header.length, TensorInfo, reserved=METADATA, metadata="metadata")
                                                             * "one entry per tensor",
    "metadata"     / JsonTexts("tensor_infos")               * "the entry __metadata__: texts by key",
    "data"         / TensorData("tensor_infos")              * "the payloads, each at its offset",
    *json_rules("safetensors", "tensor_infos",
        spec="brace padding names-once metadata-once metadata-object metadata-keys-once known-keys keys-once plain-entries",
        rust="metadata-once keys-once nesting"),
    Indexed("safetensors-contiguous", "tensor_infos", BOTH),
    Rule("safetensors-end", this.data, nothing_after, sets=BOTH),
),
    endings=(".safetensors",),
    keeps_to=BOTH,
    unshared_by=BOTH,
    sniff=has_length,
    shards=ShardIndex(".safetensors.index.json"),
    entries={"format": "pt"},  # which transformers requires
    order=by_dtype_and_name,
)
# fmt: on
