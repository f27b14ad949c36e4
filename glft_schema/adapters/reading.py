"""Reads LoRA adapters of peft and llama.cpp, by the tensor names of a GGUF model.

Sources: peft 0.21's LoRA layers, and llama.cpp's src/llama-adapter.cpp and convert_lora_to_gguf.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from glft_schema.adapters.regular_expressions import Patterns
from glft_schema.checks.roles import check_fit
from glft_schema.errors import FormatError, OptionError, TensorError, quote
from glft_schema.families.config import LARGEST, Config, read_json, refusing
from glft_schema.families.export import gguf_config
from glft_schema.families.operations import KEEP, PermuteRows, Transpose
from glft_schema.families.page import BLOCK_COUNT
from glft_schema.families.tensor_names import Names
from glft_schema.files.container import open
from glft_schema.files.file import File
from glft_schema.storage.dtypes import Array
from glft_schema.storage.source import StrPath
from glft_schema.tensor_types.engine.chunks import are_finite
from glft_schema.tensor_types.engine.conversions import float32_of
from glft_schema.tensors.stored_tensor import StoredTensor, of_file, of_values
from glft_schema.weights.checkpoints import open_checkpoint

CONFIG, WEIGHTS = "adapter_config.json", ("adapter_model.safetensors", "adapter_model.bin")
PREFIX = "base_model.model."  # of names in peft's files
IN_PEFT = re.compile(r"(?P<name>.+)\.lora_(?P<embedding>embedding_)?(?P<side>[AB])(?:\.weight)?")
IN_GGUF = re.compile(r"(?P<name>.+)\.lora_(?P<side>[ab])")
COPIED = ".base_layer.weight"  # peft saves the embedding that it adapts, unchanged
EMBEDDING = "token_embd.weight"
ALPHA = "adapter.lora.alpha"
OTHER_MODEL = "the adapter fits another model"
OTHER_METHODS = {  # settings of adapters that are more than A and B
    "use_dora": "DoRA",
    "use_qalora": "QALoRA",
    "modules_to_save": "modules_to_save",
    "target_parameters": "target_parameters",
    "lora_bias": "a bias of B",
    "layer_replication": "layer_replication",
}


class Update(NamedTuple):
    """What an adapter adds to a tensor of a GGUF model: ``scale * up @ down``.

    Attributes:
        up: [out, rank].
        down: [rank, in].
        scale: of the product.
    """

    up: Array
    down: Array
    scale: float

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.up.shape[0], self.down.shape[1]

    def rows(self, rows: slice) -> Array:
        """Returns rows of the update, float32."""
        with np.errstate(all="ignore"):
            update: Array = float32_of(self.up[rows]) @ float32_of(self.down)
            update *= np.float32(self.scale)
        return update


def read_updates(adapter: StrPath, base: File) -> dict[str, Update]:
    """Returns the updates of an adapter, by the names of a model's tensors.

    Args:
        adapter: a folder of peft, or a GGUF file.
        base: the model.

    Raises:
        OptionError: if it is neither.
        FormatError: if it is not plain LoRA, is not finite, or does not belong to the model.
        OSError: if a file cannot be read.
    """
    try:
        if Path(adapter).is_dir():
            with refusing(Path(adapter) / CONFIG, "valid settings of an adapter"):
                return _of_peft(Path(adapter), base)
        with open(adapter) as file:
            for finding in check_fit(file, base):
                raise FormatError(finding.problem, finding.path, offset=finding.offset, file=str(adapter))
            return dict(_of_gguf(file))
    except TensorError as error:  # of the adapter, not of the model
        raise FormatError(error.problem, quote(error.tensor, 200), file=str(adapter)) from None


def _of_gguf(file: File) -> Iterator[tuple[str, Update]]:
    """Yields the updates of an adapter of llama.cpp, which fits its base."""
    alpha = _finite(file.metadata.get(ALPHA, 0), f"metadata -> {ALPHA}", file.name)
    for name, (a, b) in _pairs({name: of_file(tensor) for name, tensor in file.tensors.items()}, IN_GGUF):
        yield name, Update(b, a, alpha / len(a) if alpha else 1.0)  # llama.cpp takes 0 as no scaling


def _of_peft(folder: Path, base: File) -> dict[str, Update]:
    """Returns the updates of a folder of peft."""
    settings, weights = read_settings(folder)
    _check_plain(settings, folder)
    family, config = gguf_config(base)
    names, updates = Names(family, config, len(base.tensors)), dict[str, Update]()
    alphas = Patterns.of(settings, "alpha_pattern", str(folder / CONFIG))
    pairs = dict(_pairs(open_checkpoint(weights), IN_PEFT))
    for stored, (a, b) in pairs.items():
        layer = stored.removeprefix(PREFIX)
        try:
            place = names.place_of(layer.removeprefix(family.prefix) + ".weight")
        except TensorError:
            modules = sorted({name.rpartition(".")[2] for name in pairs})
            its = dict.fromkeys(row.name.rpartition(".")[2] for row in family.tensors if row.name and " " in row.dims)
            has = f"{config[family.field_of(BLOCK_COUNT)]} blocks with {', '.join(its)}"
            problem = f"{OTHER_MODEL}: it changes {quote(modules)}, the {family.arch} model has {has}"
            raise TensorError(problem, stored) from None
        operation = place.row.operation
        if not isinstance(operation, (PermuteRows, Transpose)) and operation is not KEEP:
            raise TensorError("expected a layer that GGUF neither stacks nor splits", stored)
        (name,) = place.in_gguf
        if isinstance(operation, PermuteRows):
            b = operation.map_to_gguf([of_values(b)], config, stored)[0].values()
        if name in updates:
            raise TensorError(f"expected one adapter of {name}, found two", stored)
        updates[name] = Update(b, a, _scale(settings, alphas.find(layer, settings.get("lora_alpha")), len(a), folder))
        shape, expected = list(updates[name].shape), list(base.tensors[name].shape) if name in base.tensors else "none"
        if shape != expected:
            raise TensorError(f"{OTHER_MODEL}: it changes {name} of {shape}, the model has {expected}", stored)
    return updates


def _check_plain(settings: Config, folder: Path) -> None:
    """Raises FormatError unless an adapter is plain LoRA, the matrices A and B alone."""
    file = str(folder / CONFIG)
    for field, expected in (("peft_type", "LORA"), ("bias", "none")):
        if (found := settings.get(field, expected if field == "bias" else None)) != expected:
            raise FormatError(f"expected {quote(expected)}, found {quote(found)}", field, file=file)
    for field, method in OTHER_METHODS.items():
        if settings.get(field):
            raise FormatError(f"expected plain LoRA, found {method}", field, file=file)


def read_settings(folder: Path) -> tuple[Config, Path]:
    """Returns adapter_config.json of a folder, and the path of its weights.

    Raises:
        OptionError: if the folder has no adapter.
        FormatError, OSError: if a file cannot be read.
    """
    weights = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if weights is None or not (folder / CONFIG).is_file():
        raise OptionError(f"expected a LoRA adapter: a GGUF file, or a folder with {CONFIG} and {WEIGHTS[0]}, found neither")
    return read_json(folder / CONFIG), weights


def _scale(settings: Config, alpha: object, rank: int, folder: Path) -> float:
    """Returns the scale of a layer's update: alpha / rank, or with rsLoRA alpha / sqrt(rank)."""
    return _finite(alpha, "lora_alpha", str(folder / CONFIG)) / (math.sqrt(rank) if settings.get("use_rslora") else rank)


