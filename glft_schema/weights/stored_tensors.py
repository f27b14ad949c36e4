"""Tensors to be written, with known shape and dtype; values are loaded when needed."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from glft_schema.codec.context import LITTLE
from glft_schema.display import with_display
from glft_schema.errors import TensorError, shown
from glft_schema.families.operations import LazyTensor, Slices, of_file, of_packed
from glft_schema.lazy import torch
from glft_schema.storage.source import BytesSource
from glft_schema.tensor_types import TensorType
from glft_schema.tensor_types.engine.chunks import matrix
from glft_schema.tensors.tensor import Place, Tensor
from glft_schema.weights.torch_pickle import Opaque


@with_display
@dataclass(frozen=True)
class StoredTensor:
    """A tensor to be written.

    Attributes:
        shape: its sizes.
        dtype: its torch dtype.
        load: returns its values; called on writing, and the result is not kept.
        identity: equal for tensors with the same storage; None if unknown.
        file_tensor: the tensor of a weights file it comes from, or None.
        importance: see `TensorType.encode`; None if unknown.
        read: loads a part, at a slice for each dim; None if only `load` is available.
        quantized: the quantized type that its values have been rounded to, or None.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    load: Callable[[], torch.Tensor]
    identity: Hashable = None
    file_tensor: Tensor | None = None
    importance: torch.Tensor | None = None
    read: Callable[[Slices], torch.Tensor] | None = None
    quantized: TensorType | None = None

    def _display(self) -> Iterator[str]:
        type_ = self.file_tensor.dtype if self.file_tensor else self.dtype
        yield f"{str(type_).removeprefix('torch.')} {list(self.shape)}"

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def has_parts(self) -> bool:
        """Whether `part` reads no more than it returns."""
        return self.read is not None or self.file_tensor is not None

    def part(self, rows: slice) -> torch.Tensor:
        """Returns some rows of the first dim; all of a tensor without dims."""
        index = (rows, *(slice(0, size) for size in self.shape[1:]))[: len(self.shape)]
        if self.read is not None:
            return self.read(index)
        return self.load()[index] if self.file_tensor is None else self.file_tensor[index]


def in_file(tensor: Tensor) -> StoredTensor:
    """Returns a tensor of an open weights file."""
    type_, identity = tensor.dtype, tensor.identity if tensor.nbytes else None
    quantized = type_ if type_.is_quantized else None
    return StoredTensor(tensor.shape, type_.dtype, tensor.dequantize, identity, tensor, quantized=quantized)


def of_lazy(name: str, tensor: LazyTensor) -> StoredTensor:
    """Returns a tensor of a mapped model, with its bytes if it is of a block type."""
    if tensor.file_tensor is None and tensor.packed is not None and tensor.packed.type.block is not None:
        tensor = of_packed(name, tensor.shape, tensor.packed.type, tensor.packed.read)
    if tensor.file_tensor is not None:
        return in_file(tensor.file_tensor)
    read = tensor.part if tensor.read or tensor.transposed else None
    return StoredTensor(tensor.shape, tensor.dtype, tensor.load, read=read, quantized=tensor.quantized)


def packed_tensor(name: str, type_: TensorType, shape: Sequence[int], packed: torch.Tensor) -> Tensor:
    """Returns a tensor with bytes in memory, which are not copied if the type has one field.

    Args:
        name: of the tensor.
        type_: its type.
        shape: its sizes in torch's order.
        packed: as `Tensor.packed` returns them.

    Raises:
        TensorError: if the bytes are not in memory.
    """
    check_dense(name, packed)
    fields = type_.unpacked(packed.detach().cpu().contiguous(), matrix(shape)[1])
    pieces = list(type_.pieces(fields, LITTLE))
    payload = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    return Tensor(name, shape, Place(0, len(payload), type_, tuple(shape)), BytesSource(payload), 0)


@cache
def packed_tensors() -> Any:
    """Returns what is known of tensors with packed weights, such as those of a module's state dict:
    tensor -> (type, shape)."""
    from torch.utils.weak import WeakTensorKeyDictionary

    return WeakTensorKeyDictionary()


def in_memory(tensors: Mapping[str, Any]) -> dict[str, StoredTensor]:
    """Returns a state dict as `StoredTensor`s: packed weights, and tensors of open files, in their
    type. Raises TensorError unless tensors are dense."""
    return {name: _in_memory(name, tensor) for name, tensor in tensors.items()}


def _in_memory(name: str, tensor: Any) -> StoredTensor:
    if not isinstance(name, str):
        raise TensorError("expected a string as the name of a tensor", shown(name))
    if isinstance(tensor, StoredTensor):
        return tensor
    if isinstance(tensor, Tensor):
        return in_file(tensor)
    check_dense(name, tensor)
    identity = (tensor.device, tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.is_neg())
    shared = repr(identity) if tensor.numel() else None  # numbers of a file can be chosen for equal hashes, texts cannot
    if tensor in packed_tensors():
        type_, shape = packed_tensors()[tensor]
        return replace(in_file(packed_tensor(name, type_, shape, tensor)), identity=shared)
    shape = tuple(tensor.shape)

    def read(index: Slices) -> torch.Tensor:
        return tensor[index] if tuple(tensor.shape) == shape else tensor  # which is refused

    parts = read if tensor.device.type == "cpu" else None  # a GPU encodes whole tensors
    return StoredTensor(shape, tensor.dtype, lambda: tensor, shared, read=parts)


def as_lazy(tensors: Mapping[str, StoredTensor]) -> dict[str, LazyTensor]:
    """Returns tensors for the operations of a family."""
    return {
        name: of_file(t.file_tensor)
        if t.file_tensor
        else LazyTensor(t.shape, t.dtype, t.load, read=t.read, quantized=t.quantized)
        for name, t in tensors.items()
    }


def check_dense(name: str, tensor: Any) -> None:
    """Raises TensorError unless `tensor` is a torch tensor with its values in memory."""
    if not isinstance(tensor, torch.Tensor):
        is_tensor = isinstance(tensor, Opaque) and "._rebuild_" in tensor.text
        expected = "a dense tensor with values in memory" if is_tensor else "a torch.Tensor"
        hint = ": torch.from_numpy makes one of an array" if isinstance(tensor, np.ndarray) else ""
        raise TensorError(f"expected {expected}, found {shown(tensor)}{hint}", name)
    if not is_dense(tensor):
        kind = "meta" if tensor.is_meta else str(tensor.layout)
        raise TensorError(f"expected a dense tensor with values in memory, found a {type(tensor).__name__} ({kind})", name)


def is_dense(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor has strided values in memory."""
    if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized or tensor.is_nested:
        return False
    try:
        tensor.data_ptr()
    except (RuntimeError, ValueError):  # wrapper tensors have no storage
        return False
    return True
