"""Roles of GGUF files: their rules, and adapters that do or do not fit a model.

llama.cpp is the oracle: its loaders take the adapters that the rules take.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import glft_schema
from glft_schema import OptionError, Typed, check_rules, save_file
from glft_schema.checks import check_fit
from glft_schema.checks.roles import ROLES, role_of
from glft_schema.checks.rule_sets import report
from tests.oracles import llama_cpp
from tests.tools.command_line import assert_refused
from tests.tools.command_line import in_this_process as glft

LORA = {"general.type": "adapter", "general.architecture": "llama", "adapter.type": "lora", "adapter.lora.alpha": 8.0}
VECTOR = {"general.architecture": "controlvector", "controlvector.model_hint": "llama"}
MATRIX = {
    "general.type": "imatrix",
    "imatrix.datasets": ["a.txt"],
    "imatrix.chunk_count": Typed(7, "uint32"),
    "imatrix.chunk_size": Typed(512, "uint32"),
}
PROJECTOR = {
    "general.type": "mmproj",
    "general.architecture": "clip",
    "clip.has_vision_encoder": True,
    **{
        f"clip.vision.{key}": Typed(8, "uint32")
        for key in (
            *("embedding_length", "feed_forward_length", "block_count", "projection_dim", "attention.head_count"),
            *("image_size", "patch_size"),
        )
    },
    "clip.vision.attention.layer_norm_epsilon": 1e-6,
    "clip.vision.image_mean": [0.5, 0.5, 0.5],
    "clip.vision.image_std": [0.5, 0.5, 0.5],
}
MODEL = {
    "general.architecture": "llama",
    "llama.context_length": 64,
    "llama.embedding_length": 32,
    "llama.block_count": 3,
    "llama.feed_forward_length": 48,
    "llama.attention.head_count": 2,
    "llama.attention.head_count_kv": 1,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.vocab_size": 8,
    "tokenizer.ggml.model": "no_vocab",
}
LAYER = {
    "attn_norm": (32,),
    "attn_q": (32, 32),
    "attn_k": (16, 32),
    "attn_v": (16, 32),
    "attn_output": (32, 32),
    "ffn_norm": (32,),
    "ffn_gate": (48, 32),
    "ffn_up": (48, 32),
    "ffn_down": (32, 48),
}
A, B = "blk.1.ffn_up.weight.lora_a", "blk.1.ffn_up.weight.lora_b"
EMBEDDING_A, EMBEDDING_B = "token_embd.weight.lora_a", "token_embd.weight.lora_b"
PAIR = {A: (4, 32), B: (48, 4)}
ROWS = "tensor_infos -> "


def write(path: Path, metadata: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> Path:
    save_file({name: torch.ones(shape) for name, shape in shapes.items()}, path, metadata, rules=[])
    return path


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    layers = {f"blk.{i}.{name}.weight": shape for i in range(3) for name, shape in LAYER.items()}
    shapes = {"token_embd.weight": (8, 32), "output_norm.weight": (32,), **layers}
    return write(tmp_path_factory.mktemp("base") / "base.gguf", MODEL, shapes)


@pytest.fixture(scope="module")
def model(base: Path) -> Iterator[llama_cpp.AdapterTarget]:
    with llama_cpp.AdapterTarget(base) as loaded:
        yield loaded


# Metadata, shapes, what the file breaks by itself, what does not fit the model, and whether
# llama.cpp loads the file.
# fmt: off
ADAPTERS = {
    "a pair": (LORA, PAIR, [], [], True),
    "norms beside": (LORA, {**PAIR, "blk.1.ffn_norm.weight": (32,)}, [], [], True),
    "embeddings": (LORA, {EMBEDDING_A: (8, 4), EMBEDDING_B: (32, 4)}, [], [], True),
    "no tensors": (LORA, {}, [], [], True),
    "embeddings not transposed": (LORA, {EMBEDDING_A: (4, 8), EMBEDDING_B: (32, 4)}, [
        (f"{ROWS}1 -> dims", "expected the rank of lora_a, 8, found dims [4, 32]")], [
        (f"{ROWS}0 -> dims", "expected 8 for 'token_embd.weight' of the base, dims [32, 8], found dims [8, 4]")], False),
    "another architecture": (LORA | {"general.architecture": "qwen3"}, PAIR, [], [
        ("metadata -> 1 -> value", "expected the base's architecture, 'llama', found 'qwen3'")], False),
    "no architecture": ({k: v for k, v in LORA.items() if k != "general.architecture"}, PAIR, [
        ("metadata", "expected the key general.architecture, found 3 other keys")], [], False),
    "another kind": (LORA | {"adapter.type": "dora"}, PAIR, [
        ("metadata -> 2 -> value", "expected 'lora' for adapter.type, found 'dora'")], [], False),
    "no alpha": ({k: v for k, v in LORA.items() if k != "adapter.lora.alpha"}, PAIR, [
        ("metadata", "expected the key adapter.lora.alpha, found 3 other keys")], [], True),
    "half a pair": (LORA, {A: (4, 32)}, [
        (f"{ROWS}0 -> name", f"expected a tensor {B!r} beside {A!r}, found none")], [], False),
    "the other half": (LORA, {B: (48, 4)}, [
        (f"{ROWS}0 -> name", f"expected a tensor {A!r} beside {B!r}, found none")], [], False),
    "another tensor": (LORA, {**PAIR, "blk.1.ffn_up.weight": (48, 32)}, [
        (f"{ROWS}2 -> name", "expected a name that ends in .lora_a, .lora_b or _norm.weight, found 'blk.1.ffn_up.weight'")],
        [], False),
    "ranks": (LORA, {A: (4, 32), B: (48, 5)}, [
        (f"{ROWS}1 -> dims", "expected the rank of lora_a, 4, found dims [5, 48]")], [], False),
    "a tensor the base lacks": (LORA, {"blk.3.ffn_up.weight.lora_a": (4, 32), "blk.3.ffn_up.weight.lora_b": (48, 4)}, [], [
        (f"{ROWS}0 -> name", "expected a tensor of the base, found 'blk.3.ffn_up.weight', which it lacks")], False),
    "inputs": (LORA, {A: (4, 33), B: (48, 4)}, [], [
        (f"{ROWS}0 -> dims", "expected 32 for 'blk.1.ffn_up.weight' of the base, dims [32, 48], found dims [33, 4]")], False),
    "outputs": (LORA, {A: (4, 32), B: (32, 4)}, [], [
        (f"{ROWS}1 -> dims", "expected 48 for 'blk.1.ffn_up.weight' of the base, dims [32, 48], found dims [4, 32]")], False),
}
VECTORS = {
    "two layers": (VECTOR, {"direction.1": (32,), "direction.2": (32,)}, [], [], True),
    "leading zeros": (VECTOR | {"controlvector.layer_count": Typed(1, "int32")}, {"direction.01": (32,)}, [], [], True),
    "layer 0": (VECTOR, {"direction.0": (32,)}, [
        (f"{ROWS}0 -> name", "expected direction.N with a layer N of at least 1, found 'direction.0'")], [], False),
    "layer 10^10": (VECTOR, {"direction.10000000000": (32,)}, [
        (f"{ROWS}0 -> name", "expected direction.N with a layer N of at least 1, found 'direction.10000000000'")], [], False),
    "no layer": (VECTOR, {"direction.x": (32,)}, [
        (f"{ROWS}0 -> name", "expected direction.N with a layer N of at least 1, found 'direction.x'")], [], False),
    "lengths": (VECTOR, {"direction.1": (32,), "direction.2": (31,)}, [
        (f"{ROWS}1 -> dims", "expected dims [32] as direction.1, found [31]")], [
        (f"{ROWS}1 -> dims", "expected the base's embedding length, 32, found [31]")], False),
    "matrices": (VECTOR, {"direction.1": (2, 16)}, [
        (f"{ROWS}0 -> dims", "expected F32 with one dim, found F32 [16, 2]")], [], False),
    "no hint": ({"general.architecture": "controlvector"}, {"direction.1": (32,)}, [
        ("metadata", "expected the key controlvector.model_hint, found 1 other key")], [], True),
    "a layer too many": (VECTOR, {"direction.3": (32,)}, [], [
        (f"{ROWS}0 -> name", "expected a layer below the base's number of layers, 3, found 3")], True),
}
# fmt: on


def check(path: Path, role: str, own: list[tuple[str, str]], misfits: list[tuple[str, str]], base: Path, loads: bool) -> None:
    """Checks the findings of an adapter. If llama.cpp loads it, its own ones are no misfits."""
    with glft_schema.open(path) as file, glft_schema.open(base) as model:
        found, unfit = check_rules(file, role), check_fit(file, model)
        verdict = report(file)
    assert [(finding.path, finding.problem) for finding in found] == own
    assert bool(verdict.failures) == bool(own and not loads)
    assert [(finding.path, finding.problem) for finding in unfit] == [*([] if loads else own), *misfits]
    assert all(finding.offset is not None and finding.rule.startswith(f"{role}-") for finding in [*found, *unfit])


@pytest.mark.parametrize("name", ADAPTERS)
def test_adapters_are_judged_as_llama_cpp_does(name: str, base: Path, model: llama_cpp.AdapterTarget, tmp_path: Path) -> None:
    metadata, shapes, own, misfits, loads = ADAPTERS[name]
    path = write(tmp_path / "a.gguf", metadata, shapes)
    check(path, "lora", own, misfits, base, loads)
    assert model.loads(path) is loads


@pytest.mark.parametrize("name", VECTORS)
def test_control_vectors_are_judged_as_llama_cpp_does(name: str, base: Path, tmp_path: Path) -> None:
    metadata, shapes, own, misfits, loads = VECTORS[name]
    path = write(tmp_path / "a.gguf", metadata, shapes)
    check(path, "controlvector", own, misfits, base, loads)
    assert (llama_cpp.control_vector_size(path) > 0) is loads


def broken(path: Path, role: str) -> list[tuple[str, str, int | None]]:
    with glft_schema.open(path) as file:
        return [(finding.rule, finding.problem, finding.offset) for finding in check_rules(file, role)]


def test_control_vectors_are_in_f32(tmp_path: Path, base: Path) -> None:
    path = tmp_path / "v.gguf"
    save_file({"direction.1": torch.ones(32)}, path, VECTOR, schemes={"direction.1": "f16"})
    ((rule, problem, _),) = broken(path, "controlvector")
    assert (rule, problem) == ("controlvector-tensors", "expected F32 with one dim, found F16 [32]")
    assert llama_cpp.control_vector_size(path) == -1


def test_numbers_are_no_longer_than_python_converts(tmp_path: Path, base: Path) -> None:
    zeros = write(tmp_path / "v.gguf", VECTOR, {f"direction.{'0' * 5000}1": (32,)})
    nines = write(tmp_path / "w.gguf", VECTOR, {f"direction.{'9' * 5000}": (32,)})
    with glft_schema.open(zeros) as fits, glft_schema.open(nines) as refused, glft_schema.open(base) as model:
        assert check_fit(fits, model) == []
        assert [finding.rule for finding in check_fit(refused, model)] == ["controlvector-names"]


def test_keys_have_the_types_that_llama_cpp_reads(tmp_path: Path) -> None:
    """Other types end its process, so it is no oracle here."""
    path = write(tmp_path / "a.gguf", LORA | {"adapter.lora.alpha": 8}, PAIR)
    found = broken(path, "lora")
    assert [row[:2] for row in found] == [("lora-key-types", "expected float32 for adapter.lora.alpha, found uint32")]
    stored, key = path.read_bytes(), b"adapter.lora.alpha"
    assert found[0][2] == stored.index(key) + len(key)
    write(path, VECTOR | {"controlvector.layer_count": 1.0}, {})
    ((_, problem, _),) = broken(path, "controlvector")
    assert problem == "expected int32 or uint32 for controlvector.layer_count, found float32"


def test_projectors(tmp_path: Path) -> None:
    path = write(tmp_path / "p.gguf", PROJECTOR, {"v.patch_embd.weight": (8, 8)})
    assert broken(path, "mmproj") == []
    without = {key: value for key, value in PROJECTOR.items() if not key.endswith(("image_std", "block_count"))}
    write(path, without, {})
    assert [problem for _, problem, _ in broken(path, "mmproj")] == [
        "expected the key clip.vision.block_count, found 11 other keys",
        "expected the key clip.vision.image_std, found 11 other keys",
    ]
    write(path, PROJECTOR | {"clip.has_vision_encoder": False, "clip.has_audio_encoder": True}, {})
    assert [problem for _, problem, _ in broken(path, "mmproj")] == [
        f"expected the key clip.audio.{key}, found 14 other keys"
        for key in (
            *("embedding_length", "feed_forward_length", "block_count", "projection_dim", "attention.head_count"),
            *("attention.layer_norm_epsilon", "num_mel_bins"),
        )
    ]
    write(path, {"general.type": "mmproj"}, {})
    expected = "expected true for clip.has_vision_encoder or clip.has_audio_encoder, found none"
    assert [row[:2] for row in broken(path, "mmproj")] == [("mmproj-any-of", expected)]


def test_importance_matrices(tmp_path: Path) -> None:
    shapes = {"w.in_sum2": (2, 8), "w.counts": (2, 1), "other": (3,)}
    path = write(tmp_path / "i.gguf", MATRIX, shapes)
    assert broken(path, "imatrix") == []
    write(path, {"general.type": "imatrix"}, {**shapes, "w.counts": (3, 1), "v.counts": (1,)})
    assert [problem for _, problem, _ in broken(path, "imatrix")] == [
        "expected the key imatrix.datasets, found 1 other key",
        "expected the key imatrix.chunk_count, found 1 other key",
        "expected the key imatrix.chunk_size, found 1 other key",
        "expected counts that divide the sums [8, 2], found [1, 3]",
        "expected a tensor 'v.in_sum2' beside 'v.counts', found none",
    ]
    save_file({"w.in_sum2": torch.ones(8), "w.counts": torch.ones(1)}, path, MATRIX, schemes={"w.counts": "f16"})
    assert [row[1] for row in broken(path, "imatrix")] == ["expected sums and counts in F32, found F32 and F16"]


def test_roles_are_found_and_named(tmp_path: Path, base: Path) -> None:
    metadata = {"lora": LORA, "controlvector": VECTOR, "mmproj": PROJECTOR, "imatrix": MATRIX}
    assert metadata.keys() == ROLES.keys()
    for name, entries in metadata.items():
        with glft_schema.open(write(tmp_path / "f.gguf", entries, {})) as file:
            assert role_of(file) is ROLES[name]
    with glft_schema.open(base) as file:
        assert role_of(file) is None
        assert [finding.rule for finding in check_rules(file, ["ggml", "imatrix", "spec"])][:2] == ["imatrix-keys"] * 2
        with pytest.raises(
            OptionError, match=r"expected one of spec, ggml, .*lora, controlvector, mmproj, imatrix, llama.cpp, found 'x'"
        ):
            check_rules(file, "x")
        with pytest.raises(OptionError, match="expected a LoRA adapter or a control vector in GGUF, found "):
            check_fit(file, file)
    save_file({"w": torch.ones(2)}, tmp_path / "m.glft", {"general.type": "adapter"})
    write(tmp_path / "bare.gguf", {"general.name": "x"}, {})
    with glft_schema.open(write(tmp_path / "a.gguf", LORA, PAIR)) as adapter:
        for other, found in (("m.glft", "GLFT"), ("bare.gguf", "GGUF")):
            with (
                glft_schema.open(tmp_path / other) as file,
                pytest.raises(OptionError, match=rf"expected a GGUF model with general.architecture, found .* \({found}\)$"),
            ):
                check_fit(adapter, file)
    with glft_schema.open(tmp_path / "m.glft") as file:
        assert role_of(file) is None
        with pytest.raises(OptionError, match="expected a rule set of GLFT, found 'lora'"):
            check_rules(file, "lora")


def test_findings_of_roles_are_in_file_order_with_others(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf", LORA | {"Bad Key": 1}, {"x": (3,)})
    with glft_schema.open(path) as file:
        found = check_rules(file, ["lora", "spec"])
    assert [finding.rule for finding in found] == ["gguf-key", "lora-names"]
    assert [finding.offset for finding in found] == sorted(finding.offset or 0 for finding in found)


def test_verify_checks_the_role_and_the_fit(tmp_path: Path, base: Path) -> None:
    adapter = write(tmp_path / "a.gguf", LORA, {A: (4, 33)})
    done = glft("verify", adapter)
    assert (done.returncode, done.stderr) == (1, "")
    assert "1 rule violation (spec, ggml, lora); llama.cpp refuses the file\n" in done.stdout
    assert "lora-pairs" in done.stdout
    assert glft("verify", adapter, "--rules", "lora").returncode == 1
    assert glft("verify", adapter, "--rules", "ggml").returncode == 0
    done = glft("verify", adapter, "--fits", base)
    assert (done.returncode, done.stdout.splitlines()[-1].split()[-1]) == (1, "[lora-pairs]")
    write(adapter, LORA, {A: (4, 33), B: (32, 4)})
    done = glft("verify", adapter, "--fits", base)
    assert done.returncode == 1
    *_, verdict, first, second = done.stdout.splitlines()
    assert verdict == f"{adapter} does not fit {base}: 2 misfits"
    assert first.split()[-1] == second.split()[-1] == "[lora-fits]"
    data = json.loads(glft("verify", adapter, "--fits", base, "--json").stdout)
    assert (data["holds"], data["fits"]["base"], len(data["fits"]["misfits"])) == (False, str(base), 2)
    write(adapter, LORA, PAIR)
    done = glft("verify", adapter, "--fits", base)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, f"{adapter} fits {base}")
    assert_refused(glft("verify", base, "--fits", adapter), "expected a LoRA adapter or a control vector in GGUF, found")
    assert_refused(glft("verify", adapter, "--fits", tmp_path / "none"), "none: No such file or directory")
