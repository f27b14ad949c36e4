"""`load_file`: a weights file as a state dict."""

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
        device: device of the tensors.
        dtype: a float dtype for all tensors; by default as `Tensor.dequantize`.
        mmap: map the file. Floats that keep their dtype are then copy-on-write views of it.

    Returns:
        The tensors in file order. Names that share a payload share a tensor.

    Raises:
        OSError: if the file cannot be opened.
        FormatError: if it is not a valid file of a known format.
    """
    with open(path, device, mmap=mmap) as file:
        by_payload: dict[Hashable, torch.Tensor] = {}
        for tensor in file.tensors.values():
            if tensor.identity not in by_payload:
                by_payload[tensor.identity] = tensor.dequantize(dtype)
        return {name: by_payload[tensor.identity] for name, tensor in file.tensors.items()}
