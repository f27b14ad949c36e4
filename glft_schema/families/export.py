"""GGUF models as Hugging Face folders: the inverse of `folders`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from glft_schema.errors import FormatError, TensorError, quote
from glft_schema.families.config import Config, config_of, refusing
from glft_schema.families.loader import MODEL, ModelSizes, broken_limits, broken_tensors, read_keys
from glft_schema.families.operations import TensorOperation
from glft_schema.families.page import Family
from glft_schema.families.pages.every_model import DEFAULT_IDS
from glft_schema.families.registry import archs, families_of, family_with
from glft_schema.families.tensor_names import NameParts, Names, is_float32
from glft_schema.families.vocabulary import KINDS
from glft_schema.files.file import File
from glft_schema.formats.gguf_names import ARCHITECTURE, EMBEDDING, OUTPUT, SCALES, TOKENIZER, scale_of
from glft_schema.storage.dtypes import FLOAT32, Dtype
from glft_schema.tensor_types.conversions import convert
from glft_schema.tensors.stored_tensor import StoredTensor, of_values
from glft_schema.words import suggestion

ROWS_OF = {
    "vocab_size": EMBEDDING,
    "type_vocab_size": "token_types.weight",
}  # config field -> tensor with as many rows
IDS = {"bos_token_id": "bos_token_id", "eos_token_id": "eos_token_id", "pad_token_id": "padding_token_id"}


def hf_model(tensors: Mapping[str, StoredTensor], file: File, fused: bool = False) -> tuple[dict[str, StoredTensor], Config]:
    """Returns the tensors of a GGUF model by their names in Hugging Face, and the config.

    Tensors that GGUF holds in float32 get the dtype of the model's matrices if that loses nothing.
    Scales of the inputs of NVFP4 are left out.

    Args:
        tensors: of the model.
        file: the GGUF file.
        fused: name the parameters of transformers' modules instead of a folder's tensors; see `T`.

    Raises:
        FormatError: as `gguf_config`.
        TensorError: if the family has no such tensor, or a shape does not fit the metadata.
    """
    with refusing(file.name, "valid metadata"):
        return _hf_model(tensors, file, fused)


def _hf_model(tensors: Mapping[str, StoredTensor], file: File, fused: bool) -> tuple[dict[str, StoredTensor], Config]:
    family, config = gguf_config(file)
    of_inputs = {scale_of(name, SCALES[1]) for name in tensors}
    left = {name: tensor for name, tensor in tensors.items() if name not in of_inputs}
    ids = DEFAULT_IDS.get(file.metadata.get(MODEL), {})
    config |= {field: file.metadata.get(TOKENIZER + key, ids.get(key)) for field, key in IDS.items()}
    config |= family.restored(left, config)
    exported: dict[str, StoredTensor] = {}
    places = Names(family, config, len(left)).places(left, fused)
    sources: dict[NameParts, list[str]] = {}
    for name, place in places.items():
        sources.setdefault(place, []).append(name)
    dtype = next((t.dtype for name, t in left.items() if not (is_float32(name, t.shape) or t.quantized)), FLOAT32)
    for name, tensor in left.items():
        if name not in places:
            raise TensorError(f"the {family.arch} family has no such tensor: exclude it", name)
        place = places[name]
        operation, parts = place.row.operation, sources.pop(place, [])
        if not parts:
            continue  # exported with an earlier tensor
        if missing := next((part for part in parts if part not in left), None):
            raise TensorError(f"expected {missing} with this tensor, found none", name)
        results = operation.map_to_hf([left[part] for part in parts], config, name)
        if is_float32(name, tensor.shape):
            results = [_narrow(result, [left[part] for part in parts], operation, config, dtype) for result in results]
        if operation.type:
            config["quantization_config"] = {"quant_method": operation.type.scheme}
        exported.update(zip(place.in_hf(config), results, strict=True))
    config |= {field: tensors[name].shape[0] for field, name in ROWS_OF.items() if name in tensors}
    fixed = {
        "architectures": [family.architectures[0]],
        "model_type": family.model_type,
        "tie_word_embeddings": OUTPUT not in left,
    }
    return exported, {**fixed, **config, **family.config_without_keys(config, tensors)}


def gguf_config(file: File) -> tuple[Family, Config]:
    """Returns the family of a GGUF model, and the config that llama.cpp computes with.

    Raises:
        FormatError: if no family has the architecture, llama.cpp refuses a key or the dims of a
            tensor, or config.json cannot state a value. A missing vocabulary is not an error.
    """
    family = family_in_gguf(file.metadata)
    with refusing(file.name, "valid metadata"):
        numbers = ModelSizes(file, family_with(family.arch) or family)
        for finding in (*read_keys(numbers), *broken_limits(numbers), *broken_tensors(numbers)):
            is_absent = finding.name.startswith(TOKENIZER) and finding.path == "metadata"
            if not is_absent and not finding.rule.endswith(("-tensors", "-names", "-blocks")):
                raise FormatError(finding.problem, finding.path)
        return family, config_of(file.metadata, family.keys, family.arch)


def family_in_gguf(metadata: Mapping[str, Any]) -> Family:
    """Returns the family of a model. Raises FormatError if none has its architecture."""
    if family := fitting_family(metadata):
        return family
    arch = metadata.get(ARCHITECTURE)
    family = family_with(arch)
    reason = f" {family.misfit(metadata)}" if family else suggestion(arch, archs())
    raise FormatError(f"expected a declared architecture, found {quote(arch)}{reason}", "metadata -> general.architecture")


def fitting_family(metadata: Mapping[str, Any]) -> Family | None:
    """Returns the family of a model, or None. Of several, its vocabulary chooses."""

    def rank(family: Family) -> int:
        models = [KINDS[kind].model for kind in family.vocabularies]
        return models.index(model) if model in models else len(KINDS)

    model = metadata.get(MODEL)
    found = families_of(metadata.get(ARCHITECTURE))
    return min((family for family in found if not family.misfit(metadata)), key=rank, default=None)


def _narrow(
    result: StoredTensor, tensors: list[StoredTensor], operation: TensorOperation, config: Config, dtype: Dtype
) -> StoredTensor:
    """Returns the result in a narrower dtype if `tensors` can be restored bit for bit."""
    if result.dtype == dtype:
        return result
    narrow = convert(result.values(), dtype)
    again = zip(operation.to_gguf([narrow], config), tensors, strict=True)
    return (
        of_values(narrow)
        if all(np.array_equal(convert(restored, tensor.dtype), tensor.values()) for restored, tensor in again)
        else result
    )
