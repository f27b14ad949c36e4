"""Makes tiny quantized models with their own libraries, and the logits of what the libraries read.

Run it by hand, in the environment of a library, from the root of the repository, with a folder for
the models and perhaps beginnings of their names::

    python -m tests.golden.record_composite_models MODELS llama-mlx qwen3-ct

It makes the models whose library is installed, and then the logits of those that it can read. The
libraries' requirements conflict: run it in each of these environments (Python 3.11, CPU), in this
order, for all models. Each has torch 2.13.0, safetensors 0.8.0 and accelerate 1.15.0.

* llmcompressor 0.14.0.1 with compressed-tensors 0.19.0 and transformers 5.17.0
* auto-round 0.16.1 with autoawq 0.2.9 without its dependencies and transformers 5.23.0
* compressed-tensors 0.20.0, transformers 5.23.0, mlx[cpu] 0.32.4 with mlx-lm 0.32.2,
  bitsandbytes 0.50.0, torchao 0.18.0, nvidia-modelopt 0.47.0 and autoawq 0.2.9, see
  record_composite.py: this makes most logits
* gptqmodel 7.7.0 without its dependencies, built with BUILD_CUDA_EXT=0, and transformers 5.23.0:
  this makes the logits of auto-round's models in the format of GPTQ, too, and leaves a folder logs

Each folder MODELS/FAMILY-SCHEME is a model as the library saves it, and has these files besides:

* tokens.npy, logits.npy: i64[tokens] and f32[tokens, vocabulary]: the logits of the plain model of
  transformers, which computes in float32, with the weights that the library dequantizes;
* about.json: library, version, how the model was made, what dequantized it, and `rounded_to`: the
  dtype in which the weights were returned.

record_composite_logits.py converts these folders to GGUF, and compares the logits of llama.cpp.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tests.golden.record_composite import (
    BF16,
    F32,
    Config,
    Tensors,
    bare_packages,
    bitsandbytes_weight,
    gptq_weight,
    torch_of,
)

TOKENIZER = Path(__file__).parents[1] / "families" / "tokenizers" / "json"
COMMON = {
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
    "max_position_embeddings": 256,
    "vocab_size": 264,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "rope_theta": 50000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
CONFIGS: dict[str, Config] = {
    "llama": {**COMMON, "architectures": ["LlamaForCausalLM"], "model_type": "llama"},
    "qwen3": {**COMMON, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 64},
    "qwen3moe": {**COMMON, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "head_dim": 64, **EXPERTS},
}
TOKENS = np.array([1, *[(7 * i * i + 13 * i + 40) % 250 + 8 for i in range(23)]], np.int64)
MAKERS: dict[str, tuple[str, str, str, Callable[[Path, Path], None]]] = {}  # scheme -> library, beginning of its version, how


# Models that are not quantized


def shapes(family: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yields names and dims of the tensors of a family."""
    hidden, inner, vocabulary, keys = 256, 512, 264, 128
    yield from (("model.embed_tokens", (vocabulary, hidden)), ("lm_head", (vocabulary, hidden)), ("model.norm", (hidden,)))
    for block in (f"model.layers.{i}" for i in range(2)):
        yield from ((f"{block}.{norm}_layernorm", (hidden,)) for norm in ("input", "post_attention"))
        for part, rows in (("q", hidden), ("k", keys), ("v", keys), ("o", hidden)):
            yield f"{block}.self_attn.{part}_proj", (rows, hidden)
        if family != "llama":
            yield from ((f"{block}.self_attn.{part}_norm", (64,)) for part in "qk")
        is_sparse = family == "qwen3moe"
        if is_sparse:
            yield f"{block}.mlp.gate", (4, hidden)
        for expert in [f"experts.{i}." for i in range(4)] if is_sparse else [""]:
            width = 128 if expert else inner
            for part, dims in (("gate", (width, hidden)), ("up", (width, hidden)), ("down", (hidden, width))):
                yield f"{block}.mlp.{expert}{part}_proj", dims


