"""safetensors files written by hand, whole and damaged, independently of the declaration."""

from __future__ import annotations

import json
import math
import re
import struct
from contextlib import suppress
from random import Random
from typing import Any

OF_BITS = {
    8: "BOOL U8 I8 F8_E5M2 F8_E4M3 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ",
    16: "I16 U16 F16 BF16",
    32: "I32 U32 F32",
    64: "C64 F64 I64 U64",
    4: "F4",
    6: "F6_E2M3 F6_E3M2",
}
BITS = {name: bits for bits, names in OF_BITS.items() for name in names.split()}
NAMES = ("a", "b", "w.0", "", "ä", "日本", "😀", 'q"', "\\", "\n", "\x00", "\x7f", "__metadata__x", "/", "\ud7ff", "\u2028")
# Tokens that replace others: numbers and texts that readers of JSON treat differently.
WORDS = r"""0 1 -0 -1 1.0 1e0 01 1E2 1e999 -1e999 0e999 1e-999 +1 1. .5 0x1 NaN Infinity -Infinity null true
9223372036854775807 9223372036854775808 18446744073709551615 18446744073709551616 -9223372036854775809
[] {} [1] [0,4] {"F32":null} ["F32",[1],[0,4]] , : } ] { [ // 'a' "
"F32" "f32" "F4" "F6_E2M3" "BOOL" "dtype" "shape" "data_offsets" "__metadata__" "a" ""
"\ud800" "\udc00\ud800" "\ud83d\ude00" "\u00e4" "\x" "\u12" """
TOKENS = (
    *WORDS.split(),
    *("9" * 400, "1" * 309, "4" * 5000, "[" * 130 + "]" * 130, "[" * 124 + "]" * 124),
    *(" ", "\n\t\r ", "\x0b", "\ufeff", '"\x01"', '"\x7f"'),
)
TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"?|[^{}\[\],: \n\t\r"]+|.', re.DOTALL)


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
    """Changes something that some reader looks at, but leaves JSON.

    A second change that does not fit the first is left out.
    """
    if not entries:
        entries.append(random.choice((("a", []), ("__metadata__", None), ("a", ["F32", [0], [0, 0]]))))
        return
    at, anywhere = random.randrange(len(entries)), random.randint(0, len(entries))
    name, pairs = entries[at]
    with suppress(TypeError, ValueError, IndexError):
        match random.randrange(12):
            case 0:  # twice
                entries.insert(anywhere, (name, list(pairs)))
            case 1:
                entries.insert(anywhere, ("__metadata__", random.choice((None, [], [["a", "b"]], "x", [["a", 1]]))))
            case 2:
                entries[at] = (random.choice(NAMES), pairs)
            case 3:
                pair = [random.choice(("x", "dtype", "shape")), random.choice((1, 1.5, "F32", [1], None))]
                pairs.insert(random.randint(0, len(pairs)), pair)
            case 4:
                del pairs[random.randrange(len(pairs))]
            case 5:
                random.shuffle(pairs)
            case 6:
                entries[at] = (name, [value for _, value in pairs])
            case 7:
                pairs[0] = ["dtype", random.choice((*BITS, [["F32", None]], [["F32", 1]], "f32", 1))]
            case 8:  # a hole, an overlap, or bytes past the end
                by = random.choice((-1, 1, 4, 8))
                pairs[2] = ["data_offsets", [number + by for number in pairs[2][1]]]
            case 9:  # shared bytes
                pairs[2] = entries[0][1][2]
            case _:
                numbers = pairs[random.randint(1, 2)][1]
                i = random.randrange(len(numbers))
                changed = (numbers[i] + 1, numbers[i] - 1, 0, 1, numbers[i] * 2, 1 << 32, (1 << 64) - 1, 1 << 64, [1])
                numbers[i] = random.choice(changed)


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
    tokens = TOKEN.findall(text)
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
