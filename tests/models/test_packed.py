"""GGUF models as packed models of transformers."""

from __future__ import annotations

import copy
import pickle
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import glft_schema as glft
from glft_schema import nn
from glft_schema.models.from_gguf import load_model
from tests.families.tiny_folders import CONFIGS, edited, make_folder
from tests.oracles.llama_vocabulary import LlamaVocabulary
from tests.tools.depth import some_by_default

TOKENS = torch.tensor([[1, 45, 120, 77, 200, 12, 99, 33, 250, 7, 8, 9]])


def quantized(parent: Path, name: str, type_: str = "Q8_0") -> Path:
    """Writes the folder of a family, and its GGUF file with matrices of a file type."""
    parent.mkdir(exist_ok=True)
    out = parent / f"{name}.gguf"
    glft.quantize(make_folder(parent, name), out, type_, allow_requantize=True)  # of gpt-oss
    return out


@pytest.mark.parametrize("name", some_by_default([*CONFIGS], 3))
def test_computes_what_the_dequantized_model_computes(name: str, tmp_path: Path) -> None:
    path = quantized(tmp_path, name)
    packed, _ = glft.transformers.load(path)
    with glft.open(path) as file:
        stored = sum(tensor.nbytes for tensor in file.tensors.values() if tensor.type.exact is None)
    layers = {id(layer.weight): layer.weight.nbytes for layer in packed.modules() if isinstance(layer, nn.Packed)}
    assert sum(layers.values()) == stored > 0
    with torch.no_grad():
        torch.testing.assert_close(packed(TOKENS)[0], load_model(path)(TOKENS)[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", some_by_default([*CONFIGS], 3))
def test_saved_as_it_was_loaded(name: str, tmp_path: Path) -> None:
    path = quantized(tmp_path, name)
    packed, _ = glft.transformers.load(path)
    glft.transformers.save(packed, tmp_path / "out.gguf", like=path)
    assert (tmp_path / "out.gguf").read_bytes() == path.read_bytes()


def test_a_tied_output_that_was_changed(tmp_path: Path) -> None:
    """The example has no output matrix, so the change would be lost."""
    path, out = quantized(tmp_path, "tiny-qwen2"), tmp_path / "out.gguf"
    for tied in ("lm_head", "model.embed_tokens"):
        model, _ = glft.transformers.load(path, packed=False)
        old = model.get_submodule(tied).weight
        model.get_submodule(tied).weight = torch.nn.Parameter(old.detach() * 2)
        with pytest.raises(glft.TensorError, match="expected the values of the token embedding, to which it is tied"):
            glft.transformers.save(model, out, like=path)
        assert not out.exists()


@pytest.mark.parametrize("name", some_by_default([*CONFIGS], 3))
def test_save_pretrained(name: str, tmp_path: Path) -> None:
    """Also of models inside, and of copies. gpt-oss has experts that are indexed as [in, out]."""
    model, _ = glft.transformers.load(quantized(tmp_path, name))
    for label, each in (("whole", model), ("copy", copy.deepcopy(model)), ("base", model.base_model)):
        each.save_pretrained(tmp_path / label)
        again = type(each).from_pretrained(tmp_path / label, dtype=torch.float32)
        assert kinds(again) == kinds(each)
        with torch.no_grad():
            assert torch.equal(again(TOKENS)[0], each(TOKENS)[0])


def kinds(model: torch.nn.Module) -> dict[str, str]:
    """Returns the packed layers of a model."""
    return {path: repr(layer) for path, layer in model.named_modules() if isinstance(layer, nn.Packed)}


def test_copies_free_their_memory(tmp_path: Path) -> None:
    model, _ = glft.transformers.load(quantized(tmp_path, "tiny-llama"))
    again = pickle.loads(pickle.dumps(model))
    assert kinds(again) == kinds(model)
    weak = weakref.ref(copy.deepcopy(model))
    assert weak() is None


def test_save_pretrained_saves_an_adapter(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", minversion="0.22")  # of transformers' add_adapter
    model, _ = glft.transformers.load(quantized(tmp_path, "tiny-llama"))
    model.add_adapter(peft.LoraConfig(target_modules=["q_proj"]))
    model.save_pretrained(tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").glob("*.safetensors")] == ["adapter_model.safetensors"]


@pytest.mark.parametrize("name", ["out.ggfu", "out.safetensors"])
def test_other_endings(name: str, tmp_path: Path) -> None:
    path = quantized(tmp_path, "tiny-llama")
    model, _ = glft.transformers.load(path)
    hint = r"; did you mean '\.gguf'\?" if name.endswith("ggfu") else ""
    with pytest.raises(glft.OptionError, match=rf"^expected a file that ends in \.gguf, found '.*{name}'{hint}$"):
        glft.transformers.save(model, tmp_path / name, like=path)


def test_types_of_another_example(tmp_path: Path) -> None:
    """Packed weights, also those whose rows are permuted, are quantized again only on request."""
    path, like = quantized(tmp_path, "tiny-llama"), quantized(tmp_path / "like", "tiny-llama", "Q4_0")
    packed, _ = glft.transformers.load(path)
    with pytest.raises(glft.SchemeError, match=r"^15 tensors \(Q8_0\) are quantized already, such as 'token_embd.weight'"):
        glft.transformers.save(packed, tmp_path / "out.gguf", like=like)
    written = glft.transformers.save(packed, tmp_path / "out.gguf", like=like, allow_requantize=True)
    assert sum(str(tensor.quantized_from) == "Q8_0" for tensor in written) == 15


@pytest.mark.parametrize(
    ("type_", "options", "dtypes"),
    [
        ("Q8_0", {"dtype": torch.bfloat16}, {torch.bfloat16, torch.uint8}),
        ("Q8_0", {"packed": False}, {torch.float32}),
        ("BF16", {}, {torch.bfloat16}),
    ],
)
def test_gives_the_asked_dtype(type_: str, options: dict[str, Any], dtypes: set[torch.dtype], tmp_path: Path) -> None:
    model, _ = glft.transformers.load(quantized(tmp_path, "tiny-llama", type_), **options)
    assert {parameter.dtype for parameter in model.parameters()} == dtypes
    assert model(TOKENS).logits.dtype in dtypes


def test_changed_weights_are_saved_in_their_type(tmp_path: Path) -> None:
    path, out = quantized(tmp_path, "tiny-llama"), tmp_path / "out.gguf"
    model, _ = glft.transformers.load(path)
    layer = model.model.layers[1].self_attn.q_proj = torch.nn.Linear(64, 64, bias=False)
    norm = model.model.norm.weight.detach()
    norm.mul_(2)
    glft.transformers.save(model, out, like=path)
    with glft.open(path) as before, glft.open(out) as after:
        changed = {name for name, tensor in before.tensors.items() if after.tensors[name].raw != tensor.raw}
        assert changed == {"output_norm.weight", "blk.1.attn_q.weight"}
        assert after.tensors["blk.1.attn_q.weight"].type.name == "Q8_0"
        assert torch.equal(after.tensors["output_norm.weight"].dequantize(), norm)
    errors = load_model(out).model.layers[1].self_attn.q_proj.weight - layer.weight
    assert float(errors.detach().abs().max()) < float(layer.weight.detach().abs().max()) / 127


# fmt: off
FAULTS: dict[str, tuple[str, Callable[[dict[str, Any], dict[str, Any]], object], str]] = {
    "half":         ("tiny-qwen3moe", lambda t, m: t.pop("blk.1.ffn_up_exps.weight"),
                     r"expected blk\.1\.ffn_up_exps\.weight with this tensor, found none"),
    "missing":      ("tiny-llama", lambda t, m: t.pop("blk.1.ffn_up.weight"),
                     r"expected values for this tensor, found none \(tensor 'model.layers.1.mlp.up_proj.weight'\)"),
    "left over":    ("tiny-llama", lambda t, m: t.update({"blk.0.attn_q.bias": torch.ones(64)}),
                     r"expected values for this tensor, found none \(tensor 'model.layers.0.self_attn.k_proj.bias'\)"),
    "vocabulary":   ("tiny-llama", lambda t, m: m.pop("tokenizer.ggml.tokens"), "expected a vocabulary, found none"),
    "token":        ("tiny-llama", lambda t, m: m.update({"tokenizer.ggml.bos_token_id": 999}),
                     "expected fewer than 264, the number of tokens, found 999"),
}
# fmt: on


@pytest.mark.parametrize("fault", FAULTS)
def test_faults(fault: str, tmp_path: Path) -> None:
    name, change, message = FAULTS[fault]
    path = edited(quantized(tmp_path, name), change)
    with pytest.raises((glft.FormatError, glft.OptionError), match=message) as caught:
        glft.transformers.load(path)
    assert str(path) in str(caught.value)


def test_other_sources(tmp_path: Path) -> None:
    path = quantized(tmp_path, "tiny-llama")
    with pytest.raises(glft.OptionError, match="expected a GGUF file, found a folder, which from_pretrained loads"):
        glft.transformers.load(tmp_path / "tiny-llama")
    model, _ = glft.transformers.load(path)
    with pytest.raises(glft.OptionError, match="expected a GGUF model of the llama family as the example, found 'qwen2'"):
        glft.transformers.save(model, tmp_path / "out.gguf", like=quantized(tmp_path, "tiny-qwen2"))
    with pytest.raises(glft.OptionError, match="expected a model of a declared family, found Linear"):
        glft.transformers.save(torch.nn.Linear(2, 2), tmp_path / "out.gguf", like=path)
    assert not (tmp_path / "out.gguf").exists()


TOKENIZED = ("bed", "  b\n", "<s> b</s>", "na\u00efve \u6f22 42")  # without tokens whose characters are no tokens


@pytest.mark.parametrize("name", some_by_default([*CONFIGS], 3))
def test_tokenizer(name: str, tmp_path: Path) -> None:
    """Texts are split as in llama.cpp, also by the tokenizer of the folder that is written."""
    path = quantized(tmp_path, name)
    _, tokenizer = glft.transformers.load(path)
    glft.convert(path, f"{tmp_path}/back/")
    transformers = pytest.importorskip("transformers")  # its AutoTokenizer gives every qwen2 the rules of Qwen2
    kind = transformers.PreTrainedTokenizerFast if name == "tiny-qwen2" else transformers.AutoTokenizer
    again = kind.from_pretrained(tmp_path / "back")
    with LlamaVocabulary(path) as vocabulary:
        for text in TOKENIZED:
            assert tokenizer(text).input_ids == again(text).input_ids == vocabulary.tokens(text, ends=True), text
        if name != "tiny-bert":  # in which other keys name them
            for its in (tokenizer, again):
                assert (len(its), its.bos_token_id, its.eos_token_id) == (vocabulary.size, vocabulary.bos, vocabulary.eos)
    metadata = glft.open(path).metadata
    assert (
        again.model_max_length == tokenizer.model_max_length == metadata[f"{metadata['general.architecture']}.context_length"]
    )
