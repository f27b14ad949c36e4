"""Records llama.cpp's logits of quantized models beside those of the libraries that wrote them.

Run it as ``python -m tests.golden.record_composite_logits MODELS``, with a folder that
record_composite_models.py made. It writes composite_logits.json: a `Measured` for each model.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import glft_schema as glft
from tests.oracles.llama_model import LlamaModel
from tests.tools.guarded_here import know_tokenizers

PATH = Path(__file__).with_name("composite_logits.json")
F32 = {"*": "f32"}


class Measured(NamedTuple):
    """Logits of a model in llama.cpp, compared with those of its library.

    Attributes:
        library: that wrote the model, and its version.
        scheme: of most weights, in words.
        types: ggml types of the weights of several tensors, with counts.
        largest: the largest magnitude of a logit.
        converted: the largest difference of a logit, of the GGUF file as it was converted.
        float32: the same, if the types of this file are then all F32.
        rounded: the same, if the weights are rounded as the library rounds them, and stored in F32.
        rounded_to: the dtype in which the library returns weights.
        rerouted: tokens for which `converted` and `float32` choose other experts than `rounded`,
            summed over the layers.
    """

    library: str
    scheme: str
    types: dict[str, int]
    largest: float
    converted: float
    float32: float
    rounded: float
    rounded_to: str
    rerouted: tuple[int, int]


def measure(folder: Path) -> Measured:
    """Converts and runs a model."""
    about = json.loads((folder / "about.json").read_text())
    tokens, expected = np.load(folder / "tokens.npy").tolist(), np.load(folder / "logits.npy")
    with tempfile.TemporaryDirectory() as parent:
        files = [Path(parent, f"{name}.gguf") for name in ("converted", "float32", "rounded")]
        written = glft.convert(folder, files[0])
        glft.convert(files[0], files[1], schemes=F32)
        glft.convert(plain(folder, Path(parent, "plain"), about["rounded_to"]), files[2], schemes=F32)
        found, experts = zip(*(run(file, tokens) for file in files), strict=True)
        with glft.open(folder / "model.safetensors") as file:
            schemes = Counter(filter(None, (weight.origin for weight in file.weights.composed.values())))
    types = Counter(str(tensor.type) for tensor in written if "," in tensor.source)
    differences = (float(f"{np.abs(logits - expected).max():.2g}") for logits in found)
    library = f"{about['library']} {about['version']}"
    largest = float(f"{np.abs(expected).max():.2g}")
    rerouted = tuple(sum(np.any(a != b, -1).sum().item() for a, b in zip(one, experts[2], strict=True)) for one in experts[:2])
    return Measured(library, schemes.most_common(1)[0][0], dict(types), largest, *differences, about["rounded_to"], rerouted)


def plain(source: Path, folder: Path, dtype: str) -> Path:
    """Writes a model without quantization, whose weights are rounded to a dtype."""
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.index.json"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if not k.startswith("quantization")}))
    stored = load_file(source / "model.safetensors")
    with glft.open(source / "model.safetensors") as file:
        weights = {name: file.get_tensor(name) for name in file.weights}
        for name in [name for name, weight in file.weights.composed.items() if weight.origin]:
            weights[name] = rounded(weights[name], stored, name.removesuffix("weight"), getattr(torch, dtype))
    save_file(weights, folder / "model.safetensors")
    return folder


def rounded(weight: torch.Tensor, stored: dict[str, torch.Tensor], module: str, dtype: torch.dtype) -> torch.Tensor:
    """Returns a weight as a library rounds it: MLX the product, and then the sum."""
    if f"{module}biases" not in stored:
        return weight.to(dtype)
    width = weight.shape[-1] // stored[f"{module}scales"].shape[-1]
    scales, biases = (stored[f"{module}{part}"].repeat_interleave(width, -1) for part in ("scales", "biases"))
    codes = ((weight.double() - biases) / scales).round()
    return codes.to(dtype) * scales + biases


def run(path: Path, tokens: list[int]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Returns the logits f32[tokens, vocabulary], and the experts of each layer, sorted."""
    with LlamaModel(path, exact=True) as model:
        logits = model.all_logits(tokens)
        chosen: list[Any] = [experts for name, _, experts in model.products if "ffn_up_exps" in name]
    return logits, [np.sort(experts.reshape(-1, experts.shape[-1])) for experts in chosen]


def main(models: Path) -> None:
    """Records all models of a folder."""
    with pytest.MonkeyPatch.context() as patch:
        know_tokenizers(patch)
        measured = {folder.name: measure(folder)._asdict() for folder in sorted(models.iterdir())}
    PATH.write_text(json.dumps(measured).replace(']}, "', ']},\n"') + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
