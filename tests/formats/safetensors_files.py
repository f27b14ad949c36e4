"""safetensors files written by hand, whole and damaged, independently of the declaration."""

from __future__ import annotations

import json
import math
import struct
from random import Random
from typing import Any

BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("C64", "F64", "I64", "U64"), 64),
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
}
NAMES = ("a", "b", "w.0", "", "ä", "日本", "😀", 'q"', "\\", "\n", "\x00", "\x7f", "__metadata__x", "/", "\ud7ff", "\u2028")
# Tokens that replace others: numbers and texts that readers of JSON treat differently.
TOKENS = (
    *("0", "1", "-0", "-1", "1.0", "1e0", "01", "1E2", "1e999", "-1e999", "0e999", "1e-999", "+1", "1.", ".5", "0x1"),
    *("9223372036854775807", "9223372036854775808", "18446744073709551615", "18446744073709551616", "-9223372036854775809"),
    *(
        "9" * 400,
        "1" * 309,
        "4" * 5000,
        "null",
        "true",
        "NaN",
        "Infinity",
        "-Infinity",
        "[]",
        "{}",
        "[1]",
        "[0,4]",
        '{"F32":null}',
    ),
    *('"F32"', '"f32"', '"F4"', '"F6_E2M3"', '"BOOL"', '"dtype"', '"shape"', '"data_offsets"', '"__metadata__"', '"a"', '""'),
    *(r'"\ud800"', r'"\udc00\ud800"', r'"\ud83d\ude00"', r'"\u00e4"', r'"\x"', r'"\u12"', '"\x01"', '"\x7f"', "'a'", '"'),
    *(
        "[" * 130 + "]" * 130,
        "[" * 124 + "]" * 124,
        '["F32",[1],[0,4]]',
        ",",
        ":",
        "}",
        "]",
        "{",
        "[",
        " ",
        "\n\t\r ",
        "\x0b",
        "//",
        "\ufeff",
    ),
)


def file_of(header: str | bytes, payloads: bytes = b"") -> bytes:
    """Returns the file of a header, with its length, and payloads."""
    text = header if isinstance(header, bytes) else header.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(text)) + text + payloads


def random_file(random: Random) -> bytes:
    """Returns a file: in one of three a whole one, else a damaged or corrupted one."""
    header, data = random_header(random)
    if random.random() < 0.6:
        data += b"x" * random.choice((1, 4, 8)) if random.random() < 0.3 else b""
        for _ in range(random.choice((1, 1, 2))):
            corrupt(header, random)
    text = json_text(header, random)
    kind = random.random()
    if kind < 0.3:
        text = with_other_tokens(text, random)
    stored = bytearray(file_of(text, data))
    if kind > 0.85:
        for _ in range(random.randint(1, 3)):
            damage(stored, random)
    return bytes(stored)


def random_header(random: Random) -> tuple[list[tuple[str, Any]], bytes]:
    """Returns entries, objects as lists of pairs, and payloads."""
    tensors, end = [], 0
    for name in random.sample(NAMES, random.randint(0, 4)):
        dtype = random.choice(["F32", *BITS])
        shape = [random.choice((0, 1, 2, 2, 3, 4, 8)) for _ in range(random.choice((0, 1, 1, 2, 2, 3)))]
        if BITS[dtype] < 8:
            shape += random.choice(([4], [4], [4, 3], [3]))
        elif not all(shape) and random.random() < 0.1:
            shape.insert(random.randint(0, len(shape)), (1 << 64) - 1)
        nbytes = math.prod(shape) * BITS[dtype] // 8
        tensors.append((name, [["dtype", dtype], ["shape", shape], ["data_offsets", [end, end + nbytes]]]))
        end += nbytes
    if random.random() < 0.3:
        random.shuffle(tensors)
    entries: list[tuple[str, Any]] = list(tensors)
    if random.random() < 0.5:
        texts = [[random.choice(NAMES), random.choice(NAMES)] for _ in range(random.randint(0, 2))]
        entries.insert(random.randint(0, len(entries)), ("__metadata__", texts))
    return entries, random.randbytes(end)


