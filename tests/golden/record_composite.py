"""Records composite weights as their own libraries store and dequantize them.

Run it by hand, in an environment that has the library, with the names of the folders to record or
the beginnings of names; without arguments it records all folders whose library is installed::

    python tests/golden/record_composite.py compressed-tensors mlx

The libraries' requirements conflict. These environments (Python 3.11, CPU) made the folders:

* torch 2.13.0, compressed-tensors 0.20.0, transformers 5.23.0, mlx[cpu] 0.32.4,
  bitsandbytes 0.50.0, torchao 0.18.0, nvidia-modelopt 0.47.0 with omegaconf, pulp, scipy and
  requests, autoawq 0.2.9 without its dependencies: all folders except the following;
* gptqmodel 7.7.0 without its dependencies, built with BUILD_CUDA_EXT=0: gptqmodel;
* compressed-tensors 0.17.1: folders that begin with compressed-tensors-old.

Each folder of tests/golden/composite has these files:

* model.safetensors and config.json: the tensors and the config, as the library stores them;
* expected.safetensors: the weights [out, in] as the library dequantizes them, in its dtype;
* about.json: library, version, scheme, how the folder was made, and the dtype to which the library
  rounds its result, or null if the result is the formula in float32.

Weights whose module is q_proj have scales at the edges: zero, negative, subnormal, large.
"""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import sys
import types
import zlib
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

FOLDER = Path(__file__).with_name("composite")
LAYER = "model.layers.0"
DOWN, UP, QUERY = f"{LAYER}.mlp.down_proj", f"{LAYER}.mlp.up_proj", f"{LAYER}.self_attn.q_proj"
Tensors = dict[str, torch.Tensor]
Config = dict[str, Any]
Recorder = Callable[[str], None]
RECORDERS: dict[str, tuple[str, str, Recorder]] = {}  # name of a folder -> library, beginning of its version


def recorder(name: str, library: str, version: str, record: Recorder) -> None:
    """Declares how a folder is recorded."""
    RECORDERS[name] = (library, version, record)


def save(
    name: str,
    tensors: Tensors,
    expected: Tensors,
    config: Config,
    scheme: str,
    how: str,
    rounded_to: str | None,
    metadata: dict[str, str] | None = None,
    beside: dict[str, Config] | None = None,
) -> None:
    """Writes a folder."""
    library, _, _ = RECORDERS[name]
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    save_file({k: v.detach().contiguous().clone() for k, v in tensors.items()}, folder / "model.safetensors", metadata)
    save_file({k: v.detach().contiguous().clone() for k, v in expected.items()}, folder / "expected.safetensors")
    about = {"library": library, "version": importlib.metadata.version(library)}
    about |= {"scheme": scheme, "how": how, "rounded_to": rounded_to}
    for file, content in {"config.json": config, "about.json": about, **(beside or {})}.items():
        (folder / file).write_text(json.dumps(content, indent=2, sort_keys=file != "about.json") + "\n")


