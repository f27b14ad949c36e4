"""The lab's writer and reader of GLFT files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from glft_schema.files.state_dict import load_file
from glft_schema.lazy import torch
from glft_schema.storage.source import StrPath
from glft_schema.weights.payloads import WrittenTensor
from glft_schema.weights.save import save_file


def write_gguf_lite(
    path: StrPath,
    model: torch.nn.Module,
    schemes: Mapping[str, str],
    *,
    metadata: Mapping[str, str] | None = None,
    exclude: Iterable[str] = (),
) -> list[WrittenTensor]:
    """Writes the parameters and buffers of `model` to a GLFT file: the lab's writer.

    Integer buffers, such as the counters of batch norms, cannot be held: `exclude` them. Returns and raises as `save_file`.
    """
    return save_file(model.state_dict(), path, metadata, schemes=schemes, format="GLFT", exclude=exclude)


def read_gguf_lite(path: StrPath) -> dict[str, torch.Tensor]:
    """Returns all tensors of a GLFT file as float32: the lab's reader. Raises as `load_file`."""
    return load_file(path, dtype=torch.float32)
