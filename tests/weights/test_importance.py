"""Importance matrices: read from llama.cpp's files and applied as llama.cpp does."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

import glft_schema
from glft_schema import FormatError, TensorError, convert, read_importance, save_file
from glft_schema.errors import OptionError, TiedWarning
from glft_schema.formats.imatrix import OldImatrix, is_old_matrix
from glft_schema.tensor_types import chunks
from glft_schema.tensor_types.ggml import GGML_TYPES
from glft_schema.weights import ImportanceMatrix
from glft_schema.weights.importance import ColumnSums
from tests.oracles import llama_cpp
from tests.oracles.peers import gguf
from tests.tools.command_line import assert_refused
from tests.tools.command_line import in_this_process as glft
from tests.tools.encoding import encoded

SUMS = np.arange(1, 513, dtype=np.float32)


def old_file(path: Path, *entries: tuple[bytes, int, np.ndarray]) -> Path:
    """Writes the legacy format of llama-imatrix."""
    stored = struct.pack("<i", len(entries))
    for name, calls, sums in entries:
        stored += struct.pack("<i", len(name)) + name + struct.pack("<ii", calls, len(sums)) + sums.astype("<f4").tobytes()
    path.write_bytes(stored + struct.pack("<ii", 7, 8) + b"text.txt")
    return path


def new_file(path: Path, kind: str, tensors: dict[str, np.ndarray]) -> Path:
    """Writes the GGUF format of llama-imatrix with gguf-py."""
    writer = gguf.GGUFWriter(path, "")
    writer.kv_data[0].clear()  # llama-imatrix writes no architecture
    writer.add_type(kind)
    writer.add_array("imatrix.datasets", ["text.txt"])
    writer.add_uint32("imatrix.chunk_count", 7)
    for name, numbers in tensors.items():
        writer.add_tensor(name, numbers.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_reads_old_files(tmp_path: Path) -> None:
    path = old_file(tmp_path / "m.dat", (b"a", 4, SUMS), (b"b", 0, SUMS[:3]))
    found = read_importance(path)
    assert found.keys() == {"a", "b"}
    assert np.array_equal(found["a"], SUMS / 4)
    assert np.array_equal(found["b"], np.ones(3))


def test_reads_gguf_files(tmp_path: Path) -> None:
    experts = SUMS.reshape(2, 256)
    tensors = {
        "a.in_sum2": SUMS[:256].reshape(1, -1),
        "a.counts": np.array([[8]]),
        "e.in_sum2": experts,
        "e.counts": np.array([[0], [2]]),
        "more": SUMS,
    }
    found = read_importance(new_file(tmp_path / "m.gguf", "imatrix", tensors))
    assert found.keys() == {"a", "e"}
    assert np.array_equal(found["a"], SUMS[:256] / 8)
    assert np.array_equal(found["e"], np.stack((np.ones(256), SUMS[256:] / 2)))


REFUSED = [
    ("model", {"a": SUMS}, "metadata -> general.type: expected 'imatrix', found 'model'"),
    ("imatrix", {"a.in_sum2": SUMS}, "expected a matching tensor 'a.counts', found none (tensor 'a.in_sum2')"),
    ("imatrix", {"a": SUMS}, "expected the importance of at least one matrix, found none"),
    (
        "imatrix",
        {"a.in_sum2": SUMS, "a.counts": np.ones(3)},
        "expected a multiple of 3 sums (the number of matrices), found 512 (tensor 'a.in_sum2')",
    ),
]


@pytest.mark.parametrize(("kind", "tensors", "text"), REFUSED)
def test_other_gguf_files_are_refused(kind: str, tensors: dict[str, np.ndarray], text: str, tmp_path: Path) -> None:
    path = new_file(tmp_path / "m.gguf", kind, tensors)
    with pytest.raises(FormatError) as caught:
        read_importance(path)
    assert str(caught.value) == f"{text} in {path}"


def test_old_files_are_refused_where_they_end_early(tmp_path: Path) -> None:
    path = old_file(tmp_path / "m.dat", (b"a", 4, SUMS[:5]), (b"b", 1, SUMS[:2]))
    stored = path.read_bytes()
    whole = len(stored) - 16
    for end in range(len(stored)):
        path.write_bytes(stored[:end])
        if end in (whole, whole + 4):  # the number of chunks and the text may be missing
            assert read_importance(path).keys() == {"a", "b"}
        else:
            with pytest.raises(FormatError, match=rf"expected .*, found .* in {path}"):
                read_importance(path)


def test_old_files_of_nonsense(tmp_path: Path) -> None:
    path = tmp_path / "m.dat"
    for stored, text in (
        (bytes(4), "n: expected at least 1, found 0"),
        (struct.pack("<2is2i", 1, 1, b"a", 4, 0), "entries -> 0 -> n: expected at least 1, found 0"),
        (b"\xff\xff\xff\xff then 18 more bytes.", "n: expected at most 1 (bytes left: 20, at least 12 each), found 4294967295"),
        (b"\x01\0\0\0\xff\xff\xff\xff not much more", "entries -> 0 -> name: expected 4294967295 bytes, found 14"),
    ):
        path.write_bytes(stored)
        with pytest.raises(FormatError) as caught:
            read_importance(path)
        assert caught.value.text == text
    with pytest.raises(FormatError, match="entries -> 1 -> name: expected each name once, found the name of row 0 again"):
        read_importance(old_file(path, (b"a", 4, SUMS[:5]), (b"a", 1, SUMS[:2])))


def gguf_file(size: int, datasets: list[bytes], chunks: int, *entries: tuple[bytes, list[int], list[float]]) -> bytes:
    """Returns the GGUF form as llama-imatrix writes it: name, counts and sums of each matrix."""

    def text(stored: bytes) -> bytes:
        return struct.pack("<Q", len(stored)) + stored

    stored = b"GGUF" + struct.pack("<IQQ", 3, 2 * len(entries), 4)
    stored += text(b"general.type") + struct.pack("<I", 8) + text(b"imatrix")
    stored += text(b"imatrix.datasets") + struct.pack("<IIQ", 9, 8, len(datasets)) + b"".join(map(text, datasets))
    stored += text(b"imatrix.chunk_count") + struct.pack("<II", 4, chunks)
    stored += text(b"imatrix.chunk_size") + struct.pack("<II", 4, size)
    payloads = b""
    for name, counts, sums in entries:
        for suffix, columns, numbers in ((b".in_sum2", len(sums) // len(counts), sums), (b".counts", 1, counts)):
            dims = [columns, len(counts)] if len(counts) > 1 else [columns]  # ggml drops dims of 1 at the end
            stored += text(name + suffix) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, 0, len(payloads))
            payload = struct.pack(f"<{len(numbers)}f", *numbers)
            payloads += payload + bytes(-len(payload) % 32)
    return stored + bytes(-len(stored) % 32) + payloads


def test_old_files_become_gguf_and_the_same_bytes_again(tmp_path: Path) -> None:
    old, new, again = tmp_path / "m.dat", tmp_path / "m.gguf", tmp_path / "again.DAT"
    odd = np.abs(np.sin(SUMS)) / 3
    stored = old_file(old, (b"b.weight", 7, odd), (b"a.weight", 3, SUMS[:3])).read_bytes()
    assert glft("imatrix", old, new).stdout == f"{new}: 2 matrices, 7 chunks, {new.stat().st_size:,} bytes\n"
    entries = (b"b.weight", [7 * 512], [*(odd * 512)]), (b"a.weight", [3 * 512], [512.0, 1024.0, 1536.0])
    assert new.read_bytes() == gguf_file(512, [b"text.txt"], 7, *entries)
    contents = llama_cpp.contents(new.read_bytes())
    assert contents is not None
    assert [name for name, *_ in contents[1]] == [
        b"b.weight.in_sum2",
        b"b.weight.counts",
        b"a.weight.in_sum2",
        b"a.weight.counts",
    ]
    assert glft("imatrix", new, again).returncode == 0
    assert again.read_bytes() == stored
    assert all(np.array_equal(mean, read_importance(old)[name]) for name, mean in read_importance(new).items())
    glft("imatrix", old, new, "--chunk-size", 100)
    entries = (b"b.weight", [700], [*(odd * np.float32(100))]), (b"a.weight", [300], [100.0, 200.0, 300.0])
    assert new.read_bytes() == gguf_file(100, [b"text.txt"], 7, *entries)


def test_the_declaration_of_old_files_is_lossless(tmp_path: Path) -> None:
    path = old_file(tmp_path / "m.dat", (b"\xff", -1, SUMS[:3]))
    stored = path.read_bytes()[:-8] + b"\xff\xfe123456"  # no UTF-8
    for part in (stored, stored + b"more", stored[:-12], stored[:-16]):
        assert OldImatrix.build(OldImatrix.parse(part)) == part
    with pytest.raises(FormatError, match="n: expected at least 1, found 0"):
        OldImatrix.build({"entries": [], "chunks": None, "dataset": None})


def test_old_files_lose_what_they_cannot_hold(tmp_path: Path) -> None:
    experts = (b"e", [0, 512, 1025], [5.0, 6.0, 512.0, 1024.0, 1025.0, 2050.0])
    unused = (b"u", [0, 0], [1.0, 2.0])
    new, old, again = tmp_path / "m.gguf", tmp_path / "m.dat", tmp_path / "again.gguf"
    new.write_bytes(gguf_file(512, [b"a", b"b"], 2, experts, unused))
    ImportanceMatrix.open(new).save(again)
    assert again.read_bytes() == new.read_bytes()
    assert glft("imatrix", new, old).stdout.endswith("\nleft out: u has no data\n")
    # 3 chunks, the last of 1 token; the expert without data has means of 1
    sums = struct.pack("<6f", 3, 3, 3, 6, 3, 6)
    expected = struct.pack("<2is2i", 1, 1, b"e", 3, 6) + sums + struct.pack("<2is", 2, 1, b"b")
    assert old.read_bytes() == expected
    new.write_bytes(gguf_file(512, [], 0, unused))
    assert_refused(glft("imatrix", new, old), "expected a matrix with data, found none")
    assert_refused(glft("imatrix", new, tmp_path / "m.bin"), "expected a file that ends in .gguf or .dat, found")
    assert_refused(glft("imatrix", old, old), "the output would overwrite the input")


def test_matrices_are_merged_as_by_llama_imatrix(tmp_path: Path) -> None:
    one, two, three, out = (tmp_path / name for name in ("1.gguf", "2.gguf", "3.dat", "out.gguf"))
    one.write_bytes(gguf_file(512, [b"one"], 2, (b"b", [1024], [1.0, 2.0]), (b"e", [0, 512], [1.0, 2.0, 3.0, 4.0])))
    two.write_bytes(gguf_file(256, [b"two"], 3, (b"e", [5, 6], [0.5, 0.5, 0.5, 0.5]), (b"a", [9], [7.0])))
    old_file(three, (b"e", 4, SUMS[:4]), (b"b", 7, SUMS[:2]))
    assert glft("imatrix", one, two, three, out).returncode == 0
    assert out.read_bytes() == gguf_file(
        512,
        [b"one", b"two", b"text.txt"],
        10,  # 2 + 3 / 2 + 7, rounded down
        (b"a", [9], [7.0]),
        (b"b", [1024 + 7 * 512], [1.0 + 512, 2.0 + 2 * 512]),
        (b"e", [5 + 4 * 512, 512 + 6 + 4 * 512], [1.5 + 512, 2.5 + 2 * 512, 3.5 + 3 * 512, 4.5 + 4 * 512]),
    )
    assert_refused(glft("imatrix", one, tmp_path / "none", out), "none: No such file or directory")
    two.write_bytes(gguf_file(512, [], 1, (b"e", [1], [1.0])))
    problem = "expected importance matrices of one model, found [2, 2] and [1, 1] sums for 'e'"
    assert_refused(glft("imatrix", one, two, out), problem)
    with pytest.raises(OptionError, match="expected at least one importance matrix, found none"):
        ImportanceMatrix.merge([])
    with pytest.raises(OptionError, match="expected a chunk size of at least 1 token, found 0"):
        ImportanceMatrix.open(one, chunk_size=0)


def test_a_chunk_size_that_is_no_number(tmp_path: Path) -> None:
    """llama.cpp's default is used for it."""
    sums = {"w.in_sum2": torch.ones(1, 4), "w.counts": torch.ones(1, 1)}
    typed = glft_schema.Typed
    keys = {"general.type": "imatrix", "imatrix.chunk_size": typed(True, "bool"), "imatrix.chunk_count": typed("3", "string")}
    glft_schema.save_file(sums, tmp_path / "m.gguf", keys, rules=[])
    matrix = ImportanceMatrix.open(tmp_path / "m.gguf")
    assert (matrix.chunk_size, matrix.chunk_count) == (512, 0)


