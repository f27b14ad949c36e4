"""Every ggml type against llama.cpp and gguf-py, bit by bit, on random blocks."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from glft_schema.codec.numbers import f16, i8
from glft_schema.codec.structs import Struct
from glft_schema.errors import TensorError
from glft_schema.scalar.language import float32, nearest
from glft_schema.storage.cursor import Cursor
from glft_schema.storage.source import BytesSource
from glft_schema.tensor_types import TensorType
from glft_schema.tensor_types.blocks import block_type
from glft_schema.tensor_types.declaration import formula_of
from glft_schema.tensor_types.ggml import GGML_TYPES, register_type
from glft_schema.tensor_types.grids import VALUES, digits
from tests.oracles import gguf_reference, llama_cpp
from tests.oracles.peers import gguf
from tests.scalar.sources import same_bits
from tests.tools import forked
from tests.tools.depth import FULL, some
from tests.tools.encoding import encoded

BLOCKS = 4000
BLOCK_TYPES = [type_ for type_ in GGML_TYPES if type_.block]
by_type = pytest.mark.parametrize("type_", BLOCK_TYPES, ids=str)


def random_blocks(type_: TensorType) -> np.ndarray:
    """Returns u8 [blocks, size]: random bytes, and every float16 in the first float16 field."""
    layout = type_.functions.layout
    blocks = np.random.default_rng(type_.code).integers(0, 256, (BLOCKS, type_.block.sizeof()), dtype=np.uint8)
    starts = [start for field, start in zip(layout.fields, layout.offsets, strict=False) if field.number == "f16"]
    if not starts:
        return blocks
    more = np.resize(blocks, (1 << 16, blocks.shape[1])).copy()
    more[:, starts[0] : starts[0] + 2] = np.arange(1 << 16, dtype=np.uint16)[:, None].view(np.uint8)
    return np.concatenate((blocks, more))


def decoded(type_: TensorType, blocks: np.ndarray) -> np.ndarray:
    """Returns the weights of blocks [blocks, bytes]."""
    return type_.decode({"blocks": blocks}, type_.least_row)


def test_codes_names_and_sizes() -> None:
    assert {type_.code: (type_.least_row, type_.nbytes([type_.least_row])) for type_ in GGML_TYPES} == gguf_reference.BLOCKS
    theirs = {kind.name: kind.value for kind in gguf.GGMLQuantizationType}
    assert {type_.name: type_.code for type_ in GGML_TYPES} == theirs | {"Q2_0": 42}


@by_type
def test_slices_read_whole_blocks_and_no_more(type_: TensorType) -> None:
    weights, blocks = type_.least_row, random_blocks(type_)[:12]
    source, dims = BytesSource(blocks.tobytes()), [4, 3 * weights]
    fields = type_.cut(source, 0, dims, range(1, 3), range(weights, 3 * weights))
    assert same_bits(type_.decode(fields, 2 * weights), decoded(type_, blocks).reshape(dims)[1:3, weights:])
    row = type_.cut(source, 0, [12 * weights], range(1), range(5 * weights, 6 * weights))
    assert row["blocks"].flatten().tolist() == blocks[5].tolist()
    problem = f"expected a row length that is a multiple of {weights}, found {weights + 1}"
    assert (type_.refusal([weights]), type_.refusal([2, weights + 1])) == (None, problem)


@by_type
def test_blocks_may_begin_at_any_byte(type_: TensorType) -> None:
    blocks = random_blocks(type_)[:40]
    expected, memory = decoded(type_, blocks), np.zeros(3 + blocks.size, np.uint8)
    for start in (1, 2, 3):
        moved = memory[start : start + blocks.size].reshape(blocks.shape)
        moved[:] = blocks
        assert same_bits(decoded(type_, moved), expected)
    assert same_bits(decoded(type_, np.repeat(blocks, 2, 0)[::2]), expected)


@pytest.mark.parametrize("name", VALUES)
def test_grids_are_gguf_pys(name: str) -> None:
    other = getattr(gguf.quants, name.upper())
    other.init_grid()
    assert np.array_equal(np.array(VALUES[name])[digits(name)], other.grid.squeeze())


def decode_pair(w, q):
    for i in range(2):
        w[i] = float32(q[i])


def to_pair(w, q):
    for i in range(2):
        q[i] = nearest(min(max(w[i], -128), 127))


def to_pair_by_importance(w, importance, q):
    for i in range(2):
        q[i] = nearest(min(max(w[i] * importance[i], -128), 127))


@pytest.mark.parametrize(
    ("encoder", "takes", "needs"),
    [
        (None, False, False),
        (to_pair, False, False),
        ((to_pair, to_pair_by_importance), True, False),
        (to_pair_by_importance, True, True),
    ],
)
def test_encoders_tell_by_their_signatures_whether_they_use_an_importance(encoder: Any, takes: bool, needs: bool) -> None:
    own = block_type(f"PAIR {encoder}", 200, 2, Struct("q" / i8[2] * "codes"), dequantize=decode_pair, quantize=encoder)
    w = np.array([[1.0, -2.0, 3.0, 4.0]], np.float32)
    assert (own.has_encoder, own.takes_importance, own.needs_importance) == (bool(encoder), takes, needs)
    if encoder is None or needs:
        problem = "requires an importance matrix" if encoder else "can only be read: it has no encoder"
        with pytest.raises(TensorError, match=f"tensor 'w': .*{problem}"):
            own.encode(w, "w")
    else:
        assert np.array_equal(own.round_trip(w, "w"), w)
    with pytest.raises(ValueError, match="expected a type without a formula, found PAIR"):
        formula_of(own)(decode_pair)


# fmt: off
SEARCHING = ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"]
ON_GRIDS = ["IQ3_XXS", "IQ3_S", "IQ2_S", "IQ1_M"]  # which test_i_quants.py compares with C
ENCODERS = [
    "Q1_0", "Q2_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q8_1", "Q8_K", "TQ1_0", "TQ2_0", "MXFP4", "NVFP4",
    *SEARCHING,
]
# The largest weight that is compared. Scales of NVFP4 end at 448: llama.cpp stores weights far
# beyond as code 0. The sums of others overflow: llama.cpp stores zeros or NaN, we infinity.
LARGEST = {"NVFP4": 1e8} | dict.fromkeys(("Q3_K", "Q6_K", "IQ4_NL", "IQ4_XS"), 1e11)
# fmt: on


def awkward_weights() -> np.ndarray:
    """Returns float32 [blocks, 256] of what searches may trip over."""
    random = np.random.default_rng(1)
    normal = random.standard_normal((300, 256))
    outliers = np.where(random.random((300, 256)) < 0.004, 1, 1e-4)
    pruned = normal * (random.random((300, 256)) < 0.05)  # zeros of both signs
    by_group = np.repeat(random.standard_normal((300, 16)), 16, 1)
    parts = [
        np.zeros((1, 256)), -np.zeros((1, 256)), by_group, np.repeat(by_group[:, :1], 256, 1),
        np.abs(normal), -np.abs(normal), normal * 1e-3 + 5, normal * 1e-3 - 5, normal * 1e-4 + 5000, normal * 1e-4 - 5000,
        normal * outliers, outliers > 0.5, normal * (outliers > 0.5), pruned, np.where(pruned == 0, pruned, abs(pruned)),
        random.integers(-1, 2, (300, 256)), random.integers(-3, 4, (300, 256)),
        random.choice([-1.0, 1.0, 0.5], (300, 256)), random.standard_cauchy((300, 256)),
        normal * np.repeat(10.0 ** random.integers(-12, 1, (300, 16)), 16, 1),
        normal * 10.0 ** random.integers(-20, 2, (300, 256)), normal * 10.0 ** random.integers(-30, 20, (300, 1)),
        *(normal * 10.0**power for power in (-40, -38, -20, -15, -13, -9, -7, -6, 0, 3, 4, 9)),
    ]  # fmt: skip
    return some(np.concatenate(parts).astype(np.float32))


@pytest.mark.parametrize("name", ENCODERS)
def test_quantizes_as_llama_cpp(name: str) -> None:
    type_, weights = GGML_TYPES[name], awkward_weights().reshape(-1, GGML_TYPES[name].least_row)
    largest = np.abs(weights).max(1)
    has_inverse = (largest == 0) | (largest > 1e-38)  # in float32: without one, Q2_0 stores zeros as other codes than llama.cpp
    weights = weights[(largest < LARGEST.get(name, np.inf)) & (has_inverse | (name != "Q2_0"))]
    weights = weights[: len(weights) // 2 * 2]
    kept, expected = weights.copy(), llama_cpp.quantize(type_.code, weights, type_.block.sizeof())
    assert np.array_equal(encoded(name, weights), expected)
    assert np.array_equal(weights, kept)
    rows_of_two = weights.reshape(-1, 2 * type_.least_row)
    assert np.array_equal(encoded(name, rows_of_two), expected.reshape(len(rows_of_two), -1))


WITH_IMPORTANCE = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", *SEARCHING]


@pytest.mark.parametrize("name", WITH_IMPORTANCE)
def test_quantizes_by_importance_as_llama_cpp(name: str) -> None:
    weights, random = awkward_weights(), np.random.default_rng(2)
    weights = weights[np.abs(weights).max(1) < 1e9]
    weights = weights[: len(weights) // 2 * 2].reshape(-1, 512)
    for importance in some((np.exp(3 * random.standard_normal(512)), random.random(512)), 2):
        counts = importance.astype(np.float32)
        expected = llama_cpp.quantize(GGML_TYPES[name].code, weights, GGML_TYPES[name].nbytes([1, 512]), counts)
        differs = (encoded(name, weights, counts) != expected).any(1)
        assert differs.sum() <= (name == "Q2_K")  # a block of a negative scale, see below


@pytest.mark.parametrize(
    ("name", "by_importance"), [*((name, False) for name in ENCODERS), *((name, True) for name in WITH_IMPORTANCE)]
)
def test_a_row_is_encoded_alone_as_among_others(name: str, by_importance: bool) -> None:
    """The columns of a single block lie in memory like its rows, and are copied nevertheless."""
    row, random = 256 if by_importance else GGML_TYPES[name].least_row, np.random.default_rng(5)
    weights, importance = random.standard_normal((3, row), np.float32), random.random(row, np.float32)
    given, kept = importance if by_importance else None, importance.copy()
    rows = [encoded(name, weights[i : i + 1], given) for i in range(3)]
    assert np.array_equal(np.concatenate(rows), encoded(name, weights, given))
    assert np.array_equal(importance, kept)


@pytest.mark.parametrize("name", WITH_IMPORTANCE)
def test_columns_that_do_not_matter(name: str) -> None:
    """Few blocks differ from llama.cpp's and are no worse: it stores negative scales as 255."""
    type_, random = GGML_TYPES[name], np.random.default_rng(3)
    weights = random.standard_normal((4000 if FULL else 1000, 256)).astype(np.float32)
    weights[random.random(weights.shape) < 0.9] = 0
    importance = ((random.random(256) < 0.6) * random.random(256)).astype(np.float32)
    expected = llama_cpp.quantize(type_.code, weights, type_.nbytes([1, 256]), importance)
    found = encoded(name, weights, importance)
    other = (found != expected).any(1)
    assert other.sum() <= 8 * (name in ("Q2_K", "Q4_K"))
    for ours, theirs, block in zip(found[other], expected[other], weights[other], strict=True):
        errors = [(importance * (decoded(type_, one[None])[0] - block) ** 2).sum() for one in (ours, theirs)]
        assert errors[0] <= errors[1]


