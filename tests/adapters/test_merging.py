"""LoRA adapters merged into GGUF models: beside peft, and beside llama.cpp, which applies them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import glft_schema as glft
from glft_schema.codec.typed_values import Typed
from glft_schema.families.pages.qwen35 import QWEN35
from glft_schema.models.from_gguf import load_model
from glft_schema.tensors.stored_tensor import of_values
from glft_schema.weights.peft_adapters import updates_of_peft
from tests.families.conftest import any_fingerprint, libraries  # noqa: F401
from tests.families.tiny_folders import CONFIGS, make_folder
from tests.tools.command_line import assert_refused, in_this_process
from tests.tools.depth import some_by_default

peft = pytest.importorskip("peft", reason="needs peft")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of transformers' own attributes, which peft reads
TOKENS = torch.tensor([[1, 45, 120, 77, 200, 12, 99, 33, 250, 7, 8, 9]])
LAYERS = {
    "tiny-gpt2": ["c_attn", "c_fc", "wte"],
    "tiny-bert": ["query", "key", "word_embeddings"],
    "tiny-phi3": ["qkv_proj", "down_proj", "embed_tokens"],
    "tiny-qwen3moe": ["q_proj", "k_proj", "embed_tokens"],
}
FAMILIES = [name for name in CONFIGS if name != "tiny-yarn"]


def gguf_of(parent: Path, name: str, type_: str = "F32") -> Path:
    out = parent / f"{name}-{type_}.gguf"
    glft.quantize(parent / name if (parent / name).exists() else make_folder(parent, name), out, type_, allow_requantize=True)
    return out


def adapted(path: Path, folder: Path, layers: list[str], **options: Any) -> Any:
    """Returns the model of a file with an adapter of random numbers, which is saved, too."""
    torch.manual_seed(0)
    settings = {"r": 4, "lora_alpha": 12, "target_modules": layers} | options
    model = peft.get_peft_model(load_model(path), peft.LoraConfig(**settings))
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    return model.eval()


def assert_same_model(path: Path, expected: Any, **tolerances: float) -> None:
    """Compares the values of a file with those of a model, by their names in transformers."""
    state = load_model(path).state_dict()
    assert state.keys() == expected.state_dict().keys()
    for name, values in expected.state_dict().items():
        if name.startswith("pooler."):  # random, since GGUF does not have it
            continue
        torch.testing.assert_close(state[name], values, msg=lambda text, name=name: f"{name}: {text}", **tolerances)


@pytest.mark.parametrize("name", some_by_default([*FAMILIES], 3))
@pytest.mark.filterwarnings("ignore::glft_schema.errors.TiedWarning", "ignore::UserWarning")
def test_equals_peft(name: str, tmp_path: Path) -> None:
    """In float32, where encoding has no error. q and k are permuted, gpt2's layers transposed."""
    path = gguf_of(tmp_path, name)
    model = adapted(path, tmp_path / "adapter", LAYERS.get(name, ["q_proj", "k_proj", "down_proj", "embed_tokens"]))
    merged = glft.adapters.merge_lora(path, tmp_path / "adapter", tmp_path / "out.gguf")
    assert all(tensor.errors.relative == 0 < tensor.update for tensor in merged)
    assert_same_model(tmp_path / "out.gguf", model.merge_and_unload(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "scale"),
    [
        ({"use_rslora": True}, 1),
        ({"rank_pattern": {"k_proj": 2}, "alpha_pattern": {"layers.1.self_attn.q_proj": 64, "k_proj": 5}}, 1),
        ({"alpha_pattern": {r"^model\.layers\.[1-9]+\.(self_attn|mlp)\.q_proj$": 64, ".*k_p.{1,3}j": 5}}, 1),
        ({"lora_alpha": 1, "layers_to_transform": [1]}, 1),
        ({}, -0.5),
    ],
    ids=str,
)
def test_scales_of_peft(options: dict[str, Any], scale: float, tmp_path: Path) -> None:
    path = gguf_of(tmp_path, "tiny-llama")
    model = adapted(path, tmp_path / "adapter", ["q_proj", "k_proj"], **options)
    glft.adapters.merge_lora(path, tmp_path / "adapter", tmp_path / "out.gguf", scale=scale)
    for layer in model.modules():
        if isinstance(layer, peft.tuners.lora.LoraLayer):
            layer.scale_layer(scale)
    assert_same_model(tmp_path / "out.gguf", model.merge_and_unload(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("type_", ["Q8_0", "Q4_0", "Q4_K_M", "F16"])
def test_types_stay(type_: str, tmp_path: Path) -> None:
    """Weights differ by the type's own error, which is reported; other tensors are copied."""
    path = gguf_of(tmp_path, "tiny-llama", type_)
    model = adapted(path, tmp_path / "adapter", ["q_proj", "down_proj"]).merge_and_unload()
    merged = glft.adapters.merge_lora(path, tmp_path / "adapter", tmp_path / "out.gguf")
    names = [f"blk.{i}.{name}.weight" for i in range(2) for name in ("attn_q", "ffn_down")]
    assert sorted(tensor.name for tensor in merged) == sorted(names)
    with glft.open(path) as before, glft.open(tmp_path / "out.gguf") as after:
        assert (after.metadata, list(after.tensors)) == (before.metadata, list(before.tensors))
        for name, tensor in before.tensors.items():
            assert after.tensors[name].type == tensor.type
            assert (after.tensors[name].raw == tensor.raw) == (name not in names)
    layer, (report,) = "model.layers.1.mlp.down_proj.weight", (one for one in merged if one.name == "blk.1.ffn_down.weight")
    expected, found = (each.state_dict()[layer] for each in (model, load_model(tmp_path / "out.gguf")))
    assert report.errors.relative == pytest.approx(float((found - expected).norm() / expected.norm()), rel=1e-3, abs=1e-7)
    assert report.errors.largest == pytest.approx(float((found - expected).abs().max()), rel=1e-3, abs=1e-6)


def test_nothing_to_add(tmp_path: Path) -> None:
    """Encoding again what Q8_0 has stored gives the same bytes."""
    path = gguf_of(tmp_path, "tiny-llama", "Q8_0")
    adapted(path, tmp_path / "adapter", ["q_proj", "down_proj"])
    glft.adapters.merge_lora(path, tmp_path / "adapter", tmp_path / "out.gguf", scale=0)
    assert (tmp_path / "out.gguf").read_bytes() == path.read_bytes()


def in_gguf(path: Path, pairs: Mapping[str, tuple[torch.Tensor, torch.Tensor]], **metadata: Any) -> Path:
    tensors = {f"{name}.lora_{side}": values for name, pair in pairs.items() for side, values in zip("ab", pair, strict=True)}
    own = {"general.type": "adapter", "general.architecture": "llama", "adapter.type": "lora", "adapter.lora.alpha": 8.0}
    glft.save_file(tensors, path, own | metadata, rules=[])
    return path


def pair(out: int, columns: int, rank: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(out + columns)
    return torch.randn(rank, columns, generator=generator) / 4, torch.randn(out, rank, generator=generator) / 4


def test_importance(tmp_path: Path) -> None:
    path = gguf_of(tmp_path, "tiny-llama", "Q4_0")
    adapter, name = in_gguf(tmp_path / "adapter.gguf", {"blk.0.attn_q.weight": pair(64, 64)}), "blk.0.attn_q.weight"
    importance = {name: torch.arange(64.0), "blk.1.attn_q.weight": torch.ones(64)}
    plain, weighted, expected = (tmp_path / f"{stem}.gguf" for stem in ("plain", "weighted", "expected"))
    glft.adapters.merge_lora(path, adapter, plain)
    glft.adapters.merge_lora(path, adapter, weighted, importance=importance)
    a, b = pair(64, 64)
    merged = {name: glft.load_file(path)[name] + 2 * b @ a}
    glft.save_file(merged, expected, schemes={name: "q4_0"}, importance=importance, rules=[])
    found = [glft.open(each).tensors[name].raw for each in (weighted, expected, plain)]
    assert found[0] == found[1] != found[2]


def settings(folder: Path, **changed: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and an adapter of its queries."""
    folder = tmp_path_factory.mktemp("llama")
    gguf_of(folder, "tiny-llama", "Q8_0").rename(folder / "model.gguf")
    adapted(folder / "model.gguf", folder / "adapter", ["q_proj"])
    return folder


def changed(llama: Path, tmp_path: Path, own: Mapping[str, Any], tensors: Mapping[str, Any]) -> Path:
    """Returns a copy of the adapter with other settings, and tensors of ones; None removes some."""
    folder = Path(shutil.copytree(llama / "adapter", tmp_path / "adapter"))
    settings(folder, **own)
    path = folder / "adapter_model.safetensors"
    kept = {name: tensor for name, tensor in load_file(path).items() if not any(part in name for part in tensors)}
    save_file(kept | {name: torch.ones(shape) for name, shape in tensors.items() if shape is not None}, path)
    return folder


LAYER = "base_model.model.model.layers.0.self_attn"
OTHER = "base_model.model.model.layers.0.mlp.other"


def both(layer: str, rows: int = 4, rank: int = 4, columns: int = 4) -> dict[str, tuple[int, int]]:
    """Returns the shapes of A and B."""
    return {f"{layer}.lora_A.weight": (rank, columns), f"{layer}.lora_B.weight": (rows, rank)}


FAULTS: list[tuple[dict[str, Any], dict[str, Any], str]] = [  # settings, shapes of tensors, problem
    ({"use_dora": True}, {}, "expected plain LoRA, found DoRA"),
    ({"alora_invocation_tokens": [3]}, {}, "expected plain LoRA, found aLoRA"),
    ({"init_lora_weights": "loftq"}, {}, "init_lora_weights: expected plain LoRA, found 'loftq', which"),
    ({"r": None}, {}, "expected the rank that adapter_config.json states, None, found 4"),
    ({"rank_pattern": {"0.self_attn.q_proj": 8}}, {}, "adapter_config.json states, 8, found 4"),
    ({"modules_to_save": ["lm_head"]}, {}, "found modules_to_save"),
    ({"target_parameters": ["experts.down_proj"]}, {}, "found target_parameters"),
    ({"layer_replication": [[0, 2]]}, {}, "found layer_replication"),
    ({"bias": "all"}, {}, "bias: expected 'none', found 'all'"),
    ({"peft_type": "IA3"}, {}, "peft_type: expected 'LORA', found 'IA3'"),
    ({"lora_alpha": True}, {}, "lora_alpha: expected a finite number, found True"),
    ({"lora_alpha": 10**400}, {}, "lora_alpha: expected a finite number, found an integer of 1329 bits"),
    ({"alpha_pattern": {"q_proj": float("inf")}}, {}, "expected a finite number, found inf"),
    ({"alpha_pattern": [1]}, {}, "alpha_pattern: expected an object with values by pattern, found"),
    ({"alpha_pattern": {"(": 1}}, {}, "alpha_pattern: expected a pattern of letters, classes, words in groups, and at most 3 "
     "repetitions of a letter, found '('"),
    ({}, both(f"{LAYER.replace('0', '0' * 5000)}.q_proj"), "it changes ['q_proj'], the llama model has 2 blocks with"),
    ({}, both(f"{LAYER.replace('0', '7')}.q_proj"),
     "the adapter fits another model: it changes ['q_proj'], the llama model has 2 blocks with"),
    ({}, both(OTHER), f"'{OTHER}': the adapter fits another model: it changes ['other', 'q_proj'], "
     "the llama model has 2 blocks with embed_tokens, lm_head, q_proj, k_proj, v_proj, o_proj, "),
    ({}, {f"{LAYER}.q_proj.lora_A.weight": (4, 32)},
     "fits another model: it changes blk.0.attn_q.weight of [64, 32], the model has [64, 64]"),
    ({}, {f"{LAYER}.k_proj.lora_A": (4, 64), f"{LAYER}.k_proj.lora_A.weight": (4, 64)},
     f"'{LAYER}.k_proj.lora_A.weight': expected one tensor A of this layer, found another, '{LAYER}.k_proj.lora_A'"),
    ({}, both(f"{LAYER}.q_proj", 64, 4, 64) | both(f"{LAYER.removeprefix('base_model.model.')}.q_proj", 64, 4, 64),
     "expected one adapter of blk.0.attn_q.weight, found two"),
    ({}, both(f"{LAYER}.q_proj", 64, 0, 64), f"'{LAYER}.q_proj.lora_A.weight': expected a rank of at least 1, found 0"),
    ({}, {f"{LAYER}.q_proj.lora_B": None}, "expected both A and B of LoRA, found one"),
    ({}, {f"{LAYER}.q_proj.lora_B.weight": (64, 3)},
     f"'{LAYER}.q_proj.lora_B.weight': expected 4 columns, the rank of A, found 3"),
    ({}, {"x.weight": (2,)}, "'x.weight': expected a matrix A or B of LoRA, found [2]"),
]  # fmt: skip


@pytest.mark.parametrize(("own", "tensors", "message"), FAULTS)
def test_faults_of_folders(own: dict[str, Any], tensors: dict[str, Any], message: str, llama: Path, tmp_path: Path) -> None:
    with pytest.raises(glft.FormatError, match=re.escape(message)):
        glft.adapters.merge_lora(llama / "model.gguf", changed(llama, tmp_path, own, tensors), tmp_path / "out.gguf")
    assert not (tmp_path / "out.gguf").exists()


def test_a_layer_whose_columns_move(tmp_path: Path) -> None:
    """GGUF reorders the columns of this layer, not its rows."""
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 1, "lora_alpha": 1}')
    layer = "base_model.model.model.layers.0.linear_attn.out_proj"
    tensors = {name: of_values(np.ones(shape, np.float32)) for name, shape in both(layer, 8, 1, 8).items()}
    config = {"num_hidden_layers": 1, "linear_num_key_heads": 2, "linear_num_value_heads": 4}
    with pytest.raises(glft.TensorError, match="expected a layer that GGUF does not split"):
        updates_of_peft(tmp_path, tensors, (QWEN35, config), {"blk.0.ssm_out.weight": torch.ones(8, 8)})


def test_a_folder_without_settings(llama: Path, tmp_path: Path) -> None:
    with pytest.raises(glft.OptionError, match="expected a LoRA adapter: a GGUF file, or a folder with"):
        glft.adapters.merge_lora(llama / "model.gguf", tmp_path, tmp_path / "out.gguf")


def test_a_tied_output(tmp_path: Path) -> None:
    path = gguf_of(tmp_path, "tiny-qwen2", "Q8_0")
    adapted(path, tmp_path / "adapter", ["q_proj"])
    pair = {name: torch.ones(shape) for name, shape in both("base_model.model.lm_head", 264, 4, 64).items()}
    save_file(pair, tmp_path / "adapter" / "adapter_model.safetensors")
    message = "the adapter fits another model: it changes output.weight of [264, 64], the model has none"
    with pytest.raises(glft.FormatError, match=re.escape(message)):
        glft.adapters.merge_lora(path, tmp_path / "adapter", tmp_path / "out.gguf")


@pytest.mark.parametrize(
    ("pairs", "metadata", "message"),
    [
        ({}, {"general.architecture": "qwen2"}, "expected the base's architecture, 'llama', found 'qwen2'"),
        ({}, {"adapter.type": "vera"}, "adapter.type"),
        (
            {"blk.9.attn_q.weight": pair(64, 64)},
            {},
            "expected a tensor of the base, found 'blk.9.attn_q.weight', which it lacks",
        ),
        ({"blk.0.attn_q.weight": pair(64, 32)}, {}, "expected 64 for 'blk.0.attn_q.weight' of the base"),
        (
            {"blk.0.attn_q.weight": (torch.ones(3, 4, 64), torch.ones(3, 64, 4))},
            {},
            "expected 1 matrix for 'blk.0.attn_q.weight' of the base, found dims [64, 4, 3]",
        ),
        (
            {"blk.0.attn_q.weight": pair(64, 64)},
            {"adapter.alora.invocation_tokens": Typed([3], "array[uint32]")},
            "metadata -> adapter.alora.invocation_tokens: expected plain LoRA, found aLoRA",
        ),
    ],
    ids=["architecture", "kind", "tensor", "shape", "stack", "alora"],
)
def test_faults_of_gguf_adapters(pairs: Any, metadata: dict[str, Any], message: str, llama: Path, tmp_path: Path) -> None:
    adapter = in_gguf(tmp_path / "adapter.gguf", pairs, **metadata)
    assert_refused(in_this_process("merge-lora", llama / "model.gguf", adapter, tmp_path / "out.gguf"), message)
    assert not (tmp_path / "out.gguf").exists()


def test_other_models(tmp_path: Path) -> None:
    folder, out = make_folder(tmp_path, "tiny-bert"), tmp_path / "out.gguf"
    glft.save_file({"x": torch.ones(2, 2)}, tmp_path / "m.glft")
    for model in (tmp_path / "m.glft", folder):
        text = f"expected a GGUF file as the model, found '{model}': convert it first (glft convert)"
        with pytest.raises(glft.OptionError, match=re.escape(text)):
            glft.adapters.merge_lora(model, tmp_path, out)
    refusal = r"merging writes GGUF, found the output 'out\.safetensors': write GGUF, then use glft convert"
    with pytest.raises(glft.OptionError, match=refusal):
        glft.adapters.merge_lora(folder, tmp_path, tmp_path / "out.safetensors")


@pytest.mark.parametrize(
    ("first", "scale", "error", "names"),
    [
        (float("inf"), 1.0, glft.FormatError, r"^'blk\.0\.attn_q\.weight\.lora_a': expected finite .* in .*adapter\.gguf$"),
        (1.0, 1e300, glft.TensorError, r"blk\.0\.attn_q\.weight"),
    ],
)
def test_updates_that_are_not_finite(
    first: float, scale: float, error: type[Exception], names: str, llama: Path, tmp_path: Path
) -> None:
    a, b = pair(64, 64)
    a[0, 0] = first
    adapter = in_gguf(tmp_path / "adapter.gguf", {"blk.0.attn_q.weight": (a, b)})
    with pytest.raises(error, match=names):
        glft.adapters.merge_lora(llama / "model.gguf", adapter, tmp_path / "out.gguf", scale=scale)
    assert not (tmp_path / "out.gguf").exists()


def test_tied_embeddings_are_named(tmp_path: Path) -> None:
    path = gguf_of(tmp_path, "tiny-qwen2")
    rows, columns = pair(64, 264)
    values = {"token_embd.weight": (rows.T.contiguous(), columns)}
    adapter = in_gguf(tmp_path / "adapter.gguf", values, **{"general.architecture": "qwen2"})
    with pytest.warns(glft.errors.TiedWarning, match="token_embd.weight is also the output matrix, which changes, too"):
        glft.adapters.merge_lora(path, adapter, tmp_path / "out.gguf")


def test_report_of_the_command_line(llama: Path, tmp_path: Path) -> None:
    adapter, out = in_gguf(tmp_path / "adapter.gguf", {"blk.0.attn_q.weight": pair(64, 64)}), tmp_path / "out.gguf"
    done = in_this_process("merge-lora", llama / "model.gguf", adapter, out, "--scale", "2", "--verbose")
    assert (done.returncode, done.stderr) == (0, "")
    first, empty, header, row = done.stdout.splitlines()
    assert (first, empty) == (f"{out}: 1 tensor changed, all others copied", "")
    assert header.split() == ["tensor", "type", "update", "error", "max", "error"]
    assert re.match(r" *blk\.0\.attn_q\.weight +Q8_0 +\S+% ", row)


@pytest.mark.parametrize(("scale", "is_lost"), [("1e-6", True), ("10", False)])
def test_a_merge_whose_update_is_lost(scale: str, is_lost: bool, llama: Path, tmp_path: Path) -> None:
    adapter = in_gguf(tmp_path / "adapter.gguf", {"blk.0.attn_q.weight": pair(64, 64)})
    done = in_this_process("merge-lora", llama / "model.gguf", adapter, tmp_path / "out.gguf", "--scale", scale)
    lost = "in 1 of 1 tensors the error of their type is as large as the adapter's update, e.g. blk.0.attn_q.weight"
    assert done.stderr == is_lost * f"glft: warning: {lost}: merge into a model of larger types\n"
