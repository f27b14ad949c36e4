"""Reads declarations into the tree of `glft_schema.describe.nodes`.

`schema_of` reads a format or a tensor type, `node_of` any construct. Only this module reads the
classes of constructs. ``node_of.register`` adds a class, for descriptions and for strategies.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial, singledispatch
from typing import Any

import construct

import glft_schema.describe.nodes as s
from glft_schema.codec import arrays, json_table, numbers, structs, tables, type_codes
from glft_schema.codec import text as codec_text
from glft_schema.codec.expressions import Expression, as_condition, read
from glft_schema.codec.metadata import KeyValues
from glft_schema.codec.metadata_lines import KeyValueLines
from glft_schema.codec.rules import Check, Fault
from glft_schema.describe.nodes import FILE, Field, Node, RefNode, Schema, StructOf, SwitchCase, TypeOf, Wrapper
from glft_schema.errors import UnsupportedError, quote
from glft_schema.formats.format import Format
from glft_schema.scalar.kinds import KINDS
from glft_schema.tensor_types.blocks import Blocks
from glft_schema.tensor_types.tensor_type import TensorType
from glft_schema.tensors.region import TensorData

ORDERS = {"<": "little", ">": "big", "=": "file"}
LETTERS = {kind.letter: kind.name for kind in KINDS.values()}  # of the module `struct`


def schema_of(described: Format | TensorType | construct.Struct, title: str = "struct") -> Schema:
    """Returns the schema of a format with its tensor types, of one tensor type, or of a Struct,
    which has the title, and is little-endian unless it has a `ByteOrderOf`."""
    if isinstance(described, construct.Struct):
        described = Format(
            title, (), type_codes.TypeTable(title, {}), structs.Struct(*described.subcons), sniff=lambda start: False
        )
    if not isinstance(described, (Format, TensorType)):
        raise TypeError(f"expected a Format, a tensor type or a Struct, found {quote(described)}")
    if isinstance(described, TensorType):
        schema, types = Schema(described.name), [(described.code, described)]
    else:
        schema, types = Schema(described.name, described), described.types.by_code()
        node_of(described.struct, schema, FILE)
    schema.types.extend(_type_of(code, type_, schema) for code, type_ in types)
    return schema


def _type_of(code: int | str, type_: TensorType, schema: Schema) -> TypeOf:
    payload = node_of(type_.payload, schema, type_.scheme if type_.block is None else f"{type_.scheme}_payload")
    assert isinstance(payload, RefNode)
    struct = schema.structs[payload.name]
    nodes = [part.node for part in struct.fields]
    block = next((node.item.name for node in nodes if isinstance(node, s.ArrayNode) and isinstance(node.item, RefNode)), None)
    weights = type_.least_row
    row = type_.nbytes([1, weights])
    nbytes = type_.nbytes([1, 2 * weights]) - row
    packed = 2 if (type_.exact or "").endswith("_x2") else 1  # torch's names of such dtypes
    return TypeOf(type_, code, payload.name, struct, block, weights * packed, nbytes, row - nbytes, packed)


class UndescribedError(UnsupportedError):
    """A field whose construct has no node.

    Attributes:
        path: the field.
        problem: why it has no node.
    """

    def __init__(self, name: str, error: UnsupportedError) -> None:
        self.path, self.problem = name, str(error)
        if isinstance(error, UndescribedError):  # of a Struct in the field
            self.path, self.problem = f"{name} -> {error.path}", error.problem
        super().__init__(f"{self.path}: {self.problem}")


@singledispatch
def node_of(declared: Any, schema: Schema, name: str) -> Node:
    """Returns the node of a construct. Adds its structs, named `name` if untitled, to `schema`.

    Raises:
        UnsupportedError: if the class of the construct is not registered.
    """
    kind = type(declared).__name__
    raise UnsupportedError(f"{kind} has no node: register a function with @glft_schema.describe.node_of.register({kind})")


@cache
def field_of(declared: construct.Construct) -> Field:
    """Returns the description of a field, without rules. Raises the errors of `node_of`."""
    return _field(declared, (), Schema(""), "struct")


@cache
def struct_of(declared: construct.Struct) -> StructOf:
    """Returns the description of a Struct. Raises the errors of `node_of`."""
    schema = Schema("")
    ref = node_of(declared, schema, "struct")
    assert isinstance(ref, RefNode)
    return schema.structs[ref.name]


def rows_of(node: Node) -> StructOf | None:
    """Returns the struct of the rows of a table; None if the node is not a table."""
    item = node.item if isinstance(node, (s.ListNode, s.JsonTableNode)) else None
    return struct_of(item.declared) if isinstance(item, RefNode) else None


def wrap(node: Node, **wrapper: Any) -> Node:
    """Returns a node with one more `Wrapper` around it."""
    return replace(node, wrappers=(*node.wrappers, Wrapper(**wrapper)))


# Structs


@node_of.register(construct.Struct)
def _(declared: construct.Struct, schema: Schema, name: str) -> RefNode:
    name = getattr(declared, "title", "") or name
    while (same := schema.structs.get(name)) and not (same.declared is declared or _is_level_of(same, declared)):
        name += "_"  # another struct has the name
    if same:  # an enclosing struct, or one that was read before
        return RefNode(name, declared)
    schema.structs[name] = StructOf(name, (), (), (), None, declared)
    rules = tuple(part for part in declared.subcons if isinstance(part, Check))
    parts = tuple(_field(part, rules, schema, name) for part in declared.subcons if not isinstance(part, Check))
    offsets: list[int | None] = [0]
    for part in parts:
        size = schema.size(part.node)
        offsets.append(None if size is None or offsets[-1] is None else offsets[-1] + size)
    schema.structs[name] = StructOf(name, parts, rules, tuple(offsets[:-1]), offsets[-1], declared)
    return RefNode(name, declared)


def _is_level_of(enclosing: StructOf, declared: construct.Struct) -> bool:
    """Tells whether a Struct is the next level of one that is being read, see `Nested`."""
    return not enclosing.fields and [part.name for part in enclosing.declared.subcons] == [
        part.name for part in declared.subcons
    ]


def _field(part: construct.Construct, rules: tuple[Check, ...], schema: Schema, struct: str) -> Field:
    try:
        node = node_of(part, schema, part.name or struct)
    except UnsupportedError as error:
        if not part.name:
            raise
        raise UndescribedError(part.name, error) from None
    options = next((wrapper.options for wrapper in reversed(node.wrappers) if wrapper.options), ())
    value = options[0] if len(options) == 1 and isinstance(options[0], (int, bytes)) else None
    guards = tuple(rule for rule in rules if rule.field == part.name)
    return Field(part.name or "", part.docs, node, structs.is_count(part), value, guards, refused_values(part), part)


def refused_values(part: construct.Construct) -> tuple[Fault, ...]:
    """Returns the values that a field's constructs refuse."""
    refused: tuple[Fault, ...] = ()
    while True:
        refused += vars(part).get("refuses", getattr(type(part), "refuses", ()))  # its own, not what it wraps
        if not isinstance(part, construct.Subconstruct):
            return refused
        part = part.subcon


