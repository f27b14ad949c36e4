"""Tensors into a file: every size and offset planned first, then one payload at a time, and the file replaced at the end."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from glft_schema.checkpoints import StoredTensor, in_memory
from glft_schema.container import Container
from glft_schema.errors import SchemeError, TensorError, TiedWarning, shown
from glft_schema.formats.glft import GLFT
from glft_schema.layout import place
from glft_schema.lazy import torch
from glft_schema.names import leave_out
from glft_schema.numbers import LITTLE, ByteOrder
from glft_schema.schemes import Choice, choose_types
from glft_schema.source import StrPath
from glft_schema.tensor_types import TensorType

Progress = Callable[[str, int], None]


@dataclass(frozen=True)
class WrittenTensor:
    """A tensor as it went into a file.

    Attributes:
        name: its name.
        source: the dtype it came in.
        type: the type it was stored in.
        nbytes: bytes of its payload; 0 where it shares that of `alias_of`.
        alias_of: the tensor that it is tied to, or None.
        note: why the type is not the one asked for or stored; mostly empty.
    """

    name: str
    source: torch.dtype
    type: TensorType
    nbytes: int
    alias_of: str | None
    note: str


def save_file(
    tensors: Mapping[str, torch.Tensor | StoredTensor],
    path: StrPath,
    metadata: Mapping[str, str] | None = None,
    schemes: Mapping[str, str] | None = None,
    alignment: int = 1,
    *,
    exclude: Iterable[str] = (),
    progress: Progress | None = None,
) -> list[WrittenTensor]:
    """Writes tensors to a GLFT file.

    The file at `path` is replaced at the end, or left as it was where anything fails. Tensors that are one and the same, as
    tied weights are, are stored once. Peak memory is that of the largest tensor as float32, twice, and a constant; of a tensor
    that is a single row, three times.

    Args:
        tensors: by name; torch tensors, or `StoredTensor`s that are loaded when their turn comes.
        path: where to.
        metadata: text by key.
        schemes: names or fnmatch patterns -> ``f32``, ``f16``, ``q8_per_channel`` or ``q4_per_group_64``; see
            `glft_schema.schemes.choose_types`. Tensors that none names keep their type.
        alignment: payloads begin at multiples of it; 64 lets every float tensor be read in place, at its best speed.
        exclude: names or fnmatch patterns of tensors that are not to be written.
        progress: called with name and payload bytes after each tensor.

    Returns:
        What became of each tensor, in the file's order.

    Raises:
        SchemeError: for a scheme or pattern that cannot be followed.
        TensorError: for a tensor that cannot be stored as asked.
        FormatError: for names, shapes or metadata that the format cannot hold.
        OSError: from the system.

    Warns:
        QuantizationWarning: where weights are so small that their scale rounds to zero.
        TiedWarning: where tensors that are one and the same get different types, and so are stored apart.
    """
    if not isinstance(tensors, Mapping):
        raise SchemeError(f"expected tensors by name, such as model.state_dict(), found {shown(tensors)}")
    stored = in_memory(leave_out(tensors, exclude))
    choices = choose_types(stored, schemes or {}, GLFT.types)
    aliases = _tied(stored, choices)
    rows = [{"name": name, "dims": list(stored[name].shape), "dtype": choice.type} for name, choice in choices.items()]
    regions = place(GLFT, {"metadata": metadata or {}, GLFT.table: rows}, alignment, aliases)
    planned = {name: _Planned(name, stored[name], choice.type, progress) for name, choice in choices.items()}
    regions["data"] = {name: planned[aliases.get(name, name)] for name in planned}
    Container.build_file(regions, path)
    return [
        WrittenTensor(
            name,
            stored[name].dtype,
            choice.type,
            0 if name in aliases else choice.type.nbytes(stored[name].shape),
            aliases.get(name),
            choice.note,
        )
        for name, choice in choices.items()
    ]


def write_gguf_lite(
    path: StrPath,
    model: torch.nn.Module,
    schemes: Mapping[str, str],
    metadata: Mapping[str, str] | None = None,
    exclude: Iterable[str] = (),
) -> list[WrittenTensor]:
    """Writes the parameters and buffers of `model` to a GLFT file: the lab's writer.

    Integer buffers, such as the counters of batch norms, cannot be held: `exclude` them. Returns and raises as `save_file`.
    """
    return save_file(model.state_dict(), path, metadata, schemes, exclude=exclude)


@dataclass(frozen=True)
class _Planned:
    """A payload that is made when it is written."""

    name: str
    stored: StoredTensor
    type: TensorType
    progress: Progress | None

    def pieces(self, order: ByteOrder = LITTLE) -> Iterator[memoryview]:
        tensor = self.stored.load()
        if (tuple(tensor.shape), tensor.dtype) != (self.stored.shape, self.stored.dtype):
            planned, found = f"{self.stored.dtype} {list(self.stored.shape)}", f"{tensor.dtype} {list(tensor.shape)}"
            raise TensorError(f"expected {planned} as planned, found {found}", self.name)
        if self.type.exact and self.type.dtype == tensor.dtype:
            yield from self.type.pieces({"weights": tensor}, order)
        else:
            fields = self.type.encode(tensor, self.name)
            del tensor
            yield from self.type.pieces(fields, order)
        if self.progress:
            self.progress(self.name, self.type.nbytes(self.stored.shape))


def _tied(stored: Mapping[str, StoredTensor], choices: dict[str, Choice]) -> dict[str, str]:
    """Returns, for each tensor that is the same numbers in the same type as an earlier one, the name of that one.

    Notes in `choices`, and warns of, those that are the same numbers in another type.
    """
    first: dict[Any, list[str]] = {}
    aliases = {}
    for name, tensor in stored.items():
        if tensor.identity is None:
            continue
        earlier = first.setdefault(tensor.identity, [])
        same = [other for other in earlier if choices[other].type is choices[name].type]
        if same:
            aliases[name] = same[0]
            continue
        if earlier:
            note = f"tied to {shown(earlier[0])}, which gets another type: stored apart"
            choices[name] = Choice(choices[name].type, "; ".join(filter(None, (choices[name].note, note))))
            warnings.warn(f"tensor {shown(name)} is {note}", TiedWarning, stacklevel=3)
        earlier.append(name)
    return aliases
