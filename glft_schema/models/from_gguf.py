"""Loads transformers models from Hugging Face folders, and GGUF files of declared families."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from glft_schema.errors import FormatError, OptionError, TensorError, quote
from glft_schema.families.config import BLOCKS, CONFIG, check_sizes, read_json
from glft_schema.families.export import hf_model
from glft_schema.families.folders import is_model_folder
from glft_schema.families.libraries import library
from glft_schema.families.page import Family
from glft_schema.families.registry import families
from glft_schema.families.tokenizers import tokenizer_of
from glft_schema.families.untrusted_folders import check_loadable
from glft_schema.files.container import open
from glft_schema.formats.registry import WITH_TYPES
from glft_schema.lazy import torch
from glft_schema.models.transformers_library import LOCAL, transformers_for
from glft_schema.storage.dtypes import name_of
from glft_schema.storage.source import StrPath
from glft_schema.storage.torch_tensors import torch_dtype, usable_device
from glft_schema.tensors.stored_tensor import StoredTensor
from glft_schema.weights.checkpoints import Checkpoint, open_entries
from glft_schema.weights.in_memory import in_memory

EXPECTED = "a model that transformers loads"


def load(
    path: StrPath, *, packed: bool = True, dtype: torch.dtype | str | None = None, device: str | torch.device = "cpu"
) -> tuple[Any, Any]:
    """Loads a GGUF model and its tokenizer as transformers objects.

    Names, config and the order of rows follow from the model's family, as in `convert`.

    Args:
        path: the file, or a file of a set.
        packed: keep quantized weights as the file stores them, in the modules of `glft_schema.nn`;
            otherwise they are dequantized.
        dtype: the dtype of other weights and of the computation; by default float16 or bfloat16 if
            all matrices have that dtype, otherwise float32.
        device: the device of all weights. On ``meta`` they have no values and are not read, for
            models that are sharded first and then loaded by `glft_schema.distributed`.

    Returns:
        The model, in evaluation mode, and the tokenizer.

    Raises:
        OptionError: if a library is missing, the path is not a GGUF file, torch cannot use the
            device, or the device lacks the memory.
        FormatError: if no family has the architecture, a key or a tensor is missing, or the file
            has a tensor that the model lacks.
        OSError: if a file cannot be read.
    """
    with transformers_for(path, EXPECTED) as transformers:
        if is_model_folder(path):
            raise OptionError(f"expected a {WITH_TYPES.name} file, found a folder, which from_pretrained loads")
        checkpoint = open_entries(path)
        model = _of_gguf(transformers, path, checkpoint, packed=packed, dtype=torch_dtype(dtype), device=device)
        return model, tokenizer_of(checkpoint.metadata)


def load_model(path: StrPath) -> Any:
    """Loads a model of transformers in float32, for inference.

    A GGUF model is mapped by its family, and dequantized in memory.

    Raises:
        OptionError: if transformers is missing, or the path is neither GGUF nor a folder.
        FormatError: if the model cannot be loaded, or lacks a tensor; see `hf_model` and
            `check_loadable`.
        OSError: if a file cannot be read.
    """
    with transformers_for(path, EXPECTED) as transformers:
        if not is_model_folder(path):
            return _of_gguf(transformers, path, open_entries(path), packed=False, dtype=torch.float32)
        check_loadable(Path(path))
        _check_sizes(Path(path))
        config = transformers.AutoConfig.from_pretrained(path, **LOCAL)
        kind = getattr(transformers, (config.architectures or ["AutoModel"])[0])
        module, info = kind.from_pretrained(path, dtype=torch.float32, output_loading_info=True, **LOCAL)
        _check_missing(info["missing_keys"], family_of(module))
        return module.eval()


def _check_sizes(folder: Path) -> None:
    """Raises FormatError if a config, or a part of it, has more tokens or blocks than the weights.

    transformers would make a row or a module of each before it reads the weights.
    """
    try:
        file = open(folder)
    except FormatError:  # weights of another format, or refused by transformers, too
        return
    with file:
        check_sizes(read_json(folder / CONFIG), file.tensors, ("vocab_size", BLOCKS), str(folder / CONFIG))


def family_of(module: Any) -> Family | None:
    """Returns the family that declares a model's class, or None."""
    kind = type(module).__name__
    return next((family for family in families() if kind in family.architectures), None)


