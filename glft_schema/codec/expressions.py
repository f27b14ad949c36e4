"""Expressions on fields, ``this.version == 1``, as trees.

Declarations write them as expressions of construct (``this``, ``len_`` and operators), to which
`Lookup`, `matches`, `nbytes_` and `reverse_` add. A construct converts them once, when it is made,
by `as_expression`. A tree is called with a context, searched for fields and constants
(`subexpressions`), and translated to other languages unless it contains a function (`read`).
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from keyword import iskeyword
from typing import Any

from construct.expr import BinExpr, ExprMixin, FuncPath, Path, UniExpr, opnames

from glft_schema.codec.context import Context, limits_of

__all__ = [
    "Lookup",
    "matches",
    "nbytes_",
    "reverse_",
]

SIGNS = ["+", "-", "*", "//", "%", "<<", ">>", "&", "|", "^", "==", "!=", "<", "<=", ">", ">="]
# Of two operands: in opnames, those of one operand with the same signs come later.
OPERATORS = {sign: function for function, sign in reversed(opnames.items()) if sign in SIGNS}
COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
PARENT, ROOT = "_parent", "_root"  # in the text of an expression, as in Kaitai Struct


def nbytes(text: str) -> int:
    """Returns the size of a text in bytes; a lone surrogate is one byte."""
    return len(text.encode("utf-8", "surrogateescape"))


nbytes_ = FuncPath(nbytes)  # as `len_`


def reverse(sizes: Sequence[int]) -> list[int]:
    """Converts dims to a shape, or back, if the two have opposite orders."""
    return list(sizes)[::-1]


reverse_ = FuncPath(reverse)  # as `len_`


def matches(pattern: str) -> FuncPath:
    """Returns a full match of `pattern` for expressions: ``matches("[a-z]+")(this.key)``."""
    return FuncPath(re.compile(pattern).fullmatch)


class Lookup(ExprMixin):
    """The integer or text at a key of a parsed mapping, or a default if there is none."""

    def __init__(self, mapping: Any, key: str, default: int | str) -> None:
        self.mapping = mapping
        self.key = key
        self.default = default

    def __call__(self, context: Context, *args: Any) -> Any:
        return as_expression(self)(context)


class _Tree:
    """A node of a tree. Called with a context, it returns its value."""

    @cached_property
    def compiled(self) -> Callable[[Any], Any]:
        """The function that computes the value."""
        return compile_expression(self)  # type: ignore[arg-type]  # of a class below

    def __call__(self, context: Any, *args: Any) -> Any:
        return self.compiled(context)


@dataclass(frozen=True)
class Reference(_Tree):
    """The path of a field, from the expression's Struct, from `up` levels above, or from the file.

    Parameters of a container or payload, such as ``out``, are `of_params`. Without names, it is the
    Struct itself.
    """

    names: tuple[str, ...] = ()
    up: int = 0
    of_root: bool = False
    of_params: bool = False

    def __str__(self) -> str:
        return ".".join((*((ROOT,) if self.of_root else ()), *(PARENT,) * self.up, *self.names))


@dataclass(frozen=True)
class Constant(_Tree):
    """A number, bytes, or a text, which only sentences contain. Other values have no text."""

    value: Any

    def __str__(self) -> str:
        return json.dumps(list(self.value) if isinstance(self.value, bytes) else self.value, default=str)


@dataclass(frozen=True)
class Allowed(Constant):
    """The value of a limit: ``len_(this.dims) <= Allowed(8, "dims")``. Its text is the default."""

    name: str


@dataclass(frozen=True)
class Operation(_Tree):
    """``left sign right`` with an operator of Python; ``//`` rounds down."""

    sign: str
    left: Expression
    right: Expression

    def __str__(self) -> str:
        return f"({self.left} {self.sign} {self.right})"


@dataclass(frozen=True)
class Length(_Tree):
    """The number of elements of a list, or of characters or bytes of a text."""

    of: Expression
    in_bytes: bool = False

    def __str__(self) -> str:
        return f"{'nbytes' if self.in_bytes else 'len'}({self.of})"


