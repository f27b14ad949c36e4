"""Long arrays of numbers and of strings: located in one pass, and decoded on access.

A vocabulary has hundreds of thousands of strings. Parsing walks over their lengths once, to know where they end; the position
and the text of each string are computed at the first access.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, overload

import construct
import numpy as np
from construct.core import evaluate

from glft_schema.codec.context import ByteOrder, Context, byte_order, limits_of
from glft_schema.codec.numbers import Number, Picked
from glft_schema.codec.structs import check_count
from glft_schema.codec.text import decoded, encoded, with_length
from glft_schema.errors import FormatError, TruncatedError, shown
from glft_schema.storage.cursor import Cursor, bytes_left
from glft_schema.storage.source import BytesSource, Source
from glft_schema.storage.tensor_bytes import write_all

WINDOW = 1 << 12  # bytes that a walk looks at first; each further window is twice as large, up to a limit
MAX_WINDOW = 1 << 18
MANY = 64  # strings of which a run is worth looking for
FEW = 16  # shorter runs that are put up with before strings are walked over one by one
PIECE = 1 << 16  # numbers read at a time where one after another is asked for
SHOWN = 8  # elements that are shown of an array; of a longer one, half as many


Places = np.ndarray[Any, np.dtype[np.int64]]


class StoredNumbers(Sequence[Any]):
    """Numbers one after another in a source; read at each access.

    Attributes:
        number: what they are.
        order: their byte order.
    """

    def __init__(self, source: Source, start: int, count: int, number: Number, order: ByteOrder) -> None:
        self._source = source
        self._start = start
        self._count = count
        self.number = number
        self.order = order

    def array(self) -> np.ndarray[Any, np.dtype[Any]]:
        """Returns them as a read-only numpy array in the file's byte order: a view of the mapped file where it is one.

        Raises:
            ClosedError: after the file was closed.
        """
        return self._part(range(self._count))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        asked = range(self._count)[index]
        if isinstance(asked, int):
            return self._part(range(asked, asked + 1))[0]
        return self._part(asked)

    def __iter__(self) -> Iterator[Any]:
        for piece in self.pieces():
            yield from piece

    def pieces(self) -> Iterator[np.ndarray[Any, np.dtype[Any]]]:
        """Yields them in order, in arrays of some ten thousands."""
        for first in range(0, self._count, PIECE):
            yield self._part(range(first, min(first + PIECE, self._count)))

    def _part(self, asked: range) -> np.ndarray[Any, np.dtype[Any]]:
        """Returns the numbers at these indices; what lies before the first and after the last is not read."""
        dtype = self.number.numpy_dtype(self.order)
        if not asked:
            self._source.check_open()
            return np.empty(0, dtype)
        first, last = min(asked[0], asked[-1]), max(asked[0], asked[-1])
        stored = self._source.view(self._start + first * dtype.itemsize, (last - first + 1) * dtype.itemsize)
        return np.frombuffer(stored, dtype)[asked[0] - first :: asked.step]

    def __repr__(self) -> str:
        return _beginning([str(number.item()) for number in self[: _edge(len(self))]], len(self))


class StoredStrings(Sequence[str]):
    """Strings one after another in a source, each after its length; decoded at each access, as UTF-8.

    Bytes that are not UTF-8 come as lone surrogates (Python's ``surrogateescape``), and so are not lost. Equal to any sequence
    of the same texts.

    Attributes:
        length: the number before each string: how many bytes it has.
        order: the byte order of that number.
    """

    def __init__(self, source: Source, start: int, nbytes: int, count: int, length: Number, order: ByteOrder) -> None:
        self._source = source
        self._start = start
        self._nbytes = nbytes
        self._count = count
        self._ends: Places | None = None
        self.length = length
        self.order = order

    def __reduce__(self) -> tuple[Any, ...]:
        return StoredStrings, (self._source, self._start, self._nbytes, self._count, self.length, self.order)

    def stored(self) -> memoryview:
        """Returns them with their lengths, as they are in the file. Raises ClosedError after the file was closed."""
        return self._source.read(self._start, self._nbytes)

    def ends(self) -> Places:
        """Returns where each string ends, counted from the first byte of all. They are found out once, at the first call."""
        if self._ends is None:
            self._ends = np.fromiter((end for _, end in self._walk(self.stored())), np.int64, self._count)
        return self._ends

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._count))]
        if not -self._count <= index < self._count:
            raise IndexError(f"index {index} is out of range for {self._count} strings")
        at, ends = index % self._count, self.ends()
        first, end = (int(ends[at - 1]) if at else 0) + self.length.itemsize, int(ends[at])
        return decoded(self._source.read(self._start + first, end - first))

    def __iter__(self) -> Iterator[str]:
        stored = self.stored()
        return (decoded(stored[first:end]) for first, end in self._walk(stored))

    def _walk(self, stored: memoryview) -> Iterator[tuple[int, int]]:
        """Yields the first byte and the end of each string, without its length.

        Raises:
            FormatError: where they are not those any more that were there when the file was parsed.
        """
        unpack, size, end, last = self.length.unpacker(self.order), self.length.itemsize, 0, len(stored)
        for i in range(self._count):
            first = end + size
            if first > last or (end := first + unpack(stored, end)[0]) > last:
                problem = f"expected {self._count} strings in {last} bytes, as when it was opened, found the end in string {i}"
                raise FormatError(problem, offset=self._start, file=self._source.name)
            yield first, end

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, (str, bytes)):
            return NotImplemented
        return len(self) == len(other) and all(mine == its for mine, its in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return _beginning([shown(text) for text in islice(self, _edge(len(self)))], len(self))


def _edge(count: int) -> int:
    """Returns how many of `count` elements are shown."""
    return count if count <= SHOWN else SHOWN // 2


def _beginning(first: list[str], count: int) -> str:
    return f"[{', '.join(first)}{f', ... {count:,} in all' if count > len(first) else ''}]"


def walk(source: Source, start: int, count: int, length: Number, order: ByteOrder) -> int:
    """Walks over `count` strings that begin at `start`, each after its `length`, and returns where they end.

    Raises:
        TruncatedError: where one of them reaches past the end of the source.
    """
    position, done, nbytes, jumps = start, 0, WINDOW, 0
    unpack, size, in_runs = length.unpacker(order), length.itemsize, count >= MANY
    while done < count:
        window = source.read(position, min(nbytes, source.size - position))
        nbytes = min(2 * nbytes, MAX_WINDOW)
        at = before = 0
        if in_runs:
            before, at, jumps = _walk_in_runs(window, count, done, jumps, length, order)
            done += before
            in_runs = jumps <= FEW + done // MANY
        last, first = len(window) - size, done - before
        while at <= last and done < count:
            at += size + unpack(window, at)[0]
            done += 1
        if done == first or position + at > source.size:
            raise TruncatedError(f"expected {count} strings, found the end of the file in string {max(done - 1, first)}")
        position += at
    return position


def _walk_in_runs(
    window: memoryview, count: int, done: int, jumps: int, length: Number, order: ByteOrder
) -> tuple[int, int, int]:
    """Walks over strings from the beginning of `window` on, a run of short ones at a time, as long as there are long runs.

    Returns how many strings these were, where the last one ends, in the window or beyond, and how many jumps that took.
    """
    unpack, size, position, walked = length.unpacker(order), length.itemsize, 0, 0
    starts, ends, breaks = _short_strings(window, size, order)
    while position <= len(window) - size and done + walked < count and jumps <= FEW + (done + walked) // MANY:
        first, jumps = int(starts.searchsorted(position)), jumps + 1
        if first < len(starts) and starts[first] == position:
            run = min(int(breaks[breaks.searchsorted(first)]) - first + 1, count - done - walked)
            position, walked = int(ends[first + run - 1]), walked + run
        else:
            position, walked = position + size + unpack(window, position)[0], walked + 1
    return walked, position, jumps


def _short_strings(window: memoryview, size: int, order: ByteOrder) -> tuple[Places, Places, Places]:
    """Finds everything that could be a string of less than 256 bytes after a length of `size` bytes.

    Returns:
        Where each begins and where it ends, and the numbers of those that do not end where the next one begins: from one that
        is a string indeed, all up to the next such number are.
    """
    stored = np.frombuffer(window, np.uint8)
    zeros, width = stored == 0, 1
    while width < size - 1:  # zeros[i]: `width` bytes from i on are zero
        step = min(width, size - 1 - width)
        zeros, width = zeros[:-step] & zeros[step:], width + step
    starts = np.flatnonzero(zeros[1:] if order == "little" else zeros[:-1])
    ends = starts + size + stored[starts + (0 if order == "little" else size - 1)]
    return starts, ends, np.append(np.flatnonzero(ends[:-1] != starts[1:]), len(starts) - 1)


class Numbers(construct.Construct):
    """`count` numbers. Parses into `StoredNumbers`; builds from a sequence or array of numbers; size of its numbers."""

    def __init__(self, number: Number, count: Any) -> None:
        super().__init__()
        self.number = number
        self.count = count

    def _parse(self, stream: Any, context: Context, path: str) -> StoredNumbers:
        count = evaluate(self.count, context)
        with fitting(stream, self.count, count, self.number.itemsize, path) as cursor:
            start = cursor.tell()
            cursor.seek(start + count * self.number.itemsize)
            return StoredNumbers(cursor.source, start, count, self.number, byte_order(context))

    def _build(self, obj: Any, stream: Any, context: Context, path: str) -> Any:
        order = byte_order(context)
        array = obj.array() if isinstance(obj, StoredNumbers) else obj
        if isinstance(array, np.ndarray) and array.dtype.newbyteorder("=") == self.number.numpy_dtype().newbyteorder("="):
            write_all(stream, np.ascontiguousarray(array, self.number.numpy_dtype(order)).reshape(-1).view(np.uint8).data)
            return obj
        write_all(stream, b"".join(self.number.stored(number, order, path) for number in array))
        return obj


class Strings(construct.Construct):
    """`count` strings, each after its length. Parses into `StoredStrings`; builds from texts; has no size of its own."""

    def __init__(self, length: Picked, count: Any) -> None:
        super().__init__()
        self.length = length
        self.count = count

    def _parse(self, stream: Any, context: Context, path: str) -> StoredStrings:
        count, length, order = evaluate(self.count, context), self.length.pick(context), byte_order(context)
        with fitting(stream, self.count, count, length.itemsize, path) as cursor:
            limits_of(context).check("strings", count, path)
            start = cursor.tell()
            end = walk(cursor.source, start, count, length, order)
            cursor.seek(end)
            return StoredStrings(cursor.source, start, end - start, count, length, order)

    def _build(self, obj: Any, stream: Any, context: Context, path: str) -> Any:
        length, order = self.length.pick(context), byte_order(context)
        limits_of(context).check("strings", len(obj), path)
        if isinstance(obj, StoredStrings) and (obj.length, obj.order) == (length, order):
            write_all(stream, obj.stored())
            return obj
        write_all(stream, b"".join(with_length(encoded(text, path), length, order, path) for text in obj))
        return obj


@contextmanager
def fitting(stream: Any, counted: Any, count: int, least: int, path: str) -> Iterator[Cursor]:
    """Gives a cursor that stands where `stream` does, and leaves `stream` where the cursor stood at the end.

    Raises:
        TruncatedError: as `check_count`.
    """
    check_count(counted, count, least, bytes_left(stream), path)
    if isinstance(stream, Cursor):
        yield stream
        return
    start = stream.tell()
    cursor = Cursor(BytesSource(stream.read()))
    yield cursor
    stream.seek(start + cursor.tell())
