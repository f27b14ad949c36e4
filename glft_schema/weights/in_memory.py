"""State dicts as `StoredTensor`s: dense tensors, packed weights, and tensors of open files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from glft_schema.codec.context import LITTLE
from glft_schema.errors import TensorError, quote
from glft_schema.lazy import torch
from glft_schema.storage.dtypes import RECORDS, Array, address, as_dtype, with_own_dtype
from glft_schema.storage.source import BytesSource
from glft_schema.storage.torch_tensors import array_of, as_array, identity_of, is_tensor, not_dense
from glft_schema.tensor_types import TensorType
from glft_schema.tensor_types.payload_layout import matrix
from glft_schema.tensors.stored_tensor import Slices, StoredTensor, of_file
from glft_schema.tensors.tensor import PayloadLocation, Tensor


def packed_tensor(name: str, type_: TensorType, shape: Sequence[int], packed: Any) -> Tensor:
    """Returns a tensor of packed bytes, which are not copied if the type has one field.

    Args:
        name: of the tensor.
        type_: its type.
        shape: its sizes in torch's order.
        packed: as `Tensor.packed_rows` returns them, or a torch tensor.

    Raises:
        TensorError: if the bytes are not in memory.
    """
    check_dense(name, packed)
    fields = type_.unpack(array_of(packed), matrix(shape)[1])
    pieces = list(type_.pieces(fields, LITTLE))
    payload = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    return Tensor(name, shape, PayloadLocation(0, len(payload), type_, tuple(shape)), BytesSource(payload), 0)


@cache
def packed_tensors() -> Any:
    """Returns the known packed weights, such as those of state dicts: tensor -> (type, shape)."""
    from torch.utils.weak import WeakTensorKeyDictionary

    return WeakTensorKeyDictionary()


def in_memory(tensors: Mapping[str, Any]) -> dict[str, StoredTensor]:
    """Returns a state dict as `StoredTensor`s. Packed weights and tensors of open files keep their
    type. Raises TensorError unless tensors are dense."""
    return {name: _in_memory(name, tensor) for name, tensor in tensors.items()}


def _in_memory(name: str, tensor: Any) -> StoredTensor:
    if not isinstance(name, str):
        raise TensorError("expected a string as the name of a tensor", quote(name))
    if isinstance(tensor, StoredTensor):
        return tensor
    if isinstance(tensor, Tensor):
        return of_file(tensor)
    check_dense(name, tensor)
    return _of_tensor(name, tensor) if is_tensor(tensor) else _of_array(name, tensor)


def _of_tensor(name: str, tensor: torch.Tensor) -> StoredTensor:
    shape = tuple(tensor.shape)
    # numbers of a file can be chosen for equal hashes, texts cannot
    shared = repr(identity_of(tensor)) if tensor.numel() else None
    if tensor in packed_tensors():
        type_, dims = packed_tensors()[tensor]
        return replace(of_file(packed_tensor(name, type_, dims, tensor)), identity=shared)
    try:
        dtype = as_dtype(tensor.dtype)
    except TypeError:
        raise TensorError(f"no format has a type for {tensor.dtype}: exclude the tensor, or convert it", name) from None
    read = _reader(lambda: as_array(tensor), shape) if tensor.device.type == "cpu" else None  # others are copied once
    return StoredTensor(shape, dtype, lambda: tensor, shared, read=read)


def _of_array(name: str, array: Any) -> StoredTensor:
    given = np.asarray(array)
    numbers = with_own_dtype(given)
    if numbers.dtype.kind not in "biufc" and numbers.dtype not in RECORDS.values():
        raise TensorError(f"expected an array of numbers, found {array.dtype}", name)
    shared = repr((address(given), given.shape, given.strides, given.dtype)) if given.size else None
    return StoredTensor(numbers.shape, numbers.dtype, lambda: numbers, shared, read=_reader(lambda: numbers, numbers.shape))


def _reader(values: Callable[[], Array], shape: tuple[int, ...]) -> Callable[[Slices], Array]:
    """Returns a function that reads a part of the values, or all if their shape has changed."""

    def read(index: Slices) -> Array:
        array = values()
        return array[index] if array.shape == shape else array  # refused by the caller

    return read


def check_dense(name: str, tensor: Any) -> None:
    """Raises TensorError unless `tensor` is an array or a torch tensor with all of its values in
    memory."""
    if not isinstance(tensor, np.ndarray) and not is_tensor(tensor):
        raise TensorError(f"expected a tensor of torch or an array of numpy, found {quote(tensor)}", name)
    if problem := not_dense(tensor):
        hint = ": save its full_tensor(), or use StorageWriter (docs/guides/scale.md)" if hasattr(tensor, "full_tensor") else ""
        raise TensorError(problem + hint, name)
