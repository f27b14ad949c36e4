"""`glft quantize`, its report, and the page of recipes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import glft_schema
from tests.families.tiny_folders import make_folder
from tests.quantizer import models
from tests.tools.command_line import assert_refused
from tests.tools.command_line import in_this_process as glft


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.gguf"
    models.write(path, models.keys("llama", 2, 2, 1, 0), models.tensors(2, 0, tied=True, fused=False, width=256, down=64))
    return path


def types(path: Path) -> dict[str, str]:
    with glft_schema.open(path) as file:
        return {name: tensor.type.scheme for name, tensor in file.tensors.items()}


def test_quantize(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    planned = glft("quantize", source, out, "q4_k_m", "--dry-run")
    assert not out.exists()
    done = glft("quantize", source, out, "q4_k_m")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    nbytes = sum(tensor.nbytes for tensor in glft_schema.open(out).tensors.values())
    assert lines[:6] == [
        "Q6_K: 2 of 3 tensors, the others have fallback types",
        "Q4_K: 11 of 12 tensors, the others have fallback types",
        "fallback types:",
        "  1 as q5_0 (blk.N.ffn_down.weight): not q4_k: expected a row length that is a multiple of 256",
        "  1 as q8_0 (blk.N.ffn_down.weight): not q6_k: expected a row length that is a multiple of 256",
        f"{out}: Q4_K_M, 24 tensors, {nbytes:,} bytes of tensors, 7.61 bits per weight",
    ]
    assert planned.stdout.splitlines()[5] == f"dry run: {lines[5]}"
    assert ["token_embd.weight", "Q6_K", "630"] in [line.split() for line in planned.stdout.splitlines()]


@pytest.mark.parametrize("name", ["out.glft", "out.safetensors"])
def test_other_endings_are_refused(name: str, source: Path, tmp_path: Path) -> None:
    text = f"quantize writes GGUF, found the output '{name}': write GGUF, then use glft convert"
    assert_refused(glft("quantize", source, tmp_path / name, "Q8_0"), text)
    assert_refused(glft("quantize", source, tmp_path / name, "Q8_0", "--dry-run"), text)
    assert not (tmp_path / name).exists()


def test_a_copy_without_layers(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    done = glft("quantize", source, out, "copy", "--prune-layers", "0")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{out}: COPY, 13 tensors, ")
    with glft_schema.open(source) as before, glft_schema.open(out) as after:
        kept = {name: bytes(tensor.raw) for name, tensor in before.tensors.items() if "blk.0" not in name}
        assert {name.replace("blk.0", "blk.1"): bytes(tensor.raw) for name, tensor in after.tensors.items()} == kept
        assert after.metadata["llama.block_count"] == 1


def test_a_model_that_llama_cpp_will_refuse(tmp_path: Path) -> None:
    """The warning of glft edit: for options that break the model, and for a model of no blocks."""
    pytest.importorskip("gguf")
    source, out = tmp_path / "in.gguf", tmp_path / "out.gguf"
    glft_schema.quantize(make_folder(tmp_path, "tiny-llama"), source, "F32")
    warning = "glft: warning: llama.cpp will refuse the new file (see glft verify): "
    for options in (["--override-kv", "llama.block_count=int:0"], ["--override-kv", "llama.attention.head_count=int:3"]):
        done = glft("quantize", source, out, "Q8_0", *options)
        assert done.returncode == 0
        assert done.stderr.startswith(warning)
    glft("edit", source, "--set", "llama.block_count=0")
    assert glft("quantize", source, out, "Q8_0").stderr.startswith(warning)


def test_a_dry_run_exits_as_the_run(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    real, dry = (glft("quantize", source, out, "IQ2_M", *more) for more in ((), ("--dry-run",)))
    assert (real.returncode, dry.returncode) == (2, 2)
    assert dry.stderr == real.stderr
    assert dry.stdout.startswith("would be refused: iq2_s, for tensor 'blk.0.attn_k.weight', requires an importance matrix")


def test_options(source: Path, tmp_path: Path) -> None:
    (tmp_path / "types.txt").write_text("attn_v=q8_0\nATTN_K=F16 attn_v=q4_0")
    out, options = tmp_path / "out.gguf", ["--token-embedding-type", "q3_k", "--pure", "--no-imatrix-keys"]
    options += ["--tensor-type", "1.ATTN_V=bf16", "--tensor-type-file", tmp_path / "types.txt"]
    options += ["--override-kv", "a.i=int:-3", "--override-kv", "a.f=float:0.5", "--override-kv", "a.b=bool:true"]
    done = glft("quantize", source, out, "Q4_K_S", *options, "--override-kv", "a.s=str:x=y:z")
    assert (done.returncode, done.stderr) == (0, "")
    found = types(out)
    assert found["token_embd.weight"] == "q3_k"
    assert [found[f"blk.{i}.attn_{part}.weight"] for i in (0, 1) for part in "vkq"] == [
        "q8_0",
        "f16",
        "q4_k",
        "bf16",
        "f16",
        "q4_k",
    ]
    with glft_schema.open(out) as file:
        own = {key: (file.metadata[key], file.metadata.type_of(key)) for key in ("a.i", "a.f", "a.b", "a.s")}
    assert own == {"a.i": (3, "uint32"), "a.f": (0.5, "float32"), "a.b": (True, "bool"), "a.s": ("x=y:z", "string")}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["Q4_K_M", "--tensor-type", "q8_0"], "expected REGEX=TYPE for --tensor-type, found 'q8_0'"),
        (["Q4_K_M", "--tensor-type", "=q8_0"], "expected REGEX=TYPE for --tensor-type, found '=q8_0'"),
        (["Q4_K_M", "--override-kv", "a=3"], "expected KEY=TYPE:VALUE for --override-kv, TYPE one of int, float, bool"),
        (["Q4_K_M", "--override-kv", "a=int:x"], "(true or false) or str; found 'a=int:x'"),
        (["Q4_K_M", "--override-kv", "a=bool:yes"], "found 'a=bool:yes'"),
        (["COPY", "--prune-layers", "1,x"], "expected numbers of layers for --prune-layers, such as 20,21, found '1,x'"),
        (["Q4_K_L"], "expected a file type or the path of a recipe file, found 'Q4_K_L'; did you mean 'Q4_K_"),
        (["Q4_K_M", "--override-kv", "a=int:1", "--override-kv", "a=int:2"], "--override-kv: expected each key once"),
        (["Q4_K_M", "--tensor-type-file", "bytes.txt"], "expected UTF-8 in 'bytes.txt', found an invalid byte at 1"),
        (["IQ1_S"], "requires an importance matrix, found none"),
        (["Q8_0", "--imatrix", "none.gguf"], "glft: none.gguf: No such file or directory"),
        (["Q8_0", "--keep-split"], "keep_split (--keep-split) requires a set of GGUF files as the source"),
    ],
)
def test_refused(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], problem: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bytes.txt").write_bytes(b"a\xff=q8_0")
    assert_refused(glft("quantize", source, tmp_path / "out.gguf", *options), problem)
    assert_refused(glft("quantize", source, source, *options), "")
    assert not (tmp_path / "out.gguf").exists()


def test_convert_begins_with_what_was_not_done(source: Path, tmp_path: Path) -> None:
    done = glft(
        "convert", source, tmp_path / "out.gguf", "--scheme", "q4_k", "--scheme", "ffn_*=q6_k", "--scheme", "blk.*=q6_k"
    )
    assert_refused(done, "expected a tensor that matches 'ffn_*', found none")
    done = glft("convert", source, tmp_path / "out.gguf", "--scheme", "q4_k", "--scheme", "blk.*_down*=q6_k")
    assert done.stdout.splitlines()[:2] == [
        "Q4_K: 13 of 22 tensors, the others have fallback types",
        "Q6_K: 0 of 2 tensors, the others have fallback types",
    ]
    done = glft("convert", source, tmp_path / "out.gguf", "--scheme", "q4_k", "--strict")
    assert_refused(done, "2 tensors have none of the types asked for: 'blk.1.ffn_down.weight' (not q4_k: expected")
    done = glft("convert", source, tmp_path / "out.gguf", "--scheme", "q8_0", "--scheme", "q4_k", "--strict")
    assert types(tmp_path / "out.gguf")["blk.1.ffn_down.weight"] == "q8_0"


def test_a_value_from_a_file(source: Path, tmp_path: Path) -> None:
    (tmp_path / "template.jinja").write_text("{{ a }}\n")
    options = ["--metadata", f"tokenizer.chat_template=@{tmp_path / 'template.jinja'}", "--metadata", "own.key=@@x"]
    assert glft("convert", source, tmp_path / "out.gguf", *options).returncode == 0
    with glft_schema.open(tmp_path / "out.gguf") as file:
        assert (file.metadata["tokenizer.chat_template"], file.metadata["own.key"]) == ("{{ a }}\n", "@x")
    assert_refused(glft("convert", source, tmp_path / "out.gguf", "--metadata", "own.key=@none"), "glft: none: No such file")


def test_the_page_of_recipes() -> None:
    page = glft("schema", "recipes").stdout
    section = page.partition("### Q4_K_M\n")[2].partition("\n### ")[0]
    assert "| attn_v | `q6_k` | more_bits |" in section.splitlines()
    assert "| [Q4_K_M](#q4_k_m) | 15 | `q4_k` | Q4_K |" in page.splitlines()
    assert_refused(glft("schema", "recipes", "--as", "json"), "recipes are a document: expected --as markdown, found json")


def test_a_matrix_that_does_not_fit(source: Path, tmp_path: Path) -> None:
    sums = {"blk.0.attn_q.weight": glft_schema.weights.ColumnSums(torch.ones(1, 64), torch.tensor([1]))}
    glft_schema.weights.ImportanceMatrix(sums).save(tmp_path / "imatrix.gguf")
    done = glft("quantize", source, tmp_path / "out.gguf", "Q4_K_M", "--imatrix", tmp_path / "imatrix.gguf")
    assert_refused(done, "the importance matrix is not of this model: tensor 'blk.0.attn_q.weight': ")