def numbers(name: str, *shape: int) -> torch.Tensor:
    """Returns weights in float32 that depend on the name: normal, and a few outliers."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    weights = torch.randn(shape, generator=generator) * 0.03
    return torch.where(torch.rand(shape, generator=generator) < 0.01, weights * 8, weights)


def edge(scale: torch.Tensor, values: Iterable[float]) -> torch.Tensor:
    """Returns a scale with values at its beginning, in every second place if there is room."""
    edited, values = scale.detach().contiguous().clone(), list(values)
    step = 2 if edited.numel() > 2 * len(values) else 1
    for place, value in zip(range(step - 1, edited.numel(), step), values, strict=False):
        edited.view(-1)[place] = value
    return edited


# compressed-tensors

BF16_EDGES = (0.0, -0.0078125, 1e-40, -3e-39, 1e30, 6e-5, 65536.0)  # the last two are not exact in float16
E4M3_EDGES = (0.0, -0.0, 2**-9, -(2**-9), 7 * 2**-9, 448.0, -448.0)
E8M0_EDGES = (0, 1, 254, 126, 128, 3, 250)


def compressed_tensors(
    name: str,
    scheme: str,
    shapes: dict[str, tuple[int, int]],
    dtype: torch.dtype,
    edges: Iterable[float] = (),
    inputs: Config | None = None,
    g_idx: bool = False,
    form: str | None = None,
    **weights: Any,
) -> None:
    """Records modules compressed by a scheme of compressed-tensors."""
    from compressed_tensors.compressors import BaseCompressor, ModelCompressor
    from compressed_tensors.quantization import (
        QuantizationArgs,
        QuantizationConfig,
        QuantizationScheme,
        apply_quantization_config,
    )
    from compressed_tensors.quantization.utils import (
        calculate_qparams,
        generate_gparam,
        maybe_pad_tensor_for_block_quant,
    )

    model = torch.nn.Module()
    for module, (rows, columns) in shapes.items():
        *path, leaf = module.split(".")
        parent = model
        for part in path:
            if not hasattr(parent, part):
                parent.add_module(part, torch.nn.Module())
            parent = getattr(parent, part)
        linear = torch.nn.Linear(columns, rows, bias=False, dtype=dtype)
        linear.weight.data = numbers(name + module, rows, columns).to(dtype)
        parent.add_module(leaf, linear)
    args = QuantizationArgs(**weights)
    asked = QuantizationScheme(
        targets=["Linear"], weights=args, input_activations=inputs and QuantizationArgs(**inputs), format=form
    )
    apply_quantization_config(model, QuantizationConfig(config_groups={"group_0": asked}))
    for module in shapes:
        linear = model.get_submodule(module)
        weight = linear.weight.data
        if args.strategy in ("group", "tensor_group"):
            parts = weight.unflatten(-1, (-1, args.group_size))
            if g_idx:
                order = torch.randperm(weight.shape[1], generator=torch.Generator().manual_seed(5))
                linear.weight_g_idx.data[order] = torch.arange(weight.shape[1], dtype=torch.int32) // args.group_size
                parts = weight[:, order].unflatten(-1, (-1, args.group_size))
            low, high = parts.amin(-1), parts.amax(-1)
        elif args.strategy == "channel":
            low, high = weight.amin(-1, keepdim=True), weight.amax(-1, keepdim=True)
        elif args.strategy == "block":
            height, width = args.block_structure
            padded = maybe_pad_tensor_for_block_quant(weight, args.block_structure)
            blocks = padded.unflatten(-1, (-1, width)).unflatten(0, (-1, height))
            low, high = blocks.amin((1, 3)), blocks.amax((1, 3))
        else:
            low, high = weight.min().reshape(1), weight.max().reshape(1)
        whole = None
        if args.strategy == "tensor_group":
            whole = linear.weight_global_scale.data = generate_gparam(weight.min(), weight.max()).reshape(1)
        scale, zero = calculate_qparams(low, high, args, **({} if whole is None else {"global_scale": whole}))
        linear.weight_scale.data = scale.to(linear.weight_scale.dtype)
        if hasattr(linear, "weight_zero_point"):
            linear.weight_zero_point.data = zero.to(linear.weight_zero_point.dtype)
        if inputs and hasattr(linear, "input_global_scale"):
            linear.input_global_scale.data.fill_(384.0)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    tensors, expected = dict(model.state_dict()), {}
    for module in shapes:
        linear = model.get_submodule(module)
        if module == QUERY and edges:
            key = f"{module}.weight_scale"
            tensors[key] = edge(tensors[key].float(), edges).to(tensors[key].dtype)
        stored = {key[len(module) + 1 :]: tensor for key, tensor in tensors.items() if key.startswith(module + ".")}
        decompressor = BaseCompressor.get_value_from_registry(linear.quantization_scheme.format)
        expected[f"{module}.weight"] = decompressor.decompress(stored, linear.quantization_scheme)["weight"]
    FOLDER.joinpath("config.json").unlink(missing_ok=True)
    compressor.update_config(str(FOLDER))
    config = json.loads((FOLDER / "config.json").read_text())
    FOLDER.joinpath("config.json").unlink()
    dtypes = {str(tensor.dtype).removeprefix("torch.") for tensor in expected.values()}
    assert len(dtypes) == 1, dtypes
    rounded = dtypes.pop()
    how = "modules compressed by ModelCompressor, weights from the compressor's decompress"
    if QUERY in shapes and edges:
        how += "; some scales of q_proj replaced before it"
    save(name, tensors, expected, config, scheme, how, None if rounded == "float32" else rounded)


GROUPS = {DOWN: (16, 64), UP: (10, 192), QUERY: (8, 128)}
WIDE = {DOWN: (8, 128), UP: (10, 384), QUERY: (9, 256)}
BLOCKS = {DOWN: (130, 24), UP: (12, 136)}
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
ACTIVATIONS = {"num_bits": 8, "symmetric": True, "strategy": "token", "dynamic": True}
CT: dict[str, Config] = {
    "w4a16-g32": {
        "scheme": "W4A16 pack-quantized, groups of 32",
        "shapes": GROUPS,
        "dtype": BF16,
        "edges": BF16_EDGES,
        "num_bits": 4,
        "strategy": "group",
        "group_size": 32,
    },
    "w4a16-g32-float16": {
        "scheme": "W4A16 pack-quantized, groups of 32, float16",
        "shapes": GROUPS,
        "dtype": F16,
        "edges": (0.0, -0.5, 6e-8, 65504.0),
        "num_bits": 4,
        "strategy": "group",
        "group_size": 32,
    },
    "w4a16-asym-g128": {
        "scheme": "W4A16 asymmetric pack-quantized, groups of 128",
        "shapes": WIDE,
        "dtype": BF16,
        "edges": BF16_EDGES,
        "num_bits": 4,
        "strategy": "group",
        "group_size": 128,
        "symmetric": False,
    },
    "w4a16-channel": {
        "scheme": "W4A16 pack-quantized, channels",
        "shapes": {DOWN: (16, 128), UP: (12, 100), QUERY: (8, 128)},
        "dtype": BF16,
        "edges": BF16_EDGES,
        "num_bits": 4,
        "strategy": "channel",
    },
    "w4a16-asym-channel": {
        "scheme": "W4A16 asymmetric pack-quantized, channels",
        "shapes": {DOWN: (16, 128), UP: (27, 100)},
        "dtype": BF16,
        "num_bits": 4,
        "strategy": "channel",
        "symmetric": False,
    },
    "w8a16-g32": {
        "scheme": "W8A16 pack-quantized, groups of 32",
        "shapes": GROUPS,
        "dtype": BF16,
        "edges": BF16_EDGES,
        "num_bits": 8,
        "strategy": "group",
        "group_size": 32,
    },
    "w8a16-asym-g64": {
        "scheme": "W8A16 asymmetric pack-quantized, groups of 64",
        "shapes": GROUPS,
        "dtype": F32,
        "num_bits": 8,
        "strategy": "group",
        "group_size": 64,
        "symmetric": False,
    },
    **{
        f"w{bits}a16-g32": {
            "scheme": f"W{bits}A16 pack-quantized, groups of 32, a dense stream",
            "shapes": GROUPS,
            "dtype": BF16,
            "edges": BF16_EDGES,
            "num_bits": bits,
            "strategy": "group",
            "group_size": 32,
        }
        for bits in (2, 3, 5, 6)
    },
    "w3a16-asym-g32": {
        "scheme": "W3A16 asymmetric pack-quantized, groups of 32, a dense stream",
        "shapes": {DOWN: (16, 128), UP: (27, 96)},
        "dtype": BF16,
        "num_bits": 3,
        "strategy": "group",
        "group_size": 32,
        "symmetric": False,
    },
    "int8-channel": {
        "scheme": "W8A8 int-quantized, channels",
        "shapes": {DOWN: (16, 128), UP: (12, 100), QUERY: (8, 128)},
        "dtype": BF16,
        "edges": BF16_EDGES,
        "inputs": ACTIVATIONS,
        "num_bits": 8,
        "strategy": "channel",
    },
    "int8-asym-g64": {
        "scheme": "W8A8 asymmetric int-quantized, groups of 64",
        "shapes": GROUPS,
        "dtype": F32,
        "edges": BF16_EDGES,
        "inputs": ACTIVATIONS,
        "num_bits": 8,
        "strategy": "group",
        "group_size": 64,
        "symmetric": False,
    },
    **{
        f"fp8-{strategy}": {
            "scheme": f"FP8 float-quantized, {strategy}",
            "shapes": {DOWN: (16, 128), UP: (12, 100), QUERY: (8, 128)},
            "dtype": dtype,
            "edges": edges,
            "inputs": ACTIVATIONS | {"type": "float"},
            "num_bits": 8,
            "type": "float",
            "strategy": strategy,
        }
        for strategy, dtype, edges in (("tensor", F32, ()), ("channel", BF16, BF16_EDGES))
    },
    "fp8-block": {
        "scheme": "FP8 float-quantized, blocks of 128x128, ragged edges",
        "shapes": BLOCKS,
        "dtype": BF16,
        "inputs": ACTIVATIONS | {"type": "float", "strategy": "group", "group_size": 128},
        "num_bits": 8,
        "type": "float",
        "strategy": "block",
        "block_structure": [128, 128],
    },
    "fp8-small-blocks": {
        "scheme": "FP8 float-quantized, blocks of 16x32, ragged edges",
        "shapes": {DOWN: (16, 128), UP: (12, 100), QUERY: (20, 40)},
        "dtype": F32,
        "edges": BF16_EDGES[:4],
        "inputs": ACTIVATIONS | {"type": "float", "strategy": "group", "group_size": 32},
        "num_bits": 8,
        "type": "float",
        "strategy": "block",
        "block_structure": [16, 32],
    },
    "naive-fp8-channel": {
        "scheme": "FP8 naive-quantized (no activations), channels",
        "shapes": {DOWN: (16, 128), UP: (24, 100)},
        "dtype": BF16,
        "num_bits": 8,
        "type": "float",
        "strategy": "channel",
    },
    "nvfp4": {
        "scheme": "NVFP4 pack-quantized with input_global_scale",
        "shapes": {DOWN: (16, 128), UP: (12, 208), QUERY: (8, 128)},
        "dtype": BF16,
        "edges": E4M3_EDGES,
        "inputs": {
            "num_bits": 4,
            "type": "float",
            "strategy": "tensor_group",
            "group_size": 16,
            "dynamic": "local",
            "scale_dtype": torch.float8_e4m3fn,
        },
        "num_bits": 4,
        "type": "float",
        "strategy": "tensor_group",
        "group_size": 16,
        "scale_dtype": torch.float8_e4m3fn,
    },
    "nvfp4a16": {
        "scheme": "NVFP4A16 pack-quantized",
        "shapes": {DOWN: (16, 128), UP: (12, 192)},
        "dtype": BF16,
        "num_bits": 4,
        "type": "float",
        "strategy": "tensor_group",
        "group_size": 16,
        "scale_dtype": torch.float8_e4m3fn,
    },
    "mxfp4a16": {
        "scheme": "MXFP4A16 pack-quantized",
        "shapes": GROUPS,
        "dtype": BF16,
        "edges": E8M0_EDGES,
        "num_bits": 4,
        "type": "float",
        "strategy": "group",
        "group_size": 32,
        "scale_dtype": torch.uint8,
    },
    "mxfp8a16": {
        "scheme": "MXFP8 quantized",
        "shapes": GROUPS,
        "dtype": BF16,
        "edges": E8M0_EDGES,
        "num_bits": 8,
        "type": "float",
        "strategy": "group",
        "group_size": 32,
        "scale_dtype": torch.uint8,
    },
}
CT_OLD: dict[str, Config] = {
    **{
        f"w{bits}a16-g32": {
            "scheme": f"W{bits}A16 pack-quantized, groups of 32, whole numbers in each word",
            "shapes": GROUPS,
            "dtype": BF16,
            "edges": BF16_EDGES,
            "num_bits": bits,
            "strategy": "group",
            "group_size": 32,
        }
        for bits in (3, 5)
    },
    "w3a16-asym-g32": {
        "scheme": "W3A16 asymmetric pack-quantized, groups of 32, whole numbers in each word",
        "shapes": {DOWN: (16, 128), UP: (27, 96)},
        "dtype": BF16,
        "num_bits": 3,
        "strategy": "group",
        "group_size": 32,
        "symmetric": False,
    },
    "w4a16-actorder": {
        "scheme": "W4A16 pack-quantized, groups of 32 in the order of activations",
        "shapes": GROUPS,
        "dtype": BF16,
        "g_idx": True,
        "edges": BF16_EDGES,
        "num_bits": 4,
        "strategy": "group",
        "group_size": 32,
        "actorder": "group",
    },
    "w4a16-asym-actorder": {
        "scheme": "W4A16 asymmetric pack-quantized, groups of 64 in the order of activations",
        "shapes": GROUPS,
        "dtype": F16,
        "g_idx": True,
        "num_bits": 4,
        "strategy": "group",
        "group_size": 64,
        "actorder": "group",
        "symmetric": False,
    },
}
for prefix, version, schemes in (("compressed-tensors", "0.20", CT), ("compressed-tensors-old", "0.17", CT_OLD)):
    for key, settings in schemes.items():
        recorder(f"{prefix}-{key}", "compressed-tensors", version, partial(compressed_tensors, **settings))


# GPTQ


def grouped(weight: torch.Tensor, size: int, bits: int, symmetric: bool, least: int = 0) -> tuple[torch.Tensor, ...]:
    """Returns scales and zeros [out, groups] of weights [out, in]; zeros are `least` or more."""
    groups = weight.unflatten(-1, (-1, size))
    low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
    if symmetric:
        high = torch.maximum(high, -low)
        return 2 * high / (2**bits - 1), torch.full_like(high, 2 ** (bits - 1))
    scale = (high - low) / (2**bits - 1)
    return scale, (-low / scale).round().clamp(least, 2**bits - 1)


def gptq_weight(stored: Tensors, settings: Config, checkpoint: str) -> torch.Tensor:
    """Returns the weight [out, in] of a module, in a format "gptq" or "gptq_v2" of a checkpoint."""
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear
    from gptqmodel.utils.model import convert_gptq_v1_to_v2_format_module

    rows, columns = stored["scales"].shape[1], stored["qweight"].shape[0] * 32 // settings["bits"]
    loaded = TorchLinear(in_features=columns, out_features=rows, **settings)
    loaded.load_state_dict(stored, strict=False)  # auto-round stores no g_idx
    if checkpoint == "gptq":
        convert_gptq_v1_to_v2_format_module(loaded, settings["bits"], torch.int32)
    loaded.eval()
    loaded._init_wf_unsqueeze_buffers()
    weight: torch.Tensor = loaded.dequantize_weight().T
    return weight


def gptqmodel(
    name: str,
    scheme: str,
    bits: int,
    group_size: int = 32,
    symmetric: bool = True,
    checkpoint: str = "gptq",
    order: str = "",
    shapes: dict[str, tuple[int, int]] | None = None,
    edges: Iterable[float] = (),
) -> None:
    """Records modules that gptqmodel packed.

    `order` is "" for no act order, "shuffled" for groups in an order of activations, and "same" for
    act order whose g_idx is that without act order.
    """
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear
    from gptqmodel.quantization import QuantizeConfig
    from gptqmodel.utils.model import convert_gptq_v2_to_v1_format_module

    settings = {"bits": bits, "group_size": group_size, "desc_act": bool(order), "sym": symmetric}
    config = QuantizeConfig(**settings, format=checkpoint)
    tensors, expected = {}, {}
    for module, (rows, columns) in (shapes or {DOWN: (32, 64), UP: (32, 96), QUERY: (32, 32)}).items():
        linear = torch.nn.Linear(columns, rows, bias=False)
        linear.weight.data = numbers(name + module, rows, columns)
        size = columns if group_size == -1 else group_size
        g_idx = torch.arange(columns, dtype=torch.int32) // size
        columns_of_groups = torch.arange(columns)
        if order == "shuffled":
            columns_of_groups = torch.randperm(columns, generator=torch.Generator().manual_seed(7))
            g_idx[columns_of_groups] = g_idx.clone()
        values = linear.weight.data[:, columns_of_groups]
        scales, zeros = grouped(values, size, bits, symmetric, least=1 if checkpoint == "gptq" else 0)
        packed = TorchLinear(in_features=columns, out_features=rows, **settings)
        packed.pack_original(linear, scales, zeros, g_idx)
        if checkpoint == "gptq":
            convert_gptq_v2_to_v1_format_module(packed, config)
        stored = {key: tensor.clone() for key, tensor in packed.state_dict().items()}
        if module == QUERY and edges:
            stored["scales"] = edge(stored["scales"], edges)
        expected[f"{module}.weight"] = gptq_weight(stored, settings, checkpoint)
        tensors |= {f"{module}.{key}": tensor for key, tensor in stored.items()}
    written = json.loads(json.dumps(config.to_dict(), default=str))
    written["meta"] = {"quantizer": [f"gptqmodel:{importlib.metadata.version('gptqmodel')}"]}
    how = "scales and zeros rounded to nearest here, packed by TorchLinear.pack_original, "
    how += "weights from TorchLinear.dequantize_weight of another module"
    save(name, tensors, expected, {"quantization_config": written}, scheme, how, "float16")


F16_EDGES = (0.0, -0.5, 6e-8, -3e-5, 4000.0)
GPTQ: dict[str, Config] = {
    "w4-g32": {"scheme": "GPTQ v1, 4 bits, groups of 32", "bits": 4, "edges": F16_EDGES},
    "w4-channel": {"scheme": "GPTQ v1, 4 bits, one group", "bits": 4, "group_size": -1},
    "w4-v2": {"scheme": "GPTQ v2, 4 bits, groups of 32", "bits": 4, "checkpoint": "gptq_v2", "edges": F16_EDGES},
    "w4-asym": {"scheme": "GPTQ v1, 4 bits, asymmetric", "bits": 4, "symmetric": False, "edges": F16_EDGES},
    "w4-asym-v2": {"scheme": "GPTQ v2, 4 bits, asymmetric", "bits": 4, "symmetric": False, "checkpoint": "gptq_v2"},
    "w4-actorder": {"scheme": "GPTQ v1, 4 bits, act order", "bits": 4, "order": "shuffled", "edges": F16_EDGES},
    "w4-asym-actorder": {
        "scheme": "GPTQ v1, 4 bits, asymmetric, act order",
        "bits": 4,
        "symmetric": False,
        "order": "shuffled",
    },
    "w4-actorder-same": {"scheme": "GPTQ v1, 4 bits, act order with groups in place", "bits": 4, "order": "same"},
    "w2-g32": {"scheme": "GPTQ v1, 2 bits, groups of 32", "bits": 2, "edges": F16_EDGES},
    "w3-g32": {"scheme": "GPTQ v1, 3 bits, groups of 32", "bits": 3, "edges": F16_EDGES},
    "w3-asym-v2": {"scheme": "GPTQ v2, 3 bits, asymmetric", "bits": 3, "symmetric": False, "checkpoint": "gptq_v2"},
    "w8-g32": {"scheme": "GPTQ v1, 8 bits, groups of 32", "bits": 8, "edges": F16_EDGES},
    "w8-asym": {"scheme": "GPTQ v1, 8 bits, asymmetric", "bits": 8, "symmetric": False},
}
for key, settings in GPTQ.items():
    recorder(f"gptqmodel-{key}", "gptqmodel", "7.7", partial(gptqmodel, **settings))


# AWQ


def bare_packages(*names: str) -> None:
    """Lets modules of packages be imported without the packages' own __init__."""
    folder = Path(str(importlib.metadata.distribution("autoawq").locate_file("")))
    for name in names:
        package = types.ModuleType(name)
        package.__path__ = [str(folder.joinpath(*name.split(".")))]
        sys.modules[name] = package


