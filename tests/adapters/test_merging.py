"""LoRA adapters merged into GGUF models: beside peft, and beside llama.cpp, which applies them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import glft_schema as glft
from glft_schema.codec.typed_values import Typed
from glft_schema.models.from_gguf import load_model
from tests.families.conftest import any_fingerprint, libraries  # noqa: F401
from tests.families.tiny_folders import CONFIGS, make_folder
from tests.oracles.llama_model import LlamaModel
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
    "options",
    [
        {"use_rslora": True},
        {"rank_pattern": {"k_proj": 2}, "alpha_pattern": {"layers.1.self_attn.q_proj": 64, "k_proj": 5}},
        {"alpha_pattern": {r"^model\.layers\.[1-9]+\.(self_attn|mlp)\.q_proj$": 64, ".*k_p.{1,3}j": 5}},
        {"lora_alpha": 1, "layers_to_transform": [1]},
    ],
    ids=str,
)
def test_scales_of_peft(options: dict[str, Any], tmp_path: Path) -> None:
    path = gguf_of(tmp_path, "tiny-llama")
    model = adapted(path, tmp_path / "adapter", ["q_proj", "k_proj"], **options)
    glft.adapters.merge_lora(path, tmp_path / "adapter", tmp_path / "out.gguf")
    assert_same_model(tmp_path / "out.gguf", model.merge_and_unload(), atol=1e-5, rtol=1e-5)


def test_a_factor(tmp_path: Path) -> None:
    path = gguf_of(tmp_path, "tiny-llama")
    model = adapted(path, tmp_path / "adapter", ["q_proj"])
    glft.adapters.merge_lora(path, tmp_path / "adapter", tmp_path / "out.gguf", scale=-0.5)
    for layer in model.modules():
        if isinstance(layer, peft.tuners.lora.LoraLayer):
            layer.scale_layer(-0.5)
    assert_same_model(tmp_path / "out.gguf", model.merge_and_unload(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("type_", ["Q8_0", "Q4_0", "Q4_K_M", "F16"])
def test_types_stay(type_: str, tmp_path: Path) -> None:
    """Weights differ by the type's own error, which is reported; other tensors are copied."""
    path = gguf_of(tmp_path, "tiny-llama", type_)
    model = adapted(path, tmp_path / "adapter", ["q_proj", "down_proj"]).merge_and_unload()
    merged = glft.adapters.merge_lora(path, tmp_path / "adapter", tmp_path / "out.gguf")
    names = [f"blk.{i}.{name}.weight" for i in range(2) for name in ("attn_q", "ffn_down")]
    assert sorted(tensor.name for tensor in merged) == sorted(names)
    glft.convert(tmp_path / "out.gguf", tmp_path / "exact.gguf", schemes={"*": "f32"})
    with glft.open(path) as before, glft.open(tmp_path / "out.gguf") as after:
        assert (after.metadata, list(after.tensors)) == (before.metadata, list(before.tensors))
        for name, tensor in before.tensors.items():
            assert after.tensors[name].type == tensor.type
            assert (after.tensors[name].raw == tensor.raw) == (name not in names)
    state = load_model(tmp_path / "out.gguf").state_dict()
    for layer, name in (("mlp.down_proj", "ffn_down"), ("self_attn.q_proj", "attn_q")):
        (report,) = (tensor for tensor in merged if tensor.name == f"blk.1.{name}.weight")
        expected = model.state_dict()[f"model.layers.1.{layer}.weight"]
        found = state[f"model.layers.1.{layer}.weight"]
        error = float((found - expected).norm() / expected.norm())
        assert error == pytest.approx(report.errors.relative, rel=1e-3, abs=1e-7)
        assert float((found - expected).abs().max()) == pytest.approx(report.errors.largest, rel=1e-3, abs=1e-6)


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


@pytest.mark.parametrize("alpha", [8.0, 0.0])
@pytest.mark.filterwarnings("ignore::glft_schema.errors.TiedWarning")
def test_equals_llama_cpp(alpha: float, tmp_path: Path) -> None:
    """llama.cpp applies the adapter as it runs; the embedding's A is [rows, rank]."""
    path = gguf_of(tmp_path, "tiny-llama")
    pairs = {f"blk.{i}.{name}.weight": pair(64, 64) for i in range(2) for name in ("attn_q", "attn_output")}
    pairs["blk.1.ffn_up.weight"] = pair(96, 64)
    rows, columns = pair(64, 264)
    pairs["token_embd.weight"] = rows.T.contiguous(), columns
    adapter = in_gguf(tmp_path / "adapter.gguf", pairs, **{"adapter.lora.alpha": alpha})
    glft.adapters.merge_lora(path, adapter, tmp_path / "out.gguf")
    tokens = TOKENS[0].tolist()
    with LlamaModel(path, exact=True) as model, LlamaModel(tmp_path / "out.gguf", exact=True) as merged:
        before = model.all_logits(tokens)
        model.apply(adapter)
        expected, found = model.all_logits(tokens), merged.all_logits(tokens)
    assert abs(expected - before).max() > 0.1
    assert abs(expected - found).max() < 1e-3


