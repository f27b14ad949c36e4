"""Opens files at paths and URLs as sources, and reads small ones as a whole."""

from __future__ import annotations

import os
import tempfile
from contextlib import closing
from typing import Any

from glft_schema.errors import OptionError, quote
from glft_schema.limits import current
from glft_schema.storage.file_source import FileSource, MappedSource, open_regular
from glft_schema.storage.locations import is_remote, shown
from glft_schema.storage.source import Source, StrPath, path_text
from glft_schema.storage.streams import is_regular, stream_source
from glft_schema.storage.system import MAPS
from glft_schema.storage.tensor_bytes import copy_all


def open_source(path: StrPath, mmap: bool = MAPS, *, offset: int = 0, size: int | None = None) -> Source:
    """Opens the file at `path`, or a part of it. Of a URL, fetches only the bytes that are read.

    Args:
        path: the file; ``https://HOST/FILE``, ``hf://OWNER/REPO/FILE``, an fsspec URL; ``-``
            for standard input.
        mmap: map a local file; otherwise read it on demand.
        offset: first byte of the part, of a local file.
        size: bytes of the part; by default up to the end.

    Raises:
        OSError: with the path, if it cannot be opened or is not a regular file; of a URL, also when
            it is read, if its server fails, or the file has changed.
        OptionError: if offset or size is negative, or given for a URL; if the URL has a wrong form.
        TruncatedError: if the file has fewer than `size` bytes at `offset`.
        LimitError: as `glft_schema.storage.remote.open_remote`.
    """
    for what, number in (("offset", offset), ("size", size)):
        if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 0):
            raise OptionError(f"expected a non-negative integer as {what}, found {quote(number)}")
    path = path_text(path)
    if is_remote(path):
        from glft_schema.storage.remote import open_remote  # slow to import

        if offset or size is not None:
            raise OptionError(f"expected a local file for offset and size, found {quote(shown(path))}")
        return open_remote(path)
    fd = open_regular(path)
    return (MappedSource if mmap else FileSource)(fd, path, offset, size, has_path=True)


def open_stream(stream: Any, mmap: bool = MAPS) -> Source:
    """Opens the rest of a file object: a regular file stays on disk, another seekable one is read
    on demand, and others are read into memory. Raises as `stream_source`.
    """
    if is_regular(stream) or not getattr(stream, "seekable", bool)():
        return stream_source(stream, lambda start: None, mmap)
    from glft_schema.storage.ranges import Pages, RangeSource
    from glft_schema.storage.remote import FileObject

    name = getattr(stream, "name", None)
    return RangeSource(Pages(FileObject(stream, name if isinstance(name, str) else "<stream>")))


def open_mapped(path: StrPath) -> Source:
    """Opens a file as a map. A URL is first downloaded to a temporary file. Raises as
    `open_source`."""
    source = open_source(path, mmap=True)
    if not is_remote(path):
        return source
    with closing(source), tempfile.TemporaryFile() as file:
        copy_all(file, source, 0, source.size)
        file.flush()
        return MappedSource(os.dup(file.fileno()), source.name)


def read_regular(path: StrPath) -> bytes:
    """Returns all bytes of a regular file, or of a URL.

    Raises:
        LimitError: if they exceed the limit ``whole_file``.
        OSError: as `open_source`.
    """
    if is_remote(path):
        with closing(open_source(path)) as source:
            check_size(source.name, source.size)
            return bytes(source.read(0, source.size))
    with os.fdopen(open_regular(path), "rb") as file:
        check_size(path, os.fstat(file.fileno()).st_size)
        stored = file.read(current().whole_file + 1)
    check_size(path, len(stored))  # it may grow, and files of /proc state no size
    return stored


def check_size(path: StrPath, size: int) -> None:
    """Raises LimitError if a file's size exceeds the limit ``whole_file``."""
    current().check("whole_file", size, "", " bytes", os.fsdecode(path))


def read_text(path: StrPath) -> str:
    """Returns the text of a regular file.

    Raises:
        OptionError: if it is not UTF-8.
        LimitError, OSError: as `read_regular`.
    """
    try:
        return read_regular(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise OptionError(f"expected UTF-8 in {quote(shown(path))}, found an invalid byte at {error.start}") from None
