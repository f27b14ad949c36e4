"""The zip archive that `torch.save` writes since torch 1.6 (caffe2/serialize/inline_container.cc).

    RECORDS | DIRECTORY | ZIP64_END | LOCATOR | END

Numbers are little-endian. ZIP64_END and LOCATOR are missing in archives of other writers. Each
RECORD follows a local header. torch pads the header, so that the record begins at a multiple of 64,
and leaves its size fields empty. Only the sizes in the directory count.

Readers of zip archives search for the end record and the directory in different ways, so an archive
can have different records for each reader. Only unambiguous archives are accepted: END is at the
end of the file, the regions before it are adjacent, and records neither overlap nor are compressed.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from construct import Bytes, len_, this
from construct.expr import FuncPath

from glft_schema.codec.construct_errors import inside, our_errors
from glft_schema.codec.context import new_context
from glft_schema.codec.numbers import u16, u32, u64
from glft_schema.codec.predicates import equals, meets
from glft_schema.codec.records import Record
from glft_schema.codec.rules import Predicate, Rule
from glft_schema.codec.structs import Count, Struct
from glft_schema.codec.tables import Table
from glft_schema.errors import FormatError, TruncatedError, quote
from glft_schema.limits import current
from glft_schema.storage.cursor import Cursor
from glft_schema.storage.source import BytesSource, Source

Span = tuple[int, int]  # first byte and number of bytes
HEADER, END, LOCATOR, END64 = 30, 22, 20, 76  # bytes, HEADER without the name, END64 with LOCATOR
ABOVE = 0xFFFFFFFF  # stands for a number in the extra field
in_hex = "0x{:08X}".format


def _is_in_folder(name: bytes) -> bool:
    try:
        return str(name, "utf-8").find("/") > 0 and b"\0" not in name
    except UnicodeDecodeError:
        return False


in_folder = Predicate("a UTF-8 name in a folder", FuncPath(_is_in_folder))

# fmt: off
Local = Struct(
    "magic"     / u32                         * "50 4B 03 04",
    "needed"    / u16                         * "version of the format",
    "flags"     / u16                         * "as in the directory",
    "method"    / u16                         * "as in the directory",
    "ignored"   / Bytes(16)                   * "time, date, CRC and sizes; torch leaves them zero",
    "n_name"    / Count(u16, len_(this.name)) * "bytes of the name",
    "n_extra"   / u16                         * "bytes between name and record",
    "name"      / Bytes(this.n_name)          * "as in the directory",
    Rule("zip-local", this.magic, equals(0x04034B50, show=in_hex)),
    title="local header",
)

Entry = Struct(
    "magic"     / u32                            * "50 4B 01 02",
    "versions"  / Bytes(4)                       * "of the writer and of the format",
    "flags"     / u16                            * "bit 3: sizes follow the record; bit 11: the name is UTF-8",
    "method"    / u16                            * "compression",
    "ignored"   / Bytes(8)                       * "time, date and CRC",
    "packed"    / u32                            * "bytes of the record, compressed",
    "size"      / u32                            * "bytes of the record",
    "n_name"    / Count(u16, len_(this.name))    * "bytes of the name",
    "n_extra"   / Count(u16, len_(this.extra))   * "bytes of the extra field",
    "n_comment" / Count(u16, len_(this.comment)) * "bytes of the comment",
    "disk"      / u16                            * "0",
    "internal"  / u16                            * "attributes, ignored",
    "external"  / u32                            * "attributes; bit 4: a folder",
    "start"     / u32                            * "first byte of the local header",
    "name"      / Bytes(this.n_name)             * "folder and name",
    "extra"     / Bytes(this.n_extra)            * "parts, each after its id and length; part 1 has numbers above 32 bits",
    "comment"   / Bytes(this.n_comment)          * "ignored",
    Rule("zip-entry",  this.magic,  equals(0x02014B50, show=in_hex)),
    Rule("zip-flags",  this.flags,  meets((this.flags & 0xF7F7) == 0, "no flags except 0x0808, such as encrypted")),
    Rule("zip-stored", this.method, meets(this.method == 0, "0, an uncompressed archive")),
    Rule("zip-name",   this.name,   in_folder),
    Rule("zip-disk",   this.disk,   equals(0)),
    Rule("zip-file",   this.external, meets(((this.external & 16) == 0) | (this.size == 0), "no folder, which has no bytes")),
    title="entry of the directory",
)

Directory = Struct("directory" / Table(this._params.count, Entry))
Headers = Struct("headers" / Table(this._params.count, Local))  # those of all records, without the bytes between

End64 = Struct(
    "magic"     / u32      * "50 4B 06 06",
    "nbytes"    / u64      * "bytes that follow in this record",
    "ignored"   / Bytes(4) * "versions of the writer and of the format",
    "disks"     / u64      * "numbers of disks",
    "here"      / u64      * "entries on this disk",
    "count"     / u64      * "number of entries",
    "size"      / u64      * "bytes of the directory",
    "start"     / u64      * "first byte of the directory",
    "magic2"    / u32      * "50 4B 06 07: the locator",
    "disk"      / u32      * "number of the disk",
    "end64"     / u64      * "first byte of this record",
    "n_disks"   / u32      * "number of disks",
    Rule("zip64-end",     this.magic,  equals(0x06064B50, show=in_hex)),
    Rule("zip64-size",    this.nbytes, equals(44)),
    Rule("zip64-disks",   this.disks,  equals(0)),
    Rule("zip64-here",    this.here,   meets(this.here == this.count, "the number of entries")),
    Rule("zip64-disk",    this.disk,   equals(0)),
    Rule("zip64-n-disks", this.n_disks, equals(1)),
    title="zip64 end record and locator",
)

End = Struct(
    "magic"     / u32 * "50 4B 05 06; a truncated file ends otherwise",
    "disks"     / u32 * "numbers of disks",
    "here"      / u16 * "entries on this disk",
    "count"     / u16 * "number of entries; at most 0xFFFF",
    "size"      / u32 * "bytes of the directory; at most 0xFFFFFFFF",
    "start"     / u32 * "first byte of the directory; at most 0xFFFFFFFF",
    "n_comment" / u16 * "bytes of a comment",
    Rule("zip-disks",      this.disks,     equals(0)),
    Rule("zip-here",       this.here,      meets(this.here == this.count, "the number of entries")),
    Rule("zip-no-comment", this.n_comment, equals(0)),
    title="end record",
)
# fmt: on


def read_directory(source: Source) -> dict[str, Span]:
    """Returns the records of an archive by name, without the folder that contains them all.

    Raises:
        TruncatedError: if the source does not end with the end record of an archive.
        LimitError: if the directory exceeds a limit.
        FormatError: if a record is compressed, or if readers could disagree on the records.
    """
    last, end = _end_of(source)
    current().check("objects", last.count, "directory", " records")
    current().check("metadata", last.size, "directory", " bytes")
    cursor = Cursor(BytesSource(source.read(last.start, last.size), source.name))
    entries = _parse(Directory, cursor, count=last.count).directory
    if cursor.left:
        raise FormatError(f"expected {last.count} entries, found {cursor.left} more bytes", "directory", end - cursor.left)
    names = {entry.name.lower() for entry in entries}
    if len(names) < len(entries) or len({name.partition(b"/")[0] for name in names}) > 1:
        raise FormatError("expected unique names in one folder, found a second folder or a duplicate name", "directory")
    return _records(source, entries, last.start)


def _end_of(source: Source) -> tuple[Record, int]:
    """Returns the zip64 end record, or else the end record, and the end of the directory."""
    at = source.size - END
    if at < 0 or bytes(source.read(at, 4)) != b"PK\5\6":
        raise TruncatedError("expected a torch file, a zip archive up to its end, found another end: it may be incomplete")
    end = last = _parse(End, Cursor(source, at))
    if at >= END64 and bytes(source.read(at - LOCATOR, 4)) == b"PK\6\7":
        at -= END64
        last = _parse(End64, Cursor(source, at))
        numbers = min(last.count, 0xFFFF), min(last.size, ABOVE), min(last.start, ABOVE), last.end64
        if numbers != (end.count, end.size, end.start, at):
            raise FormatError("the end record and the zip64 end record disagree", "end", at)
    if last.start + last.size != at:
        found = f"found {last.size} bytes from byte {last.start} on"
        raise FormatError(f"expected it to end at byte {at}, before the end records, {found}", "directory", at)
    return last, at


def _records(source: Source, entries: Sequence[Record], end: int) -> dict[str, Span]:
    """Returns the records by name, after checks of their local headers and positions."""
    places = sorted(((*_place(entry), entry) for entry in entries), key=itemgetter(0))
    stored = b"".join(source.read(start, HEADER + len(entry.name)) for start, _, entry in places)
    headers = _parse(Headers, Cursor(BytesSource(stored, source.name)), count=len(places)).headers
    records, ends = dict[str, Span](), [*(start for start, _, _ in places[1:]), end]
    for (start, nbytes, entry), header, most in zip(places, headers, ends, strict=True):
        if (header.name, header.flags, header.method) != (entry.name, entry.flags, entry.method):
            found = f"{quote(header.name)}, flags {header.flags} and method {header.method}"
            raise FormatError(f"expected {quote(entry.name)} and its flags and method, found {found}", "local header", start)
        first = start + HEADER + header.n_name + header.n_extra
        if first + nbytes > most:
            problem = f"expected at most {max(most - first, 0)} bytes before the next record or the directory, found {nbytes}"
            raise FormatError(problem, quote(entry.name), first)
        records[str(entry.name, "utf-8").partition("/")[2]] = first, nbytes
    return records


def _place(entry: Record) -> Span:
    """Returns the first byte of a record's local header, and the number of bytes of the record."""
    numbers = [entry.size, entry.packed, entry.start]
    if above := numbers.count(ABOVE):
        parts, at = [], 0
        while at + 4 <= len(entry.extra):
            id, nbytes = struct.unpack_from("<2H", entry.extra, at)
            parts += [entry.extra[at + 4 : at + 4 + nbytes]] if id == 1 else []
            at += 4 + nbytes
        if at != len(entry.extra) or [len(part) for part in parts] != [8 * above]:
            problem = f"expected {above} numbers of 64 bits in one part 1, found {quote(entry.extra)}"
            raise FormatError(problem, f"directory -> {quote(entry.name)} -> extra")
        values = iter(struct.unpack(f"<{above}Q", parts[0]))
        numbers = [next(values) if number == ABOVE else number for number in numbers]
    size, packed, start = numbers
    if size != packed:
        raise FormatError(f"expected {size} bytes, as without compression, found {packed}", f"directory -> {quote(entry.name)}")
    return start, size


def _parse(declared: Struct, cursor: Cursor, **parameters: Any) -> Record:
    with inside(declared.title), our_errors():
        record: Record = declared._parse(cursor, new_context(True, limits=current(), **parameters), "(parsing)")
    return record