def autoawq(name: str, scheme: str, group_size: int, edges: Iterable[float] = (), symmetric: bool = False) -> None:
    """Records modules that AutoAWQ packed."""
    bare_packages("awq", "awq.utils", "awq.modules", "awq.modules.linear")
    from awq.modules.linear.gemm import WQLinear_GEMM
    from awq.utils.packing_utils import dequantize_gemm

    tensors, expected = {}, {}
    for module, (rows, columns) in {DOWN: (32, max(group_size, 64)), UP: (64, group_size), QUERY: (32, group_size)}.items():
        linear = torch.nn.Linear(columns, rows, bias=False)
        linear.weight.data = numbers(name + module, rows, columns)
        scales, zeros = grouped(linear.weight.data, group_size, 4, symmetric)
        packed = WQLinear_GEMM.from_linear(linear, 4, group_size, scales=scales.T.half(), zeros=zeros.T)
        stored = {key: tensor.clone() for key, tensor in packed.state_dict().items()}
        if module == QUERY and edges:
            stored["scales"] = edge(stored["scales"], edges)
        weight = dequantize_gemm(stored["qweight"], stored["qzeros"], stored["scales"], 4, group_size)
        expected[f"{module}.weight"] = weight.T
        tensors |= {f"{module}.{key}": tensor for key, tensor in stored.items()}
    config = {"quant_method": "awq", "zero_point": not symmetric, "group_size": group_size, "bits": 4}
    config |= {"version": "gemm", "modules_to_not_convert": None}
    how = "scales and zeros rounded to nearest here, packed by WQLinear_GEMM.from_linear, weights from dequantize_gemm; "
    how += "config as AwqConfig.to_transformers_dict writes it"
    save(name, tensors, expected, {"quantization_config": config}, scheme, how, "float16")


