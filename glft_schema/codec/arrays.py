"""Long arrays of numbers or strings, located in one pass and decoded on access.

A vocabulary has hundreds of thousands of strings. Parsing finds the end of each, numbers are only
located, and both are read on each access.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, overload

import construct
import numpy as np

from glft_schema.codec.context import ByteOrder, Context, byte_order, limits_of
from glft_schema.codec.expressions import as_expression
from glft_schema.codec.numbers import Number, Picked, checked_number
from glft_schema.codec.structs import check_count, check_length
from glft_schema.codec.text import decode_text, encode_text, is_utf8, with_length
from glft_schema.display import MOST, Listing
from glft_schema.errors import FormatError, TruncatedError, quote
from glft_schema.storage.cursor import Cursor, bytes_left
from glft_schema.storage.source import BytesSource, Source
from glft_schema.storage.tensor_bytes import array_bytes, write_all

WINDOW = 1 << 17  # bytes that the walk over strings reads at a time,
PER_STRING = 64  # but not more than this for each string
TYPICAL = 8  # bytes of a token or merge, to estimate the bytes to fetch from a URL
GROWTH = 1.08  # of the estimate, because vocabularies begin with short tokens
SLACK = 1 << 16  # bytes of other metadata after an array of strings
SHOWN = 8  # elements in a repr; half as many of longer arrays

Positions = np.ndarray[Any, np.dtype[np.int64]]


class StoredArray(Sequence[Any]):
    """Consecutive elements in a source, read on each access. Equal to any sequence of the same
    elements.

    Raises ClosedError on access if the file was closed.

    Attributes:
        number: the type of the numbers, or of the length before each string.
        order: the byte order of these numbers.
    """

    def __init__(self, source: Source, start: int, count: int, number: Number, order: ByteOrder) -> None:
        self._source = source
        self._start = start
        self._count = count
        self.number = number
        self.order = order

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._source, self._start, self._count, self.number, self.order)

    def __len__(self) -> int:
        return self._count

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, (str, bytes)):
            return NotImplemented
        return len(self) == len(other) and all(mine == its for mine, its in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        is_short = self._count <= SHOWN
        texts = self._texts(SHOWN if is_short else SHOWN // 2)
        return f"[{', '.join(texts)}{'' if is_short else f', ... {self._count:,} in all'}]"

    def _texts(self, count: int) -> list[str]:
        return [quote(element) if isinstance(element, str) else str(element) for element in self[:count]]

    def _repr_html_(self) -> str:
        rows = [(f"{i:,}", text) for i, text in enumerate(self._texts(MOST))]
        return Listing(f"{self._count:,} elements", ("index", "value"), rows, self._count - len(rows)).html()


class StoredNumbers(StoredArray):
    """Consecutive numbers in a source. A slice is a read-only numpy array in the file's byte order,
    a view if the file is mapped. Only the bytes between its outermost numbers are read."""

    def __getitem__(self, index: Any) -> Any:
        wanted, dtype = range(self._count)[index], self.number.numpy_dtype(self.order)
        if isinstance(wanted, int):
            return self[wanted : wanted + 1][0]
        low, high = sorted((wanted[0], wanted[-1])) if wanted else (0, -1)
        stored = self._source.view(self._start + low * dtype.itemsize, (high + 1 - low) * dtype.itemsize)
        return np.frombuffer(stored, dtype)[wanted[0] - low if wanted else 0 :: wanted.step]

    def __iter__(self) -> Iterator[Any]:
        return iter(self[:])


class StoredStrings(StoredArray):
    """Consecutive strings in a source, each after its length; decoded as UTF-8 on each access.

    Bytes that are not UTF-8 become lone surrogates (Python's ``surrogateescape``), and so are not
    lost.
    """

    @cached_property
    def ends(self) -> Positions:
        """The end of each string, relative to the start of the array."""
        return np.concatenate([np.empty(0, np.int64), *self._walk()])

    def find_end(self) -> int:
        """Returns the end of the last string in the source, without storing those before it.

        Raises TruncatedError if a string is cut off.
        """
        end = 0
        for ends in self._walk():
            end = int(ends[-1])
        return self._start + end

    def _walk(self) -> Iterator[Positions]:
        """Yields the ends of the strings in each window, relative to the start of the array.

        Short strings at the beginning of a window are found at once, all others in a loop.
        """
        unpack, size = self.number.unpacker(self.order), self.number.itemsize
        left, wanted, end = self._source.size - self._start, self._count, 0
        most = float(size + TYPICAL)
        while wanted:
            self._source.expect(self._start + end, min(int(most * wanted) + 4 * self._count + SLACK, left - end))
            window = self._source.read(self._start + end, min(WINDOW, PER_STRING * wanted, left - end))
            short, others = _short_strings(window, size, self.order)[:wanted], list[int]()
            at = int(short[-1]) if len(short) else 0
            while at + size <= len(window) and len(short) + len(others) < wanted and end + at <= left:
                at += size + unpack(window, at)[0]
                others.append(at)
            found = len(short) + len(others)
            if not found or end + at > left:
                cut = self._count - wanted + max(found - 1, 0)
                raise TruncatedError(f"expected {self._count} strings, found the end of the file in string {cut}")
            yield end + np.append(short, np.array(others, np.int64))
            wanted -= found
            end += at
            most = max(most, at / found * GROWTH)

    def stored_bytes(self) -> memoryview:
        """Returns the stored bytes, lengths included. Raises ClosedError if the file was closed."""
        return self._source.read(self._start, int(self.ends[-1]) if self._count else 0)

    def starts(self) -> Positions:
        """Returns the first byte of each string, after its length."""
        return np.append(0, self.ends)[:-1] + self.number.itemsize

    def lengths(self) -> Positions:
        """Returns the length of each string in bytes."""
        return self.ends - self.starts()

    def are_utf8(self) -> bool:
        """Tells whether all strings are UTF-8: decodes them at once, with zeros between them."""
        stored, size = np.frombuffer(self.stored_bytes(), np.uint8).copy(), self.number.itemsize
        stored[self.starts()[:, None] - np.arange(1, size + 1)] = 0
        return is_utf8(decode_text(stored.data))

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._count))]
        if not -self._count <= index < self._count:
            raise IndexError(f"index {index} is out of range for {self._count} strings")
        at = index % self._count
        first, end = (int(self.ends[at - 1]) if at else 0) + self.number.itemsize, int(self.ends[at])
        return decode_text(self._source.read(self._start + first, end - first))

    def __iter__(self) -> Iterator[str]:
        stored = self.stored_bytes()
        spans = zip(self.starts().tolist(), self.ends.tolist(), strict=True)
        return (decode_text(stored[first:end]) for first, end in spans)


def _joined(values: Any, encode: Callable[[Any], bytes], path: str) -> bytes:
    """Returns encoded elements. Raises FormatError with the path of the element."""
    stored: list[bytes] = []
    try:
        stored.extend(map(encode, values))
    except FormatError as error:
        raise FormatError(error.problem, f"{path} -> {len(stored)}") from None
    return b"".join(stored)


def _short_strings(window: memoryview, size: int, order: ByteOrder) -> Positions:
    """Returns the ends of the strings of less than 256 bytes at the beginning of `window`.

    All bytes of their lengths but the lowest are zero.
    """
    stored = np.frombuffer(window, np.uint8)
    zeros, width = stored == 0, 1
    while width < size - 1:  # zeros[i]: `width` bytes from i on are zero
        step = min(width, size - 1 - width)
        zeros, width = zeros[:-step] & zeros[step:], width + step
    starts = np.flatnonzero(zeros[1:] if order == "little" else zeros[:-1])
    ends = starts + size + stored[starts + (0 if order == "little" else size - 1)]
    apart = np.flatnonzero(np.append(0, ends[:-1]) != starts)  # not a string, or not next to the last one
    return ends[: max((apart[0] if len(apart) else len(ends)) - 1, 0)]  # without the last, which may be cut off


class Numbers(construct.Construct):
    """`count` numbers. Parses into `StoredNumbers`, builds from a sequence or array of as many
    numbers. Its size is known if `count` is.

    Args:
        number: the kind of the numbers, such as ``f32``.
        count: how many, an integer or an expression, such as ``this.n``.

    Raises:
        TypeError: if `number` is not a number of `glft_schema.codec`, as in another order.
    """

    def __init__(self, number: Number, count: Any) -> None:
        super().__init__()
        if not isinstance(number, Number):
            raise TypeError(f"expected a number of glft_schema.codec and a count, Numbers(f32, 3), found {quote(number)}")
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
        array = obj[:] if isinstance(obj, StoredNumbers) else obj.reshape(-1) if isinstance(obj, np.ndarray) else obj
        check_length(self.count, array, "numbers", context, path)
        if isinstance(array, np.ndarray) and array.dtype.newbyteorder("=") == self.number.numpy_dtype().newbyteorder("="):
            stored = array_bytes(np.asarray(array, self.number.numpy_dtype(order)))
            write_all(stream, stored)
            return StoredNumbers(BytesSource(stored), 0, len(array), self.number, order)
        write_all(stream, _joined(array, lambda number: self.number.encode(number, order, ""), path))
        return list(array)

    def _sizeof(self, context: Context, path: str) -> int:
        try:
            return int(self.count(context)) * self.number.itemsize
        except (KeyError, AttributeError):
            raise construct.SizeofError("the count is in the file", path=path) from None


class Strings(construct.Construct):
    """`count` strings, each after its length. Parses into `StoredStrings`, builds from as many
    texts.

    Args:
        length: the number before each string, its bytes, such as ``u32``.
        count: how many strings, an integer or an expression, such as ``this.n``.

    Raises:
        TypeError: if `length` is not an integer of `glft_schema.codec`, as in another order.
    """

    def __init__(self, length: Picked, count: Any) -> None:
        super().__init__()
        self.length = checked_number(length)
        self.count = as_expression(count)

    def _parse(self, stream: Any, context: Context, path: str) -> StoredStrings:
        count, length, order = self.count(context), self.length.pick(context), byte_order(context)
        with cursor_over(stream, self.count, count, length.itemsize, path) as cursor:
            limits_of(context).check("strings", count, path)
            strings = StoredStrings(cursor.source, cursor.tell(), count, length, order)
            cursor.seek(strings.find_end())
            return strings

    def _build(self, obj: Any, stream: Any, context: Context, path: str) -> Any:
        length, order = self.length.pick(context), byte_order(context)
        check_length(self.count, obj, "strings", context, path)
        limits_of(context).check("strings", len(obj), path)
        if isinstance(obj, StoredStrings) and (obj.number, obj.order) == (length, order):
            write_all(stream, obj.stored_bytes())
            return obj
        write_all(stream, _joined(obj, lambda text: with_length(encode_text(text, ""), length, order, ""), path))
        return list(obj)


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
