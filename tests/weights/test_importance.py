"""Importance matrices: read from llama.cpp's files and applied as llama.cpp does."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import glft_schema
from glft_schema import FormatError, TensorError, convert, read_importance, save_file
from glft_schema.errors import OptionError, TiedWarning
from glft_schema.formats.imatrix import OldImatrix
from glft_schema.tensor_types.ggml import GGML_TYPES
from glft_schema.weights import ImportanceMatrix
from glft_schema.weights.importance import ColumnSums
from tests.oracles import llama_cpp
from tests.tools.command_line import assert_refused
from tests.tools.command_line import in_this_process as glft
from tests.tools.encoding import encoded

SUMS = np.arange(1, 513, dtype=np.float32)


def old(*entries: tuple[str, int, Any]) -> bytes:
    """Returns the legacy form of llama-imatrix: name, calls and sums of each matrix."""
    stored = struct.pack("<i", len(entries))
    for name, calls, sums in entries:
        stored += struct.pack("<i", len(name)) + name.encode() + struct.pack(f"<ii{len(sums)}f", calls, len(sums), *sums)
    return stored + struct.pack("<ii", 7, 8) + b"text.txt"


def old_file(path: Path, *entries: tuple[str, int, Any]) -> Path:
    path.write_bytes(old(*entries))
    return path


def gguf_file(size: int, datasets: list[str], chunks: int, *entries: tuple[str, list[int], Any]) -> bytes:
    """Returns the GGUF form as llama-imatrix writes it: name, counts and sums of each matrix."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    stored = b"GGUF" + struct.pack("<IQQ", 3, 2 * len(entries), 4)
    stored += text("general.type") + struct.pack("<I", 8) + text("imatrix")
    stored += text("imatrix.datasets") + struct.pack("<IIQ", 9, 8, len(datasets)) + b"".join(map(text, datasets))
    stored += text("imatrix.chunk_count") + struct.pack("<II", 4, chunks)
    stored += text("imatrix.chunk_size") + struct.pack("<II", 4, size)
    payloads = b""
    for name, counts, sums in entries:
        for suffix, columns, numbers in ((".in_sum2", len(sums) // len(counts), sums), (".counts", 1, counts)):
            dims = [columns, len(counts)] if len(counts) > 1 else [columns]  # ggml drops dims of 1 at the end
            stored += text(name + suffix) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, 0, len(payloads))
            payload = struct.pack(f"<{len(numbers)}f", *numbers)
            payloads += payload + bytes(-len(payload) % 32)
    return stored + bytes(-len(stored) % 32) + payloads


def test_reads_old_files(tmp_path: Path) -> None:
    path = old_file(tmp_path / "m.dat", ("a", 4, SUMS), ("b", 0, SUMS[:3]))
    found = read_importance(path)
    assert found.keys() == {"a", "b"}
    assert np.array_equal(found["a"], SUMS / 4)
    assert np.array_equal(found["b"], np.ones(3))


def test_reads_gguf_files(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_file(512, ["text.txt"], 7, ("a", [8], SUMS[:256]), ("e", [0, 2], SUMS)))
    found = read_importance(path)
    assert found.keys() == {"a", "e"}
    assert np.array_equal(found["a"], SUMS[:256] / 8)
    assert np.array_equal(found["e"], np.stack((np.ones(256), SUMS[256:] / 2)))


def with_tensors(path: Path, kind: str, **tensors: Any) -> Path:
    """Writes a GGUF file with any tensors, "sums" for "a.in_sum2" and "counts" for "a.counts"."""
    names = {"sums": "a.in_sum2", "counts": "a.counts"}
    save_file({names.get(name, name): np.array(tensor, np.float32) for name, tensor in tensors.items()}, path,
              {"general.type": kind}, rules=[])  # fmt: skip
    return path


@pytest.mark.parametrize(
    ("kind", "tensors", "text"),
    [
        ("model", {"a": SUMS}, "metadata -> general.type: expected 'imatrix', found 'model'"),
        ("imatrix", {"sums": SUMS}, "expected a matching tensor 'a.counts', found none (tensor 'a.in_sum2')"),
        ("imatrix", {"a": SUMS}, "expected the importance of at least one matrix, found none"),
        ("imatrix", {"sums": SUMS, "counts": np.ones(3)},
         "expected a multiple of 3 sums (the number of matrices), found 512 (tensor 'a.in_sum2')"),
    ],
)  # fmt: skip
def test_other_gguf_files_are_refused(kind: str, tensors: dict[str, Any], text: str, tmp_path: Path) -> None:
    path = with_tensors(tmp_path / "m.gguf", kind, **tensors)
    with pytest.raises(FormatError) as caught:
        read_importance(path)
    assert str(caught.value) == f"{text} in {path}"


def test_old_files_are_refused_where_they_end_early(tmp_path: Path) -> None:
    path = old_file(tmp_path / "m.dat", ("a", 4, SUMS[:5]), ("b", 1, SUMS[:2]))
    stored = path.read_bytes()
    whole = len(stored) - 16
    for end in range(len(stored)):
        path.write_bytes(stored[:end])
        if end in (whole, whole + 4):  # the number of chunks and the text may be missing
            assert read_importance(path).keys() == {"a", "b"}
        else:
            with pytest.raises(FormatError, match=f"expected .*, found .* in {re.escape(str(path))}"):
                read_importance(path)


@pytest.mark.parametrize(
    ("stored", "text"),
    [
        (bytes(4), "n: expected at least 1, found 0"),
        (struct.pack("<2is2i", 1, 1, b"a", 4, 0), "entries -> 0 -> n: expected at least 1, found 0"),
        (b"\xff\xff\xff\xff then 18 more bytes.", "n: expected at most 1 (bytes left: 20, at least 12 each), found 4294967295"),
        (b"\x01\0\0\0\xff\xff\xff\xff not much more", "entries -> 0 -> name: expected 4294967295 bytes, found 14"),
        (old(("a", 4, [1]), ("a", 1, [2])), "entries -> 1 -> name: expected each name once, found the name of row 0 again"),
    ],
)
def test_old_files_of_nonsense(stored: bytes, text: str, tmp_path: Path) -> None:
    (tmp_path / "m.dat").write_bytes(stored)
    with pytest.raises(FormatError) as caught:
        read_importance(tmp_path / "m.dat")
    assert caught.value.text == text


def test_old_files_become_gguf_and_the_same_bytes_again(tmp_path: Path) -> None:
    old, new, again = tmp_path / "m.dat", tmp_path / "m.gguf", tmp_path / "again.DAT"
    odd = np.abs(np.sin(SUMS)) / 3
    old_file(old, ("b.weight", 7, odd), ("a.weight", 3, SUMS[:3]))
    assert glft("imatrix", old, new).stdout == f"{new}: 2 matrices, 7 chunks, {new.stat().st_size:,} bytes\n"
    entries = ("b.weight", [7 * 512], odd * 512), ("a.weight", [3 * 512], SUMS[:3] * 512)
    assert new.read_bytes() == gguf_file(512, ["text.txt"], 7, *entries)
    assert llama_cpp.contents(new.read_bytes()) is not None
    done = glft("verify", new)
    assert (done.returncode, "bytes, all rules hold (spec, ggml, imatrix)\n" in done.stdout) == (0, True)
    assert glft("imatrix", new, again).returncode == 0
    assert again.read_bytes() == old.read_bytes()
    assert all(np.array_equal(mean, read_importance(old)[name]) for name, mean in read_importance(new).items())
    glft("imatrix", old, new, "--chunk-size", 100)
    entries = ("b.weight", [700], odd * np.float32(100)), ("a.weight", [300], SUMS[:3] * 100)
    assert new.read_bytes() == gguf_file(100, ["text.txt"], 7, *entries)


def test_the_declaration_of_old_files_is_lossless(tmp_path: Path) -> None:
    path = old_file(tmp_path / "m.dat", ("a", -1, SUMS[:3]))
    stored = path.read_bytes()[:-8] + b"\xff\xfe123456"  # no UTF-8
    for part in (stored, stored + b"more", stored[:-12], stored[:-16]):
        assert OldImatrix.build(OldImatrix.parse(part)) == part
    with pytest.raises(FormatError, match="n: expected at least 1, found 0"):
        OldImatrix.build({"entries": [], "chunks": None, "dataset": None})


def test_old_files_lose_what_they_cannot_hold(tmp_path: Path) -> None:
    experts = ("e", [0, 512, 1025], [5.0, 6.0, 512.0, 1024.0, 1025.0, 2050.0])
    unused = ("u", [0, 0], [1.0, 2.0])
    new, old, again = tmp_path / "m.gguf", tmp_path / "m.dat", tmp_path / "again.gguf"
    new.write_bytes(gguf_file(512, ["a", "b"], 2, experts, unused))
    ImportanceMatrix.open(new).save(again)
    assert again.read_bytes() == new.read_bytes()
    assert glft("imatrix", new, old).stdout.endswith("\nleft out: u has no data\n")
    # 3 chunks, the last of 1 token; the expert without data has means of 1
    sums = struct.pack("<6f", 3, 3, 3, 6, 3, 6)
    assert old.read_bytes() == struct.pack("<2is2i", 1, 1, b"e", 3, 6) + sums + struct.pack("<2is", 2, 1, b"b")


@pytest.mark.parametrize(
    ("entries", "out", "problem"),
    [
        ([("u", [0], [1.0])], "m.dat", "expected a matrix with data, found none"),
        ([("a", [1], [1.0])], "m.bin", "expected a file that ends in .gguf or .dat, found"),
        ([("a", [1], [1.0])], "in.gguf", "the output would overwrite the input"),
        ([("a", [1], [1.0]), ("n" * 56, [1], [1.0])], "m.gguf", "name: expected at most 63 bytes, found"),
    ],
)
def test_files_that_cannot_be_written(entries: list[Any], out: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "in.gguf").write_bytes(gguf_file(512, [], 0, *entries))
    assert_refused(glft("imatrix", tmp_path / "in.gguf", tmp_path / out), problem)
    assert [path.name for path in tmp_path.iterdir()] == ["in.gguf"]


def test_matrices_are_merged_as_by_llama_imatrix(tmp_path: Path) -> None:
    one, two, three, out = (tmp_path / name for name in ("1.gguf", "2.gguf", "3.dat", "out.gguf"))
    one.write_bytes(gguf_file(512, ["one"], 2, ("b", [1024], [1.0, 2.0]), ("e", [0, 512], [1.0, 2.0, 3.0, 4.0])))
    two.write_bytes(gguf_file(256, ["two"], 3, ("e", [5, 6], [0.5, 0.5, 0.5, 0.5]), ("a", [9], [7.0])))
    old_file(three, ("e", 4, SUMS[:4]), ("b", 7, SUMS[:2]))
    assert glft("imatrix", one, two, three, out).returncode == 0
    assert out.read_bytes() == gguf_file(
        512,
        ["one", "two", "text.txt"],
        10,  # 2 + 3 / 2 + 7, rounded down
        ("a", [9], [7.0]),
        ("b", [1024 + 7 * 512], [1.0 + 512, 2.0 + 2 * 512]),
        ("e", [5 + 4 * 512, 512 + 6 + 4 * 512], [1.5 + 512, 2.5 + 2 * 512, 3.5 + 3 * 512, 4.5 + 4 * 512]),
    )
    two.write_bytes(gguf_file(512, [], 1, ("e", [1], [1.0])))
    problem = "expected importance matrices of one model, found [2, 2] and [1, 1] sums for 'e'"
    assert_refused(glft("imatrix", one, two, out), problem)
    with pytest.raises(OptionError, match="expected at least one importance matrix, found none"):
        ImportanceMatrix.merge([])
    with pytest.raises(OptionError, match="expected a chunk size of at least 1 token, found 0"):
        ImportanceMatrix.open(one, chunk_size=0)


def test_a_chunk_size_that_is_no_number(tmp_path: Path) -> None:
    """llama.cpp's default is used for it."""
    typed = glft_schema.Typed
    keys = {"general.type": "imatrix", "imatrix.chunk_size": typed(True, "bool"), "imatrix.chunk_count": typed("3", "string")}
    save_file({"w.in_sum2": torch.ones(1, 4), "w.counts": torch.ones(1, 1)}, tmp_path / "m.gguf", keys, rules=[])
    matrix = ImportanceMatrix.open(tmp_path / "m.gguf")
    assert (matrix.chunk_size, matrix.chunk_count) == (512, 0)


def test_statistics_are_those_of_llama_imatrix(tmp_path: Path) -> None:
    """Against the formulas of its C++, in numpy's float32."""
    rng = np.random.default_rng(3)
    numbers = {f"blk.{layer}.attn_q.weight": rng.gamma(0.3, size=96).astype(np.float32) for layer in (0, 1, 3)}
    before, after, _ = numbers.values()
    after[:20] = 0
    numbers["output"] = before[:1]
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_file(512, [], 2, *((name, [1024], sums * 1024) for name, sums in numbers.items())))
    rows = ImportanceMatrix.open(path).statistics()
    for row in rows:
        v = numbers[row.name]
        total, mean = v.sum(), v.sum() / np.float32(v.size)
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
            "active": (np.abs(v) > 1e-5).sum() / v.size,
            "entropy": entropy,
            "normalized_entropy": entropy / np.log2(v.size) if v.size > 1 else 0,
            "z_score": ((v - mean) / std > 1).sum() / v.size if std > 0 else 0,
        }
        assert {field: getattr(row, field) for field in expected} == pytest.approx(expected, rel=1e-5, abs=1e-6), row.name
    cosine = before @ after / np.sqrt((before @ before) * (after @ after))
    cosines = {"blk.1.attn_q.weight": pytest.approx(cosine, rel=1e-5)}
    assert {row.name: row.cosine for row in rows} == {name: cosines.get(name) for name in numbers}
    assert [(row.tensor, row.layer) for row in rows][-1] == ("output", None)
    totals = [row.total for row in rows if row.tensor == "attn_q"]
    assert totals == sorted(totals, reverse=True)


