"""Tensors computed on use, and the invertible operations between the layouts of Hugging Face and
GGUF.

An operation is a pair of functions on torch tensors. Applied to `LazyTensor`s, the functions run on
meta tensors for the shapes, and on values when a result is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from glft_schema.errors import TensorError
from glft_schema.lazy import torch
from glft_schema.tensor_types import TensorType
from glft_schema.tensors.tensor import Tensor

Config = Mapping[str, Any]
Function = Callable[[Sequence["torch.Tensor"]], Sequence["torch.Tensor"]]


@dataclass(frozen=True)
class LazyTensor:
    """A tensor whose values are computed when loaded.

    Attributes:
        shape: its sizes.
        dtype: its torch dtype.
        load: returns its values; called for each use, and the result is not kept.
        file_tensor: the tensor of a weights file with these values, or None.
        packed: the bytes of a quantized tensor, or None.
        transposed: the matrix that this one is the transpose of, or None.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    load: Callable[[], torch.Tensor]
    file_tensor: Tensor | None = None
    packed: Packed | None = None
    transposed: LazyTensor | None = None


class Packed(NamedTuple):
    """A quantized tensor's bytes.

    Attributes:
        type: the tensor's type.
        load: returns the payload, u8 [rows, bytes of a row], as `Tensor.packed`.
    """

    type: TensorType
    load: Callable[[], torch.Tensor]


def of_file(tensor: Tensor) -> LazyTensor:
    """Returns a tensor of an open file."""
    type_ = tensor.dtype
    packed = None if type_.exact is not None or not type_.is_known else Packed(type_, tensor.packed)
    return LazyTensor(tensor.shape, type_.dtype, tensor.dequantize, tensor, packed)


def of_values(values: torch.Tensor) -> LazyTensor:
    """Returns a tensor with its values in memory."""
    return LazyTensor(tuple(values.shape), values.dtype, lambda: values)


def applied(function: Function, sources: Sequence[LazyTensor], name: str, keeps_rows: bool = False) -> list[LazyTensor]:
    """Returns the results of a function.

    If it only moves rows of the last dim, it is also applied to the bytes of tensors of one type.

    Raises:
        TensorError: if the function refuses the shapes. The error is about the tensor `name`.
    """
    try:
        planned = function([torch.empty(source.shape, dtype=source.dtype, device="meta") for source in sources])
    except RuntimeError:
        shapes = ", ".join(str(list(source.shape)) for source in sources[:2])
        raise TensorError(f"expected a shape that fits the config, found {shapes}", name) from None

    def loading(number: int) -> Callable[[], torch.Tensor]:
        return lambda: function([source.load() for source in sources])[number].contiguous()

    def packing(number: int) -> Callable[[], torch.Tensor]:
        rows = len(planned[number])
        return lambda: function([_rows_of_bytes(source) for source in sources])[number].reshape(rows, -1)

    types = {source.packed.type if source.packed else None for source in sources} if keeps_rows else {None}
    type_ = types.pop() if len(types) == 1 else None
    return [
        LazyTensor(tuple(result.shape), result.dtype, loading(i), packed=Packed(type_, packing(i)) if type_ else None)
        for i, result in enumerate(planned)
    ]


def _rows_of_bytes(source: LazyTensor) -> torch.Tensor:
    """Returns a tensor's bytes, u8 [..., bytes of a row of the last dim]."""
    assert source.packed is not None
    return source.packed.load().view(*source.shape[:-1], -1)


def as_float32(source: LazyTensor) -> LazyTensor:
    """Returns a tensor as float32."""
    return source if source.dtype == torch.float32 else applied(lambda tensors: [tensors[0].float()], [source], "")[0]


class Operation:
    """The identity. Its subclasses are the other operations.

    Attributes:
        stacks: the config field with the number of tensors that become one, or None.
        keeps_rows: whether it only moves rows of the last dim.
    """

    stacks: str | None = None
    keeps_rows: bool = True

    def to_gguf(self, tensors: Sequence[torch.Tensor], config: Config) -> Sequence[torch.Tensor]:
        """Returns the tensors of GGUF."""
        return tensors

    def to_hf(self, tensors: Sequence[torch.Tensor], config: Config) -> Sequence[torch.Tensor]:
        """Returns the tensors of Hugging Face. The inverse of `to_gguf`."""
        return tensors


@dataclass(frozen=True)
class PermuteRows(Operation):
    """Rows of q and k: halves of each head, as Hugging Face rotates them, become pairs.

    Attributes:
        heads: the config field with the number of heads.
    """

    heads: str

    def to_gguf(self, tensors: Sequence[torch.Tensor], config: Config) -> Sequence[torch.Tensor]:
        return [rows.reshape(config[self.heads], 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape) for rows in tensors]

    def to_hf(self, tensors: Sequence[torch.Tensor], config: Config) -> Sequence[torch.Tensor]:
        return [rows.reshape(config[self.heads], -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape) for rows in tensors]


class PlusOne(Operation):
    """Norms whose factor is ``1 + weight``: GGUF stores the factor, in float32."""

    keeps_rows = False

    def to_gguf(self, tensors: Sequence[torch.Tensor], config: Config) -> Sequence[torch.Tensor]:
        return [weights.float() + 1 for weights in tensors]

    def to_hf(self, tensors: Sequence[torch.Tensor], config: Config) -> Sequence[torch.Tensor]:
        return [factors - 1 for factors in tensors]


class Transpose(Operation):
    """Weights of Conv1D layers, which are ``[in, out]``. Biases are unchanged."""

    keeps_rows = False

    def to_gguf(self, tensors: Sequence[torch.Tensor], config: Config) -> Sequence[torch.Tensor]:
        return [weights.T if weights.dim() == 2 else weights for weights in tensors]

    to_hf = to_gguf


@dataclass(frozen=True)
class Stack(Operation):
    """One matrix for each expert: GGUF stores them as one tensor of three dims.

    Attributes:
        stacks: the config field with the number of experts.
    """

    stacks: str

    def to_gguf(self, tensors: Sequence[torch.Tensor], config: Config) -> Sequence[torch.Tensor]:
        first = tensors[0]
        stacked = first.new_empty((len(tensors), *first.shape))  # torch.stack on meta imports torch's compiler, in seconds
        for place, matrix in zip(stacked, tensors, strict=True):
            place.copy_(matrix.view(first.shape))
        return [stacked]

    def to_hf(self, tensors: Sequence[torch.Tensor], config: Config) -> Sequence[torch.Tensor]:
        return tensors[0].unbind(0)


class SplitRows(Operation):
    """Two fused projections, one above the other: GGUF stores them separately."""

    def to_gguf(self, tensors: Sequence[torch.Tensor], config: Config) -> Sequence[torch.Tensor]:
        return tensors[0].chunk(2, -2)

    def to_hf(self, tensors: Sequence[torch.Tensor], config: Config) -> Sequence[torch.Tensor]:
        return [torch.cat(list(tensors), -2)]


KEEP = Operation()
