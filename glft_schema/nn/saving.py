"""Saves modules with packed weights: `stored_tensors`, and support for `save_pretrained`."""

from __future__ import annotations

import sys
from importlib import import_module

import torch
from torch import nn

from glft_schema.nn.modules import Experts
from glft_schema.tensors.stored_tensor import StoredTensor
from glft_schema.weights.in_memory import in_memory

PRETRAINED = {"transformers": "PreTrainedModel", "diffusers": "ModelMixin"}


def stored_tensors(module: nn.Module) -> dict[str, StoredTensor]:
    """Returns the tensors of a module's state dict for `glft_schema.save_file`.

    Packed weights keep their type and bytes unless a scheme says otherwise. Tied weights stay tied.

    Raises:
        TensorError: if a tensor has no values in memory.
    """
    modules = module.named_modules(remove_duplicate=False)
    names = {f"{path}.weight": path for path, owner in modules if isinstance(owner, Experts)}
    state = module.state_dict().items()  # may have extra state
    return in_memory({names.get(name, name): tensor for name, tensor in state if isinstance(tensor, torch.Tensor)})


def prepare_save_pretrained(module: nn.Module) -> None:
    """Enables `save_pretrained` for packed transformers and diffusers models in a module."""
    for model in module.modules():
        for library in ("transformers", "diffusers"):
            kind = getattr(sys.modules.get(library), PRETRAINED[library], None)
            if kind is not None and isinstance(model, kind):
                import_module(f"glft_schema.nn.{library}_quantizer").prepare_to_save(model)
