"""Merges LoRA adapters into quantized models."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from glft_schema.adapters.reading import read_updates
from glft_schema.display import Progress, Results, with_display
from glft_schema.errors import OptionError, TiedWarning, quote, warn
from glft_schema.files.container import open
from glft_schema.formats.gguf_names import EMBEDDING, OUTPUT
from glft_schema.formats.registry import WITH_TYPES, refuse_ending
from glft_schema.storage.dtypes import FLOAT32, Array
from glft_schema.storage.locations import shown
from glft_schema.storage.source import StrPath
from glft_schema.tensor_types import TensorType
from glft_schema.tensor_types.chunks import row_chunks
from glft_schema.tensor_types.conversions import float32_of
from glft_schema.tensor_types.differences import NumberErrors
from glft_schema.tensors.stored_tensor import Slices, StoredTensor
from glft_schema.tensors.tensor import Tensor
from glft_schema.weights.checkpoints import open_entries
from glft_schema.weights.convert import plan_conversion
from glft_schema.weights.importance import read_importance, with_importance
from glft_schema.weights.in_memory import in_memory
from glft_schema.weights.peft_adapters import Update
from glft_schema.weights.save import Writing
from glft_schema.weights.schemes import TypeChoice


@with_display
@dataclass(frozen=True)
class MergedTensor:
    """The result of merging an adapter into a tensor.

    Attributes:
        name: of the tensor.
        type: its type, before and after.
        update: the root mean square of the update, relative to the original weights.
        errors: of the stored weights against the merged ones in float32.
    """

    name: str
    type: TensorType
    update: float
    errors: NumberErrors


def merge_lora(
    model: StrPath,
    adapter: StrPath,
    out: StrPath,
    *,
    scale: float = 1.0,
    importance: StrPath | Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> list[MergedTensor]:
    """Writes a GGUF model with a LoRA adapter merged into its weights.

    Only tensors that the adapter changes are decoded. They are merged in float32, a few rows at a
    time, and encoded in their own type. All other tensors are copied bit for bit.

    Args:
        model: a GGUF file, or a file of a set.
        adapter: a peft folder, or a llama.cpp adapter in a GGUF file.
        out: the file to write; replaced only on success.
        scale: a factor of the update.
        importance: an importance matrix for encoding, or its file; see `read_importance`.
        progress: called after each tensor with its name and the share written, from 0 to 1.

    Returns:
        The changed tensors, in file order.

    Raises:
        OptionError: if the model is not GGUF, `adapter` is not an adapter, `out` has another
            format's ending, or a library is missing.
        FormatError: if the adapter is not plain LoRA, is not finite, or fits another model.
        TensorError: if the merged weights are not finite.
        OSError: if a file cannot be read or written.

    Warns:
        TiedWarning: if the token embedding changes, and is also the output matrix.
    """
    refuse_ending(out, WITH_TYPES, "merging writes")
    checkpoint = open_entries(model)
    if checkpoint.file is None or checkpoint.file.format is not WITH_TYPES:
        found = f"found {quote(shown(model))}: convert it first (glft convert)"
        raise OptionError(f"expected a {WITH_TYPES.name} file as the model, {found}")
    importance = read_importance(importance) if isinstance(importance, (str, os.PathLike)) else importance or {}
    file, stored = checkpoint.file, in_memory(checkpoint.tensors)
    updates = {name: update._replace(scale=scale * update.scale) for name, update in read_updates(adapter, file).items()}
    if EMBEDDING in updates and OUTPUT not in stored:
        warn(f"{EMBEDDING} is also the output matrix, which changes, too", TiedWarning)
    merged = {name: _merge(file.tensors[name], updates[name]) if name in updates else stored[name] for name in stored}
    choices = {name: TypeChoice(file.tensors[name].type) for name in merged}
    used = {name: values for name, values in importance.items() if name in updates}
    source = checkpoint._replace(tensors=with_importance(merged, used))
    plan_conversion(source, WITH_TYPES, Writing(progress=progress), choices=choices).write(out)
    with open(out) as written:
        changed = [name for name in stored if name in updates]
        return Results((_compare(file.tensors[name], written.tensors[name], updates[name]) for name in changed), "tensor")


def _merge(tensor: Tensor, update: Update) -> StoredTensor:
    """Returns a tensor with its update, in float32, a few rows at a time."""

    def read(index: Slices) -> Array:
        columns = (slice(None), *index[1:])
        return _sum(tensor, update, index[0])[columns]

    return StoredTensor(tensor.shape, FLOAT32, lambda: _sum(tensor, update, slice(0, tensor.shape[0])), read=read)


def _sum(tensor: Tensor, update: Update, rows: slice) -> Array:
    return _add(float32_of(tensor.array(rows)), update, rows)


def _add(weights: Array, update: Update, rows: slice) -> Array:
    with np.errstate(all="ignore"):
        return weights + update.rows(rows)  # not in place: they may be a view of the file


def _compare(tensor: Tensor, stored: Tensor, update: Update) -> MergedTensor:
    """Returns the size of an update, and the errors of the stored weights."""
    errors, change, matrix = NumberErrors(), NumberErrors(), (-1, tensor.shape[-1])
    for rows in row_chunks(tensor.shape[0], math.prod(tensor.shape[1:])):
        before = float32_of(tensor.array(rows))
        merged = _add(before, update, rows)
        errors.add(stored.array(rows).reshape(matrix), merged.reshape(matrix))
        change.add(merged.reshape(matrix), before.reshape(matrix))
    return MergedTensor(tensor.name, stored.type, change.relative, errors)
