"""What the rows of tables can tell beside their own bytes, in Kaitai Struct: a tensor's payload, a key's value.

Kaitai Struct has neither loops nor searches. Where one is needed, rows are chained: each is given, as a parameter, what the
rows before it came to. That is found out row by row, so that no number of rows nests calls.
"""

from __future__ import annotations

import glft_schema.describe.nodes as s
from glft_schema.codec.expressions import Reference
from glft_schema.describe.identifiers import MATRIX
from glft_schema.describe.kaitai.expressions import At, KeySearch, UnsayableError
from glft_schema.describe.kaitai.types import IN, OUT, Attr, Types, times

SHAPE, DTYPE, OFFSET = "shape", "dtype", "offset"  # what `TensorData` looks for in a row


def with_payload(types: Types, specs: dict[str, Attr], struct: str, payloads: s.Field) -> None:
    """Gives each row of a table of tensors its payload: as bytes, and as its type has it.

    Args:
        types: the types.
        specs: those of structs, by name.
        struct: the struct that both the table and the payloads are in.
        payloads: the payloads.
    """
    assert isinstance(payloads.node, s.Payloads)
    said, table = types.said, next(part for part in types.schema.structs[struct].fields if part.name == payloads.node.table)
    if not isinstance(table.node, s.List) or not isinstance(table.node.item, s.Ref):
        raise UnsayableError(f"the rows of {table.name} are no structs")
    row = table.node.item.name
    spec, names, at = specs[row], said.names[row], At(row)
    seen, nbytes, raw, payload = (names.new(name) for name in ("matrix", "nbytes", "payload bytes", "payload"))
    matrix_id = types.names.new("matrix", "type")
    types.own[matrix_id] = _matrix(types, at)
    path, dtype, _ = said.find(Reference((DTYPE,)), at)
    if not isinstance(dtype.node, s.Code):
        raise UnsayableError(f"{DTYPE} is no code of a type")
    sizes, cases = [], {}
    for type_ in types.schema.types:
        found = _nbytes(types, type_, {OUT: f"{seen}.out", IN: f"{seen}.columns"})
        constant = types.constant(dtype.node.table, type_.type.code)
        sizes.append(f"{path} == {constant} ? {found} :")
        cases[constant] = f"{types.ids[type_.payload]}({seen}.out, {seen}.columns)"
    place: Attr = {"io": "_root._io", "pos": f"_parent.{said.ids[struct][payloads.name]}.start + {said.ids[row][OFFSET]}"}
    known = {"if": f"{nbytes} >= 0", "size": nbytes}
    spec["instances"] |= {
        seen: {"doc": "The tensor as a matrix.", "type": matrix_id},
        nbytes: {"doc": "Bytes of the payload; -1 where the type is not known.", "value": "\n".join([*sizes, "-1"])},
        raw: {"doc": "The payload as it is stored.", **place, **known},
        payload: {
            "doc": "The payload by the fields of its type.",
            **place,
            **known,
            "type": {"switch-on": path, "cases": cases},
        },
    }


def _matrix(types: Types, at: At) -> Attr:
    """Returns the type that works out the tensor's sizes as a matrix: `steps` are products, each of the one before."""
    shape, inside = Reference((SHAPE,)), at.inside()
    count = types.said.length(shape, inside)
    one, first = (types.said.element(shape, index, inside) for index in ("_index", "0"))
    item = f"{types.number()}(_index > 0 ? steps[_index - 1].value * {one} : {count} > 1 ? 1 : {one})"
    doc = MATRIX
    return {
        "doc": doc,
        "seq": [{"id": "steps", "doc": "Products of the sizes that count for columns.", "type": item, **times(count)}],
        "instances": {
            "out": {"doc": "Rows.", "value": f"{count} > 1 ? {first} : 1"},
            "columns": {"doc": "Numbers in a row; `in` of declarations.", "value": f"{count} > 0 ? steps.last.value : 1"},
        },
    }


def _nbytes(types: Types, type_: s.TypeOf, params: dict[str, str]) -> str:
    """Returns the bytes of a type's payload: those of its fields, one after another."""
    found, at = [], At(type_.payload, 0, params)
    for part in types.schema.structs[type_.payload].fields:
        item = part.node.number if isinstance(part.node, s.Numbers) else part.node
        size = types.schema.structs[part.node.block].size if isinstance(part.node, s.BlockArray) else types.schema.size(item)
        if size is None:
            raise UnsayableError(f"no expression counts the bytes of {type_.type} {part.name}")
        count = types.count(part.node, at) if isinstance(part.node, (s.Numbers, s.BlockArray)) else "1"
        found.append(" * ".join([*([count] if count != "1" else []), *([str(size)] if size != 1 or count == "1" else [])]))
    return " + ".join(found) or "0"


def with_lookup(types: Types, specs: dict[str, Attr], lookup: KeySearch) -> None:
    """Gives each row of a table what was found of a key up to it."""
    said, node, wanted = types.said, lookup.table.node, lookup.wanted
    assert isinstance(node, s.List)
    assert isinstance(node.item, s.Ref)
    row, table = node.item.name, said.ids[lookup.struct][lookup.table.name]
    attr = next(attr for attr in specs[lookup.struct]["seq"] if attr.get("id") == table)
    before = f"_index > 0 ? {table}[_index - 1].{lookup.after} : {wanted.default}"
    attr["type"] = f"{attr['type'].removesuffix(')')}{', ' if '(' in attr['type'] else '('}{before})"
    key, key_field, _ = said.find(Reference((str(node.key),)), At(row))
    if not isinstance(key_field.node, s.Text):
        raise UnsayableError(f"the keys of {lookup.table.name} are no texts")
    asked = f"{key}.bytes == [{', '.join(map(str, wanted.key.encode()))}]"
    doc = f"What {wanted.key} is in the rows before, or {wanted.default}."
    specs[row].setdefault("params", []).append({"id": lookup.before, "doc": doc, "type": "u8"})
    value = "\n".join([f"{asked} ? (", *_integer(types, row, str(node.value)), f"{lookup.before}) : {lookup.before}"])
    doc = f"The same up to this row: its own value where it is an integer and the key is {wanted.key}, which is spelled here."
    specs[row]["instances"][lookup.after] = {"doc": doc, "value": value}


def _integer(types: Types, row: str, value: str) -> list[str]:
    """Returns the beginning of an expression that is a field's value where it is an integer: what it is else is to follow."""
    path, part, _ = types.said.find(Reference((value,)), At(row))
    if not isinstance(part.node, s.Switch):
        raise UnsayableError(f"{value} is not decided by a field before")
    on, code, _ = types.said.find(part.node.on, At(row))
    if not isinstance(code.node, s.Code):
        raise UnsayableError(f"{on} is no code of a type")
    cases = [(types.constant(code.node.table, case.code), case.node) for case in part.node.cases]
    return [
        f"{on} == {constant} ? {path}.as<{types.kind(node)}> :"
        for constant, node in cases
        if isinstance(node, s.Number) and node.kind[0] in "ui"
    ]