recorder(
    "autoawq-g32", "autoawq", "0.2", partial(autoawq, scheme="AWQ GEMM, 4 bits, groups of 32", group_size=32, edges=F16_EDGES)
)
recorder("autoawq-g128", "autoawq", "0.2", partial(autoawq, scheme="AWQ GEMM, 4 bits, groups of 128", group_size=128))
recorder(
    "autoawq-sym-g64", "autoawq", "0.2", partial(autoawq, scheme="AWQ GEMM, 4 bits, symmetric", group_size=64, symmetric=True)
)


# MLX


def torch_of(array: Any) -> torch.Tensor:
    """Returns an array of MLX as a tensor."""
    import mlx.core as mx
    import numpy

    if array.dtype == mx.bfloat16:
        return torch.from_numpy(numpy.array(array.view(mx.uint16))).view(torch.bfloat16)
    return torch.from_numpy(numpy.array(array))


def mlx(
    name: str,
    scheme: str,
    bits: int,
    group_size: int,
    dtype: str = "float16",
    mode: str = "affine",
    edges: Iterable[float] = (),
    whole: bool = False,
) -> None:
    """Records arrays quantized by MLX; `whole` gives nvfp4 a scale for the whole array."""
    import mlx.core as mx

    def mlx_of(tensor: torch.Tensor) -> mx.array:
        if tensor.dtype == torch.bfloat16:
            return mx.array(tensor.view(torch.uint16).numpy()).view(mx.bfloat16)
        return mx.array(tensor.numpy())

    parameters = {"group_size": group_size, "bits": bits, "mode": mode}
    tensors, expected = {}, {}
    odd = (6, 192) if group_size < 128 else (6, 384)
    for module, shape in {DOWN: (8, 128), UP: odd, QUERY: (8, 128)}.items():
        weight = mx.array(numbers(name + module, *shape).numpy()).astype(getattr(mx, dtype))
        scale = {"global_scale": mx.abs(weight).max().astype(mx.float32)} if whole else {}
        parts = dict(zip(("weight", "scales", "biases"), mx.quantize(weight, **parameters, **scale), strict=False))
        if module == QUERY and edges:
            parts["scales"] = mlx_of(edge(torch_of(parts["scales"]), edges))
        expected[f"{module}.weight"] = torch_of(mx.dequantize(*parts.values(), **parameters, **scale))
        tensors |= {f"{module}.{key}": torch_of(array) for key, array in (parts | scale).items()}
    config = {"quantization": parameters, "quantization_config": parameters}
    how = "mx.quantize and mx.dequantize; named as mlx-lm names its parameters"
    if mode == "affine":
        how += "; the product and the sum are each rounded"
    rounded = str(next(iter(expected.values())).dtype).removeprefix("torch.")
    save(name, tensors, expected, config, scheme, how, rounded, {"format": "mlx"})