def test_importance(tmp_path: Path) -> None:
    path = gguf_of(tmp_path, "tiny-llama", "Q4_0")
    adapter = in_gguf(tmp_path / "adapter.gguf", {"blk.0.attn_q.weight": pair(64, 64)})
    importance = {"blk.0.attn_q.weight": torch.arange(64.0), "blk.1.attn_q.weight": torch.ones(64)}
    plain, weighted = tmp_path / "plain.gguf", tmp_path / "weighted.gguf"
    glft.adapters.merge_lora(path, adapter, plain)
    glft.adapters.merge_lora(path, adapter, weighted, importance=importance)
    with glft.open(path) as file:
        exact = {name: tensor.dequantize() for name, tensor in file.tensors.items()}
    a, b = pair(64, 64)
    exact["blk.0.attn_q.weight"] += 2 * b @ a
    glft.save_file(exact, tmp_path / "expected.gguf", schemes={"blk.0.attn_q.weight": "q4_0"}, importance=importance, rules=[])
    found = {p.stem: glft.open(p).tensors["blk.0.attn_q.weight"].raw for p in (plain, weighted, tmp_path / "expected.gguf")}
    assert found["weighted"] == found["expected"] != found["plain"]


def settings(folder: Path, **changed: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))


def tensors(folder: Path, changed: Mapping[str, Any]) -> None:
    path = folder / "adapter_model.safetensors"
    kept = {name: tensor for name, tensor in load_file(path).items() if not any(part in name for part in changed)}
    save_file({**kept, **{name: value for name, value in changed.items() if value is not None}}, path)


LAYER = "base_model.model.model.layers.0.self_attn"
OTHER = "base_model.model.model.layers.0.mlp.other"
FAULTS: dict[str, tuple[Any, str]] = {
    "dora": (lambda f: settings(f, use_dora=True), "expected plain LoRA, found DoRA"),
    "alora": (lambda f: settings(f, alora_invocation_tokens=[3]), "expected plain LoRA, found aLoRA"),
    "loftq": (lambda f: settings(f, init_lora_weights="loftq"), "init_lora_weights: expected plain LoRA, found 'loftq', which"),
    "other rank": (lambda f: settings(f, r=2), "expected the rank that adapter_config.json states, 2, found 4"),
    "rank pattern": (lambda f: settings(f, rank_pattern={"0.self_attn.q_proj": 8}), "adapter_config.json states, 8, found 4"),
    "default rank": (lambda f: settings(f, r=None), "expected the rank that adapter_config.json states, None, found 4"),
    "modules": (lambda f: settings(f, modules_to_save=["lm_head"]), "found modules_to_save"),
    "experts": (lambda f: settings(f, target_parameters=["experts.down_proj"]), "found target_parameters"),
    "bias": (lambda f: settings(f, bias="all"), "bias: expected 'none', found 'all'"),
    "ia3": (lambda f: settings(f, peft_type="IA3"), "peft_type: expected 'LORA', found 'IA3'"),
    "alpha": (lambda f: settings(f, lora_alpha=None), "lora_alpha: expected a finite number, found None"),
    "bool": (lambda f: settings(f, lora_alpha=True), "lora_alpha: expected a finite number, found True"),
    "infinite": (lambda f: settings(f, alpha_pattern={"q_proj": float("inf")}), "expected a finite number, found inf"),
    "patterns": (
        lambda f: settings(f, alpha_pattern=[1]),
        "alpha_pattern: expected an object with values by pattern, found",
    ),
    "layers": (lambda f: settings(f, layer_replication=[[0, 2]]), "found layer_replication"),
    "huge": (lambda f: settings(f, lora_alpha=10**400), "lora_alpha: expected a finite number, found an integer of 1329 bits"),
    "pattern": (
        lambda f: settings(f, alpha_pattern={"(": 1}),
        "alpha_pattern: expected a pattern of letters, classes, words in groups, and at most 3 repetitions of a letter, "
        "found '('",
    ),
    "zeros": (
        lambda f: tensors(
            f, {f"{LAYER.replace('0', '0' * 5000)}.q_proj.lora_{side}.weight": torch.ones(4, 4) for side in "AB"}
        ),
        "the adapter fits another model: it changes ['q_proj'], the llama model has 2 blocks with",
    ),
    "two A": (
        lambda f: tensors(f, {f"{LAYER}.k_proj.lora_A": torch.ones(4, 64), f"{LAYER}.k_proj.lora_A.weight": torch.ones(4, 64)}),
        f"'{LAYER}.k_proj.lora_A.weight': expected one tensor A of this layer, found another, '{LAYER}.k_proj.lora_A'",
    ),
    "two names": (
        lambda f: tensors(
            f,
            {
                f"{prefix}.q_proj.lora_{side}.weight": torch.ones(64 if side == "B" else 4, 4 if side == "B" else 64)
                for prefix in (LAYER, LAYER.removeprefix("base_model.model."))
                for side in "AB"
            },
        ),
        "expected one adapter of blk.0.attn_q.weight, found two",
    ),
    "no rank": (
        lambda f: tensors(
            f, {f"{LAYER}.q_proj.lora_A.weight": torch.ones(0, 64), f"{LAYER}.q_proj.lora_B.weight": torch.ones(64, 0)}
        ),
        f"'{LAYER}.q_proj.lora_A.weight': expected a rank of at least 1, found 0",
    ),
    "no B": (lambda f: tensors(f, {f"{LAYER}.q_proj.lora_B": None}), "expected both A and B of LoRA, found one"),
    "rank": (
        lambda f: tensors(f, {f"{LAYER}.q_proj.lora_B.weight": torch.ones(64, 3)}),
        f"'{LAYER}.q_proj.lora_B.weight': expected 4 columns, the rank of A, found 3",
    ),
    "extra": (lambda f: tensors(f, {"x.weight": torch.ones(2)}), "'x.weight': expected a matrix A or B of LoRA, found [2]"),
    "layer": (
        lambda f: tensors(f, {f"{OTHER}.lora_{side}.weight": torch.ones(4, 4) for side in "AB"}),
        f"adapter: '{OTHER}': the adapter fits another model: it changes ['other', 'q_proj'], "
        "the llama model has 2 blocks with embed_tokens, lm_head, q_proj, k_proj, v_proj, o_proj, ",
    ),
    "shape": (
        lambda f: tensors(f, {f"{LAYER}.q_proj.lora_A.weight": torch.ones(4, 32)}),
        "fits another model: it changes blk.0.attn_q.weight of [64, 32], the model has [64, 64]",
    ),
    "block": (
        lambda f: tensors(f, {f"{LAYER.replace('0', '7')}.q_proj.lora_{side}.weight": torch.ones(4, 4) for side in "AB"}),
        "the adapter fits another model: it changes ['q_proj'], the llama model has 2 blocks with",
    ),
    "empty": (lambda f: (f / "adapter_config.json").unlink(), "expected a LoRA adapter: a GGUF file, or a folder with"),
}