def corrupt(entries: list[tuple[str, Any]], random: Random) -> None:
    """Changes something that some reader looks at, but leaves JSON."""
    at = random.randrange(len(entries)) if entries else None
    if at is None:
        entries.append(random.choice((("a", []), ("__metadata__", None), ("a", ["F32", [0], [0, 0]]))))
        return
    name, pairs = entries[at]
    kind = random.randrange(12)
    if kind == 0:  # twice
        entries.insert(random.randint(0, len(entries)), (name, list(pairs) if isinstance(pairs, list) else pairs))
    elif kind == 1:
        entries.insert(
            random.randint(0, len(entries)), ("__metadata__", random.choice((None, [], [["a", "b"]], "x", [["a", 1]])))
        )
    elif not isinstance(pairs, list) or not pairs or not isinstance(pairs[0], list) or len(pairs) < 3:
        entries[at] = (random.choice(NAMES), pairs)
    elif kind == 2:
        pairs.insert(
            random.randint(0, len(pairs)), [random.choice(("x", "dtype", "shape")), random.choice((1, 1.5, "F32", [1], None))]
        )
    elif kind == 3:
        del pairs[random.randrange(len(pairs))]
    elif kind == 4:
        random.shuffle(pairs)
    elif kind == 5:
        entries[at] = (name, [value for _, value in pairs])
    elif kind == 6:
        pairs[0] = ["dtype", random.choice((*BITS, [["F32", None]], [["F32", 1]], "f32", 1))]
    elif kind == 7 and isinstance(pairs[2][1], list) and all(isinstance(number, int) for number in pairs[2][1]):
        by = random.choice((-1, 1, 4, 8))  # a hole, an overlap, or bytes past the end
        pairs[2][1] = [number + by for number in pairs[2][1]]
    elif kind == 8 and isinstance(entries[0][1], list) and len(entries[0][1]) > 2 and isinstance(entries[0][1][2], list):
        entries[at] = (name, [*pairs[:2], entries[0][1][2]])  # shared bytes
    else:
        numbers = random.choice([value for _, value in pairs if isinstance(value, list) and value] or [[0]])
        i = random.randrange(len(numbers))
        if isinstance(numbers[i], int):
            numbers[i] = random.choice(
                (numbers[i] + 1, numbers[i] - 1, 0, 1, numbers[i] * 2, 1 << 32, (1 << 64) - 1, 1 << 64, [1])
            )


def json_text(entries: list[tuple[str, Any]], random: Random) -> str:
    """Returns JSON with spaces and escapes in one of the forms that writers choose."""
    comma, colon = random.choice(((",", ":"), (", ", ": "), ("\n ,\t", " :\r\n")))
    ascii_only = random.random() < 0.3

    def text_of(value: Any, pairs: bool = True) -> str:
        if pairs and isinstance(value, list) and all(map(is_pair, value)):
            return "{" + comma.join(f"{text_of(key)}{colon}{text_of(part, key != 'shape')}" for key, part in value) + "}"
        if isinstance(value, list):
            return "[" + comma.join(text_of(part, False) for part in value) + "]"
        return json.dumps(value, ensure_ascii=ascii_only)

    before, after = random.choice(("",) * 9 + (" ", "\n")), random.choice(("",) * 9 + (" ", " " * 7, "\n", "\t ", "\0"))
    return before + text_of(entries) + after


def is_pair(value: Any) -> bool:
    """Tells whether a value is a key and a value."""
    return isinstance(value, (list, tuple)) and len(value) == 2 and isinstance(value[0], str)


def with_other_tokens(text: str, random: Random) -> str:
    """Replaces, removes, doubles or inserts tokens of JSON."""
    tokens = split_tokens(text)
    for _ in range(random.randint(1, 2)):
        at = random.randrange(len(tokens)) if tokens else 0
        kind = random.random()
        if kind < 0.6 and tokens:
            tokens[at] = random.choice(TOKENS)
        elif kind < 0.75 and tokens:
            del tokens[at]
        elif kind < 0.85 and tokens:
            tokens.insert(at, tokens[random.randrange(len(tokens))])
        else:
            tokens.insert(at, random.choice(TOKENS))
    return "".join(tokens)


def split_tokens(text: str) -> list[str]:
    """Returns the tokens of JSON."""
    tokens, at = [], 0
    while at < len(text):
        end = at + 1
        if text[at] == '"':
            while end < len(text) and text[end] != '"':
                end += 2 if text[end] == "\\" else 1
            end += 1
        elif text[at] not in '{}[],: \n\t\r"':
            while end < len(text) and text[end] not in '{}[],: \n\t\r"':
                end += 1
        tokens.append(text[at:end])
        at = end
    return tokens


def damage(stored: bytearray, random: Random) -> None:
    """Changes, removes or inserts bytes anywhere, the length included."""
    at = random.randrange(len(stored)) if stored else 0
    kind = random.random()
    if kind < 0.5 and stored:
        stored[at] = random.choice((stored[at] ^ (1 << random.randrange(8)), random.choice(b'0129-.eE+"{}[],: \\\n\0\xff')))
    elif kind < 0.7:
        del stored[at : at + random.randint(1, 8)]
    elif kind < 0.85:
        stored[at:at] = random.choice((b" ", b"\0", b"0", b'"', b",", b"}"))
    else:
        lengths = (0, 1, len(stored), max(len(stored) - 8, 0), 2, 100_000_001, 1 << 63, (1 << 64) - 1)
        stored[:8] = random.choice(lengths).to_bytes(8, "little")
