"""Sources of bytes: the class, bytes in memory, and a source that reads another one without its map.

A `Source` hands out views of a known number of bytes, and refuses to go past the end before anything is allocated. Files are in
`glft_schema.storage.file_source`; the stream over a source that construct reads is `glft_schema.storage.cursor.Cursor`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from glft_schema.errors import ClosedError, TruncatedError

StrPath = str | os.PathLike[str]


class Source:
    """A number of bytes that can be viewed anywhere, any number of times, from any thread.

    Subclasses give `_view`, and what else differs.

    Attributes:
        name: the path, or ``<bytes>``.
        size: bytes in all.
        mapped: views cost nothing, however many bytes they span.
        closed: no more views are given.
    """

    mapped = False

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = size
        self.closed = False
        self._nobody_reads()
        _ALIVE.add(self)

    def view(self, start: int, nbytes: int) -> memoryview:
        """Returns `nbytes` bytes from `start` on, not to be written to.

        Raises:
            ClosedError: after `close`.
            TruncatedError: where the bytes are not all there (any more).
            OSError: from the system, with the file's name.
        """
        return self._guarded(self._view, start, nbytes)

    def private(self, start: int, nbytes: int) -> memoryview:
        """Like `view`, but may be written to: that changes no file, nothing that `view` shows, and no caller's bytes."""
        return self._guarded(self._private, start, nbytes)

    def read(self, start: int, nbytes: int) -> memoryview:
        """Like `view`, but in memory that no change of the file can take away: of a mapped file a copy."""
        return self.view(start, nbytes)

    def check_open(self) -> None:
        """Raises ClosedError after `close`."""
        if self.closed:
            raise ClosedError(f"{self.name} is closed")

    def close(self) -> None:
        """Ends access, and gives the file back once reads under way have ended. Tensors handed out before stay valid."""
        with self._lock:
            ended, self.closed = self.closed, True
            if not ended and not self._readers:
                self._release()

    def _guarded(self, give: Callable[[int, int], memoryview], start: int, nbytes: int) -> memoryview:
        """Returns what `give` does of bytes that are there, in a file that stays open meanwhile."""
        with self._lock:
            self.check_open()
            self._readers += 1
        try:
            left = max(self._size_now() - start, 0)
            if nbytes > left:
                raise TruncatedError(f"expected {nbytes} bytes, found {left}", offset=start, file=self.name)
            return give(start, nbytes)
        except OSError as error:
            error.filename = error.filename or self.name
            raise
        finally:
            with self._lock:
                self._readers -= 1
                if self.closed and not self._readers:
                    self._release()

    def _nobody_reads(self) -> None:
        """Is so at the beginning, and in a child that was forked while others were reading: they are not in it."""
        self._readers = 0
        self._lock = threading.Lock()

    def _size_now(self) -> int:
        return self.size

    def __copy__(self) -> Source:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Source:
        return self  # nothing in it changes

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(f"a file over a {type(self).__name__} cannot be pickled")

    def _view(self, start: int, nbytes: int) -> memoryview:
        raise NotImplementedError

    def _private(self, start: int, nbytes: int) -> memoryview:
        return memoryview(bytearray(self._view(start, nbytes)))

    def _release(self) -> None:
        """Gives back what the system lent; called when nobody reads."""


_ALIVE: WeakSet[Source] = WeakSet()


def _after_fork() -> None:
    for source in _ALIVE:
        source._nobody_reads()


os.register_at_fork(after_in_child=_after_fork)


class BytesSource(Source):
    """Bytes in memory."""

    def __init__(self, data: bytes | bytearray | memoryview, name: str = "<bytes>") -> None:
        self._bytes = memoryview(data).toreadonly().cast("B")
        super().__init__(name, len(self._bytes))

    def __reduce__(self) -> tuple[Any, ...]:
        return BytesSource, (bytes(self.view(0, self.size)), self.name)

    def _view(self, start: int, nbytes: int) -> memoryview:
        return self._bytes[start : start + nbytes]


class ReadSource(Source):
    """The bytes of another source, read when they are asked for: a map is not touched.

    A fault in a map makes the system read ahead, megabytes on some disks. A reading of a few bytes takes their pages alone.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        super().__init__(source.name, source.size)

    def _view(self, start: int, nbytes: int) -> memoryview:
        return self._source.read(start, nbytes)

    def _private(self, start: int, nbytes: int) -> memoryview:
        stored = self._source.read(start, nbytes)
        return memoryview(bytearray(stored)) if stored.readonly else stored