@dataclass(frozen=True)
class Reversed(_Tree):
    """A list in reverse order."""

    of: Expression

    def __str__(self) -> str:
        return f"reversed({self.of})"


@dataclass(frozen=True)
class Matches(_Tree):
    """Whether a Python regular expression matches a whole text."""

    of: Expression
    pattern: str

    def __str__(self) -> str:
        return f"matches({self.of}, {json.dumps(self.pattern)})"


@dataclass(frozen=True)
class ValueOfKey(_Tree):
    """The integer or text at a key in a mapping, or a default of the same kind."""

    mapping: Expression
    key: str
    default: int | str

    def __str__(self) -> str:
        return f"value_or({self.mapping}, {json.dumps(self.key)}, {json.dumps(self.default)})"


@dataclass(frozen=True)
class FunctionCall(_Tree):
    """The result of any other function, which has no text; often of the Struct itself."""

    function: Callable[[Any], Any]
    of: Expression = Reference()


Expression = Reference | Constant | Operation | Length | Reversed | Matches | ValueOfKey | FunctionCall


def as_expression(given: Any) -> Expression:
    """Returns the tree of an expression of construct, a function of the context, or a constant."""
    if isinstance(given, Expression):
        return given
    if isinstance(given, Path) and (reference := _reference(given)):
        return reference
    if isinstance(given, Lookup):
        return ValueOfKey(as_expression(given.mapping), given.key, given.default)
    if isinstance(given, BinExpr) and opnames[given.op] in OPERATORS:
        return Operation(opnames[given.op], as_expression(given.lhs), as_expression(given.rhs))
    if isinstance(given, UniExpr) and given.op is operator.neg:
        return Operation("-", Constant(0), as_expression(given.operand))
    if isinstance(given, FuncPath) and (operand := vars(given)["_FuncPath__operand"]) is not None:
        return _call(vars(given)["_FuncPath__func"], as_expression(operand))
    return FunctionCall(given) if callable(given) else Constant(given)


def _reference(path: Path) -> Reference | None:
    names: list[Any] = []
    while (parent := vars(path)["_Path__parent"]) is not None:
        names.insert(0, vars(path)["_Path__field"])
        path = parent
    if vars(path)["_Path__name"] != "this" or not all(isinstance(name, str) for name in names):
        return None
    up = next((i for i, name in enumerate(names) if name != "_"), len(names))
    outer, inner = names[up : up + 1], tuple(names[up + 1 :])
    if outer in (["_root"], ["_params"]):  # the same from every level
        return Reference(inner, of_root=outer == ["_root"], of_params=outer == ["_params"])
    return Reference((*outer, *inner), up)


def _call(function: Any, of: Expression) -> Expression:
    if function in (len, nbytes):
        return Length(of, function is nbytes)
    if function is reverse:
        return Reversed(of)
    pattern = getattr(function, "__self__", None)
    if isinstance(pattern, re.Pattern) and function == pattern.fullmatch and pattern.flags == re.UNICODE:
        return Matches(of, pattern.pattern)
    return FunctionCall(function, of)


def compile_expression(expression: Expression) -> Callable[[Any], Any]:
    """Returns the function of a context that computes the value of an expression."""
    match expression:
        case Reference(names, up, of_root, of_params):
            steps = *("_root",) * of_root, *("_params",) * of_params, *("_",) * up, *names
            return lambda context: reduce(operator.getitem, steps, context)
        case Allowed(_, name):
            return lambda context: getattr(limits_of(context), name)
        case Constant(value):
            return lambda context: value
        case Operation(sign, left, right):
            operate, first, second = OPERATORS[sign], compile_expression(left), compile_expression(right)
            return lambda context: operate(first(context), second(context))
        case Length(of, in_bytes):
            return _apply(nbytes if in_bytes else len, of)
        case Reversed(of):
            return _apply(reverse, of)
        case Matches(of, pattern):
            return _apply(re.compile(pattern).fullmatch, of)
        case ValueOfKey(mapping, key, default):
            return _apply(lambda entries: value if isinstance(value := entries.get(key), type(default)) else default, mapping)
        case FunctionCall(function, of):
            return function if of == Reference() else _apply(function, of)


