"""Declarations as a tree of nodes.

    Schema ── structs by name ── fields ── a node: Number, Text, List, Switch, Ref to a struct ...

`glft_schema.describe.schema` reads the tree from declarations. The writers of Markdown, C and other
languages walk it, and so do the strategies of `glft_schema.testing`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal

from glft_schema.codec import numbers
from glft_schema.codec.expressions import Constant, Expression
from glft_schema.codec.rules import Check, Fault
from glft_schema.codec.type_codes import TypeTable
from glft_schema.formats.format import Format
from glft_schema.tensor_types.tensor_type import TensorType

FILE = "file"  # the name of a format's outermost struct
KINDS = {number.kind: number for number in vars(numbers).values() if isinstance(number, numbers.Number)}


@dataclass(frozen=True)
class Wrapper:
    """A construct around another one that changes its values, but not its bytes.

    Attributes:
        decode: (value, context, path) -> the wrapper's value; None if the value is unchanged.
        options: special values, or functions of the context: a default, the names of an `Enum`.
        is_closed: whether no other values are possible; without `options`, building computes the
            value.
    """

    decode: Callable[[Any, Any, str], Any] | None = None
    options: tuple[Any, ...] = ()
    is_closed: bool = False


@dataclass(frozen=True, kw_only=True)
class Declared:
    """The base of all nodes.

    Attributes:
        wrappers: the constructs around the node, innermost first.
        level: the depth within nodes of the same kind; 0 if the kind cannot be nested.
    """

    wrappers: tuple[Wrapper, ...] = field(default=(), compare=False, repr=False)
    level: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True)
class NumberNode(Declared):
    """A number, ``u8`` to ``f64``, in ``little``, ``big`` or the ``file``'s byte order.

    The numbers of a tensor type may be of another kind, such as ``f8_e4m3``.
    """

    kind: str
    order: str
    declared: numbers.Number | None = field(default=None, compare=False, repr=False)
    bits: tuple[tuple[str, int], ...] = ()  # the names of its bits

    @property
    def of(self) -> numbers.Number:
        """The declaration."""
        return self.declared or KINDS[self.kind]

    @property
    def size(self) -> int:
        """The size in bytes."""
        return self.of.itemsize


@dataclass(frozen=True)
class BytesNode(Declared):
    """`size` bytes, or all remaining bytes if `size` is None."""

    size: Expression | None


@dataclass(frozen=True)
class TextNode(Declared):
    """Text, preceded by its length in bytes. If `is_strict`, the bytes must be valid text."""

    length: Node
    encoding: str = "utf-8"
    is_strict: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class ListNode(Declared):
    """`count` items. Items of metadata have fields `key` and `value`, and a rule `once` on keys.

    `declared` is the construct of an item, if its size varies.
    """

    count: Expression
    item: Node
    key: str | None = None
    value: str | None = None
    once: Check | None = field(default=None, compare=False)
    declared: Any = field(default=None, compare=False, repr=False)

    @property
    def dims(self) -> tuple[Expression, ...]:
        """The number of items."""
        return (self.count,)


@dataclass(frozen=True)
class CountedNode(Declared):
    """A list, preceded by its length. If `has_scope`, its items see the struct one level up.

    `declared` is the construct of an item, if its size varies.
    """

    count: Node
    item: Node
    has_scope: bool = field(default=False, compare=False)
    declared: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class ArrayNode(Declared):
    """An array in a payload, with dims that depend on ``out``, ``in`` and ``dims``.

    Its items are numbers, or blocks of as many `weights`: structs of `size` bytes.
    """

    item: NumberNode | RefNode
    dims: tuple[Expression, ...]
    size: int = field(compare=False)
    weights: int = 0


@dataclass(frozen=True)
class EitherNode(Declared):
    """One of two numbers, selected by the condition."""

    condition: Expression
    then: NumberNode
    otherwise: NumberNode


@dataclass(frozen=True)
class CodeNode(Declared):
    """The code of a type in a table."""

    number: Node
    table: TypeTable[Any]


@dataclass(frozen=True)
class SwitchCase:
    """A case of a `SwitchNode`: the node for the value `name`, which is `code` on disk.

    The two differ if it is a type. `code` is True for a condition that holds.
    """

    name: str
    code: int
    node: Node


@dataclass(frozen=True)
class SwitchNode(Declared):
    """One of several nodes, selected by an expression; `default` for other values, or no bytes."""

    on: Expression
    cases: tuple[SwitchCase, ...]
    default: Node | None = None

    @property
    def is_of_types(self) -> bool:
        """Whether the cases are types, which have codes."""
        return any(case.name != str(case.code) for case in self.cases)

    @property
    def is_if(self) -> bool:
        """Whether it is a node if a condition holds, and otherwise no bytes."""
        return not self.default and [case.code is True for case in self.cases] == [True]

    @property
    def alternatives(self) -> list[Node]:
        """The nodes of all cases, and the default."""
        return [*(case.node for case in self.cases), *([self.default] if self.default else [])]


@dataclass(frozen=True)
class RefNode(Declared):
    """The struct of this name; `declared` is its construct."""

    name: str
    declared: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class LinesNode(Declared):
    """`size` bytes of UTF-8 lines ``key=value``."""

    size: Expression


@dataclass(frozen=True)
class JsonTableNode(Declared):
    """`size` bytes of JSON: an object with an entry `item` per row, and the entry `reserved`."""

    size: Expression
    item: Node
    reserved: str


@dataclass(frozen=True)
class JsonTextsNode(Declared):
    """No bytes of its own: the reserved entry of the JSON table `table`, with texts by key."""

    table: str
    item: Node


@dataclass(frozen=True)
class JsonNode(Declared):
    """A value in JSON: the ``name`` of an entry, a ``text``, ``integers``, or one ``integer``.

    `key` is its key in the entry's object, if any; `index` selects one of several integers.
    """

    kind: str
    key: str | None = None
    index: int | None = None


@dataclass(frozen=True)
class PaddingNode(Declared):
    """Bytes up to a multiple of `to` in the file. If `may_lack` holds, the file may end earlier."""

    to: Expression
    may_lack: Expression | None = None


@dataclass(frozen=True)
class ByteOrderNode(Declared):
    """No bytes: the byte order of the file, one of `orders`, detected from the number that follows.

    `number` is None if there is only one order.
    """

    number: NumberNode | None
    orders: tuple[Literal["little", "big"], ...]


@dataclass(frozen=True)
class DerivedNode(Declared):
    """No bytes: a value computed from earlier fields.

    `value` is the expression, if there is one. `compute` is a function of the context.
    """

    value: Expression | None
    compute: Callable[[Any], Any] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class PayloadsNode(Declared):
    """The payloads of the rows of `table`, padded to multiples of `to`; the rest of the file."""

    table: str
    to: Expression | None = None


# fmt: off
Node = (
    NumberNode | BytesNode | TextNode | ListNode | CountedNode | ArrayNode | EitherNode | CodeNode
    | SwitchNode | RefNode | LinesNode | JsonTableNode | JsonTextsNode | JsonNode | PaddingNode | ByteOrderNode
    | DerivedNode | PayloadsNode
)
# fmt: on


@dataclass(frozen=True, eq=False)
class Field:
    """A field of a struct.

    Attributes:
        name: as declared; may be empty.
        doc: the field's sentence.
        node: how the field is stored.
        is_count: whether the field is the length of another one.
        value: the default or only value, a number or bytes, or None.
        rules: the rules that guard the field.
        refuses: values that the field's constructs reject.
        declared: the field's construct.
    """

    name: str
    doc: str
    node: Node
    is_count: bool = False
    value: int | bytes | None = None
    rules: tuple[Check, ...] = ()
    refuses: tuple[Fault, ...] = ()
    declared: Any = field(default=None, repr=False)

    @property
    def is_json(self) -> bool:
        """Whether it is a value in a JSON object."""
        return any(isinstance(inner, JsonNode) for inner in within(self.node))

    @property
    def is_constant(self) -> bool:
        """Whether files have no other `value`."""
        wrappers = self.node.wrappers
        return self.value is not None and any(one.is_closed and one.options == (self.value,) for one in wrappers)

    @property
    def is_computed(self) -> bool:
        """Whether building computes the field, so that values omit it."""
        computed = any(wrapper.is_closed and not wrapper.options for wrapper in self.node.wrappers)
        return computed or isinstance(self.node, (DerivedNode, PaddingNode))


@dataclass(frozen=True, eq=False)
class StructOf:
    """A struct.

    Attributes:
        name: the name by which other structs refer to it.
        fields: in order.
        rules: in order, including those that guard a field.
        offsets: of each field from the start of the struct; None after a field of varying size.
        size: in bytes; None if it varies.
        declared: the struct's construct.
    """

    name: str
    fields: tuple[Field, ...]
    rules: tuple[Check, ...]
    offsets: tuple[int | None, ...]
    size: int | None
    declared: Any = field(default=None, repr=False)

    @property
    def is_json(self) -> bool:
        """Whether its fields are values in a JSON object."""
        return any(part.is_json for part in self.fields)

    @property
    def parts(self) -> list[Field | Check]:
        """Fields and rules in the order of the declaration."""
        left = iter(self.fields)
        return [part if isinstance(part, Check) else next(left) for part in self.declared.subcons]

    def field(self, name: str) -> Field:
        """Returns the field of this name. Raises StopIteration if there is none."""
        return next(part for part in self.fields if part.name == name)


@dataclass(frozen=True)
class TypeOf:
    """A tensor type.

    Attributes:
        type: the type itself.
        code: its code in the format.
        payload: the name of the payload's struct.
        struct: this struct; its rules are on the dims.
        block: the name of the block's struct; None if the type has no blocks.
        weights: the minimum length of a row: the weights of a block or group, or one.
        nbytes: the bytes of `weights` weights.
        row_nbytes: the bytes of a row in addition to those of its weights.
        packed: the weights per byte if torch counts bytes as elements, else 1.
    """

    type: TensorType
    code: int | str
    payload: str
    struct: StructOf
    block: str | None
    weights: int
    nbytes: int
    row_nbytes: int
    packed: int = 1

    @property
    def is_copied(self) -> bool:
        """Whether the type stores a dtype but has no encoder, so that tensors are only copied."""
        return self.type.exact is not None and not self.type.has_encoder

    @property
    def heading(self) -> str:
        """The name, and the code unless that is the name."""
        return self.type.name if self.code == self.type.name else f"{self.type.name}, code {self.code}"

    @property
    def sizes(self) -> str:
        """The sizes in words."""
        row = f", and {self.row_nbytes} bytes a row" if self.row_nbytes else ""
        if self.weights == 1:
            return f"{_bytes(self.nbytes)} a weight, {8 * self.nbytes} bits{row}"
        each = self.nbytes / self.weights
        return f"{self.weights} weights in {_bytes(self.nbytes)}, {8 * each:g} bits or {each:g} bytes each{row}"

    @property
    def formula(self) -> str:
        """A weight in words: the first paragraph of the formula's docstring."""
        if self.type.exact:
            return "the number as it is stored."
        return " ".join((inspect.getdoc(self.type.formula) or "").partition("\n\n")[0].split())


