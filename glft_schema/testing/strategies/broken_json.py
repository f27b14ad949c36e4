"""Texts of JSON tables with one fault: in the syntax, against a rule, or in a value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from glft_schema.codec import json_table as j
from glft_schema.codec.json_text import JsonPart, to_json
from glft_schema.describe.nodes import CodeNode, JsonNode, StructOf
from glft_schema.errors import FormatError, LimitError, quote
from glft_schema.limits import Limits
from glft_schema.testing.strategies.json_texts import object_end, with_members

MARK = b"\0"  # before the fault: JSON has no such byte
TEXTS = (b"5", b"null", b"[]", b"{}", b'{"F32":1}', b"true")  # in place of a text
INTEGERS = (
    b"5",
    b"null",
    b"{}",
    b'"1"',
    *(b"[%s]" % value for value in (b"1.0", b"1e0", b"-1", b"-0", b"null", b'"1"', b"[1]")),
)
INTEGERS += (b"[18446744073709551616]", b"[true]")  # in place of integers
NOT_FINITE = (b"NaN", b"Infinity", b"-Infinity", b"1e999")


class BrokenText(NamedTuple):
    """A text with one fault.

    Attributes:
        text: the text, with `MARK` before the fault if its position is known.
        path: the steps of the path of the fault, below the table's path.
        sentence: the fault in words.
        error: the error that reading must raise.
        within: whether the error may be about a field within `path`.
        of_texts: whether `path` is below the path of the reserved entry, not of the table.
    """

    text: bytes
    path: tuple[str, ...] = ()
    sentence: str = ""
    error: type[FormatError] = FormatError
    within: bool = False
    of_texts: bool = False

    @property
    def stored(self) -> bytes:
        """The text as it is stored."""
        return self.text.replace(MARK, b"", 1)

    @property
    def at(self) -> int | None:
        """The index of the fault in `stored`, if it is known."""
        return self.text.index(MARK) if MARK in self.text else None


class TextBreaker:
    """Breaks a table's text, mostly in the entry of its last row.

    Args:
        rows: the table, with at least one row.
        struct: of the rows.
        fields: the fields of the rows that are in the text.
    """

    def __init__(self, rows: j.JsonRows, struct: StructOf, fields: Mapping[str, j.JsonField]) -> None:
        self.rows = rows
        self.text = rows.stored
        self.struct = struct
        self.fields = fields
        self.entry = rows.row_parts[-1]
        self.name = quote(self.entry.name)
        self.values = {part.name: part for part in rows.fields_of(self.entry)}
        self.row = str(len(rows) - 1)
        self.key = self.text[self.entry.key : self.entry.key_end]
        self.value = self.text[self.entry.start : self.entry.end]

    def irregular(self, kind: str) -> BrokenText:
        """Returns the text with an irregularity; `kind` is one of `IRREGULARITIES`."""
        (key, part), *_ = self.values.items()
        pair, member = self.text[part.key : part.end], self.key + b":" + self.value
        values = [self.text[self.values[key].start : self.values[key].end] for key in self.rows.table.keys]
        levels, reserved, name = j.MOST_LEVELS - 1, to_json(self.rows.table.reserved).encode(), quote(self.rows.table.reserved)
        with_reserved = self.text if self._reserved_entry() else with_members(self.text, reserved + b":{}")
        # fmt: off
        texts: dict[str, tuple[bytes, tuple[str, ...]]] = {
            "brace": (MARK + b" " + self.text, ()),
            "padding": (self.text + MARK + b"\n", ("padding",)),
            "names-once": (with_members(self.text, MARK + member), (self.name,)),
            "metadata-once": (with_members(with_reserved, MARK + reserved + b":{}"), (name,)),
            "metadata-object": (self._with_reserved(MARK + b"null"), (name,)),
            "metadata-keys-once": (self._with_reserved(b'{"k":"a",' + MARK + b'"k":"b"}'), (name, quote("k"))),
            "known-keys": (self._add(MARK + b'"?":[1.5]'), (self.name, quote("?"))),
            "keys-once": (self._add(MARK + pair), (self.name, quote(key))),
            "plain-entries": (self._with_entry(MARK + b"[%s]" % b",".join(values)), (self.name,)),
            "nesting": (self._add(b'"?":' + MARK + b"[" * levels + b"]" * levels), (self.name, quote("?"))),
        }
        # fmt: on
        return BrokenText(*texts[kind])

    def wrong_rows(self) -> Iterator[BrokenText]:
        """Yields texts that are refused for their syntax, or for a row."""
        end = object_end(self.text)
        yield BrokenText(self.text[: end + 1] + MARK + b"?", (), "there is more than an object")
        for at in (self.entry.key_end, self.entry.end - 1, self.entry.end):
            yield BrokenText(self.text[:at], (), "the text ends within an object")
        for value in NOT_FINITE:
            yield BrokenText(self._add(b'"?":' + MARK + value), (), "a number is not finite")
        for key, problem in ((b'"%s\xff"', "UTF-8"), (b'%s"\\ud800"', "pairs of surrogates"), (b'"%s\n"', "JSON")):
            yield BrokenText(self.text[: self.entry.key] + key % MARK + self.text[self.entry.key_end :], (), f"not {problem}")
        for value in (b"5", b"null", b"[]"):
            yield BrokenText(self._with_entry(MARK + value), (self.row,), "an entry is not an object")
        replaced = self.key + b":{},"
        text = self.text[: self.entry.key] + replaced + self.text[self.entry.key :]
        yield BrokenText(text, (self.name,), "a replaced entry lacks its keys", within=True)
        seen = set()
        for name, field in self.fields.items():
            if field.key is not None and field.key not in seen:
                seen.add(field.key)
                yield from self._wrong_values(name, field)

    def _wrong_values(self, name: str, field: j.JsonField) -> Iterator[BrokenText]:
        """Yields rows that lack a value, or have one of another kind. `name` is its first field."""
        path = (self.row, name)
        without = b",".join(self._pairs(field.key, None))
        yield BrokenText(self._with_entry(MARK + b"{%s}" % without), path, "an entry lacks a key")
        node = self.struct.field(name).node
        kind = next(inner.kind for inner in (node, getattr(node, "number", node)) if isinstance(inner, JsonNode))
        of = getattr(field, "of", 0)
        for value in TEXTS if kind == "text" else INTEGERS:
            is_element = value[:1] == b"[" and of == 1
            marked = b"[" + MARK + value[1:] if is_element else MARK + value
            yield BrokenText(self._with_value(field.key, marked), path, "a value is of another kind")
        if of > 1:
            elements = [MARK + b"0.5", *[b"0"] * (of - 1)]
            yield BrokenText(self._with_value(field.key, b"[%s]" % b",".join(elements)), path, "a number is a float")
        if isinstance(node, CodeNode) and node.table.unknown is None:
            yield BrokenText(self._with_value(field.key, MARK + b'"?"'), path, "a type is not known")
        if limit := getattr(field, "limit", None):
            many = b",".join([b"1"] * (getattr(Limits(), limit) + 1))
            yield BrokenText(self._with_value(field.key, MARK + b"[%s]" % many), path, "there are too many sizes", LimitError)

    def wrong_texts(self) -> Iterator[BrokenText]:
        """Yields texts that are refused for the reserved entry."""
        for value in (b"5", b"null", b"[]", b'{"a":"b"}'):
            stored = self._with_reserved(b'{"k":"v","l":' + MARK + value + b"}")
            yield BrokenText(stored, ("1", "value"), "a value is not a text", of_texts=True)
        for value in (b"5", b"[]", b'"a"'):
            stored = self._with_reserved(MARK + value)
            yield BrokenText(stored, (), "the reserved entry is not an object", of_texts=True)

    # Parts of the text

    def _pairs(self, key: str | None, value: bytes | None) -> list[bytes]:
        """Returns the pairs of the entry with `value` at `key`, or without `key` if it is None."""
        texts = {known: to_json(known).encode() + b":" + self.text[of.start : of.end] for known, of in self.values.items()}
        if key is not None:
            texts[key] = b"" if value is None else to_json(key).encode() + b":" + value
        return [pair for pair in texts.values() if pair]

    def _with_entry(self, value: bytes) -> bytes:
        return self.text[: self.entry.start] + value + self.text[self.entry.end :]

    def _with_value(self, key: str | None, value: bytes) -> bytes:
        return self._with_entry(b"{%s}" % b",".join(self._pairs(key, value)))

    def _add(self, pair: bytes) -> bytes:
        return self._with_entry(self.value[:-1] + b"," + pair + b"}")

    def _reserved_entry(self) -> JsonPart | None:
        """Returns the reserved entry; the last of several."""
        return next((part for part in reversed(self.rows.members) if part.name == self.rows.table.reserved), None)

    def _with_reserved(self, value: bytes) -> bytes:
        if part := self._reserved_entry():
            return self.text[: part.start] + value + self.text[part.end :]
        return with_members(self.text, to_json(self.rows.table.reserved).encode() + b":" + value)