def test_names_that_gguf_cannot_hold_are_refused(tmp_path: Path) -> None:
    old_file(tmp_path / "m.dat", (b"n" * 56, 1, SUMS[:1]))
    done = glft("imatrix", tmp_path / "m.dat", tmp_path / "m.gguf")
    assert_refused(done, "tensor_infos -> 0 -> name: expected at most 63 bytes, found")
    assert not (tmp_path / "m.gguf").exists()


def test_statistics_are_those_of_llama_imatrix(tmp_path: Path) -> None:
    """Against the formulas of its C++, in numpy's float32."""
    rng = np.random.default_rng(3)
    numbers = {f"blk.{layer}.attn_q.weight": rng.gamma(0.3, size=96).astype(np.float32) for layer in (0, 1, 3)}
    numbers["blk.1.attn_q.weight"][:20] = 0
    numbers["output"] = numbers["blk.0.attn_q.weight"][:1]
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_file(512, [], 2, *((name.encode(), [1024], [*(sums * 1024)]) for name, sums in numbers.items())))
    rows = {row.name: row for row in ImportanceMatrix.open(path).statistics()}
    for name, v in numbers.items():
        row, total, mean, one = rows[name], v.sum(), v.sum() / np.float32(v.size), np.float32(1)
        std = np.sqrt(max((v * v).sum() / v.size - mean * mean, np.float32(0)))
        shares = v[v > 0] / total
        entropy = -(shares * np.log2(shares)).sum()
        expected = {
            "n": v.size,
            "total": total,
            "min": v.min(),
            "max": v.max(),
            "mean": mean,
            "std": std,
            "active": one - (np.abs(v) <= 1e-5).sum() / v.size,
            "entropy": entropy,
            "normalized_entropy": entropy / np.log2(v.size) if v.size > 1 else 0,
            "z_score": ((v - mean) / std > 1).sum() / v.size if std > 0 else 0,
        }
        assert {field: getattr(row, field) for field in expected} == pytest.approx(expected, rel=1e-5, abs=1e-6), name
    before, after = numbers["blk.0.attn_q.weight"], numbers["blk.1.attn_q.weight"]
    cosine = before @ after / np.sqrt((before @ before) * (after @ after))
    assert rows["blk.1.attn_q.weight"].cosine == pytest.approx(cosine, rel=1e-5)
    assert [rows[name].cosine for name in ("blk.0.attn_q.weight", "blk.3.attn_q.weight", "output")] == [None] * 3
    assert [(row.tensor, row.layer) for row in rows.values()][-1] == ("output", None)
    totals = [row.total for row in rows.values() if row.tensor == "attn_q"]
    assert totals == sorted(totals, reverse=True)


