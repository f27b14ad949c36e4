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
    return Cursor(BytesSource(bytes.fromhex(stored)))


def assert_stored(field: construct.Construct, stored: str, value: object, size: int | None = None, **params: Any) -> None:
    """Asserts that `field` parses bytes in hex into a value, builds them from it, and has a size.

    `size` is None if it depends on the value; `params` are the container's, such as the byte order.
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
    with pytest.raises(FormatError) as caught, our_errors():
        field.parse_stream(cursor(stored), **params)
    return caught.value


def build_error(field: construct.Construct, value: object, **params: Any) -> FormatError:
    with pytest.raises(FormatError) as caught, our_errors():
        field.build(value, **params)
    return caught.value
