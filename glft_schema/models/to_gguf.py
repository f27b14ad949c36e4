"""Saves transformers models as GGUF files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from glft_schema.errors import OptionError, TensorError, alternatives
from glft_schema.families.donors import OUTPUT, Donor
from glft_schema.families.export import gguf_config
from glft_schema.families.folders import EMBEDDING, gguf_tensors
from glft_schema.families.operations import apply
from glft_schema.families.page import Family
from glft_schema.families.pages import FAMILIES
from glft_schema.files.container import open
from glft_schema.files.file import File
from glft_schema.formats.registry import WITH_TYPES, format_with
from glft_schema.models.from_gguf import family_of
from glft_schema.nn.load_into import are_equal, have_equal
from glft_schema.nn.saving import stored_tensors
from glft_schema.storage.dtypes import Array
from glft_schema.storage.source import StrPath, path_text
from glft_schema.tensors.stored_tensor import Slices, StoredTensor
from glft_schema.weights.checkpoints import Checkpoint
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
        checkpoint = by_example(own, file, family)
        return convert(
            checkpoint,
            path,
            format=WITH_TYPES.name,
            measure=False,
            importance=importance,
            allow_requantize=allow_requantize,
        )


def by_example(tensors: Mapping[str, StoredTensor], file: File, family: Family | None = None) -> Checkpoint:
    """Returns the tensors of a transformers model with the names, types and metadata of a GGUF
    model.

    Args:
        tensors: by their names in transformers.
        file: the GGUF model, which stays open.
        family: of the model; by default that of the file.

    Raises:
        OptionError: if the file is not a model of the family, or of any declared family.
        TensorError: if one side lacks a tensor of the other, or has another shape.
    """
    donor = Donor.of(file)
    family = family or next((known for known in FAMILIES if known.arch == donor.arch), None)
    if family is None or donor.arch != family.arch:
        expected = f"the {family.arch} family" if family else "a declared family"
        raise OptionError(f"expected a GGUF model of {expected} as the example, found {donor.arch}")
    _, config = gguf_config(file)
    mapped = gguf_tensors(tensors, replace(family, generated=lambda config: {}), config)  # of the example, instead
    if OUTPUT in mapped and OUTPUT not in file.tensors:
        mapped[EMBEDDING] = _tied_embedding(mapped[EMBEDDING], mapped.pop(OUTPUT))
    stored = dict[str, StoredTensor]()
    for name, tensor in donor.complete(mapped).items():
        own = file.tensors[name]
        if tensor.shape == (1, *own.shape):  # llama-quantize drops leading dims of one
            (tensor,) = apply(lambda values: [values[0][0]], [tensor], name)
        stored[name] = tensor
    return Checkpoint(stored, donor.metadata, None, family.arch, file)


def _tied_embedding(embedding: StoredTensor, output: StoredTensor) -> StoredTensor:
    """Returns the token embedding of a model whose output must have the same values.

    Raises TensorError if they differ: at once if one is packed, otherwise when values are read,
    because other ranks may hold them.
    """

    def check(is_equal: bool) -> None:
        if not is_equal:
            raise TensorError("expected the values of the token embedding, to which it is tied in the example", OUTPUT)

    def read(index: Slices) -> Array:
        values, others = embedding.part(index), output.part(index)
        check(have_equal(values, others))
        return values

    check(embedding.shape == output.shape)
    if embedding.packed or output.packed:
        check(are_equal(embedding, output))
        return embedding
    whole = tuple(slice(0, size) for size in embedding.shape)
    return replace(embedding, load=lambda: read(whole), read=read)


def _transpose(model: Any, name: str, tensor: StoredTensor) -> StoredTensor | None:
    """Returns a packed weight [out, in] in place of one that is [in, out] in the model."""
    if not tensor.packed:
        return None
    owner = model.get_submodule(name.removesuffix(".weight"))
    return tensor if isinstance(owner, torch.nn.Linear) or getattr(owner, "transposed", False) else None
