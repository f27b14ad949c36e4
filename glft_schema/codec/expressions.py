"""Expressions on fields, ``this.version == 1``, and their parse trees.

A function can only be called. An expression of construct (``this``, ``len_`` and operators) can
also be parsed (`read`), translated to other languages, and searched for constants. `Lookup`,
`Allowed` and `matches` add to construct's expressions.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Iterator, Sequence
from keyword import iskeyword
from typing import Any, NamedTuple

from construct.expr import BinExpr, ExprMixin, FuncPath, Path, UniExpr, opnames

from glft_schema.codec.context import Context, limits_of
from glft_schema.limits import DEFAULTS

__all__ = [
    "Lookup",
    "matches",
    "nbytes_",
    "reverse_",
]

SIGNS = ("+", "-", "*", "//", "%", "<<", ">>", "&", "|", "^", "==", "!=", "<", "<=", ">", ">=")
OPERANDS = ("lhs", "rhs", "operand", "_FuncPath__operand", "mapping")  # attributes of construct's classes
OPERATORS = {sign: operation for operation, sign in opnames.items() if operation not in (operator.neg, operator.pos)}
PARENT, ROOT = "_parent", "_root"  # in the text of an expression, as in Kaitai Struct


class Lookup(ExprMixin):
    """The integer at a key of a parsed mapping, or a default if there is none."""

    def __init__(self, mapping: Any, key: str, default: int) -> None:
        self.mapping = mapping
        self.key = key
        self.default = default

    def __call__(self, context: Context, *args: Any) -> int:
        value = self.mapping(context).get(self.key, self.default)
        return value if isinstance(value, int) else self.default


class Allowed(ExprMixin):
    """The value of a limit: ``len_(this.dims) <= Allowed("dims")``."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, context: Context, *args: Any) -> int:
        number: int = getattr(limits_of(context), self.name)
        return number


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


class Reference(NamedTuple):
    """The path of a field, from the expression's Struct, from `up` levels above, or from the file.

    Parameters of a container or payload, such as ``out``, have neither `of_root` nor `up`.
    """

    names: tuple[str, ...]
    up: int = 0
    of_root: bool = False

    def __str__(self) -> str:
        return ".".join((*((ROOT,) if self.of_root else ()), *(PARENT,) * self.up, *self.names))


class Constant(NamedTuple):
    """A number or bytes."""

    value: int | bytes

    def __str__(self) -> str:
        return str(self.value) if isinstance(self.value, int) else f"[{', '.join(map(str, self.value))}]"


class Operation(NamedTuple):
    """``left sign right`` with an operator of Python; ``//`` rounds down."""

    sign: str
    left: Expression
    right: Expression

    def __str__(self) -> str:
        return f"({self.left} {self.sign} {self.right})"


class Length(NamedTuple):
    """The number of elements of a list, or of characters or bytes of a text."""

    of: Expression
    in_bytes: bool = False

    def __str__(self) -> str:
        return f"{'nbytes' if self.in_bytes else 'len'}({self.of})"


class Reversed(NamedTuple):
    """A list in reverse order."""

    of: Expression

    def __str__(self) -> str:
        return f"reversed({self.of})"


class Matches(NamedTuple):
    """Whether a Python regular expression matches a whole text."""

    of: Expression
    pattern: str

    def __str__(self) -> str:
        return f"matches({self.of}, {json.dumps(self.pattern)})"


class ValueOfKey(NamedTuple):
    """The value of a key in a mapping, or a default."""

    mapping: Expression
    key: str
    default: int

    def __str__(self) -> str:
        return f"value_or({self.mapping}, {json.dumps(self.key)}, {self.default})"


Expression = Reference | Constant | Operation | Length | Reversed | Matches | ValueOfKey


def read(expression: Any) -> Expression | None:
    """Parses an expression; returns None for a function."""
    if isinstance(expression, (int, bytes)):
        return Constant(expression)
    if isinstance(expression, Path):
        return _reference(expression)
    if isinstance(expression, Allowed):
        return Constant(DEFAULTS[expression.name])
    if isinstance(expression, Lookup):
        mapping = read(expression.mapping)
        return ValueOfKey(mapping, expression.key, expression.default) if mapping else None
    if isinstance(expression, BinExpr):
        left, right = read(expression.lhs), read(expression.rhs)
        if opnames[expression.op] not in SIGNS:
            return None
        return Operation(opnames[expression.op], left, right) if left and right else None
    if isinstance(expression, UniExpr) and expression.op is operator.neg:
        operand = read(expression.operand)
        return Operation("-", Constant(0), operand) if operand else None
    if isinstance(expression, FuncPath):
        function, operand = (vars(expression)[f"_FuncPath__{part}"] for part in ("func", "operand"))
        of = read(operand)
        if of and function in (len, nbytes):
            return Length(of, function is nbytes)
        if of and function is reverse:
            return Reversed(of)
        if of and isinstance(getattr(function, "__self__", None), re.Pattern):
            return Matches(of, function.__self__.pattern)
    return None


