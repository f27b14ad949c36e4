"""Saves modules with packed weights: `stored_tensors`, and models that `save_pretrained` cannot
save."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import nn

from glft_schema.errors import OptionError
from glft_schema.nn.modules import Experts, Packed
from glft_schema.tensors.stored_tensor import StoredTensor
from glft_schema.weights.in_memory import in_memory


def stored_tensors(module: nn.Module) -> dict[str, StoredTensor]:
    """Returns the tensors of a module's state dict for `glft_schema.save_file`.

    Packed weights keep their type and bytes unless a scheme says otherwise. Tied ones stay tied.

    Raises:
        TensorError: if a tensor has no values in memory.
    """
    modules = module.named_modules(remove_duplicate=False)
    names = {f"{path}.weight": path for path, owner in modules if isinstance(owner, Experts)}
    state = module.state_dict().items()  # may have extra state
    return in_memory({names.get(name, name): tensor for name, tensor in state if isinstance(tensor, torch.Tensor)})


class SavePretrained:
    """`save_pretrained` of a model of transformers or diffusers, which would write packed weights
    as plain integers. Raises OptionError, except for adapters and models that are packed no longer.
    """

    def __init__(self, model: nn.Module) -> None:
        self.__setstate__(model)

    def __call__(self, *args: Any, **options: Any) -> Any:
        model = self.__getstate__()
        is_adapter = getattr(model, "_hf_peft_config_loaded", False)
        if not is_adapter and any(isinstance(module, Packed) for module in model.modules()):
            route = "glft_schema.save_file(model.state_dict(), 'NAME.gguf')"
            if type(model).__module__.startswith("transformers."):  # whose names are not those of GGUF
                route = "glft_schema.transformers.save(model, 'NAME.gguf', like='ORIGINAL.gguf')"
                route += "; glft_schema.convert('NAME.gguf', 'FOLDER/') then writes a folder of floats"
            raise OptionError(f"save_pretrained loses the types of packed weights: use {route}")
        return type(model).save_pretrained(model, *args, **options)

    def __getstate__(self) -> Any:
        return self._model()

    def __setstate__(self, model: nn.Module) -> None:
        self._model = weakref.ref(model)  # a cycle would keep the memory of models


def refuse_save_pretrained(module: nn.Module) -> None:
    """Lets all `save_pretrained` in a module refuse packed weights."""
    for model in module.modules():
        if hasattr(type(model), "save_pretrained"):
            model.save_pretrained = SavePretrained(model)  # type: ignore[assignment]
