"""A schema as Markdown: every field with its place, type, sentence and rules; every tensor type with its block, bit by bit.

`as_markdown` gives the whole reference; the pages under docs/formats/ take its parts, between prose.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

import glft_schema.describe.nodes as s
from glft_schema.codec.expressions import Constant, Expression, outermost
from glft_schema.codec.rules import Check
from glft_schema.describe.bit_picture import picture, weights_of_bits
from glft_schema.describe.identifiers import MATRIX, held_by

NO_BYTES = "no bytes"
NUMBERS = (
    "`u8` to `u64` are unsigned, `i8` to `i64` in two's complement, `f16`, `f32` and `f64` are IEEE 754, `bf16` is the upper"
    " half of an `f32`. Nothing is aligned unless it says so."
)
PICTURES = (
    "In pictures, bit 7 of each byte is on the left, and each bit has the weights that it has a part in. Bytes that are left"
    " out at `...` go on as the two before them; those at `... by 32` go on as the bytes 32 and 64 before them."
)
PATHS = (
    "Names with dots are paths to fields, `_root` is the file. `value_or(mapping, key, default)` is the value of a key, or the"
    " default; `reversed` turns a list round."
)


def as_markdown(schema: s.Schema) -> str:
    """Returns the reference of a format or of a tensor type."""
    if schema.format is None:
        return "\n".join([*(type_section(type_, schema, 1) for type_ in schema.types), notation(schema)])
    parts = [f"# {schema.title}\n", notation(schema), structs_reference(schema), codes_reference(schema), "\n## Tensor types\n"]
    parts += [types_table(schema), types_reference(schema)]
    return "\n".join(part.strip("\n") + "\n" for part in parts)


def notation(schema: s.Schema) -> str:
    """Returns what one has to know to read the rest: byte order, numbers, and the names in expressions."""
    orders = {None: "in the byte order of the file", 1: "little-endian", 2: "little- or big-endian, as the file is"}
    order = orders[len(schema.byte_orders) if schema.format else None]
    said = [f"Numbers are {order}, in payloads, too. {NUMBERS}", f"{MATRIX} Arrays are in C order.", PICTURES]
    said += [PATHS] if schema.format else []
    return "\n".join(textwrap.fill(f"- {text}", 120, subsequent_indent="  ") for text in said) + "\n"


def structs_reference(schema: s.Schema) -> str:
    """Returns a section for each struct of the container: its fields in order, and its rules."""
    payloads = {name for type_ in schema.types for name in (type_.payload, type_.block)}
    return "\n".join(_struct(struct, schema) for name, struct in schema.structs.items() if name not in payloads)


def codes_reference(schema: s.Schema) -> str:
    """Returns a table for each kind of type but tensor types: its codes, names, and how values are stored."""
    assert schema.format
    sections = []
    for table in schema.tables.values():
        if table is schema.format.types:
            continue
        rows = [(f"{entry.code}", f"`{entry.name}`", _stored(entry.name, schema)) for entry in sorted(table, key=_code)]
        sections.append(f"## {table.kind} types\n\n{_table(('code', 'name', 'stored as'), rows, '-::')}")
    return "\n".join(sections)


def rules_reference(schema: s.Schema) -> str:
    """Returns a table of all rules of the container: id, field, what is expected, who holds it."""
    payloads = {type_.payload for type_ in schema.types}
    rules = [rule for name, struct in schema.structs.items() if name not in payloads for rule in struct.rules]
    rows = [(f"`{rule.id}`", rule.field, rule.expected, held_by(rule)) for rule in rules]
    return _table(("rule", "field", "expected", "held by"), rows, "::::")


def types_table(schema: s.Schema) -> str:
    """Returns a row for each tensor type: code, name, weights and bytes of a block, and whether there is an encoder."""
    rows = []
    for type_ in schema.types:
        bits = 8 * type_.nbytes / type_.weights
        encoder = "by importance" if type_.type.needs_importance else "yes" if type_.type.has_encoder else ""
        rows.append((f"{type_.type.code}", type_.type.name, f"{type_.weights}", f"{type_.nbytes}", f"{bits:g}", encoder))
    return _table(("code", "name", "weights", "bytes", "bits a weight", "encoder"), rows, "-:---:")


def types_reference(schema: s.Schema) -> str:
    """Returns a section for each tensor type, by code."""
    return "\n".join(type_section(type_, schema, 3) for type_ in schema.types)


def type_section(type_: s.TypeOf, schema: s.Schema, level: int) -> str:
    """Returns the section of a tensor type: sizes, fields, the weights of each bit, formula, rules."""
    head = f"{'#' * level} {type_.type.name}, code {type_.type.code}"
    by_importance = ", by importance alone" if type_.type.needs_importance else ""
    sizes = f"{type_.sizes}; there is {'an' if type_.type.has_encoder else 'no'} encoder{by_importance}."
    struct = schema.structs[type_.block or type_.payload]
    weights = 2 * type_.weights if type_.row_nbytes else type_.weights  # two show what belongs to the row
    places = type_.type.field_spans([1, weights]) if type_.block is None else {}
    starts = {start: name for name, (start, _) in places.items()}
    starts |= {at: part.name for part, at in zip(struct.fields, struct.offsets, strict=True) if at is not None}
    lines = [head, "", sizes, "", *_fields(struct, schema), "", "```text"]
    lines += [
        *picture(weights_of_bits(type_.type, weights), starts),
        "```",
        "",
        f"A weight is {type_.formula.replace('*', chr(92) + '*')}",
    ]
    reserved = [f"- `{part.field}`: no encoder gives {part.numbers}" for part in type_.type.reserved]
    rules = _rules(schema.structs[type_.payload].rules)
    return "\n".join([*lines, *rules, *([""] if reserved and not rules else []), *reserved]) + "\n"


def _struct(struct: s.StructOf, schema: s.Schema) -> str:
    size = f", {struct.size} bytes" if struct.size is not None else ""
    return f"## {_title(struct.name)}{size}\n\n{struct_section(struct, schema)}"


def struct_section(struct: s.StructOf, schema: s.Schema) -> str:
    """Returns the fields of a struct in order, and its rules."""
    refused = [f"- `{part.name}`: never {sentence} (required)" for part in struct.fields for sentence in part.refuses]
    rules = _rules(struct.rules)
    return "\n".join([*_fields(struct, schema), *(rules or ([""] if refused else [])), *refused]) + "\n"


def _fields(struct: s.StructOf, schema: s.Schema) -> list[str]:
    rows = []
    for part, at in zip(struct.fields, struct.offsets, strict=True):
        size = schema.size(part.node)
        place = "then" if at is None else f"{at}"
        value = f"; `{_literal(part.value)}` unless given" if isinstance(part.value, int) else ""
        rows.append((place, "" if size is None else f"{size}", f"`{part.name}`", words(part.node), part.doc + value))
    return _table(("byte", "bytes", "field", "stored as", "meaning"), rows, "--:::").splitlines()


def _rules(rules: Iterable[Check]) -> list[str]:
    lines = [f"- `{rule.field}`: {rule.expected} (`{rule.id}`, {held_by(rule)})" for rule in rules]
    return ["", *lines] if lines else []


def _stored(name: str, schema: s.Schema) -> str:
    """Returns how values of a type are stored, as the first switch over it says."""
    switches = (part.node for struct in schema.structs.values() for part in struct.fields if isinstance(part.node, s.Switch))
    return next((words(case.node) for switch in switches for case in switch.cases if case.name == name), "")


def words(node: s.Node) -> str:
    """Returns what a node is, in words."""
    match node:
        case s.Number():
            return node.kind
        case s.Bytes():
            return f"{_words(node.size)} bytes" if node.size else "the bytes left"
        case s.Text():
            return f"length {words(node.length)}, then as many bytes of UTF-8"
        case s.List():
            return f"{_words(node.count)} times {words(node.item)}"
        case s.Counted():
            return f"count {words(node.count)}, then as many {words(node.item)}"
        case s.Numbers():
            return f"{node.number.kind}[{', '.join(_words(dim, '') for dim in node.dims)}]"
        case s.BlockArray():
            return f"[{node.block}](#{node.block}) for each {node.weights} weights"
        case s.Either():
            return f"{node.otherwise.kind} ({node.then.kind} where {_words(node.condition)})"
        case s.Code():
            return f"{words(node.number)}, the code of a {node.table.kind} type"
        case s.Switch():
            return f"as {_words(node.on)} says"
        case s.Ref():
            return f"[{_title(node.name).lower()}](#{_title(node.name).lower().replace(' ', '-')})"
        case s.Lines():
            return f"{_words(node.size)} bytes of lines `key=value`"
        case s.Padding():
            return f"bytes up to a multiple of {_words(node.to)}"
        case s.ByteOrder():
            return f"{NO_BYTES}: as the {node.number.kind} after it shows"
        case s.Derived():
            return f"{NO_BYTES}: {_words(node.value)}" if node.value else NO_BYTES
        case s.Payloads():
            return f"the payload of each of `{node.table}`"


def _words(expression: Expression, quote: str = "`") -> str:
    """Returns an expression, without the parentheses around it all."""
    text = outermost(expression)
    return text if isinstance(expression, Constant) else f"{quote}{text}{quote}"


def _literal(value: int) -> str:
    return f"{value}" if value < 1 << 16 else f"0x{value:08X}"


def _title(name: str) -> str:
    return name.replace("_", " ").capitalize()


def _code(entry: object) -> int:
    return int(getattr(entry, "code", 0))


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]], align: str) -> str:
    """Returns a table; `align` has a letter a column, ``-`` for one of numbers."""
    dashes = tuple("---:" if letter == "-" else "---" for letter in align)
    return "\n".join(_lines((head, dashes, *rows))) + "\n"


def _lines(rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    return (f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows)
