"""Values with a stored type: what a format's metadata holds beside plain Python.

A type is written as text: ``uint8``, ``string``, ``array[int32]``; of nested arrays ``array[array[int32]]``, and
``array[array[int32],array[string]]`` where the inner ones differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import construct
import numpy as np

from glft_schema.bulk import StoredNumbers, StoredStrings
from glft_schema.describe.tables import metadata_table
from glft_schema.errors import FormatError, LimitError, shown
from glft_schema.numbers import Number
from glft_schema.type_table import by_name

LONG = 1 << 10  # elements above which an array of numbers comes as a numpy view, and one of strings as a lazy sequence
ARRAY = "array"
INTEGERS = ("uint32", "int32", "uint64", "int64")  # for ints without a type: the first that holds them

Scalar = Callable[[Any, "ValueType", str], Any]


@dataclass(frozen=True, eq=False)
class ValueType:
    """A type that a value can have.

    Attributes:
        name: such as ``uint8``.
        code: the number on disk.
        field: how one value is stored.
    """

    name: str
    code: int
    field: construct.Construct

    @property
    def scheme(self) -> str:
        """Its name, as tables of types have it."""
        return self.name

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return by_name(self)


class Typed(NamedTuple):
    """A value to be stored as a certain type: ``Typed(3, "uint8")``, ``Typed([], "array[string]")``."""

    value: Any
    type: str


class Array(NamedTuple):
    """An array as it is stored: elements of one type; where that is ``array``, each an `Array` of its own type."""

    type: ValueType
    values: Sequence[Any]


class Stored(NamedTuple):
    """A value as it is stored: numbers with all their bits, bools as their byte, text, or an `Array`."""

    type: ValueType
    value: Any

    @property
    def plain(self) -> Any:
        """The value as plain Python: int, float, bool, str, list; long arrays as a numpy view or a lazy sequence."""
        if isinstance(self.value, Array):
            return _plain_array(self.value)
        if self.type.name == "bool":
            return bool(self.value)
        return self.value.item() if isinstance(self.value, np.generic) else self.value

    @property
    def type_text(self) -> str:
        """The type, with those of elements."""
        if not isinstance(self.value, Array):
            return self.type.name
        inner = [Stored(self.value.type, value).type_text for value in self.value.values] if self.is_nested else []
        if len(set(inner)) > 1:
            return f"{ARRAY}[{','.join(inner)}]"
        return f"{ARRAY}[{inner[0] if inner else self.value.type}]"

    @property
    def is_nested(self) -> bool:
        """Whether it is an array of arrays."""
        return isinstance(self.value, Array) and self.value.type.name == ARRAY


def _plain_array(array: Array) -> Any:
    values = array.values
    if array.type.name == ARRAY:
        return [_plain_array(inner) for inner in values]
    if isinstance(values, StoredNumbers):
        numbers = values.array() != 0 if array.type.name == "bool" else values.array()
        return numbers if len(values) > LONG else numbers.tolist()
    if isinstance(values, StoredStrings) and len(values) > LONG:
        return values
    return [Stored(array.type, value).plain for value in values]


class Metadata(Mapping[str, Any]):
    """Typed values by key, in file order, as plain Python. Read-only: ``metadata | {"key": value}`` is another one.

    Args:
        entries: the stored values.
        types: the table of value types.
    """

    def __init__(self, entries: Mapping[str, Stored], types: Any) -> None:
        self._entries = dict(entries)
        self._types = types

    def __getitem__(self, key: str) -> Any:
        return self._entries[key].plain

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

    def __eq__(self, other: object) -> bool:
        """Tells whether another mapping has the same keys with equal values, in any order; NaN is not equal to itself."""
        if not isinstance(other, Mapping) or self.keys() != other.keys():
            return False if isinstance(other, Mapping) else NotImplemented
        return all(_equal(value, other[key]) for key, value in self.items())

    __hash__ = None  # type: ignore[assignment]

    def __or__(self, others: Mapping[str, Any]) -> Metadata:
        """Returns these entries with others in their place or after them.

        A key that stays keeps its type, unless it is an array of arrays, whose type says what each of them has.

        Raises:
            FormatError: for a value that cannot be stored, or not in the key's type.
        """
        if not isinstance(others, Mapping):
            return NotImplemented
        entries = dict(self._entries)
        typed = others._entries if isinstance(others, Metadata) else others
        for key, value in typed.items():
            plain = not isinstance(value, (Typed, Stored))
            if key in self and plain and not self._entries[key].is_nested and self._keeps_type(key):
                value = Typed(value, entries[key].type_text)
            entries[key] = self._entry(key, value)
        return type(self)(entries, self._types)

    def _entry(self, key: str, value: Any) -> Stored:
        """Returns a value that is added, with its type."""
        return stored(value, self._types, key)

    def _keeps_type(self, key: str) -> bool:
        """Tells whether a plain value that replaces another one gets its type."""
        return True

    def without(self, *keys: str) -> Metadata:
        """Returns these entries but those of `keys`. Raises KeyError for a key that is not there."""
        for key in keys:
            self._entries[key]
        without = set(keys)
        return type(self)({key: entry for key, entry in self._entries.items() if key not in without}, self._types)

    def type_of(self, key: str) -> str:
        """Returns the stored type of a value, such as ``array[string]``. Raises KeyError where there is no such key."""
        return self._entries[key].type_text

    def stored(self, key: str) -> Stored:
        """Returns a value as it is stored. Raises KeyError where there is no such key."""
        return self._entries[key]


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return bool(np.array_equal(one, other))
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other)


def stored(value: Any, types: Any, path: str) -> Stored:
    """Returns a value with its type: a `Typed` one's, a numpy one's, or that which a plain one gets.

    Plain ints become uint32, or else int32, uint64, int64, whichever holds them first; in lists int32 comes first. Plain floats
    become float32, which is what readers of GGUF ask for.

    Raises:
        FormatError: for what no type can hold, and for an empty list, whose type cannot be known.
    """
    if isinstance(value, Stored):
        return value
    try:
        if not isinstance(value, Typed):
            value = Typed(value, _type_of(value, path))
        if not isinstance(value.type, str):
            raise FormatError(f"expected the name of a type, found {shown(value.type)}", path)
        return as_typed(value.value, value.type, types, path)
    except RecursionError:
        raise LimitError("expected arrays that are nested less deep, a limit of Python's", path) from None


def _type_of(value: Any, path: str) -> str:
    """Returns the type of a plain value, as text."""
    if isinstance(value, Typed):
        return value.type
    if isinstance(value, (bool, np.bool_)):
        return "bool"
    if isinstance(value, np.generic) and not isinstance(value, str):
        return str(value.dtype.name)
    if isinstance(value, int):
        return _integer_type(value, value, INTEGERS, path)
    if isinstance(value, float):
        return "float32"
    if isinstance(value, str):
        return "string"
    if isinstance(value, np.ndarray) and value.ndim == 1:
        return f"{ARRAY}[{'string' if value.dtype.kind == 'U' else value.dtype.name}]"
    if not _is_sequence(value):
        raise FormatError(f"expected a number, bool, text or a list of such, found {shown(value)}", path)
    if isinstance(value, StoredStrings):
        return f"{ARRAY}[string]"
    if not len(value):
        raise FormatError('expected at least one element, found none: give the type, Typed([], "array[string]")', path)
    if all(isinstance(element, int) and not isinstance(element, bool) for element in value):
        return f"{ARRAY}[{_integer_type(min(value), max(value), ('int32', *INTEGERS), path)}]"
    if all(isinstance(element, (int, float)) and not isinstance(element, bool) for element in value):
        return f"{ARRAY}[float32]"
    inner = list(dict.fromkeys(_type_of(element, path) for element in value))
    if len(inner) > 1 and not all(type_text.startswith(ARRAY) for type_text in inner):
        raise FormatError(f"expected elements of one type, found {' and '.join(inner)}", path)
    return f"{ARRAY}[{','.join(_type_of(element, path) for element in value) if len(inner) > 1 else inner[0]}]"


def _integer_type(least: int, greatest: int, names: Sequence[str], path: str) -> str:
    for name in names:
        bounds = np.iinfo(name)
        if bounds.min <= least and greatest <= bounds.max:
            return name
    raise FormatError(f"expected an integer of at most 64 bits, found {shown(greatest if least >= 0 else least)}", path)


def _is_sequence(value: object) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim > 0
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes, Typed))


def as_typed(value: Any, text: str, types: Any, path: str, scalar: Scalar | None = None) -> Stored:
    """Returns `value` as the type that `text` names; `scalar`, or `as_stored`, makes each value of it a stored one.

    Raises:
        FormatError: where it is no such value, or the type is not known.
    """
    scalar = scalar or as_stored
    value = value.value if isinstance(value, Typed) else value
    if not text.startswith(f"{ARRAY}["):
        if text == ARRAY or text not in types:
            names = ", ".join(type_.name for type_ in types)
            raise FormatError(f"expected one of {names}[...], found {shown(text)}", path)
        return Stored(types[text], scalar(value, types[text], path))
    if not _is_sequence(value):
        raise FormatError(f"expected a list, found {shown(value)}", path)
    parts = _parts(text, path)
    if parts == [ARRAY] and not len(value):
        return Stored(types[ARRAY], Array(types[ARRAY], ()))
    if not parts[0].startswith(ARRAY):
        if len(parts) != 1 or parts[0] not in types:
            raise FormatError(f"expected one type for the elements, found {shown(', '.join(parts))}", path)
        return Stored(types[ARRAY], Array(types[parts[0]], _elements(value, types[parts[0]], path, scalar)))
    parts = parts * len(value) if len(parts) == 1 else parts
    if len(parts) != len(value):
        raise FormatError(f"expected {len(parts)} elements, found {len(value)}", path)
    parts = [_type_of(element, path) if part == ARRAY else part for element, part in zip(value, parts, strict=True)]
    inner = [as_typed(element, part, types, path, scalar).value for element, part in zip(value, parts, strict=True)]
    return Stored(types[ARRAY], Array(types[ARRAY], inner))


def _elements(value: Any, element: ValueType, path: str, scalar: Scalar) -> Any:
    """Returns the elements of an array as they are stored; those of long ones in a file or of numpy's are not looked at."""
    if isinstance(value, np.ndarray):
        if value.ndim != 1 or (value.dtype == bool) != (element.name == "bool"):
            raise FormatError(f"expected {element} in one dim, found {value.dtype} {list(value.shape)}", path)
        return value.astype(np.uint8) if value.dtype == bool else value
    if isinstance(value, StoredStrings):
        return value
    return [scalar(part, element, path) for part in value]


def _parts(text: str, path: str) -> list[str]:
    """Returns the element types of ``array[...]``."""
    if not text.endswith("]"):
        raise FormatError(f"expected a type such as array[int32], found {shown(text)}", path)
    parts, depth, start = [], 0, len(ARRAY) + 1
    for at, letter in enumerate(text[:-1]):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 1:
            parts.append(text[start:at].strip())
            start = at + 1
    return [*parts, text[start:-1].strip()]


def as_stored(value: Any, type_: ValueType, path: str) -> Any:
    """Returns a plain value as it is stored. Raises FormatError for what the type cannot hold."""
    if type_.name == "bool":
        if not isinstance(value, (bool, np.bool_)):
            raise FormatError(f"expected a bool, found {shown(value)}", path)
        return int(value)
    if isinstance(type_.field, Number):
        type_.field.stored(value, path=path)
    elif not isinstance(value, str):
        raise FormatError(f"expected text, found {shown(value)}", path)
    return value
