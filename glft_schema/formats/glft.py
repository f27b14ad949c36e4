"""GLFT v1, the "GGUF-lite" of a quantization lab, in the order of docs/formats/glft.md. Little-endian throughout.

    HEADER | METADATA | DESCRIPTORS | DATA

One after another without padding. DATA begins where the last descriptor ends, and offsets count from there.
"""

from __future__ import annotations

from typing import Any

from construct import Default, Int8ul, Int16ul, Int32ul, Int64ul, PascalString, len_, this

from glft_schema.codec.metadata_lines import KeyValueLines
from glft_schema.codec.numbers import Sizes, u8, u32
from glft_schema.codec.rules import Rule
from glft_schema.codec.structs import Count, Derived, Struct
from glft_schema.codec.tables import NamesOnce, Table
from glft_schema.codec.type_codes import TypeCode, TypeTable
from glft_schema.formats.format import Format
from glft_schema.tensor_types.symmetric import Q4_PER_GROUP_64, Q8_PER_CHANNEL
from glft_schema.tensor_types.unquantized import F16, F32
from glft_schema.tensors.region import TensorData, TensorFits

MAGIC = 0x474C4654  # stored little-endian: the file starts with 54 46 4C 47
SWAPPED_MAGIC = 0x54464C47  # what a reader of the right file in the wrong byte order sees
VERSION = 1

TYPES = TypeTable("GLFT", F32, F16, Q8_PER_CHANNEL, Q4_PER_GROUP_64)


def as_hex(number: int) -> str:
    """Returns a u32 as it is written in specifications."""
    return f"0x{number:08X}"


def metadata_len(header: Any) -> int:
    """Returns the bytes that the metadata beside `header` takes."""
    return len(KeyValueLines.encode(header._.get("metadata")))


# fmt: off
Header = Struct(
    "magic"        / Default(Int32ul, MAGIC)                        * "0x474C4654, 'GLFT' read from the highest byte down",
    Rule("glft-byte-order", "magic", this.magic != SWAPPED_MAGIC, "little-endian, not byte-swapped", show=as_hex),
    Rule("glft-magic", "magic", this.magic == MAGIC, as_hex(MAGIC), show=as_hex),
    "version"      / Default(Int32ul, VERSION)                      * "1; a file with another number is another format",
    Rule("glft-version", "version", this.version == VERSION, f"{VERSION}"),
    "n_tensors"    / Count(Int32ul, len_(this._.descriptors))       * "number of descriptors",
    "metadata_len" / Count(Int32ul, metadata_len)                   * "bytes of METADATA",
    title="header",
)

Descriptor = Struct(
    "name"   / PascalString(Int16ul, "utf8")  * "of the tensor; unique, any characters",
    Rule("glft-name", "name", len_(this.name) >= 1, "at least one character"),
    "dims"   / Sizes(u8, u32, "dims")         * "sizes in torch's order, the slowest first: a Linear's weight is [out, in]",
    "dtype"  / TypeCode(Int8ul, TYPES)        * "how the payload is stored",
    "shape"  / Derived(this.dims)             * "the same: torch's order",
    TensorFits("glft-dims-fit-type", "dims"),
    "offset" / Int64ul                        * "where the payload begins, in bytes into DATA",
    title="descriptor",
)

GLFT = Format("GLFT", (MAGIC.to_bytes(4, "little"), SWAPPED_MAGIC.to_bytes(4, "little")), TYPES, Struct(
    "header"      / Header                                                * "what the file is, and how much of it",
    "metadata"    / KeyValueLines(this.header.metadata_len)               * "key=value lines",
    "descriptors" / Table(this.header.n_tensors, Descriptor)              * "one row a tensor",
    NamesOnce("glft-names-once", "descriptors"),
    "data"        / TensorData("descriptors")                             * "the payloads, each at its offset",
), endings=(".glft", ".gguf-lite"))
# fmt: on
