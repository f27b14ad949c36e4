"""Modules whose weights stay packed: `Linear`, `Embedding`, `Conv2d` and `Experts`.

The parameter ``weight`` holds the bytes of a file's payload, u8 [rows, bytes of a row], and is
decoded at each use. It is frozen: gradients reach the input and the bias, not the weights.
``.to(dtype)`` changes the dtype of the bias and of outputs without a float input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial, update_wrapper
from types import FunctionType
from typing import Any, cast

import torch
from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook
from torch.optim.swa_utils import AveragedModel

from glft_schema.errors import OptionError, quote
from glft_schema.formats.registry import registered_type
from glft_schema.nn.operators import packed_linear, packed_weights
from glft_schema.storage.torch_tensors import as_tensor, torch_dtype
from glft_schema.tensor_types import TensorType
from glft_schema.tensor_types.payload_layout import matrix
from glft_schema.weights.in_memory import packed_tensors


def packed_shape(type_: TensorType, shape: Sequence[int]) -> tuple[int, int]:
    """Returns the shape of packed weights, [rows, bytes of a row].

    Raises:
        FormatError: if the type cannot store the shape.
    """
    rows = matrix(shape)[0]
    return rows, type_.nbytes(shape) // max(rows, 1)


class Packed(nn.Module):
    """A module with packed weights.

    Attributes:
        weight: the bytes of the payload, u8 [rows, bytes of a row].
        type_name: the name of the weights' type.
        weight_shape: sizes of the weights.
        dtype: the default of `dequantize`, and the dtype of outputs without a float input.
    """

    weight: torch.Tensor
    type_name: str
    weight_shape: tuple[int, ...]
    dtype: torch.dtype
    _general: Any  # the class that `_class_of` has specialized

    def _pack(self, type_: TensorType | str, shape: tuple[int, ...], device: Any, dtype: torch.dtype | None) -> None:
        """Replaces the parameter by an uninitialised packed one.

        Raises:
            OptionError: for an unknown type, or one that is not quantized.
            FormatError: if the type cannot store the shape.
        """
        found = registered_type(type_) if isinstance(type_, str) else type_
        if not found.is_quantized:
            raise OptionError(f"expected a quantized type, found {found}")
        packed = torch.empty(packed_shape(found, shape), dtype=torch.uint8, device=device)
        self.weight = nn.Parameter(packed, requires_grad=False)
        self.dtype = dtype or torch.get_default_dtype()
        self.type_name, self.weight_shape = found.name, tuple(shape)
        self.__class__ = _class_of(cast(Any, type(self)), found.name, tuple(shape))

    @property
    def weight_type(self) -> TensorType:
        """The type of the weights."""
        return registered_type(self.type_name)

    def dequantize(self, dtype: torch.dtype | str | None = None) -> torch.Tensor:
        """Returns the weights in their shape, in a float dtype; by default in `dtype`."""
        found = torch_dtype(dtype) if isinstance(dtype, str) else dtype
        columns = matrix(self.weight_shape)[1]
        return packed_weights(self.weight, self.type_name, columns, found or self.dtype).view(self.weight_shape)

    def set_weights(self, weights: torch.Tensor, *, importance: torch.Tensor | None = None) -> None:
        """Encodes new weights of the same shape into the memory of `weight`.

        Raises:
            OptionError: if they have another shape.
            TensorError: as `TensorType.encode`, which also takes `importance`.
        """
        self.weight.detach().copy_(self.encode(weights, importance=importance))

    def encode(self, weights: torch.Tensor, name: str = "weight", *, importance: torch.Tensor | None = None) -> torch.Tensor:
        """Returns weights in the module's type, u8 [rows, bytes of a row].

        Raises:
            OptionError: if they have another shape.
            TensorError: as `TensorType.encode`.
        """
        if tuple(weights.shape) != self.weight_shape:
            raise OptionError(f"expected weights of {list(self.weight_shape)}, found {list(weights.shape)}")
        fields = self.weight_type.encode(weights, name, importance=importance)
        return as_tensor(self.weight_type.pack(fields)).view(self.weight.shape)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        """Also converts `dtype`. Raises TypeError if the function converts uint8 tensors."""
        if fn(torch.empty(0, dtype=torch.uint8)).dtype != torch.uint8:
            raise TypeError("expected packed weights to stay uint8: use .to(dtype)")
        self.dtype = fn(torch.empty(0, dtype=self.dtype)).dtype
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Notes the type of the weights for `save_file`."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        packed_tensors()[destination[f"{prefix}weight"]] = self.weight_type, self.weight_shape

    def reset_parameters(self) -> None:
        """Does nothing: random bytes are not random weights."""

    def extra_repr(self) -> str:
        own = super().extra_repr()
        return f"{own}, type={self.type_name}" if own else f"{list(self.weight_shape)}, type={self.type_name}"

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _empty, (self._general, self.type_name, self.weight_shape), dict(self.__dict__)


class Linear(Packed, nn.Linear):
    """``x @ weights.T + bias`` in the dtype of x, with packed weights [out_features, in_features].

    Args:
        in_features: columns of the weights.
        out_features: rows of the weights.
        type: of the weights, or its name.
        bias: whether there is a bias.
        device: of the parameters.
        dtype: of the bias.

    Raises:
        OptionError, FormatError: for a type that cannot be packed in this shape.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        type: TensorType | str,
        *,
        bias: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        nn.Linear.__init__(self, in_features, out_features, False, "meta", dtype)
        if bias:
            self.bias = nn.Parameter(torch.zeros(out_features, device=device, dtype=dtype))
        self._pack(type, (out_features, in_features), device, dtype)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        result = packed_linear(input, self.weight, self.type_name, self.out_features, self.in_features)
        bias = self.bias
        return result if bias is None else result + (bias if bias.dtype == result.dtype else bias.to(result.dtype))


