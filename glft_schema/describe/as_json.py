"""A schema as JSON, for other generators. docs/reference/json.md documents the structure."""

from __future__ import annotations

import json
from typing import Any

import glft_schema.describe.nodes as s
from glft_schema.codec.expressions import Expression, in_python
from glft_schema.codec.type_codes import TypeTable
from glft_schema.describe.sentences import condition_of


def as_json(schema: s.Schema) -> str:
    """Returns the schema as JSON text."""
    return json.dumps(as_data(schema), indent=2, ensure_ascii=False) + "\n"


def as_data(schema: s.Schema) -> dict[str, Any]:
    """Returns the schema as lists, dicts, text and numbers."""
    return {
        "title": schema.title,
        "byte_orders": list(schema.byte_orders) if schema.format else None,
        "root": s.FILE if schema.format else schema.types[0].payload,
        "structs": {name: _struct(struct, schema) for name, struct in schema.structs.items()},
        "tables": {name: {str(code): type_.name for code, type_ in of.by_code()} for name, of in schema.tables.items()},
        "tensor_types": [_type(type_) for type_ in schema.types],
    }


def _struct(struct: s.StructOf, schema: s.Schema) -> dict[str, Any]:
    fields = []
    for part, offset in zip(struct.fields, struct.offsets, strict=True):
        field = {"name": part.name, "doc": part.doc, "offset": offset, "size": schema.size(part.node), "node": _data(part.node)}
        if part.is_count:
            field["is_count"] = True
        if part.refuses:
            field["refuses"] = [fault.sentence for fault in part.refuses]
        if part.value is not None:
            field["value"] = list(part.value) if isinstance(part.value, bytes) else part.value
            field |= {"is_constant": True} if part.is_constant else {}
        fields.append(field)
    rules = []
    for rule in struct.rules:
        condition = _data(condition_of(rule))
        about = {"id": rule.id, "field": rule.field, "expected": rule.sentence, "sets": list(rule.sets)}
        rules.append({**about, "condition": condition})
    return {"size": struct.size, "fields": fields, "rules": rules}


def _type(type_: s.TypeOf) -> dict[str, Any]:
    sizes = {name: getattr(type_, name) for name in ("payload", "block", "weights", "nbytes", "row_nbytes", "formula")}
    encoder = {"has_encoder": type_.type.has_encoder, "needs_importance": type_.type.needs_importance}
    return {"name": type_.type.name, "code": type_.code, "scheme": type_.type.scheme, **sizes, **encoder}


# The kind of each node, and its attributes under the names of docs/reference/json.md.
KINDS: dict[type, tuple[str, str]] = {
    s.NumberNode: ("number", "kind=number order=byte_order"),
    s.BytesNode: ("bytes", "size=length"),
    s.TextNode: ("text", "length"),
    s.ListNode: ("list", "count key value item"),
    s.CountedNode: ("counted", "count item"),
    s.ArrayNode: ("numbers", "dims item"),
    s.EitherNode: ("either", "condition then otherwise"),
    s.CodeNode: ("code", "table number"),
    s.SwitchNode: ("switch", "on cases default"),
    s.RefNode: ("struct", "name=struct"),
    s.LinesNode: ("lines", "size=length"),
    s.JsonTableNode: ("json_table", "size=length item reserved"),
    s.JsonTextsNode: ("json_texts", "table item"),
    s.JsonNode: ("json", "kind=value key index"),
    s.PaddingNode: ("padding", "to may_lack"),
    s.DerivedNode: ("derived", "value=from"),
    s.PayloadsNode: ("payloads", "table to"),
}


def _data(value: Any) -> Any:
    """Returns a node, or an attribute of one, as plain data."""
    if isinstance(value, Expression):
        return in_python(value)
    if isinstance(value, tuple):
        return [_data(part) for part in value]
    if isinstance(value, TypeTable):
        return s.table_name(value)
    if isinstance(value, s.SwitchCase):
        return {"name": value.name, "code": value.code, "node": _data(value.node)}
    if isinstance(value, s.ByteOrderNode):
        return {"kind": "byte_order", "number": value.number and value.number.kind}
    if isinstance(value, s.ArrayNode) and isinstance(value.item, s.RefNode):
        return {"kind": "blocks", "weights": value.weights, "struct": value.item.name}
    if type(value) not in KINDS:
        return value
    kind, attributes = KINDS[type(value)]
    names = [attribute.partition("=") for attribute in attributes.split()]
    more: dict[str, Any] = {"encoding": "utf-8"} if isinstance(value, s.TextNode) else {}
    more |= {"bits": dict(value.bits)} if isinstance(value, s.NumberNode) and value.bits else {}
    return {"kind": kind, **more, **{key or name: _data(getattr(value, name)) for name, _, key in names}}