E8M0_BYTES, E4M3_BYTES = (0, 1, 254, 126, 130), (0, 0x80, 1, 0x81, 7, 0x7E, 0xFE)
MLX: dict[str, Config] = {
    "affine-4-g32": {"bits": 4, "group_size": 32, "edges": F16_EDGES},
    "affine-4-g64": {"bits": 4, "group_size": 64},
    "affine-4-g64-bfloat16": {"bits": 4, "group_size": 64, "dtype": "bfloat16", "edges": BF16_EDGES},
    "affine-4-g128-float32": {"bits": 4, "group_size": 128, "dtype": "float32", "edges": BF16_EDGES},
    "affine-8-g32": {"bits": 8, "group_size": 32},
    "affine-8-g64-bfloat16": {"bits": 8, "group_size": 64, "dtype": "bfloat16", "edges": BF16_EDGES},
    **{f"affine-{bits}-g64": {"bits": bits, "group_size": 64} for bits in (1, 2, 3, 5, 6)},
    "mxfp4": {"bits": 4, "group_size": 32, "dtype": "bfloat16", "mode": "mxfp4", "edges": E8M0_BYTES},
    "mxfp8": {"bits": 8, "group_size": 32, "dtype": "bfloat16", "mode": "mxfp8", "edges": E8M0_BYTES},
    "nvfp4": {"bits": 4, "group_size": 16, "dtype": "bfloat16", "mode": "nvfp4", "edges": E4M3_BYTES},
    "nvfp4-global": {"bits": 4, "group_size": 16, "dtype": "bfloat16", "mode": "nvfp4", "whole": True},
}
for key, settings in MLX.items():
    mode = settings.get("mode", "affine")
    scheme = f"MLX {mode}, {settings['bits']} bits, groups of {settings['group_size']}"
    recorder(f"mlx-{key}", "mlx", "0.32", partial(mlx, scheme=scheme, **settings))


# bitsandbytes


def bitsandbytes_weight(packed: torch.Tensor, state: Tensors) -> torch.Tensor:
    """Returns a weight of nf4 or fp4; names of the tensors of its state begin with "weight."."""
    from bitsandbytes.functional import QuantState, dequantize_4bit

    loaded = QuantState.from_dict({key.removeprefix("weight."): part.clone() for key, part in state.items()}, "cpu")
    weight: torch.Tensor = dequantize_4bit(packed, loaded)
    return weight


def bitsandbytes_4bit(name: str, kind: str, dtype: torch.dtype, nested: bool, blocksize: int = 64, many: bool = False) -> None:
    """Records weights quantized to nf4 or fp4; `many` for more than 256 blocks."""
    from bitsandbytes.functional import quantize_4bit

    tensors, expected = {}, {}
    for module, shape in {DOWN: (16, 128), UP: (7, 45), QUERY: (130, 127 if many else 10)}.items():
        weight = numbers(name + module, *shape).to(dtype)
        packed, state = quantize_4bit(
            weight, blocksize=blocksize, compress_statistics=nested, quant_type=kind, quant_storage=torch.uint8
        )
        parts = {f"weight.{key}": tensor for key, tensor in state.as_dict(packed=True).items()}
        if module == QUERY and not nested:
            parts["weight.absmax"] = edge(parts["weight.absmax"], (0.0, -0.5, 1e-40, 1e30))
        expected[f"{module}.weight"] = bitsandbytes_weight(packed, parts)
        tensors |= {f"{module}.{key}": tensor for key, tensor in {"weight": packed, **parts}.items()}
    config = {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False, "_load_in_4bit": True}
    config |= {"_load_in_8bit": False, "bnb_4bit_quant_type": kind, "bnb_4bit_use_double_quant": nested}
    config |= {"bnb_4bit_quant_storage": "uint8", "bnb_4bit_compute_dtype": str(dtype).removeprefix("torch.")}
    config |= {"llm_int8_enable_fp32_cpu_offload": False, "llm_int8_has_fp16_weight": False}
    config |= {"llm_int8_skip_modules": None, "llm_int8_threshold": 6.0}
    scheme = f"bitsandbytes {kind}, blocks of {blocksize}" + (", nested" if nested else "")
    how = "quantize_4bit, QuantState.as_dict(packed=True), weights from dequantize_4bit; up_proj has an odd count"
    rounded = None if dtype == torch.float32 else str(dtype).removeprefix("torch.")
    save(name, tensors, expected, {"quantization_config": config}, scheme, how, rounded)


