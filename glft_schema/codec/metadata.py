"""Metadata as read-only mappings, and the construct of typed key-values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import construct
import numpy as np

from glft_schema.codec.context import Context
from glft_schema.codec.tables import NamesOnce
from glft_schema.codec.type_codes import TypeTable
from glft_schema.codec.typed_text import from_value_text
from glft_schema.codec.typed_values import Array, StoredValue, Typed, ValueType, stored_value
from glft_schema.display import NAME, VALUE, Listing, Part, Row, format_count, format_value, with_display
from glft_schema.errors import FormatError, quote, safe
from glft_schema.words import MissingKeyError

__all__ = ["TypedArray", "TypedMetadata"]

HEADLINE = 4  # entries in a headline


@with_display
class Metadata(Mapping[str, Any]):
    """Values by key, in file order. Read-only: to change a file, build it from another mapping."""

    def __init__(self, entries: Mapping[str, Any]) -> None:
        self._entries = dict(entries)

    def __getitem__(self, key: str) -> Any:
        return self._entry(key)

    def _entry(self, key: str) -> Any:
        try:
            return self._entries[key]
        except KeyError:
            raise MissingKeyError(key, self._entries) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def _display(self) -> Iterator[Part]:
        table = metadata_table(self)
        yield f"{format_count(self, 'entry', 'entries')}{''.join(f', {row[0]} {row[-1]}' for row in table.rows[:HEADLINE])}"
        yield table


def metadata_table(metadata: Mapping[str, Any]) -> Listing:
    """Returns a row per entry: key, type if metadata is typed, and value."""
    type_of = getattr(metadata, "type_of", None)

    def row(key: str) -> Row:
        type_ = type_of(key) if type_of else ""
        types = (safe(type_, NAME),) if type_of else ()
        return safe(key, NAME), *types, quote(format_value(metadata[key], type_), VALUE)

    head = ("key", "type", "value") if type_of else ("key", "value")
    return Listing.of(f"{format_count(metadata, 'entry', 'entries')} of metadata", head, metadata, row)


class KeyTypes(NamedTuple):
    """The value types of well-known keys.

    Attributes:
        type_of: (key, whether its value is an array) -> the type of new values, or None.
        suits: (key, type) -> whether the key's value may have the type.
        kinds: key -> the kinds of type that suit it, in words.
        example: one of the keys.
    """

    type_of: Callable[[str, bool], str | None]
    suits: Callable[[str, str], bool]
    kinds: Callable[[str], str]
    example: str

    def refusal(self, key: str, type_: str) -> str | None:
        """Returns the error text if a key cannot have a type, otherwise None."""
        if self.type_of(key, False) is None or self.suits(key, type_):
            return None
        return f"expected {self.kinds(key)} for {key}, found {type_}"


class TypedMetadata(Metadata):
    """Typed values by key, in file order, as plain Python. Read-only.

    ``metadata | {"key": value}`` returns a copy with another entry.

    Args:
        entries: the stored values.
        types: the table of value types.
        keys: the types of well-known keys.

    Attributes:
        types: as above.
        key_types: as `keys`.
    """

    _entries: dict[str, StoredValue]

    def __init__(self, entries: Mapping[str, StoredValue], types: TypeTable[ValueType], keys: KeyTypes | None = None) -> None:
        super().__init__(entries)
        self.types = types
        self.key_types = keys

    def __getitem__(self, key: str) -> Any:
        return self._entry(key).plain

    def __eq__(self, other: object) -> bool:
        """Compares keys and values in any order; NaN is not equal to itself."""
        if not isinstance(other, Mapping) or self.keys() != other.keys():
            return False if isinstance(other, Mapping) else NotImplemented
        return all(_equal(value, other[key]) for key, value in self.items())

    __hash__ = None  # type: ignore[assignment]

    def __or__(self, others: Mapping[str, Any]) -> TypedMetadata:
        """Returns a copy with other entries, which replace existing ones or are appended.

        A plain value gets the type of the value that it replaces, if this type suits the key and is
        not a nested array, whose type depends on the inner arrays. Raises FormatError for a value
        that cannot be stored.
        """
        if not isinstance(others, Mapping):
            return NotImplemented
        entries = dict(self._entries)
        typed = others._entries if isinstance(others, TypedMetadata) else others
        for key, value in typed.items():
            plain = not isinstance(value, (Typed, StoredValue))
            if plain and self._keeps_type(key) and not self._entries[key].is_nested:
                value = Typed(value, self.type_of(key))
            entries[key] = self.entry(key, value, key)
        return self.replace(entries)

    def with_texts(self, others: Mapping[str, Any], path: str = "metadata") -> TypedMetadata:
        """Like ``|``, but parses text as the type of the value that it replaces."""
        return self | {key: self._parse_value(key, value, f"{path} -> {key}") for key, value in others.items()}

    def _parse_value(self, key: str, value: Any, path: str) -> Any:
        if not self._keeps_type(key):
            return self.entry(key, value, path)
        return from_value_text(value, self.type_of(key), self.types, path) if isinstance(value, str) else value

    def _keeps_type(self, key: str) -> bool:
        """Tells whether a plain value under `key` gets the type of the one that it replaces."""
        return key in self and (not self.key_types or self.key_types.suits(key, self.type_of(key)))

    def entry(self, key: str, value: Any, path: str) -> StoredValue:
        """Returns a value with its type. A plain value gets a well-known key's type if it fits.

        Raises FormatError for a value that cannot be stored, or text that is not of the key's type.
        """
        of_array = isinstance(value, (list, tuple)) or (isinstance(value, str) and value.startswith("["))
        type_ = self.key_types.type_of(key, of_array) if self.key_types and isinstance(key, str) else None
        if type_ is None or isinstance(value, (np.generic, Typed, StoredValue)):
            return stored_value(value, self.types, path)
        if isinstance(value, str):
            return from_value_text(value, type_, self.types, path)
        if isinstance(value, (int, float, list, tuple)):
            with suppress(FormatError):  # the key's rule refuses a value of another kind
                return stored_value(Typed(value, type_), self.types, path)
        return stored_value(value, self.types, path)

    def without(self, *keys: str) -> TypedMetadata:
        """Returns a copy without `keys`. Raises KeyError for an unknown key."""
        for key in keys:
            self._entry(key)
        without = set(keys)
        return self.replace({key: entry for key, entry in self._entries.items() if key not in without})

    def replace(self, entries: Mapping[str, StoredValue]) -> TypedMetadata:
        """Returns metadata with the same types and other entries."""
        return TypedMetadata(entries, self.types, self.key_types)

    def type_of(self, key: str) -> str:
        """Returns a value's type, such as ``array[string]``. Raises KeyError for an unknown key."""
        return str(self._entry(key).type_text)

    def stored_value(self, key: str) -> StoredValue:
        """Returns a value as stored. Raises KeyError for an unknown key."""
        entry: StoredValue = self._entry(key)
        return entry


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return bool(np.array_equal(one, other))
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other)


