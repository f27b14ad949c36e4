"""Saves transformers models as GGUF files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from glft_schema.errors import OptionError, alternatives, quote
from glft_schema.families.donors import Donor
from glft_schema.files.container import open
from glft_schema.formats.gguf_names import ARCHITECTURE
from glft_schema.formats.registry import WITH_TYPES, format_with
from glft_schema.models.from_gguf import family_of
from glft_schema.nn.saving import stored_tensors
from glft_schema.storage.source import StrPath, path_text
from glft_schema.tensors.stored_tensor import StoredTensor
from glft_schema.weights.checkpoints import by_example
from glft_schema.weights.convert import convert
from glft_schema.weights.payloads import WrittenTensor
from glft_schema.words import suggestion


def save(
    model: Any,
    path: StrPath,
    *,
    like: StrPath,
    importance: Mapping[str, Any] | None = None,
    allow_requantize: bool = False,
) -> list[WrittenTensor]:
    """Writes a transformers model as a GGUF file, with the file that it was loaded from as the
    example.

    Packed weights are stored unchanged, so unmodified layers have the same bytes as in the example.
    Other weights get the example's types.

    Args:
        model: of a declared family, packed or not.
        path: the file to write; replaced only on success.
        like: a GGUF model of the same family and shapes, for metadata, vocabulary, names and types.
        importance: weight of the errors in each column, by GGUF tensor name; see `read_importance`.
        allow_requantize: also store packed weights in another type of the example.

    Returns:
        The result for each tensor, in file order.

    Raises:
        OptionError: if `path` does not end in ``.gguf``, the model is of no declared family, or
            `like` is not a model of its family.
        TensorError: if one side lacks a tensor of the other, or has another shape.
        SchemeError: if a packed weight has another type than in `like`, unless `allow_requantize`.
        FormatError, OSError: as `convert`.
    """
    if format_with(path) is not WITH_TYPES:
        endings, found = WITH_TYPES.endings, Path(path_text(path))
        hint = suggestion(found.suffix, endings)
        raise OptionError(f"expected a file that ends in {alternatives(endings)}, found {str(found)!r}{hint}")
    family = family_of(model)
    if family is None:
        raise OptionError(f"expected a model of a declared family, found {type(model).__name__}")
    with open(like) as file:
        tensors = stored_tensors(model)
        own = {name: replace(tensor, transposed=_transpose(model, name, tensor)) for name, tensor in tensors.items()}
        if (donor := Donor.of(file)).family is not family:
            arch = quote(file.metadata.get(ARCHITECTURE))
            raise OptionError(f"expected a GGUF model of the {family.arch} family as the example, found {arch}")
        return convert(
            by_example(own, donor),
            path,
            format=WITH_TYPES.name,
            measure=False,
            importance=importance,
            allow_requantize=allow_requantize,
        )


def _transpose(model: Any, name: str, tensor: StoredTensor) -> StoredTensor | None:
    """Returns a packed weight [out, in] in place of one that is [in, out] in the model."""
    if not tensor.packed:
        return None
    owner = model.get_submodule(name.removesuffix(".weight"))
    return tensor if isinstance(owner, torch.nn.Linear) or getattr(owner, "transposed", False) else None