# Other constructs


Read = Callable[[Any, Callable[[Any], Any]], Node]

# fmt: off
# By construct: (construct, function that reads the constructs in it) -> node.
NODES: dict[Any, Read] = {
    construct.Renamed: lambda it, of: of(it.subcon),
    construct.Adapter: lambda it, of: wrap(of(it.subcon), decode=it._decode),
    construct.Enum:    lambda it, of: wrap(of(it.subcon), options=tuple(it.encmapping), is_closed=True),
    construct.Default: lambda it, of: wrap(of(it.subcon), options=(it.value,)),
    construct.Const:   lambda it, of: wrap(of(it.subcon), options=(it.value,), is_closed=True),
    construct.Rebuild: lambda it, of: wrap(of(it.subcon), is_closed=True),
    tables.Nested:     lambda it, of: replace(of(it.subcon), level=it.level),

    numbers.Number:         lambda it, of: s.NumberNode(it.kind, "file", it),
    numbers.Flags:          lambda it, of: wrap(replace(of(it.subcon), bits=tuple(it.bits.items())), decode=it._decode),
    numbers.Picked:         lambda it, of: s.EitherNode(tree_of(it.condition), of(it.then), of(it.otherwise)),
    numbers.ByteOrderOf:    lambda it, of: s.ByteOrderNode(it.number and of(it.number), it.orders),
    type_codes.TypeCode:    lambda it, of: s.CodeNode(of(it.subcon), it.table),
    construct.FormatField:  lambda it, of: s.NumberNode(LETTERS[it.fmtstr[-1]], ORDERS.get(it.fmtstr[0], "little")),
    construct.BytesInteger: lambda it, of: wrap(s.BytesNode(tree_of(it.length)), decode=lambda raw, *_: it.parse(raw)),
    construct.Flag:         lambda it, of: wrap(s.NumberNode("u8", "little"), options=(False, True), is_closed=True),

    construct.Bytes:       lambda it, of: s.BytesNode(tree_of(it.length)),
    construct.GreedyBytes: lambda it, of: s.BytesNode(None),
    codec_text.Text:       lambda it, of: s.TextNode(of(it.length), is_strict=it.strict),
    KeyValueLines:         lambda it, of: s.LinesNode(tree_of(it.size)),

    json_table.JsonTable:  lambda it, of: s.JsonTableNode(tree_of(it.size), of(it.row), it.reserved),
    json_table.JsonTexts:  lambda it, of: s.JsonTextsNode(it.table, of(json_table.PAIR)),
    json_table.Key:        lambda it, of: s.JsonNode("name"),
    json_table.TextAt:     lambda it, of: s.JsonNode("text", it.key),
    json_table.IntegerAt:  lambda it, of: s.JsonNode("integer", it.key, it.index),
    json_table.IntegersAt: lambda it, of: s.JsonNode("integers", it.key),

    construct.Array: lambda it, of: s.ListNode(tree_of(it.count), of(it.subcon), declared=it.subcon),
    arrays.Numbers:  lambda it, of: s.ListNode(tree_of(it.count), of(it.number)),
    arrays.Strings:  lambda it, of: s.ListNode(tree_of(it.count), s.TextNode(of(it.length))),
    numbers.Sizes:   lambda it, of: s.CountedNode(of(it.count), of(it.size)),

    construct.IfThenElse: lambda it, of: _switch(as_condition(tree_of(it.condfunc)), {True: it.thensubcon}, it.elsesubcon, of),
    construct.Switch:     lambda it, of: _switch(tree_of(it.keyfunc), it.cases, it.default, of),

    structs.Derived:      lambda it, of: s.DerivedNode(read(it.of), it.of),
    construct.Computed:   lambda it, of: s.DerivedNode(read(it.func), partial(construct.evaluate, it.func)),
    construct.Tell:       lambda it, of: s.DerivedNode(None),
    construct.Pass:       lambda it, of: s.DerivedNode(None),
    construct.Terminated: lambda it, of: s.DerivedNode(None),
    structs.Padding:      lambda it, of: s.PaddingNode(tree_of(it.to), read(it.may_lack)),

    numbers.TensorField: lambda it, of: s.ArrayNode(of(it.number), tuple(map(tree_of, it.dims)), it.number.itemsize),
    Blocks:              lambda it, of: s.ArrayNode(of(it.block), tuple(map(tree_of, it.dims[:2])), it.size, it.weights),
    TensorData:          lambda it, of: s.PayloadsNode(it.table, read(it.padded_to)),
}
# fmt: on


