"""Tables in JSON: one object with an entry per row, typed by a Struct and kept as it was written.

================  =================================================================
`JsonTable`       the text: ``{NAME: {KEY: VALUE, ...}, ...}``
`JsonTexts`       the reserved entry of the table: texts by key; takes no bytes
`Key`             a field of a row: its name
`TextAt`          a field of a row: a text of its object
`IntegerAt`       a field of a row: one integer of an array of its object
`IntegersAt`      a field of a row: an array of integers of its object
`JsonRule`        the rule that the text has no irregularity of one kind
================  =================================================================

A traced parse gives each field of a row its span in the text: ``table -> 3 -> name`` spans the key
with its quotes, and the other fields span their values. In the reserved entry, ``metadata -> 0 ->
key`` and ``metadata -> 0 -> value`` span the parts of a pair. Python's `json` reports no positions,
so a trace scans the text again with `json_text.parts`. A plain parse does not. Brackets, commas,
spaces, unknown keys and replaced entries are bytes of the table itself.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from math import lcm
from types import NoneType
from typing import Any, NamedTuple

import construct

from glft_schema.codec.context import Context, limits_of
from glft_schema.codec.expressions import as_expression
from glft_schema.codec.json_text import JsonPart, after_spaces, count_parts, decode, levels_of, parts, to_json, value_at
from glft_schema.codec.metadata_lines import TextMetadata
from glft_schema.codec.rules import Check
from glft_schema.codec.structs import Struct, unwrap
from glft_schema.codec.tables import count_objects
from glft_schema.codec.text import encode_text
from glft_schema.codec.trace import Trace, without_root
from glft_schema.display import with_display
from glft_schema.errors import FormatError, quote
from glft_schema.limits import A_LIMIT, DEFAULTS
from glft_schema.storage.cursor import bytes_left, read_exactly
from glft_schema.storage.tensor_bytes import write_all

MOST_LEVELS = 127  # of nested objects and arrays that serde_json reads
PADDED_TO = 8  # bytes of the length before the text, and of the least alignment of the payloads after it

# Kinds of irregularity, each the end of the sentence "expected ...".
BEGINS_WITH_BRACE = "`{` as the first byte"
PADDED_WITH_SPACES = "only spaces (0x20) after the object"
NAMES_ONCE = "each name once"
RESERVED_ONCE = "the reserved entry once"
RESERVED_OBJECT = "an object in the reserved entry"
RESERVED_KEYS_ONCE = "each key of the reserved entry once"
KNOWN_KEYS = "only known keys in an entry"
KEYS_ONCE = "each key of an entry once"
PLAIN_ENTRIES = "entries that are objects, with types that are texts"
NOT_DEEP = f"at most {MOST_LEVELS} nested objects and arrays"


class Entry(dict[Any, Any]):
    """A row's JSON object, which its fields use as a stream. The key None has the row's name."""

    def tell(self) -> int:
        return 0


class JsonTable(construct.Construct):
    """A JSON object of `size` bytes, with an object for each row by name, and one reserved entry.

    Parses into `JsonRows`, in order. Of several entries with one name, the last one is the row.
    Builds from a sequence of rows, and the value of the field `metadata` for the reserved entry.
    Rows and metadata that were parsed together and are unchanged build their original text. If only
    names of rows or texts of `JsonEntries` differ, only these parts of the text change. Otherwise
    the text has no spaces, except those that pad it: payloads follow it at a multiple of
    `PADDED_TO` and of the alignment that is asked for.

    Args:
        size: the context -> bytes of the text.
        row: the Struct of a row, with fields of this module.
        reserved: the name of the entry that is not a row.
        metadata: the name of the field with that entry, a `JsonTexts`.

    Attributes:
        keys: the keys of a row's object, in the order of new texts.
        fields: the fields of a row with a value in the text, by name.
    """

    refuses = (
        "text that is not UTF-8, or is not the JSON of an object",
        "numbers that are not finite, and lone surrogates",
        "an entry that lacks a key, or has a value of another kind",
    )

    def __init__(self, size: Any, row: Struct, *, reserved: str, metadata: str) -> None:
        super().__init__()
        self.size = as_expression(size)
        self.row = row
        self.reserved = reserved
        self.metadata = metadata
        self._values = Struct(*(field for field in row.subcons if not isinstance(field, Check)))
        self.fields = {field.name: found for field in self._values.subcons if (found := _json_field(field))}
        self.keys = tuple(dict.fromkeys(field.key for field in self.fields.values() if field.key is not None))

    def _parse(self, stream: Any, context: Context, path: str) -> JsonRows:
        start, size = stream.tell(), self.size(context)
        if size <= bytes_left(stream):
            limits_of(context).check("metadata", size, path, " bytes")
        rows = JsonRows(read_exactly(stream, size, path), start, self.keys, self.reserved)
        containers, members = count_parts(rows.stored)  # a row is a member with its keys, and has fewer containers
        number = members // (len(self.keys) + 1) + max(containers - members, 0)
        limits_of(context).check("objects", number, path, " tensors, entries and arrays")
        entries = rows.decode(path)
        rows.reserved = next((value for name, value in reversed(entries) if name == self.reserved), None)
        count_objects(context, len(entries) + (len(rows.reserved) if isinstance(rows.reserved, tuple) else 0), path)
        last = {name: i for i, (name, _) in enumerate(entries)}
        last.pop(self.reserved, None)
        params, trace = context["_params"], context["_params"].get("trace")
        params["trace"] = None
        try:
            if len(last) < len(entries):
                for i, (name, _) in enumerate(entries):
                    if last.get(name, i) != i:  # replaced: only the kinds of its values count
                        self._parse_replaced(rows, entries, i, context, path)
            self._parse_rows(rows, entries, sorted(last.values()), stream, context, path, trace)
        finally:
            params["trace"] = trace
        stream.seek(start + size)
        return rows

    def _parse_rows(
        self, rows: JsonRows, entries: Any, order: Sequence[int], stream: Any, context: Context, path: str, trace: Trace | None
    ) -> None:
        """Appends the rows of the entries `order`. Traces those that `trace` asks for."""
        params = context["_params"]
        traced = set(trace.rows_in(without_root(path), len(order))) if trace else ()
        for i in order:
            if trace and len(rows) in traced:
                params["trace"] = _RowTrace(trace, stream, rows.spans(i, self.fields))
            rows.append(self._row(rows, entries, i, context, f"{path} -> {len(rows)}"))
            params["trace"] = None

    def _row(self, rows: JsonRows, entries: Any, i: int, context: Context, path: str) -> Any:
        return self.row._parse(self._entry(rows, entries, i, path), context, path)

    def _parse_replaced(self, rows: JsonRows, entries: Any, i: int, context: Context, path: str) -> None:
        where = f"{path} -> {quote(entries[i][0])}"
        entry = self._entry(rows, entries, i, where)
        try:
            self._values._parse(entry, context, where)
        except FormatError as error:
            error.offset, error.tensor = rows.start + rows.members[i].start, entry[None]
            raise

    def _entry(self, rows: JsonRows, entries: Any, i: int, path: str) -> Entry:
        """Returns the object of an entry, whose value may be an array in the order of `keys`."""
        name, value = entries[i]
        if isinstance(value, list) and len(value) == len(self.keys):
            value = zip(self.keys, value, strict=True)
        elif not isinstance(value, tuple):
            problem = f"expected an object with {', '.join(self.keys)}, found {quote(value)}"
            raise FormatError(problem, path, rows.start + rows.members[i].start, name)
        entry = Entry(value)
        entry[None] = name
        return entry

    def _build(self, obj: Any, stream: Any, context: Context, path: str) -> JsonRows:
        rows = context.get(path.rpartition(" -> ")[2])
        if not isinstance(rows, JsonRows) or rows is obj:  # not measured yet
            rows = self.build_rows(obj, context, path)
        write_all(stream, rows.stored)
        return rows

    def build_rows(self, obj: Any, context: Context, path: str) -> JsonRows:
        """Returns rows with their text. The context has the value of the field `metadata`.

        Raises:
            FormatError: if a row or the metadata cannot be written.
            LimitError: if a limit is exceeded.
        """
        metadata = context.get(self.metadata)
        texts = checked_texts(metadata, f"{path.rpartition(' -> ')[0]} -> {self.metadata}")
        if not isinstance(obj, Sequence) or isinstance(obj, (str, bytes)):
            raise FormatError(f"expected a sequence of rows, found {quote(obj)}", path)
        old, step = getattr(metadata, "rows", None), context._params.get("alignment", 1)
        rows = obj if isinstance(obj, JsonRows) else old
        is_same = isinstance(rows, JsonRows) and rows == list(obj) and texts == dict(rows.reserved or ())
        if not isinstance(rows, JsonRows) or not is_same or (PADDED_TO + len(rows.stored)) % step:
            rows = self._new_text(obj, texts, context, path)
            if isinstance(old, JsonRows) and step == 1 and (edited := old.edit(obj, texts)) is not None:
                rows.stored = edited
        count_objects(context, len(rows) + len(texts), path)
        limits_of(context).check("metadata", len(rows.stored), path, " bytes")
        return rows

    def _new_text(self, obj: Sequence[Any], texts: Mapping[str, str], context: Context, path: str) -> JsonRows:
        entries, built = [f"{to_json(self.reserved)}:{to_json(texts)}"] if texts else [], dict[str, Any]()
        for i, row in enumerate(obj):
            entry = Entry()
            record = self.row._build(row, entry, context, f"{path} -> {i}")
            if (name := entry.pop(None)) in built or name == self.reserved:
                problem = f"expected each name once, and none that is reserved, found {quote(name)}"
                raise FormatError(problem, f"{path} -> {i} -> name", tensor=name)
            built[name] = record
            entries.append(f"{to_json(name)}:{to_json(entry)}")
        stored = f"{{{','.join(entries)}}}".encode()
        step = lcm(PADDED_TO, context._params.get("alignment", 1))
        rows = JsonRows(stored + b" " * (-(PADDED_TO + len(stored)) % step), 0, self.keys, self.reserved)
        rows.extend(built.values())
        rows.reserved = tuple(texts.items()) or None
        return rows


class JsonTexts(construct.Construct):
    """The reserved entry of a `JsonTable`. Takes no bytes, since they belong to the table.

    Parses into `JsonEntries`, builds from any mapping of texts to texts. An empty mapping builds no
    entry. Of several values with one key, the last one counts. Size: 0.

    Args:
        table: the field of the table.
    """

    refuses = ("an entry with values that are not texts",)

    def __init__(self, table: str) -> None:
        super().__init__()
        self.table = table
        self.flagbuildnone = True

    def _parse(self, stream: Any, context: Context, path: str) -> JsonEntries:
        rows, end, trace = context[self.table], stream.tell(), context["_params"].get("trace")
        stored = () if rows.reserved is None else rows.reserved
        if not isinstance(stored, tuple) or (trace and stored):
            whole = next(part for part in reversed(rows.members) if rows.key_of(part) == rows.name)
            if not isinstance(stored, tuple):
                raise FormatError(f"expected an object of texts, found {quote(stored)}", path, rows.start + whole.start)
            inner = PAIR.nest(context, stream)
            for i, (part, pair) in enumerate(zip(parts(rows.text, whole.start), stored, strict=True)):
                for name, value, (first, last) in zip(("key", "value"), pair, (part[:2], part[2:]), strict=True):
                    stream.seek(rows.start + first)
                    trace.begin(f"{path} -> {i} -> {name}", stream, inner)
                    stream.seek(rows.start + last)
                    trace.end(value, stream)
            stream.seek(end)
        for i, (key, value) in enumerate(stored):
            if not isinstance(value, str):
                raise FormatError(f"expected text, found {quote(value)}", f"{path} -> {i} -> value", key=key)
        return JsonEntries(dict(stored), rows)

    def _build(self, obj: Any, stream: Any, context: Context, path: str) -> Any:
        checked_texts(obj, path)
        return obj

    def _sizeof(self, context: Context, path: str) -> int:
        return 0


def checked_texts(entries: Any, path: str) -> dict[str, str]:
    """Returns a copy of the texts of a mapping. Raises FormatError for other values."""
    if not isinstance(entries, (Mapping, NoneType)):
        raise FormatError(f"expected a mapping of text to text, found {quote(entries)}", path)
    for text in (part for pair in (entries or {}).items() for part in pair):
        encode_text(text, path, "strict")
    return dict(entries or {})


def nbytes_of_json(table: str) -> Callable[[Context], int]:
    """Returns the function that measures the text of `table`, a field of the outer Struct.

    Building the text is the only way to measure it, so the table's own build reuses the result.
    """

    def nbytes(context: Context) -> int:
        outer = context["_"]
        outer[table] = rows = unwrap(outer["_subcons"][table]).build_rows(outer[table], outer, f"(building) -> {table}")
        return len(rows.stored)

    return nbytes


class JsonEntries(TextMetadata):
    """Texts by key, of a `JsonTable`'s reserved entry.

    Attributes:
        rows: the table that they were parsed with.
    """

    def __init__(self, entries: Mapping[str, str], rows: JsonRows) -> None:
        super().__init__(entries)
        self.rows = rows

    def replace(self, entries: Mapping[str, str]) -> JsonEntries:
        """Returns other entries of the same table.

        Raises FormatError if duplicates of the reserved entry, or of a text that `entries` keeps,
        would be lost.
        """
        kept = {quote(key) for key in self if entries.get(key) == self[key]}
        for found in self.rows.irregularities:
            if found.kind == RESERVED_ONCE or (found.kind == RESERVED_KEYS_ONCE and found.path[-1] in kept):
                problem = f"expected {found.kind}, found {found.found}: a change would lose all but one"
                raise FormatError(problem, "metadata", self.rows.start + found.start)
        return JsonEntries(entries, self.rows)


class Irregularity(NamedTuple):
    """A property of a JSON table that readers treat differently.

    Attributes:
        kind: the end of the sentence "expected ...".
        found: the end of the sentence "found ...".
        path: the path below the table.
        start: index of its first byte in the text.
    """

    kind: str
    found: str
    path: tuple[str, ...]
    start: int


@with_display
class JsonRows(list[Any]):
    """The rows of a `JsonTable`, with their text.

    Attributes:
        stored: the text.
        start: the first byte of the text, from the start of the container.
        keys: the keys of a row's object.
        name: the name of the reserved entry.
        reserved: the value of that entry: pairs if it is an object; None if there is none.
    """

    def __init__(self, stored: bytes, start: int, keys: tuple[str, ...], name: str) -> None:
        super().__init__()
        self.stored = stored
        self.start = start
        self.keys = keys
        self.name = name
        self.reserved: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _rows, (self.stored, self.start, self.keys, self.name), {"reserved": self.reserved}, iter(self)

    def decode(self, path: str) -> tuple[tuple[str, Any], ...]:
        """Returns the entries: objects as tuples of pairs, arrays as lists.

        Raises:
            FormatError: if the text is not UTF-8, or not a JSON object.
        """
        entries = decode(self.stored, path, self.start)
        if not isinstance(entries, tuple):
            raise FormatError(f"expected a JSON object, found {quote(entries)}", path)
        return entries

    @cached_property
    def text(self) -> str:
        """The text with a character for each byte, so that an index is a position."""
        return self.stored.decode("latin-1")

    @cached_property
    def members(self) -> list[JsonPart]:
        """All entries, including the reserved one."""
        return list(parts(self.text, 0))

    def key_of(self, part: JsonPart) -> str:
        """Returns the key of a member."""
        key = self.text[part.key + 1 : part.key_end - 1]
        if "\\" in key or not key.isascii():
            key = decode(self.stored[part.key : part.key_end])
        return key

    def fields_of(self, entry: JsonPart) -> list[tuple[str, JsonPart]]:
        """Returns the values of an entry with their keys; those of an array get `keys` in order."""
        if self.text[entry.start] == "{":
            return [(self.key_of(part), part) for part in parts(self.text, entry.start)]
        return list(zip(self.keys, parts(self.text, entry.start), strict=False)) if self.text[entry.start] == "[" else []

    def spans(self, i: int, fields: Mapping[str, JsonField]) -> dict[str, tuple[int, int]]:
        """Returns start and end in the container of each field of the row of entry `i`."""
        entry = self.members[i]
        values = dict(self.fields_of(entry))
        indices = {name: field.span(entry, values, self.text) for name, field in fields.items()}
        return {name: (self.start + first, self.start + last) for name, (first, last) in indices.items()}

    def edit(self, rows: Sequence[Any], texts: Mapping[str, str]) -> bytes | None:
        """Returns the text with the names of `rows`, and with `texts` in the reserved entry.

        Everything else is kept, except for the number of spaces that pad the text. Returns None if
        anything else differs, or if the reserved entry or one of its keys has duplicates.
        """
        if len(rows) != len(self) or any({**old, "name": new["name"]} != new for old, new in zip(self, rows, strict=True)):
            return None
        names = {old.name: new["name"] for old, new in zip(self, rows, strict=True)}
        entries = [(self.key_of(part), part) for part in self.members]
        edits = [(part.key, part.key_end, to_json(names[name])) for name, part in entries if names.get(name, name) != name]
        old = dict(self.reserved or ())
        if texts != old:
            if len(old) < len(self.reserved or ()) or sum(name == self.name for name, _ in entries) > 1:
                return None
            edits += self._edits_of_reserved(entries, old, texts)
        pieces, at = list[bytes](), 0
        for first, last, new in sorted(edits):
            pieces += [self.stored[at:first], new.encode()]
            at = last
        stored = b"".join([*pieces, self.stored[at:]])
        if len(self.stored) % PADDED_TO:
            return stored
        text = stored.rstrip(b" ")
        padding = (len(stored) - len(text)) // PADDED_TO * PADDED_TO
        return text + b" " * (padding + -len(text) % PADDED_TO)

    def _edits_of_reserved(
        self, entries: list[tuple[str, JsonPart]], old: Mapping[str, str], texts: Mapping[str, str]
    ) -> list[tuple[int, int, str]]:
        """Returns spans of the text and their replacements."""
        names = [name for name, _ in entries]
        if self.name not in names:
            start = self.text.index("{") + 1
            return [(start, start, f"{to_json(self.name)}:{to_json(texts)}{',' if entries else ''}")]
        number = names.index(self.name)
        whole = entries[number][1]
        if not texts:
            if number + 1 < len(entries):
                return [(whole.key, entries[number + 1][1].key, "")]
            return [(entries[number - 1][1].end if number else whole.key, whole.end, "")]
        pairs = self.fields_of(whole)
        kept = [i for i, (key, _) in enumerate(pairs) if key in texts]
        if not kept:
            return [(whole.start, whole.end, to_json(texts))]
        added = "".join(f",{to_json(key)}:{to_json(text)}" for key, text in texts.items() if key not in old)
        return [
            *((part.start, part.end, to_json(texts[key])) for key, part in pairs if key in texts and texts[key] != old[key]),
            *((part.key, pairs[i + 1][1].key, "") for i, (key, part) in enumerate(pairs[: kept[-1]]) if key not in texts),
            (pairs[kept[-1]][1].end, pairs[-1][1].end, added),
        ]

    @cached_property
    def irregularities(self) -> list[Irregularity]:
        """The irregularities of the text, in order."""
        text, listed, names = self.text, list[Irregularity](), set[str]()
        if not text.startswith("{"):
            listed.append(Irregularity(BEGINS_WITH_BRACE, quote(self.stored[:1]), (), 0))
        for entry in self.members:
            name = self.key_of(entry)
            if name in names:
                kind = RESERVED_ONCE if name == self.name else NAMES_ONCE
                listed.append(Irregularity(kind, again(name), (quote(name),), entry.key))
            names.add(name)
            listed += self._in_reserved(entry) if name == self.name else self._in_entry(entry, (quote(name),))
        end = value_at(text, after_spaces(text, 0))[1]
        if padding := self.stored[end:].lstrip(b" "):
            listed.append(Irregularity(PADDED_WITH_SPACES, quote(padding[:8]), ("padding",), len(text) - len(padding)))
        return listed

    def _in_reserved(self, entry: JsonPart) -> Iterator[Irregularity]:
        if self.text[entry.start] != "{":
            yield Irregularity(RESERVED_OBJECT, self.text[entry.start : entry.end], (quote(self.name),), entry.start)
            return
        keys = set[str]()
        for key, part in self.fields_of(entry):
            if key in keys:
                yield Irregularity(RESERVED_KEYS_ONCE, again(key), (quote(self.name), quote(key)), part.key)
            keys.add(key)

    def _in_entry(self, entry: JsonPart, path: tuple[str, ...]) -> Iterator[Irregularity]:
        if self.text[entry.start] == "[":
            yield Irregularity(PLAIN_ENTRIES, "an array", path, entry.start)
        keys = set[str]()
        for key, part in self.fields_of(entry):
            if key not in self.keys:
                yield Irregularity(KNOWN_KEYS, quote(key), (*path, quote(key)), part.key)
                if (levels := 2 + levels_of(value_at(self.text, part.start)[0])) > MOST_LEVELS:
                    yield Irregularity(NOT_DEEP, str(levels), (*path, quote(key)), part.start)
            elif key in keys:
                yield Irregularity(KEYS_ONCE, again(key), (*path, quote(key)), part.key)
            elif self.text[part.start] == "{":
                yield Irregularity(PLAIN_ENTRIES, "an object", (*path, quote(key)), part.start)
            keys.add(key)


def _rows(stored: bytes, start: int, keys: tuple[str, ...], name: str) -> JsonRows:
    return JsonRows(stored, start, keys, name)


def again(key: str) -> str:
    """Returns the end of a sentence about a duplicate."""
    return f"{quote(key)} again"


class JsonRule(Check):
    """The rule that a table's text has no irregularity of one kind."""

    def __init__(self, id: str, field: str, kind: str, sets: tuple[str, ...]) -> None:
        super().__init__(id, field, sets)
        self.expected = kind

    def needs(self) -> set[str]:
        return {self.field}

    def check(self, context: Context, path: str) -> None:
        rows = context[self.field]
        for found in rows.irregularities:
            if found.kind == self.expected:
                where = " -> ".join((path, self.field, *found.path))
                offset = rows.start + found.start if context._parsing else None
                self.report(context, f"expected {found.kind}, found {found.found}", where, offset)


