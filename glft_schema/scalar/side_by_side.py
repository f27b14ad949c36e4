"""Runs scalar functions for many blocks at once by numpy, without a compiler.

A number is an array [blocks], and an array is [numbers, blocks]. Conditions are masks of blocks, as
in `as_lanes`. The bits are those of the other forms.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from glft_schema.scalar import intervals, tree
from glft_schema.scalar.kinds import COMPUTED
from glft_schema.scalar.language import ScalarError, on_arrays
from glft_schema.scalar.tree import ArrayReference, Expression, Function, Literal, Statement, Variable, walk

Array: TypeAlias = np.ndarray[Any, Any]
OPERATORS = {**intervals.OPERATORS, "and": operator.and_, "or": operator.or_}
DTYPES = {name: np.dtype(kind.numpy) for name, kind in COMPUTED.items()}


def run_side_by_side(function: Function, arrays: dict[str, Array], blocks: int) -> None:
    """Runs a function of arrays for all blocks.

    Args:
        function: the tree.
        arrays: float32 or int32 [numbers, blocks], by name; arrays that the function writes are
            changed in place.
        blocks: the number of blocks.

    Raises:
        ScalarError: if the function needs the compiled library, because a part of it is marked
            `alone`.
    """
    if slow := next((called for called in _callees(function) if called.alone), None):
        raise ScalarError(f"{function.name}: {slow.name} is marked alone, so it cannot run on arrays")
    with np.errstate(all="ignore"):
        _Call(function, [arrays[name] for name in function.parameters], np.ones(blocks, np.bool_))


def _callees(function: Function) -> list[Function]:
    """Returns a function and all that it calls."""
    calls = (part.function for part in walk(function.body) if isinstance(part, (tree.Call, tree.Invoke)))
    return [function, *(inner for called in calls for inner in _callees(called))]


class _Call:
    """One call. Runs the body and keeps the results."""

    def __init__(self, function: Function, arguments: Sequence[Any], mask: Array) -> None:
        self._values: dict[str, Any] = dict(zip(function.parameters, arguments, strict=True))
        self._masks = [mask.copy()]  # of the enclosing statements, the innermost last
        self._loops: list[int] = []  # the number of masks outside of each loop
        self.results: list[Array] = [np.zeros(len(mask), DTYPES[result.kind]) for result in function.results]
        self._block(function.body)

    # Statements

    def _block(self, body: Sequence[Statement]) -> None:
        for node in body:
            if not self._masks[-1].any():
                return
            self._statement(node)

    def _statement(self, node: Statement) -> None:
        match node:
            case tree.Assign():
                self._set(node.name, self._value(node.value), node.value.kind)
            case tree.Store():
                array, at, value = self._array(node.array), self._value(node.at), self._value(node.value)
                if isinstance(at, np.ndarray):
                    (lanes,) = self._masks[-1].nonzero()
                    array[at[lanes], lanes] = value[lanes] if isinstance(value, np.ndarray) else value
                else:
                    np.copyto(array[at], value, where=self._masks[-1])
            case tree.Declare():
                assert node.type.length
                self._values[node.name] = np.zeros((node.type.length, len(self._masks[0])), DTYPES[node.type.kind])
            case tree.View():
                self._values[node.name] = self._array(node.array)
            case tree.If():
                self._if(node)
            case tree.For():
                self._for(node)
            case tree.While():
                self._enter()
                while self._narrow(self._value(node.test)):
                    self._block(node.body)
                self._exit()
            case tree.Return():
                for kept, value in zip(self.results, node.values, strict=True):
                    np.copyto(kept, self._value(value), where=self._masks[-1])
                self._leave(0)
            case tree.Break():
                self._leave(self._loops[-1])
            case tree.Call():
                results = self._call(node.function, node.arguments)
                for target, found, result in zip(node.targets, results, node.function.results, strict=True):
                    self._set(target, found, result.kind)

    def _set(self, name: str, value: Any, kind: str) -> None:
        """Assigns to the blocks of the mask."""
        old = self._values.get(name)
        if not isinstance(old, np.ndarray):
            if not isinstance(value, np.ndarray) and self._masks[-1].all():
                self._values[name] = value
                return
            old = self._values[name] = np.full(len(self._masks[0]), 0 if old is None else old, DTYPES[kind])
        np.copyto(old, value, where=self._masks[-1])

    def _if(self, node: tree.If) -> None:
        test = self._value(node.test)
        if not isinstance(test, np.ndarray):
            self._block(node.then if test else node.other)
            return
        before = self._masks[-1].copy()
        for mask, body in ((before & test, node.then), (before & ~test, node.other)):
            self._masks.append(mask)
            self._block(body)
            self._masks.pop()

    def _for(self, node: tree.For) -> None:
        low, high = self._value(node.low), self._value(node.high)
        self._enter()
        while self._narrow(low < high):
            self._values[node.name] = low
            self._block(node.body)
            low = low + 1
        self._values.pop(node.name, None)
        self._exit()

    def _enter(self) -> None:
        self._loops.append(len(self._masks))
        self._masks.append(self._masks[-1].copy())

    def _exit(self) -> None:
        self._masks.pop()
        self._loops.pop()

    def _narrow(self, test: Any) -> bool:
        """Removes the blocks that fail a test from the mask. Tells whether any are left."""
        self._masks[-1] &= test
        return bool(self._masks[-1].any())

    def _leave(self, outer: int) -> None:
        """Removes the blocks of the innermost mask from all masks except the first `outer`."""
        gone = self._masks[-1].copy()
        for mask in self._masks[outer:]:
            mask &= ~gone

    def _call(self, function: Function, arguments: Sequence[Expression | ArrayReference]) -> list[Array]:
        given = [self._array(one) if isinstance(one, ArrayReference) else self._value(one) for one in arguments]
        given = [one.copy() if isinstance(one, np.ndarray) and one.ndim == 1 else one for one in given]
        return _Call(function, given, self._masks[-1]).results

    # Expressions

    def _value(self, node: Expression) -> Any:
        match node:
            case Literal():
                return np.float32(node.value) if node.kind == "float32" else node.value
            case Variable():
                return self._values[node.name]
            case tree.ArrayLength():
                return len(self._values[node.name])
            case tree.Unary():
                value = self._value(node.operand)
                return -value if node.sign == "-" else np.logical_not(value) if isinstance(value, np.ndarray) else not value
            case tree.Binary():
                right = self._value(node.right)
                right = right & 31 if node.sign in ("<<", ">>") else right
                return OPERATORS[node.sign](self._value(node.left), right)
            case tree.Select():
                test = self._value(node.test)
                if not isinstance(test, np.ndarray):
                    return self._value(node.then if test else node.other)
                return _where(test, self._value(node.then), self._value(node.other), node.kind)
            case tree.Load():
                return self._load(node)
            case tree.Invoke():
                return self._call(node.function, node.arguments)[0]
        assert isinstance(node, tree.Builtin)
        return self._builtin(node)

    def _builtin(self, node: tree.Builtin) -> Any:
        values = [self._value(operand) for operand in node.operands]
        match node.name:
            case "min" | "max":
                replaces = values[1] < values[0] if node.name == "min" else values[1] > values[0]
                if not isinstance(replaces, np.ndarray):
                    return values[1] if replaces else values[0]
                return _where(replaces, values[1], values[0], node.kind)
            case "float32" | "int32":
                return np.asarray(values[0]).astype(DTYPES[node.name])[()]
        return on_arrays(node.name)(np.asarray(values[0], DTYPES[node.operands[0].kind]))

    def _array(self, array: ArrayReference) -> Array:
        """Returns the numbers of an array from its offset on."""
        array_of_blocks: Array = self._values[array.name] if array.table is None else array.table
        if array.offset is None:
            return array_of_blocks
        offset = self._value(array.offset)
        if isinstance(offset, np.ndarray):
            raise ScalarError(f"{array.name}: expected a view that does not depend on data")
        return array_of_blocks[offset : offset + array.type.length] if array.type.length else array_of_blocks[offset:]

    def _load(self, node: tree.Load) -> Any:
        at = self._value(node.at)
        if node.array.table is not None:
            if node.array.offset is not None:
                at = at + self._value(node.array.offset)
            return node.array.table.take(at, mode="clip").astype(DTYPES[node.kind])
        array = self._array(node.array)
        return array[np.clip(at, 0, len(array) - 1), np.arange(array.shape[1])] if isinstance(at, np.ndarray) else array[at]


def _where(test: Array, one: Any, other: Any, kind: str) -> Array:
    chosen: Array = np.where(test, one, other)
    return chosen.astype(DTYPES[kind], copy=False)
