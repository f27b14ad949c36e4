"""Every ggml type against llama.cpp's own functions and against gguf-py, bit by bit, on random blocks."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from glft_schema.errors import TensorError
from glft_schema.fields import Struct
from glft_schema.numbers import f16, i8
from glft_schema.source import BytesSource
from glft_schema.tensor_types import TensorType
from glft_schema.tensor_types.blocks import block_type
from glft_schema.tensor_types.ggml import GGML
from glft_schema.tensor_types.i_quants import VALUES, grid
from tests import llama_cpp

BLOCKS = 4000
BLOCK_TYPES = [type_ for type_ in GGML if type_.block]
by_type = pytest.mark.parametrize("type_", BLOCK_TYPES, ids=str)


def weights_in(type_: TensorType) -> int:
    """Returns the weights of a block: the shortest row that the type can hold."""
    return next(length for length in range(1, 257) if type_.refusal([1, length]) is None)


def random_blocks(type_: TensorType) -> np.ndarray:
    """Returns u8 [blocks, size]: random bytes, and every half there is in the first float16 of a block."""
    size = type_.block.sizeof()
    blocks = np.random.default_rng(type_.code).integers(0, 256, (BLOCKS, size), dtype=np.uint8)
    start = 0
    for field in type_.block.subcons:
        if field.subcon.number is f16:
            every = np.arange(1 << 16, dtype=np.uint16).view(np.uint8).reshape(-1, 2)
            more = np.resize(blocks, (1 << 16, size)).copy()
            more[:, start : start + 2] = every
            return np.concatenate((blocks, more))
        start += field.sizeof()
    return blocks


def assert_bit_equal(found: torch.Tensor, expected: np.ndarray) -> None:
    """NaN is NaN, whatever its sign and payload; everything else has the same bits."""
    found_ = found.numpy()
    same = found_.view(np.uint32) == expected.view(np.uint32)
    assert (same | (np.isnan(found_) & np.isnan(expected))).all()


@by_type
def test_dequantizes_as_llama_cpp(type_: TensorType) -> None:
    if type_.name == "Q8_1":
        pytest.skip("llama.cpp has no function that dequantizes Q8_1")
    blocks = random_blocks(type_)
    assert_bit_equal(type_.dequantize(torch.from_numpy(blocks)), llama_cpp.dequantize(type_.name, blocks, weights_in(type_)))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of NaN and infinities
@by_type
def test_dequantizes_as_gguf_py(type_: TensorType) -> None:
    kind = getattr(gguf.GGMLQuantizationType, type_.name, None)
    blocks = random_blocks(type_)[:BLOCKS]
    try:
        expected = gguf.dequantize(blocks, kind)
    except NotImplementedError:
        pytest.skip("gguf-py cannot dequantize it")
    except AttributeError:
        pytest.skip("gguf-py does not know it")
    assert_bit_equal(type_.dequantize(torch.from_numpy(blocks)), expected)


def test_q8_1_is_q8_0_with_a_sum() -> None:
    blocks = random_blocks(GGML["Q8_1"])
    as_q8_0 = np.concatenate((blocks[:, :2], blocks[:, 4:]), 1)
    found = GGML["Q8_1"].dequantize(torch.from_numpy(blocks))
    assert_bit_equal(found, llama_cpp.dequantize("Q8_0", as_q8_0, 32))


# id, name, weights and bytes of a block, as ggml's type table has them (llama.cpp, ggml.c and ggml-common.h).
# fmt: off
TABLE = [
    (2, "Q4_0", 32, 18), (3, "Q4_1", 32, 20), (6, "Q5_0", 32, 22), (7, "Q5_1", 32, 24), (8, "Q8_0", 32, 34),
    (9, "Q8_1", 32, 36),
    (10, "Q2_K", 256, 84), (11, "Q3_K", 256, 110), (12, "Q4_K", 256, 144), (13, "Q5_K", 256, 176), (14, "Q6_K", 256, 210),
    (15, "Q8_K", 256, 292), (16, "IQ2_XXS", 256, 66), (17, "IQ2_XS", 256, 74), (18, "IQ3_XXS", 256, 98), (19, "IQ1_S", 256, 50),
    (20, "IQ4_NL", 32, 18), (21, "IQ3_S", 256, 110), (22, "IQ2_S", 256, 82), (23, "IQ4_XS", 256, 136), (29, "IQ1_M", 256, 56),
    (34, "TQ1_0", 256, 54), (35, "TQ2_0", 256, 66), (39, "MXFP4", 32, 17), (40, "NVFP4", 64, 36), (41, "Q1_0", 128, 18),
    (42, "Q2_0", 64, 18),
]
# fmt: on


def test_table() -> None:
    declared = [(type_.code, type_.name, weights_in(type_), type_.block.sizeof()) for type_ in BLOCK_TYPES]
    assert sorted(declared) == TABLE


@by_type
def test_slices_read_whole_blocks_and_no_more(type_: TensorType) -> None:
    weights, size = weights_in(type_), type_.block.sizeof()
    blocks = random_blocks(type_)[:12]
    dims = [4, 3 * weights]
    assert type_.nbytes(dims) == 12 * size
    assert type_.unit(dims) == weights
    fields = type_.cut(BytesSource(blocks.tobytes()), 0, dims, range(1, 3), range(weights, 3 * weights))
    expected = type_.dequantize(torch.from_numpy(blocks)).reshape(dims)[1:3, weights:]
    assert_bit_equal(type_.decode(fields, 2 * weights), expected.numpy())
    row = type_.cut(BytesSource(blocks.tobytes()), 0, [12 * weights], range(1), range(5 * weights, 6 * weights))
    assert row["blocks"].flatten().tolist() == blocks[5].tolist()


@by_type
def test_rows_are_whole_blocks(type_: TensorType) -> None:
    weights = weights_in(type_)
    assert type_.refusal([2, weights + 1]) == f"expected rows that are a multiple of {weights} long, found {weights + 1}"
    assert type_.refusal([weights]) is None


@by_type
def test_compiles_whole(type_: TensorType) -> None:
    blocks = torch.from_numpy(random_blocks(type_)[:8])
    type_.dequantize(blocks)  # grids are loaded once, not traced
    torch._dynamo.reset()
    compiled = torch.compile(type_.dequantize, fullgraph=True, backend="eager")
    assert_bit_equal(compiled(blocks), type_.dequantize(blocks).numpy())


@pytest.mark.parametrize("name", VALUES)
def test_grids_are_gguf_pys(name: str) -> None:
    other = getattr(gguf.quants, name.upper())
    other.init_grid()
    assert np.array_equal(grid(name, torch.device("cpu")).numpy(), other.grid.squeeze())


def test_a_type_of_ones_own_is_one_declaration() -> None:
    own = block_type(
        "PAIR",
        200,
        2,
        Struct("d" / f16[1] * "scale", "q" / i8[2] * "codes"),
        lambda d, q: d.float() * q.float(),
        lambda w: {"d": torch.ones(len(w), 1).half(), "q": w.to(torch.int8)},
    )
    w = torch.tensor([[1.0, -2.0, 3.0, 4.0]])
    assert own.nbytes([1, 4]) == 8
    assert torch.equal(own.round_trip(w, "w"), w)


ENCODERS = ["Q1_0", "Q2_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0", "MXFP4", "NVFP4"]


def awkward_weights(length: int) -> np.ndarray:
    """Returns float32 [rows, length]: ordinary, tiny, huge, few-valued and zero rows."""
    random = np.random.default_rng(length)
    parts = [
        random.standard_normal((4000, length)),
        random.standard_normal((1000, length)) * 1e-6,
        random.integers(-3, 4, (1000, length)),
        random.standard_normal((2000, length)) * 10.0 ** random.integers(-30, 20, (2000, 1)),
        random.standard_normal((1000, length)) * 1000,
        np.zeros((2, length)),
    ]
    return np.concatenate(parts).astype(np.float32)


@pytest.mark.parametrize("name", ENCODERS)
def test_quantizes_as_llama_cpp(name: str) -> None:
    type_ = GGML[name]
    weights = awkward_weights(weights_in(type_))
    expected = llama_cpp.quantize(type_.code, weights, type_.block.sizeof())
    blocks = type_.quantize(torch.from_numpy(weights))["blocks"]
    assert np.array_equal(blocks.numpy(), expected)
    again = type_.quantize(torch.from_numpy(weights).reshape(-1, weights.shape[1] * 2))["blocks"]
    assert torch.equal(again.reshape(blocks.shape), blocks)


def test_the_encoders_are_all_there_are() -> None:
    for type_ in BLOCK_TYPES:
        row = torch.zeros(1, weights_in(type_))
        if type_.name in ENCODERS:
            assert not type_.round_trip(row, "w").any()
        else:
            with pytest.raises(TensorError, match=f"tensor 'w': there is no encoder for {type_}"):
                type_.encode(row, "w")


@by_type
def test_tensors_without_numbers(type_: TensorType) -> None:
    for dims in ([2, 0], [0], [0, weights_in(type_)]):
        assert type_.nbytes(dims) == 0
        fields = type_.cut(BytesSource(b""), 0, dims, range(dims[0] if len(dims) > 1 else 1), range(0))
        assert type_.decode(fields, 0).numel() == 0
        if type_.name in ENCODERS:
            assert type_.round_trip(torch.zeros(dims), "w").shape == tuple(dims)


@pytest.mark.parametrize("name", ENCODERS)
def test_what_cannot_be_quantized_is_refused(name: str) -> None:
    type_ = GGML[name]
    weights = torch.ones(2, 2 * weights_in(type_))
    weights[1, -1] = float("nan")
    with pytest.raises(TensorError, match="NaN and infinities cannot be quantized") as caught:
        type_.encode(weights, "w")
    assert caught.value.index == (1, weights.shape[1] - 1)
    if any(field.subcon.number is f16 for field in type_.block.subcons):
        weights[1, -1] = 1e9
        with pytest.raises(TensorError, match="weights are too large for the scale of their block") as caught:
            type_.encode(weights, "w")
        assert caught.value.index == (1, weights_in(type_))