class Embedding(Packed, nn.Embedding):
    """Rows of packed weights [num_embeddings, embedding_dim], by index.

    Args:
        num_embeddings: rows of the weights.
        embedding_dim: columns of the weights.
        type: of the weights, or its name.
        padding_idx: an attribute without effect; packed weights have no gradient.
        scale: a factor of results, in their dtype.
        device: of the weights.
        dtype: of the results.

    Raises:
        OptionError, FormatError: for a type that cannot be packed in this shape.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        type: TensorType | str,
        *,
        padding_idx: int | None = None,
        scale: float = 1.0,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        nn.Embedding.__init__(self, num_embeddings, embedding_dim, padding_idx, device="meta", dtype=dtype)
        self.scale = scale
        self._pack(type, (num_embeddings, embedding_dim), device, dtype)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        rows = self.weight.index_select(0, input.reshape(-1))
        rows_of_weights = packed_weights(rows, self.type_name, self.embedding_dim, self.dtype).view(
            *input.shape, self.embedding_dim
        )
        return (
            rows_of_weights
            if self.scale == 1
            else rows_of_weights * torch.full((), self.scale, dtype=rows_of_weights.dtype, device=rows_of_weights.device)
        )


class Conv2d(Packed, nn.Conv2d):
    """A convolution with packed weights [out_channels, in_channels / groups, height, width].

    Args:
        in_channels: of the input.
        out_channels: of the result.
        kernel_size: height and width.
        type: of the weights, or its name.
        bias: whether there is a bias.
        device: of the parameters.
        dtype: of the bias.
        options: stride, padding, dilation, groups and padding_mode, as in `torch.nn.Conv2d`.

    Raises:
        OptionError, FormatError: for a type that cannot be packed in this shape.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        type: TensorType | str,
        *,
        bias: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        nn.Conv2d.__init__(self, in_channels, out_channels, kernel_size, bias=False, device="meta", dtype=dtype, **options)
        if bias:
            self.bias = nn.Parameter(torch.zeros(out_channels, device=device, dtype=dtype))
        self._pack(type, tuple(self.weight.shape), device, dtype)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        bias = None if self.bias is None else self.bias.to(input.dtype)
        result: torch.Tensor = self._conv_forward(input, self.dequantize(input.dtype), bias)
        return result