@pytest.mark.parametrize("name", WITH_IMPORTANCE)
def test_no_column_matters(name: str) -> None:
    """Of that the reference makes NaN in IQ4."""
    weights = np.random.default_rng(4).standard_normal((20, 256)).astype(np.float32)
    blocks = encoded(name, weights, np.zeros(256, np.float32)).reshape(-1, GGML_TYPES[name].block.sizeof())
    assert np.isfinite(decoded(GGML_TYPES[name], blocks)).all()


def test_the_encoders_are_all_there_are() -> None:
    assert {type_.name for type_ in BLOCK_TYPES if type_.needs_importance} == {"IQ2_XXS", "IQ2_XS", "IQ1_S"}
    assert {type_.name for type_ in BLOCK_TYPES} == {*ENCODERS, *ON_GRIDS, "IQ2_XXS", "IQ2_XS", "IQ1_S"}


@by_type
def test_tensors_without_numbers(type_: TensorType) -> None:
    for dims in ([2, 0], [0], [0, type_.least_row]):
        fields = type_.cut(BytesSource(b""), 0, dims, range(dims[0] if len(dims) > 1 else 1), range(0))
        assert type_.decode(fields, 0).size == 0
        if type_.name in ENCODERS + ON_GRIDS:
            assert type_.round_trip(torch.zeros(dims), "w").shape == tuple(dims)