class TypedArray(construct.Adapter):
    """The Struct of an array. Parses into an `Array`, builds from one."""

    def _decode(self, record: Any, context: Context, path: str) -> Array:
        return Array(record.type, record.elements)

    def _encode(self, array: Array, context: Context, path: str) -> dict[str, Any]:
        type_, elements = array
        return {"type": type_, "elements": elements}


class KeyValues(construct.Subconstruct):
    """A table of key, type and value. Parses into `TypedMetadata`, builds from any mapping.

    Args:
        table: the declaration of the table.
        types: the value types.
        once: the id of the rule that keys are unique.
        keys: the types of well-known keys.
    """

    def __init__(
        self, table: construct.Construct, types: TypeTable[ValueType], *, once: str, keys: KeyTypes | None = None
    ) -> None:
        super().__init__(table)
        if not isinstance(types, TypeTable):
            raise TypeError(f"expected the types as TypeTable('toy value', ValueType('int64', 1, i64)), found {quote(types)}")
        self.types = types
        self.keys = keys
        self.once = NamesOnce(once, "key", key="key")
        self.flagbuildnone = True

    def _parse(self, stream: Any, context: Context, path: str) -> TypedMetadata:
        rows = self.subcon._parsereport(stream, context, path)
        self.once.check_rows(rows, context, path)
        return self.of_rows(rows)

    def _build(self, obj: Any, stream: Any, context: Context, path: str) -> TypedMetadata:
        metadata = self.metadata({} if obj is None else obj, path)
        entries = [(key, metadata.stored_value(key)) for key in metadata]
        self.subcon._build([{"key": key, "type": e.type, "value": e.value} for key, e in entries], stream, context, path)
        return metadata

    def of_rows(self, rows: Any) -> TypedMetadata:
        """Returns the metadata of parsed rows."""
        return TypedMetadata({row.key: StoredValue(row.type, row.value) for row in rows}, self.types, self.keys)

    def metadata(self, entries: Mapping[str, Any], path: str = "metadata") -> TypedMetadata:
        """Returns entries with types. Raises FormatError for a value that cannot be stored."""
        if isinstance(entries, TypedMetadata):
            if entries.types is self.types:
                return entries
            stored = {key: entries.stored_value(key) for key in entries}  # of another format
            entries = {key: Typed(value.plain, value.type_text) for key, value in stored.items()}
        if not isinstance(entries, Mapping):
            raise FormatError(f"expected a mapping of keys to values, found {quote(entries)}", path)
        none = TypedMetadata({}, self.types, self.keys)
        return none.replace({key: none.entry(key, value, f"{path} -> {key}") for key, value in entries.items()})

    def with_number(self, entries: Mapping[str, Any], key: str, number: int) -> TypedMetadata:
        """Returns entries with `number` at `key`, in the key's type."""
        type_ = self.keys and self.keys.type_of(key, False)
        return self.metadata(entries) | {key: Typed(number, type_) if type_ else number}
