"""Expressions of declarations in Kaitai Struct's language."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import glft_schema.describe.nodes as s
from glft_schema.codec.expressions import (
    Constant,
    Expression,
    Length,
    Operation,
    Reference,
    Reversed,
    ValueOfKey,
    subexpressions,
)
from glft_schema.describe.kaitai.names import KaitaiNames

COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
ARITHMETIC = {sign: sign for sign in ("+", "-", "*", "%", "<<", ">>", "&", "|", "^")} | {"//": "/"}  # as on integers
LOGIC = {"&": "and", "|": "or"}  # as on conditions


class UnsayableError(NotImplementedError):
    """Kaitai Struct has no words for it."""


@dataclass(frozen=True)
class At:
    """Where an expression stands.

    Attributes:
        struct: the struct that it counts from.
        depth: how many types of our own are around it, that are not in the declaration.
        params: what the parameters ``out`` and ``in`` are called here.
    """

    struct: str
    depth: int = 0
    params: Mapping[str, str] = field(default_factory=dict, hash=False)

    def inside(self) -> At:
        """Returns the place within one more type of our own."""
        return At(self.struct, self.depth + 1, self.params)


@dataclass(frozen=True)
class KeySearch:
    """A search for a key among rows: the row before gives what was found so far as `before`, each row gives `after`.

    Attributes:
        struct: the struct that the table of rows is in.
        table: the field.
        wanted: the key and the default.
        before: the rows' parameter.
        after: the rows' instance.
    """

    struct: str
    table: s.Field
    wanted: ValueOfKey
    before: str
    after: str


class Expressions:
    """Writes expressions for one schema.

    Attributes:
        names: of each struct, by name: those that are taken.
        ids: of each struct, by name: its fields' identifiers.
        lookups: the searches for keys that were written, by table, key and default.
    """

    def __init__(self, schema: s.Schema, root: str) -> None:
        self.schema = schema
        self.root = root
        self.names = {name: KaitaiNames() for name in schema.structs}
        self.ids = {
            name: {part.name: self.names[name].new(part.name) for part in struct.fields if part.name}
            for name, struct in schema.structs.items()
        }
        self.lookups: dict[tuple[str, str, str, int], KeySearch] = {}
        self._parents = {
            ref: name for name, struct in schema.structs.items() for part in struct.fields for ref in s.refs(part.node)
        }

    def text(self, expression: Expression, at: At) -> str:
        """Returns an expression. Raises UnsayableError where there is none."""
        text = self.term(expression, at)
        return text[1:-1] if isinstance(expression, (Operation, ValueOfKey)) else text

    def term(self, expression: Expression, at: At) -> str:
        """Returns an expression so that it can be a part of another one. Raises UnsayableError where there is none."""
        if isinstance(expression, Constant):
            return str(expression)
        if isinstance(expression, Operation):
            return f"({self.term(expression.left, at)} {_sign(expression)} {self.term(expression.right, at)})"
        if isinstance(expression, Length):
            return self.length(expression.of, at, expression.in_bytes)
        if isinstance(expression, ValueOfKey):
            return self._value_of_key(expression, at)
        if not isinstance(expression, Reference):
            raise UnsayableError(f"Kaitai Struct cannot say {expression}")
        if (param := self.param(expression, at)) is not None:
            return param
        path, part, _ = self.find(expression, at)
        if isinstance(part.node, (s.ByteOrder, s.Payloads)):
            raise UnsayableError(f"Kaitai Struct cannot compare {expression}")
        return path + {s.Text: ".text", s.Code: ".to_i"}.get(type(part.node), "")

    def param(self, reference: Reference, at: At) -> str | None:
        """Returns a parameter of a payload, or None where the reference is to none."""
        name = reference.names[0] if len(reference.names) == 1 and not reference.up and not reference.of_root else ""
        if name not in at.params or name in self.ids[at.struct]:
            return None
        return "_parent." * at.depth + at.params[name]

    def find(self, reference: Expression, at: At) -> tuple[str, s.Field, str]:
        """Returns the path of a field, the field, and the struct that it is in. Raises UnsayableError for others."""
        if not isinstance(reference, Reference):
            raise UnsayableError(f"Kaitai Struct cannot name {reference}")
        struct: str | None = self.root if reference.of_root else at.struct
        path = ["_root"] if reference.of_root else ["_parent"] * (at.depth + reference.up)
        for _ in range(reference.up):
            struct = self._parents.get(struct or "")
        found = None
        for name in reference.names:
            owner = struct or ""
            known = self.schema.structs[owner].fields if struct in self.schema.structs else ()
            part = next((part for part in known if part.name == name), None)
            if part is None:
                break
            path.append(self.ids[owner][name])
            struct = part.node.name if isinstance(part.node, s.Ref) else None
            found = (".".join(path), part, owner)
        else:
            if found:
                return found
        raise UnsayableError(f"there is no field {reference}")

    def length(self, of: Expression, at: At, in_bytes: bool = False) -> str:
        """Returns how long a text, a list or bytes are. Raises UnsayableError for others."""
        if isinstance(of, Reversed):
            return self.length(of.of, at)
        path, part, _ = self.find(of, at)
        if isinstance(part.node, s.Derived) and part.node.value and _is_near(of):
            return self.length(part.node.value, at, in_bytes)
        if isinstance(part.node, s.Text):
            return f"{path}.{'bytes' if in_bytes else 'text'}.length"
        if isinstance(part.node, s.Bytes):
            return f"{path}.length"
        if isinstance(part.node, (s.List, s.Counted)):
            return f"{path}.size"
        raise UnsayableError(f"Kaitai Struct cannot say how long {of} is")

    def element(self, expression: Expression, index: str, at: At) -> str:
        """Returns an element of a list. Raises UnsayableError for what is none."""
        if isinstance(expression, Reversed):
            return self.element(expression.of, f"{self.length(expression.of, at)} - 1 - {index}", at)
        path, part, _ = self.find(expression, at)
        if isinstance(part.node, s.Derived) and part.node.value and _is_near(expression):
            return self.element(part.node.value, index, at)
        if isinstance(part.node, (s.List, s.Counted)) and isinstance(part.node.item, (s.Number, s.Either)):
            return f"{path}[{index}]"
        raise UnsayableError(f"Kaitai Struct cannot name an element of {expression}")

    def _value_of_key(self, expression: ValueOfKey, at: At) -> str:
        path, table, struct = self.find(expression.mapping, at)
        node = table.node
        if not isinstance(node, s.List) or not node.key or not node.value or not isinstance(node.item, s.Ref):
            raise UnsayableError(f"{expression.mapping} has no keys")
        wanted = (struct, table.name, expression.key, expression.default)
        if wanted not in self.lookups:
            before, after = (self.names[node.item.name].new(f"{expression.key} {when}") for when in ("before", "after"))
            self.lookups[wanted] = KeySearch(struct, table, expression, before, after)
        return f"({path}.size > 0 ? {path}.last.{self.lookups[wanted].after} : {expression.default})"


def is_condition(expression: Expression) -> bool:
    if not isinstance(expression, Operation):
        return False
    both = (expression.left, expression.right)
    return expression.sign in COMPARISONS or (expression.sign in LOGIC and all(map(is_condition, both)))


def _sign(operation: Operation) -> str:
    if operation.sign in COMPARISONS:
        return operation.sign
    return (LOGIC if is_condition(operation) else ARITHMETIC)[operation.sign]


def _is_near(expression: Expression) -> bool:
    """Tells whether a field stands in the same struct as the expression."""
    return isinstance(expression, Reference) and len(expression.names) == 1 and not expression.up and not expression.of_root


def references(node: Any) -> Iterator[Reference]:
    """Yields the references of all expressions of a node, or of an expression."""
    for inner in s.within(node):
        if isinstance(inner, Expression):
            yield from (part for part in subexpressions(inner) if isinstance(part, Reference))
