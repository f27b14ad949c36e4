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
from tests.oracles.llama_loader import Loader
from tests.tools.command_line import in_this_process, on_a_terminal

KEYS = {
    "general.architecture": "llama",
    "llama.context_length": 64,
    "llama.embedding_length": 96,
    "llama.block_count": 3,
    "llama.feed_forward_length": 160,
    "llama.attention.head_count": 6,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.vocab_size": 8,
    "tokenizer.ggml.model": "no_vocab",
}
EXPERTS = {"llama.expert_count": 4, "llama.expert_used_count": 2}
ATTENTION = {"attn_norm": (96,), "attn_q": (96, 96), "attn_k": (32, 96), "attn_v": (32, 96), "attn_output": (96, 96)}
DENSE = {"ffn_norm": (96,), "ffn_gate": (160, 96), "ffn_up": (160, 96), "ffn_down": (96, 160)}
MIXTURE = {"ffn_norm": (96,), "ffn_gate_inp": (4, 96), "ffn_gate_exps": (4, 160, 96), "ffn_up_exps": (4, 160, 96)}
MIXTURE |= {"ffn_down_exps": (4, 96, 160)}


def write(
    path: Path, metadata: dict[str, Any], feed_forward: dict[str, tuple[int, ...]], names: dict[str, str] | None = None
) -> Path:
    shapes = {f"blk.{i}.{name}.weight": shape for i in range(3) for name, shape in {**ATTENTION, **feed_forward}.items()}
    shapes |= {"token_embd.weight": (8, 96), "output_norm.weight": (96,), "output.weight": (8, 96)}
    keys = {key: value for key, value in metadata.items() if value is not None}
    glft.save_file({(names or {}).get(name, name): torch.zeros(shape) for name, shape in shapes.items()}, path, keys, rules=[])
    return path


def repair(path: Path, out: Path) -> list[str]:
    """Runs the command that `glft verify` prints, if there is one. Returns its options."""
    _, *command = re.split(r"to repair .*:\n  glft ", in_this_process("verify", path).stdout)
    if not command:
        return []
    arguments = [str(out) if part == "NEW.gguf" else part for part in shlex.split(command[0].replace("\\\n", " "))]
    done = in_this_process(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return arguments[4:]


def test_a_page_says_what_is_refused(tmp_path: Path) -> None:
    path, page = write(tmp_path / "model.gguf", KEYS | {"llama.vocab_size": 9}, DENSE), tmp_path / "page.html"
    assert in_this_process("view", path, "-o", page).returncode == 0
    text = page.read_text()
    assert "2 rule violations (spec, ggml, llama.cpp); llama.cpp refuses the file." in text
    write(
        path, {key.replace("llama.", "flux."): value for key, value in KEYS.items()} | {"general.architecture": "flux"}, DENSE
    )
    assert in_this_process("view", path, "-o", page).returncode == 0
    assert "not checked, <bdi>no rules for the architecture &#39;flux&#39;</bdi>" in page.read_text()


GATES = {f"blk.{i}.ffn_gate.weight": f"blk.{i}.ffn_gat.weight" for i in range(3)}
REPAIRS: dict[str, tuple[dict[str, Any], dict[str, str], list[str]]] = {  # keys changed, tensors renamed, options
    "uint64": ({"llama.block_count": glft.Typed(3, "uint64")}, {}, ["--set", "llama.block_count:uint32=3"]),
    "a name": ({}, {"output_norm.weight": "norm of output"}, ["--rename", "norm of output=output_norm.weight"]),
    "names of blocks": ({}, GATES, [part for old, new in GATES.items() for part in ("--rename", f"{new}={old}")]),
}


@pytest.mark.parametrize("name", REPAIRS)
def test_the_loader_takes_a_repaired_file(name: str, tmp_path: Path) -> None:
    changed, names, options = REPAIRS[name]
    path, out = write(tmp_path / "model.gguf", KEYS | changed, DENSE, names), tmp_path / "out.gguf"
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
    path = write(tmp_path / "model.gguf", KEYS | changed, DENSE, names)
    assert repair(path, tmp_path / "out.gguf") == []
    rules = json.loads(in_this_process("verify", path, "--json").stdout)["rules"]
    assert (rules["repair"], rules["failures"] > 0) == (None, True)


def test_a_set_has_no_repair(tmp_path: Path) -> None:
    """`glft edit` edits no file of a set."""
    path = write(tmp_path / "model.gguf", KEYS, DENSE, GATES)
    assert in_this_process("split", path, tmp_path / "part", "--max-tensors", 20).returncode == 0
    done = in_this_process("verify", tmp_path / "part-00001-of-00002.gguf")
    assert (done.returncode, "[llama.cpp-names]" in done.stdout, "to repair" in done.stdout) == (1, True, False)


BROKEN = {"llama.attention.head_count_kv": 3, "llama.attention.layer_norm_rms_epsilon": None}
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


def test_violations_of_several_blocks_are_one_paragraph(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", KEYS | BROKEN, DENSE, dict(islice(GATES.items(), 2)))
    done = in_this_process("verify", path)
    head, _, text = done.stdout.partition("\n")
    assert head.endswith("11 rule violations (spec, ggml, llama.cpp); llama.cpp refuses the file")
    assert re.sub(r"at byte \d{3,}", "at byte N", text).replace(str(path), "PATH") == LINES


@pytest.mark.parametrize("columns", [40, 60, 80, 100, 120])
def test_violations_are_wrapped(columns: int, tmp_path: Path) -> None:
    """No letter is left out, and no line is longer than the terminal unless a word is."""
    path = write(tmp_path / "m.gguf", KEYS | BROKEN, DENSE, dict(islice(GATES.items(), 2)))
    shown = on_a_terminal("verify", path, COLUMNS=str(columns)).stdout
    assert shown.split() == in_this_process("verify", path).stdout.split()
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
