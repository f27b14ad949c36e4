"""Values with a stored type, and their conversion to and from plain Python values.

Types are written as ``uint8``, ``string``, ``array[int32]``. Nested arrays are
``array[array[int32]]``, or ``array[array[int32],array[string]]`` if the inner types differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import construct
import numpy as np

from glft_schema.codec.arrays import StoredNumbers, StoredStrings
from glft_schema.codec.construct_errors import TOO_DEEP
from glft_schema.codec.numbers import Number
from glft_schema.codec.type_codes import by_table
from glft_schema.display import format_value, with_display
from glft_schema.errors import FormatError, LimitError, quote

LONG = 1 << 10  # longer arrays are returned as a numpy view or a lazy sequence, not as a list
ARRAY = "array"
INTEGERS = ("uint32", "int32", "uint64", "int64")  # an int without a type gets the first that fits

Scalar = Callable[[Any, "ValueType", str], Any]


@dataclass(frozen=True, eq=False)
class ValueType:
    """A type of metadata values.

    Attributes:
        name: such as ``uint8``.
        code: the number on disk.
        field: the declaration of one value.
    """

    name: str
    code: int
    field: construct.Construct

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return by_table(self)


@with_display
class Typed(NamedTuple):
    """A value and its type: ``Typed(3, "uint8")``, ``Typed([], "array[string]")``.

    The values of `TypedMetadata` are exact: a number with all its bits, a bool as its byte, text,
    `StoredStrings` or a list of texts, `StoredNumbers`, a numpy array or a list of numbers, and
    `Typed` arrays in an array of arrays.
    """

    value: Any
    type: str

    @property
    def is_array(self) -> bool:
        """Whether the value is an array."""
        return self.type.startswith(ARRAY)

    @property
    def is_nested(self) -> bool:
        """Whether the value is an array of arrays."""
        return self.type.startswith(f"{ARRAY}[{ARRAY}")

    @property
    def element_type(self) -> str:
        """The name of the type of an array's elements."""
        return ARRAY if self.is_nested else self.type[len(ARRAY) + 1 : -1]

    def elements(self) -> Iterator[Typed]:
        """Yields the elements of an array of arrays, or of any other one, with their type."""
        if self.is_nested:
            return iter(self.value)
        element_type = self.element_type
        return (Typed(value, element_type) for value in self.value)

    def plain(self) -> Any:
        """Returns the value as int, float, bool, str or list; long arrays as a view or lazily."""
        if not self.is_array:
            value = self.value.item() if isinstance(self.value, np.generic) else self.value
            return bool(value) if self.type == "bool" else value
        if isinstance(self.value, StoredNumbers):
            numbers = self.value[:] != 0 if self.element_type == "bool" else self.value[:]
            return numbers.view(LongNumbers) if len(numbers) > LONG else numbers.tolist()
        if isinstance(self.value, StoredStrings) and len(self.value) > LONG:
            return self.value
        return [element.plain() for element in self.elements()]

    def _display(self) -> Iterator[str]:
        yield f"{self.type} {quote(format_value(self.value, str(self.type)))}"


class LongNumbers(np.ndarray[Any, Any]):
    """A view of a long array of numbers. ``==`` and truth are about the whole, as for a list."""

    __hash__ = None

    def __eq__(self, other: Any) -> bool:
        return bool(np.array_equal(self, other))

    def __ne__(self, other: Any) -> bool:
        return not self == other

    def __bool__(self) -> bool:
        return len(self) > 0

    def __repr__(self) -> str:
        return repr(np.asarray(self))


def with_type(type_: ValueType, value: Any) -> Typed:
    """Returns the exact value of a row of metadata with its type, which an array has itself."""
    return value if isinstance(value, Typed) else Typed(value, type_.name)


def array_of(type_: ValueType, values: Sequence[Any]) -> Typed:
    """Returns an array of exact values; its type includes those of nested arrays."""
    return Typed(values, _array_type([array.type for array in values] if type_.name == ARRAY else [type_.name]))


def _array_type(elements: Sequence[str]) -> str:
    """Returns the type of an array of elements of these types; each type if they differ."""
    return f"{ARRAY}[{','.join(elements if len(set(elements)) > 1 else elements[:1]) or ARRAY}]"


def exact(value: Any, types: Any, path: str) -> Typed:
    """Returns an exact value with its type, which `Typed` or numpy gives, or which is inferred.

    An int becomes the first of uint32, int32, uint64 and int64 that holds it; in lists, int32 is
    tried first. Floats become float32, which readers of GGUF expect. If `types` lacks that type,
    the value gets the first of `types` that holds it.

    Raises:
        FormatError: for a value that no type holds, and an empty list without a type.
    """
    try:
        if not isinstance(value, Typed):
            value = Typed(value, _type_of(value, types, path))
        if not isinstance(value.type, str):
            raise FormatError(f"expected the name of a type, found {quote(value.type)}", path)
        return as_typed(value.value, value.type, types, path)
    except RecursionError:
        raise LimitError(TOO_DEEP, path) from None


