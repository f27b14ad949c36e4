"""Expressions of declarations in Kaitai Struct."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import glft_schema.describe.nodes as s
from glft_schema.codec.expressions import (
    COMPARISONS,
    Constant,
    Expression,
    Length,
    Operation,
    Reference,
    Reversed,
    ValueOfKey,
    as_condition,
    is_condition,
    subexpressions,
)
from glft_schema.describe.identifiers import SIGNS as SIGN_NAMES
from glft_schema.describe.kaitai.names import KaitaiNames
from glft_schema.describe.sentences import HALVES
from glft_schema.errors import UnsupportedError

LOGIC = {"&": "and", "|": "or"}  # of conditions; on integers the signs are Python's
NUMBER, BYTES, CONDITION = "a number", "bytes", "a condition"  # the kinds of expressions
SIGNS = {NUMBER: SIGN_NAMES, BYTES: COMPARISONS, CONDITION: ("==", "!=", *LOGIC)}  # by the kind of both operands


@dataclass(frozen=True)
class Location:
    """The location of an expression: the struct that it is relative to."""

    struct: str
    depth: int = 0  # generated types around the expression that are not in the declaration
    params: Mapping[str, str] = field(default_factory=dict, hash=False)  # the names of the parameters `out` and `in`

    def inside(self) -> Location:
        return Location(self.struct, self.depth + 1, self.params)


@dataclass(frozen=True)
class KeySearch:
    """A search for a key in the rows of a table, carried from row to row."""

    struct: str  # the struct that contains the table
    table: s.Field
    lookup: ValueOfKey  # the key and the default
    before: str  # the parameter of a row: the value found in the rows before the row
    after: str  # the instance of a row: the value found up to and including the row


class ExpressionWriter:
    """Writes expressions for one schema."""

    def __init__(self, schema: s.Schema, root: str) -> None:
        self.schema = schema
        self.root = root
        self.names = {name: KaitaiNames() for name in schema.structs}  # the identifiers in use, by struct
        self.ids = {  # the identifiers of fields, by struct and field
            name: {part.name: self.names[name].new(part.name) for part in struct.fields if part.name}
            for name, struct in schema.structs.items()
        }
        self.searches: dict[tuple[str, str, str, int | str], KeySearch] = {}  # by struct, table, key and default
        self._parents = {
            ref: name for name, struct in schema.structs.items() for part in struct.fields for ref in s.refs(part.node)
        }

    def text(self, expression: Expression, at: Location) -> str:
        """Returns an expression. Raises UnsupportedError if Kaitai Struct has none."""
        text = self.term(expression, at)
        return text[1:-1] if isinstance(expression, (Operation, ValueOfKey)) else text

    def term(self, expression: Expression, at: Location) -> str:
        """Returns an expression as an operand. Raises UnsupportedError if there is none."""
        if isinstance(expression, Constant):
            return str(expression)
        if isinstance(expression, Operation):
            left, right = self.kind(expression.left, at), self.kind(expression.right, at)
            if left != right or expression.sign not in SIGNS[left]:
                raise UnsupportedError(f"Kaitai Struct has no {expression.sign} for {left} and {right}")
            return f"({self.term(expression.left, at)} {_sign(expression)} {self.term(expression.right, at)})"
        if isinstance(expression, Length):
            return self.length(expression.of, at, expression.in_bytes)
        if isinstance(expression, ValueOfKey):
            return self._value_of_key(expression, at)
        if not isinstance(expression, Reference):
            raise UnsupportedError(f"Kaitai Struct cannot express {expression}")
        if (param := self.param(expression, at)) is not None:
            return param
        path, part, _ = self.find(expression, at)
        return f"{path}.bytes" if isinstance(part.node, s.TextNode) else path

    def kind(self, expression: Expression, at: Location) -> str:
        """Returns the kind of an expression. Raises UnsupportedError if Kaitai Struct and this
        package have different values of its field."""
        match expression:
            case Operation():
                return CONDITION if is_condition(expression) else NUMBER
            case Constant(bytes(value)) if value:  # Kaitai Struct has no empty bytes
                return BYTES
            case Reference() if self.param(expression, at) is None:
                _, part, owner = self.find(expression, at)
                if isinstance(part.node, s.DerivedNode) and part.node.value:
                    return self.kind(part.node.value, Location(owner))
                if isinstance(part.node, (s.TextNode, s.BytesNode)) and _is_plain(part.node):
                    return BYTES
                cases, in_types = [part.node], False
                if isinstance(part.node, s.SwitchNode):
                    cases = part.node.alternatives
                    in_types = not part.node.is_if and owner == self.root and len(self.schema.byte_orders) > 1
                if in_types or not all(isinstance(case, (s.NumberNode, s.EitherNode)) and _is_plain(case) for case in cases):
                    raise UnsupportedError(f"Kaitai Struct cannot compare {expression}")
        return NUMBER

    def condition(self, expression: Expression, at: Location) -> str:
        """Returns an expression as a condition: whether a number is not 0."""
        is_bool = self.kind(expression, at) == CONDITION
        return self.text(expression if is_bool else as_condition(expression), at)

    def param(self, reference: Reference, at: Location) -> str | None:
        """Returns a parameter of a payload, or None if the reference is to a field."""
        name = reference.names[0]
        if not _is_local(reference) or name not in at.params or name in self.ids[at.struct]:
            return None
        return "_parent." * at.depth + at.params[name]

    def find(self, reference: Expression, at: Location) -> tuple[str, s.Field, str]:
        """Returns a field's path, the field and its struct, or raises UnsupportedError."""
        if not isinstance(reference, Reference):
            raise UnsupportedError(f"Kaitai Struct has no path to {reference}")
        struct = self.root if reference.of_root else at.struct
        path = ["_root"] if reference.of_root else ["_parent"] * (at.depth + reference.up)
        for _ in range(reference.up):
            struct = self._parents.get(struct, "")
        for name in reference.names:
            if name not in self.ids.get(struct, ()):
                raise UnsupportedError(f"there is no field {reference}")
            path.append(self.ids[struct][name])
            owner, part = struct, self.schema.structs[struct].field(name)
            struct = part.node.name if isinstance(part.node, s.RefNode) else ""
        return ".".join(path), part, owner

    def length(self, of: Expression, at: Location, in_bytes: bool = False) -> str:
        """Returns the length of a text, a list or bytes. Raises UnsupportedError for others."""
        if isinstance(of, Reversed):
            return self.length(of.of, at)
        path, part, _ = self.find(of, at)
        if isinstance(part.node, s.DerivedNode) and part.node.value and _is_local(of):
            return self.length(part.node.value, at, in_bytes)
        if isinstance(part.node, s.TextNode) and (in_bytes or part.node.is_strict):
            return f"{path}.{'bytes' if in_bytes else 'text'}.length"
        if isinstance(part.node, s.BytesNode):
            return f"{path}.length"
        if isinstance(part.node, (s.ListNode, s.CountedNode)):
            return f"{path}.size"
        raise UnsupportedError(f"Kaitai Struct cannot express the length of {of}")

    def element(self, expression: Expression, index: str, at: Location) -> str:
        """Returns an element of a list. Raises UnsupportedError for other expressions."""
        if isinstance(expression, Reversed):
            return self.element(expression.of, f"{self.length(expression.of, at)} - 1 - {index}", at)
        path, part, _ = self.find(expression, at)
        if isinstance(part.node, s.DerivedNode) and part.node.value and _is_local(expression):
            return self.element(part.node.value, index, at)
        if isinstance(part.node, (s.ListNode, s.CountedNode)) and isinstance(part.node.item, (s.NumberNode, s.EitherNode)):
            return f"{path}[{index}]"
        raise UnsupportedError(f"Kaitai Struct cannot index {expression}")

    def _value_of_key(self, expression: ValueOfKey, at: Location) -> str:
        path, table, struct = self.find(expression.mapping, at)
        node = table.node
        if not isinstance(node, s.ListNode) or not node.key or not node.value or not isinstance(node.item, s.RefNode):
            raise UnsupportedError(f"{expression.mapping} has no keys")
        search = (struct, table.name, expression.key, expression.default)
        if search not in self.searches:
            before, after = (self.names[node.item.name].new(f"{expression.key} {when}") for when in ("before", "after"))
            self.searches[search] = KeySearch(struct, table, expression, before, after)
        return f"({path}.size > 0 ? {path}.last.{self.searches[search].after} : {expression.default})"


def _is_plain(node: s.Node) -> bool:
    """Tells whether Kaitai Struct reads a node as the value that this package reads."""
    if isinstance(node, s.NumberNode) and (node.bits or node.kind in HALVES):
        return bool(node.bits)
    return not any(wrapper.decode for wrapper in node.wrappers)


def _sign(operation: Operation) -> str:
    if operation.sign in LOGIC and is_condition(operation):
        return LOGIC[operation.sign]
    return "/" if operation.sign == "//" else operation.sign


def _is_local(expression: Expression) -> bool:
    """Tells whether an expression is a field of the struct that it stands in."""
    return isinstance(expression, Reference) and len(expression.names) == 1 and not expression.up and not expression.of_root


def references(node: Any) -> Iterator[Reference]:
    """Yields the references in all expressions of a node, or in an expression."""
    for inner in s.within(node):
        if isinstance(inner, Expression):
            yield from (part for part in subexpressions(inner) if isinstance(part, Reference))
