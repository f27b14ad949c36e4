"""A second GGUF writer, from the specification, with `struct` and loops only."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# codes of value types -> format characters of `struct`
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
F32, Q4_0, Q8_0, I8 = 0, 2, 8, 24
# code -> weights and bytes of a block, from the type table in ggml.c (llama.cpp).
# fmt: off
BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 36), 10: (256, 84),
    11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292), 16: (256, 66), 17: (256, 74), 18: (256, 98),
    19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82), 23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8),
    28: (1, 8), 29: (256, 56), 30: (1, 2), 34: (256, 54), 35: (256, 66), 39: (32, 17), 40: (64, 36),
    41: (128, 18), 42: (64, 18),
}
# fmt: on


@dataclass
class Info:
    """A tensor info and its payload; dims as stored, the contiguous one first."""

    name: bytes
    dims: list[int]
    type: int
    payload: bytes = b""
    offset: int = 0


@dataclass
class File:
    """The contents of a file.

    Values are numbers, bytes for strings, (element type, elements) for arrays, and the stored bits of
    floats and bools.
    """

    entries: list[tuple[bytes, int, Any]] = field(default_factory=list)
    infos: list[Info] = field(default_factory=list)
    data: bytes | None = None
    version: int = 3
    order: str = "<"
    magic: bytes = b"GGUF"
    n_tensors: int | None = None
    n_kv: int | None = None
    alignment: int = 32
    padding: bytes | None = None

    def number(self, letter: str, number: Any) -> bytes:
        return struct.pack(self.order + letter, number)

    def size(self, number: int) -> bytes:
        return self.number("I" if self.version == 1 else "Q", number)

    def string(self, text: bytes) -> bytes:
        return self.size(len(text)) + text

    def value(self, code: int, value: Any) -> bytes:
        if code == STRING:
            return self.string(value)
        if code == ARRAY:
            inner, elements = value
            return self.number("I", inner) + self.size(len(elements)) + b"".join(self.value(inner, e) for e in elements)
        if isinstance(value, bytes):  # the bits of a float, big-endian
            return value if self.order == ">" else value[::-1]
        return self.number(NUMBERS.get(code, "B"), value)

    def place(self) -> File:
        """Sets consecutive offsets, and the data region."""
        data = b""
        for info in self.infos:
            info.offset = len(data)
            data += info.payload + bytes(-len(info.payload) % self.alignment)
        self.data = data
        return self

    def head(self) -> bytes:
        out = self.magic + self.number("I", self.version)
        out += self.size(len(self.infos) if self.n_tensors is None else self.n_tensors)
        out += self.size(len(self.entries) if self.n_kv is None else self.n_kv)
        for key, code, value in self.entries:
            out += self.string(key) + self.number("I", code) + self.value(code, value)
        for info in self.infos:
            out += self.string(info.name) + self.number("I", len(info.dims))
            out += b"".join(self.size(dim) for dim in info.dims)
            out += self.number("I", info.type) + self.number("Q", info.offset)
        return out

    def bytes(self) -> bytes:
        if self.data is None:
            self.place()
        head = self.head()
        padding = bytes(-len(head) % self.alignment) if self.padding is None else self.padding
        return head + padding + (self.data or b"")


def nbytes(code: int, dims: list[int]) -> int:
    """Returns the bytes of a payload."""
    weights, size = BLOCKS[code]
    return math.prod(dims) // weights * size


def write_set(folder: Path) -> Path:
    """Writes a set of two files, one 4-byte tensor each, t0 and t1; returns the first path."""
    paths = [folder / f"set-{number + 1:05d}-of-00002.gguf" for number in range(2)]
    for number, path in enumerate(paths):
        keys = {"split.no": number, "split.count": 2, "split.tensors.count": 2}
        entries = [(key.encode(), 2, value) for key, value in keys.items()]
        path.write_bytes(File(entries, [Info(b"t%d" % number, [4], 24, b"abcd")]).bytes())
    return paths[0]