def test_statistics_of_experts_and_zeros(tmp_path: Path) -> None:
    experts = ("blk.1.e.weight", [0, 4], [9.0, 9.0, 4.0, 12.0])
    unused, zeros = ("u", [0], [1.0]), ("blk.0.e.weight", [4, 4], [0.0] * 4)
    (tmp_path / "m.gguf").write_bytes(gguf_file(512, [], 2, experts, unused, zeros))
    first, second = ImportanceMatrix.open(tmp_path / "m.gguf").statistics()
    found = first.name, first.n, first.total, first.std, first.entropy, first.cosine
    assert found == ("blk.1.e.weight", 2, 4, 1, pytest.approx(0.811278), None)  # the entropy of 1/4 and 3/4
    assert second[1:] == (0, 4, *[0] * 9, None)


def test_sums_that_overflow_and_counts_that_are_none(tmp_path: Path) -> None:
    """Without warnings of numpy. A NaN as a count is none."""
    large, path = [3e38] * 4, tmp_path / "m.dat"
    ImportanceMatrix.open(old_file(path, ("a", 2, large))).save(path)  # the sums are 512 times as large
    assert path.read_bytes()[17:33] == struct.pack("<4f", *[np.inf] * 4)
    path.write_bytes(gguf_file(512, [], 0, ("a", [1], large), ("b", [np.nan], large)))  # type: ignore[list-item]
    matrix = ImportanceMatrix.open(path)
    assert np.array_equal(matrix.importance()["b"], np.ones(4))
    (row,) = ImportanceMatrix.merge([matrix, matrix]).statistics()
    assert (row.name, row.total, row.entropy) == ("a", np.inf, 0)