class _RowTrace:
    """The trace of one row. Fields have their positions in the text; derived fields have none."""

    def __init__(self, trace: Trace, stream: Any, spans: Mapping[str, tuple[int, int]]) -> None:
        self._trace, self._stream, self._spans = trace, stream, spans
        self.find = trace.find

    def begin(self, path: str, stream: Any, context: Any) -> None:
        start, self._end = self._spans.get(path.rpartition(" -> ")[2], (self._stream.tell(),) * 2)
        self._stream.seek(start)
        self._trace.begin(path, self._stream, context)

    def end(self, value: Any, stream: Any) -> None:
        self._stream.seek(self._end)
        self._trace.end(value, self._stream)


class JsonField(construct.Construct):
    """A field of a row of a `JsonTable`, at `key` of the row's object.

    Attributes:
        key: the key; None for the row's name.
    """

    def __init__(self, key: str | None = None) -> None:
        super().__init__()
        self.key = key

    def span(self, entry: JsonPart, values: Mapping[str, JsonPart], text: str) -> tuple[int, int]:
        """Returns start and end in the text; an empty span if the entry lacks the value."""
        part = values.get(self.key or "")
        return (part.start, part.end) if part else (entry.start, entry.start)

    def _value(self, entry: Entry, path: str) -> Any:
        if self.key not in entry:
            raise FormatError(f"expected a value for {self.key!r}, found none", path)
        return entry[self.key]


