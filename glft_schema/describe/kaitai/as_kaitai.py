"""A schema in the language of Kaitai Struct, whose compiler generates readers in a dozen languages.

Structs become types, and their fields attributes in order. Fields without bytes become instances.
Constructs that Kaitai Struct lacks become small generated types. See docs/reference/kaitai.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import glft_schema.describe.nodes as s
from glft_schema.codec.expressions import Reversed
from glft_schema.codec.rules import Check
from glft_schema.codec.trace import STEP
from glft_schema.describe.kaitai.expressions import Location, references
from glft_schema.describe.kaitai.names import KaitaiNames
from glft_schema.describe.kaitai.table_rows import with_lookup, with_payload
from glft_schema.describe.kaitai.types import ENCODING, IN, OUT, Attr, Types, every, times
from glft_schema.describe.schema import UndescribedError
from glft_schema.describe.sentences import condition_of, origin, rule_text, rules_of_no_field
from glft_schema.errors import UnsupportedError, without_controls

LICENSE = "MIT"
COMPILER = "0.11"  # the first that supports all constructs used here
PARAMS = {OUT: "Rows of the tensor, as a matrix.", IN: "Numbers in a row: `in`."}
IN_FILE_ORDER = re.compile(r"[us][248]|f[48]")


def as_kaitai(schema: s.Schema) -> str:
    """Returns the schema as the text of a ``.ksy`` file, in JSON, which is YAML, too.

    The file describes a whole file of a format; one block of a tensor type; or, for types without
    blocks, a payload of given sizes.

    Raises:
        UnsupportedError: if Kaitai Struct cannot express a field.
    """
    type_ = schema.types[0] if schema.format is None else None
    root = s.FILE if type_ is None else type_.block or type_.payload
    types = Types(schema, root, KaitaiNames().new(type_.type.scheme if type_ else schema.title, "type"))
    specs = {name: _struct(types, name) for name in (root, *types.ids)}
    for name in specs:
        for part in schema.structs[name].fields:
            if isinstance(part.node, s.PayloadsNode) and not isinstance(
                schema.structs[name].field(part.node.table).node, s.JsonTableNode
            ):
                with_payload(types, specs, name, part)
    for search in types.expressions.searches.values():
        with_lookup(types, specs, search)
    text = json.dumps(_finished(_document(types, specs)), indent=2, ensure_ascii=False)
    return without_controls(text, lambda letter: json.dumps(letter)[1:-1], keep="\n") + "\n"


def _document(types: Types, specs: dict[str, Attr]) -> Attr:
    root = specs[types.root]
    format = types.schema.format
    extensions = [ending[1:] for ending in format.endings] if format else []
    meta: Attr = {"id": types.id, "title": types.schema.title, **({"file-extension": extensions} if extensions else {})}
    meta |= {"license": LICENSE, "ks-version": COMPILER, "encoding": ENCODING, "endian": types.endian}
    known = {id: specs[name] for name, id in types.ids.items()} | types.own
    document = {
        **root,
        "meta": meta,
        "doc": "\n".join([*map(str.strip, origin(types.schema, "kaitai", "ksy")), *filter(None, [root.get("doc")])]),
        "instances": _byte_order(types) | root["instances"],
        "types": {id: _non_empty(_in_file_order(types, spec)) for id, spec in known.items()},
        "enums": types.enums,
    }
    return _non_empty(document)


def _non_empty(spec: Attr) -> Attr:
    """Returns the non-empty keys of a type, in Kaitai's customary order."""
    order = ("meta", "doc", "params", "seq", "instances", "types", "enums")
    return {key: spec[key] for key in order if spec.get(key)}


def _finished(value: Any, key: str = "") -> Any:
    """Returns data with sizes as numbers, and with docs that are safe in comments, to which the
    compiler copies them."""
    if isinstance(value, dict):
        return {key: _finished(part, key) for key, part in value.items()}
    if isinstance(value, list):
        return [_finished(part) for part in value]
    if isinstance(value, str) and key in ("size", "repeat-expr") and value.isdigit():
        return int(value)
    return _comment(value) if isinstance(value, str) and key == "doc" else value