def _switch(on: Expression, cases: Mapping[Any, Any], default: Any, of: Callable[[Any], Node]) -> Node:
    other = None if default is construct.Pass else of(default)
    stored = {key: case for key, case in cases.items() if other or case is not construct.Pass}
    named = [SwitchCase(str(key), getattr(key, "code", key), of(case)) for key, case in stored.items()]
    return s.SwitchNode(on, tuple(named), other)


def _register(declared: Any, read: Read) -> None:
    kind = declared if isinstance(declared, type) else type(declared)
    node_of.register(kind, lambda it, schema, name: read(it, lambda inner: node_of(inner, schema, name)))


for declared, read_parts in NODES.items():
    _register(declared, read_parts)


@node_of.register(construct.Padded)
def _(declared: construct.Padded, schema: Schema, name: str) -> Node:
    if declared.subcon is not construct.Pass:
        raise UnsupportedError("construct's Padded is supported only as Padding")
    return wrap(s.BytesNode(tree_of(declared.length)), options=(None,), is_closed=True)


@node_of.register(construct.StringEncoded)
def _(declared: construct.StringEncoded, schema: Schema, name: str) -> Node:
    if not isinstance(declared.subcon, construct.Prefixed):
        raise UnsupportedError("only length-prefixed strings are supported")
    encoding = codecs.lookup(declared.encoding).name
    return s.TextNode(node_of(declared.subcon.lengthfield, schema, name), encoding, is_strict=True)


@node_of.register(construct.FocusedSeq)
def _(declared: construct.FocusedSeq, schema: Schema, name: str) -> Node:
    if [part.name for part in declared.subcons] != ["count", "items"]:
        raise UnsupportedError("construct's FocusedSeq is supported only as PrefixedArray")
    count, items = declared.subcons
    item = items.subcon.subcon
    return s.CountedNode(node_of(count, schema, name), node_of(item, schema, name), has_scope=True, declared=item)


@node_of.register(KeyValues)
def _(declared: KeyValues, schema: Schema, name: str) -> Node:
    rows = node_of(declared.subcon, schema, name)
    assert isinstance(rows, s.ListNode)
    assert isinstance(rows.item, RefNode)
    struct = schema.structs[rows.item.name]
    schema.structs[struct.name] = replace(struct, rules=(declared.once, *struct.rules))
    rows = replace(rows, key=declared.once.field, value="value", once=declared.once)
    return wrap(rows, decode=lambda stored, *_: declared.of_rows(stored))


def tree_of(expression: Any) -> Expression:
    """Parses an expression. Raises UnsupportedError for a function."""
    if (tree := read(expression)) is None:
        raise UnsupportedError(f"expected an expression such as this.count, found the function {expression!r}")
    return tree
