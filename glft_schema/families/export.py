"""GGUF models as Hugging Face folders: the inverse of `folders`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from glft_schema.errors import FormatError, TensorError, shown
from glft_schema.families.config import Config, config_of
from glft_schema.families.names import Names, Place, is_float32
from glft_schema.families.operations import KEEP, LazyTensor, Operation, Transpose, applied, of_values
from glft_schema.families.page import Family
from glft_schema.families.pages import BY_ARCH, FAMILIES
from glft_schema.lazy import torch

ROWS_OF = {
    "vocab_size": "token_embd.weight",
    "type_vocab_size": "token_types.weight",
}  # config field -> tensor with as many rows
IDS = {"bos_token_id": "bos_token_id", "eos_token_id": "eos_token_id", "pad_token_id": "padding_token_id"}
OUTPUT = "output.weight"


def hf_model(
    tensors: Mapping[str, LazyTensor], metadata: Mapping[str, Any], fused: bool = False
) -> tuple[dict[str, LazyTensor], Config]:
    """Returns the tensors of a GGUF model by their names in Hugging Face, and the config.

    Tensors that GGUF holds in float32 get the dtype of the model's matrices if that is exact.

    Args:
        tensors: of the model.
        metadata: its metadata.
        fused: name the parameters of transformers' modules instead of a folder's tensors; see
            `Row`.

    Raises:
        FormatError: if no family has the architecture, or a key is missing.
        TensorError: if the family has no such tensor, or a shape does not fit the metadata.
    """
    family = family_in_gguf(metadata)
    config = config_of(metadata, family.keys, family.arch)
    left = dict(tensors)
    config |= family.restored(left, config)
    found: dict[str, LazyTensor] = {}
    places = Names(family, config, len(left)).in_hf(fused)
    sources: dict[Place, list[str]] = {}
    for name, place in places.items():
        sources.setdefault(place, []).append(name)
    dtype = next((t.dtype for name, t in left.items() if not is_float32(name, t.shape)), torch.float32)
    for name, tensor in left.items():
        if name not in places:
            raise TensorError(f"the {family.arch} family has no such tensor: exclude it", name)
        place = places[name]
        operation, parts = place.row.operation, sources.pop(place, [])
        if not parts:
            continue  # it was another tensor's
        if missing := next((part for part in parts if part not in left), None):
            raise TensorError(f"expected {missing} with this tensor, found none", name)
        results = [tensor] if operation is KEEP else _inverse(operation, [left[part] for part in parts], config, name)
        names = place.names(len(results))
        if is_float32(name, tensor.shape):
            results = [_narrowed(result, tensor, operation, config, dtype) for result in results]
        found.update(zip(names, results, strict=True))
    config |= {field: tensors[name].shape[0] for field, name in ROWS_OF.items() if name in tensors}
    config |= {field: metadata[f"tokenizer.ggml.{key}"] for field, key in IDS.items() if f"tokenizer.ggml.{key}" in metadata}
    fixed = {
        "architectures": [family.architectures[0]],
        "model_type": family.model_type,
        "tie_word_embeddings": OUTPUT not in left,
    }
    return found, {**fixed, **config, **family.stated(config, tensors)}


def family_in_gguf(metadata: Mapping[str, Any]) -> Family:
    """Returns the family of a model. Raises FormatError if none has its architecture."""
    for family in FAMILIES:
        if family.fits(metadata):
            return family
    arch = metadata.get("general.architecture")
    problem = f"expected a known architecture ({', '.join(BY_ARCH)}), found {shown(arch)}"
    raise FormatError(f"{problem}{' with experts' if arch in BY_ARCH else ''}", "metadata -> general.architecture")


def _inverse(operation: Operation, tensors: list[LazyTensor], config: Config, name: str) -> list[LazyTensor]:
    results = applied(lambda values: operation.to_hf(values, config), tensors, name, operation.scope)
    if isinstance(operation, Transpose) and len(tensors[0].shape) == 2:
        return [replace(results[0], transposed=tensors[0])]
    return results


def _narrowed(result: LazyTensor, tensor: LazyTensor, operation: Operation, config: Config, dtype: torch.dtype) -> LazyTensor:
    """Returns values in a narrower dtype if `tensor` can be made of them again, bit for bit."""
    if result.dtype == dtype:
        return result
    narrow = result.load().to(dtype)
    (again,) = operation.to_gguf([narrow], config)
    return of_values(narrow) if torch.equal(again.to(tensor.dtype), tensor.load()) else result