def value_in(context: Context, expression: Expression) -> Any:
    """Returns the value of an expression. Raises KeyError for a field that `context` lacks."""
    match expression:
        case Constant():
            return expression.value
        case Reference():
            return _value_at(context, expression)
        case Operation():
            left, right = value_in(context, expression.left), value_in(context, expression.right)
            return OPERATORS[expression.sign](left, right)
        case Length():
            of = value_in(context, expression.of)
            return nbytes(of) if expression.in_bytes else len(of)
        case Reversed():
            return value_in(context, expression.of)[::-1]
        case ValueOfKey():
            return value_in(context, expression.mapping).get(expression.key, expression.default)
        case Matches():
            return re.fullmatch(expression.pattern, value_in(context, expression.of)) is not None


def _value_at(context: Context, reference: Reference) -> Any:
    value: Any = context["_root"] if reference.of_root else context
    for _ in range(reference.up):
        value = value["_"]
    if reference.names[0] not in value and not (reference.up or reference.of_root):
        value = context._params
    for name in reference.names:
        value = value[name]
    return value


def field_of(expression: Any) -> str:
    """Returns the name of the first field in an expression. Raises ValueError if there is none."""
    for reference in references_in(expression):
        if not (reference.up or reference.of_root):
            return reference.names[0]
    raise ValueError(f"expected an expression on a field of the Struct, such as this.version, found {expression!r}")


def fields_in(expression: Any) -> set[str] | None:
    """Returns the top-level names of an expression's fields; None if a function is unknown."""
    if isinstance(expression, Path):
        reference = _reference(expression)
        return {reference.names[0]} if reference else None
    if isinstance(expression, Allowed) or not callable(expression):
        return set()
    given = vars(expression) if isinstance(expression, ExprMixin) else {}
    parts = [fields_in(given[name]) for name in OPERANDS if name in given]
    return set[str]().union(*parts) if parts and None not in parts else None  # type: ignore[arg-type]


def references_in(expression: Any) -> Iterator[Reference]:
    """Yields the paths of the fields in an expression, even if it contains functions."""
    if isinstance(expression, Path):
        yield from filter(None, [_reference(expression)])
    elif isinstance(expression, ExprMixin):
        for name in OPERANDS:
            yield from references_in(vars(expression).get(name))


def equality(expression: Any) -> tuple[str, Any] | None:
    """Returns field and constant of ``this.field == constant``; None for any other expression."""
    if not isinstance(expression, BinExpr) or expression.op is not operator.eq or callable(expression.rhs):
        return None
    field = read(expression.lhs)
    return (str(field), expression.rhs) if isinstance(field, Reference) else None


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

    def rename(part: Any) -> Any:
        if isinstance(part, Reference):
            return part._replace(names=tuple(f"{name}_" if iskeyword(name) else name for name in part.names))
        return type(part)._make(map(rename, part)) if isinstance(part, Expression) else part

    return str(rename(expression))


def _reference(path: Path) -> Reference | None:
    names: list[str] = []
    while (parent := vars(path)["_Path__parent"]) is not None:
        names.insert(0, vars(path)["_Path__field"])
        path = parent
    up = next((i for i, name in enumerate(names) if name != "_"), len(names))
    names = names[up:]
    if vars(path)["_Path__name"] != "this" or not names or not all(isinstance(name, str) for name in names):
        return None
    if names[0] in ("_root", "_params"):  # the same from every level
        return Reference(tuple(names[1:]), of_root=names[0] == "_root")
    return None if any(name.startswith("_") for name in names) else Reference(tuple(names), up)


def compile_expression(expression: Any) -> Any:
    """Compiles an expression to one function; returns functions unchanged."""
    if not isinstance(expression, ExprMixin):
        return expression
    known: dict[str, Any] = {}
    return eval(f"lambda context: {_source(expression, known)}", known)  # from a declaration, never from a file


def _source(part: Any, known: dict[str, Any]) -> str:
    """Returns an expression as Python source; values without a literal go to `known`."""
    if isinstance(part, Path) and vars(part)["_Path__name"] == "this":
        if (parent := vars(part)["_Path__parent"]) is None:
            return "context"
        return f"{_source(parent, known)}[{vars(part)['_Path__field']!r}]"
    if isinstance(part, BinExpr):
        return f"({_source(part.lhs, known)} {opnames[part.op]} {_source(part.rhs, known)})"
    if isinstance(part, (bool, int, bytes, str)):
        return repr(part)
    name = f"_{len(known)}"
    if isinstance(part, FuncPath) and (operand := vars(part)["_FuncPath__operand"]) is not None:
        known[name] = vars(part)["_FuncPath__func"]
        return f"{name}({_source(operand, known)})"
    known[name] = part
    return f"{name}(context)" if callable(part) else name


def subexpressions(expression: Expression) -> Iterator[Expression]:
    """Yields an expression and its subexpressions."""
    yield expression
    for part in expression:
        if isinstance(part, Expression):
            yield from subexpressions(part)
