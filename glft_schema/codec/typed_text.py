"""Typed values as lines of text, bit for bit, for formats whose metadata is text."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from glft_schema.codec.arrays import StoredNumbers
from glft_schema.codec.numbers import Number
from glft_schema.codec.typed_values import Array, StoredValue, ValueType, as_stored, as_typed
from glft_schema.errors import FormatError, shown

STRING = "string"


def to_text(value: StoredValue) -> str:
    """Returns a value as a line of text: its type, a space, and the value as JSON.

    A NaN other than the default one is written as its bits, ``"0x7fa00001"``; a bool other than 0
    and 1 as its byte.
    """
    return f"{value.type_text} {json.dumps(_to_json(value))}"


def from_text(text: str, types: Any, path: str) -> StoredValue:
    """Parses the text of `to_text`. Raises FormatError for any other."""
    type_text, _, value = text.partition(" ")
    try:
        return as_typed(json.loads(value), type_text, types, path, _from_json)
    except (ValueError, RecursionError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"expected a type and its value, such as uint32 5, found {shown(text)}", path) from None


def from_value_text(text: str, type_text: str, types: Any, path: str) -> StoredValue:
    """Parses a value of a known type: JSON unless it is a string. Raises FormatError if invalid."""
    if type_text == STRING:
        return as_typed(text, type_text, types, path)
    try:
        return as_typed(json.loads(text), type_text, types, path, _from_json)
    except (ValueError, RecursionError):
        article = "a" if type_text.startswith(("b", "f", "u")) else "an"
        raise FormatError(f"expected {article} {type_text}, found {shown(text)}", path) from None


def _to_json(value: StoredValue) -> Any:
    if isinstance(value.value, Array):
        values = value.value.values
        elements = values.array() if isinstance(values, StoredNumbers) else values
        return [_to_json(StoredValue(value.value.type, element)) for element in elements]
    if value.type.name == "bool":
        return bool(value.value) if value.value in (0, 1) else int(value.value)
    if isinstance(value.value, np.floating) and np.isnan(value.value):
        bits, default = (number.tobytes()[::-1].hex() for number in (value.value, value.value.dtype.type("nan")))
        return float("nan") if bits == default else f"0x{bits}"
    return value.value.item() if isinstance(value.value, np.generic) else value.value


def _from_json(value: Any, type_: ValueType, path: str) -> Any:
    if type_.name == "bool" and isinstance(value, int) and 0 <= value < 256:
        return int(value)
    if isinstance(type_.field, Number) and type_.field.is_float and isinstance(value, str):
        try:
            (number,) = np.frombuffer(bytes.fromhex(value.removeprefix("0x"))[::-1], type_.field.numpy_dtype())
        except ValueError:
            raise FormatError(f"expected a {type_.name}, a number or its bits in hex, found {shown(value)}", path) from None
        return number
    return as_stored(value, type_, path)
