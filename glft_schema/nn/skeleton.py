"""Packed layers in a model whose weights are not loaded yet, for the loaders of other libraries.

The types of a model are a mapping from names of weights to types, as for `save_file`. For a packed
model they are exact names, not patterns.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from glft_schema.errors import OptionError, quote
from glft_schema.formats.registry import WITH_TYPES, registered_type
from glft_schema.nn.layers import can_be_packed, is_conv1d, module_tensors, owner_of, pack_tensor, replace_conv1d
from glft_schema.nn.modules import Experts, Packed, packed_shape
from glft_schema.tensors.stored_tensor import StoredTensor
from glft_schema.weights.schemes import choose_types

TRANSPOSED = " transposed"  # follows the type of an `Experts` that is indexed as [in, out]


def choose(module: nn.Module, types: str | Mapping[str, str], kept: Collection[str] = ()) -> dict[str, str]:
    """Returns the types of a model's weights by name.

    Args:
        module: the model. Its weights may be on the meta device.
        types: one type for all linear layers and experts, or types by name or fnmatch pattern, as
            the `schemes` of `save_file`. A type whose blocks do not divide the rows is replaced by
            its fallback.
        kept: paths of layers to leave unpacked if `types` is one type.

    Raises:
        SchemeError: for an unknown type, or a name or pattern that matches no weight that can be
            packed.
        TensorError: if the type of an exact name cannot store the weight.
    """
    weights = _weights(module)
    if isinstance(types, str):
        linear = {name: weight for name, weight in weights.items() if weight.is_linear}
        weights = {name: weight for name, weight in linear.items() if not any(name.startswith(f"{path}.") for path in kept)}
        types = {"*": types} if weights else {}
    tensors = {name: StoredTensor(weight.shape, np.dtype("float32"), _refuse) for name, weight in weights.items()}
    choices = choose_types(tensors, types, WITH_TYPES.types)
    packed = {name: choice.type.scheme for name, choice in choices.items() if choice.type.is_quantized}
    return {name: scheme + TRANSPOSED * weights[name].is_transposed for name, scheme in packed.items()}


class _Weight(NamedTuple):
    """A weight that can be packed.

    Attributes:
        shape: of the packed layer's weights.
        is_linear: whether it belongs to a linear layer or experts.
        is_transposed: whether the layer becomes an `Experts` that is indexed as [in, out].
    """

    shape: tuple[int, ...]
    is_linear: bool = True
    is_transposed: bool = False


def _weights(module: nn.Module) -> dict[str, _Weight]:
    """Returns the weights that can be packed, by their names in the packed model."""
    weights = {}
    for tensor, names in module_tensors(module):
        name, shape = names[0], tuple(tensor.shape)
        owner: Any = owner_of(module, name)[0]
        if is_conv1d(module, name):
            weights[name] = _Weight(shape[::-1])
        elif len(shape) == 3 and hasattr(owner, "is_transposed"):  # of the experts of transformers
            stack = (shape[0], shape[2], shape[1]) if owner.is_transposed else shape
            weights[f"{name}.weight"] = _Weight(stack, is_transposed=owner.is_transposed)
        elif all(can_be_packed(module, each) for each in names):
            weights[name] = _Weight(shape, is_linear=type(owner) is nn.Linear)
    return weights


def _refuse() -> Any:
    raise AssertionError("a skeleton has no values")


def pack_layers(module: nn.Module, types: Mapping[str, str]) -> set[str]:
    """Replaces layers by packed ones on the meta device, and 3-D parameters by `Experts`.

    Args:
        module: the model, with its weights on the meta device.
        types: by the exact names of weights.

    Returns:
        The new names of the weights that unpacked checkpoints store transposed.

    Raises:
        OptionError: if `types` has a name that the model lacks.
    """
    transposed, unused = set[str](), dict(types)
    for entry in module_tensors(module):
        name = entry.names[0]
        schemes = {unused.pop(each) for each in (*entry.names, f"{name}.weight") if each in unused}
        if not schemes:
            continue
        scheme, suffix, _ = schemes.pop().partition(TRANSPOSED)
        type_, shape = registered_type(scheme), tuple(entry.tensor.shape)
        if is_conv1d(module, name):
            transposed.add(name)
            shape = shape[::-1]
            replace_conv1d(module, name.removesuffix(".weight"))
        elif suffix:
            transposed.add(f"{name}.weight")
            shape = (shape[0], *shape[:0:-1])
        packed = torch.empty(packed_shape(type_, shape), dtype=torch.uint8, device="meta")
        pack_tensor(module, entry, packed, type_, shape, bool(suffix))
    if unused:
        raise OptionError(f"a type is given for {quote(next(iter(unused)))}, which the model lacks")
    return transposed


def types_of(module: nn.Module) -> dict[str, str]:
    """Returns the types of a model's packed weights by name."""
    return {
        f"{path}.weight": layer.weight_type.scheme + TRANSPOSED * (isinstance(layer, Experts) and layer.transposed)
        for path, layer in module.named_modules()
        if isinstance(layer, Packed)
    }


def check_rows(module: nn.Module) -> None:
    """Raises OptionError if packed weights have other bytes per row than their type, as in a folder
    whose config names another type."""
    for path, layer in module.named_modules():
        if isinstance(layer, Packed):
            expected, found = [*packed_shape(layer.weight_type, layer.weight_shape)], [*layer.weight.shape]
            if found != expected:
                name = f"{path}.weight".removeprefix(".")
                raise OptionError(f"{name}: expected {expected} bytes for {layer.weight_type}, found {found}: another type?")


def encode(layer: Packed, name: str, weights: torch.Tensor) -> nn.Parameter:
    """Encodes weights in a packed layer's type, on their device; keeps packed weights unchanged.

    Raises:
        OptionError, TensorError: as `Packed.encode`.
    """
    packed = weights if weights.dtype == torch.uint8 else layer.encode(weights, name).to(weights.device)
    return nn.Parameter(packed, requires_grad=False)
