"""GLFT v1, the "GGUF-lite" of a quantization lab, in the order of docs/formats/glft.md. Little-endian throughout.

    HEADER | METADATA | DESCRIPTORS | DATA

One after another without padding. DATA begins where the last descriptor ends, and offsets count from there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import NoneType
from typing import Any

import construct
from construct import Default, Int8ul, Int16ul, Int32ul, Int64ul, PascalString, len_, this

from glft_schema.describe.tables import metadata_table
from glft_schema.errors import FormatError, shown
from glft_schema.fields import Count, Derived, Sizes, Struct, TypeCode
from glft_schema.formats.format import Format
from glft_schema.limits import limits_of
from glft_schema.numbers import u8, u32
from glft_schema.rows import Table, count_objects
from glft_schema.rules import Rule
from glft_schema.source import bytes_left, read_exactly
from glft_schema.tensor_bytes import write_all
from glft_schema.tensor_data import NamesOnce, TensorData, TensorFits
from glft_schema.tensor_types.plain import F16, F32
from glft_schema.tensor_types.symmetric import Q4_PER_GROUP_64, Q8_PER_CHANNEL
from glft_schema.type_table import TypeTable

MAGIC = 0x474C4654  # stored little-endian: the file starts with 54 46 4C 47
SWAPPED_MAGIC = 0x54464C47  # what a reader of the right file in the wrong byte order sees
VERSION = 1

TYPES = TypeTable("GLFT", F32, F16, Q8_PER_CHANNEL, Q4_PER_GROUP_64)


class Metadata(Mapping[str, str]):
    """The metadata's keys and values, in file order. Read-only: build from a mapping with other ones.

    Attributes:
        trailing_newline: the last line ends with a newline, which the format allows and `build` gives back.
    """

    def __init__(self, entries: Mapping[str, str] | None = None, trailing_newline: bool = False) -> None:
        self._entries = dict(entries or {})
        self.trailing_newline = trailing_newline

    def __getitem__(self, key: str) -> str:
        return self._entries[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"{{{', '.join(f'{shown(key)}: {shown(value)}' for key, value in self.items())}}}"

    def __str__(self) -> str:  # which torch.compile would fold into a constant if it was not defined
        return repr(self)

    def _repr_html_(self) -> str:
        return metadata_table(self).html()


class KeyValueLines(construct.Construct):
    """Lines ``key=value``, UTF-8, separated by newlines; `size` bytes in all.

    Split on the newline alone, each line at its first ``=``: a value may contain one, a key may not be empty or come twice.
    Parses into `Metadata`, builds from any mapping of str to str, takes the bytes of its lines.
    """

    refuses = ("a line without `=` or with nothing before it", "a key that comes twice", "text that is not UTF-8")

    def __init__(self, size: Any) -> None:
        super().__init__()
        self.size = size
        self.flagbuildnone = True

    def _parse(self, stream: Any, context: Any, path: str) -> Metadata:
        start, size = stream.tell(), self.size(context)
        limits = limits_of(context)
        if size <= bytes_left(stream):
            limits.check("metadata", size, path, " bytes")
        stored = read_exactly(stream, size, path)
        count_objects(context, stored.removesuffix(b"\n").count(b"\n") + bool(stored), path)
        lines = stored.split(b"\n")
        ended = len(lines) > 1 and not lines[-1]
        entries: dict[str, str] = {}
        for number, line in enumerate(lines[: -1 if ended else None] if stored else []):
            where = f"{path} -> line {number + 1}"
            if line.find(b"=") < 1:
                raise FormatError(f"expected key=value, found {shown(line)}", where, start)
            try:
                key, _, value = line.decode("utf-8").partition("=")
            except UnicodeDecodeError as error:
                bad, before = error.start, line[: line.find(b"=")]
                named = before.decode("utf-8") if bad > len(before) else None
                raise FormatError(f"expected UTF-8, found {shown(line[bad:])}", where, start + bad, key=named) from None
            if key in entries:
                raise FormatError(f"expected each key once, found {shown(key)} again", where, start, key=key)
            entries[key] = value
            start += len(line) + 1
        return Metadata(entries, ended)

    def _build(self, obj: Any, stream: Any, context: Any, path: str) -> Any:
        stored, limits = self.encode(obj, path), limits_of(context)
        limits.check("metadata", len(stored), path, " bytes")
        count_objects(context, len(obj or ()), path)
        write_all(stream, stored)
        return obj

    @staticmethod
    def encode(entries: Mapping[str, str] | None, path: str = "metadata") -> bytes:
        """Returns the lines. Raises FormatError for whatever would not read back equal."""
        lines = []
        if not isinstance(entries, (Mapping, NoneType)):
            raise FormatError(f"expected a mapping of text to text, found {shown(entries)}", path)
        for key, value in (entries or {}).items():
            if not isinstance(key, str) or not isinstance(value, str):
                raise FormatError(f"expected text for key and value, found {shown(key)}: {shown(value)}", path)
            if not key or "=" in key or "\n" in key:
                raise FormatError(f"expected a key without '=' and newline, not empty, found {shown(key)}", path)
            if "\n" in value:
                raise FormatError(f"expected a value without newline for {shown(key)}, found {shown(value)}", path)
            try:
                lines.append(f"{key}={value}".encode())
            except UnicodeEncodeError:
                raise FormatError(f"expected text that UTF-8 can hold, found {shown(key)}: {shown(value)}", path) from None
        return b"\n".join(lines) + (b"\n" if lines and getattr(entries, "trailing_newline", False) else b"")


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
    "metadata"    / KeyValueLines(this.header.metadata_len)  * "key=value lines",
    "descriptors" / Table(this.header.n_tensors, Descriptor) * "one row a tensor",
    NamesOnce("glft-names-once", "descriptors"),
    "data"        / TensorData("descriptors")                             * "the payloads, each at its offset",
), "descriptors", list)
# fmt: on
