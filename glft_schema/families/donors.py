"""Checkpoints as GGUF models by the example of another GGUF file, the donor.

Tensors get the donor's names, shapes and types, and the file gets its metadata with the vocabulary.
A Hugging Face folder of the donor's family is mapped by the family's table. For other checkpoints,
names come from `gguf.TensorNameMap`. Of the operations that give the donor's shape, the one whose
result is closest to the donor's values is used. So the donor must be the model that was fine-tuned,
or have similar weights.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from glft_schema.codec.metadata import TypedMetadata
from glft_schema.display import shortest
from glft_schema.errors import MetadataWarning, OptionError, TensorError, quote, safe, warn
from glft_schema.families.config import Config, metadata_of, refusing
from glft_schema.families.config_places import read_config
from glft_schema.families.folders import EMBEDDING, declared_family, gguf_tensors
from glft_schema.families.libraries import library
from glft_schema.families.operations import (
    KEEP,
    Function,
    PermuteRows,
    PlusOne,
    Scope,
    Stack,
    Transpose,
    in_one_dtype,
    planned_results,
    quantized_type,
)
from glft_schema.families.page import BLOCK_COUNT, Family
from glft_schema.families.pages import FAMILIES
from glft_schema.families.rope_factors import LLAMA3_TENSOR, LONG, SHORT
from glft_schema.families.tensor_names import SUFFIXES, is_float32, name_map
from glft_schema.files.file import File
from glft_schema.files.shards import check_whole
from glft_schema.formats.registry import WITH_TYPES
from glft_schema.storage.dtypes import FLOAT32, Array
from glft_schema.tensor_types.engine.conversions import convert, float32_of
from glft_schema.tensor_types.engine.differences import errors_of
from glft_schema.tensors.stored_tensor import StoredTensor, of_file
from glft_schema.tensors.tensor import Tensor

DROPPED = {pattern for family in FAMILIES for pattern in family.dropped}  # tensors that GGUF does not have
PREFIXES = {family.arch: family.prefix for family in FAMILIES}  # of tensors' names in some checkpoints
COMPUTED = (LLAMA3_TENSOR, LONG, SHORT)  # that a checkpoint does not have
EXPERT = re.compile(r"(?<=\.experts)\.([0-9]{1,9})(?=\.)")
OUTPUT = "output.weight"
HEAD_COUNT = "attention.head_count"
HEADS = {"attn_q": HEAD_COUNT, "attn_k": "attention.head_count_kv"}
OF_ITS_MATRIX = "quantize.imatrix."  # prefix of keys
SIMILAR = 0.7  # largest relative error of a matrix; IQ1_S has about 0.5, unrelated weights 1.4
SAMPLE = 1 << 18  # approximate count of compared numbers
CLEARER = 0.5  # largest error of the closest operation, relative to the next one's


@dataclass(frozen=True)
class Donor:
    """A GGUF model as an example.

    Attributes:
        file: the open file.
        arch: its architecture.
    """

    file: File
    arch: str

    @classmethod
    def of(cls, file: File) -> Donor:
        """Returns an open file as a donor.

        Raises:
            FormatError: if it is a part of a set.
            OptionError: if it is not a GGUF model of an architecture that `gguf` knows.
        """
        check_whole(file, file.name)
        arch: Any = file.metadata.get("general.architecture") if file.format is WITH_TYPES else None
        if arch not in library("gguf").MODEL_ARCH_NAMES.values():
            raise OptionError(f"expected a GGUF model as the donor, found {quote(arch or file.format.name)}")
        return cls(file, arch)

    @property
    def metadata(self) -> TypedMetadata:
        """The file's metadata, without keys about shards or the importance matrix."""
        metadata: TypedMetadata = self.file.metadata
        keys = WITH_TYPES.shard_keys or ()
        return metadata.without(*(key for key in metadata if key in keys or key.startswith(OF_ITS_MATRIX)))

    def tensors_of(
        self, tensors: Mapping[str, StoredTensor], folder: Path | None
    ) -> tuple[dict[str, StoredTensor], Family | None]:
        """Returns the tensors of a checkpoint by the donor's names, in its order.

        Args:
            tensors: by the checkpoint's names.
            folder: the checkpoint's path, if it is a folder with a config.json.

        Returns:
            The tensors, and the family whose table they were mapped by.

        Raises:
            TensorError: if one side lacks a tensor of the other, or a shape differs. When values
                are loaded: if they are not similar to the donor's, or two operations fit about as
                well.
            FormatError: if a config.json or the donor's block count is invalid.
            OSError: if a file cannot be read.

        Warns:
            MetadataWarning: if a config.json contradicts the donor's metadata.
        """
        family = declared_family(folder) if folder else None
        if folder and family and family.arch == self.arch:
            with refusing(folder, "a valid config.json"):
                return self.complete(self._by_table(tensors, family, read_config(folder, family))), family
        return self.complete(self._by_names(tensors)), None

    def _by_table(self, tensors: Mapping[str, StoredTensor], family: Family, config: Config) -> dict[str, StoredTensor]:
        """Returns tensors mapped by the table of a family."""
        values = metadata_of(config, family.keys, family.arch)
        mapped = gguf_tensors(tensors, family, config)
        self._warn_of_others(values)
        return {name: self._of_shape(name, tensor) for name, tensor in mapped.items()}

    def _warn_of_others(self, values: Mapping[str, Any]) -> None:
        """Warns about values of a config that differ from the donor's."""
        for key, value in values.items():
            found, own = (shortest(v) if isinstance(v, float) else v for v in (value, self.metadata.get(key, value)))
            if found != own and not key.startswith("general."):
                problem = f"{key} is {quote(found)} by config.json, and {quote(own)} in {self._name}, which is used"
                warn(problem, MetadataWarning)

    def _count(self, key: str) -> int | None:
        """Returns the number under a key of the architecture, or None."""
        value = self.metadata.get(f"{self.arch}.{key}")
        return value if type(value) is int else None

    @property
    def _name(self) -> str:
        return safe(Path(self.file.name).name)

    def _of_shape(self, name: str, tensor: StoredTensor) -> StoredTensor:
        """Returns a tensor if the donor has it with that shape. Raises TensorError otherwise."""
        if name not in self.file.tensors:
            raise TensorError(f"{self._name} has no such tensor", name)
        if tensor.shape != self.file.tensors[name].shape:
            raise self._other_shape(name, tensor)
        return tensor

    def _other_shape(self, name: str, tensor: StoredTensor) -> TensorError:
        shape = list(self.file.tensors[name].shape)
        return TensorError(f"expected the shape {shape}, as in {self._name}, found {list(tensor.shape)}", name)

    def _by_names(self, tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
        """Returns tensors by the donor's names. Operations are found when values are loaded."""
        names = name_map(self.arch, self._count(BLOCK_COUNT) or 0, len(self.file.tensors))
        parts: dict[str, dict[int, StoredTensor]] = {}
        for stored, tensor in tensors.items():
            name = stored.removeprefix(PREFIXES.get(self.arch, ""))
            expert, of_all = EXPERT.search(name), EXPERT.sub("", name)
            known = name if name in self.file.tensors else names.get_name(of_all, SUFFIXES)
            if known not in self.file.tensors:
                if any(fnmatch.fnmatchcase(name, pattern) for pattern in DROPPED):
                    continue
                raise TensorError(f"{self._name} has no tensor for it; glft convert --exclude leaves it out", stored)
            part = int(expert[1]) if expert else 0
            if part in parts.setdefault(known, {}):
                raise TensorError(f"expected one tensor for {safe(known)} of {self._name}, found another", stored)
            parts[known][part] = tensor
        return {
            name: found[0] if name in tensors else self._by_values(name, [found[number] for number in sorted(found)])
            for name, found in parts.items()
        }

    def _by_values(self, name: str, parts: Sequence[StoredTensor]) -> StoredTensor:
        """Returns a tensor by the operation that gives values like the donor's.

        Raises TensorError if none gives its shape.
        """
        own, functions = self.file.tensors[name], []
        for function, scope in self._functions(name):
            with suppress(TensorError):
                if [shape for shape, _ in planned_results(function, parts, name, scope)] == [own.shape]:
                    functions.append(function)
        if not functions:
            raise self._other_shape(name, parts[0])
        dtype = FLOAT32 if is_float32(name, own.shape) else parts[0].dtype
        quantized, parts = quantized_type(parts), in_one_dtype(parts)

        @cache
        def closest() -> Function:
            return self._closest(own, parts, functions)

        def load() -> Array:
            return np.ascontiguousarray(convert(closest()([part.values() for part in parts])[0], dtype))

        return StoredTensor(own.shape, dtype, load, quantized=quantized)

    def _functions(self, name: str) -> Iterator[tuple[Function, Scope]]:
        """Yields the operations that a tensor may need, each with its scope."""
        heads = next((self._count(key) for layer, key in HEADS.items() if f".{layer}." in name), None)
        operations = [KEEP, Stack(""), PlusOne() if "norm" in name else Transpose()]
        for operation in [*operations, *([PermuteRows(HEAD_COUNT)] if heads else [])]:
            scope: Scope = "tensors" if isinstance(operation, Transpose) else operation.scope
            yield partial(operation.to_gguf, config={HEAD_COUNT: heads}), scope

    def _closest(self, own: Tensor, parts: Sequence[StoredTensor], functions: Sequence[Function]) -> Function:
        """Returns the function whose values are the closest to the donor's.

        Raises TensorError if none are similar, or two are about as close.
        """
        loaded, reference = [part.values() for part in parts], _sample(own.array())
        found = [float32_of(_sample(function(loaded)[0])) for function in functions]
        errors = [errors_of(values, reference) for values in found]
        best, *others = sorted(range(len(functions)), key=lambda number: errors[number].rmse)
        if len(own.shape) > 1 and errors[best].relative > SIMILAR:
            problem = f"expected values similar to those in {self._name}, found a relative error of {errors[best].relative:.0%}"
            raise TensorError(f"{problem}: is it the model that was fine-tuned?", own.name)
        for other in others[:1]:
            rmses = errors[best].rmse, errors[other].rmse
            if rmses[0] > CLEARER * rmses[1] and not np.array_equal(found[best], found[other]):
                problem = f"expected values like those in {self._name} by one operation, found two"
                raise TensorError(f"{problem} with about the same error: RMSE {rmses[0]:.3g} and {rmses[1]:.3g}", own.name)
        return functions[best]

    def complete(self, tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
        """Returns all tensors of the donor, in its order. Raises TensorError if one is missing."""
        completed = {}
        for name, own in self.file.tensors.items():
            tensor = tensors.get(name)
            if tensor is None and name in COMPUTED:
                tensor = of_file(own)
            elif tensor is None and name == OUTPUT and EMBEDDING in tensors:  # tied
                tensor = self._of_shape(name, tensors[EMBEDDING])
            if tensor is None:
                raise TensorError(f"expected values for all tensors of {self._name}, found none for this one", name)
            completed[name] = tensor
        return completed


def _sample(values: Array) -> Array:
    """Returns some rows of a tensor, all if it is small.

    The step is odd, since rows 64 apart would have the same position in each head.
    """
    rows = values.reshape(-1, values.shape[-1])
    return rows[:: values.size // SAMPLE | 1]
