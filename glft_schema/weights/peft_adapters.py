"""LoRA adapters of peft, by the tensor names of a GGUF model.

Sources: peft 0.21's LoRA layers, and llama.cpp's src/llama-adapter.cpp and convert_lora_to_gguf.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from glft_schema.codec.typed_values import Typed
from glft_schema.errors import FormatError, OptionError, TensorError, quote
from glft_schema.families.config import CONFIG as MODEL_CONFIG
from glft_schema.families.config import LARGEST, Config, read_json, refusing
from glft_schema.families.folders import QUANTIZATION_VERSION, VERSION
from glft_schema.families.operations import KEEP, ROWS, MoveRows, Stack, Transpose
from glft_schema.families.page import BLOCK_COUNT, Family
from glft_schema.families.tensor_names import NameParts, Names
from glft_schema.formats.gguf_names import ARCHITECTURE, EMBEDDING, OUTPUT
from glft_schema.storage.dtypes import Array
from glft_schema.storage.source import StrPath, path_text
from glft_schema.tensor_types.chunks import are_finite
from glft_schema.tensor_types.conversions import float32_of
from glft_schema.tensors.stored_tensor import StoredTensor, of_values

CONFIG, WEIGHTS = "adapter_config.json", ("adapter_model.safetensors", "adapter_model.bin")
PREFIX = "base_model.model."  # of names in peft's files
IN_PEFT = re.compile(r"(?P<name>.+)\.lora_(?P<embedding>embedding_)?(?P<side>[AB])(?:\.weight)?")
COPIED = ".base_layer.weight"  # peft saves the embedding that it adapts, unchanged
ALPHA, DEFAULT_RANK = "adapter.lora.alpha", 8
OTHER_MODEL = "the adapter fits another model"
OTHER_METHODS = {  # settings of adapters that are more than A and B
    "use_dora": "DoRA",
    "use_qalora": "QALoRA",
    "use_bdlora": "BD-LoRA",
    "alora_invocation_tokens": "aLoRA, which changes only the tokens after its invocation",
    "arrow_config": "Arrow",
    "kasa_config": "KaSA",
    "monteclora_config": "MonteCLoRA",
    "velora_config": "VeLoRA",
    "modules_to_save": "modules_to_save",
    "trainable_token_indices": "trainable_token_indices",
    "target_parameters": "target_parameters",
    "lora_bias": "a bias of B",
    "layer_replication": "layer_replication",
}
ONE = r"(?:\\[dDwW]|\\[^A-Za-z0-9]|\[\^?(?:\w-\w|[\w.])+\]|[^\\\[\](){}|*+?^$])"  # matches one letter
PIECES = rf"\^?(?:{ONE}(?:[*+?]\??|\{{\d(?:,\d?)?\}})?|\((?:\?:)?[\w|]+\))*\$?"
PATTERN = re.compile(rf"{PIECES}(?:\|{PIECES})*")  # of layers, without what takes exponential time
LONGEST, REPEATED = 200, 3  # letters and repetitions of a pattern
PLAIN_STARTS = (True, False, "gaussian", "eva", "orthogonal", "mica")  # others also change the weights of the base


class Update(NamedTuple):
    """What an adapter adds to a tensor of a GGUF model: ``scale * up @ down``.

    Attributes:
        up: [out, rank], or [experts, out, rank].
        down: [rank, in], or [experts, rank, in].
        scale: of the product.
    """

    up: Array
    down: Array
    scale: float

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor."""
        return *self.up.shape[:-1], self.down.shape[-1]

    def rows(self, rows: slice) -> Array:
        """Returns rows of the update, or matrices of a stack, float32."""
        with np.errstate(all="ignore"):
            down = self.down if self.down.ndim == 2 else self.down[rows]
            update: Array = float32_of(self.up[rows]) @ float32_of(down)
            update *= np.float32(self.scale)
        return update


def is_adapter(path: StrPath) -> bool:
    """Returns whether a path is a folder with an adapter of peft, and without a model."""
    folder = Path(path_text(path))
    return (folder / CONFIG).is_file() and not (folder / MODEL_CONFIG).exists()


def weights_of(folder: Path) -> Path:
    """Returns the path of an adapter's weights. Raises OptionError if the folder has no adapter."""
    weights = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if weights is None or not (folder / CONFIG).is_file():
        raise OptionError(f"expected a LoRA adapter: a GGUF file, or a folder with {CONFIG} and {WEIGHTS[0]}, found neither")
    return weights


