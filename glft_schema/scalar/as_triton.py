"""Scalar functions as lines of a Triton kernel, whose numbers are tensors [cells, *axes].

A function that `as_torch` prints is run with `KernelTrace` in place of the operations of torch. Its
numbers have no values: each operation appends a line to the kernel. Triton's axes are powers of
two, so that longer ones repeat their last index; `Stored.live` masks the repetitions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from glft_schema.scalar.as_torch import print_function
from glft_schema.scalar.axes import WORD
from glft_schema.scalar.kinds import KINDS
from glft_schema.scalar.language import MAGIC
from glft_schema.scalar.tree import Function

Sizes: TypeAlias = tuple[int, ...]
Operand: TypeAlias = "Traced | float"

# The types of numbers in Triton, unsigned words as signed ones.
TYPES = {name: f"tl.{kind.dtype if kind.size == 1 else kind.dtype.removeprefix('u')}" for name, kind in KINDS.items()}
TYPES |= {"float32": "tl.float32", "int32": "tl.int32", "bool": "tl.int1"}
SMALLEST = 2.0**-126  # of the literals that Triton reads as float32


class CellField(NamedTuple):
    """A field of a cell.

    Attributes:
        start: the text of the pointers to its first number, bytes with the leading axes.
        number: the kind of its numbers.
        alignment: a number of bytes that divides all addresses.
    """

    start: str
    number: str
    alignment: int


class Stored(NamedTuple):
    """The weights that a statement writes.

    Attributes:
        value: their name, a tensor [*leading axes, *sizes].
        places: the text of their places in a cell.
        live: the text of a mask that excludes repeated weights; "" if none are repeated.
        sizes: of their axes, powers of two.
    """

    value: str
    places: str
    live: str
    sizes: Sizes


@dataclass
class Traced:
    """A number of each cell.

    Attributes:
        trace: the kernel.
        name: in the kernel.
        axes: sizes.
        kind: float32, int32 or bool.
        multiple: a number that divides all its values.
    """

    trace: KernelTrace
    name: str
    axes: Sizes
    kind: str
    multiple: int = 1

    def __getitem__(self, at: Any) -> Traced:
        added = at.count(None)
        text = f"{self.name}[{', '.join([':'] * (self.trace.leading + len(self.axes)) + ['None'] * added)}]"
        return self.trace.add(text, self.axes + (1,) * added, self.kind, self.multiple)

    def __neg__(self) -> Traced:
        one = -1.0 if self.kind == "float32" else -1  # 0 - x has no negative zero
        return self.trace.operation("*", self, one, self.kind)

    def __invert__(self) -> Traced:
        return self.trace.add(f"~{self.name}", self.axes, self.kind)


def _operation(sign: str, kind: str = "") -> tuple[Callable[..., Traced], Callable[..., Traced]]:
    """Returns the methods of an operation, with the number as its left and as its right operand."""

    def of_left(self: Traced, other: Operand) -> Traced:
        return self.trace.operation(sign, self, other, kind or self.kind)

    def of_right(self: Traced, other: Operand) -> Traced:
        return self.trace.operation(sign, other, self, kind or self.kind)

    return of_left, of_right


ARITHMETIC = {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%"}
for name, sign in {**ARITHMETIC, "and": "&", "or": "|", "xor": "^", "lshift": "<<", "rshift": ">>"}.items():
    for method, function in zip((f"__{name}__", f"__r{name}__"), _operation(sign), strict=True):
        setattr(Traced, method, function)
for name, sign in {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}.items():
    setattr(Traced, f"__{name}__", _operation(sign, "bool")[0])


class KernelTrace:
    """The operations of `torch_operations` on numbers without values.

    Args:
        function: of arrays whose lengths are known.
        fields: by name.
        leading: the number of axes before those of loops.

    Attributes:
        lines: of the kernel.
        tables: constant arrays of int32 or float32, by the names of pointers to them.
        stored: the weights, in order.

    Raises:
        ScalarError: as `print_function`.
    """

    def __init__(self, function: Function, fields: Mapping[str, CellField], leading: int) -> None:
        self.leading = leading
        self.lines: list[str] = []
        self.tables: dict[str, np.ndarray[Any, Any]] = {}
        self.stored: list[Stored] = []
        text, tables, _ = print_function(function)
        scope: dict[str, Any] = {"inf": math.inf, "nan": math.nan, **tables}
        exec(text, scope)
        scope[function.name](self, w=None, **{name: fields[name] for name in function.parameters if name != "w"})

    def add(self, text: str, axes: Sizes, kind: str, multiple: int = 1) -> Traced:
        """Adds a line that names a text."""
        name = f"t{len(self.lines)}"
        self.lines.append(f"{name} = {text}")
        return Traced(self, name, axes, kind, multiple)

    def operation(self, sign: str, left: Operand, right: Operand, kind: str) -> Traced:
        divisor = right if isinstance(right, int) else 0
        if sign in ("//", "%") and divisor > 0 and divisor & divisor - 1 == 0:  # rounds down, as in Python
            sign, right = (">>", divisor.bit_length() - 1) if sign == "//" else ("&", divisor - 1)
        multiple = [one.multiple if isinstance(one, Traced) else int(one) if kind == "int32" else 1 for one in (left, right)]
        found = {"*": math.prod(multiple), "+": math.gcd(*multiple), "-": math.gcd(*multiple)}.get(sign, 1)
        return self.add(f"{self._text(left)} {sign} {self._text(right)}", self._axes(left, right), kind, found)

    def _text(self, operand: Operand) -> str:
        if isinstance(operand, Traced):
            return operand.name
        if isinstance(operand, float) and not math.isfinite(operand):
            return f'float("{operand}")'
        if isinstance(operand, float) and 0 < abs(operand) < SMALLEST:
            return self._float32(operand)
        return repr(operand)

    def _float32(self, number: float) -> str:
        """Returns the text of a float32 of any size, from its bits."""
        ones = ", ".join(["1"] * max(self.leading, 1))
        return f"tl.full([{ones}], {int(np.float32(number).view(np.int32))}, tl.int32).to(tl.float32, bitcast=True)"

    def _axes(self, *operands: Operand) -> Sizes:
        return np.broadcast_shapes(*(one.axes for one in operands if isinstance(one, Traced)))

    # Indices

    def _along(self, axis: int, size: int, rank: int) -> str:
        """Returns the text of the indices along an axis."""
        places = ", ".join(":" if dim == self.leading + axis else "None" for dim in range(self.leading + rank))
        index = f"tl.arange(0, {power_from(size)})"
        return f"{index if power_from(size) == size else f'tl.minimum({index}, {size - 1})'}[{places}]"

    def _places(self, first: int, steps: Sizes, sizes: Sizes) -> str:
        """Returns the text of an index that is linear in the axes."""
        terms = [
            f"{self._along(axis, size, len(sizes))}{f' * {step}' if step != 1 else ''}"
            for axis, (step, size) in enumerate(zip(steps, sizes, strict=True))
            if size > 1 and step
        ]
        return " + ".join([*terms, *([str(first)] if first or not terms else [])])

    def _with_axes(self, text: str, rank: int) -> str:
        """Returns the text of numbers of cells with `rank` axes of size 1."""
        return f"{text}[{', '.join([':'] * self.leading + ['None'] * rank)}]" if rank else text

    # Arrays of cells

    def view(self, x: CellField, first: int, steps: Sizes, sizes: Sizes) -> Traced:
        return self._load(x, self._places(first, steps, sizes), sizes)

    def pick(self, x: CellField, at: Any) -> Traced:
        places = self.constant(None, at, "int32")
        return self._load(x, places.name, places.axes)

    def _load(self, x: CellField, index: str, sizes: Sizes) -> Traced:
        """Loads numbers, in parts if their addresses may be unaligned."""
        size, kind = KINDS[x.number].size, KINDS[x.number].computed
        part = min(x.alignment, size)
        start, words = self._with_axes(f"({x.start})", len(sizes)), f"tl.pointer_type(tl.uint{8 * part})"
        if part == size:
            return self.add(f"tl.load({start}.to(tl.pointer_type({TYPES[x.number]})) + ({index}))", sizes, kind)
        parts = [
            f"(tl.load({start}.to({words}) + ({index}) * {size // part} + {at}).to(tl.int32) << {8 * part * at})"
            for at in range(size // part)
        ]
        found = self.add(" | ".join(parts), sizes, "int32")
        number = f"{found.name}.to(tl.int{8 * size}).to({TYPES[x.number]}, bitcast=True)"
        return self.add(number if size < 4 or x.number == "f32" else found.name, sizes, kind)

    def cast(self, x: Traced, kind: str) -> Traced:
        return self.add(f"{x.name}.to({TYPES[kind]})", x.axes, kind)

    def to_unsigned(self, x: Traced) -> Traced:
        return self.add(f"{x.name}.to(tl.int32) & 0xFFFF", x.axes, "int32")

    def weights(self, w: None, x: Operand, sizes: Sizes, order: Sizes) -> tuple[Operand, Sizes, Sizes]:
        return x, sizes, order

    def join(self, *parts: tuple[Operand, Sizes, Sizes]) -> None:
        first = 0
        for x, sizes, order in parts:
            steps = tuple(math.prod(sizes[other] for other in order[order.index(axis) + 1 :]) for axis in range(len(sizes)))
            powers = tuple(map(power_from, sizes))
            if not isinstance(x, Traced):
                x = self.add(self._with_axes(self._float32(x), len(sizes)), (1,) * len(sizes), "float32")
            repeated = [axis for axis, size in enumerate(sizes) if size != powers[axis]]
            live = [f"({self._along(axis, powers[axis], len(sizes))} < {sizes[axis]})" for axis in repeated]
            self.stored.append(Stored(x.name, self._places(first, steps, sizes), " & ".join(live), powers))
            first += math.prod(sizes)

    # Constants and tables

    def constant(self, w: None, numbers: Any, kind: str) -> Traced:
        array = np.array(numbers, "f4" if kind == "float32" else "i4")
        steps = tuple(math.prod(array.shape[axis + 1 :]) for axis in range(array.ndim))
        found = self._of_table(array.reshape(-1), self._places(0, steps, array.shape), array.shape)
        return self.operation("!=", found, 0, kind) if kind == "bool" else found

    def linear(self, w: None, first: int, steps: Sizes, sizes: Sizes) -> Traced:
        ones = ", ".join(["1"] * (self.leading + len(sizes)))
        return self.add(f"tl.full([{ones}], {first}, tl.int32) + {self._places(0, steps, sizes)}", sizes, "int32")

    def look_up(self, numbers: np.ndarray[Any, Any], at: Traced, first: int, steps: Sizes, sizes: Sizes) -> Traced:
        """Loads numbers of a table, small ones as words if four neighbours are used."""
        axes = np.broadcast_shapes(at.axes, sizes)
        is_small = numbers.dtype.kind == "i" and numbers.min() >= -128 and numbers.max() <= 127
        entries = [*steps[:-1], first, at.multiple, len(numbers)]
        if not is_small or not sizes or sizes[-1:] != (WORD,) or steps[-1:] != (1,) or any(one % WORD for one in entries):
            return self._of_table(numbers, f"{at.name} + {self._places(first, steps, sizes)}", axes)
        index = f"({at.name} >> 2) + {self._places(first // WORD, (*(step // WORD for step in steps[:-1]), 0), sizes)}"
        words = self._of_table(numbers.astype("i1").view("<i4"), index, (*axes[:-1], 1))
        return self.add(f"{words.name} << (24 - 8 * {self._along(len(axes) - 1, WORD, len(axes))}) >> 24", axes, "int32")

    def _of_table(self, numbers: np.ndarray[Any, Any], index: str, axes: Sizes) -> Traced:
        same = (name for name, kept in self.tables.items() if kept.dtype == numbers.dtype and np.array_equal(kept, numbers))
        name = next(same, f"table_{len(self.tables)}")
        self.tables[name] = numbers
        return self.add(f"tl.load({name} + ({index}))", axes, "float32" if numbers.dtype.kind == "f" else "int32")

    # Functions of the language

    def where(self, test: Traced, one: Operand, other: Operand, kind: str) -> Traced:
        chosen = f"tl.where({test.name}, {self._text(one)}, {self._text(other)})"
        return self.add(f"{chosen}.to({TYPES[kind]})", self._axes(test, one, other), kind)

    def divide(self, one: Operand, other: Operand) -> Traced:
        return self.add(f"tl.div_rn({self._text(one)}, {self._text(other)})", self._axes(one, other), "float32")

    def root(self, x: Traced) -> Traced:
        return self.add(f"tl.sqrt_rn({x.name})", x.axes, "float32")

    def abs(self, x: Traced) -> Traced:
        return self.add(f"tl.abs({x.name})", x.axes, x.kind)

    def nearest(self, x: Traced) -> Traced:
        bits = f"({x.name} + {float(MAGIC)}).to(tl.int32, bitcast=True)"
        return self.add(f"({bits} & 0x7FFFFF) - 0x400000", x.axes, "int32")

    def truncated(self, x: Traced) -> Traced:
        fits = self.add(f"({x.name} >= -2147483648.0) & ({x.name} < 2147483648.0)", x.axes, "bool")
        text = f"tl.where({fits.name}, tl.where({fits.name}, {x.name}, 0.0).to(tl.int32), -2147483648)"
        return self.add(text, x.axes, "int32")

    def float16(self, x: Traced) -> Traced:
        return self.add(f"{x.name}.to(tl.float16).to(tl.float32)", x.axes, "float32")

    def as_bits(self, x: Traced) -> Traced:
        return self.add(f"{x.name}.to(tl.int32, bitcast=True)", x.axes, "int32")

    def as_float(self, x: Traced) -> Traced:
        return self.add(f"{x.name}.to(tl.float32, bitcast=True)", x.axes, "float32")

    def as_float16(self, x: Traced) -> Traced:
        return self.add(f"{x.name}.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)", x.axes, "float32")


def power_from(size: int) -> int:
    """Returns the smallest power of two that is not below a size."""
    return 1 << (size - 1).bit_length()
