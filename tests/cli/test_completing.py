"""Completion by shells."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.shell_completion import ShellComplete

import glft_schema as glft
from glft_schema.cli import app


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("", "inspect merge-lora"),
        ("qua", "quantize"),
        ("convert a b --all", "--allow-requantize"),
        ("--limit te", "text="),
        ("quantize a b q4_k", "Q4_K_M Q4_K_S"),
        ("quantize a b Q4_K_M --tensor-type attn=q5_k", "attn=q5_k"),
        ("convert a b --scheme *.weight=q4_", "*.weight=q4_0 *.weight=q4_k"),
        ("plan a --types q4_0,q6", "q4_0,q6_k"),
        ("verify a --rules l", "lora llama.cpp"),
        ("explain MODEL --tensor blk", "blk.0.attn_q.weight"),
        ("get-tensor MODEL BLK", "blk.0.attn_q.weight"),
        ("convert MODEL b --exclude blk", "blk.0.attn_q.weight"),
        ("edit MODEL --remove general.n", "general.name"),
        ("edit MODEL --set general.n", "general.name="),
        ("edit none --remove general.n", ""),
        ("schema q4_k", "q4_k"),
        ("explain a --color a", "auto always"),
        ("convert MODEL b --scheme blk", "blk.0.attn_q.weight="),
        ("fuzz g", "gguf glft"),
        ("schema gg", "gguf"),
    ],
)
def test_words(line: str, found: str, tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    glft.save_file({"blk.0.attn_q.weight": torch.ones(2, 32)}, model, {"general.architecture": "toy", "general.name": "a"})
    *words, incomplete = line.replace("MODEL", str(model)).split(" ")
    items = ShellComplete(app, {}, "glft", "_GLFT_COMPLETE").get_completions(words, incomplete)
    values = {item.value for item in items}
    assert {*found.split()} <= values
    assert len(values) <= (6 if incomplete else 30) * bool(found)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_GLFT_COMPLETE", f"{shell}_source")
    code = "import sys; sys.argv[0] = 'glft'; from glft_schema.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f"_GLFT_COMPLETE={shell}_complete" in done.stdout


@pytest.mark.posix("has bash")
def test_bash_adds_no_space_after_a_key(tmp_path: Path) -> None:
    """The script runs in bash, with `compopt` replaced, which works only while a line is edited."""
    model, program = tmp_path / "model.gguf", tmp_path / "glft"
    glft.save_file({}, model, {"general.architecture": "toy", "general.name": "a"})
    code = "import sys\nsys.argv[0] = 'glft'\nfrom glft_schema.cli import main\nmain()\n"
    program.write_text(f"#!{sys.executable}\n{code}")
    program.chmod(0o755)
    for option, found in (("--set", "general.name= compopt -o nospace"), ("--remove", "general.name")):
        lines = f"""
            eval "$(_GLFT_COMPLETE=bash_source glft)"
            compopt() {{ said="compopt $1 $2"; }}
            COMP_WORDS=(glft edit {model} {option} general.n) COMP_CWORD=4
            _glft_completion glft
            echo "${{COMPREPLY[*]}} $said"
        """
        environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        done = subprocess.run(["bash", "-c", lines], capture_output=True, text=True, check=True, env=environment)
        assert (done.stdout.strip(), done.stderr) == (found, "")
