"""Byte sources: the base class, bytes in memory, and two wrappers of other sources.

A `Source` checks the bounds of each read before it allocates. Files are in `storage.file_source`,
and `storage.cursor.Cursor` is the stream over a source that construct reads.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from glft_schema.errors import ClosedError, OptionError, TruncatedError, quote

StrPath = str | os.PathLike[str]
Result = TypeVar("Result")


def path_text(path: object) -> str:
    """Returns a path or URL as text. Raises OptionError for anything else, such as bytes."""
    if not isinstance(path, (str, os.PathLike)):
        is_bytes = isinstance(path, (bytes, bytearray, memoryview))
        advice = ": Container.parse takes the bytes of a file, os.fsdecode converts those of a path" if is_bytes else ""
        raise OptionError(f"expected a path, found {quote(path)}{advice}")
    text = os.fsdecode(path)
    if "\0" in text:
        raise OptionError(f"expected a path without NUL, found {quote(text)}")
    return text


class Source:
    """Bytes of known size with random access from any thread.

    Subclasses implement `_view`, and override the other private methods as needed.

    Attributes:
        name: the path, or ``<bytes>``.
        size: total bytes.
        mapped: whether views are free, whatever their size.
        closed: whether `close` was called.
    """

    mapped = False

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = size
        self.closed = False

    def view(self, start: int, nbytes: int) -> memoryview:
        """Returns `nbytes` bytes from `start`, read-only.

        Raises:
            ClosedError: after `close`.
            TruncatedError: if the source does not have the bytes, or no longer has them.
            OSError: from the system, with the file's name.
        """
        return self._guard(self._view, start, nbytes)

    def private(self, start: int, nbytes: int) -> memoryview:
        """Like `view`, but writable; changes affect no file, no `view` and no caller's bytes."""
        return self._guard(self._private, start, nbytes)

    def read(self, start: int, nbytes: int) -> memoryview:
        """Like `view`, but a truncated file cannot invalidate the result; copies a mapped file."""
        return self.view(start, nbytes)

    def read_into(self, memory: Any, start: int, nbytes: int, first: int) -> None:
        """Reads a part of the `nbytes` bytes from `start` into u8 `memory`: from byte `first` of
        them, as many as fit. Raises as `view` of all of them."""
        self._guard(partial(self._read_into, memory, first), start, nbytes)

    def expect(self, start: int, nbytes: int) -> None:
        """Announces that bytes will be read, so that a source that has to fetch them can do so with
        one request. The number may be an estimate."""

    def copy_to(self, fd: int, start: int, nbytes: int) -> int:
        """Lets the system copy `nbytes` bytes to the current position of `fd`.

        Returns:
            The number of bytes copied, which is smaller, or 0, if the system cannot copy them or
            fails. The caller must read and write the rest, which raises any error.

        Raises:
            ClosedError, TruncatedError: as `view`.
        """
        return self._guard(partial(self._copy_to, fd), start, nbytes)

    def check_open(self) -> None:
        """Raises ClosedError after `close`."""
        if self.closed:
            raise ClosedError(f"{self.name} is closed")

    def close(self) -> None:
        """Ends access. Reads in progress finish, or raise ClosedError. Tensors stay valid."""
        self.closed = True
        self._release()

    def _guard(self, read: Callable[[int, int], Result], start: int, nbytes: int) -> Result:
        """Calls `read` after a bounds check."""
        self.check_open()
        try:
            left = max(self._size_now() - start, 0)
            if nbytes > left:
                raise TruncatedError(f"expected {nbytes} bytes, found {left}", offset=start, file=self.name)
            return read(start, nbytes)
        except OSError as error:
            error.filename = error.filename or self.name
            raise

    def _size_now(self) -> int:
        return self.size

    def __copy__(self) -> Source:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Source:
        return self  # nothing in it changes

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(f"cannot pickle a file with a {type(self).__name__} as its source")

    def _view(self, start: int, nbytes: int) -> memoryview:
        raise NotImplementedError

    def _private(self, start: int, nbytes: int) -> memoryview:
        return memoryview(bytearray(self._view(start, nbytes)))

    def _read_into(self, memory: Any, first: int, start: int, nbytes: int) -> None:
        memory[:] = self._view(start + first, len(memory))

    def _copy_to(self, fd: int, start: int, nbytes: int) -> int:
        return 0

    def _release(self) -> None:
        """Drops system resources, which reads in progress keep. May be called more than once."""


class BytesSource(Source):
    """Bytes in memory."""

    def __init__(self, data: bytes | bytearray | memoryview, name: str = "<bytes>") -> None:
        self._bytes = memoryview(data).toreadonly().cast("B")
        super().__init__(name, len(self._bytes))

    def __reduce__(self) -> tuple[Any, ...]:
        return BytesSource, (bytes(self.view(0, self.size)), self.name)

    def _view(self, start: int, nbytes: int) -> memoryview:
        return self._bytes[start : start + nbytes]


class SplicedSource(Source):
    """Bytes in memory, followed by the end of another source.

    Args:
        head: the bytes in memory.
        source: the other source.
        start: the first byte of `source` that follows `head`.
    """

    def __init__(self, head: bytes, source: Source, start: int) -> None:
        self._head = BytesSource(head)
        self._tail = source
        self._shift = len(head) - start  # from a position in the other source to one in this source
        super().__init__(source.name, source.size + self._shift)

    def _view(self, start: int, nbytes: int) -> memoryview:
        in_head = min(max(self._head.size - start, 0), nbytes)
        if in_head == nbytes:
            return self._head.view(start, nbytes)
        tail = self._tail.read(start + in_head - self._shift, nbytes - in_head)
        return memoryview(bytes(self._head.view(start, in_head)) + tail).toreadonly() if in_head else tail

    def _copy_to(self, fd: int, start: int, nbytes: int) -> int:
        return self._tail.copy_to(fd, start - self._shift, nbytes) if start >= self._head.size else 0


class ReadSource(Source):
    """Another source accessed through `read` only, which avoids its map.

    A page fault in a map triggers read-ahead, megabytes on some disks. `read` avoids that.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        super().__init__(source.name, source.size)

    def _view(self, start: int, nbytes: int) -> memoryview:
        return self._source.read(start, nbytes)

    def _private(self, start: int, nbytes: int) -> memoryview:
        stored = self._source.read(start, nbytes)
        return memoryview(bytearray(stored)) if stored.readonly else stored
