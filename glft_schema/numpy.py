"""Weights files as numpy arrays, without torch.

    arrays = glft_schema.numpy.load_file("model.gguf")
    glft_schema.numpy.save_file(arrays, "model.safetensors")

`Tensor.numpy` of an open file returns one tensor, or a part of it.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from glft_schema.errors import OptionError
from glft_schema.files.container import open
from glft_schema.storage.dtypes import Array, name_of
from glft_schema.storage.source import StrPath
from glft_schema.storage.system import MAPS
from glft_schema.tensors.tensor import Tensor
from glft_schema.weights.save import save_file

__all__ = ["load_file", "save_file"]


def load_file(path: StrPath, *, mmap: bool = MAPS, ml_dtypes: bool = False) -> dict[str, Array]:
    """Returns all tensors of a weights file by name.

    Args:
        path: the file.
        mmap: map the file, by default as `open`. Numbers that keep their dtype are then
            copy-on-write views of it.
        ml_dtypes: return bfloat16 and float8 in the dtypes of the package ml_dtypes; by default as
            float32.

    Returns:
        The arrays in file order, quantized tensors as float32. Names that share a payload share an
        array.

    Raises:
        OSError: if the file cannot be opened.
        FormatError: if it is not a valid file of a known format.
        OptionError: if the package ml_dtypes is not installed, or `path` is not a path.
        TensorError: if a tensor has an unknown type.
    """
    with open(path, mmap=mmap) as file:
        by_payload: dict[Hashable, Array] = {}
        for tensor in file.weights.values():
            if tensor.identity not in by_payload:
                by_payload[tensor.identity] = tensor.numpy(dtype=_own_dtype(tensor) if ml_dtypes else None)
        return {name: by_payload[tensor.identity] for name, tensor in file.weights.items()}


def _own_dtype(tensor: Tensor) -> Any:
    """Returns the dtype of ml_dtypes for a tensor whose dtype numpy lacks; otherwise None."""
    name = name_of(tensor.type.dtype) if tensor.type.dtype.names else ""
    if not name or "_x2" in name:
        return None
    try:
        import ml_dtypes
    except ImportError:
        raise OptionError("ml_dtypes is not installed: pip install ml_dtypes") from None
    return np.dtype(getattr(ml_dtypes, name))
