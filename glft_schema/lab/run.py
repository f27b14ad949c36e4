"""Runs the whole lab: train, fake-quantize, write, read back, compare, measure, report. GLFT comes
from this exercise; docs/background/lab.md lists its requirements.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from fnmatch import fnmatchcase
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from glft_schema.display import Progress
from glft_schema.files.byte_counts import byte_counts
from glft_schema.files.container import Container
from glft_schema.formats.registry import format_named
from glft_schema.lab.gguf_lite import read_gguf_lite, write_gguf_lite
from glft_schema.lab.minigpt import MiniGPT, MiniGPTConfig
from glft_schema.lab.quantizing import fake_quantize, quantize_symmetric_per_channel, quantize_symmetric_per_group
from glft_schema.lab.report import write_report
from glft_schema.lab.training import corpus, held_back_loss, train
from glft_schema.storage.atomic import atomic_write
from glft_schema.tensor_types.differences import max_error
from glft_schema.tensor_types.workers import in_one_thread
from glft_schema.weights.payloads import WrittenTensor

TENSOR_LIMIT = 1e-6  # max |reloaded - fake-quantized| of a tensor; expected to be 0
LAYER_LIMIT = 1e-3  # max |activation - activation| of a module
FILES = {"q8_per_channel": "minigpt.q8.gguf-lite", "q4_per_group_64": "minigpt.gguf-lite"}
LEAST_SAVING = {"q8_per_channel": 3.0, "q4_per_group_64": 6.0}  # size of torch.save(state_dict) over size of the file

# Kinds of modules, by a substring of their tensors' names.
MODULES = {
    "embedding": "embeddings",
    "head": "head",
    ".ln": "layer norms",
    "ln_f": "layer norms",
    "attn": "attention",
    "mlp": "MLP",
}

# Patterns of quantized tensors, from the MLPs alone to every matrix.
WIDENING = {
    "the MLP layers": ("*.mlp.*",),
    "the attention layers": ("*.mlp.*", "*.attn.*"),
    "the position embedding": ("*.mlp.*", "*.attn.*", "position_embedding.*"),
    "the token embedding and the head": ("*",),
}


class LabError(Exception):
    """Results outside their limits; the text lists all of them."""


def run_lab(out: Path, config: MiniGPTConfig, steps: int, seed: int, progress: Progress | None = None) -> dict[str, Any]:
    """Runs the lab and writes its files to the directory `out`.

    Args:
        out: the directory.
        config: sizes of the model.
        steps: number of training batches.
        seed: random seed for weights and batches.
        progress: called with the name of the stage and the share that is done, from 0 to 1.

    Returns:
        The manifest.

    Raises:
        LabError: if an error or a file exceeds its limit. All files are still written.
    """
    note = progress or (lambda stage, done: None)
    with atomic_write(out / "manifest.json") as stream:  # fails before any work if `out` is not writable
        text = json.dumps(train_and_measure(out, config, steps, seed, note), indent=2)
        stream.write(text.encode())
    manifest: dict[str, Any] = json.loads(text)
    write_report(out, manifest)
    note("README.md written", 1.0)
    if failures := broken_promises(manifest):
        raise LabError("; ".join(failures))
    return manifest


def train_and_measure(out: Path, config: MiniGPTConfig, steps: int, seed: int, note: Progress) -> dict[str, Any]:
    """Trains a model, writes and measures its files, and returns the manifest. See `run_lab`."""
    torch.manual_seed(seed)
    model = MiniGPT(config)
    started = time.perf_counter()
    final_loss = train(
        model,
        steps,
        seed,
        lambda step, loss: note(f"training, step {step + 1} of {steps}, loss {loss:.2f}", 0.8 * step / steps),
    )
    seconds = time.perf_counter() - started
    saved = io.BytesIO()
    torch.save(model.state_dict(), saved)
    manifest: dict[str, Any] = {
        "config": asdict(config),
        "seed": seed,
        "steps": steps,
        "training": {"seconds": round(seconds, 2), "loss": final_loss, "held_back_loss": held_back_loss(model)},
        "parameters": sum(p.numel() for p in model.parameters()),
        "torch_save_bytes": saved.tell(),
        "limits": {"tensor": TENSOR_LIMIT, "layer": LAYER_LIMIT, "saving": LEAST_SAVING},
        "versions": {
            "glft_schema": metadata.version("glft_schema"),
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "files": {},
    }
    for share, (scheme, name) in zip((0.8, 0.9), FILES.items(), strict=True):
        note(f"writing and verifying {name}", share)
        in_one_thread(partial(measure, model, scheme, out / name, manifest))
    return manifest


def measure(model: MiniGPT, scheme: str, path: Path, manifest: dict[str, Any]) -> None:
    """Writes `model` with every matrix in `scheme`, reads it back, and compares both.

    Args:
        model: the trained model.
        scheme: a quantized type of GLFT.
        path: the output file.
        manifest: gets an entry for the file.
    """
    state, baseline = model.state_dict(), manifest["torch_save_bytes"]
    entries = {"arch": "minigpt", **{name: str(value) for name, value in asdict(model.config).items()}}
    written = write_gguf_lite(path, model, {"*": scheme}, metadata=entries)
    quantized = [tensor.name for tensor in written if tensor.type.is_quantized]
    predicted = state | {name: fake_quantize(state[name], scheme) for name in quantized}
    reloaded = read_gguf_lite(path)
    with Container.parse_file(path) as file:
        counts = byte_counts(file)
    tokens = corpus()[1][: model.config.context].unsqueeze(0)
    before, after = _with_weights(model, predicted), _with_weights(model, reloaded)
    expected, actual = activations(before, tokens), activations(after, tokens)
    manifest["files"][scheme] = {
        "scheme": scheme,
        "file": path.name,
        "nbytes": path.stat().st_size,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "saving": baseline / path.stat().st_size,  # how many times larger torch.save's file is
        "loss": held_back_loss(after),  # of the reloaded model, in nats per byte
        # max |reloaded - fake-quantized|, by tensor
        "tensor_errors": {name: max_error(reloaded[name], tensor) for name, tensor in predicted.items()},
        # max |reloaded - fake-quantized with float32 scales|, by quantized tensor
        "f32_scale_errors": {
            name: max_error(reloaded[name], fake_quantize(state[name], scheme, scale_dtype=torch.float32)) for name in quantized
        },
        # max |activation - activation| of the reloaded and the fake-quantized model, by module
        "layer_errors": {name: max_error(actual[name], expected[name]) for name in expected},
        "bytes": counts,  # by part of the file
        "types": {tensor.name: tensor.type.name for tensor in written},
        "kept": {tensor.name: tensor.note for tensor in written if tensor.note},  # why a tensor is not quantized
        # the saving with fewer matrices quantized, by the last kind of matrix added
        "widening": {label: _saving(state, patterns, written, baseline) for label, patterns in WIDENING.items()},
        # max and mean |reloaded - trained|, by quantized tensor
        "quantization_errors": {
            name: (max_error(reloaded[name], state[name]), float((reloaded[name] - state[name]).abs().mean()))
            for name in quantized
        },
        "module_bytes": _module_bytes(written),  # payload bytes, by kind of module
        "example": _example(state["head.weight"][:1], scheme),
    }


def activations(model: nn.Module, tokens: Tensor) -> dict[str, Tensor]:
    """Returns the output of each module for `tokens`, by name; the whole model is ``model``."""
    outputs: dict[str, Tensor] = {}

    def record(name: str) -> Callable[[nn.Module, Any, Tensor], None]:
        return lambda module, inputs, output: outputs.update({name: output.detach()})

    hooks = [module.register_forward_hook(record(name or "model")) for name, module in model.named_modules()]
    with torch.no_grad():
        model(tokens)
    for hook in hooks:
        hook.remove()
    return outputs


def broken_promises(manifest: Mapping[str, Any]) -> list[str]:
    """Returns a sentence for each result of the manifest that is outside its limit."""
    failures = []
    for scheme, measured in manifest["files"].items():
        for kind, limit in (("tensor", TENSOR_LIMIT), ("layer", LAYER_LIMIT)):
            for name, error in measured[f"{kind}_errors"].items():
                if not error <= limit:  # NaN must fail, too
                    failures.append(f"{scheme}: expected an error of at most {limit:g} in {kind} {name}, found {error:g}")
        if not measured["saving"] >= LEAST_SAVING[scheme]:
            least = LEAST_SAVING[scheme]
            problem = f"expected a file at least {least:g} times smaller than the checkpoint"
            failures.append(f"{scheme}: {problem}, found {measured['saving']:.2f} times")
    return failures


def _example(row: Tensor, scheme: str) -> dict[str, float]:
    """Returns how the first weight of a row [1, in] is quantized, step by step."""
    quantize = quantize_symmetric_per_channel if scheme == "q8_per_channel" else quantize_symmetric_per_group
    codes, scales = quantize(row)
    group = row.numel() // scales.numel()
    weight, scale, code = row[0, 0].item(), scales.flatten()[0].item(), codes[0, 0].item()
    peak = row[0, :group].abs().max().item()
    return {"group": group, "peak": peak, "scale": scale, "weight": weight, "code": code, "stored": code * scale}


def _with_weights(model: MiniGPT, weights: Mapping[str, Tensor]) -> MiniGPT:
    fresh = MiniGPT(model.config)
    fresh.load_state_dict(weights)
    return fresh.eval()


def _module_bytes(written: list[WrittenTensor]) -> dict[str, int]:
    sums = dict.fromkeys(MODULES.values(), 0)
    for tensor in written:
        kind = next(kind for part, kind in MODULES.items() if part in tensor.name)
        sums[kind] += tensor.nbytes
    return sums


def _saving(state: Mapping[str, Tensor], patterns: tuple[str, ...], written: list[WrittenTensor], baseline: int) -> float:
    """Returns baseline bytes over payload bytes if only matching tensors are quantized."""
    total = 0
    for tensor in written:
        if tensor.alias_of is None:
            matched = any(fnmatchcase(tensor.name, pattern) for pattern in patterns)
            type_ = tensor.type if matched else format_named("GLFT").types["F32"]
            total += type_.nbytes(tuple(state[tensor.name].shape))
    return baseline / total
