"""Packed rows of quantized types, and kernels of Triton that read them."""

from __future__ import annotations

import torch

from glft_schema.formats.glft import GLFT
from glft_schema.scalar.as_triton import power_from
from glft_schema.storage.torch_tensors import as_tensor
from glft_schema.tensor_types import TensorType, on_triton
from glft_schema.tensor_types.ggml import GGML_TYPES

TYPES = [type_ for type_ in [*GGML_TYPES, *GLFT.types] if not type_.exact]


def decoded(type_: TensorType, packed: torch.Tensor, columns: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Returns weights by the functions for arrays."""
    return as_tensor(type_.decode(type_.unpack(packed.numpy(), columns), columns)).to(dtype)


def parts_of(type_: TensorType, packed: torch.Tensor, columns: int) -> list[torch.Tensor]:
    return [packed[:, span] for _, span, _ in type_.spans_of_row(columns)]


def product(
    type_: TensorType, x: torch.Tensor, packed: torch.Tensor, rows: int, method: on_triton.KernelMethod
) -> torch.Tensor:
    """Returns the product of x by a kernel, whether it is the fastest or not."""
    parts = parts_of(type_, packed, rows // len(packed) * x.shape[1])
    kernel = on_triton._kernel(type_, parts, method, x.device, power_from(len(x)), x.shape[1])
    return on_triton._multiply(kernel, parts, rows, x)
