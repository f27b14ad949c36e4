"""Adapters of peft, written for llama.cpp: applied by llama.cpp beside peft's own logits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import glft_schema as glft
from glft_schema.models.from_gguf import load_model
from glft_schema.weights.peft_adapters import _find, _patterns
from tests.adapters.test_merging import TOKENS, adapted, assert_same_model, gguf_of, settings
from tests.families.conftest import any_fingerprint, libraries  # noqa: F401
from tests.families.tiny_folders import EXPERTS
from tests.oracles.llama_model import LlamaModel
from tests.tools.command_line import assert_refused, in_this_process

peft = pytest.importorskip("peft", reason="needs peft")
get_pattern_key = pytest.importorskip("peft.utils.other").get_pattern_key
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")  # of peft and transformers
OF_LLAMA = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "down_proj", "lm_head"]


def applied(base: Path, adapter: Path) -> tuple[np.ndarray, np.ndarray]:
    """Returns llama.cpp's logits of a model without and with an adapter."""
    with LlamaModel(base, exact=True) as model:
        before = model.all_logits(TOKENS[0].tolist())
        model.apply(adapter)
        return before, model.all_logits(TOKENS[0].tolist())


@pytest.mark.parametrize(
    ("name", "layers", "options"),
    [
        ("tiny-llama", [*OF_LLAMA, "embed_tokens"], {}),
        (
            "tiny-llama",
            OF_LLAMA,
            {"use_rslora": True, "rank_pattern": {"k_proj": 2}, "alpha_pattern": {"0.self_attn.q_proj": 64}},
        ),
        ("tiny-qwen3", OF_LLAMA, {"lora_alpha": 0, "alpha_pattern": {"o_proj": 3}}),
        ("tiny-gpt2", ["c_attn", "c_fc", "c_proj"], {}),
        ("tiny-phi3", ["qkv_proj", "gate_up_proj", "embed_tokens"], {}),
        ("tiny-olmo2", OF_LLAMA, {"r": 1}),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore::glft_schema.errors.TiedWarning")
def test_llama_cpp_computes_as_peft(name: str, layers: list[str], options: dict[str, Any], tmp_path: Path) -> None:
    """q and k are permuted; layers with another scale than llama.cpp's have it in their B."""
    base = gguf_of(tmp_path, name)
    model = adapted(base, tmp_path / "adapter", layers, **options)
    glft.convert(tmp_path / "adapter", tmp_path / "a.gguf", like=base)
    assert glft.check_rules(tmp_path / "a.gguf", ["spec", "ggml", "lora"]) == []
    assert glft.checks.check_fit(tmp_path / "a.gguf", base) == []
    before, found = applied(base, tmp_path / "a.gguf")
    with torch.no_grad():
        expected = model(TOKENS).logits[0].numpy()
    assert abs(expected - before).max() > 0.1
    np.testing.assert_allclose(found, expected, atol=5e-3 if name == "tiny-gpt2" else 1e-3)  # llama.cpp's gelu is a table
    glft.adapters.merge_lora(base, tmp_path / "a.gguf", tmp_path / "merged.gguf")
    assert_same_model(tmp_path / "merged.gguf", model.merge_and_unload(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("name", "parts"), [("tiny-qwen3moe", "mlp {} gate_proj up_proj down_proj"),
                                             ("tiny-mixtral", "block_sparse_moe {} w1 w3 w2")])  # fmt: skip
@pytest.mark.filterwarnings("ignore::glft_schema.errors.MetadataWarning")
def test_stacked_experts(name: str, parts: str, tmp_path: Path) -> None:
    """llama.cpp's logits, and the merged model's, are those of a folder with the merged weights."""
    base, folder, experts = gguf_of(tmp_path, name), tmp_path / name, tmp_path / "experts"
    module, _, *names = parts.split()
    adapter = dict[str, torch.Tensor]()
    weights = {key: values.float() for key, values in load_file(folder / "model.safetensors").items()}
    torch.manual_seed(0)
    for layer in (f"model.layers.{i}.{module}.experts.{e}.{n}" for i in range(2) for e in range(EXPERTS) for n in names):
        out, columns = weights[f"{layer}.weight"].shape
        a, b = torch.randn(4, columns) / 4, torch.randn(out, 4) / 4
        adapter |= {f"base_model.model.{layer}.lora_A.weight": a, f"base_model.model.{layer}.lora_B.weight": b}
        weights[f"{layer}.weight"] += 3 / 4 * b @ a
    save_file(weights, folder / "model.safetensors")
    glft.convert(folder, tmp_path / "expected.gguf")
    experts.mkdir()
    save_file(adapter, experts / "adapter_model.safetensors")
    (experts / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 3}))
    glft.convert(experts, tmp_path / "a.gguf", like=base)
    before, found = applied(base, tmp_path / "a.gguf")
    with LlamaModel(tmp_path / "expected.gguf", exact=True) as model:
        expected = model.all_logits(TOKENS[0].tolist())
    assert abs(expected - before).max() > 0.1
    np.testing.assert_allclose(found, expected, atol=1e-3)
    for source in (experts, tmp_path / "a.gguf"):
        glft.adapters.merge_lora(base, source, tmp_path / "merged.gguf")
        merged = glft.load_file(tmp_path / "merged.gguf")
        for key, values in glft.load_file(tmp_path / "expected.gguf").items():
            torch.testing.assert_close(merged[key], values, atol=1e-5, rtol=1e-5)


def test_keys_and_the_base_that_the_settings_name(tmp_path: Path) -> None:
    base = gguf_of(tmp_path, "tiny-llama")
    adapted(base, tmp_path / "adapter", ["q_proj", "k_proj"])
    settings(tmp_path / "adapter", base_model_name_or_path=str(tmp_path / "tiny-llama"))
    glft.convert(tmp_path / "adapter", tmp_path / "named.gguf")
    glft.convert(tmp_path / "adapter", tmp_path / "given.gguf", like=base)
    assert (tmp_path / "named.gguf").read_bytes() == (tmp_path / "given.gguf").read_bytes()
    with glft.open(tmp_path / "named.gguf") as file:
        types = {key: (file.metadata.type_of(key), value) for key, value in file.metadata.items()}
    assert types == {
        "general.type": ("string", "adapter"),
        "general.architecture": ("string", "llama"),
        "adapter.type": ("string", "lora"),
        "adapter.lora.alpha": ("float32", 12.0),
        "general.quantization_version": ("uint32", 2),
    }


def rewritten(folder: Path, change: Any) -> None:
    path = folder / "adapter_model.safetensors"
    save_file(change(load_file(path)), path)


EXPERT = "base_model.model.model.layers.0.mlp.experts"
FAULTS: dict[str, tuple[str, list[str], Any, str]] = {
    "tied": ("tiny-qwen2", ["embed_tokens"], None, "llama.cpp aborts with an adapter of an embedding that is also the output"),
    "always tied": ("tiny-gemma2", ["embed_tokens"], None,
                    "llama.cpp aborts with an adapter of an embedding that is also the output"),
    "positions": ("tiny-gpt2", ["wpe"], None, "expected a tensor to which llama.cpp applies adapters, found another"),
    "rank": ("tiny-llama", ["q_proj"], lambda t: {n: v[:2] if "lora_A" in n else v[:, :2] for n, v in t.items()},
             "expected the rank that adapter_config.json states, 4, found 2"),
    "one expert": ("tiny-qwen3moe", ["q_proj"],
                   lambda t: {f"{EXPERT}.1.down_proj.lora_A.weight": torch.ones(4, 32),
                              f"{EXPERT}.1.down_proj.lora_B.weight": torch.ones(64, 4)},
                   "expected an adapter of each of 3 layers that GGUF stacks, found 1"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_faults(fault: str, tmp_path: Path) -> None:
    name, layers, change, message = FAULTS[fault]
    base = gguf_of(tmp_path, name)
    adapted(base, tmp_path / "adapter", layers)
    if change:
        rewritten(tmp_path / "adapter", lambda tensors: {n: v.contiguous() for n, v in change(tensors).items()})
    with pytest.raises(glft.TensorError, match=message):
        glft.convert(tmp_path / "adapter", tmp_path / "a.gguf", like=base)


def test_other_scales_of_experts(tmp_path: Path) -> None:
    base = gguf_of(tmp_path, "tiny-qwen3moe")
    adapted(base, tmp_path / "adapter", ["q_proj"])
    settings(tmp_path / "adapter", alpha_pattern={"experts.1.down_proj": 5})
    pairs = {f"{EXPERT}.{i}.down_proj.lora_{side}.weight": torch.ones(size) for i in range(EXPERTS)
             for side, size in (("A", (4, 32)), ("B", (64, 4)))}  # fmt: skip
    rewritten(tmp_path / "adapter", lambda tensors: pairs)
    with pytest.raises(glft.TensorError, match="expected the same rank and scale for all layers that GGUF stacks"):
        glft.convert(tmp_path / "adapter", tmp_path / "a.gguf", like=base)


def test_a_base_that_is_elsewhere(tmp_path: Path) -> None:
    base = gguf_of(tmp_path, "tiny-llama")
    adapted(base, tmp_path / "adapter", ["q_proj"])
    message = "expected the base model of an adapter as like (--like), a GGUF file or a Hugging Face folder, found None"
    assert_refused(in_this_process("convert", tmp_path / "adapter", tmp_path / "a.gguf"), message)
    with pytest.warns(glft.errors.MetadataWarning, match="names are kept, and no metadata are added; give the folder"):
        glft.convert(tmp_path / "adapter" / "adapter_model.safetensors", tmp_path / "a.gguf")


@pytest.mark.parametrize("start", ["pissa", "pissa_niter_2", "olora"])
def test_a_start_that_changes_the_base(start: str, tmp_path: Path) -> None:
    """peft changes the base as it loads the adapter, or saves an adapter that is plain."""
    base = gguf_of(tmp_path, "tiny-llama")
    torch.manual_seed(0)
    model = peft.get_peft_model(
        load_model(base), peft.LoraConfig(r=4, lora_alpha=12, target_modules=["q_proj"], init_lora_weights=start)
    )
    model.peft_config["default"].init_lora_weights = True
    model.save_pretrained(tmp_path / "initial")
    model.peft_config["default"].init_lora_weights = start
    for name, parameter in model.named_parameters():
        parameter.data += 0.1 * torch.randn_like(parameter) if "lora_" in name else 0
    model.save_pretrained(tmp_path / "adapter")
    message = f"init_lora_weights: expected plain LoRA, found '{start}', which also changes the weights of the base"
    assert_refused(in_this_process("convert", tmp_path / "adapter", tmp_path / "a.gguf", "--like", base), message)
    model.save_pretrained(tmp_path / "plain", path_initial_model_for_weight_conversion=str(tmp_path / "initial"))
    glft.adapters.merge_lora(base, tmp_path / "plain", tmp_path / "out.gguf")
    assert_same_model(tmp_path / "out.gguf", model.merge_and_unload(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("start", [True, False, "gaussian", "eva", "orthogonal", "mica"])
def test_starts_of_plain_lora(start: Any, tmp_path: Path) -> None:
    base = gguf_of(tmp_path, "tiny-llama")
    adapted(base, tmp_path / "adapter", ["q_proj"], init_lora_weights=start)
    glft.adapters.merge_lora(base, tmp_path / "adapter", tmp_path / "out.gguf")
    loaded = peft.PeftModel.from_pretrained(load_model(base), tmp_path / "adapter").merge_and_unload()
    assert_same_model(tmp_path / "out.gguf", loaded, atol=1e-5, rtol=1e-5)


NAMES = [f"model.layers.{i}.{part}" for i in (0, 1, 10) for part in ("self_attn.q_proj", "self_attn.k_proj", "mlp.down_proj")]


@pytest.mark.parametrize(
    "pattern",
    ["q_proj", "layers.1.self_attn.q_proj", r"^model\.layers\.[1-9]+\.(self_attn|mlp)\.q_proj$", ".*k_p.{1,3}j", "q_proj|mlp.*",
     r"layers\.(?:0|10)\..*_proj", r"\d.mlp.down_proj", "[^q]_proj", "model", "self_attn.[a-k]_proj", ".*?down_proj", "_proj"],
)  # fmt: skip
def test_patterns_match_as_in_peft(pattern: str) -> None:
    compiled = _patterns({"p": {"none": 1, pattern: 2, ".*": 3}}, "p", "file")
    found = [_find(compiled, name, 0) for name in NAMES]
    assert found == [{pattern: 2, ".*": 3}[get_pattern_key([pattern, ".*"], name)] for name in NAMES]


@pytest.mark.parametrize(
    "pattern",
    ["(a+)+b", "(a|a)*b", "a*a*a*a*b", "((a{0,9}){0,9}){0,9}b", "(.|.)(.|.)", "a**", "(", "(?=a)", "(?i)a", r"(a)\1", "[z-a]",
     "[[:a:]", "a{9999}", "a" * 201],
)  # fmt: skip
def test_other_patterns_are_refused(pattern: str, tmp_path: Path) -> None:
    base = gguf_of(tmp_path, "tiny-llama")
    adapted(base, tmp_path / "adapter", ["q_proj"])
    settings(tmp_path / "adapter", rank_pattern={pattern: 1})
    with pytest.raises(glft.FormatError, match=r"expected (a pattern of letters, classes, words|valid settings of an adapter)"):
        glft.convert(tmp_path / "adapter", tmp_path / "a.gguf", like=base)
