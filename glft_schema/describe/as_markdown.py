"""A schema as Markdown: fields, rules, and tensor types with bit pictures.

`as_markdown` returns the whole reference. The pages in docs/reference/ use parts of it.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType
from typing import Any

import glft_schema.describe.nodes as s
from glft_schema.codec.expressions import Constant, Expression, outermost
from glft_schema.codec.rules import Check
from glft_schema.describe.bit_picture import picture, weights_of_bits
from glft_schema.describe.sentences import MATRIX, NodeWords, enforcers
from glft_schema.display import markdown_table
from glft_schema.scalar import language

NUMBERS = (
    "`u8` to `u64` are unsigned, `i8` to `i64` are two's complement, `f16`, `f32` and `f64` are IEEE 754, `bf16` is the upper"
    " half of an `f32`. Nothing is aligned unless stated otherwise."
)
PICTURES = (
    "In pictures, bit 7 of each byte is on the left. Each bit shows the weights that depend on it. Bytes omitted at `...`"
    " continue the pattern of the two bytes before; those at `... by 32` continue that of the bytes 32 and 64 before."
)
PATHS = (
    "Names with dots are paths to fields; `_root` is the file. `value_or(mapping, key, default)` is the value of a key, or the"
    " default; `reversed` reverses a list."
)


def as_markdown(schema: s.Schema) -> str:
    """Returns the reference of a format or of a tensor type."""
    if schema.format is None:
        return "\n".join([*(type_section(type_, schema, 1, set()) for type_ in schema.types), notation(schema)])
    parts = [f"# {schema.title}\n", notation(schema), structs_reference(schema), codes_reference(schema)]
    parts += ["\n## Tensor types\n", types_table(schema), types_reference(schema)] if schema.types else []
    return "\n".join(part.strip("\n") + "\n" for part in parts)


def notation(schema: s.Schema) -> str:
    """Returns the conventions of the reference: byte order, numbers, and names in expressions."""
    order = "in the byte order of the file"
    if schema.format:
        order = f"{schema.byte_orders[0]}-endian" if len(schema.byte_orders) == 1 else "little- or big-endian, as the file is"
    if schema.types:
        items = [f"Numbers are {order}, in payloads, too. {NUMBERS}", f"{MATRIX} Arrays are in C order.", PICTURES]
    else:
        items = [f"Numbers are {order}. {NUMBERS}"]
    items += [PATHS] if schema.format else []
    return "\n".join(textwrap.fill(f"- {text}", 120, subsequent_indent="  ") for text in items) + "\n"


def structs_reference(schema: s.Schema) -> str:
    """Returns a section for each struct of the container: its fields in order, and its rules."""
    sections = []
    for struct in schema.container_structs.values():
        size = f", {struct.size} bytes" if struct.size is not None else ", a JSON object" if struct.is_json else ""
        sections.append(f"## {_title(struct.name)}{size}\n\n{struct_section(struct, schema)}")
    return "\n".join(sections)


def codes_reference(schema: s.Schema) -> str:
    """Returns a table of codes, names and storage for each kind of type except tensor types."""
    assert schema.format
    sections = []
    for table in schema.tables.values():
        if table is schema.format.types:
            continue
        rows = [(f"{code}", f"`{entry.name}`", _storage_of(entry.name, schema)) for code, entry in table.by_code()]
        sections.append(f"## {table.kind} types\n\n{markdown_table(('code', 'name', 'stored as'), rows, '-::')}")
    return "\n".join(sections)


def types_table(schema: s.Schema) -> str:
    """Returns a table of tensor types: code, name, weights and bytes of a block, encoder."""
    rows: list[tuple[str, ...]] = []
    for type_ in schema.types:
        bits = 8 * type_.nbytes / type_.weights
        encoder = "by importance" if type_.type.needs_importance else "yes" if type_.type.has_encoder else ""
        rows.append((f"{type_.code}", type_.type.name, f"{type_.weights}", f"{type_.nbytes}", f"{bits:g}", encoder))
    head: tuple[str, ...] = ("code", "name", "weights", "bytes", "bits per weight", "encoder")
    align = "-:---:"
    if all(code == name for code, name, *_ in rows):  # names are stored
        head, align, rows = head[1:], align[1:], [row[1:] for row in rows]
    return markdown_table(head, rows, align)


def types_reference(schema: s.Schema) -> str:
    """Returns a section for each tensor type, by code."""
    shown = set[str]()
    return "\n".join(type_section(type_, schema, 3, shown) for type_ in schema.types)


def type_section(type_: s.TypeOf, schema: s.Schema, level: int, shown: set[str]) -> str:
    """Returns the section of a tensor type: sizes, fields, bit picture, formula, rules.

    Names in `shown` are defined in earlier sections; the names of this section are added.
    """
    head = f"{'#' * level} {type_.heading}"
    encoder = "Has an encoder" if type_.type.has_encoder else "No encoder"
    sizes = f"{type_.sizes}. {encoder}{', which requires an importance matrix' if type_.type.needs_importance else ''}."
    struct = schema.structs[type_.block or type_.payload]
    # Two blocks show the fields of the row.
    weights = 2 * type_.weights if type_.row_nbytes else type_.weights
    spans = type_.type.field_spans([1, weights]) if type_.block is None else {}
    starts = {start: name for name, (start, _) in spans.items()}
    starts |= {at: part.name for part, at in zip(struct.fields, struct.offsets, strict=True) if at is not None}
    drawn = [] if type_.is_copied else ["```text", *picture(weights_of_bits(type_.type, weights), starts), "```", ""]
    formula = f"A weight is {type_.formula.replace('*', chr(92) + '*')}"
    source = [] if type_.type.formula is None else ["", "```py", "\n\n".join(definitions(type_.type.formula, shown)), "```"]
    lines = [head, "", sizes, "", *_fields(struct, schema), "", *drawn, formula, *source]
    reserved = [f"- `{part.field}`: no encoder writes {part.numbers}" for part in type_.type.reserved]
    return "\n".join([*lines, *_rules(type_.struct.rules, reserved)]) + "\n"


def definitions(function: Callable[..., Any], shown: set[str]) -> Iterator[str]:
    """Yields the source of a scalar function, and the definitions of the names that it refers to,
    unless they are in `shown`. Adds these names to `shown`."""
    lines = textwrap.dedent(inspect.getsource(function)).splitlines()
    (definition,) = ast.parse("\n".join(lines)).body
    yield "\n".join(lines[definition.lineno - 1 :])  # after the decorators
    constants = function.__kwdefaults__ or {}
    for name in (*function.__code__.co_names, *constants):
        value = constants.get(name, function.__globals__.get(name))
        if isinstance(value, FunctionType) and name in constants:
            yield f"{name} = {value.__name__}"
            name = value.__name__
        if name in shown or value is None:
            continue
        if isinstance(value, language.LookupTable):
            yield f"# {name} has {len(value.array)} numbers"
        elif not isinstance(value, FunctionType):
            yield f"{name} = {value}"
        elif value.__module__ != language.__name__:
            yield from definitions(value, shown)
        shown |= {name} - constants.keys()


def struct_section(struct: s.StructOf, schema: s.Schema) -> str:
    """Returns the fields of a struct in order, and its rules."""
    refused = [f"- `{part.name}`: always `{_shown(part.value)}` (required)" for part in struct.fields if part.is_constant]
    refused += [f"- `{part.name}`: never {fault.sentence} (required)" for part in struct.fields for fault in part.refuses]
    return "\n".join([*_fields(struct, schema), *_rules(struct.rules, refused)]) + "\n"


def _fields(struct: s.StructOf, schema: s.Schema) -> list[str]:
    rows: list[tuple[str, ...]] = []
    if struct.is_json:
        words = (WORDS.words(part.node) for part in struct.fields)
        rows = [(f"`{part.name}`", stored, _escape(part.doc)) for part, stored in zip(struct.fields, words, strict=True)]
        return markdown_table(("field", "stored as", "meaning"), rows, ":::").splitlines()
    for part, at in zip(struct.fields, struct.offsets, strict=True):
        size = schema.size(part.node)
        offset = "then" if at is None else f"{at}"
        value = part.value
        default = f"; `{_shown(value)}` by default" if isinstance(value, int) and not part.is_constant else ""
        stored = WORDS.words(part.node)
        rows.append((offset, "" if size is None else f"{size}", f"`{part.name}`", stored, _escape(part.doc) + default))
    return markdown_table(("byte", "bytes", "field", "stored as", "meaning"), rows, "--:::").splitlines()


def _shown(value: int | bytes | None) -> str:
    return f"0x{value:08X}" if isinstance(value, int) and value >= 1 << 16 else f"{value!r}"


def _rules(rules: Iterable[Check], more: list[str]) -> list[str]:
    """Returns the lines of a list of rules and `more`, after an empty line if there are any."""
    items = [f"- `{rule.field}`: {_escape(rule.sentence)} (`{rule.id}`, {enforcers(rule)})" for rule in rules] + more
    return ["", *items] if items else []


def _escape(text: str) -> str:
    """Returns a sentence with names such as ``__init__`` as code, so that they are not bold."""
    return re.sub(r"\b__\w+__\b", r"`\g<0>`", text)


def _storage_of(name: str, schema: s.Schema) -> str:
    """Returns the storage of values of a type, from the first switch with a case for it."""
    switches = (
        part.node for struct in schema.structs.values() for part in struct.fields if isinstance(part.node, s.SwitchNode)
    )
    return next((WORDS.words(case.node) for switch in switches for case in switch.cases if case.name == name), "")


class _Words(NodeWords):
    def code(self, text: str) -> str:
        return f"`{text}`"

    def expression(self, expression: Expression) -> str:
        return outermost(expression) if isinstance(expression, Constant) else super().expression(expression)

    def array(self, node: s.ArrayNode) -> str:
        if isinstance(node.item, s.RefNode):
            return f"[{node.item.name}](#{node.item.name}) for each {node.weights} weights"
        return f"{node.item.kind}[{', '.join(map(outermost, node.dims))}]"

    def type_code(self, node: s.CodeNode) -> str:
        return f"the code of a {node.table.kind} type"

    def struct(self, name: str) -> str:
        return f"[{_title(name).lower()}](#{_title(name).lower().replace(' ', '-')})"


WORDS = _Words()


def _title(name: str) -> str:
    return name.replace("_", " ").capitalize()