WITH_HALVES = [type_.name for type_ in BLOCK_TYPES if any(field.subcon.number is f16 for field in type_.block.subcons)]


@pytest.mark.parametrize(
    ("name", "weight"),
    [
        *((name, np.nan) for name in ENCODERS + ON_GRIDS),
        *((name, 1e9) for name in ENCODERS + ON_GRIDS if name in (*WITH_HALVES, "IQ1_M")),
        *((name, -1e30) for name in ("Q3_K", "Q6_K", "IQ4_NL", "IQ4_XS")),  # whose sums overflow
        ("NVFP4", 2690),  # whose scales end at 448, and its codes at 6
    ],
)
def test_weights_that_cannot_be_quantized(name: str, weight: float) -> None:
    weights, is_alone = torch.ones(2, 512), np.isnan(weight) or name == "NVFP4"
    weights[1, -1] = weight
    problem = "NaN and infinities cannot be quantized" if np.isnan(weight) else "weights are too large for the scale of their"
    with pytest.raises(TensorError, match=problem) as caught:
        GGML_TYPES[name].encode(weights, "w")
    assert caught.value.index == (1, 511 if is_alone else 512 - GGML_TYPES[name].least_row)


def test_the_largest_weight_of_nvfp4() -> None:
    assert GGML_TYPES["NVFP4"].round_trip(torch.full((1, 64), -2688.0), "w").tolist() == [[-2688.0] * 64]


