"""Metadata as read-only mappings, and the construct of typed key-values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import construct
import numpy as np

from glft_schema.codec.context import Context
from glft_schema.codec.structs import Raw
from glft_schema.codec.tables import NamesOnce
from glft_schema.codec.type_codes import TypeTable
from glft_schema.codec.typed_text import from_value_text
from glft_schema.codec.typed_values import ARRAY, Typed, ValueType, array_of, exact, with_type
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
        entries: the values, exact.
        types: the table of value types.
        keys: the types of well-known keys.

    Attributes:
        types: as above.
        key_types: as `keys`.
    """

    _entries: dict[str, Typed]

    def __init__(self, entries: Mapping[str, Typed], types: TypeTable[ValueType], keys: KeyTypes | None = None) -> None:
        super().__init__(entries)
        self.types = types
        self.key_types = keys

    def __getitem__(self, key: str) -> Any:
        return self.stored_value(key).plain()

    def __eq__(self, other: object) -> bool:
        """Compares keys and values in any order; NaN is not equal to itself."""
        if not isinstance(other, Mapping) or self.keys() != other.keys():
            return False if isinstance(other, Mapping) else NotImplemented
        return all(_equal(value, other[key]) for key, value in self.items())

    __hash__ = None  # type: ignore[assignment]

    def __or__(self, others: Mapping[str, Any]) -> TypedMetadata:
        """Returns a copy with other entries, which replace existing ones or are appended.

        Raises FormatError for a value that cannot be stored, or text that is not of its key's type.
        """
        if not isinstance(others, Mapping):
            return NotImplemented
        if isinstance(others, TypedMetadata):
            return self.replace({**self._entries, **others._entries})
        entries = {key: self.entry(key, value, f"metadata -> {key}") for key, value in others.items()}
        return self.replace({**self._entries, **entries})

    def entry(self, key: str, value: Any, path: str) -> Typed:
        """Returns a value as exact as it is stored under a key.

        A plain value gets the type of the value that it replaces, if this type suits the key and is
        not a nested array, whose type depends on the inner arrays. Otherwise it gets a well-known
        key's type, if it fits. Text is parsed as this type.
        """
        if isinstance(value, Typed):
            return exact(value, self.types, path)
        keys, replaced = self.key_types, self._entries.get(key)
        if replaced and (not keys or keys.suits(key, replaced.type)):
            if isinstance(value, str):
                return from_value_text(value, replaced.type, self.types, path)
            return exact(value if replaced.is_nested else Typed(value, replaced.type), self.types, path)
        of_array = isinstance(value, (list, tuple)) or (isinstance(value, str) and value.startswith("["))
        type_ = keys.type_of(key, of_array) if keys and isinstance(key, str) else None
        if type_ and isinstance(value, str) and not isinstance(value, np.generic):
            return from_value_text(value, type_, self.types, path)
        if type_ and isinstance(value, (int, float, list, tuple)) and not isinstance(value, np.generic):
            with suppress(FormatError):  # the key's rule refuses a value of another kind
                return exact(Typed(value, type_), self.types, path)
        return exact(value, self.types, path)

    def without(self, *keys: str) -> TypedMetadata:
        """Returns a copy without `keys`. Raises KeyError for an unknown key."""
        for key in keys:
            self._entry(key)
        without = set(keys)
        return self.replace({key: entry for key, entry in self._entries.items() if key not in without})

    def replace(self, entries: Mapping[str, Typed]) -> TypedMetadata:
        """Returns metadata with the same types and other entries."""
        return TypedMetadata(entries, self.types, self.key_types)

    def type_of(self, key: str) -> str:
        """Returns a value's type, such as ``array[string]``. Raises KeyError for an unknown key."""
        return self.stored_value(key).type

    def stored_value(self, key: str) -> Typed:
        """Returns a value, exact, with its type. Raises KeyError for an unknown key."""
        entry: Typed = self._entry(key)
        return entry

    def rows(self) -> list[dict[str, Any]]:
        """Returns the entries as rows of key, type and value."""
        rows = []
        for key, value in self._entries.items():
            type_, stored = (ARRAY, value) if value.is_array else (value.type, value.value)
            rows.append({"key": key, "type": self.types[type_], "value": stored})
        return rows


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return bool(np.array_equal(one, other))
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other)


class TypedArray(construct.Adapter):
    """The Struct of an array. Parses into a `Typed` array, builds from one."""

    def _decode(self, record: Any, context: Context, path: str) -> Typed:
        return array_of(record.type, record.elements)

    def _encode(self, array: Typed, context: Context, path: str) -> dict[str, Any]:
        if not isinstance(array, Typed):
            raise TypeError(f"expected a Typed array, found {quote(array)}")
        return {"type": array.element_type, "elements": array.value}


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
        if isinstance(obj, Raw):
            rows = self.subcon._build(obj.stored, stream, context, path)
            if "findings" in context._params:
                self.once.check_rows(rows, context, path)
            seen: TypedMetadata = obj.seen
            return seen
        metadata = self.metadata({} if obj is None else obj, path)
        self.subcon._build(metadata.rows(), stream, context, path)
        return metadata

    def of_rows(self, rows: Any) -> TypedMetadata:
        """Returns the metadata of parsed rows."""
        return TypedMetadata({row.key: with_type(row.type, row.value) for row in rows}, self.types, self.keys)

    def metadata(self, entries: Mapping[str, Any], path: str = "metadata") -> TypedMetadata:
        """Returns entries with types. Raises FormatError for a value that cannot be stored."""
        if isinstance(entries, TypedMetadata):
            if entries.types is self.types:
                return entries
            entries = {key: Typed(value, entries.type_of(key)) for key, value in entries.items()}  # of another format
        if not isinstance(entries, Mapping):
            raise FormatError(f"expected a mapping of keys to values, found {quote(entries)}", path)
        none = TypedMetadata({}, self.types, self.keys)
        return none.replace({key: none.entry(key, value, f"{path} -> {key}") for key, value in entries.items()})

    def with_number(self, entries: Mapping[str, Any], key: str, number: int) -> TypedMetadata:
        """Returns entries with `number` at `key`, in the key's type."""
        type_ = self.keys and self.keys.type_of(key, False)
        return self.metadata(entries) | {key: Typed(number, type_) if type_ else number}
