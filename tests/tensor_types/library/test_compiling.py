"""The decoder of a user's own type, compiled for a process."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from glft_schema import types
from glft_schema.codec import Struct, f16, u8
from glft_schema.errors import OptionError
from glft_schema.scalar.language import ScalarError, float32, run
from glft_schema.tensor_types.blocks import block_type
from glft_schema.tensor_types.library import building, loading
from glft_schema.tensor_types.tensor_type import formula_of
from tests.scalar.sources import same_bits

OWN = block_type("Q4_COMPILED", 4310, 32, Struct("d" / f16[2] * "scales", "qs" / u8[16] * "codes"))
UNDECLARED = block_type("Q4_UNDECLARED", 4311, 32, Struct("d" / f16[2], "qs" / u8[16]))


@formula_of(OWN)
def decode_own(w, d, qs):
    """d * (code - 8), for groups of 16."""
    for h in range(2):
        for i in range(16):
            w[16 * h + i] = d[h] * float32((qs[i] >> 4 * h & 15) - 8)


@pytest.mark.usefixtures("folder")
def test_an_own_type() -> None:
    """It does not take the place of the package's."""
    if building.compiler() is None:
        pytest.skip("no C compiler")
    assert loading.function_of("q4_compiled", "float32") is None
    types.compile(OWN)
    blocks = np.random.default_rng(0).integers(0, 80, (10, 20), np.uint8)  # no float16 overflows
    expected = np.zeros((10, 32), np.float32)
    for w, block in zip(expected, blocks, strict=True):
        run(decode_own, w=w, d=block[:4].view(np.float16), qs=block[4:])
    for dtype, found in (("float32", np.zeros((10, 32), np.float32)), ("float16", np.zeros((10, 32), np.float16))):
        loading.function_of("q4_compiled", dtype)(blocks.ctypes.data, found.ctypes.data, 10)
        assert same_bits(found, expected.astype(found.dtype))
    assert loading.function_of("q4_compiled", "bfloat16")
    assert loading.function_of("q4_k", "float32")


def test_a_type_without_a_decoder() -> None:
    with pytest.raises(OptionError, match=r"^Q4_UNDECLARED has no scalar formula to compile: see formula_of$"):
        types.compile(UNDECLARED)


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "ziglang", None)
    problem = "Q4_COMPILED cannot be compiled: no C compiler: install clang or gcc, or pip install ziglang"
    with pytest.raises(OptionError, match=f"^{problem}$"):
        types.compile(OWN)


def test_a_compiler_that_makes_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "sh -c 'echo no library > $(ls -d /proc/self/cwd)/1.so; exit 0' sh")
    monkeypatch.setattr(building, "LEVELS", {})
    with pytest.raises(OptionError, match=r"^Q4_COMPILED cannot be compiled: the compiled functions are damaged: .*1-"):
        types.compile(OWN)


def decode_sums(w, d, qs):
    """The sums of the codes so far, up to the first 0."""
    total = 0
    for i in range(16):
        if qs[i] == 0:
            break
        total += qs[i]
        w[i], w[i + 16] = d[0] * float32(total), float32(i)


def test_a_formula_that_only_c_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    if building.compiler() is None:
        pytest.skip("no C compiler")
    block = Struct("d" / f16[1], "qs" / u8[16])
    type_ = block_type("Q8_SUMS", 4313, 32, block, dequantize=decode_sums)
    blocks = np.random.default_rng(0).integers(1, 60, (10, 18), np.uint8)
    fields = {"blocks": torch.from_numpy(blocks)}
    problem = "decode_sums: as arrays, expected loops that run to their end, found Break; glft.types.compile makes it C"
    with pytest.raises(ScalarError, match=f"^{problem}$"):
        type_.decode(fields, 32)
    types.compile(type_)
    expected = np.zeros((10, 32), np.float32)
    for w, one in zip(expected, blocks, strict=True):
        run(decode_sums, w=w, d=one[:2].view(np.float16), qs=one[2:])
    assert same_bits(type_.decode(fields, 32).numpy(), expected)


def test_a_name_that_is_none_in_c() -> None:
    type_ = block_type("Q4-COMPILED", 4314, 32, Struct("d" / f16[2], "qs" / u8[16]), dequantize=decode_own)
    problem = "'Q4-COMPILED' cannot be compiled: expected a name of letters, digits and '_'"
    with pytest.raises(OptionError, match=f"^{problem}$"):
        types.compile(type_)
