"""JSON as serde_json reads it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glft_schema import FormatError
from glft_schema.codec import json_text
from glft_schema.codec.json_text import count_parts, decode

BOUND = "x: expected a number that a 64-bit float can hold"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("-9223372036854775808", -(1 << 63)),
        ("-9223372036854775809", -9223372036854775809.0),
        ("18446744073709551615", (1 << 64) - 1),
        ("18446744073709551616", 18446744073709551616.0),
        ("1234567890123456789", 1234567890123456789),
        ("9" * 308, float("9" * 308)),
        ("0e999", 0.0),
        ("-0", -0.0),
        ("1e0", 1.0),
        ("1e-999", 0.0),
        ('"-0"', "-0"),
        (r'"\ud83d\ude00\u00e4\/"', "😀ä/"),
        ('{"b":[1,{}],"a":null,"b":true}', (("b", [1, ()]), ("a", None), ("b", True))),
    ],
)
def test_values(text: str, value: object) -> None:
    found = decode(text.encode())
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (" 1e999", "x: expected a number that a 64-bit float can hold, found '1e999' (at byte 11)"),
        ("[" + "9" * 309 + "]", f"{BOUND}, found '{'9' * 68}'... (309 in all) (at byte 11)"),
        ("[" + "9" * 5000 + "]", f"{BOUND}, found '{'9' * 68}'... (5000 in all) (at byte 11)"),
        ('["é", -Infinity]', "x: expected JSON, found -Infinity (at byte 17)"),
        (r'{"a":{"b":"\udc00"}}', r"x: expected pairs of surrogates, found '\udc00' alone (at byte 20)"),
        ('"\x1f"', "x: expected JSON, found '\\x1f\"' (Invalid control character at) (at byte 11)"),
        ("[1] 2", "x: expected JSON, found '2' (Extra data) (at byte 14)"),
    ],
)  # fmt: skip
def test_refused_texts(text: str, message: str) -> None:
    with pytest.raises(FormatError) as caught:
        decode(text.encode(), "x", 10)
    assert str(caught.value) == message


@pytest.mark.parametrize("text", ['{"a":["é",' * 400 + "1e999" + "]}" * 400, "[" + '"\\\\u0041 text",' * 20_000 + "-Infinity]"])
def test_what_is_refused_is_found_in_linear_time(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Each byte is decoded at most twice, however deeply the token is nested."""
    decoded_bytes, strict, stored = list[int](), json_text._strict, text.encode()
    monkeypatch.setattr(json_text, "_strict", lambda part: (decoded_bytes.append(len(part)), strict(part))[1])
    with pytest.raises(FormatError, match=r"1e999|-Infinity") as caught:
        decode(stored)
    assert caught.value.offset == max(stored.find(b"1e999"), stored.find(b"-Infinity"))
    assert sum(decoded_bytes) <= 2 * len(stored)


def counted(value: Any) -> tuple[int, int]:
    """Returns how many objects and arrays are in a decoded value, and how many members."""
    if not isinstance(value, (dict, list)):
        return 0, 0
    counts = [counted(part) for part in (value.values() if isinstance(value, dict) else value)]
    return 1 + sum(one for one, _ in counts), len(value) * isinstance(value, dict) + sum(two for _, two in counts)


texts = st.text('ab[]{}":\\, é\n', max_size=6)


@settings(max_examples=max(settings.default.max_examples, 100))
@given(st.recursive(texts | st.sampled_from([1, -1.5, None]), lambda it: st.lists(it) | st.dictionaries(texts, it)))
def test_parts_are_counted_outside_of_strings(value: Any) -> None:
    assert count_parts(json.dumps(value, ensure_ascii=False).encode()) == counted(value)
