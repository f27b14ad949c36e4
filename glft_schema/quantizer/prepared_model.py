"""A model that is ready to be quantized: its tensors with their importance, and its metadata."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from glft_schema.codec.metadata import TypedMetadata
from glft_schema.codec.typed_values import Typed
from glft_schema.errors import OptionError
from glft_schema.families.converter import Converter
from glft_schema.families.folders import QUANTIZATION_VERSION, VERSION
from glft_schema.formats.file_types import FILE_TYPE, MOSTLY
from glft_schema.formats.registry import WITH_TYPES
from glft_schema.quantizer.choosing import loading_order
from glft_schema.quantizer.recipe_rules import Recipe
from glft_schema.quantizer.used_importance import UsedImportance
from glft_schema.storage.source import StrPath
from glft_schema.tensors.stored_tensor import StoredTensor
from glft_schema.weights.checkpoints import Checkpoint
from glft_schema.weights.convert import as_typed
from glft_schema.weights.importance import ImportanceMatrix

GUESSED = 1024  # a bit that llama.cpp sets in a file type that it guesses
IN_FLOAT32 = Converter(outtype="f32")


class PreparedModel(NamedTuple):
    """A model to quantize.

    Attributes:
        checkpoint: the model.
        tensors: without leading dims of one, with their importance.
        used: the importance.
    """

    checkpoint: Checkpoint
    tensors: dict[str, StoredTensor]
    used: UsedImportance

    @property
    def has_importance(self) -> bool:
        """Whether there is an importance matrix."""
        return bool(self.used.columns)

    @property
    def keeps_floats(self) -> bool:
        """Whether float tensors that a recipe leaves alone keep their type."""
        return self.checkpoint.file is not None and self.checkpoint.file.format is WITH_TYPES

    def new_entries(
        self, recipe: Recipe, override: Mapping[str, Any] | None = None, *, imatrix_keys: bool = True
    ) -> dict[str, Any]:
        """Returns the metadata entries to add to the new file."""
        code = self._file_type() if recipe.only_copy else recipe.code
        added: dict[str, Any] = {QUANTIZATION_VERSION: Typed(VERSION, "uint32"), FILE_TYPE: Typed(code, "uint32")}
        for key, value in [*(override or {}).items(), *(self.used.keys.items() if imatrix_keys else ())]:
            added.pop(key, None)  # llama.cpp moves a key that it sets to the end
            added[key] = Typed(value, "uint32") if type(value) is int else value
        return added

    def _file_type(self) -> int:
        """Returns the source's file type, or llama.cpp's guess: the type that most tensors have."""
        stated, counts, most = self.checkpoint.metadata.get(FILE_TYPE), Counter[str](), "f32"
        for name in sorted(self.tensors, key=loading_order):
            own = self.tensors[name].file_tensor
            counts[scheme := own.type.scheme if own else "f32"] += 1
            most = scheme if counts[scheme] > counts[most] else most
        return stated if isinstance(stated, int) else GUESSED | MOSTLY.get(most, 0)

    def entries(self, added: Mapping[str, Any]) -> TypedMetadata:
        """Returns the source's metadata with `added` at its end."""
        entries = as_typed(self.checkpoint.own_metadata, {}, WITH_TYPES.metadata)
        return entries.without(*(key for key in added if key in entries)) | added


def prepare(
    checkpoint: Checkpoint,
    importance: StrPath | ImportanceMatrix | Mapping[str, Any] | None = None,
    include: str | Iterable[str] = (),
    exclude: str | Iterable[str] = (),
) -> PreparedModel:
    """Prepares a model for `quantize`; the other arguments are those of `quantize`.

    Raises OptionError for an adapter, or an importance matrix of another model.
    """
    if checkpoint.metadata.get("general.type") == "adapter":
        raise OptionError("expected a model, found a LoRA adapter, which glft convert writes")
    used = UsedImportance.of(importance, include, exclude)
    tensors = {name: _without_leading_ones(tensor) for name, tensor in checkpoint.tensors.items()}
    return PreparedModel(checkpoint, used.apply(tensors), used)


def _without_leading_ones(tensor: StoredTensor) -> StoredTensor:
    """Returns a tensor without leading dims of one, which llama.cpp drops."""
    ones = next((i for i, size in enumerate(tensor.shape[:-1]) if size != 1), max(len(tensor.shape) - 1, 0))
    if not ones:
        return tensor
    shape, load, own = tensor.shape[ones:], tensor.load, tensor.file_tensor
    read = None if own is None else lambda index: own[(0,) * ones + index]
    return replace(tensor, shape=shape, load=lambda: load().reshape(shape), read=read)
