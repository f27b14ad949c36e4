"""The tensors of a module by name, and the replacement of torch layers by packed ones."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn

from glft_schema.nn.modules import Conv2d, Embedding, Experts, Linear, Packed
from glft_schema.tensor_types import TensorType


class ModuleTensor(NamedTuple):
    """A tensor of a module.

    Attributes:
        tensor: the parameter or buffer.
        names: its names in the state dict; several if the tensor is shared.
    """

    tensor: torch.Tensor
    names: list[str]


def module_tensors(module: nn.Module) -> list[ModuleTensor]:
    """Returns the tensors of a module's state dict."""
    by_id: dict[int, ModuleTensor] = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        if isinstance(tensor, torch.Tensor):  # no extra state
            by_id.setdefault(id(tensor), ModuleTensor(tensor, [])).names.append(name)
    return list(by_id.values())


def owner_of(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    """Returns the module that has a tensor, and the tensor's name there."""
    path, _, attribute = name.rpartition(".")
    return module.get_submodule(path), attribute


def packed_owner(module: nn.Module, name: str) -> Packed | None:
    """Returns the packed layer whose weight has this name, or None."""
    owner, attribute = owner_of(module, name)
    return owner if isinstance(owner, Packed) and attribute == "weight" else None


def can_be_packed(module: nn.Module, name: str) -> bool:
    """Tells whether a tensor is the weight of a layer that has a packed counterpart."""
    path, _, attribute = name.rpartition(".")
    if attribute != "weight" or not path:
        return False
    owner, parent = module.get_submodule(path), owner_of(module, path)[0]
    kinds = nn.Linear, nn.Embedding, nn.Conv2d  # and no subclasses, which may compute something else
    reads_weights = isinstance(parent, nn.TransformerEncoderLayer)  # directly, in its fast path
    known = type(owner) in kinds or _scale(owner) is not None
    return known and not reads_weights and getattr(owner, "max_norm", None) is None


def is_conv1d(module: nn.Module, name: str) -> bool:
    """Tells whether a tensor is the weight [in, out] of transformers' Conv1D, a layer of gpt2."""
    owner, attribute = owner_of(module, name)
    return attribute == "weight" and type(owner).__name__ == "Conv1D"


def replace_conv1d(module: nn.Module, path: str) -> None:
    """Replaces a Conv1D by a Linear layer with its weight on the meta device, for packing."""
    layer: Any = module.get_submodule(path)
    rows, columns = layer.weight.shape
    linear = nn.Linear(rows, columns, bias=False, device="meta", dtype=layer.weight.dtype)
    linear.bias = layer.bias
    module.set_submodule(path, linear)


def pack_tensor(
    module: nn.Module, entry: ModuleTensor, packed: torch.Tensor, type_: TensorType, shape: tuple[int, ...], transposed: bool
) -> None:
    """Replaces all layers of a weight by packed ones that share it, or a parameter by `Experts`.

    Args:
        module: whose layers are replaced.
        entry: the weight.
        packed: the bytes of the payload, u8 [rows, bytes of a row].
        type_: of the weight.
        shape: of the weight.
        transposed: as in `Experts`.
    """
    weight, layers = nn.Parameter(packed, requires_grad=False), dict[nn.Module, nn.Module]()
    weight._is_hf_initialized = True  # type: ignore[attr-defined]  # transformers initializes no bytes that it leaves on disk
    for name in entry.names:
        parent, attribute = owner_of(module, name.removesuffix(".weight"))
        owner = getattr(parent, attribute)
        if not isinstance(owner, nn.Module):
            delattr(parent, attribute)
            stack: Any = Experts(shape, type_, device="meta", dtype=owner.dtype, transposed=transposed)  # type: ignore[arg-type]
            stack.weight = weight
            setattr(parent, attribute, stack)
            continue
        if owner not in layers:
            layers[owner] = layer = _layer(owner, type_)
            layer.weight, layer.dtype = weight, entry.tensor.dtype
            added = {name: value for name, value in owner.__dict__.items() if name not in layer.__dict__ or "_hooks" in name}
            layer.__dict__.update(added, training=owner.training)
        setattr(parent, attribute, layers[owner])


def _layer(owner: nn.Module, type_: TensorType) -> Linear | Embedding | Conv2d:
    """Returns the packed counterpart of a layer, with the same bias."""
    layer: Linear | Embedding | Conv2d
    if isinstance(owner, nn.Embedding):
        sizes, scale = (owner.num_embeddings, owner.embedding_dim), _scale(owner)
        return Embedding(*sizes, type_, padding_idx=owner.padding_idx, scale=1.0 if scale is None else scale, device="meta")
    if isinstance(owner, nn.Linear):
        layer = Linear(owner.in_features, owner.out_features, type_, device="meta")
    else:
        assert isinstance(owner, nn.Conv2d)
        options = {name: getattr(owner, name) for name in ("stride", "padding", "dilation", "groups", "padding_mode")}
        size: Any = owner.kernel_size
        layer = Conv2d(owner.in_channels, owner.out_channels, size, type_, device="meta", **options)
    layer.bias = owner.bias
    return layer


def _scale(owner: nn.Module) -> float | None:
    """Returns the scale of Gemma's embeddings, a subclass in transformers; otherwise None."""
    return owner.scalar_embed_scale if type(owner).__name__.endswith("TextScaledWordEmbedding") else None  # type: ignore[return-value]