def test_inspect_shows_statistics_of_both_forms(tmp_path: Path) -> None:
    old, new = tmp_path / "m.dat", tmp_path / "m.gguf"
    old_file(old, ("blk.0.attn_q.weight", 1, SUMS), ("blk.1.attn_q.weight", 1, SUMS * 2))
    glft("imatrix", old, new)
    about, _, *table = glft("inspect", old).stdout.splitlines()
    assert about == f"{old}: imatrix.dat, {old.stat().st_size:,} bytes, 2 matrices, 7 chunks of text.txt"
    assert [" ".join(line.split()) for line in table[:2]] == [
        "tensor layer sum min max mean std active n entropy normalized z > 1 cosine",
        "attn_q 1 262656.00 2.0000 1024.0000 513.0000 295.6028 100.00% 512 8.7227 96.92% 21.09% 1.0000",
    ]
    assert glft("inspect", new).stdout.splitlines()[-3:] == table
    data, other = (json.loads(glft("inspect", path, "--json").stdout) for path in (old, new))
    assert (data["format"], data["datasets"], data["chunks"]) == ("imatrix.dat", ["text.txt"], 7)
    assert [row["name"] for row in data["statistics"]] == ["blk.1.attn_q.weight", "blk.0.attn_q.weight"]
    assert data["statistics"] == other["statistics"]
    assert_refused(
        glft("verify", old), "imatrix.dat has no rules to verify: use glft inspect, or convert it with glft imatrix IN OUT.gguf"
    )