def _finite(value: object, path: str, file: str) -> float:
    """Returns a number that is finite in float32. Raises FormatError for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= LARGEST:
        raise FormatError(f"expected a finite number, found {quote(value)}", path, file=file)
    return value


def _pairs(tensors: Mapping[str, StoredTensor], pattern: re.Pattern[str]) -> Iterator[tuple[str, tuple[Array, Array]]]:
    """Yields A and B by the name of their weight, transposed for an embedding.

    Raises TensorError if A or B is missing or not finite, or their ranks differ.
    """
    halves: dict[str, dict[str, tuple[str, Array]]] = {}
    for name, tensor in tensors.items():
        if name.endswith(COPIED):
            continue
        if not (match := pattern.fullmatch(name)) or len(tensor.shape) != 2:
            raise TensorError(f"expected a matrix A or B of LoRA, found {list(tensor.shape)}", name)
        values = tensor.values()
        if not are_finite(values):
            raise TensorError("expected finite weights of an adapter, found NaN or infinity", name)
        side = match["side"].upper()
        if match["name"] == EMBEDDING:  # [rows, rank] and [columns, rank]
            side, values = ("B", values) if side == "A" else ("A", values.T)
        elif match.groupdict().get("embedding"):  # [rank, rows] and [columns, rank]
            side, values = {"A": "B", "B": "A"}[side], values.T
        sides = halves.setdefault(match["name"], {})
        if side in sides:
            raise TensorError(f"expected one tensor {side} of this layer, found another, {quote(sides[side][0])}", name)
        sides[side] = name, values
    for name, sides in halves.items():
        if len(sides) < 2:
            raise TensorError("expected both A and B of LoRA, found one", next(iter(sides.values()))[0])
        a, b = sides["A"][1], sides["B"][1]
        if not len(a):
            raise TensorError("expected a rank of at least 1, found 0", sides["A"][0])
        if len(a) != b.shape[1]:
            raise TensorError(f"expected {len(a)} columns, the rank of A, found {b.shape[1]}", sides["B"][0])
        yield name, (a, b)
