"""`glft edit`: how values are given, the report, and warnings; see weights/test_edit.py."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import glft_schema
from glft_schema import save_file
from glft_schema.errors import SimilarKeyWarning
from tests.checks.tiny_llama import FLUX, KEYS, write
from tests.tools.command_line import in_this_process as glft

METADATA = {"general.architecture": "toy", "general.name": "Toy", "toy.block_count": 2, "toy.words": ["a"]}


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    save_file({"a": torch.arange(64.0), "b": torch.ones(3)}, tmp_path / "model.gguf", METADATA)
    return tmp_path / "model.gguf"


def test_values(gguf: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes("a line\r\n@ü=b\n".encode())
    (tmp_path / "words").write_text('["x", "y"]\n')
    values = {
        "general.name": ("@@home", "@home", "string"),
        "toy.text": (f"@{tmp_path / 'text'}", "a line\r\n@ü=b\n", "string"),
        "toy.words": (f"@{tmp_path / 'words'}", ["x", "y"], "array[string]"),
        "toy.n:int8": ("-3", -3, "int8"),
        "toy.new": ("", "", "string"),
    }
    options = [part for key, (text, *_) in values.items() for part in ("--set", f"{key}={text}")]
    done = glft("edit", gguf, *options, "--rename", "a=b", "--rename", "b=a", "-o", tmp_path / "out.gguf")
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", len(values) + 2)
    assert done.stdout.splitlines()[0] == "set 'general.name': string 'Toy' -> string '@home'"
    with glft_schema.open(tmp_path / "out.gguf") as file:
        found = [[file.metadata[key], file.metadata.type_of(key)] for key in (key.partition(":")[0] for key in values)]
        assert found == [expected for _, *expected in values.values()]
        assert list(file.tensors) == ["b", "a"]


def test_in_place_and_dry(gguf: Path) -> None:
    before = gguf.read_bytes()
    command = ("edit", gguf, "--remove", "toy.words", "--rename", "b=a longer name")
    dry = glft(*command, "--dry-run")
    assert gguf.read_bytes() == before
    done = glft(*command)
    assert (done.returncode, done.stderr) == (0, "")
    with glft_schema.open(gguf) as file:
        assert list(file.tensors) == ["a", "a longer name"]
        sizes = f"{file.nbytes:,} bytes would be written, {file.tensors.size:,} of them"
    assert dry.stdout == f"{done.stdout}dry run: {sizes} copied unchanged\n"


def test_a_new_key_that_resembles_a_known_one(gguf: Path) -> None:
    with pytest.warns(SimilarKeyWarning):
        done = glft("edit", gguf, "--set", "general.nmae=x")
    assert (done.returncode, done.stdout) == (0, "add 'general.nmae': string 'x'\n")


def test_a_value_that_names_a_file(gguf: Path, tmp_path: Path) -> None:
    path = tmp_path / "chat.jinja"
    path.write_text("{{ bos_token }}")
    done = glft("edit", gguf, "--set", f"toy.text={path}", "--dry-run")
    assert (done.returncode, done.stderr) == (
        0,
        f"glft: warning: the value is {str(path)!r} itself; @{path} is the text of the file\n",
    )


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (
            "edit model.gguf --rename output_norm.weight=final_norm.weight",
            "expected a tensor 'output_norm.weight' with dims [96] (embedding_length), found none",
        ),
        (
            "edit model.gguf --set llama.attention.head_count_kv=3 --dry-run",
            "expected dims [96, 48] (embedding_length, head_count_kv * key_length) of 'blk.0.attn_k.weight', found [96, 32]",
        ),
        (
            "convert model.gguf out.gguf --exclude output_norm.weight",
            "expected a tensor 'output_norm.weight' with dims [96] (embedding_length), found none",
        ),
        (
            "convert model.gguf out.gguf --only blk.*",
            "expected a tensor 'token_embd.weight' with dims [96, 8] (embedding_length, tokens), found none",
        ),
        (
            "convert model.gguf out.gguf --metadata llama.block_count=4",
            "expected tensors of 4 blocks (block_count - nextn_predict_layers), found 3",
        ),
        (
            "quantize model.gguf out.gguf F16 --override-kv llama.block_count=int:0",
            "expected 1 to 512 for llama.block_count, found 0",
        ),
        ("quantize no_blocks.gguf out.gguf F16", "expected 1 to 512 for llama.block_count, found 0"),
        ("edit refused.gguf --set general.name=x", ""),  # as before
        ("convert refused.gguf out.gguf --exclude output.weight", ""),
        ("edit unknown.gguf --set general.architecture=flux", ""),  # cannot be checked
    ],
)
def test_a_file_that_llama_cpp_no_longer_loads(
    command: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("model.gguf"))
    write(Path("no_blocks.gguf"), KEYS | {"llama.block_count": 0})
    write(Path("refused.gguf"), names={"output_norm.weight": "final_norm.weight"})
    write(Path("unknown.gguf"), FLUX | {"general.architecture": "llama"})
    done = glft(*command.split())
    warning = f"glft: warning: llama.cpp will refuse the new file (see glft verify): {reason}\n"
    assert (done.returncode, done.stderr) == (0, warning if reason else "")
