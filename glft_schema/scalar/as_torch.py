"""Scalar functions as operations of torch on arrays [blocks, ...]: straight-line code.

Loops become axes, so that a number of a block is an array [blocks, *axes]. A number that depends
only on loops, called an index, is computed here as an array of all its values. An index that is
linear in the axes is printed as a view of its array, any other index as a gather. Loops that carry
variables from one iteration to the next are unrolled. All weights are one expression.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from glft_schema.lazy import torch
from glft_schema.scalar import intervals, torch_operations, tree
from glft_schema.scalar.axes import Index, as_tuples, dense, fit, parts_of, reduce_index, steps_of, with_axes
from glft_schema.scalar.kinds import ANY, COMPUTED, KINDS
from glft_schema.scalar.language import ScalarError, on_arrays
from glft_schema.scalar.tree import ArrayReference, Expression, Function, Literal


@dataclass(frozen=True)
class BlockNumber:
    """A number of each block: its name in the text, its kind, and its axes."""

    text: str
    kind: str
    axes: tuple[int, ...]


Value: TypeAlias = BlockNumber | Index
Place: TypeAlias = tuple[ArrayReference, Index]  # an array, and the first number of a view


class Printed(NamedTuple):
    """A function as the text of ``def NAME(on, w, FIELD, ...)``.

    Attributes:
        text: `on` is `torch_operations`. Fields are [blocks, numbers], unsigned words as signed
            ones. The result is the weights [blocks, *axes]; `w` gives the device and the number of
            blocks.
        tables: the tables that the text names.
        axes: of the weights, each of which is a loop of the compiled function.
    """

    text: str
    tables: dict[str, Index]
    axes: tuple[int, ...]


def print_function(function: Function) -> Printed:
    """Prints a function of arrays whose lengths are known.

    Raises:
        ScalarError: if the function cannot run on arrays, for example if it leaves a loop.
    """
    with np.errstate(all="ignore"):
        printer = _Printer(function)
    _, texts, sizes = zip(*sorted(printer.written), strict=True)
    lines = [*printer.lines, f"return on.join({', '.join(texts)})"]
    head = f"def {function.name}(on, {', '.join(function.parameters)}):\n"
    axes = sizes[0] if len(sizes) == 1 else (sum(map(math.prod, sizes)),)
    return Printed(head + "".join(f"    {line}\n" for line in lines), printer.tables, axes)


def decoder(function: Function, device: torch.device | str = "cpu") -> tuple[Callable[..., Any], tuple[int, ...]]:
    """Returns the printed function of tensors by keyword, with its tables on a device, and the axes
    of its result."""
    text, tables, axes = print_function(function)
    scope: dict[str, Any] = {
        "inf": np.inf,
        "nan": np.nan,
        **{name: torch.from_numpy(table).to(device) for name, table in tables.items()},
    }
    exec(text, scope)
    return partial(scope[function.name], torch_operations), axes


class _Printer:
    def __init__(self, function: Function) -> None:
        self.written: list[tuple[int, str, tuple[int, ...]]] = []  # of each store: the first weight, the text, the axes
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
        rank = len(self._axes)
        at = np.broadcast_to(fit(first, rank) + fit(at, rank), self._axes)
        found = steps_of(at, np.ones(at.shape, bool))
        steps = found[1] if found else ()
        order = tuple(sorted(range(len(steps)), key=lambda axis: -steps[axis]))
        sizes = tuple(self._axes[axis] for axis in order)
        if found is None or [steps[axis] for axis in order if steps[axis]] != dense(sizes):
            raise self._refusal("expected each statement to write contiguous weights")
        value = self._pad(self._value(node.value), "float32")
        self.written.append((found[0], f"on.weights(w, {value}, {self._axes}, {order})", sizes))

    # Values

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
            return repr({"float32": float, "int32": int, "bool": bool}[kind](value))
        if value.dtype.kind == "i" and (linear := steps_of(value, np.ones(value.shape, bool))):
            return self._name(f"on.linear(w, {linear[0]}, {linear[1]}, {value.shape})")
        return self._name(f"on.constant(w, {as_tuples(value)}, {kind!r})")

    def _pad(self, value: Value, kind: str) -> str:
        """Returns the text of a value with all axes, or a literal."""
        axes = value.axes if isinstance(value, BlockNumber) else value.shape
        text = self._text(value, kind)
        return with_axes(text, len(axes), len(self._axes)) if axes or isinstance(value, BlockNumber) else text

    def _number(self, text: str, kind: str, *values: Value) -> BlockNumber:
        """Names a text whose axes are those of values."""
        shapes = [value.axes if isinstance(value, BlockNumber) else value.shape for value in values]
        padded = [shape + (1,) * (len(self._axes) - len(shape)) for shape in shapes]
        return BlockNumber(self._name(text), kind, np.broadcast_shapes(*padded))

    def _value(self, node: Expression) -> Value:
        match node:
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
                (result,) = self._call(node.function, node.arguments)
                return result
        raise self._refusal(f"expected known lengths, found {type(node).__name__}")

    def _unary(self, node: tree.Unary) -> Value:
        value = self._value(node.operand)
        if isinstance(value, np.ndarray):
            return np.asarray(-value if node.sign == "-" else ~value)
        return self._number(f"{'-' if node.sign == '-' else '~'}{self._pad(value, value.kind)}", value.kind, value)

    def _binary(self, node: tree.Binary) -> Value:
        left, right = self._value(node.left), self._value(node.right)
        sign = {"and": "&", "or": "|"}.get(node.sign, node.sign)
        if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
            rank = max(left.ndim, right.ndim)
            result = np.asarray(intervals.OPERATORS[sign](fit(left, rank), fit(right, rank)))
            return (result + 2**31) % 2**32 - 2**31 if node.kind == "int32" and node.span == ANY else result
        left, right, kind = _reduce(left), _reduce(right), node.left.kind
        one, other = self._pad(left, kind), self._pad(right, kind)
        text = f"on.divide({one}, {other})" if sign == "/" else f"{one} {sign} {other}"
        return self._number(text, node.kind, left, right)

    def _select(self, test: Value, one: Value, two: Value) -> Value:
        if all(isinstance(value, np.ndarray) for value in (test, one, two)):
            return np.where(*(fit(value, len(self._axes)) for value in (test, one, two)))  # type: ignore[arg-type]
        test, one, two = map(_reduce, (test, one, two))
        if isinstance(test, np.ndarray) and not test.ndim:
            return one if test else two
        kind = one.kind if isinstance(one, BlockNumber) else _kind_of(one)
        texts = [self._pad(value, kind) for value in (one, two)]
        return self._number(f"on.where({self._pad(test, 'bool')}, {', '.join(texts)}, {kind!r})", kind, test, one, two)

    def _builtin(self, node: tree.Builtin) -> Value:
        values, operands = [self._value(operand) for operand in node.operands], node.operands
        if node.name in ("min", "max"):
            test = tree.Binary("bool", (0, 1), "<" if node.name == "min" else ">", operands[1], operands[0])
            return self._select(self._value(test), values[1], values[0])
        kind, value = node.kind, values[0]
        if isinstance(value, np.ndarray):
            if node.name not in ("float32", "int32"):
                value = on_arrays(node.name)(value.astype(operands[0].kind))
            return np.asarray(value.astype(np.float32 if kind == "float32" else np.int64))
        if node.name in ("float32", "int32"):
            return BlockNumber(self._text(value, kind), kind, value.axes)
        return self._number(f"on.{node.name}({self._pad(value, operands[0].kind)})", kind, value)

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
        (array, first), rank = self._place(node.array), len(self._axes)
        if array.table is not None:
            if first.any():
                raise self._refusal(f"expected no slices of {array.name}")
            at, offset, added = self._entry(node.at)
            if not isinstance(at, BlockNumber):
                return np.asarray(array.table[np.clip(at, 0, len(array.table) - 1)])
            name, kind = self._table(array.name, array.table)
            return self._number(f"on.look_up({name}, {self._pad(at, 'int32')}, {added})", kind, at, offset)
        at = self._value(node.at)
        if isinstance(at, BlockNumber):
            raise self._refusal(f"expected an index of {array.name} that does not depend on data")
        at = fit(first, rank) + fit(at, rank)
        number, length = array.type.number, self._lengths[array.name]
        if linear := self._linear(at, length):
            text, axes = f"on.view({array.name}, {linear[0]})", linear[1]
        else:
            text, axes = f"on.pick({array.name}, {as_tuples(np.clip(at, 0, length - 1))})", at.shape
        if number == "u16":
            text = f"on.to_unsigned({self._name(text)})"
        elif KINDS[number].size < 4:
            text = f"on.cast({self._name(text)}, {node.kind!r})"
        return BlockNumber(self._name(text), node.kind, axes)

    def _entry(self, node: Expression) -> tuple[Value, Index, str]:
        """Returns the index of a table as a number and a linear index [*axes] that is added to it,
        also as text, as of the entry of a grid and the place in it."""
        if isinstance(node, tree.Binary) and node.sign == "+":
            left, right = self._value(node.left), self._value(node.right)
            number, index = (right, left) if isinstance(left, np.ndarray) else (left, right)
            if isinstance(number, BlockNumber) and isinstance(index, np.ndarray):
                index = fit(index, len(self._axes))
                if linear := steps_of(index, np.ones(index.shape, bool)):
                    return number, index, f"{linear[0]}, {linear[1]}, {index.shape}"
        sizes = (1,) * len(self._axes)
        return self._value(node), np.zeros(sizes, np.int64), f"0, {(0,) * len(sizes)}, {sizes}"

    def _table(self, name: str, numbers: Index) -> tuple[str, str]:
        """Returns the name of a table in the text, and its kind. Different tables with one name are
        numbered."""
        kind = _kind_of(numbers)
        numbers = numbers.astype(COMPUTED[kind].numpy)
        names = (f"{name}{suffix}" for suffix in ("", *map("_{}".format, range(2, 100))))
        return next(one for one in names if np.array_equal(self.tables.setdefault(one, numbers), numbers)), kind


def _kind_of(index: Index) -> str:
    return {"f": "float32", "b": "bool"}.get(index.dtype.kind, "int32")


def _reduce(value: Value) -> Value:
    return value if isinstance(value, BlockNumber) else reduce_index(value)
