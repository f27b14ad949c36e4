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

Of several entries with one name, or values with one key, the last one counts.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from math import lcm
from types import MappingProxyType, NoneType
from typing import Any, NamedTuple, TypeGuard

import construct

from glft_schema.codec.columns import Rows
from glft_schema.codec.context import Context, limits_of
from glft_schema.codec.expressions import as_expression
from glft_schema.codec.json_text import JsonPart, count_parts, decode, levels_of, parts, to_json
from glft_schema.codec.metadata_lines import TextMetadata
from glft_schema.codec.rules import Check, Fault
from glft_schema.codec.structs import Struct, unwrap
from glft_schema.codec.tables import count_objects
from glft_schema.codec.text import encode_text
from glft_schema.codec.trace import STEP, Trace, without_root
from glft_schema.errors import FormatError, LimitError, quote
from glft_schema.limits import A_LIMIT, DEFAULTS
from glft_schema.storage.cursor import bytes_left, read_exactly
from glft_schema.storage.tensor_bytes import write_all

MOST_LEVELS = 127  # of nested objects and arrays that serde_json reads
PADDED_TO = 8  # bytes of the length before the text, and of the least alignment of the payloads after it

NOT_INTEGERS = (
    *(b"\x005", b"\0null", b"\0{}", b'\0"1"', b"\0[1.0]", b"\0[1e0]", b"\0[-1]", b"\0[-0]"),
    *(b"\0[null]", b'\0["1"]', b"\0[[1]]", b"\0[18446744073709551616]", b"\0[true]"),
)

# What readers treat differently, by kind: the end of the sentence "expected ..."
IRREGULARITIES = {
    "brace": "`{` as the first byte",
    "padding": "only spaces (0x20) after the object",
    "names-once": "each name once",
    "metadata-once": "the reserved entry once",
    "metadata-object": "an object in the reserved entry",
    "metadata-keys-once": "each key of the reserved entry once",
    "known-keys": "only known keys in an entry",
    "keys-once": "each key of an entry once",
    "plain-entries": "entries that are objects, with types that are texts",
    "nesting": f"at most {MOST_LEVELS} nested objects and arrays",
}
UNKEPT = ("names-once", "metadata-once", "metadata-keys-once", "known-keys", "keys-once")  # a new text lacks what they add

# Texts with each kind of irregularity, at the NUL. `rows` is the text before the last row: its key
# `name`, the object `row`, the `pairs` in it, the `first` of them, and their `values`.
IRREGULAR = {
    "brace": b"\0 %(rows)b%(name)b:%(row)b}",
    "padding": b"%(rows)b%(name)b:%(row)b}\0\n",
    "names-once": b"%(rows)b%(name)b:%(row)b,\0%(name)b:%(row)b}",
    "metadata-once": b"%(rows)b%(name)b:%(row)b,%(reserved)b:{},\0%(reserved)b:{}}",
    "metadata-object": b"%(rows)b%(name)b:%(row)b,%(reserved)b:\0null}",
    "metadata-keys-once": b'%(rows)b%(name)b:%(row)b,%(reserved)b:{"k":"a",\0"k":"b"}}',
    "known-keys": b'%(rows)b%(name)b:{%(pairs)b,\0"?":[1.5]}}',
    "keys-once": b"%(rows)b%(name)b:{%(pairs)b,\0%(first)b}}",
    "plain-entries": b"%(rows)b%(name)b:\0[%(values)b]}",
    "nesting": b'%(rows)b%(name)b:{%(pairs)b,"?":\0' + b"[" * (MOST_LEVELS - 1) + b"]" * (MOST_LEVELS - 1) + b"}}",
}


class Entry(dict[str | None, Any]):
    """A row's JSON object, the stream of its fields. The key None has the row's name.

    Attributes:
        spans: in a trace, start and end of each field in the container, by name.
        end: in a trace, the end of the last field.
    """

    spans: Mapping[str, tuple[int, int]] = MappingProxyType({})
    end = 0

    def tell(self) -> int:
        return self.end


