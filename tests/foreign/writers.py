"""Clients that write files, each in its own process, which returns the fields of a `Written`."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.foreign.readings import Values, exact, of_torch
from tests.tools.processes import serve

NUMBERS = "int8 uint8 int16 uint16 int32 uint32 int64 uint64 float32"


@dataclass(frozen=True)
class Written:
    """The name of a file or folder that a client wrote, and its contents."""

    name: str
    tensors: dict[str, Values]
    metadata: dict[str, Any] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)


def mlx_tensors(names: str) -> dict[str, Any]:
    """Returns arrays of each dtype with 0 to 4 dims."""
    import mlx.core as mx

    shapes = ((), (3,), (2, 5), (2, 3, 4), (1, 2, 3, 2))
    made = {}
    for name in names.split():
        for shape in shapes:
            numbers = mx.arange(int(np.prod(shape))).reshape(shape) * 3 - 5
            made[f"{name}.{len(shape)}"] = (numbers / 7 if "float" in name else numbers).astype(getattr(mx, name))
    return made


def of_mlx(arrays: dict[str, Any]) -> dict[str, Values]:
    """Returns the values of arrays; bfloat16 as float32."""
    import mlx.core as mx

    found = {}
    for name, array in arrays.items():
        values = np.array(array.astype(mx.float32) if array.dtype == mx.bfloat16 else array)
        found[name] = Values(values.shape, str(array.dtype).removeprefix("mlx.core."), values)
    return found


def mlx_gguf(folder: Path) -> Written:
    """GGUF with ``mx.save_gguf``: all its dtypes and types of metadata."""
    import mlx.core as mx

    arrays = mlx_tensors("float32 float16 int8 int16 int32")
    entries: dict[str, tuple[Any, str]] = {
        "general.architecture": ("toy", "string"),
        "t.text": ("tü 漢", "string"),
        "t.texts": (["a", "", "🙂"], "array[string]"),
        "t.flag": (mx.array(True), "bool"),
        "t.flags": (mx.array([True, False]), "array[bool]"),
        "t.max": (mx.array(np.array(2**64 - 1, np.uint64)), "uint64"),
    }
    for name in NUMBERS.split():
        entries[f"t.{name}"] = mx.array(100, getattr(mx, name)), name
        entries[f"t.{name}s"] = mx.array([1, 2, 127], getattr(mx, name)), f"array[{name}]"
    metadata, types = ({key: entry[part] for key, entry in entries.items()} for part in (0, 1))
    mx.save_gguf(str(folder / "made.gguf"), arrays, metadata)
    plain = {key: value.tolist() if isinstance(value, mx.array) else value for key, value in metadata.items()}
    return Written("made.gguf", of_mlx(arrays), {key: exact(value) for key, value in plain.items()}, types)


def mlx_safetensors(folder: Path) -> Written:
    """Safetensors with ``mx.save_safetensors``."""
    import mlx.core as mx

    arrays = mlx_tensors("float32 float16 bfloat16 int8 int16 int32 int64")
    mx.save_safetensors(str(folder / "made.safetensors"), arrays, {"format": "mlx"})
    return Written("made.safetensors", of_mlx(arrays))


def model(made: Any, folder: Path) -> Written:
    """Saves a model in shards, as users do."""
    made.save_pretrained(folder, max_shard_size="40KB")
    (index,) = folder.glob("*.index.json")
    return Written(index.name, {name: of_torch(tensor.detach()) for name, tensor in made.state_dict().items()})


def diffusers_model(folder: Path) -> Written:
    """Safetensors in shards with ``save_pretrained``: a small U-Net in float16 and float32."""
    import torch
    from diffusers import UNet2DModel

    torch.manual_seed(0)
    blocks = {"down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D")}
    made = UNet2DModel(sample_size=8, block_out_channels=(8, 16), norm_num_groups=4, layers_per_block=1, **blocks)
    made.conv_in.half()
    return model(made, folder)


def transformers_model(folder: Path) -> Written:
    """Safetensors in shards with ``save_pretrained``: a small BERT in bfloat16."""
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    return model(BertModel(BertConfig(vocab_size=500, **sizes)).to(torch.bfloat16), folder)


WRITERS = {writer.__name__: writer for writer in (mlx_gguf, mlx_safetensors, diffusers_model, transformers_model)}

if __name__ == "__main__":
    serve(lambda folder: vars(WRITERS[sys.argv[1]](folder)))