@pytest.mark.parametrize("name", [name for name in ENCODERS + ON_GRIDS if name not in ("MXFP4", "Q8_K")])
def test_weights_whose_scale_underflows_are_counted(name: str) -> None:
    """A weight is lost if all weights that share its scale become 0. Others are only rounded."""
    type_, length = GGML_TYPES[name], GGML_TYPES[name].least_row
    weights = np.random.default_rng(7).standard_normal((4, length), np.float32)
    weights[1] *= 1e-12
    weights[2, : length // 2] *= 1e-12
    weights[3] = weights[1] * (np.arange(length) % 2)
    lost = Counter[str]()
    importance = np.ones(length, np.float32) if type_.needs_importance else None
    blocks = type_.encode(weights, "w", importance=importance, lost=lost)["blocks"]
    group = 16 if name == "NVFP4" else length
    is_lost = ~decoded(type_, blocks).reshape(-1, group).any(1, keepdims=True) & (weights.reshape(-1, group) != 0)
    assert int(is_lost.sum()) >= 3 * length // 2
    assert dict(lost) == {"non-zero weights are stored as 0, because the scale of their block is 0": int(is_lost.sum())}


# The numbers in a block, as numpy writes its fields.
# Source: the block structs of llama.cpp's ggml-common.h, and the words that ggml-quants.c reads.
# fmt: off
WORDS = {
    "Q4_0": "u2,16u1", "Q4_1": "2u2,16u1", "Q5_0": "u2,u4,16u1", "Q5_1": "2u2,u4,16u1", "Q8_0": "u2,32u1", "Q8_1": "2u2,32u1",
    "Q1_0": "u2,16u1", "Q2_0": "u2,16u1", "Q2_K": "80u1,2u2", "Q3_K": "108u1,u2", "Q4_K": "2u2,140u1", "Q5_K": "2u2,172u1",
    "Q6_K": "208u1,u2", "Q8_K": "u4,256u1,16u2", "IQ2_XXS": "u2,16u4", "IQ2_XS": "33u2,8u1", "IQ2_S": "u2,80u1",
    "IQ3_XXS": "u2,64u1,8u4", "IQ3_S": "u2,108u1", "IQ1_S": "u2,32u1,8u2", "IQ1_M": "48u1,4u2", "IQ4_NL": "u2,16u1",
    "IQ4_XS": "2u2,132u1", "TQ1_0": "52u1,u2", "TQ2_0": "64u1,u2", "MXFP4": "17u1", "NVFP4": "36u1",
}
# fmt: on


def in_other_order(name: str, blocks: np.ndarray) -> np.ndarray:
    """Returns blocks u8 [n, size] with their numbers in the other byte order."""
    numbers = WORDS.get(name, f"u{blocks.shape[1]}")
    return blocks.view(np.dtype([("", numbers)])).byteswap().view(np.uint8)


@pytest.mark.parametrize("type_", [*GGML_TYPES], ids=str)
def test_big_endian_numbers_mean_the_same(type_: TensorType) -> None:
    little = np.random.default_rng(0).integers(0, 256, (BLOCKS, type_.nbytes([type_.least_row])), np.uint8)
    big = in_other_order(type_.name, little)
    dims = [BLOCKS // 2, 2 * type_.least_row]
    for order, stored in (("little", little.tobytes()), ("big", big.tobytes())):
        fields = type_.cut(BytesSource(stored), 0, dims, range(dims[0]), range(dims[1]), order)
        assert b"".join(type_.pieces(fields)) == little.tobytes()
        assert b"".join(type_.pieces(fields, "big")) == big.tobytes()
        payload, stream = type_.parse(Cursor(BytesSource(stored)), dims, order), io.BytesIO()
        type_.write(payload, stream, dims, order="big")
        assert stream.getvalue() == big.tobytes()


@pytest.mark.parametrize("name", ["F16", "BF16"])
def test_rounds_floats_as_llama_cpp(name: str) -> None:
    """Every half way between two of them, every NaN prefix, and random bits."""
    random = np.random.default_rng(1).integers(0, 1 << 32, 1 << 20, dtype=np.uint32)
    near = np.arange(1 << 16, dtype=np.uint32)[:, None] << 16 | np.array([0, 1, 0x1000, 0x8000], np.uint32)
    weights = np.concatenate((random, near.reshape(-1))).view(np.float32).reshape(-1, 256)
    expected = llama_cpp.quantize(GGML_TYPES[name].code, weights, 512).view(np.int16)
    found = GGML_TYPES[name].quantize(weights).view(np.int16)
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("name", ["I8", "I16", "I32"])
def test_integers_are_kept_or_refused(name: str) -> None:
    type_, greatest = GGML_TYPES[name], (1 << int(name[1:]) - 1) - 1
    numbers = torch.tensor([-1 - greatest, 0, greatest])
    assert np.array_equal(type_.round_trip(numbers, "w"), numbers)
    for refused, problem in (
        (numbers + 1, r" at \[2\]: an integer is too large for int"),
        (torch.ones(1), ": expected a signed integer dtype, uint8 or bool, found float32: exclude or convert the tensor"),
    ):
        with pytest.raises(TensorError, match=f"tensor 'w'{problem}"):
            type_.encode(refused, "w")
    with pytest.raises(TensorError, match=r"expected a float dtype, found int64: exclude or convert the tensor"):
        GGML_TYPES["Q8_0"].encode(torch.ones(1, 32).long(), "w")


def test_a_registered_type_is_read_and_written(tmp_path: Path) -> None:
    """In a process of its own: types stay registered."""
    (tmp_path / "own.py").write_text("""
import torch
from glft_schema import load_file, save_file
from glft_schema.tensor_types.ggml import register_type
from glft_schema.codec.structs import Struct
from glft_schema.codec.numbers import f16, i8
from glft_schema.scalar import float16, float32, nearest

def dequantize(w, d, qs):
    for i in range(16):
        w[i] = d[0] * float32(qs[i])

def quantize(w, d, qs):
    peak = float32(0)
    for i in range(16):
        peak = max(peak, abs(w[i]))
    scale = float16(peak / 100)
    d[0] = scale
    for i in range(16):
        qs[i] = min(max(nearest(w[i] / scale), -127), 127) if scale > 0.0 else 0

block = Struct("d" / f16[1] * "scale", "qs" / i8[16] * "codes")
register_type("Q8_X", 200, weights=16, block=block, dequantize=dequantize, quantize=quantize)
weights = torch.arange(-32.0, 32.0).reshape(2, 32)
for order in ("little", "big"):
    more = {"format": "gguf", "header": {"byte_order": order}, "rules": ()}
    written = save_file({"w": weights}, "own.gguf", schemes={"*": "q8_x"}, **more)
    assert (written[0].type.name, written[0].nbytes) == ("Q8_X", 72)
    assert (load_file("own.gguf")["w"] - weights).abs().max() < 0.2
for name, code in (("q8_x", 201), ("Q8_Y", 200)):
    try:
        register_type(name, code, weights=16, block=block, dequantize=dequantize)
    except ValueError as error:
        assert str(error) == "expected an unused code and an unused name, found one used by 200 Q8_X", error
    else:
        raise AssertionError(name)
""")
    done = forked.run("-c", "import runpy; runpy.run_path('own.py')", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def returns(d):
    return d


PAIR = {"code": 201, "weights": 2, "dequantize": decode_pair}


@pytest.mark.parametrize(
    ("name", "given", "problem"),
    [
        ("q4_0", {}, "expected an unused code and an unused name, found one used by 2 Q4_0"),
        ("Q8_Y", {"code": 2}, "expected an unused code and an unused name, found one used by 2 Q4_0"),
        ("Q8_per_channel", {}, "expected an unused type name, found 'Q8_per_channel'"),
        ("q8_PER_channel", {}, "expected an unused type name, found 'q8_PER_channel'"),
        ("Q8_Y", {"code": -3}, "expected a non-negative code, found -3"),
        ("Q8_Y", {"code": "3"}, "expected a non-negative code, found '3'"),
        ("Q8_Y", {"weights": 0}, "Q8_Y: expected at least one weight per block, found 0"),
        ("Q8_Y", {"dequantize": returns}, "expected a formula of (w, q), which writes w, found (d)"),
        ("Q8_Y", {"quantize": returns}, "expected an encoder of (w, q), which writes all fields, found (d)"),
    ],
)
def test_types_that_are_not_registered(name: str, given: Any, problem: str) -> None:
    known = list(GGML_TYPES)
    for _ in range(2):  # the name stays free
        with pytest.raises(ValueError, match=f"^{re.escape(problem)}$"):
            register_type(name, block=Struct("q" / i8[2] * "codes"), **{**PAIR, **given})
    assert list(GGML_TYPES) == known


@pytest.mark.full
def test_tables_are_the_same_whoever_asks_first() -> None:
    """In its own process: cached tables must not be made on their first user's default device."""
    code = """
import torch
from glft_schema.tensor_types import on_torch
from glft_schema.tensor_types.ggml import GGML_TYPES

for type_ in GGML_TYPES:
    if type_.block:
        fields = {"blocks": torch.zeros(2, type_.block.sizeof(), dtype=torch.uint8)}
        with torch.device("meta"):
            first = on_torch.decode(type_, fields, type_.least_row, out=torch.empty(2, type_.least_row, device="cpu"))
        assert torch.equal(first, on_torch.decode(type_, fields, type_.least_row)), type_
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
