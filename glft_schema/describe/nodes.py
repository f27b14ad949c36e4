"""The tree that every description is written from: what a declaration says, as data.

    Schema ── structs by name ── fields ── a node: Number, Text, List, Switch, Ref to another struct ...

`glft_schema.describe.schema` reads it from declarations; the writers of Markdown, C, Kaitai Struct ... walk it.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from glft_schema.codec.expressions import Expression
from glft_schema.codec.rules import Check
from glft_schema.codec.type_codes import TypeTable
from glft_schema.formats.format import Format
from glft_schema.tensor_types.tensor_type import TensorType

FILE = "file"  # the name of a format's outermost struct


@dataclass(frozen=True)
class Number:
    """A number: ``u8`` to ``i64``, ``f16`` to ``f64``, ``bf16``; its byte order is ``little``, ``big``, or the ``file``'s."""

    kind: str
    order: str

    @property
    def size(self) -> int:
        """Its bytes."""
        return int(self.kind.lstrip("ubfi")) // 8


@dataclass(frozen=True)
class Bytes:
    """So many bytes; all that are left where `size` is None."""

    size: Expression | None


@dataclass(frozen=True)
class Text:
    """UTF-8 after its length in bytes."""

    length: Node


@dataclass(frozen=True)
class List:
    """So many of one kind, one after another. Where `key` is given, rows that are told apart by that field, and whose field
    `value` is what the key stands for."""

    count: Expression
    item: Node
    key: str | None = None
    value: str | None = None


@dataclass(frozen=True)
class Counted:
    """A list after its length."""

    count: Node
    item: Node


@dataclass(frozen=True)
class Numbers:
    """A field of a payload: an array of numbers whose dims are integers or expressions on ``out``, ``in`` and ``dims``."""

    number: Number
    dims: tuple[Expression, ...]


@dataclass(frozen=True)
class BlockArray:
    """A payload of blocks: ``out * (in / weights)`` times the struct `block`."""

    weights: int
    block: str


@dataclass(frozen=True)
class Either:
    """One of two numbers, as the condition decides."""

    condition: Expression
    then: Number
    otherwise: Number


@dataclass(frozen=True)
class Code:
    """A number that stands for a type of a table."""

    number: Node
    table: TypeTable[Any]


@dataclass(frozen=True)
class SwitchCase:
    """What stands where a `Switch` finds the type `name`, which is `code` on disk."""

    name: str
    code: int
    node: Node


@dataclass(frozen=True)
class Switch:
    """What a field before decides."""

    on: Expression
    cases: tuple[SwitchCase, ...]


@dataclass(frozen=True)
class Ref:
    """The struct of this name."""

    name: str


@dataclass(frozen=True)
class Lines:
    """So many bytes of UTF-8 lines ``key=value``."""

    size: Expression


@dataclass(frozen=True)
class Padding:
    """Bytes up to a multiple of `to`, counted from the start of the file; where `may_lack` holds, the file may end before."""

    to: Expression
    may_lack: Expression | None = None


@dataclass(frozen=True)
class ByteOrder:
    """No bytes: the byte order of the file, told by the number that follows."""

    number: Number


@dataclass(frozen=True)
class Derived:
    """No bytes: what follows from fields before; `value` is None where no expression says how."""

    value: Expression | None


@dataclass(frozen=True)
class Payloads:
    """The payloads of the rows of `table`, each at its offset and padded to a multiple of `to`, up to the end of the file."""

    table: str
    to: Expression | None = None


# fmt: off
Node = (
    Number | Bytes | Text | List | Counted | Numbers | BlockArray | Either | Code | Switch | Ref | Lines | Padding | ByteOrder
    | Derived | Payloads
)
# fmt: on


@dataclass(frozen=True)
class Field:
    """A field of a struct.

    Attributes:
        name: as declared; empty where it has none.
        doc: its sentence.
        node: what it is.
        is_count: whether it says how much of something else there is.
        value: what it is unless told otherwise; None where there is no such value.
        rules: those that guard it.
        refuses: what else is never accepted there, in words.
    """

    name: str
    doc: str
    node: Node
    is_count: bool = False
    value: int | bytes | None = None
    rules: tuple[Check, ...] = ()
    refuses: tuple[str, ...] = ()