def bitsandbytes_8bit(name: str) -> None:
    """Records weights quantized to int8 by rows, the state of a Linear8bitLt."""
    from bitsandbytes.functional import int8_vectorwise_dequant
    from bitsandbytes.nn import Int8Params, Linear8bitLt

    tensors, expected = {}, {}
    for module, (rows, columns) in {DOWN: (16, 128), UP: (13, 50), QUERY: (8, 64)}.items():
        linear = Linear8bitLt(columns, rows, bias=False, has_fp16_weights=False)
        weight = numbers(name + module, rows, columns).half()
        if module == QUERY:
            weight[1] = 0
            weight[2] *= 1e-4
            weight[3] *= 1e4
        linear.weight = Int8Params(weight, requires_grad=False, has_fp16_weights=False)
        linear = linear.to("cpu")
        if linear.weight.dtype != torch.int8:
            linear.weight = linear.weight._quantize("cpu")
        stored = linear.state_dict()
        expected[f"{module}.weight"] = int8_vectorwise_dequant(stored["weight"], stored["SCB"])
        tensors |= {f"{module}.{key}": tensor for key, tensor in stored.items()}
    config = {"quant_method": "bitsandbytes", "load_in_4bit": False, "load_in_8bit": True, "_load_in_4bit": False}
    config |= {"_load_in_8bit": True, "llm_int8_enable_fp32_cpu_offload": False, "llm_int8_has_fp16_weight": False}
    config |= {"llm_int8_skip_modules": None, "llm_int8_threshold": 6.0}
    how = "Linear8bitLt's state_dict, weights from int8_vectorwise_dequant"
    save(name, tensors, expected, {"quantization_config": config}, "bitsandbytes int8 by rows", how, None)


for key, settings in {
    "nf4": {"kind": "nf4", "dtype": BF16, "nested": False},
    "nf4-float32": {"kind": "nf4", "dtype": F32, "nested": False, "blocksize": 128},
    "nf4-nested": {"kind": "nf4", "dtype": F16, "nested": True, "many": True},
    "fp4": {"kind": "fp4", "dtype": F16, "nested": False},
    "fp4-nested": {"kind": "fp4", "dtype": BF16, "nested": True},
}.items():
    recorder(f"bitsandbytes-{key}", "bitsandbytes", "0.50", partial(bitsandbytes_4bit, **settings))
recorder("bitsandbytes-int8", "bitsandbytes", "0.50", bitsandbytes_8bit)


# torchao


def torchao(
    name: str,
    scheme: str,
    convert: Callable[[], tuple[Any, Callable[[torch.Tensor], torch.Tensor] | None]],
    dtype: torch.dtype = torch.bfloat16,
    rows: int = 6,
    columns: int = 192,
    edges: Iterable[float] = (),
    scale: str = "scale",
) -> None:
    """Records tensor subclasses of torchao, by a config or by a function of a weight."""
    from torchao.prototype.safetensors.safetensors_support import (
        flatten_tensor_state_dict,
        unflatten_tensor_state_dict,
    )
    from torchao.quantization import quantize_
    from transformers import TorchAoConfig

    config, function = convert()
    weights = {}
    for module, shape in {DOWN: (8, 128), UP: (rows, columns), QUERY: (8, 128)}.items():
        linear = torch.nn.Linear(shape[1], shape[0], bias=False, dtype=dtype)
        linear.weight.data = numbers(name + module, *shape).to(dtype)
        if function is None:
            quantize_(linear, config)
            weights[f"{module}.weight"] = linear.weight.data
        else:
            weights[f"{module}.weight"] = function(linear.weight.data)
    tensors, metadata = flatten_tensor_state_dict(weights)
    if edges:
        key = f"{QUERY}._weight_{scale}"
        tensors[key] = edge(tensors[key], edges)
    loaded, rest = unflatten_tensor_state_dict(tensors, metadata)
    assert not rest
    expected = {key: tensor.dequantize() for key, tensor in loaded.items()}
    written = TorchAoConfig(config).to_dict()
    how = "quantize_" if function is None else "a tensor's class, as quantize_ uses it,"
    how += " and flatten_tensor_state_dict, weights from dequantize after unflatten_tensor_state_dict"
    rounded = None if dtype == torch.float32 else str(dtype).removeprefix("torch.")
    save(name, tensors, expected, {"quantization_config": written}, scheme, how, rounded, {"format": "pt"} | metadata)


def torchao_config(name: str, **parameters: Any) -> Callable[[], tuple[Any, None]]:
    """Returns a function that makes a config; granularities are tuples of name and arguments."""

    def make() -> tuple[Any, None]:
        from torchao import quantization
        from torchao.quantization import granularity

        made = {
            key: getattr(granularity, value[0])(*value[1:]) if isinstance(value, tuple) else value
            for key, value in parameters.items()
        }
        if "mapping_type" in made:
            made["mapping_type"] = quantization.MappingType[made["mapping_type"]]
        return getattr(quantization, name)(**made), None

    return make


def torchao_nvfp4(per_tensor: bool, swizzled: bool) -> Callable[[], tuple[Any, Callable[[torch.Tensor], torch.Tensor]]]:
    """Returns a function that makes a config and a function that quantizes so."""

    def make() -> tuple[Any, Callable[[torch.Tensor], torch.Tensor]]:
        from torchao.prototype.mx_formats import NVFP4WeightOnlyConfig
        from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale

        def quantize(weight: torch.Tensor) -> torch.Tensor:
            scale = per_tensor_amax_to_scale(weight.abs().max()) if per_tensor else None
            return NVFP4Tensor.to_nvfp4(weight, per_tensor_scale=scale, is_swizzled_scales=swizzled)

        return NVFP4WeightOnlyConfig(use_dynamic_per_tensor_scale=per_tensor), quantize

    return make


def torchao_mx(element: torch.dtype, swizzled: bool) -> Callable[[], tuple[Any, Callable[[torch.Tensor], torch.Tensor]]]:
    """Returns a function that makes a config and a function that quantizes so."""

    def make() -> tuple[Any, Callable[[torch.Tensor], torch.Tensor]]:
        from torchao.prototype.mx_formats import MXDynamicActivationMXWeightConfig
        from torchao.prototype.mx_formats.mx_tensor import MXTensor

        config = MXDynamicActivationMXWeightConfig(activation_dtype=element, weight_dtype=element)
        return config, partial(MXTensor.to_mx, elem_dtype=element, block_size=32, is_swizzled_scales=swizzled)

    return make


