"""GLFT v1, the "GGUF-lite" of a quantization lab (docs/reference/glft.md). Little-endian.

    HEADER | METADATA | DESCRIPTORS | DATA

Regions follow one another without padding, so DATA begins where the last descriptor ends. The
offsets of tensors count from the start of DATA.
"""

from __future__ import annotations

from construct import Default, len_, this

from glft_schema.codec.metadata_lines import KeyValueLines, nbytes_of_lines
from glft_schema.codec.numbers import Sizes, u8, u16, u32, u64
from glft_schema.codec.predicates import at_least, differs_from, equals
from glft_schema.codec.rules import Rule
from glft_schema.codec.structs import Count, Derived, Struct
from glft_schema.codec.tables import NamesOnce, Table
from glft_schema.codec.text import Text
from glft_schema.codec.type_codes import TypeCode, TypeTable
from glft_schema.formats.format import Format
from glft_schema.tensor_types.ggml.unquantized import F16, F32
from glft_schema.tensor_types.symmetric import Q4_PER_GROUP_64, Q8_PER_CHANNEL
from glft_schema.tensors.region import TensorData, TensorFits

MAGIC   = 0x474C4654  # fmt: skip
SWAPPED = 0x54464C47  # MAGIC in the other byte order
TYPES = TypeTable("GLFT", F32, F16, Q8_PER_CHANNEL, Q4_PER_GROUP_64)
in_hex = "0x{:08X}".format

# fmt: off
Header = Struct(
    "magic"        / Default(u32, MAGIC)                            * "0x474C4654: stored as 54 46 4C 47, 'GLFT' reversed",
    "version"      / Default(u32, 1)                                * "1; a file with another number is another format",
    "n_tensors"    / Count(u32, this._.descriptors)                 * "number of descriptors",
    "metadata_len" / Count(u32, nbytes_of_lines(this._.metadata))   * "bytes of METADATA",
    Rule("glft-byte-order", this.magic,   differs_from(SWAPPED, "a little-endian magic, not byte-swapped", show=in_hex)),
    Rule("glft-magic",      this.magic,   equals(MAGIC, show=in_hex)),
    Rule("glft-version",    this.version, equals(1)),
    title="header",
)

Descriptor = Struct(
    "name"   / Text(u16, strict=True)  * "name of the tensor; unique, any characters",
    "dims"   / Sizes(u8, u32, "dims")  * "sizes in torch's order, the slowest first: a Linear's weight is [out, in]",
    "dtype"  / TypeCode(u8, TYPES)     * "how the payload is stored",
    "shape"  / Derived(this.dims)      * "the same sizes as dims",
    "offset" / u64                     * "first byte of the payload, counted from the start of DATA",
    Rule("glft-name", len_(this.name), at_least(1, "character")),
    TensorFits("glft-dims-fit-type", "dims"),
    title="descriptor",
)

GLFT = Format("GLFT", tuple(magic.to_bytes(4, "little") for magic in (MAGIC, SWAPPED)), TYPES, Struct(
    "header"      / Header                                    * "magic, version and counts",
    "metadata"    / KeyValueLines(this.header.metadata_len)   * "key=value lines",
    "descriptors" / Table(this.header.n_tensors, Descriptor)  * "one row per tensor",
    "data"        / TensorData("descriptors")                 * "the payloads, each at its offset",
    NamesOnce("glft-names-once", "descriptors"),
), endings=(".glft", ".gguf-lite"))
# fmt: on
