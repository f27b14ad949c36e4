"""The names that a scalar function may use, and the classes that run it as plain Python.

A scalar function runs as it is: arrays are `PlainArray`, whose elements are `Float32` or `Int32`.
Both compute as C does, a float32 or an int32 after each operation. Plain Python is the reference
for all printed forms.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

MAGIC = 3 * 2**22  # a float32 sum with it has no fraction bits: adding rounds half to even
LEAST, SIZE = -(2**31), 2**32  # of int32


class Float32:
    """A float32. Literals and other Float32 are accepted as operands."""

    __slots__ = ("number",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, number: Any) -> None:
        self.number: np.float32 = np.float32(number.number if isinstance(number, Float32) else number)

    def __repr__(self) -> str:
        return f"Float32({self.number!s})"

    def __float__(self) -> float:
        return float(self.number)


class Int32(int):
    """An int32: results wrap."""


def _of_floats(name: str) -> Callable[..., Any]:
    operate = getattr(operator, name)

    def method(self: Float32, *others: Any) -> Any:
        if any(isinstance(other, Int32) for other in others):
            return NotImplemented
        result = operate(self.number, *(Float32(other).number for other in others))
        return bool(result) if isinstance(result, np.bool_) else Float32(result)

    return method


def _reflect(name: str) -> Callable[..., Any]:
    return lambda self, other: NotImplemented if isinstance(other, Int32) else getattr(Float32(other), name)(self)


def _of_integers(name: str) -> Callable[..., Any]:
    operate = getattr(int, name)

    def method(*operands: int) -> Any:
        result = operate(*operands)
        return Int32((result - LEAST) % SIZE + LEAST) if isinstance(result, int) else result

    return method


for _name in ("add", "sub", "mul", "truediv"):
    setattr(Float32, f"__{_name}__", _of_floats(_name))
    setattr(Float32, f"__r{_name}__", _reflect(f"__{_name}__"))
for _name in ("lt", "le", "gt", "ge", "eq", "ne", "neg", "abs"):
    setattr(Float32, f"__{_name}__", _of_floats(_name))
for _name in ("add", "sub", "mul", "floordiv", "mod", "and", "or", "xor", "lshift", "rshift"):
    setattr(Int32, f"__{_name}__", _of_integers(f"__{_name}__"))
    setattr(Int32, f"__r{_name}__", _of_integers(f"__r{_name}__"))
for _name in ("neg", "abs", "invert"):
    setattr(Int32, f"__{_name}__", _of_integers(f"__{_name}__"))


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
        return Float32(number) if self.array.dtype.kind == "f" else Int32(np.int64(number).astype(np.int32))

    def __setitem__(self, at: int, number: Any) -> None:
        stored = float(number) if self.array.dtype.kind == "f" else np.int64(number).astype(self.array.dtype)
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


def float16(x: Any) -> Any:
    """Rounds to float16, half to even."""
    return Float32(np.float16(Float32(x).number))


def nearest(x: Any) -> Any:
    """Rounds to int32, half to even. Wrong beyond 2^22, as in ggml."""
    return (as_bits(float32(x) + MAGIC) & 0x7FFFFF) - 0x400000


def truncated(x: Any) -> Any:
    """The integer part as int32; -2^31 for NaN and beyond int32, as on x86."""
    number = Float32(x).number
    return Int32(int(number) if -(2.0**31) <= number < 2.0**31 else LEAST)


def root(x: Any) -> Any:
    """The square root, correctly rounded."""
    return Float32(np.sqrt(Float32(x).number))


def as_bits(x: Any) -> Any:
    """The 32 bits of a float32 as an int32."""
    return Int32(Float32(x).number.view(np.int32))


def as_float(bits: int) -> Any:
    """The float32 that consists of the 32 bits."""
    return Float32(np.int32(bits).view(np.float32))


def as_float16(bits: int) -> Any:
    """The float16 that consists of the low 16 bits, as float32."""
    return Float32(np.uint16(bits & 0xFFFF).view(np.float16))


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