def updates_of_peft(
    folder: Path, tensors: Mapping[str, StoredTensor], model: tuple[Family, Config], base: Mapping[str, Any]
) -> dict[str, Update]:
    """Returns the updates of a folder of peft, by the names of a model's tensors.

    Args:
        folder: of the adapter.
        tensors: of the adapter, by their names in peft.
        model: the family of the base model, and its config.
        base: its tensors in GGUF, by name.

    Raises:
        FormatError: if the adapter is not plain LoRA.
        TensorError: if it is not finite, or fits another model.
        OSError: if the settings cannot be read.
    """
    with refusing(folder / CONFIG, "valid settings of an adapter"):
        settings = read_json(folder / CONFIG)
        _check_plain(settings, str(folder / CONFIG))
        return _updates(settings, str(folder / CONFIG), dict(pairs(tensors, IN_PEFT)), model, base)


def _updates(
    settings: Config,
    file: str,
    found: Mapping[str, tuple[Array, Array]],
    model: tuple[Family, Config],
    base: Mapping[str, Any],
) -> dict[str, Update]:
    family, config = model
    names, layers = Names(family, config, len(base)), dict[NameParts, dict[str, Update]]()
    ranks, alphas = (_patterns(settings, field, file) for field in ("rank_pattern", "alpha_pattern"))
    for stored, (a, b) in found.items():
        layer = stored.removeprefix(PREFIX)
        name = layer.removeprefix(family.prefix) + ".weight"
        try:
            place = names.place_of(name)
        except TensorError:
            modules = sorted({name.rpartition(".")[2] for name in found})
            its = dict.fromkeys(row.name.rpartition(".")[2] for row in family.tensors if row.name and " " in row.dims)
            has = f"{config[family.field_of(BLOCK_COUNT)]} blocks with {', '.join(its)}"
            problem = f"{OTHER_MODEL}: it changes {quote(modules)}, the {family.arch} model has {has}"
            raise TensorError(problem, stored) from None
        if name not in place.in_hf(config):  # another text for its numbers, or an expert that the model lacks
            raise names.no_such_tensor(stored)
        if (rank := _find(ranks, layer, settings.get("r", DEFAULT_RANK))) != len(a):
            raise TensorError(f"expected the rank that {CONFIG} states, {quote(rank)}, found {len(a)}", stored)
        parts = layers.setdefault(place, {})
        if name in parts:
            raise TensorError(f"expected one adapter of {place.in_gguf[0]}, found two", stored)
        parts[name] = Update(b, a, _scale(settings, _find(alphas, layer, settings.get("lora_alpha")), len(a), file))
    updates = dict[str, Update]()
    for place, parts in layers.items():
        name, update = place.in_gguf[0], _in_gguf(place, parts, config)
        shape, expected = list(update.shape), list(base[name].shape) if name in base else "none"
        if shape != expected:
            raise TensorError(f"{OTHER_MODEL}: it changes {name} of {shape}, the model has {expected}", next(iter(parts)))
        updates[name] = update
    return updates


def _in_gguf(place: NameParts, parts: Mapping[str, Update], config: Config) -> Update:
    """Returns the update of a GGUF tensor from the updates of its layer, or of all experts."""
    operation, (first, update), expected = place.row.operation, next(iter(parts.items())), list(place.in_hf(config))
    moves_rows = isinstance(operation, MoveRows) and operation.axis == ROWS
    if len(place.in_gguf) > 1 or not (moves_rows or isinstance(operation, (Transpose, Stack)) or operation is KEEP):
        raise TensorError("expected a layer that GGUF does not split", first)
    if parts.keys() != {*expected}:
        problem = f"expected an adapter of each of {len(expected)} layers that GGUF stacks, found {len(parts)}"
        raise TensorError(problem, first)
    if len({(len(part.down), part.scale) for part in parts.values()}) > 1:
        raise TensorError("expected the same rank and scale for all layers that GGUF stacks, found others", first)

    def mapped(matrices: Iterable[Array]) -> Array:
        return operation.map_to_gguf([of_values(matrix) for matrix in matrices], config, first)[0].values()

    if isinstance(operation, Stack):
        ordered = [parts[name] for name in expected]
        return Update(mapped(part.up for part in ordered), mapped(part.down for part in ordered), update.scale)
    return update._replace(up=mapped([update.up])) if moves_rows else update


