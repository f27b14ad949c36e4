"""Lossless text form of typed values, for formats whose metadata is text."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from glft_schema.codec.numbers import Number
from glft_schema.codec.typed_values import ARRAY, Typed, ValueType, as_stored, as_typed
from glft_schema.display import MAX_LINE, format_value
from glft_schema.errors import FormatError, quote

STRING = "string"
LONGEST_HINT = 60  # characters
CONTEXT = 12  # characters shown before the first difference of two texts
FIRST = 8  # elements shown of an array


def to_text(value: Typed) -> str:
    """Returns a value as a line of text: its type, a space, and the value as JSON.

    A NaN other than the default one is written as its bits, ``"0x7fa00001"``; a bool other than 0
    and 1 as its byte.
    """
    return f"{value.type} {json.dumps(_to_json(value))}"


def from_text(text: str, types: Any, path: str) -> Typed:
    """Parses the text of `to_text`. Raises FormatError for any other text."""
    type_text, _, value = text.partition(" ")
    try:
        return as_typed(json.loads(value), type_text, types, path, _from_json)
    except (ValueError, RecursionError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"expected a type and its value, such as uint32 5, found {quote(text)}", path) from None


def from_value_text(text: str, type_text: str, types: Any, path: str) -> Typed:
    """Parses a value of a known type: JSON unless it is a string. Raises FormatError if invalid."""
    if type_text == STRING:
        return as_typed(text, type_text, types, path)
    try:
        return as_typed(json.loads(text), type_text, types, path, _from_json)
    except (ValueError, RecursionError):
        article = "a" if type_text.startswith(("b", "f", "u")) else "an"
        raise FormatError(f"expected {article} {type_text}, found {quote(text)}{how_to_write(text, type_text)}", path) from None


def how_to_write(text: str, type_text: str) -> str:
    """Returns the correction of a text that is not JSON of a type, for the end of an error.

    Empty if the intended value is unclear, or the correction is long.
    """
    meant: Any = None
    if type_text == STRING:
        meant = text
    elif type_text == "bool" and text.lower() in ("true", "false"):
        meant = text.lower() == "true"
    elif type_text == f"array[{STRING}]" and re.fullmatch(r"\[[^][]*\]|[^][{}\"]+", text):
        meant = [part.strip().strip("'\"") for part in text.strip("[]").split(",")]
    written = json.dumps(meant, separators=(",", ":"))
    if meant is None or "'" in written or len(written) > LONGEST_HINT:
        return ""
    return f": write {written}" if type_text == "bool" else f": write '{written}'"


def texts_of_change(before: Any, after: Any, limit: int) -> tuple[str, str]:
    """Returns two values, `Typed` or plain, as text with their types, such as ``uint32 3``; an
    empty string for None. Arrays are shown from the first element that differs, and long texts from
    a few characters before the difference.
    """
    one, other = (value.value if isinstance(value, Typed) else value for value in (before, after))
    one, other = (value.tolist() if isinstance(value, np.ndarray) else value for value in (one, other))
    start, are_texts = 0, isinstance(one, str) and isinstance(other, str)
    if are_texts or (_is_array(one) and _is_array(other)):
        pairs = enumerate(zip(one, other, strict=False))
        start = next((i for i, (x, y) in pairs if str(x) != str(y)), min(len(one), len(other)))
    if are_texts:
        start = max(start - CONTEXT, 0) if max(len(one), len(other)) > limit else 0
    return _text_of(before, one, start, limit), _text_of(after, other, start, limit)


def _is_array(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _text_of(given: Any, value: Any, start: int, limit: int) -> str:
    if given is None:
        return ""
    type_ = given.type if isinstance(given, Typed) else ""
    if not start and not _is_array(value):
        return f"{type_} {quote(format_value(value, type_), limit)}".lstrip()
    part = (
        value[start : start + limit - 12] if isinstance(value, str) else format_value(list(value[start : start + FIRST]), type_)
    )
    return f"{type_} of {len(value):,}{f', from {start:,}' if start else ''}: {quote(part, limit)}".lstrip()


def _to_json(typed: Typed) -> Any:
    value = typed.value
    if typed.is_array:
        return [_to_json(element) for element in typed.elements()]
    if typed.type == "bool":
        return bool(value) if value in (0, 1) else int(value)
    if isinstance(value, np.floating) and np.isnan(value):
        bits, default = (number.tobytes()[::-1].hex() for number in (value, value.dtype.type("nan")))
        return float("nan") if bits == default else f"0x{bits}"
    return value.item() if isinstance(value, np.generic) else value


def _from_json(value: Any, type_: ValueType, path: str) -> Any:
    if type_.name == "bool" and isinstance(value, int) and 0 <= value < 256:
        return int(value)
    if isinstance(type_.field, Number) and type_.field.is_float and isinstance(value, str):
        try:
            (number,) = np.frombuffer(bytes.fromhex(value.removeprefix("0x"))[::-1], type_.field.numpy_dtype())
        except ValueError:
            raise FormatError(f"expected a {type_.name}, a number or its bits in hex, found {quote(value)}", path) from None
        return number
    return as_stored(value, type_, path)


def entry_data(type_: str, value: Any, full: bool = False) -> dict[str, Any]:
    """Returns a typed value as JSON data; a long array abbreviated unless `full`."""
    if type_.startswith(ARRAY) and len(value) > FIRST and not full:
        return {"type": type_, "length": len(value), "first": as_json_value(value[:FIRST])}
    return {"type": type_, "value": as_json_value(value)}


def as_json_value(value: Any, most: int | None = None) -> Any:
    """Returns a value as JSON data; bytes, NaN and infinities as text, records as mappings.

    Args:
        value: a number, text, bytes, or several.
        most: the number of elements beyond which a list becomes its length and the first elements;
            so do bytes beyond `MAX_LINE`. None to keep all.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Mapping):
        return {name: as_json_value(one, most) for name, one in value.items()}
    if isinstance(value, (Sequence, np.ndarray)) and not isinstance(value, str):
        if most and len(value) > (most := MAX_LINE if isinstance(value, bytes) else most):
            return {"length": len(value), "first": as_json_value(value[:most], most)}
        if isinstance(value, bytes):
            return value.decode("ascii", "backslashreplace")
        return [as_json_value(element, most) for element in (value.tolist() if isinstance(value, np.ndarray) else value)]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return value if value is None or isinstance(value, (str, int)) else str(value)