class Experts(Packed):
    """A stack of matrices [experts, out, in], decoded one at a time.

    ``experts[i]`` returns the weights of one expert, so an instance can replace a 3-D parameter in
    modules that index one expert at a time.

    Args:
        shape: experts, rows and columns.
        type: of the weights, or its name.
        device: of the weights.
        dtype: of ``experts[i]``.
        transposed: whether ``experts[i]`` is [in, out], as in gpt-oss.

    Raises:
        OptionError, FormatError: for a type that cannot be packed in this shape.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        type: TensorType | str,
        *,
        device: Any = None,
        dtype: torch.dtype | None = None,
        transposed: bool = False,
    ) -> None:
        nn.Module.__init__(self)
        self._pack(type, tuple(shape), device, dtype)
        self.transposed = transposed

    @property
    def shape(self) -> torch.Size:
        """The number of experts, followed by the shape of ``experts[i]``."""
        count, *sizes = self.weight_shape
        return torch.Size([count, *(sizes[::-1] if self.transposed else sizes)])

    def __len__(self) -> int:
        return self.weight_shape[0]

    def __getitem__(self, expert: int | torch.Tensor) -> torch.Tensor:
        """Returns an expert's weights. Raises IndexError unless `expert` is one valid index."""
        return self.forward(None, expert)  # which loads weights that accelerate keeps on disk

    def forward(self, input: torch.Tensor | None, expert: int | torch.Tensor) -> torch.Tensor:
        """Returns ``input @ weights.T`` in the input's dtype, for an expert's weights [out, in];
        without an input, ``experts[i]``. Raises IndexError as ``experts[i]``."""
        packed, (_, rows, columns) = self.weight[expert], self.weight_shape
        if packed.dim() != 1:
            raise IndexError(f"expected the index of one expert, found {quote(expert)}")
        packed = packed.unsqueeze(0)
        if input is not None:
            return packed_linear(input, packed, self.type_name, rows, columns)
        weights = packed_weights(packed, self.type_name, rows * columns, self.dtype).view(rows, columns)
        return weights.T if self.transposed else weights


@cache
def _class_of(general: Any, type_name: str, shape: tuple[int, ...]) -> Any:
    """Returns the subclass for a type and shape, whose ``forward`` has its own code object.

    Dynamo compiles each code object for at most eight sets of constants, and a model that is
    compiled layer by layer may have more types and shapes.
    """
    names = {name: getattr(general, name) for name in ("__module__", "__qualname__", "__doc__")} | {"_general": general}
    if isinstance(forward := general.forward, FunctionType):
        own = FunctionType(forward.__code__.replace(), forward.__globals__, None, forward.__defaults__, forward.__closure__)
        own.__kwdefaults__ = forward.__kwdefaults__
        names["forward"] = update_wrapper(own, forward)
    return type(general)(general.__name__, (general,), names)


def _empty(general: type[Packed], type_name: str, shape: tuple[int, ...]) -> Any:
    """Returns a module without attributes, to copy or unpickle into."""
    kind = _class_of(cast(Any, general), type_name, shape)
    return kind.__new__(kind)


def _update_averaged(averaged: AveragedModel, model: nn.Module) -> None:
    """Averages parameters, but copies packed weights, whose bytes have no mean."""
    type(averaged).update_parameters(averaged, model)
    packed = {id(layer.weight) for layer in averaged.modules() if isinstance(layer, Packed)}
    for own, other in zip(averaged.parameters(), model.parameters(), strict=True):
        if id(own) in packed:
            own.copy_(other)


def _keep_packed(parent: nn.Module, name: str, module: nn.Module | None) -> None:
    """Makes an `AveragedModel` of a model with packed layers update it by `_update_averaged`."""
    layers = module.modules() if module is not None and isinstance(parent, AveragedModel) else ()
    if any(isinstance(layer, Packed) for layer in layers):
        parent.update_parameters = partial(_update_averaged, parent)  # type: ignore[arg-type, assignment]


register_module_module_registration_hook(_keep_packed)
