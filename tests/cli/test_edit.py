"""`glft edit`: how values are given, the report, and errors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import glft_schema
from glft_schema import save_file
from tests.checks.test_repairs import DENSE, KEYS, write
from tests.tools.command_line import assert_refused, glft, in_this_process

METADATA = {"general.architecture": "toy", "general.name": "Toy", "toy.block_count": 2, "toy.words": ["a"]}


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    save_file({"a": torch.arange(64.0), "b": torch.ones(3)}, tmp_path / "model.gguf", METADATA)
    return tmp_path / "model.gguf"


def test_values(gguf: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes("a line\r\n@ü=b\n".encode())
    (tmp_path / "words").write_text('["x", "y"]\n')
    values = {
        "general.name": ("@@home", "@home"),
        "general.author": ("@", None),
        "general.url": ("a=b@c", "a=b@c"),
        "tokenizer.chat_template": (f"@{tmp_path / 'text'}", "a line\r\n@ü=b\n"),
        "toy.words": (f"@{tmp_path / 'words'}", ["x", "y"]),
        "toy.block_count": ("[3, 4]", None),
        "toy.n:int8": ("-3", -3),
        "toy.list:array[string]": (f"@{tmp_path / 'words'}", ["x", "y"]),
        "toy.new": ("", ""),
    }
    good = {key: value for key, value in values.items() if value[1] is not None}
    options = [part for key, (text, _) in good.items() for part in ("--set", f"{key}={text}")]
    done = in_this_process("edit", gguf, *options, "--remove", "general.architecture", "-o", tmp_path / "out.gguf")
    assert_refused(done, f"{gguf}: metadata: expected the key general.architecture, found", "[gguf-architecture]")
    assert not (tmp_path / "out.gguf").exists()
    done = in_this_process("edit", gguf, *options, "--rename", "a=b", "--rename", "b=a", "-o", tmp_path / "out.gguf")
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", len(good) + 2)
    assert done.stdout.splitlines()[0] == "set 'general.name': string 'Toy' -> string '@home'"
    with glft_schema.open(tmp_path / "out.gguf") as file:
        assert {key: file.metadata[key.partition(":")[0]] for key in good} == {key: value for key, (_, value) in good.items()}
        assert [file.metadata.type_of(key) for key in ("toy.n", "toy.list")] == ["int8", "array[string]"]
        assert list(file.tensors) == ["b", "a"]


def test_in_place_and_dry(gguf: Path) -> None:
    before = gguf.read_bytes()
    options = ("--remove", "toy.words", "--rename", "b=a longer name")
    dry = in_this_process("edit", gguf, *options, "--dry-run")
    assert gguf.read_bytes() == before
    done = in_this_process("edit", gguf, *options)
    assert (done.returncode, done.stderr) == (0, "")
    with glft_schema.open(gguf) as file:
        assert list(file.tensors) == ["a", "a longer name"]
        copied = file.tensors.size
    size = gguf.stat().st_size
    assert dry.stdout == f"{done.stdout}dry run: {size:,} bytes would be written, {copied:,} of them copied unchanged\n"


def test_errors_are_one_line(gguf: Path, tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"ab\xff")
    before = gguf.read_bytes()
    for options, text in (
        ([], "glft: expected at least one change, found none to set, remove or rename"),
        (["--set", "general.name"], "glft: expected KEY=VALUE, found 'general.name'"),
        (["--set", "general.name=@"], "glft: expected a path after @, or @@ for a literal @"),
        (["--set", "a=1", "--set", "a:uint8=2"], "glft: --set: expected each key once, found 'a' twice: '1' and '2'"),
        (["--set", "a:uint8=x"], "glft: expected a value in JSON for 'a:uint8', found 'x'"),
        (["--set", "a:uint9=1"], "glft: expected a type after the colon, uint8, int8, uint16, "),
        (["--set", "a:string=b c"], """found 'b c': write '"b c"', or --set 'a=b c'"""),
        (["--set", "a:array[string]=[b, c]"], """for 'a:array[string]', found '[b, c]': write '["b","c"]'\n"""),
        (["--set", "a:bool=True"], "found 'True': write true\n"),
        (["--set", "toy.words=[b]"], """expected an array[string], found '[b]': write '["b"]'\n"""),
        (["--set", "toy.words=a, b"], """expected an array[string], found 'a, b': write '["a","b"]'\n"""),
        (["--set", "general.tags=a"], """general.tags: expected an array[string], found 'a': write '["a"]'\n"""),
        (["--set", "a:string=it's"], """found "it's"\n"""),
        (["--set", "toy.block_count=x"], f"glft: {gguf}: metadata -> toy.block_count: expected a uint32, found 'x'"),
        (["--set", f"a=@{tmp_path / 'gone'}"], f"glft: {tmp_path / 'gone'}: No such file or directory"),
        (["--set", f"a=@{tmp_path}"], f"glft: {tmp_path}: not a regular file"),
        (["--set", f"a=@{tmp_path / 'binary'}"], "binary', found an invalid byte at 2"),
        (["--set", "general.alignment=64"], "found 'general.alignment', which describes the file's layout"),
        (
            ["--remove", "toy.*"],
            "glft: expected an existing metadata key to remove, found 'toy.*': patterns are not supported\n",
        ),
        (["--remove", "gone"], "glft: expected an existing metadata key to remove, found 'gone'"),
        (["--rename", "a"], "glft: expected OLD=NEW, found 'a'"),
        (["--rename", "a="], "glft: expected OLD=NEW, found 'a='"),
        (["--rename", "a=x", "--rename", "a=y"], "glft: --rename: expected each tensor once, found 'a' twice: 'x' and 'y'"),
        (["--rename", "a=b"], "glft: expected a new name for tensor 'a', found 'b', which is taken"),
        (["--rename", "a=x", "-o", tmp_path / "no" / "out"], f"glft: {tmp_path / 'no' / 'out'}: No such file or directory"),
    ):
        assert_refused(in_this_process("edit", gguf, *options), text)
    assert gguf.read_bytes() == before
    assert_refused(in_this_process("edit", tmp_path / "binary", "--set", "a=b"), "header -> magic: expected")


def test_a_slip_is_one_line(gguf: Path) -> None:
    done = glft("edit", gguf, "--set", "general.nmae=x")
    assert (done.returncode, done.stdout) == (0, "add 'general.nmae': string 'x'\n")
    assert done.stderr == "glft: warning: the new key 'general.nmae' resembles the well-known key 'general.name'\n"


def test_a_file_that_llama_cpp_no_longer_loads(tmp_path: Path) -> None:
    path, out = tmp_path / "model.gguf", tmp_path / "out.gguf"
    write(path, KEYS, DENSE)
    done = in_this_process("edit", path, "--rename", "output_norm.weight=final_norm.weight", "-o", out)
    reason = "expected a tensor 'output_norm.weight' with dims [96] (embedding_length), found none"
    text = f"glft: warning: llama.cpp will refuse the new file (see glft verify): {reason}\n"
    assert (done.returncode, done.stderr) == (0, text)
    before = path.read_bytes()
    done = in_this_process("edit", path, "--rename", "output_norm.weight=final_norm.weight", "--dry-run")
    assert (done.returncode, done.stderr, path.read_bytes()) == (0, text, before)
    done = in_this_process("edit", path, "--set", "llama.attention.head_count_kv=3", "--dry-run")
    assert done.stderr.endswith(" of 'blk.0.attn_k.weight', found [96, 32]\n")
    done = in_this_process("convert", path, tmp_path / "less.gguf", "--exclude", "output_norm.weight")
    assert (done.returncode, done.stderr) == (0, text)
    done = in_this_process("convert", path, tmp_path / "less.gguf", "--metadata", "llama.block_count=4")
    assert "llama.cpp will refuse the new file (see glft verify): expected tensors of 4 blocks" in done.stderr
    assert in_this_process("verify", path).returncode == 0
    assert in_this_process("verify", out).returncode == 1
    assert in_this_process("edit", out, "--set", "general.name=x").stderr == ""
    assert in_this_process("convert", out, tmp_path / "less.gguf", "--exclude", "output.weight").stderr == ""


def test_no_warning_of_a_file_that_cannot_be_checked(tmp_path: Path) -> None:
    keys, out = {key.replace("llama.", "flux."): value for key, value in KEYS.items()}, tmp_path / "out.gguf"
    path = write(tmp_path / "model.gguf", keys, DENSE)
    done = in_this_process("edit", path, "--set", "general.architecture=flux", "-o", out)
    assert (done.returncode, done.stderr) == (0, "")
    assert "llama.cpp: not checked, no rules for the architecture 'flux'" in in_this_process("verify", out).stdout
