"""`stored_tensors`: the tensors of a module, packed weights as tensors of their type."""

from __future__ import annotations

import torch
from torch import nn

from glft_schema.nn.modules import Experts, Packed
from glft_schema.tensors.tensor import Tensor
from glft_schema.weights.stored_tensors import StoredTensor, in_file, in_memory, packed_tensor


def stored_tensors(module: nn.Module) -> dict[str, StoredTensor]:
    """Returns the tensors of a module's state dict for `glft_schema.save_file`.

    Packed weights keep their type and bytes unless a scheme says otherwise. Tied ones stay tied.

    Raises:
        TensorError: if a tensor has no values in memory.
    """
    found: dict[str, StoredTensor] = {}
    packed: dict[int, Tensor] = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        path, _, attribute = name.rpartition(".")
        owner = module.get_submodule(path)
        if isinstance(owner, Packed) and attribute == "weight":
            name = path if isinstance(owner, Experts) else name
            if id(tensor) not in packed:
                packed[id(tensor)] = packed_tensor(name, owner.weight_type, owner.weight_shape, tensor)
            found[name] = in_file(packed[id(tensor)])
        elif isinstance(tensor, torch.Tensor):  # no extra state
            found |= in_memory({name: tensor.detach()})
    return found