def _apply(function: Callable[[Any], Any], expression: Expression) -> Callable[[Any], Any]:
    of = compile_expression(expression)
    return lambda context: function(of(context))


def subexpressions(expression: Expression) -> Iterator[Expression]:
    """Yields an expression and its subexpressions."""
    yield expression
    for part in vars(expression).values():
        if isinstance(part, Expression):
            yield from subexpressions(part)


def read(given: Any) -> Expression | None:
    """Returns the tree of an expression that has a text; None if it contains a function."""
    expression = as_expression(given)
    return expression if all(map(_has_text, subexpressions(expression))) else None


def _has_text(expression: Expression) -> bool:
    match expression:
        case Reference(names):
            return bool(names) and not any(name.startswith("_") for name in names)
        case Constant(value):
            return isinstance(value, (int, bytes))
        case ValueOfKey(_, _, default):
            return isinstance(default, int)
    return not isinstance(expression, FunctionCall)


def references_in(given: Any) -> list[Reference]:
    """Returns the paths of the fields in an expression, even if it contains functions."""
    return [part for part in subexpressions(as_expression(given)) if isinstance(part, Reference) and part.names]


def fields_in(expression: Expression) -> set[str] | None:
    """Returns the fields of its own Struct in an expression; None if a function gets the Struct."""
    references = [part for part in subexpressions(expression) if isinstance(part, Reference)]
    if not all(reference.names for reference in references):
        return None
    return {reference.names[0] for reference in references if reference == Reference(reference.names)}


def field_of(expression: Any) -> str:
    """Returns the name of the first field in an expression. Raises ValueError if there is none."""
    for reference in references_in(expression):
        if not (reference.up or reference.of_root):
            return reference.names[0]
    raise ValueError(f"expected an expression on a field of the Struct, such as this.version, found {expression!r}")


def is_condition(expression: Expression) -> bool:
    """Tells whether an expression is a comparison, or comparisons joined by ``&`` and ``|``."""
    if not isinstance(expression, Operation):
        return False
    return expression.sign in COMPARISONS or (
        expression.sign in "&|" and is_condition(expression.left) and is_condition(expression.right)
    )


def as_condition(expression: Expression) -> Expression:
    """Returns a condition unchanged, and of a number the condition that it is not 0."""
    return expression if is_condition(expression) else Operation("!=", expression, Constant(0))


def equality(given: Any) -> tuple[str, Any] | None:
    """Returns field and constant of ``this.field == constant``; None for anything else."""
    match as_expression(given):
        case Operation("==", Reference() as field, Constant(value)) if _has_text(field):
            return str(field), value
    return None


def field_path(expression: Any, path: str) -> str:
    """Returns the path of the field that an expression at `path` names; `path` if it names none."""
    reference = read(expression)
    if not isinstance(reference, Reference) or reference.of_root or reference.up:
        return path
    return " -> ".join((*path.split(" -> ")[:-1], *reference.names))


def outermost(expression: Expression) -> str:
    """Returns the text of an expression without the outermost parentheses."""
    return str(expression)[1:-1] if isinstance(expression, Operation) else str(expression)


def in_python(expression: Expression) -> str:
    """Returns the text of an expression in Python's grammar: ``in_`` for the parameter ``in``."""

    def rename(part: Expression) -> Any:
        if isinstance(part, Reference):
            return replace(part, names=tuple(f"{name}_" if iskeyword(name) else name for name in part.names))
        parts = {name: rename(value) for name, value in vars(part).items() if isinstance(value, Expression)}
        return replace(part, **parts)

    return str(rename(expression))