class JsonTable(construct.Construct):
    """A JSON object of `size` bytes, with an object for each row by name, and one reserved entry.

    Parses into `JsonRows`, in order. Builds from a sequence of rows, and the value of the field
    `metadata` for the reserved entry. `JsonRows` whose metadata is unchanged build their original
    text. Any other text is new: without spaces, except those that pad it. Payloads follow it at a
    multiple of `PADDED_TO` and of the alignment that is asked for.

    Args:
        size: the context -> bytes of the text.
        row: the Struct of a row, with fields of this module.
        reserved: the name of the entry that is not a row.
        metadata: the name of the field with that entry, a `JsonTexts`.

    Attributes:
        keys: the keys of a row's object, in the order of new texts.
        fields: the fields of a row with a value in the text, by name.
    """

    refuses = (  # see `IRREGULAR`
        Fault(
            "text that is not UTF-8, or is not the JSON of an object",
            (
                b'%(rows)b"\0\xff":{}}',
                b'%(rows)b"\0\n":{}}',
                b'%(rows)b"":{}}\0?',
                b'%(rows)b""}',
                b'%(rows)b"":{}',
            ),
        ),
        Fault(
            "numbers that are not finite, and lone surrogates",
            (
                b'%(rows)b"":\0NaN}',
                b'%(rows)b"":\0Infinity}',
                b'%(rows)b"":\0-Infinity}',
                b'%(rows)b"":\x001e999}',
                b'%(rows)b\0"\\ud800":{}}',
            ),
        ),
        Fault(
            "an entry that lacks a key, or has a value of another kind",
            (b"%(rows)b%(name)b:\x005}", b"%(rows)b%(name)b:\0null}", b"%(rows)b%(name)b:\0[]}"),
            part="#",
        ),
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
        rows = JsonRows(self, read_exactly(stream, size, path), start)
        containers, members = count_parts(rows.stored)  # a row is a member with its keys, and has fewer containers
        number = members // (len(self.keys) + 1) + max(containers - members, 0)
        limits_of(context).check("objects", number, path, " tensors, entries and arrays")
        entries = decode(rows.stored, path, start)
        if not isinstance(entries, tuple):
            raise FormatError(f"expected a JSON object, found {quote(entries)}", path)
        last = {name: i for i, (name, _) in enumerate(entries)}
        if self.reserved in last:
            rows.reserved = entries[last.pop(self.reserved)][1]
        count_objects(context, len(entries) + (len(rows.reserved) if isinstance(rows.reserved, tuple) else 0), path)
        params, trace = context["_params"], context["_params"].get("trace")
        params["trace"] = None
        for i, (name, _) in enumerate(entries):
            if last.get(name, i) != i:
                self._check_replaced(rows, entries, i, context, path)
        self._parse_rows(rows, entries, sorted(last.values()), context, path, trace)
        params["trace"] = trace
        return rows

    def _parse_rows(
        self, rows: JsonRows, entries: Any, order: Sequence[int], context: Context, path: str, trace: Trace | None
    ) -> None:
        """Appends the rows of the entries `order`. Traces those that `trace` asks for."""
        own = self.row.nest(context, None)  # the context of all rows, each of which sets the same fields
        steps = [(name, unwrap(field)._parse, rows.others.get(name, []).append) for name, field, _ in self.row.needed]
        traced = set(trace.rows_in(without_root(path), len(order))) if trace else ()
        for number, i in enumerate(order):
            entry = self._entry(rows, entries, i, path, number)
            if number in traced:
                entry.spans, context["_params"]["trace"] = rows.spans(i), trace
                rows.add(self.row._parse(entry, context, f"{path} -> {number}"))
                context["_params"]["trace"] = None
                continue
            try:
                for name, parse, store in steps:
                    own[name] = value = parse(entry, own, "")
                    store(value)
            except (FormatError, construct.ConstructError):
                self.row._parse(entry, context, f"{path} -> {number}")  # raises it again, with its path
                raise
            rows.kind.append(0)

    def _check_replaced(self, rows: JsonRows, entries: Any, i: int, context: Context, path: str) -> None:
        """Checks the kinds of the values in an entry that a later one replaces."""
        name = quote(entries[i][0])
        entry = self._entry(rows, entries, i, path, name)
        try:
            self._values._parse(entry, context, f"{path} -> {name}")
        except FormatError as error:
            error.offset, error.tensor = rows.start + rows.members[i].start, entry[None]
            raise

    def _entry(self, rows: JsonRows, entries: Any, i: int, path: str, row: int | str) -> Entry:
        """Returns the object of an entry, whose value may be an array in the order of `keys`."""
        name, value = entries[i]
        if isinstance(value, list) and len(value) == len(self.keys):
            value = zip(self.keys, value, strict=True)
        elif not isinstance(value, tuple):
            problem = f"expected an object with {', '.join(self.keys)}, found {quote(value)}"
            raise FormatError(problem, f"{path} -> {row}", rows.start + rows.members[i].start, name)
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
        texts = checked_texts(context.get(self.metadata), f"{path.rpartition(' -> ')[0]} -> {self.metadata}")
        if not isinstance(obj, Sequence) or isinstance(obj, (str, bytes)):
            raise FormatError(f"expected a sequence of rows, found {quote(obj)}", path)
        step = context._params.get("alignment", 1)
        if not isinstance(obj, JsonRows) or texts != dict(obj.reserved or ()) or (PADDED_TO + len(obj.stored)) % step:
            obj = self._new_text(obj, texts, context, path)
        rows: JsonRows = obj
        count_objects(context, len(rows) + len(texts), path)
        limits_of(context).check("metadata", len(rows.stored), path, " bytes")
        return rows

    def _new_text(self, obj: Sequence[Any], texts: Mapping[str, str], context: Context, path: str) -> JsonRows:
        rows, names = JsonRows(self, b"", 0), {self.reserved}
        entries = [f"{to_json(self.reserved)}:{to_json(texts)}"] if texts else []
        for i, row in enumerate(obj):
            entry = Entry()
            rows.add(self.row._build(row, entry, context, f"{path} -> {i}"))
            if (name := entry.pop(None)) in names:
                problem = f"expected each name once, and none that is reserved, found {quote(name)}"
                raise FormatError(problem, f"{path} -> {i} -> name", tensor=name)
            names.add(name)
            entries.append(f"{to_json(name)}:{to_json(entry)}")
        stored = f"{{{','.join(entries)}}}".encode()
        step = lcm(PADDED_TO, context._params.get("alignment", 1))
        rows.stored = stored + b" " * (-(PADDED_TO + len(stored)) % step)
        rows.reserved = tuple(texts.items()) or None
        return rows


class JsonTexts(construct.Construct):
    """The reserved entry of a `JsonTable`. Takes no bytes, since they belong to the table.

    Parses into `TextMetadata`, builds from any mapping of texts to texts. An empty mapping builds
    no entry. Size: 0.

    Args:
        table: the field of the table.
    """

    refuses = (
        Fault(
            "an entry with values that are not texts",
            tuple(b'{"k":"v","l":\0%s}' % value for value in (b"5", b"null", b"[]", b'{"a":"b"}')),
            part="1 -> value",
        ),
        Fault("a value other than an object in the entry", (b"\x005", b"\0[]", b'\0"a"')),
    )

    def __init__(self, table: str) -> None:
        super().__init__()
        self.table = table
        self.flagbuildnone = True

    def _parse(self, stream: Any, context: Context, path: str) -> TextMetadata:
        rows, trace = context[self.table], context["_params"].get("trace")
        stored = () if rows.reserved is None else rows.reserved
        if not isinstance(stored, tuple):
            start = rows.start + rows.last[rows.table.reserved].start
            raise FormatError(f"expected an object of texts, found {quote(stored)}", path, start)
        if trace and stored:
            inner = PAIR.nest(context, None)
            for i, (part, pair) in enumerate(zip(rows.fields_of(rows.last[rows.table.reserved]), stored, strict=True)):
                spans = (part.key, part.key_end), (part.start, part.end)
                for name, value, (first, last) in zip(("key", "value"), pair, spans, strict=True):
                    trace.begin(f"{path} -> {i} -> {name}", rows.start + first, inner)
                    trace.end(value, rows.start + last)
        for i, (key, value) in enumerate(stored):
            if not isinstance(value, str):
                raise FormatError(f"expected text, found {quote(value)}", f"{path} -> {i} -> value", key=key)
        return TextMetadata(dict(stored))

    def _build(self, obj: Any, stream: Any, context: Context, path: str) -> Any:
        return obj  # which the table has checked

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


class Irregularity(NamedTuple):
    """A property of a JSON table that readers treat differently.

    Attributes:
        kind: one of `IRREGULARITIES`.
        found: the end of the sentence "found ...".
        path: the path below the table.
        start: index of its first byte in the text.
    """

    kind: str
    found: str
    path: tuple[str, ...]
    start: int


class JsonRows(Rows):
    """The rows of a `JsonTable`, with their text.

    Attributes:
        table: the declaration.
        stored: the text.
        start: the first byte of the text, from the start of the container.
        reserved: the value of the reserved entry: pairs if it is an object; None if there is none.
    """

    def __init__(self, table: JsonTable, stored: bytes, start: int) -> None:
        super().__init__(table.row, ())
        self.kinds.append(())  # of all rows, whose values are not shared
        self.table = table
        self.stored = stored
        self.start = start
        self.reserved: Any = None

    @cached_property
    def text(self) -> str:
        """The text with a character for each byte, so that an index is a position."""
        return self.stored.decode("latin-1")

    @cached_property
    def members(self) -> list[JsonPart]:
        """All entries, including the reserved one."""
        return list(parts(self.text))

    @cached_property
    def last(self) -> dict[str | None, JsonPart]:
        """The last entry of each name."""
        return {part.name: part for part in self.members}

    def entry(self, row: int) -> int:
        """Returns the number of the entry of a row."""
        rows = [i for i, part in enumerate(self.members) if self.last[part.name] is part and part.name != self.table.reserved]
        return rows[row]

    def fields_of(self, entry: JsonPart) -> list[JsonPart]:
        """Returns the values of an entry; those of an array get the table's keys in order."""
        found = list(parts(self.text, entry.start))
        if self.text[entry.start] == "[":
            return [part._replace(name=key) for key, part in zip(self.table.keys, found, strict=False)]
        return found

    def spans(self, number: int) -> dict[str, tuple[int, int]]:
        """Returns start and end of an entry's fields in the container; equal without a value."""
        entry = self.members[number]
        values = {None: (entry.key, entry.key_end), **{part.name: part[-2:] for part in self.fields_of(entry)}}
        spans = {}
        for name, field in self.table.fields.items():
            first, last = field.within(self.text, *values.get(field.key, (entry.start, entry.start)))
            spans[name] = self.start + first, self.start + last
        return spans

    @cached_property
    def irregularities(self) -> list[Irregularity]:
        """The irregularities of the text, in order."""
        return list(self._irregularities())

    def _irregularities(self) -> Iterator[Irregularity]:
        if not self.stored.startswith(b"{"):
            yield Irregularity("brace", quote(self.stored[:1]), (), 0)
        names = set[str]()
        for i, (name, value) in enumerate(decode(self.stored)):
            if name in names:
                kind = "names-once" if name != self.table.reserved else "metadata-once"
                yield Irregularity(kind, f"{quote(name)} again", (quote(name),), self.members[i].key)
            names.add(name)
            yield from self._in_entry(i, name, value)
        end = len(self.stored.rstrip(b" \t\n\r"))
        if padding := self.stored[end:].lstrip(b" "):
            yield Irregularity("padding", quote(padding[:8]), ("padding",), len(self.stored) - len(padding))

    def _in_entry(self, i: int, name: str, value: Any) -> Iterator[Irregularity]:
        is_row, path, keys = name != self.table.reserved, (quote(name),), set[str]()
        if not isinstance(value, tuple):
            part = self.members[i]
            kind, found = ("plain-entries", "an array") if is_row else ("metadata-object", self.text[part.start : part.end])
            yield Irregularity(kind, found, path, part.start)
            value = zip(self.table.keys, value, strict=True) if is_row else ()
        for j, (key, of_key) in enumerate(value):
            is_known, is_again = not is_row or key in self.table.keys, key in keys
            keys.add(key)
            if is_known and not is_again and not (is_row and isinstance(of_key, tuple)):
                continue
            part, where = self.fields_of(self.members[i])[j], (*path, quote(key))
            if not is_known:
                yield Irregularity("known-keys", quote(key), where, part.key)
                if (levels := 2 + levels_of(of_key)) > MOST_LEVELS:
                    yield Irregularity("nesting", str(levels), where, part.start)
            elif is_again:
                yield Irregularity("keys-once" if is_row else "metadata-keys-once", f"{quote(key)} again", where, part.key)
            else:
                yield Irregularity("plain-entries", "an object", where, part.start)

    def check_kept(self, path: str) -> None:
        """Checks that a new text would keep all rows and texts, and the keys of rows.

        Raises:
            FormatError: if the text has duplicates or unknown keys.
        """
        for found in self.irregularities:
            if found.kind in UNKEPT:
                problem = f"expected {IRREGULARITIES[found.kind]}, found {found.found}: a change would lose it"
                raise FormatError(problem, " -> ".join((path, *found.path)), self.start + found.start)


class JsonRule(Check):
    """The rule that a table's text has no irregularity of one kind."""

    def __init__(self, id: str, field: str, kind: str, sets: tuple[str, ...]) -> None:
        super().__init__(id, field, sets)
        self.kind = kind
        self.expected = IRREGULARITIES[kind]
        self.broken_by = (IRREGULAR[kind],)

    def needs(self) -> set[str]:
        return {self.field}

    def check(self, context: Context, path: str) -> None:
        rows = context[self.field]
        for found in rows.irregularities:
            if found.kind == self.kind:
                where = " -> ".join((path, self.field, *found.path))
                offset = rows.start + found.start if context._parsing else None
                self.report(context, f"expected {self.expected}, found {found.found}", where, offset)


def json_rules(prefix: str, field: str, **kinds: str) -> list[JsonRule]:
    """Returns a rule for each kind of irregularity that one of the rule sets refuses.

    Args:
        prefix: the start of the rules' ids, before ``-KIND``.
        field: the table.
        kinds: the kinds that each rule set refuses, of `IRREGULARITIES`, separated by spaces.
    """
    sets = {kind: tuple(name for name in kinds if kind in kinds[name].split()) for kind in IRREGULARITIES}
    return [JsonRule(f"{prefix}-{kind}", field, kind, names) for kind, names in sets.items() if names]


class JsonField(construct.Construct):
    """A field of a row of a `JsonTable`, at `key` of the row's object.

    Attributes:
        key: the key; None for the row's name.
    """

    def __init__(self, key: str | None = None) -> None:
        super().__init__()
        self.key = key

    def within(self, text: str, first: int, last: int) -> tuple[int, int]:
        """Returns start and end of the field in the text, within those of the value at `key`."""
        return first, last

    def _value(self, entry: Entry, context: Context, path: str) -> Any:
        """Returns the value at `key`. In a trace, moves the field to its span in the text."""
        if entry.spans:
            context["_params"]["trace"].open[-1].start, entry.end = entry.spans[path.rpartition(STEP)[2]]
        try:
            return entry[self.key]
        except KeyError:
            raise FormatError(f"expected a value for {self.key!r}, found none", path) from None


class TextAt(JsonField):
    """A text. Also parses ``{TEXT: null}``, another form of Rust's enums. Builds from text."""

    refuses: tuple[Fault, ...] = (
        Fault("a value other than a text", (b"\x005", b"\0null", b"\0[]", b"\0{}", b'\0{"F32":1}', b"\0true")),
    )

    def _parse(self, stream: Entry, context: Context, path: str) -> str:
        found = self._value(stream, context, path)
        if isinstance(found, tuple) and len(found) == 1 and found[0][1] is None:
            found = found[0][0]
        if not isinstance(found, str):
            raise FormatError(f"expected text, found {quote(found)}", path)
        return found

    def _build(self, obj: Any, stream: Entry, context: Context, path: str) -> Any:
        encode_text(obj, path, "strict")
        stream[self.key] = obj
        return obj


class Key(TextAt):
    """The name of a row. Parses into text, builds from text."""

    refuses = ()


class IntegerAt(JsonField):
    """The integer at `index` of an array of `of` integers. Parses into an int, builds from one."""

    def __init__(self, key: str, index: int, of: int) -> None:
        super().__init__(key)
        self.index = index
        self.of = of
        float_first = b"[\x000.5%s]" % (b",0" * (of - 1))
        others = (float_first, *(text.replace(b"\0[", b"[\0" if of == 1 else b"\0[") for text in NOT_INTEGERS))
        self.refuses = (Fault(f"a value other than {of} integers", others),)

    def within(self, text: str, first: int, last: int) -> tuple[int, int]:
        elements = [*islice(parts(text, first), self.of + 1)] if text[first] == "[" and first < last else []
        return elements[self.index][-2:] if len(elements) == self.of else (first, last)

    def _parse(self, stream: Entry, context: Context, path: str) -> int:
        found = self._value(stream, context, path)
        if not _are_integers(found) or len(found) != self.of:
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
        many = b"\0[%s]" % b",".join([b"1"] * (DEFAULTS[limit] + 1))
        others = Fault("a value other than integers", NOT_INTEGERS)
        self.refuses = (Fault(too_many, (many,), LimitError), others, *([Fault(odd)] if paired is not None else []))

    def _parse(self, stream: Entry, context: Context, path: str) -> list[int]:
        found = self._value(stream, context, path)
        limits_of(context).check(self.limit, len(found) if isinstance(found, list) else 0, path)
        if not _are_integers(found):
            raise FormatError(f"expected integers, found {quote(found)}", path)
        if not self._is_paired.compiled(context):
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


def _are_integers(value: Any) -> TypeGuard[list[int]]:
    if not isinstance(value, list):
        return False
    for part in value:  # noqa: SIM110 - faster than all(), and called three times for each row
        if type(part) is not int or part < 0:
            return False
    return True


def _stored_integer(value: Any, path: str) -> int:
    try:
        if not isinstance(value, bool) and 0 <= (number := operator.index(value)) < 1 << 64:
            return number
    except TypeError:
        pass
    raise FormatError(f"expected an integer from 0 to 2**64 - 1, found {quote(value)}", path)
