"""Random GGUF files by the reference writer, and their values."""

from __future__ import annotations

import math
import struct
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from tests.oracles import gguf_reference as reference
from tests.oracles.gguf_reference import ARRAY, BLOCKS, NUMBERS, STRING, File, Info

BOOL, FLOATS = 7, {6: 4, 12: 8}
segments = st.text("abc_09", min_size=1, max_size=6)
keys = st.lists(segments, min_size=1, max_size=3).map(lambda parts: ".".join(parts).encode())
texts = st.one_of(st.text(max_size=8).map(str.encode), st.binary(max_size=8))
codes = st.sampled_from([*NUMBERS, STRING])


def scattered(draw: st.DrawFn, rows: list[Any]) -> bytes:
    """Returns the data of rows in any order, with gaps; sets offsets, and adds rows that share data."""
    data = b""
    for row in draw(st.permutations(rows)):
        data += draw(st.binary(max_size=3))
        row.offset = len(data)
        data += row.payload
    for number, row in enumerate(draw(st.lists(st.sampled_from(rows), max_size=2)) if rows else []):
        suffix = f" alias {number}"
        name = row.name + (suffix if isinstance(row.name, str) else suffix.encode())
        if name not in {other.name for other in rows}:
            rows.append(replace(row, name=name))
    return data + draw(st.binary(max_size=3))


def scalars(code: int) -> st.SearchStrategy[Any]:
    """Stored values of a type: any bits of a float, any byte of a bool."""
    if code == STRING:
        return texts
    if code in FLOATS:
        return st.binary(min_size=FLOATS[code], max_size=FLOATS[code])
    bits = 8 * struct.calcsize(NUMBERS[code])
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) if NUMBERS[code].islower() else st.integers(0, (1 << bits) - 1)


def arrays(depth: int) -> st.SearchStrategy[tuple[int, list[Any]]]:
    """Arrays, nested up to `depth`."""
    flat = codes.flatmap(lambda code: st.tuples(st.just(code), st.lists(scalars(code), max_size=4)))
    return st.one_of(flat, st.tuples(st.just(ARRAY), st.lists(arrays(depth - 1), max_size=3))) if depth > 1 else flat


values = st.one_of(
    codes.flatmap(lambda code: st.tuples(st.just(code), scalars(code))),
    st.tuples(st.just(ARRAY), arrays(3)),
)


@st.composite
def infos(draw: st.DrawFn) -> list[Info]:
    """Tensors of any type with payloads of random bytes."""
    made = []
    for name in draw(st.lists(texts, unique=True, max_size=4)):
        code = draw(st.sampled_from(list(BLOCKS)))
        dims = draw(st.lists(st.integers(0, 3), max_size=4))
        if BLOCKS[code][0] > 1:
            dims = [BLOCKS[code][0] * min(max(size, 1), 2) if axis == 0 else size % 3 for axis, size in enumerate(dims or [1])]
        size = reference.nbytes(code, dims)
        seed = draw(st.binary(min_size=1, max_size=64))
        made.append(Info(name, dims, code, (seed * (size // len(seed) + 1))[:size]))
    return made


@st.composite
def files(draw: st.DrawFn) -> File:
    """A file of any version, byte order and alignment, with consecutive offsets."""
    entries = [(key, *draw(values)) for key in draw(st.lists(keys, unique=True, max_size=4))]
    alignment = draw(st.sampled_from([32, 32, 8, 64, 24, 1]))
    if alignment != 32:
        entries.insert(draw(st.integers(0, len(entries))), (b"general.alignment", 4, alignment))
    file = File(entries, draw(infos()), None, draw(st.sampled_from([1, 2, 3, 3])), draw(st.sampled_from("<>")))
    file.alignment = alignment
    return file.place()


@st.composite
def loose_files(draw: st.DrawFn) -> bytes:
    """A legal file that no writer makes: other orders, gaps, aliases, nonzero padding, trailing bytes."""
    file = draw(files())
    file.data = scattered(draw, file.infos)
    padding = -len(file.head()) % file.alignment
    if not file.infos and not file.data:
        padding = draw(st.integers(0, padding))
    file.padding = draw(st.binary(min_size=padding, max_size=padding))
    return file.bytes()


def plain(code: int, value: Any) -> Any:
    """Returns a stored value as plain Python."""
    if code == STRING:
        return value.decode("utf-8", "surrogateescape")
    if code == ARRAY:
        return [plain(value[0], element) for element in value[1]]
    if code in FLOATS:
        return struct.unpack(">f" if code == 6 else ">d", value)[0]
    return bool(value) if code == BOOL else value


def same(one: Any, other: Any) -> bool:
    """Tells whether two values have equal types and values; NaN equals NaN."""
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and math.isnan(one):
        return isinstance(other, float) and math.isnan(other)
    return type(one) is type(other) and one == other
