"""Errors of construct as errors of this package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import construct
import pytest
from construct import Byte, Int16ul, PascalString

from glft_schema import ClosedError, FormatError, TruncatedError
from glft_schema.codec.construct_errors import inside, our_errors
from glft_schema.codec.structs import Struct

Row = Struct("name" / PascalString(Byte, "utf8"), "rank" / Int16ul)
Sheet = Struct("row" / Row)


def raised(action: Callable[[], object]) -> FormatError:
    with pytest.raises(FormatError) as caught, our_errors():
        action()
    return caught.value


NOT_UTF8 = "expected UTF-8 text, found bytes or characters that are not UTF-8"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"\x01a\x02", "row -> rank: stream read less than specified amount, expected 2, found 1"),
        (b"\x01\xff\x01\x00", NOT_UTF8),  # without the path, which construct does not give
        ({"row": {"name": "\ud800", "rank": 1}}, f"row -> name: {NOT_UTF8}"),
        ({"row": {"name": "a", "rank": 65536}}, "row -> rank: expected a number that fits the field, found 65536"),
    ],
)
def test_bad_bytes_and_values(value: Any, message: str) -> None:
    error = raised(lambda: Sheet.parse(value) if isinstance(value, bytes) else Sheet.build(value))
    assert (type(error), str(error)) == (FormatError, message)


def test_errors_of_this_package_lose_the_root_of_their_path() -> None:
    with pytest.raises(TruncatedError, match=r"^row -> rank: expected 2 bytes, found 1$"), our_errors():
        raise TruncatedError("expected 2 bytes, found 1", "(parsing) -> row -> rank")


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), MemoryError(), ClosedError("in.glft is closed")])
def test_errors_that_construct_hides(error: Exception) -> None:
    """construct raises a StreamError for whatever a stream raises."""

    class Failing:
        def read(self, nbytes: int) -> bytes:
            raise error

    with pytest.raises(type(error)) as caught, our_errors():
        Row.parse_stream(Failing())
    assert caught.value is error


def test_other_errors_pass() -> None:
    with pytest.raises(ZeroDivisionError), our_errors():
        construct.Computed(lambda context: 1 // 0).parse(b"")


def test_the_path_of_a_container_in_another_one() -> None:
    with (
        pytest.raises(FormatError, match=r"^parts -> 1 -> row -> rank: expected 1, found 2$"),
        inside("(parsing) -> parts -> 1"),
    ):
        raise FormatError("expected 1, found 2", "row -> rank")