def in_llama_cpp(
    updates: Mapping[str, Update], family: Family, base: Container[str]
) -> tuple[dict[str, StoredTensor], dict[str, Typed]]:
    """Returns the tensors and the metadata of llama.cpp's adapter, in float32.

    llama.cpp scales each product by alpha / rank, with one alpha. A layer with another scale has
    the rest in its B.

    Args:
        updates: by the names of a model's tensors.
        family: of the model.
        base: the names of its tensors.

    Raises:
        TensorError: if llama.cpp does not apply adapters to a tensor.
    """
    alphas = {name: update.scale * update.down.shape[-2] for name, update in updates.items()}
    tensors, alpha = dict[str, StoredTensor](), next(filter(None, alphas.values()), 1.0)  # 0 would be no scaling
    has_output = family.drops("lm_head.weight") or any(f"{row.gguf}.weight" == OUTPUT for row in family.tensors)
    for name, update in updates.items():
        if not name.startswith("blk.") and name not in (EMBEDDING, OUTPUT):
            raise TensorError("expected a tensor to which llama.cpp applies adapters, found another: use glft merge-lora", name)
        if name == EMBEDDING and has_output and OUTPUT not in base:
            problem = "llama.cpp aborts with an adapter of an embedding that is also the output matrix: use glft merge-lora"
            raise TensorError(problem, name)
        a, b = float32_of(update.down), float32_of(update.up)
        if name == EMBEDDING:  # [rows, rank] and [columns, rank]
            a, b = b, np.ascontiguousarray(a.T)
        if alphas[name] != alpha:
            b = b * np.float32(alphas[name] / alpha)
        tensors |= {f"{name}.lora_a": of_values(a), f"{name}.lora_b": of_values(b)}
    texts = {"general.type": "adapter", ARCHITECTURE: family.arch, "adapter.type": "lora"}
    keys = {**{key: Typed(text, "string") for key, text in texts.items()}, ALPHA: Typed(alpha, "float32")}
    return tensors, {**keys, QUANTIZATION_VERSION: Typed(VERSION, "uint32")}


def _check_plain(settings: Config, file: str) -> None:
    """Raises FormatError unless an adapter is plain LoRA, the matrices A and B alone."""
    for field, expected in (("peft_type", "LORA"), ("bias", "none")):
        if (found := settings.get(field, expected if field == "bias" else None)) != expected:
            raise FormatError(f"expected {quote(expected)}, found {quote(found)}", field, file=file)
    for field, method in OTHER_METHODS.items():
        if settings.get(field):
            raise FormatError(f"expected plain LoRA, found {method}", field, file=file)
    if (start := settings.get("init_lora_weights") or False) not in PLAIN_STARTS:
        hint = "PiSSA, OLoRA, CorDA and LoRA-GA are saved as plain LoRA with path_initial_model_for_weight_conversion"
        problem = f"expected plain LoRA, found {quote(start)}, which also changes the weights of the base; {hint}"
        raise FormatError(problem, "init_lora_weights", file=file)


def _patterns(settings: Config, field: str, file: str) -> list[tuple[re.Pattern[str], Any]]:
    """Returns the values by pattern in a field of the settings.

    Raises FormatError for a pattern outside `PATTERN`, which Python's `re` may match for hours.
    """
    if not isinstance(given := settings.get(field) or {}, Mapping):
        raise FormatError(f"expected an object with values by pattern, found {quote(given)}", field, file=file)
    compiled = []
    for pattern, value in given.items():
        repeated = sum(map(pattern.replace("(?:", "(").count, "*+?{"))
        if len(pattern) > LONGEST or repeated > REPEATED or not PATTERN.fullmatch(pattern):
            parts = f"letters, classes, words in groups, and at most {REPEATED} repetitions of a letter"
            raise FormatError(f"expected a pattern of {parts}, found {quote(pattern)}", field, file=file)
        compiled.append((re.compile(rf"(.*\.)?({pattern})$"), value))  # as in peft
    return compiled


def _find(patterns: list[tuple[re.Pattern[str], Any]], layer: str, default: Any) -> Any:
    """Returns the value of the first pattern that matches a layer, or the default."""
    return next((value for pattern, value in patterns if pattern.match(layer)), default)


def _scale(settings: Config, alpha: object, rank: int, file: str) -> float:
    """Returns the scale of a layer's update: alpha / rank, or with rsLoRA alpha / sqrt(rank)."""
    return finite(alpha, "lora_alpha", file) / (math.sqrt(rank) if settings.get("use_rslora") else rank)


def finite(value: object, path: str, file: str) -> float:
    """Returns a number that is finite in float32. Raises FormatError for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= LARGEST:
        raise FormatError(f"expected a finite number, found {quote(value)}", path, file=file)
    return value


def pairs(tensors: Mapping[str, StoredTensor], pattern: re.Pattern[str]) -> Iterator[tuple[str, tuple[Array, Array]]]:
    """Yields A and B by the name of their weight, transposed for an embedding.

    Raises TensorError if A or B is missing or not finite, or their ranks differ.
    """
    halves: dict[str, dict[str, tuple[str, Array]]] = {}
    for name, tensor in tensors.items():
        if name.endswith(COPIED):
            continue
        if not (match := pattern.fullmatch(name)) or len(tensor.shape) not in (2, 3):
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
        if not a.shape[-2]:
            raise TensorError("expected a rank of at least 1, found 0", sides["A"][0])
        if a.shape[-2] != b.shape[-1]:
            raise TensorError(f"expected {a.shape[-2]} columns, the rank of A, found {b.shape[-1]}", sides["B"][0])
        yield name, (a, b)