def torchao_float8_tensor() -> tuple[Any, Callable[[torch.Tensor], torch.Tensor]]:
    """Returns a config of torchao and what its quantize_ does on a GPU."""
    from torchao.quantization import Float8DynamicActivationFloat8WeightConfig, Float8Tensor, PerTensor

    config = Float8DynamicActivationFloat8WeightConfig(granularity=PerTensor())
    return config, partial(Float8Tensor.from_hp, float8_dtype=torch.float8_e4m3fn, granularity=PerTensor())


TORCHAO: dict[str, Config] = {
    "int8": {
        "scheme": "torchao Int8Tensor, rows",
        "convert": torchao_config("Int8WeightOnlyConfig"),
        "columns": 100,
        "edges": BF16_EDGES,
    },
    "int8-g32": {
        "scheme": "torchao Int8Tensor, groups of 32",
        "convert": torchao_config("Int8WeightOnlyConfig", granularity=("PerGroup", 32)),
        "dtype": torch.float32,
    },
    "float8": {
        "scheme": "torchao Float8Tensor, rows",
        "convert": torchao_config("Float8WeightOnlyConfig"),
        "columns": 100,
        "edges": BF16_EDGES,
    },
    "float8-tensor": {
        "scheme": "torchao Float8Tensor, one scale",
        "convert": torchao_float8_tensor,
    },
    "int4-g32": {
        "scheme": "torchao IntxUnpackedToInt8Tensor, 4 bits, groups of 32",
        "edges": BF16_EDGES,
        "convert": torchao_config("IntxWeightOnlyConfig", weight_dtype=torch.int4, granularity=("PerGroup", 32)),
    },
    "int4-asym-g32": {
        "scheme": "torchao IntxUnpackedToInt8Tensor, 4 bits, asymmetric, groups of 32",
        "convert": torchao_config(
            "IntxWeightOnlyConfig", weight_dtype=torch.int4, granularity=("PerGroup", 32), mapping_type="ASYMMETRIC"
        ),
    },
    "int3-rows": {
        "scheme": "torchao IntxUnpackedToInt8Tensor, 3 bits, rows",
        "dtype": torch.float32,
        "convert": torchao_config("IntxWeightOnlyConfig", weight_dtype=torch.int3, granularity=("PerAxis", 0)),
    },
    "nvfp4": {
        "scheme": "torchao NVFP4Tensor",
        "convert": torchao_nvfp4(True, False),
        "edges": E4M3_EDGES,
    },
    "nvfp4-swizzled": {
        "scheme": "torchao NVFP4Tensor with swizzled scales",
        "convert": torchao_nvfp4(False, True),
        "rows": 140,
        "columns": 80,
    },
    "mxfp4": {"scheme": "torchao MXTensor, fp4", "convert": torchao_mx(torch.float4_e2m1fn_x2, False)},
    "mxfp8-swizzled": {
        "scheme": "torchao MXTensor, e4m3 with swizzled scales",
        "convert": torchao_mx(torch.float8_e4m3fn, True),
        "rows": 140,
        "columns": 32,
    },
}
for key, settings in TORCHAO.items():
    recorder(f"torchao-{key}", "torchao", "0.18", partial(torchao, **settings))


# ModelOpt


def modelopt(name: str, algorithm: str, edges: Iterable[float] = ()) -> None:
    """Records weights quantized by ModelOpt, named as its exporter names them."""
    from modelopt.torch.export.convert_hf_config import convert_hf_quant_config_format
    from modelopt.torch.quantization.qtensor import FP8QTensor, NVFP4QTensor

    tensors, expected = {}, {}
    odd = 208 if algorithm == "NVFP4" else 100
    for module, shape in {DOWN: (8, 128), UP: (12, odd), QUERY: (8, 128)}.items():
        weight = numbers(name + module, *shape)
        if algorithm == "NVFP4":
            quantized, scale, whole = NVFP4QTensor.quantize(weight, 16)
            if module == QUERY:
                scale = edge(scale.float(), edges).to(torch.float8_e4m3fn)
            value = quantized.dequantize(torch.float32, scale=scale, double_scale=whole, block_sizes={-1: 16})
            parts = {"weight_scale": scale, "weight_scale_2": whole, "input_scale": torch.tensor(0.0023)}
        else:
            axis = None if algorithm == "FP8" else 0
            quantized, scale = FP8QTensor.quantize(weight, axis=axis)
            value = quantized.dequantize(torch.float32, scale=scale)
            parts = {"weight_scale": scale.squeeze()}
            if algorithm == "FP8":
                parts["input_scale"] = torch.tensor(0.0023)
        parts["weight"] = quantized._quantized_data
        expected[f"{module}.weight"] = value
        tensors |= {f"{module}.{key}": tensor for key, tensor in parts.items()}
    quantization: Config = {"quant_algo": algorithm, "kv_cache_quant_algo": None, "exclude_modules": ["lm_head"]}
    if algorithm == "NVFP4":
        quantization["group_size"] = 16
    producer = {"name": "modelopt", "version": importlib.metadata.version("nvidia-modelopt")}
    written = {"producer": producer, "quantization": quantization}
    config = {"quantization_config": convert_hf_quant_config_format(written)}
    how = "NVFP4QTensor and FP8QTensor, dequantized to float32; config by convert_hf_quant_config_format"
    save(name, tensors, expected, config, f"ModelOpt {algorithm}", how, None, None, {"hf_quant_config.json": written})


recorder("modelopt-nvfp4", "nvidia-modelopt", "0.47", partial(modelopt, algorithm="NVFP4", edges=E4M3_EDGES))
recorder("modelopt-fp8", "nvidia-modelopt", "0.47", partial(modelopt, algorithm="FP8"))
recorder("modelopt-fp8-channel", "nvidia-modelopt", "0.47", partial(modelopt, algorithm="FP8_PER_CHANNEL_PER_TOKEN"))


# FP8 of others, and gpt-oss


