"""A second GLFT v1 reader and writer, from the specification, with `struct` and loops only."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

import numpy as np

MAGIC = 0x474C4654
F32, F16, Q8, Q4 = range(4)


@dataclass
class Row:
    """A descriptor and its payload."""

    name: str
    dims: list[int]
    dtype: int
    payload: bytes
    offset: int = 0


def write(metadata: bytes, rows: list[Row], data: bytes, version: int = 1, magic: int = MAGIC) -> bytes:
    """Returns a file; `data` is the last region."""
    out = struct.pack("<IIII", magic, version, len(rows), len(metadata)) + metadata
    for row in rows:
        name = row.name.encode("utf-8")
        out += struct.pack("<H", len(name)) + name + struct.pack(f"<B{len(row.dims)}I", len(row.dims), *row.dims)
        out += struct.pack("<BQ", row.dtype, row.offset)
    return out + data


def back_to_back(metadata: bytes, rows: list[Row]) -> bytes:
    """Returns a file with consecutive payloads in the rows' order; sets the offsets."""
    data = b""
    for row in rows:
        row.offset = len(data)
        data += row.payload
    return write(metadata, rows, data)


def nbytes(dtype: int, dims: list[int]) -> int:
    """Returns the bytes of a payload."""
    count = math.prod(dims)
    out = dims[0] if dims else 1
    return {F32: 4 * count, F16: 2 * count, Q8: 2 * out + count, Q4: count // 32 + count // 2}[dtype]


def numbers(dtype: int, dims: list[int], payload: bytes) -> list[float]:
    """Returns the numbers of a payload in C order."""
    count = math.prod(dims)
    if dtype in (F32, F16):
        return list(struct.unpack(f"<{count}{'fe'[dtype]}", payload))
    columns = count // dims[0]
    if dtype == Q8:
        scales = struct.unpack(f"<{dims[0]}e", payload[: 2 * dims[0]])
        codes = struct.unpack(f"<{count}b", payload[2 * dims[0] :])
        return [scales[i // columns] * codes[i] for i in range(count)]
    groups = count // 64
    scales = struct.unpack(f"<{groups}e", payload[: 2 * groups])
    values = []
    for i in range(count):
        byte = payload[2 * groups + i // 2]
        nibble = byte >> 4 if i % 2 else byte & 15
        values.append(scales[i // 64] * (nibble - 16 if nibble >= 8 else nibble))
    return values


def quantize(group: list[float], largest: int) -> tuple[float, list[int]]:
    """Returns scale and codes of a group; the scale is rounded to float16 before it is used."""
    peak = max(abs(np.float32(w)) for w in group)
    scale = np.float16(peak / np.float32(largest))
    if scale == 0:
        return 0.0, [0] * len(group)
    codes = [round(float(np.float32(w) / np.float32(scale))) for w in group]
    return float(scale), [min(max(code, -largest - 1), largest) for code in codes]