def test_inspect_says_why_there_are_no_statistics(tmp_path: Path) -> None:
    path = with_tensors(tmp_path / "m.gguf", "imatrix", sums=SUMS)
    problem = "expected a matching tensor 'a.counts', found none (tensor 'a.in_sum2')"
    assert glft("inspect", path).stdout.splitlines()[-2:] == ["", f"no statistics: {problem}"]
    assert json.loads(glft("inspect", path, "--json").stdout)["no_statistics"] == problem
    with_tensors(path, "model", sums=SUMS)
    assert "no statistics" not in glft("inspect", path).stdout


STORED = old(("name", 1, SUMS[:9]))


@pytest.mark.parametrize(
    "stored",
    [b"", STORED[:7], b"GGUF" + STORED[4:], bytes(4) + STORED[4:], b"\xff" + STORED[1:], STORED[:8] + b"\1" + STORED[9:]],
)
def test_other_files_are_no_old_matrices(stored: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(stored)
    assert_refused(glft("inspect", tmp_path / "x"), "header")


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


LOW, WIDE = torch.ones(512), torch.ones(512).double()
LOW[7], WIDE[9] = -1, 1e300
HELD = "expected importance values that are finite and not negative"


@pytest.mark.parametrize("name", ["Q4_K", "Q8_0"])  # Q8_0 ignores it, but checks it
@pytest.mark.parametrize(
    ("importance", "text"),
    [
        (torch.ones(500), "expected 512 or 1024 importance values, one per column, found 500"),
        (torch.ones(2, 512).T, r"expected importance values \[2, 512\], found \[512, 2\]"),
        (torch.full((512,), torch.nan), f"{HELD}, found nan for column 0"),
        (LOW, f"{HELD}, found -1 for column 7"),
        (WIDE, rf"{HELD}, found 1e\+300 for column 9"),
        (torch.ones(512, dtype=torch.complex64), "expected the importance as a tensor or an array of real numbers, found "),
        (torch.ones(512, device="meta"), r"importance: expected a dense tensor with values in memory, found a Tensor \(meta\)"),
        (np.ma.masked_less(np.arange(512), 3), "importance: expected an array without masked elements: fill them"),
    ],
)
def test_an_importance_that_is_none(name: str, importance: Any, text: str) -> None:
    with pytest.raises(TensorError, match=text):
        GGML_TYPES[name].encode(WEIGHTS, "w", importance=importance)


def test_types_that_require_it() -> None:
    with pytest.raises(TensorError, match="IQ2_XXS requires an importance matrix"):
        GGML_TYPES["IQ2_XXS"].encode(WEIGHTS, "w")


def test_counts_that_do_not_fit_the_sums() -> None:
    for sums, counts, found in ((torch.ones(2, 512), 3, "[2, 512] and [3]"), (torch.ones(512), 1, "[512] and [1]")):
        problem = f"'w': expected sums [matrices, columns] and a count of each matrix, found {found}"
        with pytest.raises(OptionError, match=f"^{re.escape(problem)}$"):
            ImportanceMatrix({"w": ColumnSums(sums, torch.ones(counts))})  # type: ignore[arg-type]


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
    importance, out = {"a": importance_of(512), "other": importance_of(3)}, tmp_path / "m.gguf"
    convert(tmp_path / "m.glft", out, schemes={"a": "iq2_xxs", "b": "q4_k"}, importance=importance, rules=[])
    assert np.array_equal(blocks_in(out, "a"), by_c("iq2_xxs", tensors["a"], importance["a"]))
    unweighted = GGML_TYPES["Q4_K"].encode(tensors["b"], "b")["blocks"]
    assert np.array_equal(blocks_in(out, "b"), unweighted.reshape(5, -1))
    _, b, _ = save_file(tensors, out, schemes={"[ab]": "iq2_xxs"}, importance=importance, rules=[])
    assert (str(b.type), b.note) == ("F32", "not iq2_xxs: it has no importance matrix")


@pytest.mark.parametrize(
    ("schemes", "importance", "error", "text"),
    [
        ({"*": "iq1_s"}, None, OptionError, "iq1_s requires an importance matrix, found none for '*'; to measure one: glft"),
        ({"b": "iq1_s"}, {"a": torch.ones(512)}, OptionError,
         "iq1_s requires an importance matrix, found none for 'b'; the given matrix lacks it"),
        ({}, {"c": torch.ones(512)}, OptionError,
         "the importance matrix covers none of these tensors (it has 1 other tensor, such as 'c')"),
        ({}, torch.ones(512), OptionError, "expected a mapping of tensor names to importance tensors, found tensor"),
        ({}, {"a": torch.ones(3)}, TensorError, "tensor 'a': expected 512 importance values, one per column, found 3"),
    ],
)  # fmt: skip
def test_what_needs_it_says_so(
    schemes: dict[str, str], importance: Any, error: type[Exception], text: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=re.escape(text)):
        save_file(dict(zip("ab", WEIGHTS, strict=True)), tmp_path / "m.gguf", schemes=schemes, rules=[], importance=importance)


def test_tied_tensors_of_another_importance_are_stored_apart(tmp_path: Path) -> None:
    one, path, other = WEIGHTS[0].clone(), tmp_path / "m.gguf", torch.ones(512)
    importance = {"a": importance_of(512), "b": other, "c": importance_of(512)}
    apart = "tensor 'b' is tied to 'a', which has a different importance, so it is stored separately"
    with pytest.warns(TiedWarning, match=apart):
        written = save_file(dict.fromkeys("abc", one), path, schemes={"*": "q4_k"}, importance=importance, rules=[])
    assert [tensor.alias_of for tensor in written] == [None, None, "a"]
    assert np.array_equal(blocks_in(path, "b"), by_c("q4_k", one, other))
    _, b = save_file(dict.fromkeys("ab", one), path, schemes={"*": "q8_0"}, importance={"b": other}, rules=[])
    assert b.alias_of == "a"  # the type makes no use of it


def test_the_command_line_takes_one(tmp_path: Path) -> None:
    weights, sums = WEIGHTS[0].clone(), np.abs(np.sin(SUMS))
    source, out = tmp_path / "m.safetensors", tmp_path / "m.gguf"
    save_file({"a": weights}, source)
    imatrix = old_file(tmp_path / "i.dat", ("a", 1, sums))
    command = ("convert", source, out, "--scheme", "iq2_xxs", "--imatrix", imatrix)
    assert glft(*command).returncode == 0
    assert np.array_equal(blocks_in(out, "a"), by_c("iq2_xxs", weights, torch.from_numpy(sums)))
    old_file(imatrix, ("a", 1, sums[:5]))
    assert_refused(glft(*command), "i.dat: tensor 'a': expected 512 importance values, one per column, found 5")


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.enable_grad])
def test_what_is_searched_needs_no_gradient(mode: type) -> None:
    weights, importance = torch.randn(7, 512), torch.rand(512)
    with mode():
        needed = mode is torch.enable_grad
        given, its = weights.clone().requires_grad_(needed), importance.clone().requires_grad_(needed)
        found = [GGML_TYPES["Q4_K"].encode(given, "w", importance=one)["blocks"] for one in (None, its)]
    for blocks, columns in zip(found, (None, importance.numpy()), strict=True):
        assert np.array_equal(blocks, encoded("Q4_K", weights.numpy(), columns))
