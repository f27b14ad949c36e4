"""A schema as JSON, for other generators. docs/formats/json.md documents the structure."""

from __future__ import annotations

import json
from typing import Any

import glft_schema.describe.nodes as s
from glft_schema.codec.expressions import Expression, in_python
from glft_schema.describe.sentences import condition_of
from glft_schema.describe.traversal import by_code


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
        "tables": {name: {str(type_.code): type_.name for type_ in by_code(of)} for name, of in schema.tables.items()},
        "tensor_types": [_type(type_) for type_ in schema.types],
    }


def _struct(struct: s.StructOf, schema: s.Schema) -> dict[str, Any]:
    fields = []
    for part, offset in zip(struct.fields, struct.offsets, strict=True):
        field = {"name": part.name, "doc": part.doc, "offset": offset, "size": schema.size(part.node), "node": _node(part.node)}
        if part.is_count:
            field["is_count"] = True
        if part.refuses:
            field["refuses"] = list(part.refuses)
        if part.value is not None:
            field["value"] = list(part.value) if isinstance(part.value, bytes) else part.value
        fields.append(field)
    rules = []
    for rule in struct.rules:
        condition = _optional(condition_of(rule))
        about = {"id": rule.id, "field": rule.field, "expected": rule.expected, "sets": list(rule.sets)}
        rules.append({**about, "condition": condition})
    return {"size": struct.size, "fields": fields, "rules": rules}


def _type(type_: s.TypeOf) -> dict[str, Any]:
    return {
        "name": type_.type.name,
        "code": type_.type.code,
        "scheme": type_.type.scheme,
        "payload": type_.payload,
        "block": type_.block,
        "weights": type_.weights,
        "nbytes": type_.nbytes,
        "row_nbytes": type_.row_nbytes,
        "formula": type_.formula,
        "has_encoder": type_.type.has_encoder,
        "needs_importance": type_.type.needs_importance,
    }


def _node(node: s.Node) -> dict[str, Any]:
    """Returns a node as its kind and the attributes of its class."""
    match node:
        case s.Number():
            return {"kind": "number", "number": node.kind, "byte_order": node.order}
        case s.Bytes():
            return {"kind": "bytes", "length": _optional(node.size)}
        case s.Text():
            return {"kind": "text", "encoding": "utf-8", "length": _node(node.length)}
        case s.List():
            entry = {"key": node.key, "value": node.value}
            return {"kind": "list", "count": in_python(node.count), **entry, "item": _node(node.item)}
        case s.Counted():
            return {"kind": "counted", "count": _node(node.count), "item": _node(node.item)}
        case s.Numbers():
            return {"kind": "numbers", "dims": [in_python(dim) for dim in node.dims], "item": _node(node.number)}
        case s.BlockArray():
            return {"kind": "blocks", "weights": node.weights, "struct": node.block}
        case s.Either():
            then, otherwise = _node(node.then), _node(node.otherwise)
            return {"kind": "either", "condition": in_python(node.condition), "then": then, "otherwise": otherwise}
        case s.Code():
            return {"kind": "code", "table": s.table_name(node.table), "number": _node(node.number)}
        case s.Switch():
            cases = [{"name": case.name, "code": case.code, "node": _node(case.node)} for case in node.cases]
            return {"kind": "switch", "on": in_python(node.on), "cases": cases}
        case s.Ref():
            return {"kind": "struct", "struct": node.name}
        case s.Lines():
            return {"kind": "lines", "length": in_python(node.size)}
        case s.Padding():
            return {"kind": "padding", "to": in_python(node.to), "may_lack": _optional(node.may_lack)}
        case s.ByteOrder():
            return {"kind": "byte_order", "number": node.number.kind}
        case s.Derived():
            return {"kind": "derived", "from": _optional(node.value)}
        case s.Payloads():
            return {"kind": "payloads", "table": node.table, "to": _optional(node.to)}


def _optional(expression: Expression | None) -> str | None:
    return in_python(expression) if expression else None
