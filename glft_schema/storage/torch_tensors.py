"""torch tensors: converted from and to numpy arrays, without copies if possible. torch is imported
only when a tensor is requested.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any

import numpy as np

from glft_schema.errors import OptionError, one_line, quote
from glft_schema.lazy import torch
from glft_schema.storage.dtypes import RECORDS, Array, Dtype, name_of, with_own_dtype, words

FRAMEWORKS = ("pt", "pt2", "torch", "pytorch", "np", "numpy", "tf", "tensorflow", "flax", "jax", "mlx", "paddle")


def is_tensor(value: object) -> bool:
    """Tells whether a value is a torch tensor."""
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    return tensor is not None and isinstance(value, tensor)


def identity_of(tensor: torch.Tensor) -> Hashable:
    """Returns a key that is equal for dense tensors that read the same memory in the same way."""
    bits = tensor.is_conj(), tensor.is_neg()
    return tensor.device, tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype, bits


def is_dense(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor has strided values in memory."""
    if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized or tensor.is_nested:
        return False
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return False  # values are computed, as of a DTensor, or there are none, as of a FakeTensor
    try:
        tensor.data_ptr()
    except (RuntimeError, ValueError):  # wrapped by torch.func, or uninitialized
        return False
    return True


def not_dense(values: Any) -> str | None:
    """Returns why a tensor or an array has not all of its values in memory; None for others."""
    if np.ma.is_masked(values):
        return "expected an array without masked elements: fill them"
    if not is_tensor(values) or is_dense(values):
        return None
    kind = "meta" if values.is_meta else str(values.layout)
    return f"expected a dense tensor with values in memory, found a {type(values).__name__} ({kind})"


def has_plain_memory(tensor: torch.Tensor) -> bool:
    """Tells whether a tensor has writable memory on the CPU: strided, not of a subclass, not
    wrapped by torch.func, not a negated view, and without ``requires_grad``."""
    return (
        type(tensor) is torch.Tensor
        and tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and not (tensor.requires_grad or tensor.is_neg())
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def as_array(tensor: torch.Tensor) -> Array:
    """Returns the numbers of a dense tensor, in its memory if that is on the CPU."""
    return array_in(tensor.detach().cpu().resolve_conj().resolve_neg())


def array_in(plain: torch.Tensor) -> Array:
    """Returns the numbers of a tensor that `has_plain_memory`, in its memory."""
    return _converted(plain, torch.Tensor.numpy)


def array_to_read(plain: torch.Tensor) -> Array:
    """Returns the numbers of a tensor that `has_plain_memory`, in its memory, for reading.

    Unlike with `torch.Tensor.numpy`, the storage can still be resized, as FSDP does to free
    weights.
    """
    return _converted(plain, np.from_dlpack)


def _converted(plain: torch.Tensor, convert: Callable[[Any], Array]) -> Array:
    """Returns what `convert` makes of a tensor, with a dtype that numpy lacks as records."""
    record = RECORDS.get(str(plain.dtype).removeprefix("torch."))
    if record is None:
        return convert(plain)
    return convert(plain.view(torch.int16 if record.itemsize == 2 else torch.uint8)).view(record)


def as_tensor(array: Array) -> torch.Tensor:
    """Returns an array as a tensor, in its memory if possible. Raises as `dtype_in_torch`."""
    dtype, bits = dtype_in_torch(array.dtype), words(array)
    if not bits.flags.writeable:  # torch warns of it
        bits = bits.copy()
    if not bits.flags.c_contiguous and any(stride < 0 or stride % bits.itemsize for stride in bits.strides):
        bits = np.ascontiguousarray(bits)
    tensor = torch.from_numpy(bits)
    return tensor if tensor.dtype == dtype else tensor.view(dtype)


@lru_cache(maxsize=1 << 8)
def dtype_in_torch(dtype: Dtype) -> torch.dtype:
    """Returns torch's equivalent of a dtype. Raises TypeError if this version of torch has none."""
    torch_dtype = getattr(torch, name_of(dtype), None)
    if not isinstance(torch_dtype, torch.dtype):
        raise TypeError(f"torch {torch.__version__} has no {name_of(dtype)}")
    return torch_dtype


def array_of(values: Any) -> Any:
    """Returns a tensor as an array, an array as `with_own_dtype` does, other values as given.

    Raises OptionError as `not_dense` says.
    """
    if problem := not_dense(values):
        raise OptionError(problem)
    if is_tensor(values):
        return as_array(values)
    return with_own_dtype(np.asarray(values)) if isinstance(values, (np.ndarray, np.generic)) else values


def usable_device(device: str | torch.device) -> torch.device:
    """Returns a device, with its index. Raises OptionError if torch does not know it or cannot use
    it."""
    problem = f"expected a device that torch can use here, such as 'cpu', found {quote(device)}"
    if device in FRAMEWORKS:
        raise OptionError(f"{problem}, which is a framework of safetensors' safe_open: leave it out")
    if not isinstance(device, (str, int, torch.device)):
        raise OptionError(problem)
    try:
        return torch.empty(0, device=device).device
    except (ImportError, RuntimeError, AssertionError) as error:
        raise OptionError(f"{problem}: {one_line(str(error), 120)}") from None


def torch_dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """Returns a dtype, given as such or by name. Raises OptionError if torch does not have it."""
    found = getattr(torch, dtype.removeprefix("torch."), None) if isinstance(dtype, str) else dtype
    if dtype is None or isinstance(found, torch.dtype):
        return found
    raise OptionError(f"expected a dtype of torch, such as torch.float16 or 'float16', found {quote(dtype)}")
