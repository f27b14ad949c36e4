"""`glft inspect`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import glft_schema
from glft_schema import Container, save_file
from tests.catalogue.gguf_cases import READ
from tests.golden import golden
from tests.tools.command_line import in_this_process as glft


def test_a_file(gguf: Path) -> None:
    done = glft("inspect", gguf)
    assert (done.returncode, done.stderr) == (0, "")
    for part in (
        "byte_order little, version 3, n_tensors 3, n_kv 3",
        "general.architecture  string          toy",
        "t.tokens              array[string]   30: ['token 0', 'token 1', 'token 2', 'token 3', 'token 4',",
        "'token 7', ...]",
        "t.scores              array[float64]  5,000: [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, ...]",
        "BF16  [64, 4]",
    ):
        assert part in done.stdout


def test_json(gguf: Path) -> None:
    found, full = (json.loads(glft("inspect", gguf, "--json", *more).stdout) for more in ((), ["--full"]))
    assert found["header"] == {"magic": "GGUF", "byte_order": "little", "version": 3, "n_tensors": 3, "n_kv": 3}
    assert found["metadata"] == {
        "general.architecture": {"type": "string", "value": "toy"},
        "t.tokens": {"type": "array[string]", "length": 30, "first": [f"token {i}" for i in range(8)]},
        "t.scores": {"type": "array[float64]", "length": 5000, "first": [0.0] * 8},
    }
    assert full["metadata"]["t.tokens"]["value"] == [f"token {i}" for i in range(30)]
    assert found["tensors"][0]["dims"] == [64, 4]


def test_json_of_text_metadata(four_types: Path) -> None:
    data = json.loads(glft("inspect", "--json", four_types).stdout)
    assert (data["format"], data["bytes"], data["metadata"]) == ("GLFT", 168, {"arch": "toy", "note": "a=b üß"})
    fc1 = {"name": "fc1", "dims": [2, 3], "type": "Q8_per_channel", "offset": 10, "position": 124, "nbytes": 10}
    assert data["tensors"][2] == fc1 | {"complete": True}
    assert sum(data["byte_counts"].values()) == 168
    assert data["byte_counts"]["Q8_per_channel scales"] == 4


def test_json_has_no_nan(tmp_path: Path) -> None:
    metadata = {"f": [float("nan"), 1.0], "n": [["a"] * 2000, [1] * 2000], "i": float("inf")}
    Container.build_file({"format": "GGUF", "metadata": metadata}, tmp_path / "file.gguf")
    found = json.loads(glft("inspect", tmp_path / "file.gguf", "--json").stdout, parse_constant=pytest.fail)["metadata"]
    assert [found[key]["value"] for key in "fni"] == [["nan", 1.0], metadata["n"], "inf"]


def model_of(blocks: int, path: Path) -> Path:
    """Writes a model of blocks, each with two matrices of experts and a norm."""
    tensors = {"token_embd.weight": torch.ones(64, 32)}
    for i in range(blocks):
        tensors |= {f"blk.{i}.ffn.{e}.weight": torch.ones(4, 32) for e in range(2)} | {f"blk.{i}.norm.weight": torch.ones(32)}
    entries = {"general.architecture": "toy", "toy.block_count": blocks, "toy.context_length": 2048, "general.file_type": 2}
    text = "{{ a\x1b }}\nsecond line"
    entries |= {"tokenizer.ggml.tokens": ["<s>", "b"], "tokenizer.chat_template": text, "toy.pooling_type": 1}
    save_file(tensors, path, entries, schemes={"blk.0.ffn.*": "q4_0", "token*": "q8_0"}, rules=[])
    return path


def test_what_a_model_is_and_its_blocks_once(tmp_path: Path) -> None:
    path = model_of(3, tmp_path / "m.gguf")
    lines = glft("inspect", path).stdout.splitlines()
    assert lines[0] == (
        f"{path}: toy, 2,912 parameters, 3 layers, 2,048 context, 2 tokens, Q4_0 (mostly), 13.05 bits per weight, "
        f"{path.stat().st_size / 1000:.4g} kB"
    )
    rows = [" ".join(line.split()) for line in lines]
    assert {"general.file_type uint32 2 (Q4_0)", "toy.pooling_type uint32 1 (mean)"} < {*rows}
    assert any(row.startswith("Q8_0 1 8.5 2,176 ") for row in rows)
    assert rows[-4:] == [
        "token_embd.weight Q8_0 [32, 64] 2,176",
        "blk.0 ... blk.2: 3 tensors each 2,576",
        "ffn.N.weight F32 (4), Q4_0 (2) [32, 4] 2,192",
        "norm.weight F32 [32] 384",
    ]


def test_listed_tensors(tmp_path: Path) -> None:
    path = model_of(3, tmp_path / "m.gguf")
    assert sum("blk." in line for line in glft("inspect", path, "--all").stdout.splitlines()) == 9
    listed = glft("inspect", path, "--tensors", "*.norm.*").stdout.splitlines()
    assert [line.split()[0] for line in listed[1:]] == [f"blk.{i}.norm.weight" for i in range(3)]


def test_all_has_the_fields_of_types(four_types: Path) -> None:
    listed = glft("inspect", four_types, "--all").stdout
    assert all(part in listed for part in ("Q4_per_group_64        1", "\n    nibbles     ", "at byte"))


TOKENS = {"tokenizer.ggml.tokens": {"type": "array[string]", "value": ["<s>", "b"]}}


@pytest.mark.parametrize(
    ("options", "printed"),
    [
        ("tokenizer.chat_template", "{{ a\x1b }}\nsecond line"),
        ("tokenizer.ggml.tokens", "<s>\nb\n"),
        ("general.file_type", "2\n"),
        ("tokenizer.ggml.tokens --json", json.dumps(TOKENS, indent=2) + "\n"),
        ("tokenizer.g* --json", json.dumps(TOKENS, indent=2) + "\n"),
        ("*.context_length", "  key                 type    value\n  toy.context_length  uint32  2048\n"),
        (
            "tokenizer.c*",
            "  key                      type    value\n  tokenizer.chat_template  string  '{{ a\\x1b }}\\nsecond line'\n",
        ),
    ],
)
def test_values_of_keys(options: str, printed: str, tmp_path: Path) -> None:
    assert glft("inspect", model_of(1, tmp_path / "m.gguf"), "--key", *options.split()).stdout == printed


def test_values_of_text_metadata(four_types: Path) -> None:
    assert glft("inspect", four_types, "--key", "a*").stdout == "metadata\n  arch = toy\n"
    assert json.loads(glft("inspect", four_types, "--key", "arch", "--json").stdout) == {"arch": "toy"}


def test_what_is_left_of_a_truncated_file(tmp_path: Path) -> None:
    path = model_of(2, tmp_path / "m.gguf")
    with Container.parse_file(path) as file:
        last, size = list(file.tensors.values())[-1], file.nbytes
    end = last.position + 5
    path.write_bytes(path.read_bytes()[:end])
    done = glft("inspect", path)
    lines = done.stdout.splitlines()
    problem = f"the file is truncated: {end:,} of {size:,} bytes ({100 * end / size:.1f} %), 6 of 7 tensors complete"
    place = f"(tensor '{last.name}', at byte {last.position})"
    assert done.returncode == 2
    assert lines[0].endswith(f" bits per weight, {size / 1000:.4g} kB, of which {end / 1000:.4g} kB are there")
    assert lines[2] == f"{problem}; download the rest"
    assert done.stderr == f"glft: {path}: data -> '{last.name}' -> weights: {problem}; download the rest {place}\n"
    assert [line.split()[-1] for line in lines[-5:]] == ["2,176", "123", "0", "1,168", "123"]
    assert lines[-3] == "    complete: 0"
    rows = glft("inspect", path, "--all").stdout.splitlines()[-2:]
    assert [row.split()[-1] for row in rows] == ["3,744", "123"]
    listed = json.loads(glft("inspect", path, "--json").stdout)["tensors"]
    assert [tensor["complete"] for tensor in listed] == [True] * 6 + [False]


@pytest.mark.parametrize(
    ("stored", "part"),
    [
        (golden("gguf_big"), "[[1, 2], ['x']]"),
        (READ["a type of a fork, 200"].stored, "\n  type 200            1 "),
        (READ["a string that is not UTF-8"].stored, "string  '\\udcff'"),
    ],
)
def test_unusual_values(stored: bytes, part: str, tmp_path: Path) -> None:
    (tmp_path / "file.gguf").write_bytes(stored)
    assert part in glft("inspect", tmp_path / "file.gguf").stdout


@pytest.mark.parametrize("command", ["verify", "inspect"])
def test_bytes_of_no_tensor_are_counted(command: str, tmp_path: Path) -> None:
    (tmp_path / "loose").write_bytes(golden("loose_layout"))
    assert "5 bytes in gaps between payloads, 2 of them after the last one" in glft(command, tmp_path / "loose").stdout
    save_file({"w": torch.ones(4), "v": torch.ones(12)}, tmp_path / "m.gguf", {"general.architecture": "toy"})
    padding = "32 bytes in gaps between payloads (padding to multiples of 32), 16 of them after the last one"
    assert padding in glft(command, tmp_path / "m.gguf").stdout


def test_a_set(gguf: Path, tmp_path: Path) -> None:
    first, second = glft_schema.split(gguf, tmp_path / "part", max_tensors=2)
    assert "the first of 2 files" in glft("inspect", first).stdout
    assert "part-00002-of-00002.gguf  i " in glft("inspect", first, "--all").stdout
    files = [tensor["file"] for tensor in json.loads(glft("inspect", first, "--json").stdout)["tensors"]]
    assert files == [first, first, second]
    assert "2 files" not in glft("inspect", second).stdout
