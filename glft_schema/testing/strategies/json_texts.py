"""JSON tables as text: equivalent spellings of a text, and texts with another row."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from glft_schema.codec.context import new_context
from glft_schema.codec.json_table import Entry, JsonRows, JsonTable
from glft_schema.codec.json_text import decode, to_json
from glft_schema.codec.records import Record
from glft_schema.describe.schema import struct_of
from glft_schema.errors import FormatError

SPACES = (b"", b"", b" ", b"\n\t", b"\r\n  ")
OTHER_VALUES = (b"null", b"-0", b"1.5e3", b'"\\u00e4"', b"[[], {}]", b'{"a": {"a": true}}')  # of unknown keys


def with_text(rows: JsonRows, text: bytes, records: Sequence[Record] | None = None) -> JsonRows:
    """Returns rows with another text, and with `records` if they are given."""
    changed = JsonRows(rows.table, text, rows.start)
    for record in rows if records is None else records:
        changed.add(record)
    changed.reserved = rows.reserved
    return changed


def object_end(text: bytes) -> int:
    """Returns the index of the brace that closes the table."""
    return text.rindex(b"}")


def with_members(text: bytes, members: bytes) -> bytes:
    """Returns a table's text with more members at its end."""
    end = object_end(text)
    is_empty = re.fullmatch(rb"\s*\{\s*", text[:end]) is not None
    return text[:end] + (b"" if is_empty else b",") + members + text[end:]


def with_json_row(declared: JsonTable, rows: JsonRows, at: int, row: Mapping[str, Any]) -> JsonRows:
    """Returns rows with `row` in place of row `at`, or after the last.

    Raises:
        FormatError: if a field cannot be written.
    """
    entry, struct = Entry(), struct_of(declared.row)
    try:
        built = declared.row._build(row, entry, new_context(False, forging=True), "(building)")
    except FormatError:  # a count cannot be computed, as for dims that the type refuses
        row = {**{part.name: 0 for part in struct.fields if part.is_count}, **row}
        built = declared.row._build(row, entry, new_context(False, forging=True), "(building)")
    name = entry.pop(None)
    text, old = rows.stored, rows.row_parts
    member = f"{to_json(name)}:{to_json(entry)}".encode()
    text = text[: old[at].key] + member + text[old[at].end :] if at < len(old) else with_members(text, member)
    return with_text(rows, text, [*rows[:at], built, *rows[at + 1 :]])


@st.composite
def respell(draw: st.DrawFn, rows: JsonRows, is_plain: bool) -> bytes:
    """Draws another text with the same rows and metadata.

    Args:
        draw: the draw function of a composite strategy.
        rows: the rows, as built.
        is_plain: whether only spaces, escapes and the order of keys may differ. Otherwise the text
            may also have duplicate entries and keys, unknown keys, and entries in other forms.
    """
    space, is_ascii = draw(st.sampled_from(SPACES)), draw(st.booleans())

    def spell(value: Any) -> bytes:
        match value:
            case bytes():
                return value
            case tuple():
                inner = (b",%s" % space).join(spell(key) + space + b":" + spell(part) for key, part in value)
                return b"{%s%s}" % (inner, space)
            case list():
                return b"[%s]" % (b"," + space).join(map(spell, value))
        return json.dumps(value, ensure_ascii=is_ascii).encode()

    members = [(name, _reorder(draw, value, rows.table.keys)) for name, value in decode(rows.stored)]
    if not is_plain:
        members = list(_irregular(draw, members, rows))
    after = b" " * draw(st.integers(0, 9)) if is_plain else draw(st.sampled_from([b"", b" ", b"\n", b" \t "]))
    return (b"" if is_plain else space) + spell(tuple(members)) + after


def _reorder(draw: st.DrawFn, value: Any, keys: tuple[str, ...]) -> Any:
    is_row = isinstance(value, tuple) and tuple(key for key, _ in value) == keys
    return tuple(draw(st.permutations(value))) if is_row and draw(st.booleans()) else value


def _irregular(draw: st.DrawFn, members: list[tuple[str, Any]], rows: JsonRows) -> Iterator[tuple[str, Any]]:
    """Yields members with irregularities that leave rows and metadata as they are."""
    other = draw(st.sampled_from(OTHER_VALUES))
    if not any(name == rows.table.reserved for name, _ in members) and draw(st.booleans()):
        yield rows.table.reserved, None
    for name, value in members:
        match draw(st.integers(0, 7)):
            case 0 if name != rows.table.reserved:
                yield name, value  # replaced by the same entry
            case 0:
                yield name, (("a", "b"),)
            case 1 if value:
                value = (value[0], *value)
            case 2 if name != rows.table.reserved:
                value = (*value, ("?", other))
            case 3 if name != rows.table.reserved:
                value = [dict(value)[key] for key in rows.table.keys]
            case 4 if name != rows.table.reserved:
                value = tuple((key, ((part, None),) if isinstance(part, str) else part) for key, part in value)
        yield name, value
