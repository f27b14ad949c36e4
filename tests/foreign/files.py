"""GGUF files for other clients, written by this package: all types, versions, byte orders."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from glft_schema import Container, Typed
from glft_schema.codec.context import BIG, LITTLE
from glft_schema.codec.numbers import f16
from glft_schema.storage.torch_tensors import array_of, dtype_in_torch
from glft_schema.tensor_types.ggml import GGML_TYPES
from glft_schema.tensor_types.tensor_type import TensorType

ROWS, BLOCKS = 3, 2  # of the tensors
TYPES = tuple(GGML_TYPES)
SCALARS: dict[str, tuple[Any, ...]] = {
    "uint8": (0, 200, 255),
    "int8": (-128, 0, 127),
    "uint16": (0, 1, 65535),
    "int16": (-32768, -1, 32767),
    "uint32": (0, 2**31, 2**32 - 1),
    "int32": (-(2**31), -1, 2**31 - 1),
    "float32": (0.0, -0.0, 1.5, float(np.float32(0.1)), float("inf"), float("-inf"), float("nan")),
    "bool": (True, False),
    "string": ("", "a", "tü 漢 🙂", "a\0b\n"),
    "uint64": (0, 2**53 + 1, 2**64 - 1),
    "int64": (-(2**63), -(2**53) - 1, 2**63 - 1),
    "float64": (0.0, -0.0, 0.1, 5e-324, float("inf"), float("nan")),
}
NESTED: dict[str, Any] = {
    "n.numbers": [Typed([1, 2], "array[uint8]"), Typed([], "array[int16]"), Typed([-1], "array[int64]")],
    "n.mixed": [Typed([1.5], "array[float32]"), ["x", ""], [True]],
    "n.deep": [[[["x"], ["y", "z"]]], [[["w"]]]],  # 4 levels
}


def metadata(types: Iterable[str] = SCALARS) -> dict[str, Any]:
    """Returns keys for each type: each value, an array of the values, and an empty array."""
    made: dict[str, Any] = {"general.architecture": "toy", "general.quantization_version": 2}
    for type_ in types:
        made |= {f"s.{type_}.{number}": Typed(value, type_) for number, value in enumerate(SCALARS[type_])}
        made[f"a.{type_}"] = Typed(list(SCALARS[type_]), f"array[{type_}]")
        made[f"e.{type_}"] = Typed([], f"array[{type_}]")
    return made


@cache
def weights_in(type_: TensorType) -> int:
    """Returns the weights of a block, which is the shortest row."""
    return next(length for length in range(1, 257) if type_.refusal([1, length]) is None)


@cache
def blocks(type_: TensorType, count: int) -> np.ndarray:
    """Returns u8 [count, size]: random blocks with weights up to 1,000 and no subnormal halves."""
    assert type_.block
    random = np.random.default_rng(type_.code)
    kept: list[np.ndarray] = []
    while len(kept) < count:
        made = random.integers(0, 256, (64, type_.block.sizeof()), dtype=np.uint8)
        weights = type_.decode({"blocks": made}, weights_in(type_))
        kept.extend(made[(np.abs(weights) <= 1000).all(1) & ~has_subnormal(type_, made)])  # no NaN either
    return np.stack(kept[:count])


def has_subnormal(type_: TensorType, made: np.ndarray) -> np.ndarray:
    """Tells for each block whether a float16 in it is subnormal or 0."""
    found = np.zeros(len(made), bool)
    start = 0
    for field in type_.block.subcons:
        if field.subcon.number is f16:
            found |= np.abs(np.ascontiguousarray(made[:, start : start + 2]).view(np.float16)[:, 0]) < 2**-14
        start += field.sizeof()
    return found


def fields(type_: TensorType, shape: list[int], scale: float = 1) -> dict[str, np.ndarray]:
    if type_.block:
        rows, columns = shape
        per_row = columns // weights_in(type_)
        return {"blocks": blocks(type_, rows * per_row).reshape(rows, per_row, -1)}
    generator = torch.Generator().manual_seed(type_.code)
    dtype = dtype_in_torch(type_.dtype)
    if dtype.is_floating_point:
        return {"weights": array_of((scale * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype))}
    limits = torch.iinfo(dtype)
    return {"weights": array_of(torch.randint(limits.min, limits.max, shape, generator=generator, dtype=dtype))}


def regions(
    types: Iterable[TensorType] = TYPES,
    entries: Mapping[str, Any] | None = None,
    alignment: int = 32,
    order: str = LITTLE,
    version: int = 3,
    scale: float = 1,
) -> dict[str, Any]:
    """Returns a file's value with a tensor ``TYPE.weight`` of each type; `scale` is for floats."""
    made = dict(metadata() if entries is None else entries)
    if alignment != 32:
        made["general.alignment"] = Typed(alignment, "uint32")
    infos, data = [], {}
    for type_ in types:
        columns = BLOCKS * weights_in(type_) if type_.block else 5
        name = f"{type_.name}.weight"
        infos.append({"name": name, "dims": [columns, ROWS], "dtype": type_.name})
        data[name] = fields(type_, [ROWS, columns], scale)
    header = {"byte_order": order, "version": version}
    return {"format": "GGUF", "header": header, "metadata": made, "tensor_infos": infos, "data": data}


def block_regions(type_name: str, bits: int) -> dict[str, Any]:
    """Returns the value of a file with a tensor whose blocks begin with these 16 bits."""
    made = regions([GGML_TYPES[type_name]], {"general.architecture": "toy"})
    (payload,) = made["data"].values()
    payload["blocks"] = payload["blocks"].copy()
    payload["blocks"][..., :2] = list(bits.to_bytes(2, "little"))
    return made


def write(path: Path, **options: Any) -> Path:
    Container.build_file(regions(**options), path)
    return path


class Kind(NamedTuple):
    """The layout of a file."""

    version: int
    order: str
    alignment: int

    def __str__(self) -> str:
        return f"v{self.version}-{self.order}-{self.alignment}"


KINDS = [Kind(*parts) for parts in itertools.product((1, 2, 3), (LITTLE, BIG), (8, 32, 64, 4096))]
