"""Records composite weights as their own libraries store and dequantize them.

Run it by hand, in an environment that has the library, with the names of the folders to record or
the beginnings of names; without arguments it records all folders whose library is installed::

    python tests/golden/record_composite.py compressed-tensors mlx

The libraries' requirements conflict. These environments (Python 3.11, CPU) made the folders:

* torch 2.13.0, compressed-tensors 0.20.0, transformers 5.23.0, mlx[cpu] 0.32.4,
  bitsandbytes 0.50.0, torchao 0.18.0, nvidia-modelopt 0.47.0 with omegaconf, pulp and scipy:
  all folders except the following;
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
    library, version, _ = RECORDERS[name]
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    save_file({k: v.detach().contiguous().clone() for k, v in tensors.items()}, folder / "model.safetensors", metadata)
    save_file({k: v.detach().contiguous().clone() for k, v in expected.items()}, folder / "expected.safetensors")
    about = {"library": library, "version": importlib.metadata.version(library) if version else ""}
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
    edited, values = scale.detach().clone(), list(values)
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


GROUPS = {DOWN: (16, 128), UP: (12, 192), QUERY: (8, 128)}
WIDE = {DOWN: (16, 128), UP: (12, 384), QUERY: (9, 256)}
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
        "shapes": {DOWN: (16, 128), UP: (24, 100), QUERY: (8, 128)},
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
        "shapes": {DOWN: (16, 128), UP: (24, 100), QUERY: (8, 128)},
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
            "shapes": {DOWN: (16, 128), UP: (24, 100), QUERY: (8, 128)},
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
        "shapes": {DOWN: (16, 128), UP: (24, 100), QUERY: (40, 40)},
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