@dataclass(frozen=True)
class StructOf:
    """Fields one after another.

    Attributes:
        name: how other structs refer to it.
        fields: in order.
        rules: in order; those on a field are that field's, too.
        offsets: of each field from the start of the struct; None after a field whose size varies.
        size: bytes, or None where that varies.
    """

    name: str
    fields: tuple[Field, ...]
    rules: tuple[Check, ...]
    offsets: tuple[int | None, ...]
    size: int | None


@dataclass(frozen=True)
class TypeOf:
    """A tensor type.

    Attributes:
        type: the type itself.
        payload: the name of its payload's struct.
        block: that of its block, or None where it is not made of blocks.
        weights: the fewest of a row: those of a block or group, or one.
        nbytes: the bytes of so many weights.
        row_nbytes: the bytes of a row beside those of its weights.
        rules: on the dims, which `payload` has, too.
    """

    type: TensorType
    payload: str
    block: str | None
    weights: int
    nbytes: int
    row_nbytes: int
    rules: tuple[Check, ...]

    @property
    def sizes(self) -> str:
        """Its bytes, in words."""
        row = f", and {self.row_nbytes} bytes a row" if self.row_nbytes else ""
        if self.weights == 1:
            return f"{_bytes(self.nbytes)} a weight, {8 * self.nbytes} bits{row}"
        each = self.nbytes / self.weights
        return f"{self.weights} weights in {_bytes(self.nbytes)}, {8 * each:g} bits or {each:g} bytes each{row}"

    @property
    def formula(self) -> str:
        """What a weight is, in words: the first paragraph of the formula's docstring."""
        return " ".join((inspect.getdoc(self.type.formula) or "").partition("\n\n")[0].split())


def _bytes(count: int) -> str:
    return f"{count} bytes" if count != 1 else "1 byte"


@dataclass
class Schema:
    """A format or a tensor type, read.

    Attributes:
        title: its name.
        format: the format; None of a tensor type alone.
        structs: by name; of a format, `FILE` is the whole.
        types: the tensor types, by code.
        read: the names of the fields of each struct, as declared.
    """

    title: str
    format: Format | None = None
    structs: dict[str, StructOf] = field(default_factory=dict)
    types: list[TypeOf] = field(default_factory=list)
    read: dict[str, list[str | None]] = field(default_factory=dict, repr=False)

    @property
    def tables(self) -> dict[str, TypeTable[Any]]:
        """The tables of types, by name, such as ``ggml_type``."""
        codes = [node for struct in self.structs.values() for part in struct.fields if isinstance(node := part.node, Code)]
        return {table_name(code.table): code.table for code in codes}

    @property
    def byte_orders(self) -> tuple[str, ...]:
        """The byte orders that files can have; of a tensor type alone little-endian, which is what readers of it start with."""
        nodes = [part.node for struct in self.structs.values() for part in struct.fields]
        return ("little", "big") if any(isinstance(node, ByteOrder) for node in nodes) else ("little",)

    def size(self, node: Node) -> int | None:
        """Returns the bytes of a node, or None where they vary."""
        if isinstance(node, Number):
            return node.size
        if isinstance(node, Code):
            return self.size(node.number)
        if isinstance(node, Ref):
            return self.structs[node.name].size if node.name in self.structs else None
        if isinstance(node, (ByteOrder, Derived)):
            return 0
        if isinstance(node, Bytes) and isinstance(size := getattr(node.size, "value", None), int):
            return size
        if isinstance(node, Numbers):
            count = 1
            for dim in node.dims:
                size = getattr(dim, "value", None)
                if not isinstance(size, int):
                    return None
                count *= size
            return count * node.number.size
        return None


def table_name(table: TypeTable[Any]) -> str:
    """Returns what a table of types is called in descriptions."""
    return f"{table.kind} type".lower().replace(" ", "_")


def within(node: Any) -> Iterator[Any]:
    """Yields a node, and the nodes and expressions that it is made of."""
    yield node
    if isinstance(node, tuple):
        for part in node:
            yield from within(part)
    elif is_dataclass(node) and not isinstance(node, Expression):
        for part in fields(node):
            yield from within(getattr(node, part.name))


def refs(node: Node) -> Iterator[str]:
    """Yields the names of the structs that a node refers to."""
    for inner in within(node):
        if isinstance(inner, Ref):
            yield inner.name
        elif isinstance(inner, BlockArray):
            yield inner.block