class Key(JsonField):
    """The name of a row. Parses into text, builds from text."""

    def span(self, entry: JsonPart, values: Mapping[str, JsonPart], text: str) -> tuple[int, int]:
        return entry.key, entry.key_end

    def _parse(self, stream: Entry, context: Context, path: str) -> Any:
        return stream[None]

    def _build(self, obj: Any, stream: Entry, context: Context, path: str) -> Any:
        encode_text(obj, path, "strict")
        stream[None] = obj
        return obj


class TextAt(JsonField):
    """A text. Also parses ``{TEXT: null}``, another form of Rust's enums. Builds from text."""

    def _parse(self, stream: Entry, context: Context, path: str) -> str:
        found = self._value(stream, path)
        if isinstance(found, tuple) and len(found) == 1 and found[0][1] is None:
            found = found[0][0]
        if not isinstance(found, str):
            raise FormatError(f"expected text, found {quote(found)}", path)
        return found

    def _build(self, obj: Any, stream: Entry, context: Context, path: str) -> Any:
        encode_text(obj, path, "strict")
        stream[self.key] = obj
        return obj


class IntegerAt(JsonField):
    """The integer at `index` of an array of `of` integers. Parses into an int, builds from one."""

    def __init__(self, key: str, index: int, of: int) -> None:
        super().__init__(key)
        self.index = index
        self.of = of

    def span(self, entry: JsonPart, values: Mapping[str, JsonPart], text: str) -> tuple[int, int]:
        first, last = super().span(entry, values, text)
        elements = [*islice(parts(text, first), self.of + 1)] if text[first] == "[" and first < last else []
        return elements[self.index][2:] if len(elements) == self.of else (first, last)

    def _parse(self, stream: Entry, context: Context, path: str) -> int:
        found = self._value(stream, path)
        if not isinstance(found, list) or len(found) != self.of or not all(map(_is_integer, found)):
            raise FormatError(f"expected {self.of} integers, found {quote(found)}", path)
        number: int = found[self.index]
        return number

    def _build(self, obj: Any, stream: Entry, context: Context, path: str) -> Any:
        stream.setdefault(self.key, [0] * self.of)[self.index] = _stored_integer(obj, path)
        return obj


