"""Decoders as scalar functions: plain Python, the printed C and llama.cpp's C are bit-equal."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from glft_schema.codec import Struct, f16, u8
from glft_schema.scalar.checking import check
from glft_schema.scalar.language import ScalarError, float32, run
from glft_schema.tensor_types import TensorType
from glft_schema.tensor_types.blocks import block_type
from glft_schema.tensor_types.declaration import formula_of
from glft_schema.tensor_types.library.printing import TypesInC
from glft_schema.tensor_types.symmetric import Q4_PER_GROUP_64, Q8_PER_CHANNEL
from tests.oracles import llama_cpp
from tests.scalar.sources import by_numpy, compiled, pointer, same_bits
from tests.scalar.test_as_torch import by_torch, columns
from tests.tensor_types.test_ggml_types import BLOCK_TYPES, by_type, random_blocks, weights_in
from tests.tools.depth import some, some_by_default

ROW_TYPES = (Q8_PER_CHANNEL, Q4_PER_GROUP_64)


def printed(types: Iterable[TensorType]) -> str:
    """Returns the formulas of types as C."""
    unit = TypesInC()
    for type_ in types:
        unit.decoder(type_.functions.layout, type_.formula)
    return str(unit)


SUFFIXES = {"": torch.float32, "_f16": torch.float16, "_bf16": torch.bfloat16}


def edge_blocks(type_: TensorType) -> np.ndarray[Any, Any]:
    """Returns blocks of equal bytes, and each byte of a block at its extremes among others."""
    size = type_.block.sizeof()
    equal = np.repeat(np.arange(256, dtype=np.uint8)[:, None], size, 1)
    extremes = np.tile(random_blocks(type_)[:1], (2 * size, 1))
    extremes[np.arange(size), np.arange(size)] = 0
    extremes[size + np.arange(size), np.arange(size)] = 255
    return np.concatenate((equal, extremes))


def by_llama_cpp(type_: TensorType, blocks: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if type_.name == "Q8_1":  # without a C function: Q8_0 with a sum
        return llama_cpp.dequantize("Q8_0", np.concatenate((blocks[:, :2], blocks[:, 4:]), 1), 32)
    return llama_cpp.dequantize(type_.name, blocks, weights_in(type_))


def by_plain_python(type_: TensorType, blocks: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    weights, numpy = np.zeros((len(blocks), weights_in(type_)), np.float32), {}
    for w, block in zip(weights, blocks, strict=True):
        start = 0
        for field in type_.block.subcons:
            end = start + field.sizeof()
            numpy[field.name], start = np.frombuffer(block[start:end].tobytes(), field.subcon.number.numpy_dtype()), end
        names = type_.formula.__code__.co_varnames[: type_.formula.__code__.co_argcount]
        run(type_.formula, **{name: w if name == "w" else numpy[name] for name in names})
    return weights


some_types = pytest.mark.parametrize("type_", some_by_default([*BLOCK_TYPES], 3), ids=str)


@some_types
def test_c_equals_llama_cpp(type_: TensorType, tmp_path: Path) -> None:
    """Random blocks, edge blocks, and all float16 scales."""
    library = compiled(printed([type_]), tmp_path, "-O1")
    blocks = np.concatenate((random_blocks(type_), edge_blocks(type_)))
    found = np.zeros((len(blocks), weights_in(type_)), np.float32)
    library[type_.scheme](pointer(blocks), pointer(found), ctypes.c_int64(len(blocks)))
    assert same_bits(found, by_llama_cpp(type_, blocks))


@some_types
def test_plain_python_equals_llama_cpp(type_: TensorType) -> None:
    blocks = np.concatenate((some(random_blocks(type_)[:200], 20), some(edge_blocks(type_), 64)))
    assert same_bits(by_plain_python(type_, blocks), by_llama_cpp(type_, blocks))


@by_type
def test_arrays_equal_llama_cpp(type_: TensorType) -> None:
    blocks = np.concatenate((random_blocks(type_)[:2000], edge_blocks(type_)))
    function, expected = check(type_.formula, type_.functions.layout.arrays()), by_llama_cpp(type_, blocks)
    fields = columns(type_.functions.layout, blocks)
    assert same_bits(by_numpy(function, fields), expected)
    assert same_bits(by_torch(function, fields), expected)


@pytest.mark.parametrize("type_", ROW_TYPES, ids=str)
def test_types_of_rows(type_: TensorType, tmp_path: Path) -> None:
    """The C, into each dtype, the arrays and plain Python equal the formula."""
    random = np.random.default_rng(0)
    scales = random.integers(0, 1 << 16, (512, 1 if type_ is Q8_PER_CHANNEL else 3), np.uint16).view(np.float16)
    codes = random.integers(0, 256, (512, 192 if type_ is Q8_PER_CHANNEL else 96), np.uint8)
    names = [name for name, _ in type_.fields()]
    arrays = dict(zip(names, (scales, codes.view(np.int8 if type_ is Q8_PER_CHANNEL else np.uint8)), strict=True))
    expected = torch.from_numpy(type_.decode(arrays, 192))
    library = compiled(printed([type_]), tmp_path, "-O1")
    for suffix, dtype in SUFFIXES.items():
        found = torch.zeros(512, 192, dtype=dtype)
        arguments = *map(pointer, arrays.values()), ctypes.c_void_p(found.data_ptr()), ctypes.c_int64(512), ctypes.c_int64(192)
        library[type_.scheme + suffix](*arguments)
        assert same_bits(found.float().numpy(), expected.to(dtype).float().numpy())
    assert same_bits(by_torch(check(type_.formula, type_.functions.layout.arrays(columns=192)), arrays), expected.numpy())
    row = np.zeros(192, np.float32)
    run(type_.formula, w=row, **{name: array[7] for name, array in arrays.items()})
    assert same_bits(row, expected[7].numpy())


def test_into_halves(tmp_path: Path) -> None:
    """Weights of blocks are rounded as torch rounds them."""
    type_ = next(type_ for type_ in BLOCK_TYPES if type_.name == "Q6_K")
    library, blocks = compiled(printed([type_]), tmp_path, "-O1"), random_blocks(type_)[:2000]
    expected = torch.from_numpy(type_.decode({"blocks": blocks}, 256))
    for suffix, dtype in SUFFIXES.items():
        found = torch.zeros(expected.shape, dtype=dtype)
        library[f"q6_k{suffix}"](pointer(blocks), ctypes.c_void_p(found.data_ptr()), ctypes.c_int64(len(blocks)))
        assert same_bits(found.float().numpy(), expected.to(dtype).float().numpy())


def test_all_types_have_a_decoder_and_print_without_torch() -> None:
    """The text is at most 200 kB and calls no library."""
    program = (
        "import sys\n"
        "from glft_schema.tensor_types.ggml import GGML_TYPES\n"
        "from glft_schema.tensor_types.symmetric import Q4_PER_GROUP_64, Q8_PER_CHANNEL\n"
        "from glft_schema.tensor_types.library.printing import TypesInC\n"
        "unit = TypesInC()\n"
        "for type_ in (*GGML_TYPES, Q8_PER_CHANNEL, Q4_PER_GROUP_64):\n"
        "    if type_.formula: unit.decoder(type_.functions.layout, type_.formula)\n"
        "text = str(unit)\n"
        "print('torch' in sys.modules, len(text) <= 200_000, text.count('#include'), '<math.h>' in text)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "False True 1 False\n", done.stderr
    assert all(type_.formula for type_ in (*BLOCK_TYPES, *ROW_TYPES))


@pytest.mark.full
def test_one_unit_of_all_types(tmp_path: Path) -> None:
    library = compiled(printed([*BLOCK_TYPES, *ROW_TYPES]), tmp_path)
    undefined = subprocess.run(["nm", "-D", "--undefined-only", library._name], capture_output=True, text=True).stdout
    assert all(name.startswith("__") or "@" in name or name in ("w", "U") for name in undefined.split() if "_ITM" not in name)
    for type_ in BLOCK_TYPES:
        blocks = random_blocks(type_)[:2000]
        found = np.zeros((len(blocks), weights_in(type_)), np.float32)
        library[type_.scheme](pointer(blocks), pointer(found), ctypes.c_int64(len(blocks)))
        assert same_bits(found, by_llama_cpp(type_, blocks))


OWN = block_type("Q4_OWN", 4242, 32, Struct("d" / f16[2] * "scales", "qs" / u8[16] * "codes"))


@formula_of(OWN)
def q4_own(w, d, qs):
    """d * (code - 8), for groups of 16."""
    for h in range(2):
        for i in range(16):
            w[16 * h + i] = d[h] * float32((qs[i] >> 4 * h & 15) - 8)


def test_a_type_of_a_user(tmp_path: Path) -> None:
    blocks = np.random.default_rng(3).integers(0, 256, (100, 20), np.uint8)
    found = np.zeros((100, 2, 16), np.float32)
    compiled(printed([OWN]), tmp_path, "-O1").q4_own(pointer(blocks), pointer(found), ctypes.c_int64(100))
    d, codes = blocks[:, :4].copy().view(np.float16).astype(np.float32), blocks[:, None, 4:] >> np.array([[[0], [4]]]) & 15
    with np.errstate(all="ignore"):
        assert same_bits(found, (codes.astype(np.float32) - 8) * d[:, :, None])
    assert [field.sentence for field in OWN.functions.layout.fields] == ["scales", "codes"]


def test_a_formula_that_is_refused_at_its_declaration() -> None:
    type_ = block_type("Q4_REFUSED_FORMULA", 4243, 32, Struct("d" / f16[1], "qs" / u8[16]))

    def decode(w, d, qs):
        for i in range(32):
            w[i] = d[0] * qs[i // 2]

    with pytest.raises(
        ScalarError, match=r"^decode, line \d+: expected one kind, found float32 and int32 in 'd\[0\] \* qs\[i // 2\]'$"
    ):
        formula_of(type_)(decode)
