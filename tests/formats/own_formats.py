"""Formats that are unlike the built-in ones, for tests of everything that works for any format."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from construct import Bytes, Const, Default, Switch, this

from glft_schema.codec import (
    ByteOrderOf,
    Count,
    Derived,
    KeyValueLines,
    KeyValues,
    NamesOnce,
    Padding,
    Rule,
    Sizes,
    Struct,
    Table,
    Text,
    TypeCode,
    TypeTable,
    ValueType,
    f16,
    f32,
    spec,
    u8,
    u16,
    u32,
    u64,
)
from glft_schema.codec.context import BIG
from glft_schema.codec.expressions import reverse_
from glft_schema.codec.metadata_lines import nbytes_of_lines
from glft_schema.codec.metadata_rules import has_key
from glft_schema.codec.predicates import equals
from glft_schema.formats import FORMATS, Format, TensorData, TensorFits, register_format
from glft_schema.types import GGML_TYPES, block_type

F32, F16, Q8_0 = (GGML_TYPES[name] for name in ("F32", "F16", "Q8_0"))


def from_pair(w, pair):
    for i in range(2):
        w[i] = pair[i]


def to_pair(w, pair):
    for i in range(2):
        pair[i] = w[i]


# fmt: off
PAIR = block_type("PAIR", 5, 2, Struct("pair" / f16[2] * "two weights"), dequantize=from_pair, quantize=to_pair)

# Texts, a magic of 5 bytes, and payloads from any byte on.
LINES_TYPES = TypeTable("lines", {1: F32, 2: F16, 3: PAIR})
LINES = Format("lines", (b"LINES",), LINES_TYPES, Struct(
    "header" / Struct(
        "magic"   / Const(b"LINES")                              * "'LINES'",
        "n"       / Count(u32, this._.rows)                      * "number of rows",
        "n_bytes" / Count(u16, nbytes_of_lines(this._.metadata)) * "bytes of metadata",
        title="lines_header",
    ) * "magic and counts",
    "metadata" / KeyValueLines(this.header.n_bytes) * "key=value lines",
    "rows" / Table(this.header.n, Struct(
        "name"   / Text(u8)                    * "name",
        "dims"   / Sizes(u8, u32, "dims")      * "sizes in torch's order",
        "shape"  / Derived(this.dims)          * "the same",
        "dtype"  / TypeCode(u8, LINES_TYPES)   * "type",
        "offset" / u64                         * "first byte, from the start of data",
        TensorFits("lines-dims", "dims"),
        title="lines_row",
    )) * "one row per tensor",
    "data" / TensorData("rows") * "the payloads",
    NamesOnce("lines-names", "rows"),
), endings=(".lines",))

# Big-endian, with typed metadata without arrays, a magic of one byte, a constant alignment and
# other codes.
TYPED_TYPES = TypeTable("typed", {0: F16, 7: F32, 9: Q8_0})
string = Text(u32)
VALUES = TypeTable("typed value", ValueType("uint32", 1, u32), ValueType("float32", 2, f32), ValueType("string", 3, string))
TYPED = Format("typed", (b"\xb7",), TYPED_TYPES, Struct(
    "head" / Struct(
        "magic" / Default(Bytes(1), b"\xb7")      * "0xb7",
        "byte_order" / ByteOrderOf(BIG)           * "big",
        "steps" / Default(u16[2], np.array([1, 2], np.uint16)) * "two numbers",
        "n_kv"  / Count(u16, this._.metadata)     * "number of entries",
        "n"     / Count(u16, this._.infos)        * "number of rows",
        Rule("typed-magic", this.magic, equals(b"\xb7")),
        title="typed_head",
    ) * "magic and counts",
    "metadata" / KeyValues(Table(this.head.n_kv, Struct(
        "key"   / string                                                  * "the key",
        "type"  / TypeCode(u8, VALUES)                                    * "type of the value",
        "value" / Switch(this.type, {type_: type_.field for type_ in VALUES}) * "the value",
        title="typed_entry",
    )), VALUES, once="typed-keys") * "values by key",
    "infos" / Table(this.head.n, Struct(
        "name"   / string                      * "name",
        "dims"   / Sizes(u8, u64, "dims")      * "sizes, the contiguous one first",
        "shape"  / Derived(reverse_(this.dims)) * "sizes in torch's order",
        "dtype"  / TypeCode(u16, TYPED_TYPES)  * "type",
        "offset" / u64                         * "first byte, from the start of data",
        TensorFits("typed-dims", "dims"),
        title="typed_info",
    )) * "one row per tensor",
    "alignment" / Derived(64) * "always 64",
    "padding" / Padding(this.alignment) * "zeros",
    "data" / TensorData("infos", padded_to=this.alignment) * "the payloads",
    NamesOnce("typed-names", "infos"),
    spec("typed-author", this.metadata, has_key("author"), building=False),
), endings=(".typed",))

# No header region, no metadata, no magic.
Row = Struct(
    "name"   / Text(u16)                   * "name",
    "dims"   / Sizes(u8, u32, "dims")      * "sizes in torch's order",
    "shape"  / Derived(this.dims)          * "the same",
    "dtype"  / TypeCode(u8, LINES_TYPES)   * "type",
    "offset" / u32                         * "first byte, from the start of data",
    TensorFits("bare-dims", "dims"),
    title="bare_row",
)
BARE = Format("bare", (), LINES_TYPES, Struct(
    "version" / Const(5, u16)                    * "5",
    "n"       / Count(u16, this.rows)            * "number of rows",
    "rows"    / Table(this.n, Row)               * "one row per tensor",
    "data"    / TensorData("rows")               * "the payloads",
    NamesOnce("bare-names", "rows"),
), endings=(".bare",), sniff=lambda start: start[:2] == b"\5\0")

# A magic that is longer than the others.
LONG_MAGIC = b"a magic of 22 bytes..."
LONG = Format("long", (LONG_MAGIC,), LINES_TYPES, Struct(
    "header" / Struct(
        "magic" / Default(Bytes(len(LONG_MAGIC)), LONG_MAGIC) * "text",
        "n"     / Count(u8, this._.rows)                      * "number of rows",
        Rule("long-magic", this.magic, equals(LONG_MAGIC)),
        title="long_header",
    ) * "magic and count",
    "rows" / Table(this.header.n, Row) * "one row per tensor",
    "data" / TensorData("rows") * "the payloads",
    NamesOnce("long-names", "rows"),
), endings=(".long",))
# fmt: on

OWN = (LINES, TYPED, BARE, LONG)


@contextmanager
def registered(*formats: Format) -> Iterator[None]:
    """Registers formats for the block."""
    before = list(FORMATS)
    try:
        for format in formats:
            register_format(format)
        yield
    finally:
        FORMATS[:] = before