def _comment(text: str) -> str:
    """Returns text that cannot end a comment, start an escape or change the text direction."""
    visible = without_controls(text, lambda letter: f"U+{ord(letter):04X}", keep="\n")
    return visible.replace("\\", "\\\\").replace("*/", "* /").replace('"""', "'''")


# Byte order


def _byte_order(types: Types) -> dict[str, Attr]:
    """Returns the instances of the root that determine the byte order, if it varies."""
    if types.is_big is None:
        return {}
    nodes = _nested_nodes(types.schema, types.root, 0)
    switches = [(offset, node.number) for offset, node in nodes if isinstance(node, s.ByteOrderNode)]
    match switches:
        case [(int(offset), s.NumberNode() as number)]:
            pass
        case _:
            raise UnsupportedError("expected one number at a fixed offset to determine the byte order")
    name = types.expressions.names[types.root].new("number that tells byte order")
    kind = types.kind(replace(number, order="little"))
    return {
        name: {"doc": "Read as little-endian, whatever the byte order is.", "pos": offset, "type": kind},
        types.is_big: {"doc": "The byte order, see below.", "value": f"{name} != 0 and {name} % 65536 == 0"},
    }


def _nested_nodes(schema: s.Schema, struct: str, start: int | None) -> Iterator[tuple[int | None, s.Node]]:
    """Yields the nodes of a struct and of structs in it, with their offsets if fixed."""
    described = schema.structs[struct]
    for part, offset in zip(described.fields, described.offsets, strict=True):
        at = None if offset is None or start is None else start + offset
        yield at, part.node
        if isinstance(part.node, s.RefNode):
            yield from _nested_nodes(schema, part.node.name, at)


def _in_file_order(types: Types, spec: Attr) -> Attr:
    """Returns a type with the file's byte order, if that varies and the type has numbers."""
    declared = [attr.get("type") for attr in spec.get("seq", ())]
    kinds = [kind for type_ in declared for kind in (type_["cases"].values() if isinstance(type_, dict) else [type_])]
    if types.is_big is None or not any(isinstance(kind, str) and IN_FILE_ORDER.fullmatch(kind) for kind in kinds):
        return spec
    return {**spec, "meta": {"endian": {"switch-on": f"_root.{types.is_big}", "cases": {"true": "be", "false": "le"}}}}


# Structs


def _struct(types: Types, name: str) -> Attr:
    """Returns the type of a struct: attributes, and instances for fields without bytes."""
    struct, names = types.schema.structs[name], types.expressions.names[name]
    is_payload = any(type_.payload == name for type_ in types.schema.types)
    at = Location(name, 0, {OUT: names.new("out"), IN: names.new("columns")} if is_payload else {})
    doc, checks, instances = list(_about_type(types, name)), list(_checks(types, struct, at)), dict[str, Attr]()
    doc += map(rule_text, rules_of_no_field(struct))
    seq = [_check(rule, text) for rule, text, after in checks if after is None]
    for part in struct.fields:
        about = [*filter(None, [part.doc]), *map(rule_text, part.rules)]
        try:
            attrs, computed = _field(types, part, at)
        except UnsupportedError as error:
            raise UndescribedError(part.name if name == types.root else f"{name}{STEP}{part.name}", error) from None
        if not attrs and not computed:  # no bytes and no expression
            doc.append(f"{part.name}: {' '.join(about)}")
        checks_here = [(rule, text) for rule, text, after in checks if after is part]
        if attrs and not {"repeat", "valid"} & attrs[-1].keys() and not isinstance(part.node, s.SwitchNode):  # which may lack
            conditions = [text for rule, text in checks_here if rule in part.rules]
            attrs[-1] |= {"valid": {"expr": every(*conditions)}} if conditions else {}
            checks_here = [(rule, text) for rule, text in checks_here if rule not in part.rules]
        seq += [*attrs[:-1], *(_with_doc(attr, about) for attr in attrs[-1:])]
        seq += [_check(rule, text) for rule, text in checks_here]
        bits = isinstance(part.node, s.NumberNode)  # whose field has the sentences
        instances |= computed if bits else {id: _with_doc(instance, about) for id, instance in computed.items()}
    params = [{"id": id, "doc": PARAMS[param], "type": "u8"} for param, id in at.params.items()]
    return {"doc": "\n".join(doc), "params": params, "seq": seq, "instances": instances}


