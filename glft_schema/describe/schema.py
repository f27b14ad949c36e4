"""Reads declarations: what constructs say, as the tree of `glft_schema.describe.nodes`.

`schema_of` reads a format or a tensor type. `node_of` reads any construct made of the parts that the formats use;
``node_of.register`` teaches it another class of construct.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import singledispatch
from typing import Any

import construct

from glft_schema.codec import arrays, numbers, structs, tables, type_codes
from glft_schema.codec import text as codec_text
from glft_schema.codec.expressions import Expression, read
from glft_schema.codec.metadata import KeyValues
from glft_schema.codec.metadata_lines import KeyValueLines
from glft_schema.codec.rules import Check
from glft_schema.describe.nodes import (
    FILE,
    BlockArray,
    ByteOrder,
    Bytes,
    Code,
    Counted,
    Derived,
    Either,
    Field,
    Lines,
    List,
    Node,
    Number,
    Numbers,
    Padding,
    Payloads,
    Ref,
    Schema,
    StructOf,
    Switch,
    SwitchCase,
    Text,
    TypeOf,
)
from glft_schema.formats.format import Format
from glft_schema.tensor_types.blocks import Blocks
from glft_schema.tensor_types.tensor_type import TensorType
from glft_schema.tensors.region import TensorData

ORDERS = {"<": "little", ">": "big", "=": "file"}
LETTERS = {"B": "u8", "b": "i8", "H": "u16", "h": "i16", "L": "u32", "l": "i32", "Q": "u64", "q": "i64"}
LETTERS |= {"e": "f16", "f": "f32", "d": "f64"}


def schema_of(described: Format | TensorType) -> Schema:
    """Reads a format, with each of its tensor types, or one tensor type."""
    if isinstance(described, TensorType):
        schema = Schema(described.name)
        schema.types.append(_type_of(described, schema))
        return schema
    schema = container_schema(described)
    schema.types.extend(_type_of(type_, schema) for type_ in sorted(described.types, key=lambda type_: type_.code))
    return schema


def container_schema(format: Format) -> Schema:
    """Reads a format without its tensor types."""
    schema = Schema(format.name, format)
    node_of(format.struct, schema, FILE)
    return schema


def _type_of(type_: TensorType, schema: Schema) -> TypeOf:
    payload = node_of(type_.payload, schema, type_.scheme if type_.block is None else f"{type_.scheme}_payload")
    assert isinstance(payload, Ref)
    nodes = [part.node for part in schema.structs[payload.name].fields]
    block = next((node.block for node in nodes if isinstance(node, BlockArray)), None)
    weights = type_.least_row
    row = type_.nbytes([1, weights])
    nbytes = type_.nbytes([1, 2 * weights]) - row
    return TypeOf(type_, payload.name, block, weights, nbytes, row - nbytes, schema.structs[payload.name].rules)


@singledispatch
def node_of(declared: Any, schema: Schema, name: str) -> Node:
    """Reads a construct; the structs in it go to `schema.structs`, and `name` is for those without a title.

    Raises:
        NotImplementedError: for a class of construct that nobody has taught it.
    """
    raise NotImplementedError(f"{type(declared).__name__} has no description: teach it with node_of.register")


@node_of.register
def _(declared: construct.Renamed, schema: Schema, name: str) -> Node:
    return node_of(declared.subcon, schema, name)


@node_of.register
def _(declared: construct.Adapter, schema: Schema, name: str) -> Node:
    return node_of(declared.subcon, schema, name)


@node_of.register
def _(declared: construct.LazyBound, schema: Schema, name: str) -> Node:
    return node_of(declared.subconfunc(), schema, name)


@node_of.register
def _(declared: tables.Nested, schema: Schema, name: str) -> Node:
    return node_of(declared.subcon, schema, name)


@node_of.register(construct.Struct)
def _(declared: construct.Struct, schema: Schema, name: str) -> Ref:
    name = getattr(declared, "title", "") or name
    names = [part.name for part in declared.subcons]
    while name in schema.structs and schema.read[name] != names:  # another struct that is called the same
        name += "_"
    if name in schema.structs:  # itself, some levels above, or read before
        return Ref(name)
    schema.structs[name], schema.read[name] = StructOf(name, (), (), (), None), names
    rules = tuple(part for part in declared.subcons if isinstance(part, Check))
    made = []
    for part in declared.subcons:
        if not isinstance(part, Check):
            node = node_of(part, schema, part.name or name)
            guards = tuple(rule for rule in rules if rule.field == part.name)
            is_count, default, refuses = structs.is_count(part), default_of(part), _refused_by(part)
            made.append(Field(part.name or "", part.docs, node, is_count, default, guards, refuses))
    offsets: list[int | None] = [0]
    for part in made:
        size = schema.size(part.node)
        offsets.append(None if size is None or offsets[-1] is None else offsets[-1] + size)
    schema.structs[name] = StructOf(name, tuple(made), rules, tuple(offsets[:-1]), offsets[-1])
    return Ref(name)


def _refused_by(part: construct.Construct) -> tuple[str, ...]:
    """Returns what the constructs that a field is wrapped in say that they refuse."""
    refused: tuple[str, ...] = ()
    while True:
        refused += vars(part).get("refuses", getattr(type(part), "refuses", ()))  # its own, not what it wraps
        if not isinstance(part, construct.Subconstruct):
            return refused
        part = part.subcon


def default_of(part: construct.Construct) -> int | bytes | None:
    """Returns what a field is unless told otherwise, where that is a number or bytes."""
    while isinstance(part, construct.Subconstruct):
        if isinstance(part, (construct.Default, construct.Const)):
            value = part.value
            return value if isinstance(value, (int, bytes)) else None
        part = part.subcon
    return None


@node_of.register(construct.Default)
@node_of.register(construct.Const)
@node_of.register(construct.Rebuild)
def _(declared: construct.Subconstruct, schema: Schema, name: str) -> Node:
    return node_of(declared.subcon, schema, name)


@node_of.register
def _(declared: construct.FormatField, schema: Schema, name: str) -> Number:
    return Number(LETTERS[declared.fmtstr[-1]], ORDERS.get(declared.fmtstr[0], "little"))


@node_of.register
def _(declared: numbers.Number, schema: Schema, name: str) -> Number:
    return Number(declared.kind, "file")


@node_of.register
def _(declared: construct.Bytes, schema: Schema, name: str) -> Bytes:
    return Bytes(known(declared.length))


@node_of.register(type(construct.GreedyBytes))
def _(declared: Any, schema: Schema, name: str) -> Bytes:
    return Bytes(None)


@node_of.register
def _(declared: construct.StringEncoded, schema: Schema, name: str) -> Text:
    if not isinstance(declared.subcon, construct.Prefixed):
        raise NotImplementedError("only texts after their length have a description")
    return Text(node_of(declared.subcon.lengthfield, schema, name))


@node_of.register
def _(declared: codec_text.Text, schema: Schema, name: str) -> Text:
    return Text(node_of(declared.length, schema, name))


@node_of.register
def _(declared: construct.FocusedSeq, schema: Schema, name: str) -> Counted:
    if [part.name for part in declared.subcons] != ["count", "items"]:
        raise NotImplementedError("of construct's FocusedSeq only PrefixedArray has a description")
    count, items = declared.subcons
    return Counted(node_of(count, schema, name), node_of(items.subcon.subcon, schema, name))


@node_of.register
def _(declared: numbers.Sizes, schema: Schema, name: str) -> Counted:
    return Counted(node_of(declared.count, schema, name), node_of(declared.size, schema, name))


@node_of.register
def _(declared: construct.Array, schema: Schema, name: str) -> List:
    return List(known(declared.count), node_of(declared.subcon, schema, name))


@node_of.register
def _(declared: KeyValues, schema: Schema, name: str) -> List:
    row = node_of(declared.subcon.subcon, schema, name)
    assert isinstance(row, Ref)
    struct = schema.structs[row.name]
    schema.structs[row.name] = replace(struct, rules=(declared.once, *struct.rules))
    return List(known(declared.subcon.count), row, declared.once.field, "value")


@node_of.register
def _(declared: arrays.Numbers, schema: Schema, name: str) -> List:
    return List(known(declared.count), node_of(declared.number, schema, name))


@node_of.register
def _(declared: arrays.Strings, schema: Schema, name: str) -> List:
    return List(known(declared.count), Text(node_of(declared.length, schema, name)))


@node_of.register
def _(declared: numbers.Picked, schema: Schema, name: str) -> Either:
    then, otherwise = (Number(number.kind, "file") for number in (declared.then, declared.otherwise))
    return Either(known(declared.condition), then, otherwise)


@node_of.register
def _(declared: type_codes.TypeCode, schema: Schema, name: str) -> Code:
    return Code(node_of(declared.subcon, schema, name), declared.table)


@node_of.register
def _(declared: construct.Switch, schema: Schema, name: str) -> Switch:
    cases: Mapping[Any, construct.Construct] = declared.cases
    named = [SwitchCase(str(key), getattr(key, "code", key), node_of(case, schema, name)) for key, case in cases.items()]
    return Switch(known(declared.keyfunc), tuple(named))


@node_of.register
def _(declared: numbers.TensorField, schema: Schema, name: str) -> Numbers:
    return Numbers(Number(declared.number.kind, "file"), tuple(known(dim) for dim in declared.dims))


@node_of.register
def _(declared: Blocks, schema: Schema, name: str) -> BlockArray:
    ref = node_of(declared.block, schema, name)
    assert isinstance(ref, Ref)
    return BlockArray(declared.weights, ref.name)


@node_of.register
def _(declared: KeyValueLines, schema: Schema, name: str) -> Lines:
    return Lines(known(declared.size))


@node_of.register
def _(declared: structs.Padding, schema: Schema, name: str) -> Padding:
    return Padding(known(declared.to), read(declared.may_lack))


@node_of.register
def _(declared: numbers.ByteOrderOf, schema: Schema, name: str) -> ByteOrder:
    return ByteOrder(Number(declared.number.kind, "file"))


@node_of.register
def _(declared: structs.Derived, schema: Schema, name: str) -> Derived:
    return Derived(read(declared.of))


@node_of.register
def _(declared: TensorData, schema: Schema, name: str) -> Payloads:
    return Payloads(declared.table, read(declared.padded_to))


def known(expression: Any) -> Expression:
    """Returns an expression, taken apart. Raises NotImplementedError for a function, which cannot be."""
    if (found := read(expression)) is None:
        raise NotImplementedError(f"expected an expression such as this.count, found the function {expression!r}")
    return found
