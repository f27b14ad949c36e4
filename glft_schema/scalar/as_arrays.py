"""Scalar functions as operations on arrays [blocks, ...]: straight-line code for numpy or torch.

Loops become axes, so that a number of a block is an array [blocks, *axes]. A number that depends
only on loops, called an index, is computed here as an array of all its values. An index that is
linear in the axes is printed as a view of its array, any other index as a gather. Loops that carry
variables from one iteration to the next are unrolled.

For operations that run one by one, integers are as narrow as their spans allow, and weights are
computed in place. For a compiler, integers are int32, and all weights are one expression, which
becomes one loop.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from glft_schema.scalar import intervals, numpy_arrays, tree
from glft_schema.scalar.axes import Index, as_tuples, dense, fit, parts_of, reduce_index, steps_of, with_axes
from glft_schema.scalar.language import ScalarError
from glft_schema.scalar.tree import STORED, ArrayReference, Expression, Function, Literal

KINDS = ("u8", "i8", "i16", "i32")
FEW = 256  # the most values of an argument for which all results are tabulated


@dataclass(frozen=True)
class BlockNumber:
    """A number of each block: its name in the text, its kind in arrays, and its axes."""

    text: str
    kind: str
    axes: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Constants(Expression):
    """Values that are known when the function is printed."""

    values: Index


Value: TypeAlias = BlockNumber | Index
Place: TypeAlias = tuple[ArrayReference, Index]  # an array, and the first number of a view


def print_function(function: Function, *, compiled: bool = False) -> tuple[str, dict[str, Index]]:
    """Returns a function as the text of ``def NAME(on, w, FIELD, ...)``, and the tables it names.

    `on` is a module of operations, `numpy_arrays` or `torch_arrays`, or for a compiler
    `compiled_arrays`: then `w` is not written, but returned [blocks, ...]. Arrays are [blocks,
    numbers], unsigned words as signed ones, and the lengths of all are known.

    Raises:
        ScalarError: if the function cannot run on arrays, for example if it leaves a loop.
    """
    with np.errstate(all="ignore"):
        printer = _Printer(function, compiled)
    if compiled:
        printer.lines.append(f"return on.join({', '.join(text for _, text in sorted(printer.written))})")
    head = f"def {function.name}(on, {', '.join(function.parameters)}):\n"
    return head + "".join(f"    {line}\n" for line in _drop_unused(printer.lines)), printer.tables


def decoder(function: Function, on: Any, *device: Any) -> Callable[..., Any]:
    """Returns the printed function of arrays by keyword; for torch, with tables on a device."""
    text, tables = print_function(function, compiled=on.__name__.endswith("compiled_arrays"))
    scope = {"inf": np.inf, "nan": np.nan, **{name: on.table(numbers, *device) for name, numbers in tables.items()}}
    exec(text, scope)
    return partial(scope[function.name], on)


def _drop_unused(lines: Sequence[str]) -> list[str]:
    """Drops assignments whose values are not used."""
    kept, needed = [], set[str]()
    for line in reversed(lines):
        name, _, text = line.partition(" = ")
        if not text or name in needed:
            kept.append(line)
            needed |= set(re.findall(r"\bt\d+\b", line))
    return kept[::-1]


class _Printer:
    def __init__(self, function: Function, compiled: bool) -> None:
        self._compiled = compiled
        self.written: list[tuple[int, str]] = []  # the first weights and texts, if compiled
        self.lines: list[str] = []
        self.tables: dict[str, np.ndarray[Any, Any]] = {}
        self._names: dict[str, str] = {}  # of the value of each text; equal texts are computed once
        self._axes: tuple[int, ...] = ()
        self._active: list[Index] = []  # the conditions of enclosing branches
        self._function = function
        arrays = {name: type_ for name, type_ in function.parameters.items() if isinstance(type_, tree.ArrayType)}
        self._lengths = {name: type_.length or 0 for name, type_ in arrays.items()}
        self._environment: dict[str, Value] = {}
        self._views: dict[str, Place] = {}
        self._block(function.body)

    def _refusal(self, problem: str) -> ScalarError:
        return ScalarError(f"{self._function.name}: as arrays, {problem}")

    def _name(self, text: str) -> str:
        if text not in self._names:
            self._names[text] = f"t{len(self._names)}"
            self.lines.append(f"{self._names[text]} = {text}")
        return self._names[text]

    # Statements

    def _block(self, body: Sequence[tree.Statement]) -> tuple[Value, ...]:
        """Runs statements; returns the results of a return at their end."""
        for node in body:
            match node:
                case tree.Assign():
                    self._environment[node.name] = self._value(node.value)
                case tree.Store():
                    self._store(node)
                case tree.View():
                    self._views[node.name] = self._place(node.array)
                case tree.If():
                    self._if(node)
                case tree.For():
                    self._for(node)
                case tree.Call():
                    results = self._call(node.function, node.arguments)
                    self._environment |= zip(node.targets, results, strict=True)
                case tree.Return() if node is body[-1] and body is self._function.body:
                    return tuple(self._value(value) for value in node.values)
                case _:
                    raise self._refusal(f"expected no while, break, early return or local array, found {type(node).__name__}")
        return ()

    def _call(self, function: Function, arguments: Sequence[Expression | ArrayReference]) -> tuple[Value, ...]:
        """Runs a function in place."""
        pairs = list(zip(function.parameters, arguments, strict=True))
        given = {name: self._value(argument) for name, argument in pairs if isinstance(argument, Expression)}
        views = {name: self._place(argument) for name, argument in pairs if isinstance(argument, ArrayReference)}
        outer = self._function, self._environment, self._views
        self._function, self._environment, self._views = function, given, views
        results = self._block(function.body)
        self._function, self._environment, self._views = outer
        return results

    def _if(self, node: tree.If) -> None:
        test, before, after = self._value(node.test), self._environment, []
        for holds, body in ((True, node.then), (False, node.other)):
            self._environment = dict(before)
            self._active.append(np.ones((), bool) if isinstance(test, BlockNumber) else test == holds)
            self._block(body)
            self._active.pop()
            after.append(self._environment)
        one, two = after
        both = sorted(one.keys() & two.keys())
        self._environment = {
            name: one[name] if one[name] is two[name] else self._select(test, one[name], two[name]) for name in both
        }

    def _for(self, node: tree.For) -> None:
        low, high = self._value(node.low), self._value(node.high)
        if isinstance(low, BlockNumber) or isinstance(high, BlockNumber) or low.ndim or high.ndim:
            raise self._refusal("expected loops with constant bounds")
        assigned = tree.assigned(node.body)
        if assigned & self._environment.keys():  # carried from one iteration to the next
            for number in range(int(low), int(high)):
                self._environment[node.name] = np.array(number)
                self._block(node.body)
            return
        outer, parts = self._axes, parts_of(node, int(high) - int(low))
        index = np.arange(int(low), int(high)).reshape((1,) * len(outer) + parts)
        self._axes, self._environment[node.name] = outer + parts, index
        self._block(node.body)
        self._axes = outer
        for name in assigned | {node.name}:
            self._environment.pop(name, None)

    def _store(self, node: tree.Store) -> None:
        (array, first), at = self._place(node.array), self._value(node.at)
        if isinstance(at, BlockNumber) or self._active or array.name not in self._lengths:
            raise self._refusal("expected weights to be written once each, without conditions")
        at = np.broadcast_to(fit(first, len(self._axes)) + fit(at, len(self._axes)), self._axes)
        linear = self._linear(at, self._lengths[array.name])
        if linear is None:
            raise self._refusal("expected weights at indices that are linear in the loop variables")
        if self._compiled:
            steps = [int(np.diff(at, axis=axis).flat[0]) if size > 1 else 0 for axis, size in enumerate(self._axes)]
            value = self._pad(self._value(node.value), "f32")
            order = sorted(range(len(steps)), key=lambda axis: -steps[axis])
            if [steps[axis] for axis in order if steps[axis]] != dense([self._axes[axis] for axis in order]):
                raise self._refusal("expected each statement to write contiguous weights")
            self.written.append((int(at.flat[0]), f"on.weights({value}, {self._axes}, {tuple(order)})"))
            return
        out = self._name(f"on.view({array.name}, {linear[0]})")
        self._fill(out, node.value)

    def _fill(self, out: str, node: Expression) -> None:
        """Computes float32 in place, so that no second array of all weights is allocated."""
        if isinstance(node, tree.Binary) and node.sign in "+-*":
            parts = (node.right, node.left)
            if node.sign == "-" or not isinstance(node.right, (tree.Binary, tree.Builtin)):
                parts = (node.left, node.right)
            other = self._pad(self._value(parts[1]), "f32")
            self._fill(out, parts[0])
            self.lines.append(f"{out} {node.sign}= {other}")
            return
        inner = node.operands[0] if isinstance(node, tree.Builtin) and node.name == "float32" else node
        value = self._value(inner)
        kind = value.kind if isinstance(value, BlockNumber) and value.kind != "bool" else "f32"
        self.lines.append(f"on.fill({out}, {self._pad(value, kind)})")

    # Values

    def _narrowest(self, *given: tree.Span) -> str:
        """Returns the narrowest kind of integers that holds spans; int32 if compiled."""
        low, high = min(span[0] for span in given), max(span[1] for span in given)
        fits = (kind for kind in KINDS if STORED[kind].span[0] <= low and high <= STORED[kind].span[1])
        return "i32" if self._compiled else next(fits, "i32")

    def _of_index(self, index: Index) -> str:
        if index.dtype.kind in "fb":
            return "f32" if index.dtype.kind == "f" else "bool"
        return self._narrowest((int(index.min()), int(index.max())))

    def _linear(self, index: Index, length: int) -> tuple[str, tuple[int, ...]] | None:
        """Returns the first number, steps and sizes, as text, of an index that is linear in the
        axes, and its sizes. Returns None if the index is not linear. If an enclosing condition is
        false, the index may be any in the array.
        """
        rank = len(self._axes)
        active = [fit(each, rank) for each in self._active]
        shape = np.broadcast_shapes(fit(index, rank).shape, *(each.shape for each in active))
        whole, used = np.broadcast_to(fit(index, rank), shape), np.ones(shape, bool)
        for each in active:
            used = used & each
        if (found := steps_of(whole, used)) is None:
            return None
        first, steps, places = found
        if min(places.min(), *steps, 0) < 0 or places.max() >= length:
            return None
        sizes = tuple(size if step else 1 for size, step in zip(shape, steps, strict=True))
        return f"{first}, {steps}, {sizes}", sizes

    def _text(self, value: Value, kind: str) -> str:
        """Returns the text of a value of a kind."""
        if isinstance(value, BlockNumber):
            return value.text if value.kind == kind else self._name(f"on.cast({value.text}, {kind!r})")
        if not value.ndim:
            return repr(float(value)) if kind == "f32" else repr(bool(value)) if kind == "bool" else repr(int(value))
        whole = np.broadcast_to(value, value.shape)
        if self._compiled and value.dtype.kind == "i" and (linear := steps_of(whole, np.ones(value.shape, bool))):
            return self._name(f"on.linear(w, {linear[0]}, {linear[1]}, {value.shape}, {kind!r})")
        return self._name(f"on.constant(w, {as_tuples(value)}, {kind!r})")

    def _pad(self, value: Value, kind: str) -> str:
        """Returns the text of a value with all axes, or a literal."""
        axes = value.axes if isinstance(value, BlockNumber) else value.shape
        text = self._text(value, kind)
        if self._compiled and isinstance(value, BlockNumber) and len(axes) < len(self._axes) and self._is_costly(text):
            text = self._name(f"on.once({text})")
        return with_axes(text, len(axes), len(self._axes)) if axes or isinstance(value, BlockNumber) else text

    def _is_costly(self, text: str) -> bool:
        """Tells whether a number takes more than three operations."""
        lines, counted, left = dict(line.partition(" = ")[::2] for line in self.lines), set[str](), [text]
        while left and len(counted) < 4:
            if (one := left.pop()) in lines and "on.once" not in lines[one]:
                counted.add(one)
                left += {*re.findall(r"\bt\d+\b", lines[one])} - counted
        return len(counted) > 3

    def _number(self, text: str, kind: str, *values: Value) -> BlockNumber:
        """Names a text whose axes are those of values."""
        shapes = [value.axes if isinstance(value, BlockNumber) else value.shape for value in values]
        padded = [shape + (1,) * (len(self._axes) - len(shape)) for shape in shapes]
        return BlockNumber(self._name(text), kind, np.broadcast_shapes(*padded))

    def _value(self, node: Expression) -> Value:
        match node:
            case Constants():
                return node.values
            case Literal():
                return np.array(node.value if node.kind != "float32" else np.float32(node.value))
            case tree.Variable():
                return self._environment[node.name]
            case tree.Unary():
                return self._unary(node)
            case tree.Binary():
                return self._binary(node)
            case tree.Select():
                return self._select(self._value(node.test), self._value(node.then), self._value(node.other))
            case tree.Load():
                return self._load(node)
            case tree.Builtin():
                return self._builtin(node)
            case tree.Invoke():
                return self._invoke(node)
        raise self._refusal(f"expected known lengths, found {type(node).__name__}")

    def _invoke(self, node: tree.Invoke) -> Value:
        """Returns the result of a call, from a table if the argument is one of few integers."""
        first, *others = node.arguments
        if not others and isinstance(first, Expression) and first.kind == "int32" and 0 <= first.span[0] <= first.span[1] < FEW:
            at = self._value(first)
            if isinstance(at, BlockNumber):
                whole = Constants("int32", first.span, np.arange(first.span[1] + 1))
                outer, self._axes = self._axes, (len(whole.values),)
                (table,) = self._call(node.function, [whole])
                self._axes = outer
                if isinstance(table, np.ndarray):
                    return self._from_table(node.function.name, table, at)
        (result,) = self._call(node.function, node.arguments)
        return result

    def _unary(self, node: tree.Unary) -> Value:
        value = self._value(node.operand)
        if isinstance(value, np.ndarray):
            return np.asarray(-value if node.sign == "-" else ~value)
        kind = value.kind if value.kind in ("f32", "bool") else self._narrowest(node.span, node.operand.span)
        return self._number(f"{'-' if node.sign == '-' else '~'}{self._pad(value, kind)}", kind, value)

    def _binary(self, node: tree.Binary) -> Value:
        left, right = self._value(node.left), self._value(node.right)
        sign = {"and": "&", "or": "|"}.get(node.sign, node.sign)
        if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
            rank = max(left.ndim, right.ndim)
            result = np.asarray(intervals.OPERATORS[sign](fit(left, rank), fit(right, rank)))
            return (result + 2**31) % 2**32 - 2**31 if node.kind == "int32" and node.span == tree.ANY else result
        kind = {"float32": "f32", "bool": "bool"}.get(node.left.kind) or self._narrowest(
            node.left.span, node.right.span, *([node.span] if node.kind == "int32" else [])
        )
        left, right = _reduce(left), _reduce(right)
        text = f"{self._pad(left, kind)} {sign} {self._pad(right, kind)}"
        if sign == ">>" and not self._compiled and isinstance(right, np.ndarray) and right.ndim:
            text = f"on.shift({self._pad(left, kind)}, {self._pad(right, kind)})"
        return self._number(text, "bool" if node.kind == "bool" else kind, left, right)

    def _select(self, test: Value, one: Value, two: Value) -> Value:
        if all(isinstance(value, np.ndarray) for value in (test, one, two)):
            return np.where(*(fit(value, len(self._axes)) for value in (test, one, two)))  # type: ignore[arg-type]
        test, one, two = map(_reduce, (test, one, two))
        kinds = [value.kind if isinstance(value, BlockNumber) else self._of_index(value) for value in (one, two)]
        kind = kinds[0] if kinds[0] == kinds[1] else "i32" if "i32" in kinds else "i16"
        texts = [self._pad(value, kind) for value in (one, two)]
        return self._number(f"on.where({self._pad(test, 'bool')}, {', '.join(texts)}, {kind!r})", kind, test, one, two)

    def _builtin(self, node: tree.Builtin) -> Value:
        values, operands = [self._value(operand) for operand in node.operands], node.operands
        if node.name in ("min", "max"):
            test = tree.Binary("bool", (0, 1), "<" if node.name == "min" else ">", operands[1], operands[0])
            return self._select(self._value(test), values[1], values[0])
        kind, value = "f32" if node.kind == "float32" else self._narrowest(node.span), values[0]
        if node.name in ("float32", "int32"):
            if isinstance(value, np.ndarray):
                return value.astype(np.float32 if kind == "f32" else np.int64)
            return BlockNumber(self._text(value, kind), kind, value.axes)
        given = "f32" if operands[0].kind == "float32" else "i32"
        if isinstance(value, np.ndarray):
            computed = getattr(numpy_arrays, node.name)(numpy_arrays.cast(value, given))
            return np.asarray(computed if kind == "f32" else computed.astype(np.int64))
        result = given if node.name == "abs" else "f32" if kind == "f32" else "i32"
        return self._number(f"on.{node.name}({self._pad(value, given)})", result, value)

    # Arrays

    def _place(self, array: ArrayReference) -> Place:
        """Returns the array that a reference finds, and the first number of a view."""
        view, first = self._views.get(array.name, (array, np.zeros((), np.int64)))
        offset = self._value(array.offset) if array.offset is not None else np.zeros((), np.int64)
        if isinstance(offset, BlockNumber):
            raise self._refusal("expected views that do not depend on data")
        rank = max(first.ndim, offset.ndim)
        return view, fit(first, rank) + fit(offset, rank)

    def _load(self, node: tree.Load) -> Value:
        (array, first), at = self._place(node.array), self._value(node.at)
        if array.table is not None:
            if first.any():
                raise self._refusal(f"expected no slices of {array.name}")
            return self._look_up(array, array.table, node.at, at)
        if isinstance(at, BlockNumber):
            raise self._refusal(f"expected an index of {array.name} that does not depend on data")
        at = fit(first, len(self._axes)) + fit(at, len(self._axes))
        number, length = array.type.number, self._lengths[array.name]
        if linear := self._linear(at, length):
            text, axes = f"on.view({array.name}, {linear[0]})", linear[1]
        else:
            text, axes = f"on.pick({array.name}, {as_tuples(np.clip(at, 0, length - 1))})", at.shape
        if number == "u16":
            return BlockNumber(self._name(f"on.to_unsigned({self._name(text)})"), "i32", axes)
        if number == "f16":
            return BlockNumber(self._name(f"on.cast({self._name(text)}, 'f32')"), "f32", axes)
        if self._compiled and number in KINDS[:3]:
            return BlockNumber(self._name(f"on.cast({self._name(text)}, 'i32')"), "i32", axes)
        return BlockNumber(self._name(text), "i32" if number == "u32" else number, axes)

    def _look_up(self, array: ArrayReference, table: Index, node: Expression, at: Value) -> Value:
        if isinstance(at, np.ndarray):
            return np.asarray(table[np.clip(at, 0, len(table) - 1)])
        rank = len(self._axes)
        if isinstance(node, tree.Binary) and node.sign == "+":  # the numbers from `start` on
            start, place, count = self._value(node.left), self._value(node.right), self._axes[-1] if rank else 0
            along = np.arange(count).reshape((1,) * (rank - 1) + (-1,))
            neighbours = isinstance(place, np.ndarray) and np.array_equal(place, along)
            if neighbours and isinstance(start, BlockNumber) and len(start.axes) < rank:
                axes = start.axes + (1,) * (rank - 1 - len(start.axes))
                index = with_axes(self._text(start, "i32"), len(start.axes), rank - 1)
                name, kind = self._table(array.name, table)
                return BlockNumber(self._name(f"on.neighbours({name}, {count}, {index})"), kind, (*axes, count))
        return self._from_table(array.name, table, at)

    def _from_table(self, name: str, table: Index, at: BlockNumber) -> BlockNumber:
        name, kind = self._table(name, table)
        return self._number(f"on.look_up({name}, {self._pad(at, 'i32')})", kind, at)

    def _table(self, name: str, numbers: Index) -> tuple[str, str]:
        """Returns the name of a table in the text, and its kind. Different tables with one name are
        numbered."""
        kind = self._of_index(numbers)
        numbers = numbers.astype(f"{kind[0]}{STORED[kind].size}")
        names = (f"{name}{suffix}" for suffix in ("", *map("_{}".format, range(2, 100))))
        return next(one for one in names if np.array_equal(self.tables.setdefault(one, numbers), numbers)), kind


def _reduce(value: Value) -> Value:
    return value if isinstance(value, BlockNumber) else reduce_index(value)
