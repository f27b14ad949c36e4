"""The typed tree of a scalar function, which `checking` makes and printers read.

Every expression has a kind, and the span of its values if it is an int32. A called function is a
tree, too, one for each set of kinds and spans of its arguments. Keyword constants are folded, and
an element of a view names the array and the offset.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from glft_schema.scalar.kinds import KINDS, Span


@dataclass(frozen=True)
class ArrayType:
    """The type of an array.

    Attributes:
        number: of its elements, a key of KINDS.
        length: None if the length is an argument, as for rows.
        use: "in" to read, "out" to write, or "both".
    """

    number: str
    length: int | None
    use: str = "in"

    @property
    def kind(self) -> str:
        """The kind of its elements in expressions."""
        return KINDS[self.number].computed


class Node:
    """A part of a tree."""


@dataclass(frozen=True, eq=False)
class Expression(Node):
    kind: str  # "float32", "int32" or "bool"; "literal" if it depends on the other operand
    span: Span


@dataclass(frozen=True, eq=False)
class Literal(Expression):
    value: float | bool


@dataclass(frozen=True, eq=False)
class Variable(Expression):
    name: str


@dataclass(frozen=True, eq=False)
class ArrayLength(Expression):
    """The length of an array, if it is an argument."""

    name: str


@dataclass(frozen=True, eq=False)
class Unary(Expression):
    sign: str  # - or not
    operand: Expression


@dataclass(frozen=True, eq=False)
class Binary(Expression):
    """An operation or comparison of two operands of one kind, as in Python."""

    sign: str
    left: Expression
    right: Expression


@dataclass(frozen=True, eq=False)
class Select(Expression):
    """``then if test else other``."""

    test: Expression
    then: Expression
    other: Expression


@dataclass(frozen=True, eq=False)
class ArrayReference(Node):
    """An array: a parameter, a variable or a constant `table`; from `offset` on if it is a view."""

    type: ArrayType
    name: str
    offset: Expression | None = None
    table: np.ndarray[Any, Any] | None = None


@dataclass(frozen=True, eq=False)
class Load(Expression):
    array: ArrayReference
    at: Expression


@dataclass(frozen=True, eq=False)
class Builtin(Expression):
    """A function of the language, such as nearest, or min of two operands."""

    name: str
    operands: tuple[Expression, ...]


@dataclass(frozen=True, eq=False)
class Invoke(Expression):
    """A call of a scalar function with one result."""

    function: Function
    arguments: tuple[Expression | ArrayReference, ...]


@dataclass(frozen=True, eq=False)
class Statement(Node):
    pass


@dataclass(frozen=True, eq=False)
class Assign(Statement):
    name: str
    value: Expression


@dataclass(frozen=True, eq=False)
class Store(Statement):
    array: ArrayReference
    at: Expression
    value: Expression


@dataclass(frozen=True, eq=False)
class Declare(Statement):
    """A local array of zeros."""

    name: str
    type: ArrayType


@dataclass(frozen=True, eq=False)
class View(Statement):
    """A name for a view, whose offset is computed here."""

    name: str
    array: ArrayReference


@dataclass(frozen=True, eq=False)
class If(Statement):
    test: Expression
    then: list[Statement]
    other: list[Statement]


@dataclass(frozen=True, eq=False)
class For(Statement):
    name: str
    low: Expression
    high: Expression
    body: list[Statement]


@dataclass(frozen=True, eq=False)
class While(Statement):
    test: Expression
    body: list[Statement]


class Break(Statement):
    pass


@dataclass(frozen=True, eq=False)
class Return(Statement):
    values: tuple[Expression, ...]


@dataclass(frozen=True, eq=False)
class Call(Statement):
    """A call; its results are assigned to variables."""

    function: Function
    arguments: tuple[Expression | ArrayReference, ...]
    targets: tuple[str, ...]


@dataclass(eq=False)
class Function:
    """A checked function.

    Attributes:
        name: as in the source.
        sentence: its docstring.
        parameters: by name, the type of an array, or a variable.
        body: its statements.
        results: the kind and span of each.
        variables: the kind of each variable; loop variables are int32 and not listed.
        alone: whether it is computed block by block, see `language.alone`.
    """

    name: str
    sentence: str
    parameters: dict[str, ArrayType | Variable]
    body: list[Statement] = field(default_factory=list)
    results: list[Expression] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    alone: bool = False


def walk(node: Any) -> Iterator[Any]:
    """Yields one node or several, with all nodes below, but without called functions."""
    if isinstance(node, (list, tuple)):
        for part in node:
            yield from walk(part)
    elif isinstance(node, Node):
        yield node
        for part in vars(node).values():
            yield from walk(part)


def assigned(body: list[Statement]) -> set[str]:
    """Returns the variables that statements assign, without those of loops."""
    names = {part.name for part in walk(body) if isinstance(part, Assign)}
    return names.union(*(part.targets for part in walk(body) if isinstance(part, Call)))
