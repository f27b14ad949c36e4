"""`glft quantize`, reports of requests that were not met, and the page of recipes."""

from __future__ import annotations

from pathlib import Path

import pytest

import glft_schema
from tests.quantizer import models
from tests.tools.command_line import in_this_process as glft


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.gguf"
    models.write(path, models.keys("llama", 2, 2, 1, 0), models.tensors(2, 0, tied=True, fused=False, width=256, down=64))
    return path


def test_quantize(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    planned = glft("quantize", source, out, "q4_k_m", "--dry-run")
    assert not out.exists()
    done = glft("quantize", source, out, "q4_k_m")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    nbytes = sum(tensor.nbytes for tensor in glft_schema.open(out).tensors.values())
    assert lines[:6] == [
        "Q6_K: 2 of 3 tensors, fallback types: 1",
        "Q4_K: 11 of 12 tensors, fallback types: 1",
        "fallback types:",
        "  1 as q5_0 (blk.N.ffn_down.weight): not q4_k: expected a row length that is a multiple of 256",
        "  1 as q8_0 (blk.N.ffn_down.weight): not q6_k: expected a row length that is a multiple of 256",
        f"{out}: Q4_K_M, 24 tensors, {nbytes:,} bytes of tensors, 7.61 bits per weight",
    ]
    assert planned.stdout.splitlines()[5] == f"dry run: {lines[5]}"
    assert ["token_embd.weight", "Q6_K", "630"] in [line.split() for line in planned.stdout.splitlines()]


def test_a_dry_run_exits_as_the_run(source: Path, tmp_path: Path) -> None:
    real, dry = (glft("quantize", source, tmp_path / "out.gguf", "IQ2_M", *more) for more in ((), ("--dry-run",)))
    assert real.returncode == dry.returncode == 2
    assert dry.stderr == real.stderr == dry.stdout.splitlines()[0].replace("would be refused", "glft") + "\n"


def test_a_copy_without_layers(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    assert glft("quantize", source, out, "copy", "--prune-layers", "0").stdout.startswith(f"{out}: COPY, 13 tensors, ")


def test_options(source: Path, tmp_path: Path) -> None:
    (tmp_path / "types.txt").write_text("attn_v=q8_0\nATTN_K=F16 attn_v=q4_0")
    out, options = tmp_path / "out.gguf", ["--token-embedding-type", "q3_k", "--pure", "--no-imatrix-keys"]
    options += ["--tensor-type", "1.ATTN_V=bf16", "--tensor-type-file", tmp_path / "types.txt"]
    options += ["--override-kv", "a.i=int:-3", "--override-kv", "a.f=float:0.5", "--override-kv", "a.b=bool:true"]
    done = glft("quantize", source, out, "Q4_K_S", *options, "--override-kv", "a.s=str:x=y:z")
    assert (done.returncode, done.stderr) == (0, "")
    with glft_schema.open(out) as file:
        found = {name: tensor.type.scheme for name, tensor in file.tensors.items()}
        own = {key: (file.metadata[key], file.metadata.type_of(key)) for key in ("a.i", "a.f", "a.b", "a.s")}
    assert found["token_embd.weight"] == "q3_k"
    types = [found[f"blk.{i}.attn_{part}.weight"] for i in (0, 1) for part in "vkq"]
    assert types == ["q8_0", "f16", "q4_k", "bf16", "f16", "q4_k"]
    assert own == {"a.i": (3, "uint32"), "a.f": (0.5, "float32"), "a.b": (True, "bool"), "a.s": ("x=y:z", "string")}


def test_convert_begins_with_what_was_not_done(source: Path, tmp_path: Path) -> None:
    out, schemes = tmp_path / "out.gguf", ("--scheme", "q4_k", "--scheme", "blk.*_down*=q6_k")
    lines = glft("convert", source, out, *schemes).stdout.splitlines()
    assert lines[:2] == ["Q4_K: 13 of 22 tensors, kept: 9", "Q6_K: 0 of 2 tensors, fallback types: 2"]
    reason = "expected a row length that is a multiple of 256"
    vectors = "output_norm.weight, blk.N.attn_v.bias, blk.N.attn_q.bias, blk.N.attn_k.bias"
    assert lines[-4:] == [
        "fallback types:",
        f"  2 as q8_0 (blk.N.ffn_down.weight): not q6_k: {reason}; not q4_k: {reason}",
        "kept:",
        f"  9 as f32 ({vectors} and 1 more): not q4_k: it has fewer than two dims, and no scheme selects it by its full name",
    ]
    assert "none of the types asked for" in glft("convert", source, out, *schemes, "--strict").stderr


def test_the_page_of_recipes() -> None:
    lines = glft("schema", "recipes").stdout.splitlines()
    assert "| [Q4_K_M](#q4_k_m) | 15 | `q4_k` | Q4_K |" in lines
    start = lines.index("### Q4_K_M")
    assert "| attn_v | `q6_k` | more_bits |" in lines[start : start + 12]
