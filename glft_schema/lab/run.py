"""The lab from end to end: train, fake-quantize, write, read back, verify, measure, report.

Source of the task: the lab that GLFT comes from (docs/lab.md lists what it asks for and where each answer is).
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from glft_schema.describe.byte_counts import byte_counts
from glft_schema.display import Progress
from glft_schema.files.container import Container
from glft_schema.formats.registry import format_named
from glft_schema.lab.gguf_lite import read_gguf_lite, write_gguf_lite
from glft_schema.lab.minigpt import MiniGPT, MiniGPTConfig
from glft_schema.lab.quantizing import fake_quantize
from glft_schema.lab.report import write_report
from glft_schema.lab.training import corpus, held_back_loss, train
from glft_schema.storage.atomic import atomic_write
from glft_schema.tensor_types.engine.differences import max_error
from glft_schema.weights.payloads import WrittenTensor

TENSOR_LIMIT = 1e-6  # max |reloaded - fake-quantized| of a tensor; we expect 0
LAYER_LIMIT = 1e-3  # max |activation - activation| of a module
FILES = {"q8_per_channel": "minigpt.q8.gguf-lite", "q4_per_group_64": "minigpt.gguf-lite"}
LEAST_SAVING = {"q8_per_channel": 3.0, "q4_per_group_64": 6.0}  # torch.save(state_dict) is so many times larger

# Kinds of modules, by what the names of their tensors contain.
MODULES = {
    "embedding": "embeddings",
    "head": "head",
    ".ln": "layer norms",
    "ln_f": "layer norms",
    "attn": "attention",
    "mlp": "MLP",
}

# How much is quantized, from the linear layers of the MLPs alone to every matrix.
WIDENING = {
    "the MLP layers": ("*.mlp.*",),
    "the attention layers": ("*.mlp.*", "*.attn.*"),
    "the position embedding": ("*.mlp.*", "*.attn.*", "position_embedding.*"),
    "the token embedding and the head": ("*",),
}


class LabError(Exception):
    """A promise of the lab that was not kept; the text names all of them."""


@dataclass
class Measured:
    """What was measured of one file.

    Attributes:
        scheme: of every matrix.
        file: its name.
        nbytes, sha256: of the whole file.
        saving: how many times larger ``torch.save(model.state_dict())`` is.
        loss: of the reloaded model on the text held back, in nats per byte.
        tensor_errors: max |reloaded - fake-quantized|, by tensor.
        f32_scale_errors: max |reloaded - fake-quantized with float32 scales|, by quantized tensor.
        layer_errors: max |activation - activation| of the reloaded and the fake-quantized model, by module.
        bytes: by part of the file.
        types: by tensor.
        kept: why a tensor is not quantized, by tensor.
        widening: the saving if only some matrices were quantized, by which.
        quantization_errors: max and mean |reloaded - trained|, by quantized tensor.
        module_bytes: bytes of the payloads, by kind of module.
    """

    scheme: str
    file: str
    nbytes: int
    sha256: str
    saving: float
    loss: float
    tensor_errors: dict[str, float]
    f32_scale_errors: dict[str, float]
    layer_errors: dict[str, float]
    bytes: dict[str, int]
    types: dict[str, str]
    kept: dict[str, str]
    widening: dict[str, float]
    quantization_errors: dict[str, tuple[float, float]]
    module_bytes: dict[str, int]


def run_lab(out: Path, config: MiniGPTConfig, steps: int, seed: int, progress: Progress | None = None) -> dict[str, Any]:
    """Runs the lab and writes its files, ``manifest.json`` and ``README.md`` into the folder `out`.

    Args:
        out: the folder; made if missing.
        config: of the model.
        steps: of training.
        seed: of weights and batches.
        progress: called with the stage's name and how much of the whole is done, from 0 to 1.

    Returns:
        The manifest.

    Raises:
        LabError: where an error is above its limit or a file too large; the files are written all the same.
    """
    note = progress or (lambda stage, done: None)
    out.mkdir(parents=True, exist_ok=True)
    with atomic_write(out / "manifest.json") as stream:  # which refuses before any work is done
        text = json.dumps(train_and_measure(out, config, steps, seed, note), indent=2)
        stream.write(text.encode())
    manifest: dict[str, Any] = json.loads(text)
    write_report(out, manifest)
    note("done", 1.0)
    if failures := broken_promises(manifest):
        raise LabError("; ".join(failures))
    return manifest


def train_and_measure(out: Path, config: MiniGPTConfig, steps: int, seed: int, note: Progress) -> dict[str, Any]:
    """Trains a model, writes and measures its files, and returns what the manifest says of them. Arguments as of `run_lab`."""
    torch.manual_seed(seed)
    model = MiniGPT(config)
    started = time.perf_counter()
    final_loss = train(model, steps, seed, lambda step, loss: note(f"training, loss {loss:.2f}", 0.9 * step / steps))
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
    for scheme, name in FILES.items():
        note(f"writing and verifying {name}", 0.95)
        manifest["files"][scheme] = asdict(measure(model, scheme, out / name, saved.tell()))
    return manifest


def measure(model: MiniGPT, scheme: str, path: Path, baseline: int) -> Measured:
    """Writes `model` with every matrix in `scheme`, reads it back into a fresh model, and compares and measures both.

    Args:
        model: as trained.
        scheme: of GLFT's quantized types.
        path: where the file goes.
        baseline: bytes of ``torch.save(model.state_dict())``.
    """
    entries = {"arch": "minigpt", **{name: str(value) for name, value in asdict(model.config).items()}}
    written = write_gguf_lite(path, model, {"*": scheme}, metadata=entries)
    quantized = {tensor.name: tensor.type.scheme for tensor in written if tensor.type.exact is None}
    predicted = {
        name: fake_quantize(tensor, quantized[name]) if name in quantized else tensor
        for name, tensor in model.state_dict().items()
    }
    reloaded = read_gguf_lite(path)
    with Container.parse_file(path) as file:
        counts = byte_counts(file)
    tokens = corpus()[1][: model.config.context].unsqueeze(0)
    before, after = _with_weights(model, predicted), _with_weights(model, reloaded)
    expected, found = activations(before, tokens), activations(after, tokens)
    return Measured(
        scheme=scheme,
        file=path.name,
        nbytes=path.stat().st_size,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        saving=baseline / path.stat().st_size,
        loss=held_back_loss(after),
        tensor_errors={name: max_error(reloaded[name], tensor) for name, tensor in predicted.items()},
        f32_scale_errors=_f32_scale_errors(model, reloaded, quantized),
        layer_errors={name: max_error(found[name], expected[name]) for name in expected},
        bytes=counts,
        types={tensor.name: tensor.type.name for tensor in written},
        kept={tensor.name: tensor.note for tensor in written if tensor.note},
        quantization_errors={
            name: (max_error(reloaded[name], weights), float((reloaded[name] - weights).abs().mean()))
            for name, weights in model.state_dict().items()
            if name in quantized
        },
        module_bytes=_module_bytes(written),
        widening={label: _saving(model, patterns, scheme, written, baseline) for label, patterns in WIDENING.items()},
    )


def activations(model: nn.Module, tokens: Tensor) -> dict[str, Tensor]:
    """Returns what each module of `model` puts out for `tokens`, by its name; the whole model under ``model``."""
    seen: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[[nn.Module, Any, Tensor], None]:
        return lambda module, inputs, output: seen.update({name: output.detach()})

    hooks = [module.register_forward_hook(keep(name or "model")) for name, module in model.named_modules()]
    with torch.no_grad():
        model(tokens)
    for hook in hooks:
        hook.remove()
    return seen


def broken_promises(manifest: Mapping[str, Any]) -> list[str]:
    """Returns what the lab asks for and the manifest does not show, in sentences."""
    failures = []
    for scheme, measured in manifest["files"].items():
        for kind, limit in (("tensor", TENSOR_LIMIT), ("layer", LAYER_LIMIT)):
            for name, error in measured[f"{kind}_errors"].items():
                if not error <= limit:  # so that NaN fails, too
                    failures.append(f"{scheme}: expected an error of at most {limit:g} in {kind} {name}, found {error:g}")
        if not measured["saving"] >= LEAST_SAVING[scheme]:
            least = LEAST_SAVING[scheme]
            failures.append(f"{scheme}: expected a file at least {least:g} times smaller, found {measured['saving']:.2f}")
    return failures


def _with_weights(model: MiniGPT, weights: Mapping[str, Tensor]) -> MiniGPT:
    fresh = MiniGPT(model.config)
    fresh.load_state_dict(weights)
    return fresh.eval()


def _f32_scale_errors(model: nn.Module, reloaded: Mapping[str, Tensor], quantized: Mapping[str, str]) -> dict[str, float]:
    """Returns how far each tensor is from one whose scales had not been rounded to float16."""
    state = model.state_dict()
    return {
        name: max_error(reloaded[name], fake_quantize(state[name], scheme, scale_dtype=torch.float32))
        for name, scheme in quantized.items()
    }


def _module_bytes(written: list[WrittenTensor]) -> dict[str, int]:
    sums = dict.fromkeys(MODULES.values(), 0)
    for tensor in written:
        kind = next(kind for part, kind in MODULES.items() if part in tensor.name)
        sums[kind] += tensor.nbytes
    return sums


def _saving(model: nn.Module, patterns: tuple[str, ...], scheme: str, written: list[WrittenTensor], baseline: int) -> float:
    """Returns how many times smaller the file is when only tensors that match `patterns` are quantized; counts payloads."""
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    total = 0
    for tensor in written:
        if tensor.alias_of is None:
            matched = any(fnmatchcase(tensor.name, pattern) for pattern in patterns)
            type_ = tensor.type if matched else format_named("GLFT").types["F32"]
            total += type_.nbytes(shapes[tensor.name])
    return baseline / total
