"""Whole state dicts from a file."""

from __future__ import annotations

from collections.abc import Hashable

from glft_schema.files.container import open
from glft_schema.lazy import outside_graphs, torch
from glft_schema.storage.source import StrPath


@outside_graphs
def load_file(
    path: StrPath, device: str | torch.device = "cpu", *, dtype: torch.dtype | None = None, mmap: bool = True
) -> dict[str, torch.Tensor]:
    """Returns all tensors of a weights file by name.

    Args:
        path: the file.
        device: where the tensors go.
        dtype: a float dtype for all; unless given, float tensors keep theirs and quantized ones come as float32.
        mmap: map the file: floats that keep their dtype are then views of it, which writing into them does not change.

    Returns:
        The tensors in the file's order. Names that share a payload share a tensor.

    Raises:
        OSError: where the file cannot be opened.
        FormatError: where it is no file of a known format.
    """
    with open(path, device, mmap=mmap) as file:
        made: dict[Hashable, torch.Tensor] = {}
        loaded = {}
        for name, tensor in file.tensors.items():
            if tensor.identity not in made:
                made[tensor.identity] = tensor.dequantize(dtype)
            loaded[name] = made[tensor.identity]
        return loaded
