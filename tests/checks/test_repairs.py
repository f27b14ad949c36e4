"""Violations as `glft verify` prints them, and the command that repairs them.

The oracle is llama.cpp's loader: it loads the repaired file.
"""

from __future__ import annotations

import json
import re
import shlex
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

import glft_schema as glft
from tests.checks.tiny_llama import FLUX, KEYS, write
from tests.oracles.llama_loader import Loader
from tests.tools.command_line import in_this_process, on_a_terminal


def repair(path: Path, out: Path) -> list[str]:
    """Runs the command that `glft verify` prints, if there is one. Returns its options."""
    _, *command = re.split(r"to repair .*:\n  glft ", in_this_process("verify", path).stdout)
    if not command:
        return []
    arguments = [str(out) if part == "NEW.gguf" else part for part in shlex.split(command[0].replace("\\\n", " "))]
    done = in_this_process(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return arguments[4:]


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        (KEYS | {"llama.vocab_size": 9}, "2 rule violations (spec, ggml, llama.cpp); llama.cpp refuses the file."),
        (FLUX, "not checked, <bdi>no rules for the architecture &#39;flux&#39;</bdi>"),
    ],
)
def test_a_page_says_what_is_refused(keys: dict[str, Any], text: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert in_this_process("view", write(tmp_path / "model.gguf", keys), "-o", page).returncode == 0
    assert text in page.read_text()


GATES = {f"blk.{i}.ffn_gate.weight": f"blk.{i}.ffn_gat.weight" for i in range(3)}
REPAIRS: dict[str, tuple[dict[str, Any], dict[str, str], list[str]]] = {  # keys changed, tensors renamed, options
    "uint64": ({"llama.block_count": glft.Typed(3, "uint64")}, {}, ["--set", "llama.block_count:uint32=3"]),
    "a name": ({}, {"output_norm.weight": "norm of output"}, ["--rename", "norm of output=output_norm.weight"]),
    "names of blocks": ({}, GATES, [part for old, new in GATES.items() for part in ("--rename", f"{new}={old}")]),
}


@pytest.mark.parametrize("name", REPAIRS)
def test_the_loader_takes_a_repaired_file(name: str, tmp_path: Path) -> None:
    changed, names, options = REPAIRS[name]
    path, out = write(tmp_path / "model.gguf", KEYS | changed, names), tmp_path / "out.gguf"
    assert sorted(repair(path, out)) == sorted(options)
    with Loader() as loader:
        assert loader.refusal(path)
        assert loader.refusal(out) == ""


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ({"llama.context_length": None}, {}),
        ({"llama.attention.head_count": 5}, {}),
        ({}, {"blk.0.ffn_gate.weight": "blk.0.w1", "blk.0.ffn_up.weight": "blk.0.w3"}),  # which is which?
        ({}, {"blk.0.ffn_gate.weight": "blk.1.w1"}),  # of another block
        ({}, {"output_norm.weight": "a=b"}),  # --rename cannot say it
        ({}, {"output_norm.weight": "a\x1bb"}),  # a terminal cannot show it
    ],
    ids=str,
)
def test_no_repair_is_known(changed: dict[str, Any], names: dict[str, str], tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", KEYS | changed, names)
    assert repair(path, tmp_path / "out.gguf") == []
    rules = json.loads(in_this_process("verify", path, "--json").stdout)["rules"]
    assert (rules["repair"], rules["failures"] > 0) == (None, True)


def test_a_set_has_no_repair(tmp_path: Path) -> None:
    """`glft edit` edits no file of a set."""
    path = write(tmp_path / "model.gguf", names=GATES)
    assert in_this_process("split", path, tmp_path / "part", "--max-tensors", 20).returncode == 0
    done = in_this_process("verify", tmp_path / "part-00001-of-00002.gguf")
    assert (done.returncode, "[llama.cpp-names]" in done.stdout, "to repair" in done.stdout) == (1, True, False)


LINES = """\
  metadata: expected the key llama.attention.layer_norm_rms_epsilon, found 9 other keys (at byte 24) [llama.cpp-keys]
  tensor_infos: expected a tensor 'blk.*.ffn_gate.weight' with dims [96, 160] (embedding_length, feed_forward_length), \
found none (2 tensors, the first at byte N) [llama.cpp-tensors]
  tensor_infos -> * -> dims: expected dims [96, 48] (embedding_length, head_count_kv * key_length) \
of 'blk.*.attn_k.weight', found [96, 32] (3 tensors, the first at byte N) [llama.cpp-dims]
  tensor_infos -> * -> dims: expected dims [96, 48] (embedding_length, head_count_kv * value_length) \
of 'blk.*.attn_v.weight', found [96, 32] (3 tensors, the first at byte N) [llama.cpp-dims]
  tensor_infos -> * -> name: expected a tensor that llama.cpp loads, found 'blk.*.ffn_gat.weight' \
(2 tensors, the first at byte N) [llama.cpp-names]
to repair 4 of 11 violations:
  glft edit PATH -o NEW.gguf \\
      --rename blk.0.ffn_gat.weight=blk.0.ffn_gate.weight \\
      --rename blk.1.ffn_gat.weight=blk.1.ffn_gate.weight
"""


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    changed = {"llama.attention.head_count_kv": 3, "llama.attention.layer_norm_rms_epsilon": None}
    return write(tmp_path / "m.gguf", KEYS | changed, dict(islice(GATES.items(), 2)))


def test_violations_of_several_blocks_are_one_paragraph(broken: Path) -> None:
    done = in_this_process("verify", broken)
    head, _, text = done.stdout.partition("\n")
    assert head.endswith("11 rule violations (spec, ggml, llama.cpp); llama.cpp refuses the file")
    assert re.sub(r"at byte \d{3,}", "at byte N", text).replace(str(broken), "PATH") == LINES


@pytest.mark.parametrize("columns", [40, 60, 80, 100, 120])
def test_violations_are_wrapped(columns: int, broken: Path) -> None:
    """No letter is left out, and no line is longer than the terminal unless a word is."""
    shown = on_a_terminal("verify", broken, COLUMNS=str(columns)).stdout
    assert shown.split() == in_this_process("verify", broken).stdout.split()
    wrapped = shown.partition("\n")[2].partition("to repair")[0].splitlines()
    assert all(len(line) <= columns or " " not in line.strip() for line in wrapped)
    assert any(line.startswith("      ") for line in wrapped)


def test_the_first_20_kinds_of_violations_are_printed(tmp_path: Path) -> None:
    names = {f"extra {chr(97 + i)}": torch.zeros(1) for i in range(25)}
    glft.save_file(names, tmp_path / "m.gguf", KEYS, rules=[])
    lines = in_this_process("verify", tmp_path / "m.gguf").stdout.splitlines()
    rules = json.loads(in_this_process("verify", tmp_path / "m.gguf", "--json").stdout)["rules"]
    assert len(rules["broken"]) > 25
    assert sum(line.endswith("]") for line in lines) == 20
    assert re.fullmatch(r"  \.\.\. and \d+ more: --json", lines[21])