def _bytes(count: int) -> str:
    return f"{count} bytes" if count != 1 else "1 byte"


@dataclass
class Schema:
    """The schema of a format or of a tensor type.

    Attributes:
        title: the name of the format or type.
        format: the format; None for a tensor type alone.
        structs: by name; `FILE` is a whole format.
        types: the tensor types, by code.
    """

    title: str
    format: Format | None = None
    structs: dict[str, StructOf] = field(default_factory=dict)
    types: list[TypeOf] = field(default_factory=list)

    @property
    def _nodes(self) -> Iterator[Node]:
        return (part.node for struct in self.structs.values() for part in struct.fields)

    @property
    def tables(self) -> dict[str, TypeTable[Any]]:
        """The tables of types, by name, such as ``ggml_type``."""
        return {table_name(node.table): node.table for node in self._nodes if isinstance(node, CodeNode)}

    @property
    def container_structs(self) -> dict[str, StructOf]:
        """The structs that belong to no tensor type, by name."""
        of_types = {name for type_ in self.types for name in (type_.payload, type_.block)}
        return {name: struct for name, struct in self.structs.items() if name not in of_types}

    @property
    def byte_orders(self) -> tuple[str, ...]:
        """The byte orders that files can have; little-endian alone for a tensor type."""
        return next((node.orders for node in self._nodes if isinstance(node, ByteOrderNode)), ("little",))

    def size(self, node: Node) -> int | None:
        """Returns the size of a node in bytes, or None if it varies."""
        if isinstance(node, NumberNode):
            return node.size
        if isinstance(node, CodeNode):
            return self.size(node.number)
        if isinstance(node, RefNode):
            return self.structs[node.name].size if node.name in self.structs else None
        if isinstance(node, (ByteOrderNode, DerivedNode, JsonTextsNode)):
            return 0
        if isinstance(node, BytesNode) and isinstance(size := getattr(node.size, "value", None), int):
            return size
        if isinstance(node, (ArrayNode, ListNode)) and all(isinstance(dim, Constant) for dim in node.dims):
            size = self.size(node.item)
            return None if size is None else math.prod(int(str(dim)) for dim in node.dims) * size
        return None