def test_settings_without_a_bias(tmp_path: Path) -> None:
    """peft's own default, which older files leave out."""
    path = gguf_of(tmp_path, "tiny-llama", "Q8_0")
    adapted(path, tmp_path / "adapter", ["q_proj"])
    glft.adapters.merge_lora(path, tmp_path / "adapter", tmp_path / "expected.gguf")
    file = tmp_path / "adapter" / "adapter_config.json"
    file.write_text(json.dumps({name: value for name, value in json.loads(file.read_text()).items() if name != "bias"}))
    glft.adapters.merge_lora(path, tmp_path / "adapter", tmp_path / "out.gguf")
    assert (tmp_path / "out.gguf").read_bytes() == (tmp_path / "expected.gguf").read_bytes()


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_folders(fault: str, tmp_path: Path) -> None:
    path = gguf_of(tmp_path, "tiny-llama", "Q8_0")
    adapted(path, tmp_path / "adapter", ["q_proj"])
    change, message = FAULTS[fault]
    change(tmp_path / "adapter")
    assert_refused(in_this_process("merge-lora", path, tmp_path / "adapter", tmp_path / "out.gguf"), message)
    assert not (tmp_path / "out.gguf").exists()


@pytest.mark.parametrize(
    ("name", "layer", "message"),
    [
        ("tiny-qwen2", "lm_head", "the adapter fits another model: it changes output.weight of [264, 64], the model has none"),
        (
            "tiny-qwen3moe",
            "model.layers.0.mlp.experts.1.down_proj",
            "expected an adapter of each of 3 layers that GGUF stacks, found 1",
        ),
    ],
)
def test_layers_without_a_matrix_of_their_own(name: str, layer: str, message: str, tmp_path: Path) -> None:
    """A tied output, and one expert of a stack."""
    path = gguf_of(tmp_path, name, "Q8_0")
    adapted(path, tmp_path / "adapter", ["q_proj"])
    names = [f"base_model.model.{layer}.lora_{side}.weight" for side in "AB"]
    save_file({names[0]: torch.ones(4, 64), names[1]: torch.ones(264, 4)}, tmp_path / "adapter" / "adapter_model.safetensors")
    assert_refused(in_this_process("merge-lora", path, tmp_path / "adapter", tmp_path / "out.gguf"), message)


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
def test_faults_of_gguf_adapters(pairs: Any, metadata: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = gguf_of(tmp_path, "tiny-llama", "Q8_0")
    adapter = in_gguf(tmp_path / "adapter.gguf", pairs, **metadata)
    assert_refused(in_this_process("merge-lora", path, adapter, tmp_path / "out.gguf"), message)
    assert not (tmp_path / "out.gguf").exists()


def test_other_models(tmp_path: Path) -> None:
    """No GGUF file; an adapter that is not finite, and one whose scaled update is not."""
    glft.save_file({"x": torch.ones(2, 2)}, tmp_path / "m.glft")
    with pytest.raises(glft.OptionError, match=r"expected a GGUF file as the model, found '.*m\.glft': convert it first"):
        glft.adapters.merge_lora(tmp_path / "m.glft", tmp_path, tmp_path / "out.gguf")
    folder = make_folder(tmp_path, "tiny-bert")
    text = f"expected a GGUF file as the model, found '{folder}': convert it first (glft convert)"
    assert_refused(in_this_process("merge-lora", folder, tmp_path, tmp_path / "out.gguf"), text)
    refusal = r"merging writes GGUF, found the output 'out\.safetensors': write GGUF, then use glft convert"
    with pytest.raises(glft.OptionError, match=refusal):
        glft.adapters.merge_lora(folder, tmp_path, tmp_path / "out.safetensors")
    path = gguf_of(tmp_path, "tiny-llama", "Q8_0")
    for first, scale, error, names in (
        (float("inf"), 1.0, glft.FormatError, r"^'blk\.0\.attn_q\.weight\.lora_a': expected finite .* in .*adapter\.gguf$"),
        (float("nan"), 1.0, glft.FormatError, r"^'blk\.0\.attn_q\.weight\.lora_a': expected finite .* in .*adapter\.gguf$"),
        (1.0, 1e300, glft.TensorError, r"blk\.0\.attn_q\.weight"),
    ):
        a, b = pair(64, 64)
        a[0, 0] = first
        adapter = in_gguf(tmp_path / "adapter.gguf", {"blk.0.attn_q.weight": (a, b)})
        with pytest.raises(error, match=names):
            glft.adapters.merge_lora(path, adapter, tmp_path / "out.gguf", scale=scale)
    assert not (tmp_path / "out.gguf").exists()


def test_tied_embeddings_are_named(tmp_path: Path) -> None:
    path = gguf_of(tmp_path, "tiny-qwen2")
    rows, columns = pair(64, 264)
    values = {"token_embd.weight": (rows.T.contiguous(), columns)}
    adapter = in_gguf(tmp_path / "adapter.gguf", values, **{"general.architecture": "qwen2"})
    with pytest.warns(glft.errors.TiedWarning, match="token_embd.weight is also the output matrix, which changes, too"):
        glft.adapters.merge_lora(path, adapter, tmp_path / "out.gguf")


def test_report_of_the_command_line(tmp_path: Path) -> None:
    path = gguf_of(tmp_path, "tiny-llama", "Q8_0")
    adapter = in_gguf(tmp_path / "adapter.gguf", {"blk.0.attn_q.weight": pair(64, 64)})
    done = in_this_process("merge-lora", path, adapter, tmp_path / "out.gguf", "--scale", "2", "--verbose")
    assert (done.returncode, done.stderr) == (0, "")
    first, empty, header, row = done.stdout.splitlines()
    assert (first, empty) == (f"{tmp_path / 'out.gguf'}: 1 tensor changed, all others copied", "")
    assert header.split() == ["tensor", "type", "update", "error", "max", "error"]
    assert row.split()[:2] == ["blk.0.attn_q.weight", "Q8_0"]
    assert row.split()[2].endswith("%")


def test_a_merge_whose_update_is_lost(tmp_path: Path) -> None:
    path = gguf_of(tmp_path, "tiny-llama", "Q8_0")
    adapter = in_gguf(tmp_path / "adapter.gguf", {"blk.0.attn_q.weight": pair(64, 64)})
    warnings = {
        scale: in_this_process("merge-lora", path, adapter, tmp_path / "out.gguf", "--scale", scale).stderr
        for scale in ("1e-6", "10")
    }
    lost = "in 1 of 1 tensors the error of their type is as large as the adapter's update, e.g. blk.0.attn_q.weight"
    assert warnings == {"1e-6": f"glft: warning: {lost}: merge into a model of larger types\n", "10": ""}
