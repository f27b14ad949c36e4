"""Long arrays of numbers or strings, located in one pass and decoded on access.

A vocabulary has hundreds of thousands of strings. Parsing scans their lengths once, to find the end
of the array. Positions are computed on first access, texts on each access.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, overload

import construct
import numpy as np

from glft_schema.codec.context import ByteOrder, Context, byte_order, limits_of
from glft_schema.codec.expressions import as_expression
from glft_schema.codec.numbers import Number, Picked, checked_number
from glft_schema.codec.structs import check_count
from glft_schema.codec.text import decode_text, encode_text, is_utf8, with_length
from glft_schema.errors import FormatError, TruncatedError, quote
from glft_schema.storage.cursor import Cursor, bytes_left
from glft_schema.storage.source import BytesSource, Source
from glft_schema.storage.tensor_bytes import write_all

WINDOW = 1 << 12  # bytes that a walk reads first; it doubles them up to MAX_WINDOW
MAX_WINDOW = 1 << 18
MIN_STRINGS = 64  # a walk of fewer strings does not search for runs of short ones
SPARE_JUMPS = 16  # a walk with more jumps than this, plus one per MIN_STRINGS strings, ignores runs
PIECE = 1 << 16  # numbers that iteration reads at a time
SHOWN = 8  # elements in a repr; half as many of longer arrays

Positions = np.ndarray[Any, np.dtype[np.int64]]


class StoredNumbers(Sequence[Any]):
    """Consecutive numbers in a source, read on each access.

    Attributes:
        number: the type of the numbers.
        order: the byte order of the numbers.
    """

    def __init__(self, source: Source, start: int, count: int, number: Number, order: ByteOrder) -> None:
        self._source = source
        self._start = start
        self._count = count
        self.number = number
        self.order = order

    def array(self) -> np.ndarray[Any, np.dtype[Any]]:
        """Returns a read-only numpy array in the file's byte order, a view if the file is mapped.

        Raises ClosedError if the file was closed.
        """
        return self._part(range(self._count))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        indices = range(self._count)[index]
        if isinstance(indices, int):
            return self._part(range(indices, indices + 1))[0]
        return self._part(indices)

    def __iter__(self) -> Iterator[Any]:
        for piece in self.pieces():
            yield from piece

    def pieces(self) -> Iterator[np.ndarray[Any, np.dtype[Any]]]:
        """Yields the numbers in order, in arrays of `PIECE`."""
        for first in range(0, self._count, PIECE):
            yield self._part(range(first, min(first + PIECE, self._count)))

    def _part(self, indices: range) -> np.ndarray[Any, np.dtype[Any]]:
        """Returns the numbers at `indices`, and reads only the bytes between the outermost two."""
        dtype = self.number.numpy_dtype(self.order)
        if not indices:
            self._source.check_open()
            return np.empty(0, dtype)
        first, last = min(indices[0], indices[-1]), max(indices[0], indices[-1])
        stored = self._source.view(self._start + first * dtype.itemsize, (last - first + 1) * dtype.itemsize)
        return np.frombuffer(stored, dtype)[indices[0] - first :: indices.step]

    def __repr__(self) -> str:
        return _abridge((str(self[i]) for i in range(len(self))), len(self))


class StoredStrings(Sequence[str]):
    """Consecutive strings in a source, each after its length; decoded as UTF-8 on each access.

    Bytes that are not UTF-8 become lone surrogates (Python's ``surrogateescape``), and so are not
    lost. Equal to any sequence of the same texts.

    Attributes:
        length: the number before each string, its length in bytes.
        order: the byte order of the lengths.
    """

    def __init__(self, source: Source, start: int, nbytes: int, count: int, length: Number, order: ByteOrder) -> None:
        self._source = source
        self._start = start
        self._nbytes = nbytes
        self._count = count
        self._ends: Positions | None = None
        self.length = length
        self.order = order

    def __reduce__(self) -> tuple[Any, ...]:
        return StoredStrings, (self._source, self._start, self._nbytes, self._count, self.length, self.order)

    def stored_bytes(self) -> memoryview:
        """Returns the stored bytes, lengths included. Raises ClosedError if the file was closed."""
        return self._source.read(self._start, self._nbytes)

    def ends(self) -> Positions:
        """Returns the end of each string, relative to the start of the array; computed once."""
        if self._ends is None:
            self._ends = np.fromiter((end for _, end in self._walk(self.stored_bytes())), np.int64, self._count)
        return self._ends

    def lengths(self) -> Positions:
        """Returns the length of each string in bytes."""
        return np.diff(self.ends(), prepend=0) - self.length.itemsize

    def are_utf8(self) -> bool:
        """Tells whether all strings are UTF-8: decodes them at once, with zeros between them."""
        stored = np.frombuffer(self.stored_bytes(), np.uint8).copy()
        starts = np.append(np.int64(0), self.ends())[:-1]
        stored[starts[:, None] + np.arange(self.length.itemsize)] = 0
        return is_utf8(decode_text(stored.data))

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            wanted = range(*index.indices(self._count))
            if self._ends is None and wanted.step > 0 and wanted.stop <= SHOWN:  # without the ends of all
                return [*islice(self, wanted.start, wanted.stop, wanted.step)]
            return [self[i] for i in wanted]
        if not -self._count <= index < self._count:
            raise IndexError(f"index {index} is out of range for {self._count} strings")
        at, ends = index % self._count, self.ends()
        first, end = (int(ends[at - 1]) if at else 0) + self.length.itemsize, int(ends[at])
        return decode_text(self._source.read(self._start + first, end - first))

    def __iter__(self) -> Iterator[str]:
        stored = self.stored_bytes()
        return (decode_text(stored[first:end]) for first, end in self._walk(stored))

    def _walk(self, stored: memoryview) -> Iterator[tuple[int, int]]:
        """Yields start and end of each string. Raises FormatError if the file has changed."""
        unpack, size, end, last = self.length.unpacker(self.order), self.length.itemsize, 0, len(stored)
        for i in range(self._count):
            first = end + size
            if first > last or (end := first + unpack(stored, end)[0]) > last:
                problem = f"expected {self._count} strings in {last} bytes, found the end in string {i}: the file has changed"
                raise FormatError(problem, offset=self._start, file=self._source.name)
            yield first, end

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, (str, bytes)):
            return NotImplemented
        return len(self) == len(other) and all(mine == its for mine, its in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return _abridge(map(quote, self), len(self))


def _abridge(texts: Iterator[str], count: int) -> str:
    if count <= SHOWN:
        return f"[{', '.join(texts)}]"
    return f"[{', '.join(islice(texts, SHOWN // 2))}, ... {count:,} in all]"


def walk(source: Source, start: int, count: int, length: Number, order: ByteOrder) -> int:
    """Returns the end of `count` strings. Raises TruncatedError if one is cut off.

    Skips each run of short strings in one jump, until too many of the runs are short.
    """
    position, done, nbytes, jumps = start, 0, WINDOW, 0
    unpack, size, in_runs = length.unpacker(order), length.itemsize, count >= MIN_STRINGS
    while done < count:
        window = source.read(position, min(nbytes, source.size - position))
        nbytes = min(2 * nbytes, MAX_WINDOW)
        at, last, first = 0, len(window) - size, done
        if in_runs:
            starts, ends, breaks = _short_strings(window, size, order)
        while in_runs and at <= last and done < count:
            i = int(starts.searchsorted(at))
            if i < len(starts) and starts[i] == at:
                run = min(int(breaks[breaks.searchsorted(i)]) - i + 1, count - done)
                at, done = int(ends[i + run - 1]), done + run
            else:
                at, done = at + size + unpack(window, at)[0], done + 1
            jumps += 1
            in_runs = jumps <= SPARE_JUMPS + done // MIN_STRINGS
        while at <= last and done < count:
            at += size + unpack(window, at)[0]
            done += 1
        if done == first or position + at > source.size:
            raise TruncatedError(f"expected {count} strings, found the end of the file in string {max(done - 1, first)}")
        position += at
    return position


def _short_strings(window: memoryview, size: int, order: ByteOrder) -> tuple[Positions, Positions, Positions]:
    """Finds all candidates for a string: any `size` bytes that encode a length below 256.

    Returns:
        Start and end of each candidate, and the indices of candidates after which the next one does
        not start. If a candidate is a string, so are all others up to the next such index.
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
    """`count` numbers. Parses into `StoredNumbers`, builds from a sequence or array of numbers."""

    def __init__(self, number: Number, count: Any) -> None:
        super().__init__()
        self.number = number
        self.count = as_expression(count)

    def _parse(self, stream: Any, context: Context, path: str) -> StoredNumbers:
        count = self.count(context)
        with cursor_over(stream, self.count, count, self.number.itemsize, path) as cursor:
            start = cursor.tell()
            cursor.seek(start + count * self.number.itemsize)
            return StoredNumbers(cursor.source, start, count, self.number, byte_order(context))

    def _build(self, obj: Any, stream: Any, context: Context, path: str) -> Any:
        order = byte_order(context)
        array = obj.array() if isinstance(obj, StoredNumbers) else obj
        if isinstance(array, np.ndarray) and array.dtype.newbyteorder("=") == self.number.numpy_dtype().newbyteorder("="):
            write_all(stream, np.ascontiguousarray(array, self.number.numpy_dtype(order)).reshape(-1).view(np.uint8).data)
            return obj
        write_all(stream, b"".join(self.number.encode(number, order, path) for number in array))
        return obj


class Strings(construct.Construct):
    """`count` strings, each after its length. Parses into `StoredStrings`, builds from texts."""

    def __init__(self, length: Picked, count: Any) -> None:
        super().__init__()
        self.length = checked_number(length)
        self.count = as_expression(count)

    def _parse(self, stream: Any, context: Context, path: str) -> StoredStrings:
        count, length, order = self.count(context), self.length.pick(context), byte_order(context)
        with cursor_over(stream, self.count, count, length.itemsize, path) as cursor:
            limits_of(context).check("strings", count, path)
            start = cursor.tell()
            end = walk(cursor.source, start, count, length, order)
            cursor.seek(end)
            return StoredStrings(cursor.source, start, end - start, count, length, order)

    def _build(self, obj: Any, stream: Any, context: Context, path: str) -> Any:
        length, order = self.length.pick(context), byte_order(context)
        limits_of(context).check("strings", len(obj), path)
        if isinstance(obj, StoredStrings) and (obj.length, obj.order) == (length, order):
            write_all(stream, obj.stored_bytes())
            return obj
        write_all(stream, b"".join(with_length(encode_text(text, path), length, order, path) for text in obj))
        return obj


@contextmanager
def cursor_over(stream: Any, counted: Any, count: int, least: int, path: str) -> Iterator[Cursor]:
    """Checks a count and yields a cursor. At the end, `stream` moves to the cursor's position."""
    check_count(counted, count, least, bytes_left(stream), path)
    if isinstance(stream, Cursor):
        yield stream
        return
    start = stream.tell()
    cursor = Cursor(BytesSource(stream.read()))
    yield cursor
    stream.seek(start + cursor.tell())