def _type_of(value: Any, types: Any, path: str) -> str:
    """Returns the type of a plain value, as text."""
    if isinstance(value, Typed):
        return value.type
    if isinstance(value, (bool, np.bool_)):
        return "bool"
    if isinstance(value, np.generic) and not isinstance(value, str):
        return str(value.dtype.name)
    if isinstance(value, int):
        return _integer_type(value, value, INTEGERS, types, path)
    if isinstance(value, float):
        return _number_type("float32", types, value)
    if isinstance(value, str):
        return "string"
    if isinstance(value, np.ndarray) and value.ndim == 1:
        return f"{ARRAY}[{'string' if value.dtype.kind == 'U' else value.dtype.name}]"
    if not _is_sequence(value):
        raise FormatError(f"expected a number, bool, text or a list of these, found {quote(value)}", path)
    if isinstance(value, StoredStrings):
        return f"{ARRAY}[string]"
    if not len(value):
        raise FormatError('expected at least one element, found none: give the type, Typed([], "array[string]")', path)
    if all(isinstance(element, (int, float)) and not isinstance(element, bool) for element in value):
        if any(isinstance(element, float) for element in value):
            return _array_type([_number_type("float32", types, *value)])
        return _array_type([_integer_type(min(value), max(value), ("int32", *INTEGERS), types, path)])
    inner = [_type_of(element, types, path) for element in value]
    if not all(type_text.startswith(ARRAY) for type_text in inner) and len(kinds := dict.fromkeys(inner)) > 1:
        raise FormatError(f"expected elements of one type, found {' and '.join(kinds)}", path)
    return _array_type(inner)


def _integer_type(least: int, greatest: int, names: Sequence[str], types: Any, path: str) -> str:
    for name in names:
        bounds = np.iinfo(name)
        if bounds.min <= least and greatest <= bounds.max:
            return _number_type(name, types, least, greatest)
    raise FormatError(f"expected an integer of at most 64 bits, found {quote(greatest if least >= 0 else least)}", path)


def _number_type(name: str, types: Any, *values: Any) -> str:
    """Returns the name, or the first of `types` that holds the values if `types` lacks it."""
    own = [type_ for type_ in types if isinstance(type_.field, Number) and type_.name != "bool"]
    alike = [type_ for type_ in own if type_.field.is_float == name.startswith("float")]
    return name if name in types else next((type_.name for type_ in alike if _holds(type_, *values)), name)


def _holds(type_: ValueType, *values: Any) -> bool:
    """Returns whether values are in the range of a numeric type."""
    try:
        return bool([type_.field.encode(value) for value in values])
    except FormatError:
        return False


def _is_sequence(value: object) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim > 0
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes, Typed))


def as_stored(value: Any, type_: ValueType, path: str) -> Any:
    """Returns a plain value as stored. Raises FormatError if the type cannot hold it."""
    if type_.name == "bool":
        if not isinstance(value, (bool, np.bool_)):
            raise FormatError(f"expected a bool, found {quote(value)}", path)
        return int(value)
    if isinstance(type_.field, Number):
        type_.field.encode(value, path=path)
    elif not isinstance(value, str):
        raise FormatError(f"expected text, found {quote(value)}", path)
    return value


def as_typed(value: Any, text: str, types: Any, path: str, scalar: Scalar = as_stored) -> Typed:
    """Returns `value` exactly, as the type `text`; `scalar` converts its elements.

    Raises FormatError for an unknown type, or a value that it cannot hold.
    """
    value = value.value if isinstance(value, Typed) else value
    if text == ARRAY or (ARRAY if text.startswith(f"{ARRAY}[") else text) not in types:
        names = ", ".join(f"{type_.name}[...]" if type_.name == ARRAY else type_.name for type_ in types)
        raise FormatError(f"expected one of {names}, found {quote(text)}", path)
    if not text.startswith(f"{ARRAY}["):
        return Typed(scalar(value, types[text], path), types[text].name)
    if not _is_sequence(value):
        raise FormatError(f"expected a list, found {quote(value)}", path)
    parts = _parts(text, path)
    if parts == [ARRAY] and not len(value):
        return array_of(types[ARRAY], ())
    if not parts[0].startswith(ARRAY):
        if len(parts) != 1 or parts[0] not in types:
            raise FormatError(f"expected a single element type, found {quote(', '.join(parts))}", path)
        return array_of(types[parts[0]], _elements(value, types[parts[0]], path, scalar))
    parts = parts * len(value) if len(parts) == 1 else parts
    if len(parts) != len(value):
        raise FormatError(f"expected {len(parts)} elements, found {len(value)}", path)
    parts = [_type_of(element, types, path) if part == ARRAY else part for element, part in zip(value, parts, strict=True)]
    inner = [as_typed(element, part, types, path, scalar) for element, part in zip(value, parts, strict=True)]
    return array_of(types[ARRAY], inner)


def _elements(value: Any, element: ValueType, path: str, scalar: Scalar) -> Any:
    """Returns elements as stored, without copying `StoredStrings` or numpy arrays except bools."""
    if isinstance(value, np.ndarray):
        if value.ndim != 1 or (value.dtype == bool) != (element.name == "bool"):
            raise FormatError(f"expected a one-dimensional array of {element}, found {value.dtype} {list(value.shape)}", path)
        return value.astype(np.uint8) if value.dtype == bool else value
    if isinstance(value, StoredStrings):
        return value
    return [scalar(part, element, path) for part in value]


def _parts(text: str, path: str) -> list[str]:
    """Returns the element types of ``array[...]``."""
    if not text.endswith("]"):
        raise FormatError(f"expected a type such as array[int32], found {quote(text)}", path)
    parts, depth, start = [], 0, len(ARRAY) + 1
    for at, letter in enumerate(text[:-1]):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 1:
            parts.append(text[start:at].strip())
            start = at + 1
    return [*parts, text[start:-1].strip()]


def arrays_within(array: Typed) -> Iterator[Typed]:
    """Yields an array, and each array within an array of arrays."""
    yield array
    if array.is_nested:
        for element in array.value:
            yield from arrays_within(element)
