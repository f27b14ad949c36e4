"""Checkpoints as GGUF models by the example of another GGUF model, the donor.

The file gets the donor's metadata with the vocabulary, and tensors get its names, shapes and types.
A checkpoint with the names of transformers is mapped by the table of the donor's family.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from glft_schema.codec.metadata import TypedMetadata
from glft_schema.display import shortest
from glft_schema.errors import FormatError, MetadataWarning, OptionError, TensorError, quote, safe, warn
from glft_schema.families.config import Config, metadata_of, refusing
from glft_schema.families.config_places import read_config
from glft_schema.families.export import fitting_family, gguf_config
from glft_schema.families.folders import declared_family, gguf_tensors
from glft_schema.families.operations import apply
from glft_schema.families.page import Family
from glft_schema.families.rope_factors import LLAMA3_TENSOR, LONG, SHORT
from glft_schema.files.file import File
from glft_schema.files.shards import check_whole
from glft_schema.formats.gguf_names import ARCHITECTURE, EMBEDDING, OUTPUT, SCALES, scale_of
from glft_schema.formats.registry import WITH_TYPES
from glft_schema.storage.dtypes import Array
from glft_schema.tensor_types.ggml.fp4 import NVFP4
from glft_schema.tensors.stored_tensor import Slices, StoredTensor, are_equal, have_equal, of_file

COMPUTED = (LLAMA3_TENSOR, LONG, SHORT)  # that a checkpoint does not have
OF_ITS_MATRIX = "quantize.imatrix."  # prefix of keys


@dataclass(frozen=True)
class Donor:
    """A GGUF model as an example.

    Attributes:
        file: the open file.
        family: its declaration, or None.
    """

    file: File
    family: Family | None

    @classmethod
    def of(cls, file: File) -> Donor:
        """Returns an open file as a donor.

        Raises:
            FormatError: if it is a part of a set.
            OptionError: if it is not a GGUF file.
        """
        check_whole(file, file.name)
        if file.format is not WITH_TYPES:
            raise OptionError(f"expected a GGUF model as the donor, found {quote(file.format.name)}")
        return cls(file, fitting_family(file.metadata))

    @property
    def metadata(self) -> TypedMetadata:
        """The file's metadata, without keys about shards or the importance matrix."""
        metadata: TypedMetadata = self.file.metadata
        keys = WITH_TYPES.shard_keys or ()
        return metadata.without(*(key for key in metadata if key in keys or key.startswith(OF_ITS_MATRIX)))

    @property
    def _name(self) -> str:
        return safe(Path(self.file.name).name)

    def tensors_of(self, tensors: Mapping[str, StoredTensor], folder: Path | None = None) -> dict[str, StoredTensor]:
        """Returns the tensors of a checkpoint by the donor's names, in its order.

        Args:
            tensors: by the donor's names, or by those of transformers.
            folder: the checkpoint's path, if it is a folder with a config.json.

        Raises:
            OptionError: if tensors must be mapped, and the donor is of no declared family.
            TensorError: if one side lacks a tensor of the other, or a shape differs. When values
                are read: if an output matrix differs from the embedding that it is tied to.
            FormatError: if a config.json or the donor's metadata is invalid.
            OSError: if a file cannot be read.

        Warns:
            MetadataWarning: if a config.json contradicts the donor's metadata.
        """
        own, family = self.file.tensors, self.family
        mapped, hint = dict(tensors), "; glft convert --exclude leaves it out"
        if not self.has_names_of(tensors):
            if family is None:
                found = quote(self.file.metadata.get(ARCHITECTURE))
                problem = f"expected a GGUF model of a declared architecture as the donor, found {found}"
                raise OptionError(f"{problem}: use --converter instead of --like")
            of_donor = replace(family, generated=lambda config: {})  # tensors that the family computes are the donor's
            mapped, hint = gguf_tensors(tensors, of_donor, self._config()), ""
            if folder and declared_family(folder) is family:
                with refusing(folder, "a valid config.json"):
                    self._warn_of_others(metadata_of(read_config(folder, family), family.keys, family.arch))
        if OUTPUT in mapped and OUTPUT not in own and EMBEDDING in mapped:
            mapped[EMBEDDING] = _tied_embedding(mapped[EMBEDDING], mapped.pop(OUTPUT))
        beside = {scale_of(name, end) for name, tensor in own.items() if tensor.type == NVFP4 for end in SCALES}
        for name in mapped:
            if name not in own:
                raise TensorError(f"{self._name} has no such tensor{hint}", name)
        return {name: self._tensor(name, mapped) for name in own if name in mapped or name not in beside}

    def has_names_of(self, tensors: Mapping[str, StoredTensor]) -> bool:
        """Returns whether tensors have names of the donor, so that they need no mapping."""
        return not self.file.tensors.keys().isdisjoint(tensors)

    def _config(self) -> Config:
        """Returns the config of the donor. Raises FormatError if its metadata is invalid."""
        try:
            return gguf_config(self.file)[1]
        except FormatError as error:
            error.file = self.file.name
            raise

    def _warn_of_others(self, values: Mapping[str, Any]) -> None:
        """Warns about values of a config that differ from the donor's."""
        for key, value in values.items():
            found, own = (shortest(v) if isinstance(v, float) else v for v in (value, self.metadata.get(key, value)))
            if found != own and not key.startswith("general."):
                problem = f"{key} is {quote(found)} by config.json, and {quote(own)} in {self._name}, which is used"
                warn(problem, MetadataWarning)

    def _tensor(self, name: str, mapped: Mapping[str, StoredTensor]) -> StoredTensor:
        """Returns the tensor with a name of the donor. Raises TensorError if there is none, or if
        its shape differs."""
        own = self.file.tensors[name]
        if name not in mapped and name in COMPUTED:
            return of_file(own)
        tensor = mapped.get(EMBEDDING if name == OUTPUT and OUTPUT not in mapped else name)  # tied
        if tensor is None:
            raise TensorError(f"expected values for all tensors of {self._name}, found none for this one", name)
        if tensor.shape == (1, *own.shape):  # llama-quantize drops leading dims of one
            (tensor,) = apply(lambda values: [values[0][0]], [tensor], name)
        if tensor.shape != own.shape:
            shape, found = list(own.shape), list(tensor.shape)
            raise TensorError(f"expected the shape {shape}, as in {self._name}, found {found}", name)
        return tensor


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
