"""Assertions about fields: the bytes of a value, and the errors for bad bytes and bad values."""

from __future__ import annotations

from typing import Any

import construct
import pytest

from glft_schema import FormatError
from glft_schema.codec.construct_errors import our_errors
from glft_schema.storage.cursor import Cursor
from glft_schema.storage.source import BytesSource


def cursor(stored: str) -> Cursor:
    """Returns a stream of bytes written in hex."""
    return Cursor(BytesSource(bytes.fromhex(stored)))


def assert_stored(field: construct.Construct, stored: str, value: object, size: int | None = None, **params: Any) -> None:
    """Asserts that `field` parses bytes into a value, builds the bytes from it, and has their size.

    Args:
        field: the declaration.
        stored: the bytes in hex.
        value: what they mean.
        size: of every value, in bytes; None if it depends on the value.
        params: parameters of the container, such as ``byte_order="big"``.
    """
    expected, stream = bytes.fromhex(stored), cursor(f"{stored} FF")
    assert field.parse(expected, **params) == value
    assert field.parse_stream(stream, **params) == value
    assert stream.tell() == len(expected)
    assert field.build(value, **params) == expected
    if size is None:
        with pytest.raises(construct.SizeofError):
            field.sizeof(**params)
    else:
        assert field.sizeof(**params) == size == len(expected)


def parse_error(field: construct.Construct, stored: str, **params: Any) -> FormatError:
    """Returns the error for bytes in hex."""
    with pytest.raises(FormatError) as caught, our_errors():
        field.parse_stream(cursor(stored), **params)
    return caught.value


def build_error(field: construct.Construct, value: object, **params: Any) -> FormatError:
    """Returns the error for a value."""
    with pytest.raises(FormatError) as caught, our_errors():
        field.build(value, **params)
    return caught.value
