"""Tensors to be written: shape and dtype, known at once, and numbers, loaded when a tensor's turn comes."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from glft_schema.errors import TensorError, shown
from glft_schema.lazy import torch
from glft_schema.tensor_types.engine.chunks import Rows
from glft_schema.tensors.tensor import Tensor


@dataclass(frozen=True)
class StoredTensor:
    """A tensor to be written.

    Attributes:
        shape: its sizes.
        dtype: its torch dtype.
        load: gives its numbers; called when they are written, and not kept.
        identity: equal for tensors that are the same numbers at the same place, None where that cannot be known.
        file_tensor: the tensor in the weights file that it comes from, or None.
        rows: the same numbers as a matrix [out, in] of which some rows are loaded at a time; None where they come all at once.
        importance: how much an error in each column matters, as of `TensorType.encode`, where that is known.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    load: Callable[[], torch.Tensor]
    identity: Hashable = None
    file_tensor: Tensor | None = None
    rows: Rows | None = None
    importance: torch.Tensor | None = None

    @property
    def numel(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)


def in_memory(tensors: Mapping[str, Any]) -> dict[str, StoredTensor]:
    """Returns the tensors of a state dict as `StoredTensor`s; those that are stay so.

    Raises:
        TensorError: for a value that is no dense torch tensor with numbers.
    """
    return {name: _in_memory(name, tensor) for name, tensor in tensors.items()}


def _in_memory(name: str, tensor: Any) -> StoredTensor:
    if not isinstance(name, str):
        raise TensorError("expected a name that is text", str(name))
    if isinstance(tensor, StoredTensor):
        return tensor
    check_dense(name, tensor)
    identity = (tensor.device, tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.is_neg())
    return StoredTensor(tuple(tensor.shape), tensor.dtype, lambda: tensor, identity if tensor.numel() else None)


def check_dense(name: str, tensor: Any) -> None:
    """Raises TensorError for what is no torch tensor that has its numbers in memory."""
    if not isinstance(tensor, torch.Tensor):
        raise TensorError(f"expected a torch.Tensor, found {shown(tensor)}", name)
    if not is_dense(tensor):
        kind = "meta" if tensor.is_meta else str(tensor.layout)
        raise TensorError(f"expected a dense tensor with numbers in memory, found a {type(tensor).__name__} ({kind})", name)


def is_dense(tensor: torch.Tensor) -> bool:
    """Tells whether the tensor has its numbers in memory, one after another by strides."""
    if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized or tensor.is_nested:
        return False
    try:
        tensor.data_ptr()
    except (RuntimeError, ValueError):  # of tensors that only stand for others
        return False
    return True
