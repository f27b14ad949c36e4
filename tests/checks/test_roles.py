"""Roles of GGUF files: their rules, and adapters that do or do not fit a model.

llama.cpp is the oracle: its loaders take the adapters that the rules take.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import glft_schema
from glft_schema import OptionError, Typed, check_rules, save_file
from glft_schema.checks import check_fit
from tests.checks import tiny_llama
from tests.oracles import llama_cpp
from tests.tools.command_line import in_this_process as glft

MODEL = {"general.architecture": "toy"}
LORA = {"general.type": "adapter", "general.architecture": "llama", "adapter.type": "lora", "adapter.lora.alpha": 8.0}
VECTOR = {"general.architecture": "controlvector", "controlvector.model_hint": "llama"}
MATRIX = {
    "general.type": "imatrix",
    "imatrix.datasets": ["a.txt"],
    "imatrix.chunk_count": Typed(7, "uint32"),
    "imatrix.chunk_size": Typed(512, "uint32"),
}
SIZES = ("embedding_length", "feed_forward_length", "block_count", "projection_dim", "attention.head_count")
VISION = {f"clip.vision.{key}": Typed(8, "uint32") for key in (*SIZES, "image_size", "patch_size")}
VISION |= {"clip.vision.attention.layer_norm_epsilon": 1e-6, "clip.vision.image_mean": [0.5], "clip.vision.image_std": [0.5]}
PROJECTOR = {"general.type": "mmproj", "general.architecture": "clip", "clip.has_vision_encoder": True, **VISION}
A, B = "blk.1.ffn_up.weight.lora_a", "blk.1.ffn_up.weight.lora_b"
EMBEDDING_A, EMBEDDING_B = "token_embd.weight.lora_a", "token_embd.weight.lora_b"
PAIR = {A: (4, 96), B: (160, 4)}
ROWS = "tensor_infos -> "


def write(path: Path, metadata: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> Path:
    save_file({name: torch.ones(shape) for name, shape in shapes.items()}, path, metadata, rules=[])
    return path


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama.write(tmp_path_factory.mktemp("base") / "base.gguf")


@pytest.fixture(scope="module")
def model(base: Path) -> Iterator[llama_cpp.AdapterTarget]:
    with llama_cpp.AdapterTarget(base) as loaded:
        yield loaded


# Metadata, shapes, whether llama.cpp loads the file, what it breaks by itself, and what does not
# fit the model.
# fmt: off
ADAPTERS: dict[str, tuple[Any, ...]] = {
    "a pair": (LORA, PAIR, True),
    "norms beside": (LORA, {**PAIR, "blk.1.ffn_norm.weight": (96,)}, True),
    "embeddings": (LORA, {EMBEDDING_A: (8, 4), EMBEDDING_B: (96, 4)}, True),
    "no tensors": (LORA, {}, True),
    "embeddings not transposed": (LORA, {EMBEDDING_A: (4, 8), EMBEDDING_B: (96, 4)}, False,
        [f"{ROWS}1 -> dims: expected the rank of lora_a, 8, found dims [4, 96]"],
        [f"{ROWS}0 -> dims: expected 8 for 'token_embd.weight' of the base, dims [96, 8], found dims [8, 4]"]),
    "another architecture": (LORA | {"general.architecture": "qwen3"}, PAIR, False,
        [], ["metadata -> 1 -> value: expected the base's architecture, 'llama', found 'qwen3'"]),
    "no architecture": ({k: v for k, v in LORA.items() if k != "general.architecture"}, PAIR, False,
        ["metadata: expected the key general.architecture, found 3 other keys"]),
    "another kind": (LORA | {"adapter.type": "dora"}, PAIR, False,
        ["metadata -> 2 -> value: expected 'lora' for adapter.type, found 'dora'"]),
    "no alpha": ({k: v for k, v in LORA.items() if k != "adapter.lora.alpha"}, PAIR, True,
        ["metadata: expected the key adapter.lora.alpha, found 3 other keys"]),
    "half a pair": (LORA, {A: (4, 96)}, False, [f"{ROWS}0 -> name: expected a tensor {B!r} beside {A!r}, found none"]),
    "the other half": (LORA, {B: (160, 4)}, False, [f"{ROWS}0 -> name: expected a tensor {A!r} beside {B!r}, found none"]),
    "another tensor": (LORA, {**PAIR, "blk.1.ffn_up.weight": (160, 96)}, False,
        [f"{ROWS}2 -> name: expected a name that ends in .lora_a, .lora_b or _norm.weight, found 'blk.1.ffn_up.weight'"]),
    "ranks": (LORA, {A: (4, 96), B: (160, 5)}, False,
        [f"{ROWS}1 -> dims: expected the rank of lora_a, 4, found dims [5, 160]"]),
    "a tensor the base lacks": (LORA, {"blk.3.ffn_up.weight.lora_a": (4, 96), "blk.3.ffn_up.weight.lora_b": (160, 4)}, False,
        [], [f"{ROWS}0 -> name: expected a tensor of the base, found 'blk.3.ffn_up.weight', which it lacks"]),
    "inputs": (LORA, {A: (4, 97), B: (160, 4)}, False,
        [], [f"{ROWS}0 -> dims: expected 96 for 'blk.1.ffn_up.weight' of the base, dims [96, 160], found dims [97, 4]"]),
    "outputs": (LORA, {A: (4, 96), B: (96, 4)}, False,
        [], [f"{ROWS}1 -> dims: expected 160 for 'blk.1.ffn_up.weight' of the base, dims [96, 160], found dims [4, 96]"]),
}
VECTORS: dict[str, tuple[Any, ...]] = {
    "two layers": (VECTOR, {"direction.1": (96,), "direction.2": (96,)}, True),
    "leading zeros": (VECTOR | {"controlvector.layer_count": Typed(1, "int32")}, {"direction.01": (96,)}, True),
    "layer 0": (VECTOR, {"direction.0": (96,)}, False,
        [f"{ROWS}0 -> name: expected direction.N with a layer N of at least 1, found 'direction.0'"]),
    "layer 10^10": (VECTOR, {"direction.10000000000": (96,)}, False,
        [f"{ROWS}0 -> name: expected direction.N with a layer N of at least 1, found 'direction.10000000000'"]),
    "no layer": (VECTOR, {"direction.x": (96,)}, False,
        [f"{ROWS}0 -> name: expected direction.N with a layer N of at least 1, found 'direction.x'"]),
    "lengths": (VECTOR, {"direction.1": (96,), "direction.2": (95,)}, False,
        [f"{ROWS}1 -> dims: expected dims [96] as direction.1, found [95]"],
        [f"{ROWS}1 -> dims: expected the base's embedding length, 96, found [95]"]),
    "matrices": (VECTOR, {"direction.1": (2, 48)}, False, [f"{ROWS}0 -> dims: expected F32 with one dim, found F32 [48, 2]"]),
    "no hint": ({"general.architecture": "controlvector"}, {"direction.1": (96,)}, True,
        ["metadata: expected the key controlvector.model_hint, found 1 other key"]),
    "a layer too many": (VECTOR, {"direction.3": (96,)}, True,
        [], [f"{ROWS}0 -> name: expected a layer below the base's number of layers, 3, found 3"]),
}
# fmt: on


def check(path: Path, role: str, base: Path, loads: bool, own: Sequence[str] = (), misfits: Sequence[str] = ()) -> None:
    """Checks the findings of an adapter. If llama.cpp loads it, its own ones are no misfits."""
    with glft_schema.open(path) as file, glft_schema.open(base) as model:
        found, unfit = check_rules(file, role), check_fit(file, model)
    assert [f"{finding.path}: {finding.problem}" for finding in found] == [*own]
    assert glft("verify", path).returncode == bool(own and not loads)
    assert [f"{finding.path}: {finding.problem}" for finding in unfit] == [*([] if loads else own), *misfits]
    assert all(finding.offset is not None and finding.rule.startswith(f"{role}-") for finding in [*found, *unfit])


@pytest.mark.parametrize("name", ADAPTERS)
def test_adapters_are_judged_as_llama_cpp_does(name: str, base: Path, model: llama_cpp.AdapterTarget, tmp_path: Path) -> None:
    metadata, shapes, loads, *findings = ADAPTERS[name]
    path = write(tmp_path / "a.gguf", metadata, shapes)
    check(path, "lora", base, loads, *findings)
    assert model.loads(path) is loads


@pytest.mark.parametrize("name", VECTORS)
def test_control_vectors_are_judged_as_llama_cpp_does(name: str, base: Path, tmp_path: Path) -> None:
    metadata, shapes, loads, *findings = VECTORS[name]
    path = write(tmp_path / "a.gguf", metadata, shapes)
    check(path, "controlvector", base, loads, *findings)
    assert (llama_cpp.control_vector_size(path) > 0) is loads


def problems(path: Path, role: str) -> list[str]:
    return [finding.problem for finding in check_rules(path, role)]


def test_control_vectors_are_in_f32(tmp_path: Path) -> None:
    path = tmp_path / "v.gguf"
    save_file({"direction.1": torch.ones(32)}, path, VECTOR, schemes={"direction.1": "f16"})
    assert problems(path, "controlvector") == ["expected F32 with one dim, found F16 [32]"]
    assert llama_cpp.control_vector_size(path) == -1


@pytest.mark.parametrize(("digit", "rules"), [("0", []), ("9", ["controlvector-names"])])
def test_numbers_are_no_longer_than_python_converts(digit: str, rules: list[str], tmp_path: Path, base: Path) -> None:
    path = write(tmp_path / "v.gguf", VECTOR, {f"direction.{digit * 5000}1": (96,)})
    with glft_schema.open(path) as vector, glft_schema.open(base) as model:
        assert [finding.rule for finding in check_fit(vector, model)] == rules


@pytest.mark.parametrize(
    ("role", "metadata", "expected"),
    [
        ("lora", LORA | {"adapter.lora.alpha": Typed(8, "uint32")}, "float32 for adapter.lora.alpha, found uint32"),
        (
            "controlvector",
            VECTOR | {"controlvector.layer_count": 1.0},
            "int32 or uint32 for controlvector.layer_count, found float32",
        ),
    ],
)
def test_keys_have_the_types_that_llama_cpp_reads(role: str, metadata: dict[str, Any], expected: str, tmp_path: Path) -> None:
    """Other types end its process, so it is no oracle here."""
    path, key = write(tmp_path / "a.gguf", metadata, {}), [*metadata][-1].encode()
    (found,) = check_rules(path, role)
    assert (found.rule, found.problem) == (f"{role}-key-types", f"expected {expected}")
    assert found.offset == path.read_bytes().index(key) + len(key)


AUDIO = {"clip.has_vision_encoder": False, "clip.has_audio_encoder": True}
SUMS = {"w.in_sum2": (2, 8), "w.counts": (2, 1), "other": (3,)}


@pytest.mark.parametrize(
    ("role", "metadata", "shapes", "expected"),
    [
        ("mmproj", PROJECTOR, {"v.patch_embd.weight": (8, 8)}, []),
        (
            "mmproj",
            {key: value for key, value in PROJECTOR.items() if not key.endswith(("image_std", "block_count"))},
            {},
            [f"expected the key clip.vision.{key}, found 11 other keys" for key in ("block_count", "image_std")],
        ),
        (
            "mmproj",
            PROJECTOR | AUDIO,
            {},
            [
                f"expected the key clip.audio.{key}, found 14 other keys"
                for key in (*SIZES, "attention.layer_norm_epsilon", "num_mel_bins")
            ],
        ),
        (
            "mmproj",
            {"general.type": "mmproj"},
            {},
            ["expected true for clip.has_vision_encoder or clip.has_audio_encoder, found none"],
        ),
        ("imatrix", MATRIX, SUMS, []),
        (
            "imatrix",
            {"general.type": "imatrix"},
            {**SUMS, "w.counts": (3, 1), "v.counts": (1,)},
            [
                *(f"expected the key imatrix.{key}, found 1 other key" for key in ("datasets", "chunk_count", "chunk_size")),
                "expected counts that divide the sums [8, 2], found [1, 3]",
                "expected a tensor 'v.in_sum2' beside 'v.counts', found none",
            ],
        ),
    ],
)
def test_projectors_and_importance_matrices(
    role: str, metadata: dict[str, Any], shapes: dict[str, tuple[int, ...]], expected: list[str], tmp_path: Path
) -> None:
    assert problems(write(tmp_path / "f.gguf", metadata, shapes), role) == expected


def test_importance_matrices_are_in_f32(tmp_path: Path) -> None:
    path = tmp_path / "i.gguf"
    save_file({"w.in_sum2": torch.ones(8), "w.counts": torch.ones(1)}, path, MATRIX, schemes={"w.counts": "f16"})
    assert problems(path, "imatrix") == ["expected sums and counts in F32, found F32 and F16"]


@pytest.mark.parametrize(
    ("role", "metadata"), {"lora": LORA, "controlvector": VECTOR, "mmproj": PROJECTOR, "imatrix": MATRIX, "": MODEL}.items()
)
def test_roles_are_checked_by_default(role: str, metadata: dict[str, Any], tmp_path: Path) -> None:
    sets = f"(spec, ggml{', ' * bool(role)}{role})"
    assert sets in glft("verify", write(tmp_path / "f.gguf", metadata, {})).stdout.splitlines()[0]


def test_what_is_no_rule_set_of_a_file(tmp_path: Path) -> None:
    path = write(tmp_path / "f.gguf", MODEL, {})
    known = r"expected one of spec, ggml, .*lora, controlvector, mmproj, imatrix, llama.cpp, found 'x'"
    with pytest.raises(OptionError, match=known):
        check_rules(path, "x")
    save_file({}, tmp_path / "m.glft")
    with pytest.raises(OptionError, match="expected a rule set of GLFT, found 'lora'"):
        check_rules(tmp_path / "m.glft", "lora")


def test_what_has_no_fit(tmp_path: Path, base: Path) -> None:
    save_file({"w": torch.ones(2)}, tmp_path / "m.glft", {"general.type": "adapter"})
    write(tmp_path / "bare.gguf", {"general.name": "x"}, {})
    adapter, none = write(tmp_path / "a.gguf", LORA, PAIR), "expected a GGUF model with general.architecture, found .*"
    for one, other, problem in (
        (base, base, "expected a LoRA adapter or a control vector in GGUF, found "),
        (adapter, tmp_path / "m.glft", rf"{none} \(GLFT\)$"),
        (adapter, tmp_path / "bare.gguf", rf"{none} \(GGUF\)$"),
    ):
        with glft_schema.open(one) as file, glft_schema.open(other) as model, pytest.raises(OptionError, match=problem):
            check_fit(file, model)


def test_findings_of_roles_are_in_file_order_with_others(tmp_path: Path) -> None:
    found = check_rules(write(tmp_path / "a.gguf", LORA | {"Bad Key": 1}, {"x": (3,)}), ["lora", "spec"])
    assert [finding.rule for finding in found] == ["gguf-key", "lora-names"]
    assert [finding.offset for finding in found] == sorted(finding.offset or 0 for finding in found)


def test_verify_checks_the_fit(tmp_path: Path, base: Path) -> None:
    adapter = write(tmp_path / "a.gguf", LORA, {A: (4, 97), B: (96, 4)})
    done = glft("verify", adapter, "--fits", base)
    *_, verdict, first, second = done.stdout.splitlines()
    assert (done.returncode, verdict) == (1, f"{adapter} does not fit {base}: 2 misfits")
    assert first.split()[-1] == second.split()[-1] == "[lora-fits]"
    data = json.loads(glft("verify", adapter, "--fits", base, "--json").stdout)
    assert (data["holds"], data["fits"]["base"], len(data["fits"]["misfits"])) == (False, str(base), 2)
    done = glft("verify", write(adapter, LORA, PAIR), "--fits", base)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, f"{adapter} fits {base}")


def test_verify_checks_the_role(tmp_path: Path) -> None:
    adapter = write(tmp_path / "a.gguf", LORA, {A: (4, 97)})
    assert "1 rule violation (spec, ggml, lora); llama.cpp refuses the file\n" in glft("verify", adapter).stdout
    assert [glft("verify", adapter, "--rules", name).returncode for name in ("lora", "ggml")] == [1, 0]
