"""Tensors into a file: every size and offset planned first, then one payload at a time, and the file replaced at the end."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from glft_schema.checkpoints import StoredTensor, in_memory
from glft_schema.container import Container, format_named
from glft_schema.errors import SchemeError, TensorError, TiedWarning, shown
from glft_schema.layout import place
from glft_schema.lazy import torch
from glft_schema.names import leave_out
from glft_schema.numbers import LITTLE, ByteOrder
from glft_schema.schemes import Choice, choose_types
from glft_schema.source import StrPath
from glft_schema.tensor_types import TensorType
from glft_schema.tensor_types.tensor_type import matrix
from glft_schema.verify import max_error

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
        copied: the payload is that of the source, bit for bit but for the byte order; nothing was computed.
        error: max |stored - source|, where that was asked for.
    """

    name: str
    source: torch.dtype
    type: TensorType
    nbytes: int
    alias_of: str | None
    note: str
    copied: bool = False
    error: float | None = None


def save_file(
    tensors: Mapping[str, torch.Tensor | StoredTensor],
    path: StrPath,
    metadata: Mapping[str, str] | None = None,
    schemes: Mapping[str, str] | None = None,
    alignment: int | None = None,
    *,
    format: str = "GLFT",
    header: Mapping[str, Any] | None = None,
    rules: Iterable[str] | None = None,
    exclude: Iterable[str] = (),
    progress: Progress | None = None,
    measure: bool = False,
) -> list[WrittenTensor]:
    """Writes tensors to a weights file.

    The file at `path` is replaced at the end, or left as it was where anything fails. Tensors that are one and the same, as
    tied weights are, are stored once. Peak memory is that of the largest tensor as float32, twice, and a constant; of a tensor
    that is a single row, three times.

    Args:
        tensors: by name; torch tensors, or `StoredTensor`s that are loaded when their turn comes.
        path: where to.
        metadata: text by key in GLFT; in GGUF values of any kind, see `glft_schema.typed_values.stored`.
        schemes: names or fnmatch patterns -> types in lower case, such as ``f32``, ``q8_per_channel``, ``q4_0``; see
            `glft_schema.schemes.choose_types`. Tensors that none names keep their type.
        alignment: payloads begin at multiples of it; 1 in GLFT and 32 in GGUF unless given. 64 lets every float tensor be read
            in place, at its best speed.
        format: ``glft`` or ``gguf``.
        header: fields of the header that are not to have their default: ``{"version": 2, "byte_order": "big"}`` of GGUF.
        rules: rule sets that the file has to keep to; those of the format unless given, `spec` and `ggml` of GGUF.
        exclude: names or fnmatch patterns of tensors that are not to be written.
        progress: called with name and payload bytes after each tensor.
        measure: compare what is stored with its source, and report the error.

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
    target = format_named(format)
    stored = in_memory(leave_out(tensors, exclude))
    choices = choose_types(stored, schemes or {}, target)
    aliases = _tied(stored, choices) if target.shares_payloads else {}
    planned = {name: _Planned(name, stored[name], choice.type, progress, measure) for name, choice in choices.items()}
    if target.with_alignment and alignment is not None:
        metadata = target.with_alignment(metadata or {}, alignment)
    regions = {
        "header": header or {},
        "metadata": metadata or {},
        target.table: [
            {"name": name, "dims": target.dims_of(stored[name].shape), "dtype": choice.type} for name, choice in choices.items()
        ],
        "data": {name: planned[aliases.get(name, name)] for name in planned},
    }
    regions = place(target, regions, 1 if alignment is None else alignment, aliases)
    Container.build_file({"format": target.name, **regions}, path, rules=target.keeps_to if rules is None else tuple(rules))
    return [
        WrittenTensor(
            name,
            stored[name].dtype,
            choice.type,
            0 if name in aliases else planned[name].nbytes,
            aliases.get(name),
            choice.note,
            planned[name].is_copy,
            planned[aliases.get(name, name)].error,
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


@dataclass
class _Planned:
    """A payload that is made when it is written."""

    name: str
    stored: StoredTensor
    type: TensorType
    progress: Progress | None
    measure: bool
    error: float | None = None

    @property
    def is_copy(self) -> bool:
        """Whether the payload is that of another weights file."""
        return self.stored.packed is not None and self.stored.packed.dtype is self.type

    @property
    def nbytes(self) -> int:
        """Bytes of the payload."""
        if self.is_copy and self.stored.packed:
            return self.stored.packed.nbytes
        return self.type.nbytes(self.stored.shape)

    def pieces(self, order: ByteOrder = LITTLE) -> Iterator[memoryview]:
        if self.is_copy and self.stored.packed:
            yield from self.stored.packed.pieces(order)
            self.error = 0.0
        else:
            yield from self._encoded(order)
        if self.progress:
            self.progress(self.name, self.nbytes)

    def _encoded(self, order: ByteOrder) -> Iterator[memoryview]:
        tensor = self.stored.load()
        if (tuple(tensor.shape), tensor.dtype) != (self.stored.shape, self.stored.dtype):
            planned, found = f"{self.stored.dtype} {list(self.stored.shape)}", f"{tensor.dtype} {list(tensor.shape)}"
            raise TensorError(f"expected {planned} as planned, found {found}", self.name)
        if self.type.exact and self.type.dtype == tensor.dtype:
            self.error = 0.0
            yield from self.type.pieces({"weights": tensor}, order)
        else:
            fields = self.type.encode(tensor, self.name)
            if self.measure:
                numbers = self.type.decode(fields, matrix(tensor.shape)[1]).reshape(tensor.shape)
                self.error = max_error(numbers, tensor)
            del tensor
            yield from self.type.pieces(fields, order)


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
