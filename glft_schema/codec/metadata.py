"""Metadata: read-only mappings of keys to values, and the table of typed key-values that one kind is parsed from."""

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
from glft_schema.display import metadata_table
from glft_schema.errors import FormatError, shown


class Metadata(Mapping[str, Any]):
    """Values by key, in file order. Read-only: build from a mapping with other ones."""

    def __init__(self, entries: Mapping[str, Any]) -> None:
        self._entries = dict(entries)

    def __getitem__(self, key: str) -> Any:
        return self._entries[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"{{{', '.join(f'{shown(key)}: {shown(value)}' for key, value in self.items())}}}"

    def __str__(self) -> str:  # which torch.compile would fold into a constant if it was not defined
        return repr(self)

    def _repr_html_(self) -> str:
        return metadata_table(self).html()


class KeyTypes(NamedTuple):
    """The types that the values of well-known keys have.

    Attributes:
        type_of: (key, whether the value is an array) -> the type of new values, such as ``uint32``; None for other keys.
        suits: (key, type) -> whether a value of the type may stand under the key.
        kinds: key -> the kinds of type that suit it, in words.
        example: one of the keys.
    """

    type_of: Callable[[str, bool], str | None]
    suits: Callable[[str, str], bool]
    kinds: Callable[[str], str]
    example: str


def _no_type(key: str, of_array: bool) -> str | None:
    return None


def _any_type(key: str, type_: str) -> bool:
    return True


NO_KEY_TYPES = KeyTypes(_no_type, _any_type, lambda key: "", "")


class TypedMetadata(Metadata):
    """Typed values by key, in file order, as plain Python. Read-only: ``metadata | {"key": value}`` is another one.

    Args:
        entries: the stored values.
        types: the table of value types.
        keys: the types of well-known keys.

    Attributes:
        key_types: as `keys`.
    """

    _entries: dict[str, StoredValue]

    def __init__(self, entries: Mapping[str, StoredValue], types: TypeTable[ValueType], keys: KeyTypes = NO_KEY_TYPES) -> None:
        super().__init__(entries)
        self._types = types
        self.key_types = keys

    def __getitem__(self, key: str) -> Any:
        return self._entries[key].plain

    def __eq__(self, other: object) -> bool:
        """Tells whether another mapping has the same keys with equal values, in any order; NaN is not equal to itself."""
        if not isinstance(other, Mapping) or self.keys() != other.keys():
            return False if isinstance(other, Mapping) else NotImplemented
        return all(_equal(value, other[key]) for key, value in self.items())

    __hash__ = None  # type: ignore[assignment]

    def __or__(self, others: Mapping[str, Any]) -> TypedMetadata:
        """Returns these entries with others in their place or after them.

        A key that stays keeps its type if that suits the key, unless it is an array of arrays, whose type says what each of
        them has.

        Raises:
            FormatError: for a value that cannot be stored, or not in the key's type.
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
        return self.replaced(entries)

    def with_texts(self, others: Mapping[str, Any], path: str = "metadata") -> TypedMetadata:
        """Returns the same as ``|``, but text that replaces a value is parsed as one of its type.

        Args:
            others: the entries.
            path: how errors call the metadata.
        """
        return self | {key: self._parsed(key, value, f"{path} -> {key}") for key, value in others.items()}

    def _parsed(self, key: str, value: Any, path: str) -> Any:
        if not self._keeps_type(key):
            return self.entry(key, value, path)
        return from_value_text(value, self.type_of(key), self._types, path) if isinstance(value, str) else value

    def _keeps_type(self, key: str) -> bool:
        """Tells whether a plain value that replaces another one gets its type."""
        return key in self and self.key_types.suits(key, self.type_of(key))

    def entry(self, key: str, value: Any, path: str) -> StoredValue:
        """Returns a value with its type. A plain value of a well-known key gets the type of the key if it has the right kind.

        Raises:
            FormatError: for a value that cannot be stored, and for text that is not a value of the key's type.
        """
        of_array = isinstance(value, (list, tuple)) or (isinstance(value, str) and value.startswith("["))
        type_ = self.key_types.type_of(key, of_array) if isinstance(key, str) else None
        if type_ is None or isinstance(value, (np.generic, Typed, StoredValue)):
            return stored_value(value, self._types, path)
        if isinstance(value, str):
            return from_value_text(value, type_, self._types, path)
        if isinstance(value, (int, float, list, tuple)):
            with suppress(FormatError):  # the key's rule refuses a value of another kind
                return stored_value(Typed(value, type_), self._types, path)
        return stored_value(value, self._types, path)

    def without(self, *keys: str) -> TypedMetadata:
        """Returns these entries but those of `keys`. Raises KeyError for a key that is not there."""
        for key in keys:
            self._entries[key]
        without = set(keys)
        return self.replaced({key: entry for key, entry in self._entries.items() if key not in without})

    def replaced(self, entries: Mapping[str, StoredValue]) -> TypedMetadata:
        """Returns metadata of the same types with other entries."""
        return TypedMetadata(entries, self._types, self.key_types)

    def type_of(self, key: str) -> str:
        """Returns the stored type of a value, such as ``array[string]``. Raises KeyError where there is no such key."""
        return self._entries[key].type_text

    def stored(self, key: str) -> StoredValue:
        """Returns a value as it is stored. Raises KeyError where there is no such key."""
        return self._entries[key]


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return bool(np.array_equal(one, other))
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other)


class TypedArray(construct.Adapter):
    """An array's Struct. Parses into an `Array`, builds from one."""

    def _decode(self, record: Any, context: Context, path: str) -> Array:
        return Array(record.type, record.elements)

    def _encode(self, array: Array, context: Context, path: str) -> dict[str, Any]:
        type_, elements = array
        return {"type": type_, "elements": elements}


class KeyValues(construct.Subconstruct):
    """A table of key-values: key, type, value. Parses into `TypedMetadata`, builds from any mapping of keys to values.

    Args:
        table: the table.
        types: the value types.
        once: the id of the rule that no key comes twice.
        keys: the types of well-known keys.
    """

    def __init__(
        self, table: construct.Construct, types: TypeTable[ValueType], *, once: str, keys: KeyTypes = NO_KEY_TYPES
    ) -> None:
        super().__init__(table)
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
        entries = [(key, metadata.stored(key)) for key in metadata]
        self.subcon._build([{"key": key, "type": e.type, "value": e.value} for key, e in entries], stream, context, path)
        return metadata

    def of_rows(self, rows: Any) -> TypedMetadata:
        """Returns the metadata of parsed rows."""
        return TypedMetadata({row.key: StoredValue(row.type, row.value) for row in rows}, self.types, self.keys)

    def metadata(self, entries: Mapping[str, Any], path: str = "metadata") -> TypedMetadata:
        """Returns entries with their types. Raises FormatError for a value that cannot be stored."""
        if isinstance(entries, TypedMetadata):
            return entries
        if not isinstance(entries, Mapping):
            raise FormatError(f"expected a mapping of keys to values, found {shown(entries)}", path)
        none = TypedMetadata({}, self.types, self.keys)
        return none.replaced({key: none.entry(key, value, f"{path} -> {key}") for key, value in entries.items()})

    def stating(self, entries: Mapping[str, Any], key: str, number: int) -> TypedMetadata:
        """Returns entries with a number under a key, in the key's type."""
        type_ = self.keys.type_of(key, False)
        return self.metadata(entries) | {key: Typed(number, type_) if type_ else number}
