"""The lab's writer and reader for GLFT files."""

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
    """Writes the parameters and buffers of `model` to a GLFT file.

    GLFT has no integer types: `exclude` integer buffers, such as the counters of batch norms. See
    `save_file` for the return value and errors.
    """
    return save_file(model.state_dict(), path, metadata, schemes=schemes, format="GLFT", exclude=exclude)


def read_gguf_lite(path: StrPath) -> dict[str, torch.Tensor]:
    """Returns all tensors of a GLFT file as float32. Raises the errors of `load_file`."""
    return load_file(path, dtype=torch.float32)
