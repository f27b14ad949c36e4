"""JSON as serde_json reads it."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from glft_schema import FormatError
from glft_schema.codec import json_text
from glft_schema.codec.json_text import count_parts, decode, levels_of, parts, to_json

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
        ("1e-999", 0.0),
        ('"-0"', "-0"),
        (r'"\ud83d\ude00\u00e4\/"', "😀ä/"),
        ('{"b":[1,{}],"a":null,"b":true}', (("b", [1, ()]), ("a", None), ("b", True))),
    ],
)
def test_values(text: str, value: object) -> None:
    found = decode(text.encode())
    assert (found, type(found)) == (value, type(value))


def test_integers_that_are_floats() -> None:
    for text in ("-0", "[-0]", "0.0", "1.0", "1e0"):
        found = decode(text.encode())
        assert type(found[0] if isinstance(found, list) else found) is float


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


def test_parts_have_positions() -> None:
    text = ' { "a" : [1, {"x":2}] ,"b":\n"}" }'
    found = [(part.name, text[part.key : part.key_end], text[part.start : part.end]) for part in parts(text)]
    assert found == [("a", '"a"', '[1, {"x":2}]'), ("b", '"b"', '"}"')]
    assert [(part.key_end - part.key, text[part.start : part.end]) for part in parts(text, text.index("["))] == [
        (0, "1"),
        (0, '{"x":2}'),
    ]
    assert [list(parts(text)) for text in ("[ ]", "{}", "5", '"{}"')] == [[]] * 4
    assert [part.name for part in parts('{"é\\u00e4\\n":1}'.encode().decode("latin-1"))] == ["éä\n"]


def test_levels_and_new_texts() -> None:
    for text, levels in (("1", 0), ("{}", 1), ('{"a":[[],{"b":[]}],"c":[]}', 4)):
        assert levels_of(decode(text.encode())) == levels
    value = {"ä\x7f": ['"\\\b\f\n\r\t\x00\x1f', 1]}
    assert to_json(value) == '{"ä\x7f":["\\"\\\\\\b\\f\\n\\r\\t\\u0000\\u001f",1]}'
    assert json.loads(to_json(value)) == value


def counted(value: Any) -> tuple[int, int]:
    """Returns how many objects and arrays are in a decoded value, and how many members."""
    inside = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    counts = [counted(part) for part in inside]
    members = len(value) if isinstance(value, dict) else 0
    return isinstance(value, (dict, list)) + sum(one for one, _ in counts), members + sum(two for _, two in counts)


def test_parts_are_counted_outside_of_strings() -> None:
    random_ = random.Random(0)

    def text() -> str:
        return "".join(random_.choices('ab[]{}":\\, é\n', k=random_.randint(0, 6)))

    def value(depth: int) -> Any:
        kind = random_.random()
        if depth == 0 or kind < 0.3:
            return random_.choice([1, -1.5, None, True, text()])
        count = range(random_.randint(0, 4))
        return [value(depth - 1) for _ in count] if kind < 0.6 else {text(): value(depth - 1) for _ in count}

    for _ in range(300):
        made = value(5)
        assert count_parts(json.dumps(made, ensure_ascii=False).encode()) == counted(made)
    assert count_parts(b"") == (0, 0)
