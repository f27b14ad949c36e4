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
# If a format lacks one of these types, the error suggests another one for the value.
USUAL = ("bool", "string", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)), "float32", "float64")

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
    """A value to store as a given type: ``Typed(3, "uint8")``, ``Typed([], "array[string]")``."""

    value: Any
    type: str

    def _display(self) -> Iterator[str]:
        yield f"{self.type} {quote(format_value(self.value, str(self.type)))}"


class Array(NamedTuple):
    """An array as stored: elements of one type. Those of type ``array`` are `Array` objects."""

    type: ValueType
    values: Sequence[Any]

    def __repr__(self) -> str:
        return repr(self.values)


class StoredValue(NamedTuple):
    """A value as stored: a number with all its bits, a bool as its byte, text, or an `Array`."""

    type: ValueType
    value: Any

    @property
    def plain(self) -> Any:
        """The value as int, float, bool, str or list; long arrays as a view or lazy sequence."""
        if isinstance(self.value, Array):
            return _plain_array(self.value)
        if self.type.name == "bool":
            return bool(self.value)
        return self.value.item() if isinstance(self.value, np.generic) else self.value

    @property
    def type_text(self) -> str:
        """The type, including the types of elements."""
        if not isinstance(self.value, Array):
            return self.type.name
        inner = [StoredValue(self.value.type, value).type_text for value in self.value.values] if self.is_nested else []
        if len(set(inner)) > 1:
            return f"{ARRAY}[{','.join(inner)}]"
        return f"{ARRAY}[{inner[0] if inner else self.value.type}]"

    @property
    def is_nested(self) -> bool:
        """Whether the value is an array of arrays."""
        return isinstance(self.value, Array) and self.value.type.name == ARRAY


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


def _plain_array(array: Array) -> Any:
    values = array.values
    if array.type.name == ARRAY:
        return [_plain_array(inner) for inner in values]
    if isinstance(values, StoredNumbers):
        numbers = values.array() != 0 if array.type.name == "bool" else values.array()
        return numbers.view(LongNumbers) if len(values) > LONG else numbers.tolist()
    if isinstance(values, StoredStrings) and len(values) > LONG:
        return values
    return [StoredValue(array.type, value).plain for value in values]


def stored_value(value: Any, types: Any, path: str) -> StoredValue:
    """Returns a value with its type, which `Typed` or numpy gives, or which is inferred.

    An int becomes the first of uint32, int32, uint64 and int64 that holds it; in lists, int32 is
    tried first. Floats become float32, which readers of GGUF expect. If `types` lacks that type,
    the value gets the first of `types` that holds it.

    Raises:
        FormatError: for a value that no type holds, and an empty list without a type.
    """
    if isinstance(value, StoredValue):
        return value
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
        return _float_type([value], types)
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
    if all(isinstance(element, int) and not isinstance(element, bool) for element in value):
        return f"{ARRAY}[{_integer_type(min(value), max(value), ('int32', *INTEGERS), types, path)}]"
    if all(isinstance(element, (int, float)) and not isinstance(element, bool) for element in value):
        return f"{ARRAY}[{_float_type(value, types)}]"
    inner = list(dict.fromkeys(_type_of(element, types, path) for element in value))
    if len(inner) > 1 and not all(type_text.startswith(ARRAY) for type_text in inner):
        raise FormatError(f"expected elements of one type, found {' and '.join(inner)}", path)
    return f"{ARRAY}[{','.join(_type_of(element, types, path) for element in value) if len(inner) > 1 else inner[0]}]"


def _integer_type(least: int, greatest: int, names: Sequence[str], types: Any, path: str) -> str:
    for name in names:
        bounds = np.iinfo(name)
        if bounds.min <= least and greatest <= bounds.max:
            own = [type_.name for type_ in types if _is_number(type_) and not type_.field.is_float]
            return name if name in own else next((other for other in own if _holds(types[other], least, greatest)), name)
    raise FormatError(f"expected an integer of at most 64 bits, found {quote(greatest if least >= 0 else least)}", path)


def _float_type(values: Sequence[float], types: Any) -> str:
    own = [type_.name for type_ in types if _is_number(type_) and type_.field.is_float]
    return "float32" if "float32" in own else next((name for name in own if _holds(types[name], *values)), "float32")


def _is_number(type_: ValueType) -> bool:
    return isinstance(type_.field, Number) and type_.name != "bool"


def _holds(type_: ValueType, *values: Any) -> bool:
    """Returns whether values are in the range of a numeric type."""
    try:
        return bool([type_.field.encode(value) for value in values])
    except FormatError:
        return False


def _advice(value: Any, text: str, types: Any) -> str:
    """Returns the end of an error about a type that `types` lacks: a value to write instead."""
    if text not in USUAL:
        return ""
    plain = value.item() if isinstance(value, np.generic) else value
    number = isinstance(plain, (int, float)) and not isinstance(plain, bool)
    fitting = [type_ for type_ in types if number and _is_number(type_) and _holds(type_, plain)]
    if not fitting and "string" not in types:
        return ""
    instead = Typed(plain, fitting[0].name) if fitting else Typed(str(plain), "string")
    return f": write Typed({quote(instead.value)}, {instead.type!r})"


def _is_sequence(value: object) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim > 0
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes, Typed))


def as_typed(value: Any, text: str, types: Any, path: str, scalar: Scalar | None = None) -> StoredValue:
    """Returns `value` as the type named by `text`; `scalar`, or `as_stored`, converts its elements.

    Raises FormatError for an unknown type, or a value that it cannot hold.
    """
    scalar = scalar or as_stored
    value = value.value if isinstance(value, Typed) else value
    if text == ARRAY or (ARRAY if text.startswith(f"{ARRAY}[") else text) not in types:
        names = ", ".join(f"{type_.name}[...]" if type_.name == ARRAY else type_.name for type_ in types)
        raise FormatError(f"expected one of {names}, found {quote(text)}{_advice(value, text, types)}", path)
    if not text.startswith(f"{ARRAY}["):
        return StoredValue(types[text], scalar(value, types[text], path))
    if not _is_sequence(value):
        raise FormatError(f"expected a list, found {quote(value)}", path)
    parts = _parts(text, path)
    if parts == [ARRAY] and not len(value):
        return StoredValue(types[ARRAY], Array(types[ARRAY], ()))
    if not parts[0].startswith(ARRAY):
        if len(parts) != 1 or parts[0] not in types:
            raise FormatError(f"expected a single element type, found {quote(', '.join(parts))}", path)
        return StoredValue(types[ARRAY], Array(types[parts[0]], _elements(value, types[parts[0]], path, scalar)))
    parts = parts * len(value) if len(parts) == 1 else parts
    if len(parts) != len(value):
        raise FormatError(f"expected {len(parts)} elements, found {len(value)}", path)
    parts = [_type_of(element, types, path) if part == ARRAY else part for element, part in zip(value, parts, strict=True)]
    inner = [as_typed(element, part, types, path, scalar).value for element, part in zip(value, parts, strict=True)]
    return StoredValue(types[ARRAY], Array(types[ARRAY], inner))


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


def values_within(value: Any, type_: ValueType) -> Iterator[tuple[ValueType, Any]]:
    """Yields the type and the value, also of each array within an array of arrays."""
    yield type_, value
    if isinstance(value, Array) and value.type.name == ARRAY:
        for element in value.values:
            yield from values_within(element, value.type)