def test_statistics_of_experts_and_zeros(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    experts = (b"blk.1.e.weight", [0, 4], [9.0, 9.0, 4.0, 12.0])
    unused, zeros = (b"u", [0], [1.0]), (b"blk.0.e.weight", [4, 4], [0.0] * 4)
    path.write_bytes(gguf_file(512, [], 2, experts, unused, zeros))
    first, second = ImportanceMatrix.open(path).statistics()
    assert (first.name, first.n, first.total, first.std, first.entropy, first.cosine) == (
        "blk.1.e.weight",
        *(2, 4.0, 1.0, pytest.approx(0.811278), None),  # the entropy of 1/4 and 3/4
    )
    assert second[1:] == (0, 4, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, None)


def test_sums_that_overflow_and_counts_that_are_none(tmp_path: Path) -> None:
    """Without warnings of numpy. A NaN as a count is none."""
    large = np.full(4, 3e38, np.float32)
    old, new = tmp_path / "m.dat", tmp_path / "m.gguf"
    matrix = ImportanceMatrix.open(old_file(old, (b"a", 1, large)))
    assert np.array_equal(matrix.columns["a"].sums, np.full((1, 4), np.inf, np.float32))
    ImportanceMatrix({"a": ColumnSums(large[None], np.array([1]))}, chunk_count=1).save(old)
    assert old.read_bytes()[17:33] == large.astype(np.float32).tobytes()
    new_file(new, "imatrix", {"a.in_sum2": large, "a.counts": np.ones(1), "b.in_sum2": large, "b.counts": np.full(1, np.nan)})
    matrix = ImportanceMatrix.open(new)
    assert np.array_equal(matrix.importance()["b"], np.ones(4))
    merged = ImportanceMatrix.merge([matrix, matrix])
    assert np.array_equal(merged.importance()["a"], np.full(4, np.inf))
    (row,) = merged.statistics()
    assert (row.name, row.total, row.entropy) == ("a", np.inf, 0)


def test_inspect_shows_statistics_of_both_forms(tmp_path: Path) -> None:
    old, new = old_file(tmp_path / "m.dat", (b"blk.0.attn_q.weight", 1, SUMS), (b"blk.1.attn_q.weight", 1, SUMS * 2)), "m.gguf"
    glft("imatrix", old, tmp_path / new)
    assert_refused(
        glft("verify", old), "imatrix.dat has no rules to verify: use glft inspect, or convert it with glft imatrix IN OUT.gguf"
    )
    of_old, of_new = glft("inspect", old), glft("inspect", tmp_path / new)
    assert (of_old.returncode, of_new.returncode) == (0, 0)
    about, _, *table = of_old.stdout.splitlines()
    assert about == f"{old}: imatrix.dat, {old.stat().st_size:,} bytes, 2 matrices, 7 chunks of text.txt"
    names = "tensor layer sum min max mean std active n entropy normalized z > 1 cosine"
    assert table[0].split() == names.split()
    row = "attn_q 1 262656.00 2.0000 1024.0000 513.0000 295.6028 100.00% 512 8.7227 96.92% 21.09% 1.0000"
    assert table[1].split() == row.split()
    assert of_new.stdout.splitlines()[-3:] == table
    assert "imatrix.chunk_size" in of_new.stdout
    data, other = (json.loads(glft("inspect", path, "--json").stdout) for path in (old, tmp_path / new))
    assert data["statistics"] == other["statistics"]
    assert (data["format"], data["datasets"], data["chunks"]) == ("imatrix.dat", ["text.txt"], 7)
    assert (data["statistics"][1]["name"], data["statistics"][1]["cosine"]) == ("blk.0.attn_q.weight", None)
    new_file(tmp_path / new, "imatrix", {"a.in_sum2": SUMS})
    problem = "expected a matching tensor 'a.counts', found none (tensor 'a.in_sum2')"
    assert glft("inspect", tmp_path / new).stdout.splitlines()[-2:] == ["", f"no statistics: {problem}"]
    assert json.loads(glft("inspect", tmp_path / new, "--json").stdout)["no_statistics"] == problem
    new_file(tmp_path / new, "model", {"a.in_sum2": SUMS})
    assert "no statistics" not in glft("inspect", tmp_path / new).stdout


def test_other_files_are_no_old_matrices(tmp_path: Path) -> None:
    path, stored = tmp_path / "x", old_file(tmp_path / "m.dat", (b"name", 1, SUMS[:9])).read_bytes()
    assert is_old_matrix(tmp_path / "m.dat")
    for other in (
        b"",
        stored[:7],
        b"GGUF" + stored[4:],
        bytes(4) + stored[4:],
        b"\xff" + stored[1:],
        stored[:8] + b"\x01" + stored[9:],
    ):
        path.write_bytes(other)
        assert not is_old_matrix(path)
        assert_refused(glft("inspect", path), "header")


def importance_of(columns: int) -> torch.Tensor:
    return torch.rand(columns, generator=torch.Generator().manual_seed(1)) ** 4


def by_c(name: str, weights: torch.Tensor, importance: torch.Tensor) -> np.ndarray:
    type_ = GGML_TYPES[name]
    return llama_cpp.quantize(type_.code, weights.numpy(), type_.nbytes([1, weights.shape[1]]), importance.numpy())


def blocks_in(path: Path, name: str) -> np.ndarray:
    with glft_schema.open(path) as file:
        return file.tensors[name].payload["blocks"].reshape(5, -1).copy()


WEIGHTS = torch.randn(2, 5, 512, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", ["q4_1", "q6_k", "iq4_nl", "iq2_xxs"])
def test_a_column_counts_in_each_row_of_its_matrix(name: str) -> None:
    one, two = importance_of(1024).view(2, 512)
    type_, flat = GGML_TYPES[name], WEIGHTS.view(10, 512)
    expected = by_c(name, flat, one)
    assert np.array_equal(type_.encode(flat, "w", importance=one)["blocks"], expected)
    halves = type_.encode(WEIGHTS, "w", importance=torch.stack((one, two)))["blocks"].reshape(10, -1)
    assert np.array_equal(halves[:5], expected[:5])
    assert np.array_equal(halves[5:], by_c(name, flat[5:].contiguous(), two))


def test_types_that_make_no_use_of_it_pass_it_over() -> None:
    for name in ("q8_0", "f16", "mxfp4"):
        type_ = GGML_TYPES[name]
        expected = type_.encode(WEIGHTS, "w")
        weighted = type_.encode(WEIGHTS, "w", importance=importance_of(512))
        assert all(np.array_equal(field, expected[key]) for key, field in weighted.items())


def test_an_importance_that_is_none() -> None:
    weights, type_ = WEIGHTS[0], GGML_TYPES["Q4_K"]
    low, wide = importance_of(512), importance_of(512).double()
    low[7], wide[9] = -1, 1e300
    held = "expected importance values that are finite and not negative"
    for importance, text in (
        (importance_of(500), "expected 512 importance values, one per column, found 500"),
        (torch.full((512,), float("nan")), f"{held}, found nan for column 0"),
        (low, f"{held}, found -1 for column 7"),
        (wide, rf"{held}, found 1e\+300 for column 9"),
        ([1.0] * 512, "expected the importance as a tensor or an array of real numbers, found "),
        (torch.ones(512, dtype=torch.complex64), "expected the importance as a tensor or an array of real numbers, found "),
        (torch.ones(512).to_sparse(), r"importance: expected a dense tensor with values in memory, found a Tensor \(torch"),
        (torch.ones(512, device="meta"), r"importance: expected a dense tensor with values in memory, found a Tensor \(meta\)"),
        (np.ma.masked_less(np.arange(512), 3), "importance: expected an array without masked elements: fill them"),
    ):
        for name in ("Q4_K", "Q8_0"):  # ignores it, but checks it
            with pytest.raises(TensorError, match=text):
                GGML_TYPES[name].encode(weights, "w", importance=importance)
    with pytest.raises(TensorError, match="expected 512 or 1024 importance values, one per column, found 500"):
        type_.encode(WEIGHTS, "w", importance=importance_of(500))
    with pytest.raises(TensorError, match=r"expected importance values \[2, 512\], found \[512, 2\]"):
        type_.encode(WEIGHTS, "w", importance=torch.ones(2, 512).T)
    with pytest.raises(TensorError, match="IQ2_XXS requires an importance matrix"):
        GGML_TYPES["IQ2_XXS"].encode(weights, "w")


@pytest.mark.parametrize(
    ("sums", "counts", "found"),
    [
        (torch.ones(2, 512), torch.ones(3), "[2, 512] and [3]"),
        (torch.ones(2, 512), torch.ones(2, 1), "[2, 512] and [2, 1]"),
        (torch.ones(512), torch.ones(1), "[512] and [1]"),
        (torch.ones(2, 512), 1, "[2, 512] and []"),
    ],
)
def test_counts_that_do_not_fit_the_sums(sums: torch.Tensor, counts: object, found: str) -> None:
    problem = f"'w': expected sums [matrices, columns] and a count of each matrix, found {found}"
    with pytest.raises(OptionError, match=f"^{re.escape(problem)}$"):
        ImportanceMatrix({"w": ColumnSums(sums, counts)})  # type: ignore[arg-type]


def test_tensors_without_numbers() -> None:
    for shape in ((3, 0), (0, 512), (2, 0, 512)):
        assert GGML_TYPES["Q4_K"].encode(torch.zeros(shape), "w", importance=torch.ones(shape[-1]))["blocks"].size == 0


def test_sums_that_overflow_are_no_zeros() -> None:
    weights = torch.ones(1, 512)
    weights[0, -1] = -1e30
    for type_ in GGML_TYPES:
        if type_.takes_importance:
            with pytest.raises(TensorError, match="weights are too large for the scale of their block"):
                type_.encode(weights, "w", importance=torch.ones(512))


def test_files_are_written_with_it(tmp_path: Path) -> None:
    tensors = {"a": WEIGHTS[0].clone(), "b": WEIGHTS[1].clone(), "v": torch.ones(3)}
    save_file(tensors, tmp_path / "m.glft")
    importance = {"a": importance_of(512), "other": importance_of(3)}
    schemes = {"a": "iq2_xxs", "b": "q4_k"}
    convert(tmp_path / "m.glft", tmp_path / "m.gguf", schemes=schemes, importance=importance, rules=[])
    assert np.array_equal(blocks_in(tmp_path / "m.gguf", "a"), by_c("iq2_xxs", tensors["a"], importance["a"]))
    unweighted = GGML_TYPES["Q4_K"].encode(tensors["b"], "b")["blocks"]
    assert np.array_equal(blocks_in(tmp_path / "m.gguf", "b"), unweighted.reshape(5, -1))
    (_, b, _) = save_file(tensors, tmp_path / "n.gguf", schemes={"[ab]": "iq2_xxs"}, importance=importance, rules=[])
    assert (str(b.type), b.note) == ("F32", "not iq2_xxs: it has no importance matrix")


def test_what_needs_it_says_so(tmp_path: Path) -> None:
    tensors, path = {"a": WEIGHTS[0].clone(), "b": WEIGHTS[1].clone()}, tmp_path / "m.gguf"
    given = {"a": importance_of(512)}
    for schemes, importance, text in (
        ({"*": "iq1_s"}, None, "iq1_s requires an importance matrix, found none for '*'; to measure one: glft"),
        ({"b": "iq1_s"}, given, "iq1_s requires an importance matrix, found none for 'b'; the given matrix lacks it"),
        (
            {"*": "q8_0"},
            {"c": importance_of(512)},
            "the importance matrix covers none of these tensors (it has 1 other tensor, such as 'c')",
        ),
        ({"*": "q8_0"}, importance_of(512), "expected a mapping of tensor names to importance tensors, found tensor"),
    ):
        with pytest.raises(OptionError, match=re.escape(text)):
            save_file(tensors, path, schemes=schemes, rules=[], importance=importance)
    with pytest.raises(TensorError, match="tensor 'a': expected 512 importance values, one per column, found 3"):
        save_file(tensors, path, importance={"a": importance_of(3)}, rules=[])


def test_tied_tensors_of_another_importance_are_stored_apart(tmp_path: Path) -> None:
    one, path = WEIGHTS[0].clone(), tmp_path / "m.gguf"
    first, second = importance_of(512), torch.ones(512)
    more = {"schemes": {"*": "q4_k"}, "rules": []}
    apart = "tensor 'b' is tied to 'a', which has a different importance, so it is stored separately"
    with pytest.warns(TiedWarning, match=apart):
        a, b, c = save_file(
            {"a": one, "b": one, "c": one}, path, importance={"a": first, "b": second, "c": first.clone()}, **more
        )
    assert (a.alias_of, b.alias_of, c.alias_of) == (None, None, "a")
    assert np.array_equal(blocks_in(path, "b"), by_c("q4_k", one, second))
    _, b = save_file({"a": one, "b": one}, path, importance={"b": second}, schemes={"*": "q8_0"}, rules=[])
    assert b.alias_of == "a"


def test_the_command_line_takes_one(tmp_path: Path) -> None:
    weights, sums = WEIGHTS[0].clone(), np.abs(np.sin(SUMS))
    save_file({"a": weights}, tmp_path / "m.glft")
    imatrix = old_file(tmp_path / "i.dat", (b"a", 1, sums))
    options = ["--scheme", "iq2_xxs", "--imatrix", str(imatrix)]
    done = glft("convert", str(tmp_path / "m.glft"), str(tmp_path / "m.gguf"), *options)
    assert done.returncode == 0, done.stderr
    assert np.array_equal(blocks_in(tmp_path / "m.gguf", "a"), by_c("iq2_xxs", weights, torch.from_numpy(sums)))
    safetensors.torch.save_file({"a": weights}, tmp_path / "m.safetensors")
    short = old_file(tmp_path / "short.dat", (b"a", 1, sums[:5])).read_bytes()
    for name, stored, problem in (
        ("m.safetensors", b"GGUF", "i.dat: header"),
        ("m.safetensors", b"PK", "i.dat: n: expected 4 bytes, found 2"),
        ("m.safetensors", short, "i.dat: tensor 'a': expected 512 importance values, one per column, found 5"),
        ("m.glft", short, "i.dat: tensor 'a': expected 512 importance values, one per column, found 5"),
    ):
        imatrix.write_bytes(stored)
        done = glft("convert", str(tmp_path / name), str(tmp_path / "m.gguf"), *options)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert problem in done.stderr


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_what_is_searched_needs_no_gradient(mode: type) -> None:
    weights = torch.randn(7, 512, generator=torch.Generator().manual_seed(0))
    expected = encoded("Q4_K", weights.numpy())
    with mode():
        given = weights.clone().requires_grad_(mode is torch.enable_grad)
        assert np.array_equal(GGML_TYPES["Q4_K"].encode(given, "w")["blocks"], expected)
        importance = torch.rand(512).requires_grad_(mode is torch.enable_grad)
        weighted = GGML_TYPES["Q4_K"].encode(given, "w", importance=importance)["blocks"]
    assert np.array_equal(weighted, encoded("Q4_K", weights.numpy(), importance.detach().numpy()))


def test_a_fault_is_told_with_its_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK", 512)
    weights = torch.randn(40, 256)
    weights[33, 7] = float("nan")
    for type_ in ("Q4_K", "IQ4_NL"):
        with pytest.raises(TensorError, match="NaN and infinities cannot be quantized") as caught:
            GGML_TYPES[type_].encode(weights, "w")
        assert caught.value.index == (33, 7)