def _field(types: Types, part: s.Field, at: Location) -> tuple[list[Attr], dict[str, Attr]]:
    """Returns the attributes and instances of a field; none without bytes or an expression."""
    id, node = types.expressions.ids[at.struct].get(part.name, ""), part.node
    if isinstance(node, s.JsonTextsNode):
        return [], {}
    if isinstance(node, (s.DerivedNode, s.ByteOrderNode)):
        instance = _instance(types, node, at)
        return [], {id: instance} if instance else {}
    if isinstance(node, s.CodeNode) and isinstance(types.type_of(node.number, at)["type"], dict):
        code = types.expressions.names[at.struct].new(f"{id} code")  # an enum needs a number of one kind
        (attr,) = types.attrs(code, node.number, at)
        if node.table.unknown is None:
            attr["valid"] = {"any-of": [code for code, _ in node.table.by_code()]}
        return [attr], {id: {"value": code, "enum": types.enum(node.table)}}
    attrs, names = types.attrs(id, node, at), types.expressions.names[at.struct]
    bits = node.bits if isinstance(node, s.NumberNode) else ()
    if part.is_constant and part.value != b"":
        attrs[-1]["valid"] = f"{list(part.value)}" if isinstance(part.value, bytes) else part.value
    return attrs, {names.new(f"{id} {name}"): {"value": f"({id} & {1 << bit}) != 0"} for name, bit in bits}


def _about_type(types: Types, struct: str) -> Iterator[str]:
    for type_ in types.schema.types:
        if struct in (type_.payload, type_.block):
            yield f"{type_.heading}: {type_.sizes}."
            yield f"A weight is {type_.formula}"


def _instance(types: Types, node: s.DerivedNode | s.ByteOrderNode, at: Location) -> Attr | None:
    if isinstance(node, s.ByteOrderNode):
        order = types.byte_orders()
        one = f"{order}::{types.schema.byte_orders[0]}"
        return {"value": f"_root.{types.is_big} ? {order}::big : {order}::little" if types.is_big else one}
    if node.value is None:
        return None
    if isinstance(node.value, Reversed):
        item, count = types.expressions.element(node.value, "_index", at), types.expressions.length(node.value, at)
        return {"type": f"{types.number()}({item})", **times(count)}
    return {"value": types.expressions.text(node.value, at)}


def _with_doc(attr: Attr, about: list[str]) -> Attr:
    doc = "\n".join([*about, *filter(None, [attr.get("doc")])])
    return attr | ({"doc": doc} if doc else {})


# Rules


def _check(rule: Check, text: str) -> Attr:
    """Returns an attribute without bytes that is valid only if a rule holds."""
    return {"doc": rule_text(rule), "size": 0, "valid": {"expr": text}}


def _checks(types: Types, struct: s.StructOf, at: Location) -> Iterator[tuple[Check, str, s.Field | None]]:
    """Yields the required rules with a condition, and the last field that each depends on."""
    names = [part.name for part in struct.fields]
    for rule in struct.rules:
        condition = condition_of(rule) if rule.is_required else None
        if condition is None:
            continue
        local = [ref.names[0] for ref in references(condition) if ref.names and not ref.up and not ref.of_root]
        try:
            text = types.expressions.condition(condition, at)
        except UnsupportedError:
            continue
        after = max((names.index(name) for name in (*local, rule.field) if name in names), default=None)
        yield rule, text, None if after is None else struct.fields[after]
