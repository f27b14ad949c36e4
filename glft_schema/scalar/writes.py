"""Proves that a scalar function writes every number of its outputs, on every path.

The memory of outputs is uninitialized. Known are constants, the variables of loops with known
bounds, and what is computed from these. Both branches of any other condition are followed, and any
other loop may not run at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glft_schema.scalar import intervals, tree
from glft_schema.scalar.language import ScalarError
from glft_schema.scalar.tree import ArrayReference, ArrayType, Expression, Statement

# What holds at a statement: by name, a known number, or an output and an offset in it; and True for
# (output, index) of each number that is written.
State = dict[Any, Any]


def check_writes(function: tree.Function) -> None:
    """Checks that a function writes every number of its outputs, whose lengths are known.

    Raises:
        ScalarError: if a number might be left unwritten; the text names it.
    """
    outputs: dict[str, Any] = {name: type_ for name, type_ in function.parameters.items() if _is_output(type_)}
    written = _after_call(function, {name: (name, 0) for name in outputs})
    for name, type_ in outputs.items():
        for index in range(type_.length):
            if (name, index) not in written:
                problem = f"expected every number of {name} to be written on every path"
                raise ScalarError(f"{function.name}: {problem}, found no proof for {name}[{index}] of {type_.length}")


def _is_output(value: Any) -> bool:
    type_ = value.type if isinstance(value, ArrayReference) else value
    return isinstance(type_, ArrayType) and type_.use == "out"


def _writes(node: Any) -> bool:
    """Tells whether a statement or call writes outputs."""
    return any(map(_is_output, (getattr(node, "array", None), *getattr(node, "arguments", ()))))


def _after_call(function: tree.Function, state: State) -> State:
    returns: list[State] = []
    return _join([_after(function.body, state, [], returns), *returns]) or {}


def _after(body: Sequence[Statement], state: State, breaks: list[State], returns: list[State]) -> State | None:
    """Returns what holds after statements; None if no path leads there.

    Appends what holds where paths leave the loop or the function.
    """
    after: State | None = state
    for node in body:
        if after is None:
            break
        after = state = _with_call(getattr(node, "value", node), after)
        match node:
            case tree.Assign():
                after = {**state, node.name: _value(node.value, state)}
            case tree.Call():
                after = {**state, **dict.fromkeys(node.targets)}
            case tree.View():
                after = {**state, node.name: _place(node.array, state)}
            case tree.Store():
                output, offset = _place(node.array, state)
                after = {**state, (output, _sum(offset, _value(node.at, state))): True}
            case tree.If():
                test = _value(node.test, state)
                bodies = [node.then, node.other] if test is None else [node.then if test else node.other]
                after = _join([_after(part, state, breaks, returns) for part in bodies])
            case tree.For() | tree.While():
                after = _after_loop(node, state, returns)
            case tree.Break() | tree.Return():
                (breaks if isinstance(node, tree.Break) else returns).append(state)
                after = None
    return after


def _after_loop(node: tree.For | tree.While, state: State, returns: list[State]) -> State | None:
    name, bounds = "", list[Any]([None])
    if isinstance(node, tree.For):
        name, bounds = node.name, [_value(node.low, state), _value(node.high, state)]
    if None in bounds or not any(map(_writes, tree.walk(node.body))):
        state = {**state, **dict.fromkeys((*tree.assigned(node.body), name))}
        _after(node.body, state, [], returns)
        return state
    after: State | None = state
    breaks: list[State] = []
    for number in range(*bounds):
        after = None if after is None else _after(node.body, {**after, name: number}, breaks, returns)
    return _join([after, *breaks])


def _with_call(node: Any, state: State) -> State:
    """Returns what holds after a node that may be a call."""
    if not isinstance(node, (tree.Call, tree.Invoke)) or not _writes(node):
        return state
    given = [_place(one, state) if isinstance(one, ArrayReference) else _value(one, state) for one in node.arguments]
    inner = _written(state) | dict(zip(node.function.parameters, given, strict=True))
    return state | _written(_after_call(node.function, inner))


def _written(state: State) -> State:
    return {key: True for key in state if isinstance(key, tuple)}


def _value(node: Expression, state: State) -> Any:
    """Returns a known integer or bool, or None."""
    match node:
        case tree.Literal():
            return None if isinstance(node.value, float) else node.value
        case tree.Variable():
            return state.get(node.name)
        case tree.Binary():
            operands = [_value(node.left, state), _value(node.right, state)]
            if None not in operands:
                low, high = intervals.wrap_span(*[intervals.OPERATORS[node.sign](*operands)] * 2)
                return low if low == high else None
    return None


def _place(array: ArrayReference, state: State) -> tuple[Any, int | None]:
    """Returns the output that an array is a part of, or None, and its offset in it."""
    output, offset = state.get(array.name, (None, None))
    return output, offset if array.offset is None else _sum(offset, _value(array.offset, state))


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _join(states: Sequence[State | None]) -> State | None:
    """Returns the facts that hold in all states, or None without a state."""
    reached = [state.items() for state in states if state is not None]
    return dict(set(reached[0]).intersection(*reached)) if reached else None
