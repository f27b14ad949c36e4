"""The parts of a JSON table outside its rows: unknown keys, replaced entries, padding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from glft_schema.codec.json_table import JsonRows
from glft_schema.errors import shown

REPLACED_ENTRY = "replaced by a later entry of this name"
REPLACED_VALUE = "replaced by a later value of this key"
UNKNOWN_KEY = "of an unknown key; preserved"


class JsonPart(NamedTuple):
    """A part of the text.

    Attributes:
        start: the first byte in the container.
        end: the offset after the last byte.
        path: below the table's: a name, or the number of a row and a key.
        doc: the reason.
        name: of the entry.
    """

    start: int
    end: int
    path: tuple[str, ...]
    doc: str
    name: str


def parts_of_no_row(rows: JsonRows) -> Iterator[JsonPart]:
    """Yields the entries, keys and values of a table's text that its rows do not have, in order."""
    names = [rows.key_of(entry) for entry in rows.members]
    last, number = {name: i for i, name in enumerate(names)}, 0
    for i, (name, entry) in enumerate(zip(names, rows.members, strict=True)):
        if last[name] != i:
            yield JsonPart(rows.start + entry.key, rows.start + entry.end, (shown(name),), REPLACED_ENTRY, name)
            continue
        if name == rows.name:
            continue
        fields = rows.fields_of(entry)
        values = dict(fields)
        for key, part in fields:
            if key not in rows.keys or values[key] is not part:
                doc, path = REPLACED_VALUE if key in rows.keys else UNKNOWN_KEY, (str(number), shown(key))
                yield JsonPart(rows.start + part.key, rows.start + part.end, path, doc, name)
        number += 1


def padding_of(rows: JsonRows) -> tuple[int, int]:
    """Returns start and end of the bytes after the object."""
    return rows.start + len(rows.stored.rstrip(b" \t\n\r")), rows.start + len(rows.stored)