class IntegersAt(JsonField):
    """An array of integers. Parses into a list of ints, builds from a sequence of ints.

    Args:
        key: its key in the row's object.
        limit: the name of the limit on the count.
        paired: the context -> whether two numbers share a byte. If so, the last integer counts
            numbers in the text, and bytes when parsed. None if they never do.
    """

    def __init__(self, key: str, limit: str, paired: Any = None) -> None:
        super().__init__(key)
        self.limit = limit
        self.paired = paired
        self._is_paired = as_expression(paired is not None and paired)
        too_many = f"more than {DEFAULTS[limit]} integers, {A_LIMIT}"
        odd = "an odd last integer, if two numbers share a byte: torch has no such tensors"
        self.refuses = (too_many, odd) if paired is not None else (too_many,)

    def _parse(self, stream: Entry, context: Context, path: str) -> list[int]:
        found = self._value(stream, path)
        limits_of(context).check(self.limit, len(found) if isinstance(found, list) else 0, path)
        if not isinstance(found, list) or not all(map(_is_integer, found)):
            raise FormatError(f"expected integers, found {quote(found)}", path)
        if not self._is_paired(context):
            return found
        if not found or found[-1] % 2:
            raise FormatError(f"expected an even last integer, since two numbers share a byte, found {quote(found)}", path)
        return [*found[:-1], found[-1] // 2]

    def _build(self, obj: Any, stream: Entry, context: Context, path: str) -> Any:
        limits_of(context).check(self.limit, len(obj), path)
        sizes = [_stored_integer(size, path) for size in obj]
        if self._is_paired(context):
            if not sizes:
                raise FormatError("expected a last integer to double, since two numbers share a byte, found none", path)
            sizes[-1] *= 2
        stream[self.key] = sizes
        return obj


PAIR = Struct(  # of a `JsonTexts`, in traces and descriptions
    "key" / Key() * "unique",
    "value" / TextAt() * "any text",
    title="metadata_entry",
)


def _json_field(field: Any) -> JsonField | None:
    """Returns the field of this module inside of a declaration, or None."""
    while isinstance(field, construct.Subconstruct):
        field = field.subcon
    return field if isinstance(field, JsonField) else None


def _is_integer(value: Any) -> bool:
    return type(value) is int and value >= 0


def _stored_integer(value: Any, path: str) -> int:
    try:
        if not isinstance(value, bool) and 0 <= (number := operator.index(value)) < 1 << 64:
            return number
    except TypeError:
        pass
    raise FormatError(f"expected an integer from 0 to 2**64 - 1, found {quote(value)}", path)
