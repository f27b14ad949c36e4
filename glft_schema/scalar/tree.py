"""The typed tree of a scalar function, which `checking` makes and printers read.

Every expression has a kind and, if it is an int32, the span of its values. Helper functions are
trees of their own, one for each set of kinds and spans they are called with. Loops with constant
bounds, constants by keyword and slices are resolved as far as printers need it: an array is named
with the offset of a view.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias

import numpy as np

Span: TypeAlias = tuple[int, int]  # the least and the greatest value
ANY: Span = (-(2**31), 2**31 - 1)

# The spans of stored numbers as they are read. Words of 32 bits are read as int32.
STORED: dict[str, Span] = {
    **{"i8": (-128, 127), "u8": (0, 255), "i16": (-(2**15), 2**15 - 1), "u16": (0, 2**16 - 1), "i32": ANY, "u32": ANY},
    **dict.fromkeys(("f16", "bf16", "f32"), ANY),
}
FLOATS = ("f16", "bf16", "f32")


@dataclass(frozen=True)
class Array:
    """The type of an array.

    Attributes:
        number: of its elements, a key of STORED.
        length: None if it is an argument, such as the length of a row.
        use: "in" for fields to read, "out" for arrays to write, "local" for both.
    """

    number: str
    length: int | None
    use: str = "in"

    @property
    def kind(self) -> str:
        """The kind of its elements in expressions."""
        return "float32" if self.number in FLOATS else "int32"


@dataclass(frozen=True, eq=False)
class Expression:
    kind: str  # "float32", "int32" or "bool"; "literal" for numbers that take the kind of the other operand
    span: Span


@dataclass(frozen=True, eq=False)
class Constant(Expression):
    value: float | bool


@dataclass(frozen=True, eq=False)
class Variable(Expression):
    name: str


@dataclass(frozen=True, eq=False)
class Unary(Expression):
    sign: str  # - or not
    operand: Expression


@dataclass(frozen=True, eq=False)
class Binary(Expression):
    """An operation of two operands of one kind: ``+ - * / // % & | ^ << >>``, a comparison,
    ``and`` or ``or``."""

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
class Reference:
    """An array, or a view of one that begins at an offset. `table` has the numbers of a constant
    one."""

    type: Array
    name: str
    offset: Expression | None = None
    table: np.ndarray[Any, Any] | None = None


@dataclass(frozen=True, eq=False)
class Load(Expression):
    array: Reference
    at: Expression


@dataclass(frozen=True, eq=False)
class Length(Expression):
    """The length of an array, if it is an argument."""

    name: str


@dataclass(frozen=True, eq=False)
class Builtin(Expression):
    """A function of the language: ``float32 int32 float16 nearest root abs min max ...``."""

    name: str
    operands: tuple[Expression, ...]


@dataclass(frozen=True, eq=False)
class Invoke(Expression):
    """A call of a scalar function with one result."""

    function: Function
    arguments: tuple[Expression | Reference, ...]


@dataclass(frozen=True, eq=False)
class Assign:
    name: str
    value: Expression


@dataclass(frozen=True, eq=False)
class Store:
    array: Reference
    at: Expression
    value: Expression


@dataclass(frozen=True, eq=False)
class Declare:
    """A local array of zeros."""

    name: str
    type: Array


@dataclass(frozen=True, eq=False)
class View:
    """A name for a view: its offset is computed here."""

    name: str
    array: Reference


@dataclass(frozen=True, eq=False)
class If:
    test: Expression
    then: list[Statement]
    other: list[Statement]


@dataclass(frozen=True, eq=False)
class For:
    name: str
    low: Expression
    high: Expression
    body: list[Statement]


@dataclass(frozen=True, eq=False)
class While:
    test: Expression
    body: list[Statement]


@dataclass(frozen=True, eq=False)
class Break:
    pass


@dataclass(frozen=True, eq=False)
class Return:
    values: tuple[Expression, ...]


@dataclass(frozen=True, eq=False)
class Call:
    """A call as a statement; its results are assigned to variables."""

    function: Function
    arguments: tuple[Expression | Reference, ...]
    targets: tuple[str, ...]


Statement: TypeAlias = Assign | Store | Declare | View | If | For | While | Break | Return | Call


@dataclass(eq=False)
class Function:
    """A checked function.

    Attributes:
        name: as in the source.
        sentence: its docstring.
        parameters: the type of each, in order.
        body: its statements.
        results: the kind and span of each result.
        variables: the kind of each variable, loops' variables not included.
    """

    name: str
    sentence: str
    parameters: dict[str, Array | Variable]
    body: list[Statement] = field(default_factory=list)
    results: list[Expression] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)


def walk(node: Any) -> Iterator[Any]:
    """Yields a node and all nodes below it, without the bodies of functions that it calls."""
    if isinstance(node, (list, tuple)):
        for part in node:
            yield from walk(part)
    elif isinstance(node, (Expression, Reference, Assign, Store, Declare, View, If, For, While, Break, Return, Call)):
        yield node
        for part in fields(node):
            yield from walk(getattr(node, part.name))
