"""A schema as Markdown: every field with its place, type, sentence and rules; every tensor type with its block, bit by bit.

`as_markdown` gives the whole reference; the pages under docs/formats/ take its parts, between prose.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator

from glft_schema.describe import schema as s
from glft_schema.describe.bit_picture import picture, weights_of_bits
from glft_schema.expressions import Constant, Expression
from glft_schema.rules import Check

NO_BYTES = "no bytes"


def as_markdown(schema: s.Schema) -> str:
    """Returns the reference of a format or of a tensor type."""
    if schema.format is None:
        return "".join(type_section(type_, schema, 1) for type_ in schema.types)
    parts = [f"# {schema.title}\n", structs_reference(schema), codes_reference(schema), "\n## Tensor types\n"]
    parts += [types_table(schema), types_reference(schema)]
    return "\n".join(part.strip("\n") + "\n" for part in parts)


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
    rows = [(f"`{rule.id}`", rule.field, rule.expected, _held_by(rule)) for rule in rules]
    return _table(("rule", "field", "expected", "held by"), rows, "::::")


def types_table(schema: s.Schema) -> str:
    """Returns a row for each tensor type: code, name, weights and bytes of a block, and whether there is an encoder."""
    rows = []
    for type_ in schema.types:
        bits = 8 * type_.nbytes / type_.weights
        encoder = "yes" if type_.type.quantize else ""
        rows.append((f"{type_.type.code}", type_.type.name, f"{type_.weights}", f"{type_.nbytes}", f"{bits:g}", encoder))
    return _table(("code", "name", "weights", "bytes", "bits a weight", "encoder"), rows, "-:---:")


def types_reference(schema: s.Schema) -> str:
    """Returns a section for each tensor type, by code."""
    return "\n".join(type_section(type_, schema, 3) for type_ in schema.types)


def type_section(type_: s.TypeOf, schema: s.Schema, level: int) -> str:
    """Returns the section of a tensor type: sizes, fields, the weights of each bit, formula, rules."""
    count = f"{type_.weights} weights" if type_.weights > 1 else "a weight"
    nbytes = f"{type_.nbytes} bytes" if type_.nbytes > 1 else "a byte"
    per_weight = type_.nbytes / type_.weights
    head = f"{'#' * level} {type_.type.name}, code {type_.type.code}: {count} in {nbytes}"
    sizes = f"{8 * per_weight:g} bits or {per_weight:g} bytes a weight"
    sizes += f", and {type_.row_nbytes} bytes a row." if type_.row_nbytes else "."
    sizes += "" if type_.type.quantize else " Without encoder."
    struct = schema.structs[type_.block or type_.payload]
    weights = 2 * type_.weights if type_.row_nbytes else type_.weights  # two show what belongs to the row
    places = type_.type.places([1, weights]) if type_.block is None else {}
    starts = {start: name for name, (start, _) in places.items()}
    starts |= {at: part.name for part, at in zip(struct.fields, struct.offsets, strict=True) if at is not None}
    formula = " ".join((inspect.getdoc(type_.type.dequantize) or "").partition("\n\n")[0].split()).replace("*", r"\*")
    lines = [head, "", sizes, "", *_fields(struct, schema), "", "```text"]
    lines += [*picture(weights_of_bits(type_.type, weights), starts), "```", "", f"A weight is {formula}"]
    return "\n".join([*lines, *_rules(schema.structs[type_.payload].rules)]) + "\n"


def _struct(struct: s.StructOf, schema: s.Schema) -> str:
    size = f", {struct.size} bytes" if struct.size is not None else ""
    return f"## {_title(struct.name)}{size}\n\n{struct_section(struct, schema)}"


def struct_section(struct: s.StructOf, schema: s.Schema) -> str:
    """Returns the fields of a struct in order, and its rules."""
    return "\n".join([*_fields(struct, schema), *_rules(struct.rules)]) + "\n"


def _fields(struct: s.StructOf, schema: s.Schema) -> list[str]:
    rows = []
    for part, at in zip(struct.fields, struct.offsets, strict=True):
        size = schema.size(part.node)
        place = "then" if at is None else f"{at}"
        value = f"; `{_literal(part.value)}` unless given" if isinstance(part.value, int) else ""
        rows.append((place, "" if size is None else f"{size}", f"`{part.name}`", words(part.node), part.doc + value))
    return _table(("byte", "bytes", "field", "stored as", "meaning"), rows, "--:::").splitlines()


def _rules(rules: Iterable[Check]) -> list[str]:
    lines = [f"- `{rule.field}`: {rule.expected} (`{rule.id}`, {_held_by(rule)})" for rule in rules]
    return ["", *lines] if lines else []


def _held_by(rule: Check) -> str:
    return "always" if rule.is_always_needed else ", ".join(rule.sets)


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
        case s.Refused():
            return "never there"


def _words(expression: Expression, quote: str = "`") -> str:
    """Returns an expression, without the parentheses around it all."""
    text = str(expression)
    text = text[1:-1] if text.startswith("(") and text.endswith(")") else text
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
