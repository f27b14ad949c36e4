"""Finds the composite weights of a checkpoint by the names and dtypes of its tensors."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any

from glft_schema.composites.schemes import SCHEMES
from glft_schema.composites.weight import CompositeWeight, Facts
from glft_schema.errors import FormatError, TensorError
from glft_schema.storage.dtypes import CODES, name_of
from glft_schema.storage.locations import beside, is_remote
from glft_schema.storage.opening import read_regular
from glft_schema.storage.source import StrPath
from glft_schema.tensor_types.ggml.fp4 import NVFP4
from glft_schema.tensors.region import Tensors
from glft_schema.tensors.stored_tensor import StoredTensor, of_file
from glft_schema.tensors.tensor import Tensor
from glft_schema.words import MissingKeyError

CONFIG = "config.json"
COMFY = "comfy_quant"  # part with settings as JSON
OF_STACK = "_scale_inv", "_scale", "_weight_scale"  # ends of the names of scales of stacks, which no scheme has
REFUSED = {"pre_quant_scale", "svdquant_lora_a", "svdquant_lora_b"}  # parts that change a weight
COMMON = {"weight", "scales", "biases", "scale", "global_scale"}  # names of parts that other tensors have, too
PARTS = tuple({  # ends of names that only parts beside codes have
    scheme.joint + part
    for scheme in SCHEMES if scheme.joint != "_"
    for part in [*scheme.stored_parts()][1:] if part not in COMMON
})  # fmt: skip

Config = Mapping[str, Any]


class ComposedTensors(Mapping[str, StoredTensor]):
    """The tensors of a checkpoint, in which the parts of a composite weight are one tensor.

    A weight has the position of its codes and the name of a plain weight. Getting a weight whose
    parts do not fit raises TensorError, and so does a part without codes.

    Args:
        tensors: as stored, by name.
        config: returns the quantization config; called if there are codes.
    """

    def __init__(self, tensors: Mapping[str, StoredTensor], config: Callable[[], Config]) -> None:
        self._tensors, self._read = tensors, config
        self._found: dict[str, tuple[type[CompositeWeight], str, dict[str, str]]] = {}
        self._kept: dict[str, CompositeWeight] = {}
        taken: dict[str, str] = {}
        for name in (name for name, tensor in tensors.items() if _has_codes(tensor)):
            for scheme in SCHEMES:
                codes = scheme.joint + next(iter(scheme.stored_parts()))
                if f".{name}".endswith(codes):
                    module = name[: max(len(name) - len(codes), 0)]
                    start = f"{module}{scheme.joint}" if module else scheme.joint.lstrip(".")
                    parts = {
                        part: start + stored for stored, part in scheme.stored_parts().items() if start + stored in tensors
                    }
                    if scheme.fits({part: tensors[stored] for part, stored in parts.items()}):
                        self._found[name] = scheme, f"{module}{scheme.ending}".lstrip("."), parts
                        taken |= dict.fromkeys((*parts.values(), _beside(module, COMFY)), name)
                        break
        stored = [name for name in tensors if taken.get(name, name) == name]
        names = [(self._found[name][1] if name in self._found else name, name) for name in stored]
        self._names = dict(names)
        self._twice = {name for name, count in Counter(own for own, _ in names).items() if count > 1}
        self._modules = {name.rpartition(".")[0] for name in taken}

    @cached_property
    def config(self) -> Config:
        """The quantization config."""
        return self._read()

    @property
    def composites(self) -> list[CompositeWeight]:
        """The composite weights. Raises TensorError if the parts of one do not fit."""
        return [self._weight(name) for name in self._found]

    def __getitem__(self, name: str) -> StoredTensor:
        stored = self._names[name]
        if name in self._twice:
            raise TensorError("the weight is stored twice: as a tensor, and as codes and scales", name)
        if stored in self._found:
            return self._weight(stored).stored
        module, _, last = name.rpartition(".")
        if f".{name}".endswith(PARTS) or (last in REFUSED and module not in self._modules):
            raise TensorError("expected codes beside this part of a quantized weight, found none that it fits", name)
        tensor = self._tensors[stored]
        has_codes = len(tensor.shape) > 1 and _has_codes(tensor) and not tensor.packed
        if has_codes and len(tensor.shape) > 2 and (scale := next((s for s in OF_STACK if name + s in self._tensors), "")):
            raise TensorError(f"expected a known scheme, found a stack of codes with {last}{scale}", name)
        # rows of method glft have their scales
        if has_codes and last == "weight" and self.config and self.config.get("quant_method") != "glft":
            raise TensorError("the config declares quantized weights, but there are no scales beside these codes", name)
        return tensor

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def _weight(self, codes: str) -> CompositeWeight:
        if codes not in self._kept:
            self._kept[codes] = self._composite(codes)
        return self._kept[codes]

    def _composite(self, codes: str) -> CompositeWeight:
        scheme, name, parts = self._found[codes]
        module = name.removesuffix(scheme.ending)
        if other := next((part for part in REFUSED if _beside(module, part) in self._tensors), None):
            raise TensorError(f"{scheme.library}: weights with {other} are not supported", name)
        if comfy := self._tensors.get(_beside(module, COMFY)):
            _check_comfy(comfy, name)
        return scheme(name, {part: self._tensors[stored] for part, stored in parts.items()}, facts_of(self.config, module))


class Weights(Tensors):
    """The weights of an open file by name: its tensors, in which the parts of a composite weight
    are one tensor, whose payload is computed from theirs."""

    def __init__(self, tensors: Tensors, path: StrPath) -> None:
        self.gaps, self.trailing = tensors.gaps, tensors.trailing
        stored = {name: of_file(tensor) for name, tensor in tensors.items()}
        self.composed = ComposedTensors(stored, lambda: config_beside(path))

    def __getitem__(self, name: str) -> Tensor:
        try:
            tensor = self.composed[name].file_tensor
        except KeyError:
            raise MissingKeyError(name, self.composed) from None
        assert tensor is not None
        return tensor

    def __contains__(self, name: object) -> bool:
        return name in self.composed

    def __iter__(self) -> Iterator[str]:
        return iter(self.composed)

    def __len__(self) -> int:
        return len(self.composed)


def _beside(module: str, part: str) -> str:
    """Returns the name of a part of a module, which may be the whole model."""
    return f"{module}.{part}".lstrip(".")


def _has_codes(tensor: StoredTensor) -> bool:
    return name_of(tensor.dtype) in CODES or bool(tensor.packed and tensor.packed.type == NVFP4)


def composed(tensors: Mapping[str, Any], path: StrPath) -> Mapping[str, Any]:
    """Returns the entries of a checkpoint, in which the parts of a composite weight are one tensor.

    Args:
        tensors: entries, which need not be tensors.
        path: the checkpoint, whose folder may have a config.
    """
    stored = {name: tensor for name, tensor in tensors.items() if isinstance(tensor, StoredTensor)}
    if not any(map(_has_codes, stored.values())):
        return tensors
    weights = ComposedTensors(stored, lambda: config_beside(path))
    return {**weights, **{name: entry for name, entry in tensors.items() if name not in stored}}


def config_beside(path: StrPath) -> Config:
    """Returns the quantization config of a checkpoint: of config.json in its folder, or else of the
    file of ModelOpt, GPTQ or AWQ. Empty if missing or invalid."""
    inside = os.path.join(path, CONFIG) if os.path.isdir(path) else path
    missing = (FileNotFoundError, PermissionError) if is_remote(path) else (OSError,)  # servers fail in other ways, too
    for file in (CONFIG, "hf_quant_config.json", "quantize_config.json", "quant_config.json"):
        with suppress(*missing, FormatError, ValueError, RecursionError):
            config = json.loads(read_regular(beside(inside, file)))
            if isinstance(config, dict):
                places: list[Any] = [config, config.get("text_config")]
                for found in places:
                    for key in ("quantization_config", "quantization") if isinstance(found, dict) else ():
                        if isinstance(found.get(key), dict):
                            return dict(found[key])
                if file.startswith("quant"):
                    return config
    return {}


def _check_comfy(settings: StoredTensor, name: str) -> None:
    """Raises TensorError if the JSON of ComfyUI beside a weight states a layout that no scheme has:
    swizzled scales, or rotated weights."""
    with suppress(ValueError, RecursionError):
        found = json.loads(settings.values().tobytes())
        if isinstance(found, dict) and str(found.get("format")).startswith(("float8", "int8")) and not found.get("convrot"):
            return
    raise TensorError(f"ComfyUI: expected float8 or int8 in {COMFY}, without rotation, found something else", name)


def facts_of(config: Config, module: str) -> Facts:
    """Returns what a quantization config says about the weight of a module."""
    own = config.get(module)
    if isinstance(own, dict):
        config = {**config, **{key: value for key, value in own.items() if value is not None}}
    if config.get("dynamic") or config.get("extra_config"):  # exceptions of GPTQModel and AutoRound, which shapes show
        config = {key: value for key, value in config.items() if key not in ("bits", "group_size")}
    groups = config.get("config_groups")
    found = groups.values() if isinstance(groups, dict) else ()
    of_weights = [group for group in found if isinstance(group, dict) and group.get("weights")]
    targeted = [g for g in of_weights if isinstance(g.get("targets"), list) and module in g["targets"]] or of_weights
    weights = [group["weights"] for group in targeted]
    if weights and isinstance(weights[0], dict) and all(one == weights[0] for one in weights):
        config = {**config, **weights[0]}
    block = config.get("weight_block_size") or config.get("block_structure")
    is_block = isinstance(block, list) and len(block) == 2 and all(isinstance(size, int) and size > 0 for size in block)

    def number(*names: str) -> int | None:
        return next((config[name] for name in names if type(config.get(name)) is int and config[name]), None)

    named = {"awq": ("version", "format"), "gptq": ("format",)}.get(str(config.get("quant_method", "gptq")), ())
    version = next((config[key] for key in ("checkpoint_format", *named) if config.get(key)), "")
    return Facts(
        number("bits", "num_bits", "w_bit"),
        number("group_size", "q_group_size"),
        (block[0], block[1]) if is_block and isinstance(block, list) else None,
        str(version).lower(),
        str(config.get("mode") or "affine"),
        bool(config.get("transform_config")),
    )