def plain(family: str, folder: Path, weights: Tensors | None = None) -> Path:
    """Writes a model of a family, with random weights in bfloat16 or with these in float32."""
    shutil.copytree(TOKENIZER, folder)
    (folder / "config.json").write_text(json.dumps(CONFIGS[family], indent=1))
    wanted = {f"{module}.weight": dims for module, dims in shapes(family)}
    if weights is None:
        weights = {name: random(family, name, dims) for name, dims in wanted.items()}
    else:
        weights = {name: tensor.float().contiguous() for name, tensor in weights.items()}
    found = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    assert found == wanted, set(found.items()) ^ set(wanted.items())
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def random(family: str, name: str, dims: tuple[int, ...]) -> torch.Tensor:
    """Returns weights that depend on names: near 1 for norms, and routers that decide clearly."""
    numbers = torch.randn(dims, generator=torch.Generator().manual_seed(zlib.crc32((family + name).encode())))
    if len(dims) == 1:
        return (1 + 0.1 * numbers).to(BF16)
    return (numbers * (dims[-1] ** -0.5) * (3 if "mlp.gate." in name else 1)).to(BF16)


def loaded(base: Path, dtype: torch.dtype = BF16, **options: Any) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(base, dtype=dtype, **options)


def tokenizer_of(base: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(base)


# Models that the libraries quantize


def maker(scheme: str, library: str, version: str, how: str, make: Callable[[Path, Path], None]) -> None:
    """Declares how a model is quantized: `make` takes the plain model's folder and its own."""
    MAKERS[scheme] = library, version, how, make


def llmcompressor(base: Path, folder: Path, **recipe: Any) -> None:
    from llmcompressor import oneshot
    from llmcompressor.modifiers.quantization import QuantizationModifier

    model = loaded(base)
    modifier = QuantizationModifier(ignore=["lm_head", "re:.*mlp.gate$"], **recipe)
    oneshot(model=model, recipe=modifier, tokenizer=tokenizer_of(base))
    model.save_pretrained(folder, save_compressed=True)


def integers(bits: int, group: int, symmetric: bool = True) -> Config:
    """Returns the recipe of integers in groups."""
    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": "group", "group_size": group}
    return {"config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}


for scheme, recipe in {
    "w4a16-g32": integers(4, 32),
    "w4a16-asym-g64": integers(4, 64, False),
    "w8a16-g32": integers(8, 32),
    "nvfp4a16": {"scheme": "NVFP4A16", "targets": "Linear"},
    "mxfp4a16": {"scheme": "MXFP4A16", "targets": "Linear"},
    "fp8-block": {"scheme": "FP8_BLOCK", "targets": "Linear"},
    "fp8-dynamic": {"scheme": "FP8_DYNAMIC", "targets": "Linear"},
    "int8": {"scheme": "INT8", "targets": "Linear"},
}.items():
    how = "oneshot, save_pretrained(save_compressed=True)"
    maker(f"ct-{scheme}", "llmcompressor", "0.14", how, partial(llmcompressor, **recipe))


def gptqmodel(base: Path, folder: Path, **settings: Any) -> None:
    os.cpu_count = lambda: 4  # its pools want two workers, which are half of the cores
    from gptqmodel import GPTQModel, QuantizeConfig

    generator = torch.Generator().manual_seed(3)
    texts = torch.randint(8, 258, (16, 48), generator=generator).tolist()
    aware = {} if settings["desc_act"] else {"act_group_aware": False}
    model = GPTQModel.load(str(base), QuantizeConfig(**settings, **aware), device="cpu")
    model.quantize([{"input_ids": ids, "attention_mask": [1] * len(ids)} for ids in texts], batch_size=1)
    model.save(str(folder))


for scheme, (bits, group, is_ordered, symmetric) in {
    "w4-g32": (4, 32, False, True),
    "w4-asym-g64": (4, 64, False, False),
    "w4-actorder": (4, 32, True, True),
    "w8-g32": (8, 32, False, True),
    "w3-g32": (3, 32, False, True),
}.items():
    settings = {"bits": bits, "group_size": group, "desc_act": is_ordered, "sym": symmetric}
    maker(f"gptq-{scheme}", "gptqmodel", "7.7", "quantize on random tokens, save", partial(gptqmodel, **settings))


def autoround(base: Path, folder: Path, form: str, symmetric: bool) -> None:
    from auto_round import AutoRound

    options = {"bits": 4, "group_size": 32, "sym": symmetric, "iters": 0, "disable_opt_rtn": True}
    AutoRound(loaded(base), tokenizer_of(base), **options).quantize_and_save(output_dir=str(folder), format=form)
    for inner in [path for path in folder.iterdir() if path.is_dir()]:
        for path in inner.iterdir():
            shutil.move(path, folder / path.name)
        inner.rmdir()


for scheme, (form, symmetric) in {
    "awq-g32": ("auto_awq", True),
    "awq-asym-g32": ("auto_awq", False),
    "autoround-w4-g32": ("auto_round", True),
    "autoround-gptq-asym-g32": ("auto_gptq", False),
    "autoround-ct-g32": ("llm_compressor", True),
}.items():
    how = f"quantize_and_save with iters=0, format {form}"
    maker(scheme, "auto-round", "0.16", how, partial(autoround, form=form, symmetric=symmetric))


def mlx(base: Path, folder: Path, **options: Any) -> None:
    from mlx_lm import convert

    convert(str(base), str(folder), quantize=True, **options)


FP4 = {"q_bits": None, "q_group_size": None, "dtype": "bfloat16"}
for scheme, options in {
    "4-g64": {"q_bits": 4, "q_group_size": 64, "dtype": "float16"},
    "4-g32-bf16": {"q_bits": 4, "q_group_size": 32, "dtype": "bfloat16"},
    "8-g64": {"q_bits": 8, "q_group_size": 64, "dtype": "bfloat16"},
    "3-g64": {"q_bits": 3, "q_group_size": 64, "dtype": "bfloat16"},
    "mxfp4": {"q_mode": "mxfp4", **FP4},
    "nvfp4": {"q_mode": "nvfp4", **FP4},
    "mixed": {"quant_predicate": "mixed_3_6", "dtype": "float16"},
}.items():
    maker(f"mlx-{scheme}", "mlx-lm", "0.32", "convert, which also casts the norms to its dtype", partial(mlx, **options))


def bitsandbytes(base: Path, folder: Path, **settings: Any) -> None:
    from transformers import BitsAndBytesConfig

    loaded(base, quantization_config=BitsAndBytesConfig(**settings), device_map="cpu").save_pretrained(folder)


for scheme, settings in {
    "nf4": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "nf4-nested": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
    "fp4": {"load_in_4bit": True, "bnb_4bit_quant_type": "fp4"},
    "int8": {"load_in_8bit": True},
}.items():
    maker(f"bnb-{scheme}", "bitsandbytes", "0.50", "save_pretrained of transformers", partial(bitsandbytes, **settings))


def torchao(base: Path, folder: Path, name: str, **parameters: Any) -> None:
    from torchao import quantization
    from transformers import TorchAoConfig

    if group := parameters.pop("group", None):
        parameters["granularity"] = quantization.PerGroup(group)
    config = TorchAoConfig(getattr(quantization, name)(**parameters))
    loaded(base, quantization_config=config, device_map="cpu").save_pretrained(folder, safe_serialization=True)


for scheme, parameters in {
    "int8": {"name": "Int8WeightOnlyConfig"},
    "float8": {"name": "Float8WeightOnlyConfig"},
    "int4": {"name": "IntxWeightOnlyConfig", "weight_dtype": torch.int4, "group": 32},
}.items():
    maker(f"torchao-{scheme}", "torchao", "0.18", "save_pretrained of transformers", partial(torchao, **parameters))


def modelopt(base: Path, folder: Path, name: str) -> None:
    import modelopt.torch.quantization as mtq
    from modelopt.torch.export import export_hf_checkpoint

    model = loaded(base)
    mtq.quantize(model, getattr(mtq, name), lambda model: model(torch.tensor(TOKENS)[None]))
    export_hf_checkpoint(model, export_dir=str(folder))


for scheme, name in (("nvfp4", "NVFP4_DEFAULT_CFG"), ("fp8", "FP8_DEFAULT_CFG")):
    make = partial(modelopt, name=name)
    maker(f"modelopt-{scheme}", "nvidia-modelopt", "0.47", "mtq.quantize, export_hf_checkpoint", make)


def deepseek(base: Path, folder: Path) -> None:
    """Writes FP8 with scales of blocks, as DeepSeek's checkpoints are: no library does."""
    shutil.copytree(base, folder)
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        blocks = tensors[name].float().unflatten(1, (-1, 128)).unflatten(0, (-1, 128))
        scales = blocks.abs().amax((1, 3)) / 448
        codes = (blocks / scales[:, None, :, None]).reshape(tensors[name].shape).to(torch.float8_e4m3fn)
        tensors |= {name: codes, f"{name}_scale_inv": scales}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
    config["quantization_config"]["weight_block_size"] = [128, 128]
    (folder / "config.json").write_text(json.dumps(config, indent=1))


maker("deepseek-fp8", "torch", "2.13", "by hand, as DeepSeek's checkpoints are", deepseek)


# What the libraries read

Parts = dict[str, torch.Tensor]
Readings = Iterable[tuple[str, torch.Tensor]]


def modules(tensors: Tensors, mark: str) -> Iterator[tuple[str, Parts]]:
    """Yields modules that have a tensor of this name, and their tensors."""
    for name in [key.removesuffix(f".{mark}") for key in tensors if key.endswith(f".{mark}")]:
        yield name, {key.removeprefix(f"{name}."): tensor for key, tensor in tensors.items() if key.startswith(f"{name}.")}


def by_compressed_tensors(tensors: Tensors, config: Config, folder: Path) -> Readings:
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationScheme

    (group,) = config["config_groups"].values()
    compressor = BaseCompressor.get_value_from_registry(group.get("format") or config["format"])
    for module, parts in modules(tensors, "weight_scale"):
        yield module, compressor.decompress(parts, QuantizationScheme(**group))["weight"]


def by_mlx(tensors: Tensors, config: Config, folder: Path) -> Readings:
    import mlx.core as mx

    stored = mx.load(str(folder / "model.safetensors"))
    for module, _ in modules(tensors, "scales"):
        mine = config.get(module, config)  # an entry of a module inherits nothing
        settings = {"mode": "affine", **{key: mine[key] for key in ("group_size", "bits", "mode") if key in mine}}
        parts = (stored.get(f"{module}.{part}") for part in ("weight", "scales", "biases"))
        weight = torch_of(mx.dequantize(*parts, **settings))
        if ".switch_mlp." in module:
            yield from ((module.replace("switch_mlp", f"experts.{i}"), matrix) for i, matrix in enumerate(weight))
        else:
            yield module, weight


def by_bitsandbytes(tensors: Tensors, config: Config, folder: Path) -> Readings:
    from bitsandbytes.functional import int8_vectorwise_dequant

    for module, parts in modules(tensors, "weight.absmax"):
        yield module, bitsandbytes_weight(parts["weight"], {k: v for k, v in parts.items() if k.startswith("weight.")})
    for module, parts in modules(tensors, "SCB"):
        yield module, int8_vectorwise_dequant(parts["weight"], parts["SCB"])


def by_torchao(tensors: Tensors, config: Config, folder: Path) -> Readings:
    from torchao.prototype.safetensors.safetensors_support import unflatten_tensor_state_dict

    with safe_open(folder / "model.safetensors", "pt") as file:
        found, _ = unflatten_tensor_state_dict(tensors, file.metadata())
    for name, tensor in found.items():
        if type(tensor) is not torch.Tensor:
            yield name.removesuffix(".weight"), tensor.dequantize()


def by_modelopt(tensors: Tensors, config: Config, folder: Path) -> Readings:
    from modelopt.torch.quantization.qtensor import FP8QTensor, NVFP4QTensor

    for module, parts in modules(tensors, "weight_scale"):
        codes, scale = parts["weight"], parts["weight_scale"]
        if codes.dtype == torch.uint8:
            quantized = NVFP4QTensor((codes.shape[0], codes.shape[1] * 2), F32, codes)
            more = {"double_scale": parts["weight_scale_2"], "block_sizes": {-1: 16}}
            yield module, quantized.dequantize(F32, scale=scale, **more)
        else:
            yield module, FP8QTensor(codes.shape, F32, codes).dequantize(F32, scale=scale)


def by_transformers(tensors: Tensors, config: Config, folder: Path) -> Readings:
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    for module, parts in modules(tensors, "weight_scale_inv"):
        yield module, Fp8Dequantize(None)._dequantize_one(parts["weight"], parts["weight_scale_inv"], F32)


def by_autoawq(tensors: Tensors, config: Config, folder: Path) -> Readings:
    bare_packages("awq", "awq.utils")
    from awq.utils.packing_utils import dequantize_gemm

    for module, parts in modules(tensors, "qweight"):
        stored = (parts[part] for part in ("qweight", "qzeros", "scales"))
        yield module, dequantize_gemm(*stored, config["bits"], config["group_size"]).T


def by_gptqmodel(tensors: Tensors, config: Config, folder: Path) -> Readings:
    settings = {key: config[key] for key in ("bits", "group_size", "sym")} | {"desc_act": config.get("desc_act", False)}
    for module, parts in modules(tensors, "qweight"):
        yield module, gptq_weight(parts, settings, config.get("checkpoint_format", "gptq"))


READERS: dict[str, tuple[str, str, str, Callable[[Tensors, Config, Path], Readings]]] = {
    "compressed-tensors": ("compressed-tensors", "0.20", "decompress", by_compressed_tensors),
    "mlx": ("mlx", "0.32", "dequantize", by_mlx),
    "bitsandbytes": ("bitsandbytes", "0.50", "dequantize_4bit or int8_vectorwise_dequant", by_bitsandbytes),
    "torchao": ("torchao", "0.18", "dequantize", by_torchao),
    "modelopt": ("nvidia-modelopt", "0.47", "NVFP4QTensor or FP8QTensor", by_modelopt),
    "fp8": ("transformers", "5.23", "Fp8Dequantize", by_transformers),
    "awq": ("autoawq", "0.2", "dequantize_gemm", by_autoawq),
    "gptq": ("gptqmodel", "7.7", "TorchLinear.dequantize_weight", by_gptqmodel),
}


def method_of(config: Config) -> tuple[str, Config]:
    """Returns the key of `READERS` and the part of config.json about the quantization."""
    settings = config.get("quantization_config") or {}
    if "quant_method" not in settings:
        return "mlx", config["quantization"]
    method = settings["quant_method"]
    if method == "auto-round":
        method = "awq" if "awq" in settings["packing_format"] else "gptq"
    return method, settings


def record_logits(folder: Path) -> str:
    """Writes the logits of a model, if its library is here; returns a line about it."""
    method, settings = method_of(json.loads((folder / "config.json").read_text()))
    library, version, how, read = READERS[method]
    if not (here := installed(library)).startswith(version):
        return f"{folder.name}: no logits: wants {library} {version}, here is {here}"
    tensors = load_file(folder / "model.safetensors")
    values = {f"{module}.weight": tensor for module, tensor in read(tensors, settings, folder)}
    family = folder.name.partition("-")[0]
    kept = {name: tensors[name] for module, _ in shapes(family) if (name := f"{module}.weight") not in values}
    with tempfile.TemporaryDirectory() as parent:
        model = loaded(plain(family, Path(parent) / "plain", kept | values), F32).eval()
        with torch.no_grad():
            logits = model(torch.tensor(TOKENS)[None]).logits[0].numpy()
    np.save(folder / "tokens.npy", TOKENS)
    np.save(folder / "logits.npy", logits)
    (rounded,) = {str(tensor.dtype).removeprefix("torch.") for tensor in values.values()}
    about = json.loads((folder / "about.json").read_text())
    about |= {"values": f"{library} {here}, {how}", "rounded_to": rounded}
    (folder / "about.json").write_text(json.dumps(about, indent=2) + "\n")
    return f"{folder.name}: {len(values)} weights in {rounded}"


def installed(library: str) -> str:
    """Returns the version of a library."""
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def main(out: Path, names: list[str]) -> None:
    """Makes the models whose names begin so, and adds logits to those that have none yet."""

    def asked(name: str) -> bool:
        return not names or any(name.startswith(start) for start in names)

    for family in CONFIGS:
        for scheme, (library, version, how, make) in MAKERS.items():
            folder = out / f"{family}-{scheme}"
            if not asked(folder.name) or folder.exists() or not (here := installed(library)).startswith(version):
                continue
            with tempfile.TemporaryDirectory() as parent:
                made = Path(parent) / folder.name
                make(plain(family, Path(parent) / "plain"), made)
                for file in TOKENIZER.iterdir():
                    if not (made / file.name).exists():
                        shutil.copy(file, made)
                (made / "about.json").write_text(json.dumps({"library": library, "version": here, "how": how}))
                shutil.copytree(made, folder)
            print(f"{folder.name}: {library} {here}", flush=True)
    for folder in sorted(out.iterdir()):
        if asked(folder.name) and not (folder / "logits.npy").exists():
            print(record_logits(folder), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
