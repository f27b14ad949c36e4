"""Kaitai Struct instances that depend on table rows: a tensor's payload, and the value of a
metadata key.

Kaitai Struct has neither loops nor searches. Instead, each row gets the result of the previous rows
as a parameter. Rows are evaluated in order, so the recursion stays shallow.
"""

from __future__ import annotations

import glft_schema.describe.nodes as s
from glft_schema.codec.expressions import Reference
from glft_schema.describe.kaitai.expressions import KeySearch, Location
from glft_schema.describe.kaitai.types import IN, OUT, Attr, Types, times
from glft_schema.describe.sentences import MATRIX
from glft_schema.errors import UnsupportedError

SHAPE, DTYPE, OFFSET = "shape", "dtype", "offset"  # the fields of a row that `TensorData` uses


def with_payload(types: Types, specs: dict[str, Attr], struct: str, payloads: s.Field) -> None:
    """Adds the payload to the rows of a tensor table: as bytes, and by the fields of its type.

    Args:
        types: the types.
        specs: the types of structs, by name.
        struct: the struct that contains both the table and the payloads.
        payloads: the field of the payloads.
    """
    assert isinstance(payloads.node, s.PayloadsNode)
    expressions = types.expressions
    table = types.schema.structs[struct].field(payloads.node.table).node
    if not isinstance(table, s.ListNode) or not isinstance(table.item, s.RefNode):
        raise UnsupportedError(f"the rows of {payloads.node.table} are not structs")
    row = table.item.name
    spec, names, at = specs[row], expressions.names[row], Location(row)
    matrix, nbytes, raw, payload = (names.new(name) for name in ("matrix", "nbytes", "payload bytes", "payload"))
    matrix_id = types.names.new("matrix", "type")
    types.own[matrix_id] = _matrix(types, at)
    path, dtype, _ = expressions.find(Reference((DTYPE,)), at)
    if not isinstance(dtype.node, s.CodeNode):
        raise UnsupportedError(f"{DTYPE} is not the code of a type")
    sizes, cases = [], {}
    for type_ in types.schema.types:
        constant = types.constant(dtype.node.table, type_.code)
        size = _nbytes(types, type_, {OUT: f"{matrix}.out", IN: f"{matrix}.columns"})
        sizes.append(f"{path} == {constant} ? {size} :")
        cases[constant] = f"{types.ids[type_.payload]}({matrix}.out, {matrix}.columns)"
    ids = expressions.ids
    region: Attr = {"io": "_root._io", "pos": f"_parent.{ids[struct][payloads.name]}.start + {ids[row][OFFSET]}"}
    region |= {"if": f"{nbytes} >= 0", "size": nbytes}
    spec["instances"] |= {
        matrix: {"doc": "The tensor as a matrix.", "type": matrix_id},
        nbytes: {"doc": "Bytes of the payload; -1 if the type is unknown.", "value": "\n".join([*sizes, "-1"])},
        raw: {"doc": "The payload as stored.", **region},
        payload: {"doc": "The payload by the fields of its type.", **region, "type": {"switch-on": path, "cases": cases}},
    }


def _matrix(types: Types, at: Location) -> Attr:
    """Returns the type of a tensor's sizes as a matrix, from cumulative products."""
    shape, inside = Reference((SHAPE,)), at.inside()
    count = types.expressions.length(shape, inside)
    size, first = (types.expressions.element(shape, index, inside) for index in ("_index", "0"))
    item = f"{types.number()}(_index > 0 ? steps[_index - 1].value * {size} : {count} > 1 ? 1 : {size})"
    return {
        "doc": MATRIX,
        "seq": [{"id": "steps", "doc": "Cumulative products of the sizes that make up a row.", "type": item, **times(count)}],
        "instances": {
            "out": {"doc": "Rows.", "value": f"{count} > 1 ? {first} : 1"},
            "columns": {"doc": "Numbers in a row; `in` of declarations.", "value": f"{count} > 0 ? steps.last.value : 1"},
        },
    }


def _nbytes(types: Types, type_: s.TypeOf, params: dict[str, str]) -> str:
    """Returns the size of a type's payload: the sum of the sizes of its fields."""
    sizes, at = [], Location(type_.payload, 0, params)
    for part in type_.struct.fields:
        if not isinstance(part.node, s.ArrayNode):
            raise UnsupportedError(f"Kaitai Struct cannot express the size of {type_.type} {part.name}")
        count, size = types.count(part.node, at), str(part.node.size)
        sizes.append(" * ".join([number for number in (count, size) if number != "1"]) or "1")
    return " + ".join(sizes) or "0"


def with_lookup(types: Types, specs: dict[str, Attr], search: KeySearch) -> None:
    """Adds an instance to the rows of a table: the value of a key in the rows so far."""
    node, lookup, table = search.table.node, search.lookup, types.expressions.ids[search.struct][search.table.name]
    assert isinstance(node, s.ListNode)
    assert isinstance(node.item, s.RefNode)
    row = node.item.name
    attr = next(attr for attr in specs[search.struct]["seq"] if attr.get("id") == table)
    before = f"_index > 0 ? {table}[_index - 1].{search.after} : {lookup.default}"
    attr["type"] = f"{attr['type'].removesuffix(')')}{', ' if '(' in attr['type'] else '('}{before})"
    key, key_field, _ = types.expressions.find(Reference((str(node.key),)), Location(row))
    if not isinstance(key_field.node, s.TextNode):
        raise UnsupportedError(f"the keys of {search.table.name} are not strings")
    doc = f"The value of {lookup.key} in the rows before, or {lookup.default}."
    specs[row].setdefault("params", []).append({"id": search.before, "doc": doc, "type": "u8"})
    is_key = f"{key}.bytes == [{', '.join(map(str, lookup.key.encode()))}]"
    value = [f"{is_key} ? (", *_integer(types, row, str(node.value)), f"{search.before}) : {search.before}"]
    doc = f"The same up to this row: its own value if its key is {lookup.key}, spelled here in bytes, and an integer."
    specs[row]["instances"][search.after] = {"doc": doc, "value": "\n".join(value)}


def _integer(types: Types, row: str, value: str) -> list[str]:
    """Returns the start of a conditional: a field's value if it is an integer, else ..."""
    path, part, _ = types.expressions.find(Reference((value,)), Location(row))
    if not isinstance(part.node, s.SwitchNode):
        raise UnsupportedError(f"{value} does not depend on an earlier field")
    on, code, _ = types.expressions.find(part.node.on, Location(row))
    if not isinstance(code.node, s.CodeNode):
        raise UnsupportedError(f"{on} is not the code of a type")
    cases = [(types.constant(code.node.table, case.code), case.node) for case in part.node.cases]
    return [
        f"{on} == {constant} ? {path}.as<{types.kind(node)}> :"
        for constant, node in cases
        if isinstance(node, s.NumberNode) and node.kind[0] in "ui"
    ]
