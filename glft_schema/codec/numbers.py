"""Stored numbers: ``u32`` is a single number, ``f16[OUT, IN // 64]`` an array in C order.

================  =================================================================
`Number`          one number; with dims a `TensorField`
`TensorField`     an array of numbers
`Picked`          one of two numbers, depending on the context
`Sizes`           a count, then that many integers
`ByteOrderOf`     the container's byte order: constant, or detected from the following number
================  =================================================================

The byte order is a parameter of the container, ``context._params.byte_order``: little-endian by
default. Arrays are returned in the machine's byte order.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Any, TypeVar

import construct
import numpy as np

from glft_schema.codec.context import BIG, LITTLE, ByteOrder, Context, byte_order, limits_of
from glft_schema.codec.expressions import as_expression, outermost
from glft_schema.codec.rules import ALL_BITS, Fault
from glft_schema.codec.structs import check_count, check_list
from glft_schema.errors import FormatError, alternatives, quote
from glft_schema.limits import A_LIMIT, DEFAULTS
from glft_schema.scalar.kinds import KINDS
from glft_schema.storage.cursor import Cursor, bytes_left, read_exactly
from glft_schema.storage.dtypes import Array, Dtype, dtype_of, name_of, words
from glft_schema.storage.tensor_bytes import array_bytes, array_over, write_all
from glft_schema.storage.torch_tensors import array_of
from glft_schema.words import MissingKeyError

cached_struct = lru_cache(maxsize=256)(struct.Struct)  # slower to make than to use


class Number(construct.Construct):
    """A number, ``u32``; with dims an array of them, ``f16[4, 8]``.

    Parses into an int or a numpy float, which keeps the bits of every NaN. Builds from either, and
    refuses a number out of range. Size: `itemsize`.

    Attributes:
        kind: its name in schemas.
        itemsize: its size in bytes.
        is_float: whether it is a floating-point number.
        is_signed: whether it is a signed integer.
        is_unsigned: whether it is an unsigned integer.
        dtype: the dtype of its arrays; see `storage.dtypes` for those that numpy lacks.
    """

    def __init__(self, kind: str, numpy_kind: str, dtype: str | None = None) -> None:
        super().__init__()
        self.kind = kind
        self._numpy = np.dtype(numpy_kind)
        self.dtype = dtype_of(dtype or self._numpy.name)
        self.itemsize = self._numpy.itemsize
        self.is_float = self._numpy.kind == "f"
        self.is_signed = self._numpy.kind == "i"
        self.is_unsigned = kind.startswith("u")

    def __repr__(self) -> str:
        return self.kind

    def __reduce__(self) -> str:
        return self.kind  # a global of this module

    def __getitem__(self, dims: Any) -> TensorField:
        return TensorField(self, dims if isinstance(dims, tuple) else (dims,))

    def pick(self, context: Context) -> Number:
        """Returns itself, see `Picked.pick`."""
        return self

    def numpy_dtype(self, order: ByteOrder = LITTLE) -> Dtype:
        """Returns the dtype of its words in a byte order."""
        dtype: Dtype = self._numpy.newbyteorder("<" if order == LITTLE else ">")
        return dtype

    def unpacker(self, order: ByteOrder, count: int = 1) -> Callable[[bytes | memoryview, int], tuple[int, ...]]:
        """Returns a function that unpacks `count` integers from a buffer at an offset."""
        letters, sign = "bhiq" if self.is_signed else "BHIQ", "<" if order == LITTLE else ">"
        return cached_struct(f"{sign}{count}{letters[self.itemsize.bit_length() - 1]}").unpack_from

    def _parse(self, stream: Any, context: Context, path: str) -> Any:
        stored = read_exactly(stream, self.itemsize, path)
        order = byte_order(context)
        if self.is_float:
            return np.frombuffer(stored, self.numpy_dtype(order))[0]
        return int.from_bytes(stored, order, signed=self.is_signed)

    def _build(self, obj: Any, stream: Any, context: Context, path: str) -> Any:
        write_all(stream, self.encode(obj, byte_order(context), path))
        return obj

    def encode(self, number: Any, order: ByteOrder = LITTLE, path: str = "") -> bytes:
        """Returns the bytes of a number; floats are rounded. Raises FormatError if out of range."""
        try:
            if not isinstance(number, (bool, np.bool_)):
                if self.is_float and isinstance(number, (int, float, np.integer, np.floating)):
                    with np.errstate(over="ignore", invalid="ignore"):
                        stored = np.asarray(number, self.numpy_dtype(order))
                    if np.isinf(stored) and not np.isinf(number):
                        raise OverflowError
                    return stored.tobytes()
                if isinstance(number, (int, np.integer)):
                    return int(number).to_bytes(self.itemsize, order, signed=self.is_signed)
        except OverflowError:
            pass
        word = "a number" if self.is_float else "an integer"
        raise FormatError(f"expected {word} in the range of {self.kind}, found {quote(number)}", path)

    def _sizeof(self, context: Context, path: str) -> int:
        return self.itemsize


class NamedBits(int):
    """A number whose bits have names, which its text lists: ``3 (visible, locked)``.

    ``"locked" in flags`` tells whether a bit is set. It raises KeyError for a name that no bit has,
    since a misspelled name would otherwise never be found.

    Attributes:
        bits: the bit of each name.
    """

    bits: Mapping[str, int]

    def __new__(cls, number: int, bits: Mapping[str, int]) -> NamedBits:
        found = super().__new__(cls, number)
        found.bits = bits
        return found

    @property
    def names(self) -> list[str]:
        """The names of the bits that are set."""
        return [name for name, bit in self.bits.items() if self >> bit & 1]

    def __contains__(self, name: object) -> bool:
        if name not in self.bits:
            raise MissingKeyError(name, self.bits)
        return name in self.names

    def __repr__(self) -> str:
        return f"{int(self)} ({', '.join(self.names)})" if self.names else str(int(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return NamedBits, (int(self), dict(self.bits))


class Flags(construct.Adapter):
    """Named bits of an unsigned number, ``Flags(u8, signed=0, packed=1)``; bit 0 is the lowest.

    Parses into `NamedBits`, an int: ``this.flags & 2``. Builds from a number, from the names of the
    bits that are set, or from a mapping of names to bools. Bits without a name are kept; a `Rule`
    can refuse them.

    Args:
        number: how the bits are stored.
        bits: the names, and the bit of each.

    Raises:
        ValueError: if the number is not unsigned, or a bit is not one of its bits, or named twice.
    """

    def __init__(self, number: Number, **bits: int) -> None:
        super().__init__(number)
        if not (isinstance(number, Number) and number.is_unsigned):
            raise ValueError(f"expected an unsigned number such as u8 for Flags, found {quote(number)}")
        width = 8 * number.itemsize
        if not bits or len(set(bits.values())) < len(bits) or any(bit not in range(width) for bit in bits.values()):
            raise ValueError(f"expected names of different bits from 0 to {width - 1} for Flags, found {quote(bits)}")
        self.bits = {name: int(bit) for name, bit in bits.items()}

    def _decode(self, obj: int, context: Context, path: str) -> NamedBits:
        return NamedBits(obj, self.bits)

    def _build(self, obj: Any, stream: Any, context: Context, path: str) -> NamedBits:
        number = self._encode(obj, context, path)
        self.subcon._build(number, stream, context, path)
        return NamedBits(number, self.bits)

    def _encode(self, obj: Any, context: Context, path: str) -> int:
        if isinstance(obj, (int, np.integer)):
            return int(obj)
        names = [name for name, is_set in obj.items() if is_set] if isinstance(obj, Mapping) else obj
        given = obj if isinstance(obj, Collection) and not isinstance(obj, (str, bytes)) else [None]
        if all(isinstance(name, str) and name in self.bits for name in given):
            return sum(1 << self.bits[name] for name in set(names))
        raise FormatError(f"expected a number, or names of {', '.join(self.bits)}, found {quote(obj)}", path)


class TensorField(construct.Construct):
    """An array of numbers, ``f16[OUT, IN // 64]``: dims are integers or expressions.

    Parses into a numpy array, which is a view if possible; writing to it never changes the file or
    the caller's bytes. Builds from a numpy array or torch tensor of exactly this dtype and shape.
    Size: the size of its elements.
    """

    def __init__(self, number: Number, dims: tuple[Any, ...]) -> None:
        super().__init__()
        self.number = number
        self.dims = tuple(map(as_expression, dims))

    def __repr__(self) -> str:
        return f"{self.number.kind}[{', '.join(map(outermost, self.dims))}]"

    def shape(self, context: Context) -> list[int]:
        """Returns the dims as integers; an expression may give several."""
        sizes: list[int] = []
        for dim in self.dims:
            size = dim(context)
            sizes.extend(size) if isinstance(size, list) else sizes.append(size)
        return sizes

    def swap(self, array: Array) -> Array:
        """Returns numbers of this field, in any shape, in the other byte order."""
        swapped: Array = words(array).byteswap().view(array.dtype)
        return swapped

    def parts(self, name: str) -> list[tuple[str, slice | None, Number]]:
        """Returns the arrays of this field that formulas use: name, span of bytes in a row (None
        for the whole field), and type of number."""
        return [(name, None, self.number)]

    def columns(self, name: str, numbers: Array) -> dict[str, Array]:
        """Returns the arrays of this field that formulas use, by name; one unless it is split."""
        return {name: numbers}

    def _parse(self, stream: Any, context: Context, path: str) -> Array:
        nbytes = self._sizeof(context, path)
        if isinstance(stream, Cursor):
            view = stream.private(nbytes)
        else:
            view = memoryview(bytearray(construct.stream_read(stream, nbytes, path)))
        array = array_over(view, self.number.dtype, self.shape(context))
        return array if byte_order(context) == LITTLE else self.swap(array)

    def _build(self, obj: Any, stream: Any, context: Context, path: str) -> Any:
        dtype, shape, array = self.number.dtype, self.shape(context), array_of(obj)
        if not isinstance(array, np.ndarray):
            raise FormatError(f"expected a numpy array or torch tensor, found {quote(obj)}", path)
        if array.dtype != dtype or list(array.shape) != shape:
            found = f"{name_of(array.dtype)} {list(array.shape)}"
            raise FormatError(f"expected {name_of(dtype)} {shape}, found {found}", path)
        write_all(stream, array_bytes(array if byte_order(context) == LITTLE else self.swap(array)))
        return obj

    def _sizeof(self, context: Context, path: str) -> int:
        return math.prod(self.shape(context)) * self.number.itemsize


i8, u8, i16, u16, i32, u32, i64, u64, f16, bf16, f32, f64 = (
    Number(kind.name, kind.numpy, kind.dtype) for kind in KINDS.values()
)


class ByteOrderOf(construct.Construct):
    """The container's byte order: always `order`, or detected from the next number.

    A number of 4 or 8 bytes reveals the order if its high 16 bits are 0 and its low 16 bits are
    not.

    Parses into ``"little"`` or ``"big"``, builds from either, and sets the order of all numbers,
    arrays and payloads that follow. Size: 0.

    Args:
        order: ``BIG`` or ``LITTLE``, or the number that follows.

    Raises:
        TypeError: for anything else.
    """

    def __init__(self, order: Number | ByteOrder) -> None:
        super().__init__()
        self.number = order if isinstance(order, Number) and order.itemsize >= 4 else None
        self.orders = (LITTLE, BIG) if self.number else tuple(known for known in (LITTLE, BIG) if known == order)
        if not self.orders:
            raise TypeError(f"expected BIG, LITTLE or the next number, of 4 or 8 bytes such as u32, found {quote(order)}")
        self.flagbuildnone = True

    def _parse(self, stream: Any, context: Context, path: str) -> ByteOrder:
        order = self.orders[0]
        if self.number:
            start = stream.tell()
            stored = construct.stream_read(stream, self.number.itemsize, path)
            construct.stream_seek(stream, start, 0, path)
            order = BIG if any(stored) and not any(stored[:2]) else LITTLE
        context._params.byte_order = order
        return order

    def _build(self, obj: Any, stream: Any, context: Context, path: str) -> ByteOrder:
        if obj is not None and obj not in self.orders:
            raise FormatError(f"expected {alternatives(map(repr, self.orders))}, found {quote(obj)}", path)
        context._params.byte_order = order = self.orders[0] if obj is None else obj
        return order

    def _sizeof(self, context: Context, path: str) -> int:
        return 0


NumberOrPicked = TypeVar("NumberOrPicked", bound="Number | Picked")


def checked_number(declared: NumberOrPicked) -> NumberOrPicked:
    """Returns an integer of this module, as an argument of another field.

    Raises:
        TypeError: for anything else, whose size and byte order are not known.
    """
    if not isinstance(declared, (Number, Picked)) or (isinstance(declared, Number) and declared.is_float):
        raise TypeError(f"expected an integer of glft_schema.codec, such as u32, found {quote(declared)}")
    return declared


class Picked(construct.Construct):
    """One of two numbers, such as ``u32`` in one version and ``u64`` in another.

    Attributes:
        condition: the condition, an expression or a function of the context.
        then: the number if the condition holds; the shorter one.
        otherwise: the number if it does not.
    """

    def __init__(self, condition: Any, then: Number, otherwise: Number) -> None:
        super().__init__()
        self.condition = as_expression(condition)
        self.then = checked_number(then)
        self.otherwise = checked_number(otherwise)

    def pick(self, context: Context) -> Number:
        """Returns the number that applies in `context`."""
        return self.then if self.condition.compiled(context) else self.otherwise

    def _parse(self, stream: Any, context: Context, path: str) -> Any:
        return self.pick(context)._parse(stream, context, path)

    def _build(self, obj: Any, stream: Any, context: Context, path: str) -> Any:
        return self.pick(context)._build(obj, stream, context, path)


class Sizes(construct.Construct):
    """A count, then as many integers. Parses into a list of ints, builds from a sequence of ints.

    Args:
        count: the number that stores the count.
        size: the number that stores each integer.
        limit: the name of the limit on the count.

    Raises:
        ValueError: if there is no such limit.
    """

    def __init__(self, count: Number, size: Number | Picked, limit: str) -> None:
        super().__init__()
        self.count = checked_number(count)
        self.size = checked_number(size)
        if limit not in DEFAULTS:
            raise ValueError(f"expected the name of a limit, such as 'dims', found {quote(limit)}")
        self.limit = limit
        self.refuses = (Fault(f"more than {DEFAULTS[limit]}, {A_LIMIT}", ALL_BITS),)

    def _parse(self, stream: Any, context: Context, path: str) -> list[int]:
        count, order = self.count._parse(stream, context, path), byte_order(context)
        width = self.size.pick(context).itemsize
        check_count(self.count, count, width, bytes_left(stream), path)
        limits_of(context).check(self.limit, count, path)
        stored = read_exactly(stream, count * width, path)
        return [int.from_bytes(stored[at : at + width], order) for at in range(0, count * width, width)]

    def _build(self, obj: Any, stream: Any, context: Context, path: str) -> Any:
        check_list(obj, "integers", path)
        limits_of(context).check(self.limit, len(obj), path)
        self.count._build(len(obj), stream, context, path)
        for size in obj:
            self.size._build(size, stream, context, path)
        return list(obj)