def all_codes(*shape: int) -> torch.Tensor:
    """Returns all codes of e4m3fn except NaN, again and again."""
    codes = torch.tensor([code for code in range(256) if code & 0x7F != 0x7F], dtype=torch.uint8)
    count = torch.Size(shape).numel()
    return codes.repeat(-(-count // len(codes)))[:count].reshape(shape).view(torch.float8_e4m3fn)


def blocks_of(scale: torch.Tensor, shape: tuple[int, int], block: tuple[int, int]) -> torch.Tensor:
    """Returns the scale of each element of a weight."""
    return scale.repeat_interleave(block[0], 0)[: shape[0]].repeat_interleave(block[1], 1)[:, : shape[1]]


def scales_of(name: str, *shape: int) -> torch.Tensor:
    """Returns scales in float32."""
    return numbers(name, *shape).abs() / 100 + 1e-6


def fp8_blocks(
    name: str,
    shapes: dict[str, tuple[int, int]],
    block: tuple[int, int],
    formula: bool,
    scale_dtype: torch.dtype = torch.float32,
    fp4: bool = False,
) -> None:
    """Records weights with weight_scale_inv, dequantized by transformers or by the formula."""
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    tensors, expected = {}, {}
    for module, shape in shapes.items():
        weight = all_codes(*shape)
        if fp4:
            weight = torch.arange(shape[0] * shape[1] // 2).mul(37).to(torch.uint8).reshape(shape[0], -1).view(torch.int8)
        scale = scales_of(name + module, -(-shape[0] // block[0]), -(-shape[1] // block[1]))
        if scale_dtype == torch.float8_e8m0fnu:
            scale = scale.log2().round().exp2().to(scale_dtype)
        elif module == QUERY:
            scale = edge(scale, (0.0, -0.5, 1e-40, 1e30))
        if formula:
            value = weight.float() * blocks_of(scale, shape, block)
        else:
            value = Fp8Dequantize(None)._dequantize_one(weight, scale, torch.float32)
        expected[f"{module}.weight"] = value
        tensors |= {f"{module}.weight": weight, f"{module}.weight_scale_inv": scale}
    config: Config = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": list(block)}
    config |= {"modules_to_not_convert": None}
    if not fp4:
        config["fmt"] = "e4m3"
    else:
        config["expert_dtype"] = "fp4"
    if scale_dtype == torch.float8_e8m0fnu:
        config["scale_fmt"] = "ue8m0"
    how = "codes and scales made here, "
    how += "weights by the formula: a repeat of the scales" if formula else "weights from Fp8Dequantize"
    scheme = f"{'FP4' if fp4 else 'FP8'} with weight_scale_inv, blocks of {block[0]}x{block[1]}"
    save(name, tensors, expected, {"quantization_config": config}, scheme, how, None)


def fp8_whole(name: str, scale_name: str, config: Config, scheme: str, dims: tuple[int, ...], marker: bool) -> None:
    """Records FP8 weights with one scale each, dequantized by the formula."""
    tensors, expected = {}, {}
    for module, shape in {DOWN: (16, 128), UP: (24, 100)}.items():
        weight, scale = all_codes(*shape), scales_of(name + module, *dims)
        expected[f"{module}.weight"] = weight.float() * scale
        tensors |= {f"{module}.weight": weight, f"{module}.{scale_name}": scale}
        if not marker:
            tensors[f"{module}.qscale_act"] = torch.tensor(0.0117)
    if marker:
        tensors["scaled_fp8"] = torch.zeros(0, dtype=torch.float8_e4m3fn)
    how = "codes and scales made here, weights by the formula: the code times the scale; no library"
    save(name, tensors, expected, config, scheme, how, None)


def gpt_oss(name: str) -> None:
    """Records experts of gpt-oss, dequantized by transformers."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    tensors, expected = {}, {}
    for part, (experts, rows, columns) in {"gate_up_proj": (2, 48, 64), "down_proj": (2, 64, 32)}.items():
        generator = torch.Generator().manual_seed(rows)
        blocks = torch.randint(256, (experts, rows, columns // 32, 16), dtype=torch.uint8, generator=generator)
        scales = torch.randint(115, 130, (experts, rows, columns // 32), dtype=torch.uint8, generator=generator)
        if part == "down_proj":
            scales.view(-1)[:4] = torch.tensor([0, 1, 2, 250], dtype=torch.uint8)
        module = f"{LAYER}.mlp.experts.{part}"
        tensors |= {f"{module}_blocks": blocks, f"{module}_scales": scales}
        tensors[f"{module}_bias"] = numbers(part, experts, rows).to(torch.bfloat16)
        values = convert_moe_packed_tensors(blocks.clone(), scales.clone(), dtype=torch.bfloat16)
        expected[f"{module}.weight"] = values.transpose(1, 2)
    config = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    how = "codes and scales made here, weights [expert, out, in] from convert_moe_packed_tensors, whose [expert, in, out] "
    how += "is transposed"
    save(name, tensors, expected, {"quantization_config": config}, "gpt-oss MXFP4 experts", how, "bfloat16")


EVEN, RAGGED = {DOWN: (32, 64), UP: (32, 32), QUERY: (16, 64)}, {DOWN: (40, 72), UP: (33, 32), QUERY: (24, 65)}
for key, library, function in (
    ("blocks", "transformers", partial(fp8_blocks, shapes=EVEN, block=(16, 32), formula=False)),
    (
        "blocks-e8m0",
        "transformers",
        partial(fp8_blocks, shapes=EVEN, block=(16, 32), formula=False, scale_dtype=torch.float8_e8m0fnu),
    ),
    (
        "blocks-fp4",
        "transformers",
        partial(fp8_blocks, shapes=EVEN, block=(1, 32), formula=False, scale_dtype=torch.float8_e8m0fnu, fp4=True),
    ),
    ("blocks-ragged", "torch", partial(fp8_blocks, shapes=RAGGED, block=(16, 32), formula=True)),
    (
        "blocks-ragged-128",
        "torch",
        partial(fp8_blocks, shapes={DOWN: (130, 24), UP: (12, 136)}, block=(128, 128), formula=True),
    ),
):
    recorder(f"fp8-{key}", library, "", function)
recorder("gpt-oss-mxfp4", "transformers", "5.", gpt_oss)
recorder(
    "comfyui-fp8-scaled",
    "torch",
    "2.",
    partial(fp8_whole, scale_name="scale_weight", config={}, scheme="ComfyUI's scaled FP8", dims=(), marker=True),
)
recorder(
    "mistral-fp8",
    "torch",
    "2.",
    partial(
        fp8_whole,
        scale_name="qscale_weight",
        dims=(),
        marker=False,
        scheme="FP8 with Mistral's names",
        config={"quantization": {"qformat_weight": "fp8_e4m3", "qscheme_act": "TENSOR"}},
    ),
)


def main(names: list[str]) -> None:
    """Records the folders whose names begin so, and that this environment can make."""
    for name, (library, version, record) in RECORDERS.items():
        if names and not any(name.startswith(asked) for asked in names):
            continue
        try:
            installed = importlib.metadata.version(library)
        except importlib.metadata.PackageNotFoundError:
            installed = "not installed"
        if not installed.startswith(version):
            print(f"{name}: wants {library} {version}, here is {installed}")
            continue
        record(name)
        print(name, sum(path.stat().st_size for path in (FOLDER / name).iterdir()))


if __name__ == "__main__":
    main(sys.argv[1:])
