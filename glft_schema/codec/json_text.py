"""JSON as Rust's serde_json reads it, and positions in it.

Numbers must be finite, and surrogates in pairs. Integers beyond 64 bits and ``-0`` become floats,
like ``1.0``. Python's `json` decodes; these functions refuse texts that only `json` accepts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from math import isinf
from typing import Any, NamedTuple

import numpy as np

from glft_schema.errors import FormatError, quote


class NotJson(Exception):  # noqa: N818 - becomes a FormatError with a position
    """JSON that Python accepts and serde_json refuses. Its text is the end of "expected ..."."""


class JsonPart(NamedTuple):
    """The span of an array's element, or of an object's member and its key, in bytes of the text.

    An element has no name, and its key is an empty span.
    """

    name: str | None
    key: int
    key_end: int
    start: int
    end: int


def decode(stored: bytes, path: str = "", start: int = 0) -> Any:
    """Returns the value of a text: objects as tuples of pairs, arrays as lists.

    Args:
        stored: the text.
        path: the path of the text, for errors.
        start: the text's first byte, from the start of the container.

    Raises:
        FormatError: if the text is not UTF-8 or not JSON.
    """
    try:
        try:
            return _strict(stored)
        except NotJson as error:
            refused = error
            _LAX.decode(stored.decode())  # raises if the text is not JSON for Python either
    except UnicodeDecodeError as error:
        found = quote(stored[error.start : error.start + 8])
        raise FormatError(f"expected UTF-8, found {found}", path, start + error.start) from None
    except json.JSONDecodeError as error:
        found, at = quote(error.doc[error.pos : error.pos + 20]), len(error.doc[: error.pos].encode())
        raise FormatError(f"expected JSON, found {found} ({error.msg})", path, start + at) from None
    raise FormatError(f"expected {refused}", path, start + _first_refused(stored))


def parts(text: str, at: int = 0) -> Iterator[JsonPart]:
    """Yields the members of the object, or the elements of the array, at `at` of valid JSON.

    Other values have no parts. A character of the text is a byte, so that an index is a position.
    """
    at = _next(text, at)
    opening, at = text[at], _next(text, at + 1)
    while opening in "{[" and text[at] not in "}]":
        name, key, key_end = None, at, at
        if opening == "{":
            name, key_end = _LAX.raw_decode(text, key)
            if not name.isascii():
                name = json.loads(text[key:key_end].encode("latin-1"))
            at = _next(text, key_end)
        end = _LAX.raw_decode(text, at)[1]
        yield JsonPart(name, key, key_end, at, end)
        at = _next(text, end)


def count_parts(stored: bytes) -> tuple[int, int]:
    """Returns the number of objects and arrays in a text, and of members, before it is decoded."""
    plain = np.frombuffer(stored.replace(b"\\\\", b"").replace(b'\\"', b""), np.uint8)  # without escaped quotes
    outside = ~np.logical_xor.accumulate(plain == ord('"'))
    containers, members = outside & (plain | 32 == ord("{")), outside & (plain == ord(":"))
    return int(containers.sum()), int(members.sum())


def levels_of(value: Any) -> int:
    """Returns how deeply objects and arrays are nested; 0 for other values."""
    levels, layer = 0, [value]
    while layer := [part for part in layer if isinstance(part, (tuple, list))]:
        levels += 1
        layer = [inner for part in layer for inner in ([v for _, v in part] if isinstance(part, tuple) else part)]
    return levels


def _next(text: str, at: int) -> int:
    """Returns the index of the next key, value or closing bracket."""
    match = _BETWEEN(text, at)
    assert match
    return match.end()


def _strict(stored: bytes) -> Any:
    text = stored.decode()
    has_odd_integers = b"-0" in stored or LONG in stored.translate(DIGITS)
    value = (_STRICT if has_odd_integers else _QUICK).decode(text)
    if _SURROGATE(text):
        try:
            (again := json.dumps(value, ensure_ascii=False)).encode()
        except UnicodeEncodeError as error:
            raise NotJson(f"pairs of surrogates, found {again[error.start]!r} alone") from None
    return value


def _first_refused(stored: bytes) -> int:
    """Returns the index of the first string, number or constant that is refused alone."""
    for token in _TOKENS(stored):
        try:
            _strict(token[0])
        except NotJson:
            return token.start()
    return 0


def _integer(text: str) -> int | float:
    number = _real(text)  # refuses more digits than a float can have; Python's int has its own limit
    if text != "-0" and len(text) < 21 and -(1 << 63) <= int(text) < 1 << 64:
        return int(text)
    return number


def _real(text: str) -> float:
    if isinf(number := float(text)):
        raise NotJson(f"a number that a 64-bit float can hold, found {quote(text)}")
    return number


def _constant(text: str) -> None:
    raise NotJson(f"JSON, found {text}")


_BETWEEN = re.compile(r"[ \t\n\r,:]*").match
_TOKENS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[^][{}:, \t\n\r"]+').finditer
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]").search
DIGITS, LONG = bytes.maketrans(b"123456789", b"000000000"), b"0" * 19  # for shorter integers, `int` is enough and faster
_QUICK = json.JSONDecoder(object_pairs_hook=tuple, parse_float=_real, parse_constant=_constant)
_STRICT = json.JSONDecoder(object_pairs_hook=tuple, parse_int=_integer, parse_float=_real, parse_constant=_constant)
_LAX = json.JSONDecoder(object_pairs_hook=tuple, parse_int=bool, parse_float=bool)  # whose numbers take no memory
to_json: Callable[[Any], str] = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