def table_name(table: TypeTable[Any]) -> str:
    """Returns the name of a table of types in descriptions."""
    return f"{table.kind} type".lower().replace(" ", "_")


def within(node: Any) -> Iterator[Any]:
    """Yields a node, and the nodes and expressions in it."""
    yield node
    if type(node) is tuple:
        for part in node:
            yield from within(part)
    elif is_dataclass(node) and not isinstance(node, Expression):
        for part in fields(node):
            if part.compare:
                yield from within(getattr(node, part.name))


def refs(node: Node) -> Iterator[str]:
    """Returns the names of the structs that a node refers to."""
    return (inner.name for inner in within(node) if isinstance(inner, RefNode))


def alternatives(node: Node) -> list[Node]:
    """Returns the nodes of which a field has one in each file: those of a switch, or the node."""
    if not isinstance(node, SwitchNode):
        return [node]
    return [inner for one in node.alternatives for inner in alternatives(one)]


def choose(node: EitherNode | SwitchNode, context: Any) -> Node:
    """Returns the alternative that applies in a context; of no case, a node without bytes."""
    if isinstance(node, EitherNode):
        return node.then if node.condition(context) else node.otherwise
    value = node.on(context)
    code = getattr(value, "code", value)
    return next((case.node for case in node.cases if case.code == code), node.default or DerivedNode(None))
