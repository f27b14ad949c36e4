"""llama.cpp's old importance matrix, ``imatrix.dat`` (tools/imatrix/imatrix.cpp, b6000).

    n | ENTRIES | chunks | dataset

Numbers are little-endian. The file has no magic. Files from before April 2024 end after the
entries. The sums of an entry are mean squares times `calls`. Quantizing uses ``sums / calls``,
whatever the size of a chunk. `llama-imatrix` writes GGUF files by default since July 2025;
`glft_schema.weights.importance` converts between both.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable

import construct
from construct import Default, GreedyBytes, If, len_, this

from glft_schema.codec.arrays import Numbers
from glft_schema.codec.context import Context
from glft_schema.codec.numbers import f32, i32, u32
from glft_schema.codec.predicates import at_least
from glft_schema.codec.rules import Rule
from glft_schema.codec.structs import Count, Struct
from glft_schema.codec.tables import NamesOnce, Table
from glft_schema.codec.text import Text
from glft_schema.formats.registry import find_format
from glft_schema.storage.cursor import bytes_left
from glft_schema.storage.opening import open_source
from glft_schema.storage.source import StrPath, path_text

KIND = "imatrix"  # general.type of the GGUF form


def is_given(field: str) -> Callable[[Context], bool]:
    """Returns the condition that bytes are left, or while building, that `field` has a value."""

    def holds(context: Context) -> bool:
        return context.get(field) is not None if context["_building"] else bytes_left(context["_io"]) > 0

    return holds


def optional(field: str, declared: construct.Construct) -> construct.Construct:
    """Declares a field that is None if the file ends before it."""
    return field / If(is_given(field), declared)


# fmt: off
Entry = Struct(
    "name"  / Text(u32)                   * "of the matrix, as in the model",
    "calls" / i32                         * "chunks that the sums are of",
    "n"     / Count(u32, len_(this.sums)) * "number of columns, of a stack of experts those of all experts",
    "sums"  / Numbers(f32, this.n)        * "mean square of each column's activations, times calls",
    Rule("imatrix-columns", this.n, at_least(1)),
    title="entry",
)

OldImatrix = Struct(
    "n"       / Count(u32, len_(this.entries)) * "number of entries",
    "entries" / Table(this.n, Entry)           * "one per matrix",
    optional("chunks",  i32)                   * "number of chunks",
    optional("dataset", Text(u32))             * "path of the text that the model was run on",
    "rest"    / Default(GreedyBytes, b"")      * "ignored by readers",
    Rule("imatrix-entries", this.n, at_least(1)),
    NamesOnce("imatrix-names-once", "entries"),
    title="old importance matrix",
)
# fmt: on


def is_old_matrix(path: StrPath) -> bool:
    """Tells whether a file looks like ``imatrix.dat``. It has no magic, so the first counts must
    fit the file's size, and the first name must be printable.

    Raises OSError from the system.
    """
    if os.path.isdir(path_text(path)):
        return False
    source = open_source(path, mmap=False)
    try:
        if source.size < 8 or find_format(source):
            return False
        entries, length = struct.unpack("<2I", source.read(0, 8))
        if not 0 < entries * 12 <= source.size or not 0 < length <= source.size - 8:
            return False
        return bytes(source.read(8, min(length, 64))).decode("utf-8", "replace").isprintable()
    finally:
        source.close()
