"""`from_pretrained` and `save_pretrained` of transformers with packed layers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import glft_schema as glft
from tests.families.tiny_folders import make_folder

transformers = pytest.importorskip("transformers", reason="needs transformers")
TOKENS = torch.tensor([[1, 45, 120, 77, 200, 12, 99, 33, 250, 7, 8, 9]])


def load(folder: Path, types: Any = None) -> Any:
    """Loads a folder with the class that its config names."""
    kind = getattr(transformers, json.loads((folder / "config.json").read_text())["architectures"][0])
    config = glft.transformers.GlftConfig(types) if types else None
    return kind.from_pretrained(folder, quantization_config=config, dtype=torch.float32)


def packed(model: Any) -> dict[str, glft.nn.Packed]:
    return {f"{path}.weight": layer for path, layer in model.named_modules() if isinstance(layer, glft.nn.Packed)}


def saved_types(folder: Path) -> dict[str, str]:
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    assert config["quant_method"] == "glft"
    return config["types"]  # type: ignore[no-any-return]


def compute(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(TOKENS)[0]  # type: ignore[no-any-return]


def reloaded(model: Any, folder: Path) -> Any:
    """Saves a packed model. Returns it as loaded again, with the same layers, types and results."""
    model.save_pretrained(folder)
    again = type(model).from_pretrained(folder, dtype=torch.float32)
    suffix = {True: " transposed", False: ""}
    types = {
        path: layer.weight_type.scheme + suffix[getattr(layer, "transposed", False)] for path, layer in packed(model).items()
    }
    assert saved_types(folder) == types
    assert packed(again).keys() == packed(model).keys()
    assert torch.equal(compute(again), compute(model))
    return again


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-gemma3", "tiny-qwen3moe", "tiny-gpt-oss-bf16", "tiny-gpt2", "tiny-bert"])
def test_packs_linear_layers_and_saves_them(name: str, tmp_path: Path) -> None:
    """The bytes are those of `encode`. Weights of gpt2 and experts of gpt-oss are transposed."""
    folder = make_folder(tmp_path, name)
    plain, model = load(folder), load(folder, "q8_0")
    for weight, layer in packed(model).items():
        is_stack = isinstance(layer, glft.nn.Experts)
        values = plain.get_parameter(weight.removesuffix(".weight") if is_stack else weight).detach()
        is_transposed = name == "tiny-gpt2" or (is_stack and "gpt-oss" in name)
        assert torch.equal(layer.weight, layer.encode(values.transpose(-2, -1) if is_transposed else values))
    assert len(packed(model)) >= 8
    assert any(isinstance(layer, glft.nn.Experts) for layer in packed(model).values()) == ("moe" in name or "oss" in name)
    assert not {"lm_head.weight", "model.embed_tokens.weight"} & packed(model).keys()
    reloaded(model, tmp_path / "saved")


def test_experts_in_one_tensor_of_the_checkpoint(tmp_path: Path) -> None:
    """As in files that are saved in the format of the module."""
    folder = make_folder(tmp_path, "tiny-qwen3moe")
    load(folder).save_pretrained(tmp_path / "fused", save_original_format=False)
    model, expected = load(tmp_path / "fused", "q8_0"), load(folder, "q8_0")
    assert packed(model).keys() == packed(expected).keys()
    assert torch.equal(compute(model), compute(expected))


def test_types_by_name_and_pattern(tmp_path: Path) -> None:
    """A tied output has the bytes of the embedding."""
    folder, exact = make_folder(tmp_path, "tiny-gemma3"), "model.layers.0.mlp.up_proj.weight"
    model = load(folder, {"*": "q8_0", "*.self_attn.?_proj.weight": "q4_0", exact: "q5_1"})
    types = {weight: layer.weight_type.scheme for weight, layer in packed(model).items()}
    assert types["model.embed_tokens.weight"] == types["lm_head.weight"] == "q8_0"
    assert (types["model.layers.1.self_attn.q_proj.weight"], types[exact]) == ("q4_0", "q5_1")
    assert model.lm_head.weight is model.model.embed_tokens.weight
    again = reloaded(model, tmp_path / "saved")
    assert again.lm_head.weight is again.model.embed_tokens.weight


@pytest.mark.parametrize(
    ("types", "expected"),
    [({"*": "q4_0", "*embed*": "q8_0"}, "q8_0"), ({"lm_head.weight": "q5_1"}, "q5_1"), ({"*embed*": "q5_0"}, "q5_0")],
)
def test_tied_weights_have_one_type(types: dict[str, str], expected: str, tmp_path: Path) -> None:
    """That of the embedding, or else that of the output."""
    folder = make_folder(tmp_path, "tiny-gemma3")
    plain, model = load(folder), load(folder, types)
    assert {layer.weight_type.scheme for layer in (model.lm_head, model.model.embed_tokens)} == {expected}
    assert model.lm_head.weight is model.model.embed_tokens.weight
    errors = model.lm_head.dequantize() - plain.lm_head.weight.detach()
    assert float(errors.abs().max() / plain.lm_head.weight.detach().abs().max()) < 1 / 8


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-bert", "tiny-gpt-oss-bf16", "tiny-qwen3moe"])
def test_packed_layers_on_disk(name: str, tmp_path: Path) -> None:
    """Experts are indexed, so that accelerate sees no call of their module."""
    model = load(make_folder(tmp_path, name), "q8_0")
    model.save_pretrained(tmp_path / "packed")
    first, *others = (path for path, _ in model.named_children())
    places = {"device_map": {first: "cpu", **dict.fromkeys(others, "disk")}, "offload_folder": tmp_path / "offloaded"}
    for options in (places, {**places, "device_map": {first: "disk", **dict.fromkeys(others, "cpu")}}):
        again = type(model).from_pretrained(tmp_path / "packed", dtype=torch.float32, **options)
        assert any(parameter.is_meta for parameter in again.parameters())
        assert torch.equal(compute(again), compute(model))
        with pytest.warns(UserWarning, match="Attempting to save a model with offloaded modules"):
            again.save_pretrained(tmp_path / "again")
        assert torch.equal(compute(load(tmp_path / "again")), compute(model))


def test_layers_on_disk_must_be_packed_already(tmp_path: Path) -> None:
    folder, config = make_folder(tmp_path, "tiny-llama"), glft.transformers.GlftConfig("q8_0")
    places = {"model": "disk", "lm_head": "cpu"}
    with pytest.raises(glft.OptionError, match=r"^layers on disk are read as they were saved: save the packed model, and"):
        transformers.LlamaForCausalLM.from_pretrained(
            folder, quantization_config=config, device_map=places, offload_folder=tmp_path / "offloaded"
        )


@pytest.mark.parametrize("types", ["q8_0", {"*": "q8_0"}])
@pytest.mark.parametrize(
    ("name", "kind", "heads"),
    [
        ("tiny-llama", "LlamaForTokenClassification", "score"),
        ("tiny-bert", "BertForSequenceClassification", "classifier"),
        ("tiny-bert", "BertForMaskedLM", "cls.predictions.transform.dense"),
        ("tiny-gpt2", "GPT2DoubleHeadsModel", "multiple_choice_head.summary"),
    ],
)
def test_heads_that_the_checkpoint_lacks(name: str, kind: str, heads: str, types: Any, tmp_path: Path) -> None:
    """They are initialized as without packing, and everything else is packed and saved."""
    folder = make_folder(tmp_path, name)
    config = glft.transformers.GlftConfig(types)
    with pytest.warns(UserWarning, match=f"^{heads}: not packed, because the checkpoint lacks the weights$"):
        model = getattr(transformers, kind).from_pretrained(folder, quantization_config=config, dtype=torch.float32)
    head = model.get_submodule(heads)
    assert type(head) is torch.nn.Linear
    assert 0.01 < float(head.weight.detach().std()) < 0.03  # initializer_range is 0.02
    assert not head.bias.any() if head.bias is not None else True
    assert head.weight.requires_grad
    assert len(packed(model)) >= 8
    reloaded(model, tmp_path / "saved")


def test_a_checkpoint_of_the_trainer(tmp_path: Path) -> None:
    """Norms and biases are trained, and packed weights stay."""
    model = load(make_folder(tmp_path, "tiny-qwen2"), "q8_0")
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    options = {"max_steps": 2, "learning_rate": 0.1, "per_device_train_batch_size": 1, "use_cpu": True, "report_to": []}
    arguments = transformers.TrainingArguments(tmp_path / "runs", **options, save_steps=2, disable_tqdm=True)
    transformers.Trainer(model, arguments, train_dataset=[{"input_ids": TOKENS[0], "labels": TOKENS[0]}] * 2).train()
    model.eval()
    kept = {name for name, parameter in model.named_parameters() if torch.equal(parameter, before[name])}
    assert packed(model).keys() <= kept
    assert "model.norm.weight" not in kept
    assert torch.equal(compute(load(tmp_path / "runs" / "checkpoint-2")), compute(model))


def test_a_model_that_is_packed_no_longer(tmp_path: Path) -> None:
    model = load(make_folder(tmp_path, "tiny-llama"), "q8_0")
    for weight, layer in packed(model).items():
        plain = torch.nn.Linear(layer.weight_shape[1], layer.weight_shape[0], bias=False)
        plain.weight = torch.nn.Parameter(layer.dequantize())
        model.set_submodule(weight.removesuffix(".weight"), plain)
    model.save_pretrained(tmp_path / "saved")
    assert "quantization_config" not in json.loads((tmp_path / "saved" / "config.json").read_text())
    assert torch.equal(compute(load(tmp_path / "saved")), compute(model))


@pytest.mark.parametrize(
    ("types", "message"),
    [
        ("q8_per_channel", "ggml has no type 'q8_per_channel': expected "),
        ({"*.up.weight": "q8_0"}, r"expected a tensor that matches '\*\.up\.weight', found none"),
        ({"model.norm.weight": "q8_0"}, r"expected a tensor that matches 'model\.norm\.weight', found none"),
    ],
)
def test_types_that_do_not_fit(types: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(glft.SchemeError, match=message):
        load(make_folder(tmp_path, "tiny-llama"), types)


@pytest.mark.parametrize(
    ("types", "message"),
    [
        ("q9_k", "expected a tensor type, found 'q9_k'; did you mean 'q8_k'"),
        ({"*": "q4k"}, "expected a tensor type, found 'q4k'; did you mean 'q4_k'"),
        ("f16", "expected a quantized type such as q4_k, found 'f16'"),
        ({}, "expected a type, or types by name or pattern of weights, found {}"),
        (5, "expected a type, or types by name or pattern of weights, found 5"),
    ],
)
def test_configs_without_a_type(types: Any, message: str) -> None:
    with pytest.raises(glft.OptionError, match=message):
        glft.transformers.GlftConfig(types)


# fmt: off
CHANGES: dict[str, tuple[str, str, str]] = {  # of the config of a packed folder: old text, new text
    "another type":  ("q8_0", "q4_0",
                      r"^model\.\S+\.weight: expected \[\d+, 36\] bytes for Q4_0, found \[\d+, 68\]: another type\?$"),
    "another model": ("model.layers.1.mlp.up_proj.weight", "model.layers.9.mlp.up_proj.weight",
                      r"^a type is given for 'model\.layers\.9\.mlp\.up_proj\.weight', which the model lacks$"),
}
# fmt: on


@pytest.mark.parametrize("change", CHANGES)
def test_configs_of_other_models(change: str, tmp_path: Path) -> None:
    load(make_folder(tmp_path, "tiny-llama"), "q8_0").save_pretrained(tmp_path / "saved")
    old, new, problem = CHANGES[change]
    path = tmp_path / "saved" / "config.json"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(glft.OptionError, match=problem):
        load(tmp_path / "saved")


def test_a_packed_folder_is_not_converted(tmp_path: Path) -> None:
    load(make_folder(tmp_path, "tiny-llama"), "q8_0").save_pretrained(tmp_path / "saved")
    with pytest.raises(glft.FormatError, match=r"glft.*: load the model with transformers, and save model\.state_dict\(\)"):
        glft.convert(tmp_path / "saved", tmp_path / "out.gguf")
