"""`load_file`: a weights file as a state dict."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping

from glft_schema.errors import TensorError
from glft_schema.files.container import open
from glft_schema.lazy import outside_graphs, torch
from glft_schema.storage.source import StrPath
from glft_schema.storage.system import MAPS
from glft_schema.storage.torch_tensors import torch_dtype
from glft_schema.tensors.region import Tensors
from glft_schema.tensors.tensor import Tensor, dequantize_each


@outside_graphs
def load_file(
    path: StrPath,
    device: str | torch.device = "cpu",
    *,
    dtype: torch.dtype | str | None = None,
    mmap: bool = MAPS,
    as_stored: bool = False,
    out: Mapping[str, torch.Tensor] | Callable[[Tensor], torch.Tensor | None] | None = None,
) -> dict[str, torch.Tensor]:
    """Returns all tensors of a weights file by name.

    Args:
        path: the file.
        device: device of new tensors.
        dtype: a float dtype, or its name, for all tensors; by default as `Tensor.dequantize`.
        as_stored: return the parts of weights that are stored as several tensors, such as codes and
            scales, instead of the weights.
        mmap: map the file, by default as `open`. Floats that keep their dtype are then
            copy-on-write views of it.
        out: the tensors to write into: one for each name, such as a model's state dict, or a
            function that takes a `Tensor` of the file and returns a tensor, or None for a new one.
            All are checked before any value is written. Reused memory is several times as fast as
            new memory.

    Returns:
        The tensors in file order. Names that share a payload share a tensor, unless `out` has a
        tensor for each.

    Raises:
        OSError: if the file cannot be opened.
        FormatError: if it is not a valid file of a known format.
        OptionError: if torch cannot use the device, or `path` is not a path.
        TensorError: if `out` lacks a tensor, has one that the file lacks, or has one of another
            shape, dtype or device.
    """
    dtype = torch_dtype(dtype)
    with open(path, device, mmap=mmap) as file:
        weights = file.tensors if as_stored else file.weights
        given = _destinations(weights, out, dtype, device)
        keys: dict[str, Hashable] = {name: name if name in given else tensor.identity for name, tensor in weights.items()}
        tensors = {key: (weights[name], given.get(name)) for name, key in keys.items()}
        values = dict(zip(tensors, dequantize_each(tensors.values(), dtype), strict=True))
        return {name: values[key] for name, key in keys.items()}


def _destinations(
    weights: Tensors,
    out: Mapping[str, torch.Tensor] | Callable[[Tensor], torch.Tensor | None] | None,
    dtype: torch.dtype | None,
    device: str | torch.device,
) -> dict[str, torch.Tensor]:
    """Returns the tensors to write into, by name, after checking all of them."""
    if out is None:
        return {}
    if callable(out):
        targets = ((name, out(tensor)) for name, tensor in weights.items())
        given = {name: tensor for name, tensor in targets if tensor is not None}
    else:
        given = dict(out)
        for name in weights:
            if name not in given:
                raise TensorError("out has no tensor for it", name)
        for name in given:
            if name not in weights:
                raise TensorError("out has a tensor for it, but the file has none", name)
    for name, tensor in given.items():
        weights[name].check_out(tensor, weights[name].shape, dtype, None if device == "cpu" else device)
    return given