def is_dropped(name: str, family: Family | None) -> bool:
    """Returns whether GGUF models of the family leave out a tensor, so that it needs no values."""
    return family is not None and family.drops(name)


def _check_missing(names: Any, family: Family | None) -> None:
    """Raises TensorError if the model needs a missing tensor, whose values would be random."""
    for name in sorted(names):
        if not is_dropped(name, family):
            raise TensorError("expected values for this tensor, found none", name)


def _of_gguf(
    transformers: Any,
    path: StrPath,
    checkpoint: Checkpoint,
    *,
    packed: bool,
    dtype: torch.dtype | None,
    device: str | torch.device = "cpu",
) -> Any:
    """Returns the model of a GGUF file."""
    from glft_schema.nn.load_into import fill

    if checkpoint.file is None or checkpoint.file.format is not WITH_TYPES:
        raise OptionError(f"expected a {WITH_TYPES.name} file or a Hugging Face folder, found {quote(str(path))}")
    tensors, fields = hf_model(in_memory(checkpoint.tensors), checkpoint.file, fused=True)
    config = transformers.CONFIG_MAPPING[fields["model_type"]].from_dict(fields)
    config._experts_implementation = "eager"  # to index one expert at a time
    module = _without_values(getattr(transformers, fields["architectures"][0]), config, dtype or _dtype_of(tensors))
    family, own = family_of(module), module.state_dict().keys()
    assert family is not None
    found = {name if name in own else family.prefix + name: tensor for name, tensor in tensors.items()}
    with torch.inference_mode(False):
        if packed:
            found = {name: _of_linear(module, name, tensor) for name, tensor in found.items()}
        is_meta = usable_device(device).type == "meta"
        if is_meta and not packed:
            return module.eval()
        experts = [name for name, tensor in found.items() if len(tensor.shape) == 3]
        unmatched = fill(module, found, path, packed=packed, strict=False, device=device, experts=experts)
        _check_missing(unmatched.missing, family)
        for name in unmatched.left_over:
            raise TensorError(f"{type(module).__name__} has no such tensor", name)
        if not is_meta:  # on meta, buffers keep their computed values
            _initialise(module, unmatched.missing, device)
            module.to(device)
    return module.eval()


def _of_linear(module: Any, name: str, tensor: StoredTensor) -> StoredTensor:
    """Replaces gpt2's Conv1D, whose weight is [in, out], by a Linear layer, which can be packed.

    Returns the layer's weight as the file has it, [out, in], or the tensor itself.
    """
    if tensor.transposed is None or not tensor.transposed.packed or len(tensor.shape) != 2:
        return tensor
    from glft_schema.nn.layers import replace_conv1d

    replace_conv1d(module, name.removesuffix(".weight"))
    return tensor.transposed


def _dtype_of(tensors: dict[str, StoredTensor]) -> torch.dtype:
    """Returns the dtype of all matrices if it is float16 or bfloat16, otherwise float32."""
    dtypes = {tensor.dtype for tensor in tensors.values() if len(tensor.shape) > 1}
    name = name_of(dtypes.pop()) if len(dtypes) == 1 else ""
    return {"float16": torch.float16, "bfloat16": torch.bfloat16}.get(name, torch.float32)


def _without_values(kind: Any, config: Any, dtype: torch.dtype) -> Any:
    """Returns a model with its parameters on the meta device, and its buffers computed."""
    accelerate = library("accelerate")
    from transformers.initialization import no_init_weights

    with no_init_weights(), accelerate.init_empty_weights(include_buffers=False):
        module = kind._from_config(config, dtype=dtype)
    module.tie_weights()
    return module


def _initialise(module: Any, names: list[str], device: str | torch.device) -> None:
    """Gives random values to tensors that GGUF does not have, as transformers does."""
    owners = {name.rpartition(".")[0] for name in names}
    for owner in map(module.get_submodule, owners):
        owner.to_empty(device=device, recurse=False)
        module._init_weights(owner)
