"""The zip archive that `torch.save` writes since torch 1.6 (caffe2/serialize/inline_container.cc).

Readers of zip archives search for the end record and the directory in different ways, so an archive
can have different records for each reader. Only unambiguous archives are accepted: the end records
are the last bytes and list the directory before them, records do not overlap, and their headers
agree with the directory. Records of torch are neither compressed nor encrypted.
"""

from __future__ import annotations

import os
import struct
import zipfile
from operator import attrgetter
from typing import IO

from glft_schema.errors import FormatError, TruncatedError, quote
from glft_schema.limits import current

Span = tuple[int, int]  # first byte and number of bytes
LOCAL = struct.Struct("<4s2x2H16x2H")  # magic, flags, method, bytes of the name and of the extra field
END = struct.Struct("<4s4H2IH")  # magic, disk, its number, entries here and in all, bytes and start, bytes of a comment
END64 = struct.Struct("<4sQI2I4Q4sIQI")  # the same for large archives, with a locator; END follows
FLAGS = 0x0808  # sizes follow the record; the name is UTF-8
FOLDER = 16  # an attribute
ABOVE = 0xFFFFFFFF  # stands for larger numbers in END


def read_directory(stream: IO[bytes]) -> dict[str, Span]:
    """Returns the records of an archive by name, without the folder that contains them all.

    Raises:
        TruncatedError: if the stream does not end with the end record of an archive.
        LimitError: if the directory exceeds a limit.
        FormatError: if a record is compressed, or if readers could disagree on the records.
    """
    end, count = _check_end(stream)
    try:
        with zipfile.ZipFile(stream) as archive:
            entries = sorted(archive.infolist(), key=attrgetter("header_offset"))
    except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error) as error:
        raise FormatError(f"expected the directory of an archive, found another: {error}", "directory") from None
    names = {entry.orig_filename.lower() for entry in entries}
    if not len(names) == len(entries) == count or len({name.partition("/")[0] for name in names}) > 1:
        problem = f"expected {count} unique names in one folder, found another number, a duplicate name or a second folder"
        raise FormatError(problem, "directory")
    records = dict[str, Span]()
    for entry, most in zip(entries, [*(entry.header_offset for entry in entries[1:]), end], strict=True):
        first = _check_record(stream, entry)
        if first + entry.file_size > most:
            problem = f"expected at most {max(most - first, 0)} bytes before the next record or the directory"
            raise FormatError(f"{problem}, found {entry.file_size}", quote(entry.filename), first)
        records[entry.filename.partition("/")[2]] = first, entry.file_size
    return records


def _check_end(stream: IO[bytes]) -> tuple[int, int]:
    """Returns first byte and count of the directory, if the bytes after it are its end records."""
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(size - END64.size - END.size, 0))
    large, small = (tail := stream.read())[: -END.size], tail[-END.size :]
    if len(small) < END.size or small[:4] != b"PK\5\6":
        raise TruncatedError("expected a torch file, a zip archive up to its end, found another end: it may be incomplete")
    versions, (count, nbytes, start) = None, END.unpack(small)[4:7]
    if len(large) == END64.size and large[-20:-16] == b"PK\6\7":
        versions, (count, nbytes, start) = END64.unpack(large)[2], END64.unpack(large)[6:9]
    current().check("objects", count, "directory", " records")
    current().check("metadata", nbytes, "directory", " bytes")
    at = min(start + nbytes, size)
    expected = END.pack(b"PK\5\6", 0, 0, min(count, 0xFFFF), min(count, 0xFFFF), min(nbytes, ABOVE), min(start, ABOVE), 0)
    if versions is not None:
        locator = b"PK\6\7", 0, at, 1
        expected = END64.pack(b"PK\6\6", 44, versions, 0, 0, count, count, nbytes, start, *locator) + expected
    if tail[-len(expected) :] != expected or at + len(expected) != size:
        raise FormatError("expected end records of the directory before them, found others", "end", size - len(expected))
    return start, count


def _check_record(stream: IO[bytes], entry: zipfile.ZipInfo) -> int:
    """Returns the first byte of a record, if all readers take the same bytes for it."""
    is_folder = entry.external_attr & FOLDER and entry.file_size
    is_stored = entry.compress_type == 0 and entry.compress_size == entry.file_size and not entry.flag_bits & ~FLAGS
    if not is_stored or is_folder or entry.volume:
        raise FormatError("expected a record that is neither compressed nor encrypted, found another", quote(entry.filename))
    stream.seek(entry.header_offset)
    magic, flags, method, n_name, n_extra = LOCAL.unpack(stream.read(LOCAL.size).ljust(LOCAL.size))
    name = entry.filename.encode("utf-8" if entry.flag_bits & 0x800 else "cp437")  # up to a NUL
    if (magic, flags, method, stream.read(n_name)) != (b"PK\3\4", entry.flag_bits, 0, name):
        raise FormatError("expected a header as in the directory, found another", quote(entry.filename), entry.header_offset)
    return int(entry.header_offset + LOCAL.size + n_name + n_extra)
