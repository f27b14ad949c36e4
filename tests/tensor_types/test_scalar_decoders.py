"""Decoders against llama.cpp and gguf-py, bit by bit: in the library, as arrays of numpy and torch,
as plain Python, and as C that is compiled with other options."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glft_schema.scalar.checking import check
from glft_schema.tensor_types import TensorType
from glft_schema.tensor_types.compiling import DECLARED
from glft_schema.tensor_types.library.printing import TypesInC
from tests.oracles import llama_cpp
from tests.oracles.peers import gguf
from tests.scalar import sources
from tests.scalar.sources import by_c, by_numpy, by_torch, by_triton, columns, compiled, same_bits
from tests.tensor_types.test_ggml_types import BLOCK_TYPES, BLOCKS, by_type, decoded, random_blocks
from tests.tools.depth import FULL

Blocks = np.ndarray[Any, Any]


def some_blocks(type_: TensorType) -> Blocks:
    """Returns blocks of equal bytes, blocks with one byte at its extremes, and random blocks."""
    blocks = random_blocks(type_)
    size = blocks.shape[1]
    equal = np.repeat(np.arange(256, dtype=np.uint8)[:, None], size, 1)
    extremes = np.tile(blocks[:1], (2 * size, 1))
    extremes[np.arange(2 * size), np.arange(2 * size) % size] = np.repeat([0, 255], size)
    return np.concatenate((equal, extremes, blocks))


def by_llama_cpp(type_: TensorType, blocks: Blocks) -> Blocks:
    if type_.name == "Q8_1":  # without a C function: Q8_0 with a sum
        return llama_cpp.dequantize("Q8_0", np.concatenate((blocks[:, :2], blocks[:, 4:]), 1), 32)
    return llama_cpp.dequantize(type_.name, blocks, type_.least_row)


def by_arrays(run_on_arrays: Callable[..., Blocks], type_: TensorType, blocks: Blocks) -> Blocks:
    layout = type_.functions.layout
    return run_on_arrays(check(type_.formula, layout.arrays()), columns(layout, blocks))


def by_plain_python(type_: TensorType, blocks: Blocks) -> Blocks:
    return sources.by_plain_python(type_.formula, columns(type_.functions.layout, blocks), type_.least_row)


FORMS: dict[str, tuple[Callable[..., Blocks], slice]] = {  # with the blocks that it decodes
    "library": (decoded, slice(None)),
    "numpy": (lambda *given: by_arrays(by_numpy, *given), slice(3000)),
    "torch": (lambda *given: by_arrays(by_torch, *given), slice(3000)),
    "Triton": (
        lambda type_, *given: by_triton(type_.formula, type_.functions.layout, *given),
        slice(0, None, 1 if FULL else 30),
    ),
    "plain Python": (by_plain_python, slice(0, 1000, 2 if FULL else 50)),
}


@pytest.mark.parametrize("form", FORMS)
@by_type
def test_dequantizes_as_llama_cpp(type_: TensorType, form: str) -> None:
    decode, part = FORMS[form]
    blocks = some_blocks(type_)[part]
    assert same_bits(decode(type_, blocks), by_llama_cpp(type_, blocks))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of NaN and infinities
@by_type
def test_dequantizes_as_gguf_py(type_: TensorType) -> None:
    blocks = random_blocks(type_)[:BLOCKS]
    try:
        expected = gguf.dequantize(blocks, getattr(gguf.GGMLQuantizationType, type_.name, None))
    except (NotImplementedError, AttributeError):
        pytest.skip("gguf-py cannot dequantize it")
    assert same_bits(decoded(type_, blocks), expected)


def test_the_c_of_all_types_has_no_warnings_and_their_bits(tmp_path: Path) -> None:
    unit = TypesInC()
    for type_ in DECLARED:
        if type_.formula:
            unit.decoder(type_.functions.layout, type_.formula)
    library = compiled(str(unit), tmp_path, "-O0")
    for type_ in BLOCK_TYPES:
        blocks = some_blocks(type_)[:: 1 if FULL else 20].copy()
        assert same_bits(by_c(library[type_.scheme], blocks, type_.least_row), by_llama_cpp(type_, blocks)), type_


def test_all_types_have_a_decoder_and_print_without_torch() -> None:
    """The text is at most 250 kB and calls no library; it includes two headers of the compiler."""
    program = (
        "import sys\n"
        "from glft_schema.tensor_types.compiling import DECLARED\n"
        "from glft_schema.tensor_types.library.printing import TypesInC\n"
        "unit = TypesInC()\n"
        "for type_ in DECLARED:\n"
        "    if not type_.exact: unit.decoder(type_.functions.layout, type_.formula)\n"
        "text = str(unit)\n"
        "print('torch' in sys.modules, len(text) <= 250_000, text.count('#include'), '<math.h>' in text)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "False True 2 False\n", done.stderr
