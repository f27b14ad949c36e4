"""The names that a scalar function may use, and the classes that run it as plain Python.

A scalar function runs as it is: arrays are `PlainArray`, whose elements are `Float32` or `Int32`.
Both compute as C does, a float32 or an int32 after each operation. Plain Python is the reference
for all printed forms.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import cached_property, wraps
from typing import Any

import numpy as np

MAGIC = 3 * 2**22  # a float32 sum with it has no fraction bits: adding rounds half to even
LEAST = -(2**31)  # of int32


class PlainNumber:
    """A number of 32 bits. Results are numbers of the same kind. Literals and numbers of this kind
    are accepted as operands."""

    __slots__ = ("number",)
    __hash__ = None  # type: ignore[assignment]
    dtype: type

    def __init__(self, number: Any) -> None:
        self.number: Any = self.dtype(number.number if isinstance(number, PlainNumber) else number)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.number!s})"


class Float32(PlainNumber):
    """A float32, rounded after each operation."""

    __slots__ = ()
    dtype = np.float32

    def __float__(self) -> float:
        return float(self.number)


class Int32(PlainNumber):
    """An int32: results wrap."""

    __slots__ = ()
    dtype = np.int32

    def __index__(self) -> int:
        return int(self.number)


def _method(name: str) -> Callable[..., Any]:
    operate = getattr(operator, name)

    def method(self: PlainNumber, *others: Any) -> Any:
        kind = type(self)
        if any(isinstance(other, PlainNumber) and not isinstance(other, kind) for other in others):
            return NotImplemented
        result = operate(self.number, *(kind(other).number for other in others))
        return bool(result) if isinstance(result, np.bool_) else kind(result)

    return method


def _reflect(name: str) -> Callable[..., Any]:
    return lambda self, other: NotImplemented if isinstance(other, PlainNumber) else getattr(type(self)(other), name)(self)


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "and", "or", "xor", "lshift", "rshift"):
    setattr(PlainNumber, f"__{_name}__", _method(f"__{_name}__"))
    setattr(PlainNumber, f"__r{_name}__", _reflect(f"__{_name}__"))
for _name in ("lt", "le", "gt", "ge", "eq", "ne", "neg", "abs"):
    setattr(PlainNumber, f"__{_name}__", _method(f"__{_name}__"))


class PlainArray:
    """An array in plain Python. Elements are read as Float32 or Int32, and converted when they are
    stored. Slices are views."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return PlainArray(self.array[at])
        number = self.array[self._place(at)]
        return Float32(number) if self.array.dtype.kind == "f" else Int32(number.astype(np.int32))

    def __setitem__(self, at: int, number: Any) -> None:
        stored = float(number) if self.array.dtype.kind == "f" else np.int64(int(number)).astype(self.array.dtype)
        self.array[self._place(at)] = stored

    def _place(self, at: int) -> int:
        if not 0 <= at < len(self.array):
            raise IndexError(f"expected an index below {len(self.array)}, found {at}")
        return at


class LookupTable(PlainArray):
    """A one-dimensional array of constants, computed when it is first read. Tuples of integers are
    tables, too."""

    def __init__(self, make: Callable[[], Sequence[float] | np.ndarray[Any, Any]]) -> None:
        self._make = make

    @cached_property
    def array(self) -> np.ndarray[Any, Any]:  # type: ignore[override]
        table = np.asarray(self._make())
        return table.astype(np.float32) if table.dtype.kind == "f" else table


class ScalarError(ValueError):
    """A function that does not follow the language. The text names the function and the line."""


def alone(function: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a function whose loops differ much in length from block to block. It is called block
    by block, also by code that computes several blocks at once."""
    function.alone = True  # type: ignore[attr-defined]
    return function


def float32(number: Any) -> Any:
    """Converts to float32: an integer, a literal or a bool."""
    return Float32(number)


def int32(number: Any) -> Any:
    """Converts a bool to 0 or 1. An integer is unchanged."""
    return Int32(number)


def _of_numbers(read: type[PlainNumber], result: type[PlainNumber]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes a function of float32 or int32 in numpy a function of numbers. Arrays of numpy are
    given to `__wrapped__`."""

    def of_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
        return wraps(function)(lambda x: result(function(read(x).number)))

    return of_numbers


@_of_numbers(Float32, Float32)
def float16(x: Any) -> Any:
    """Rounds to float16, half to even."""
    return x.astype(np.float16).astype(np.float32)


@_of_numbers(Float32, Int32)
def nearest(x: Any) -> Any:
    """Rounds to int32, half to even. Wrong beyond 2^22, as in ggml."""
    return ((x + np.float32(MAGIC)).view(np.int32) & 0x7FFFFF) - 0x400000


@_of_numbers(Float32, Int32)
def truncated(x: Any) -> Any:
    """The integer part as int32; -2^31 for NaN and beyond int32, as on x86."""
    fits = (x >= -(2.0**31)) & (x < 2.0**31)
    return np.where(fits, np.where(fits, x, 0).astype(np.int32), np.int32(LEAST))


@_of_numbers(Float32, Float32)
def root(x: Any) -> Any:
    """The square root, correctly rounded."""
    return np.sqrt(x)


@_of_numbers(Float32, Int32)
def as_bits(x: Any) -> Any:
    """The 32 bits of a float32 as an int32."""
    return x.view(np.int32)


@_of_numbers(Int32, Float32)
def as_float(bits: Any) -> Any:
    """The float32 that consists of the 32 bits."""
    return bits.view(np.float32)


@_of_numbers(Int32, Float32)
def as_float16(bits: Any) -> Any:
    """The float16 that consists of the low 16 bits, as float32."""
    return bits.astype(np.uint16).view(np.float16).astype(np.float32)


def on_arrays(name: str) -> Callable[..., Any]:
    """Returns a function of the language of one float32 or int32, for arrays of numpy."""
    return abs if name == "abs" else globals()[name].__wrapped__


def floats(count: int) -> PlainArray:
    """An array of `count` float32, all 0."""
    return PlainArray(np.zeros(count, np.float32))


def integers(count: int) -> PlainArray:
    """An array of `count` int32, all 0."""
    return PlainArray(np.zeros(count, np.int32))


def run(function: Callable[..., Any], **arrays: np.ndarray[Any, Any]) -> None:
    """Runs a scalar function as plain Python on numpy arrays of one dim, in place."""
    with np.errstate(all="ignore"):
        function(**{name: PlainArray(array) for name, array in arrays.items()})
