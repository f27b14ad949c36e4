"""Opens checkpoints of any kind: a weights file, the files of a set, or a torch file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from glft_schema.codec.metadata import TypedMetadata
from glft_schema.files.container import open as open_container
from glft_schema.files.file import File
from glft_schema.storage.file_source import open_regular
from glft_schema.storage.source import StrPath
from glft_schema.weights.patterns import leave_out
from glft_schema.weights.stored_tensors import StoredTensor, in_file, in_memory
from glft_schema.weights.torch_files import TORCH_MAGICS, load_torch


class Checkpoint(NamedTuple):
    """An open checkpoint."""

    tensors: Mapping[str, Any]
    metadata: Mapping[str, Any]  # typed if from GGUF, otherwise text; without the keys of a GGUF set
    file: File | None = None  # if it is a weights file

    @property
    def own_metadata(self) -> Mapping[str, Any]:
        """The metadata without the entries that the format adds to new files."""
        added = self.file.format.entries if self.file else {}
        if isinstance(self.metadata, TypedMetadata) or not added:
            return self.metadata
        return {key: text for key, text in self.metadata.items() if added.get(key) != text}


Weights = StrPath | File | Mapping[str, Any] | Checkpoint  # a path, an open file, a state dict, or an open checkpoint


def open_checkpoint(path: StrPath, exclude: Iterable[str] = ()) -> dict[str, StoredTensor]:
    """Opens a checkpoint: whatever `glft_schema.open` opens, or a torch file.

    A torch file is read with ``weights_only=True``, so it cannot run code. If its dict has the
    weights under ``state_dict``, ``model_state_dict`` or ``model``, that entry is used. Tensors of
    other files are read one at a time.

    Args:
        path: the file or folder.
        exclude: names or fnmatch patterns of entries to omit, which need not be tensors.

    Raises:
        OSError: if a file cannot be opened.
        FormatError: if it is not a checkpoint.
        TensorError: if an entry is not a tensor.
        SchemeError: if a pattern matches nothing.
    """
    return dict(open_with_metadata(path, exclude).tensors)


def open_with_metadata(path: StrPath, exclude: Iterable[str] = ()) -> Checkpoint:
    """Opens a checkpoint as `open_checkpoint` does, with its metadata."""
    checkpoint = open_entries(path)
    return checkpoint._replace(tensors=in_memory(leave_out(checkpoint.tensors, exclude)))


def open_entries(source: Weights) -> Checkpoint:
    """Opens a checkpoint of any kind, or returns an open one. Its entries may not be tensors."""
    if isinstance(source, Checkpoint):
        return source
    if isinstance(source, Mapping):
        return Checkpoint(source, {})
    return _of_file(source) if isinstance(source, File) else _open_path(source)


def _open_path(path: StrPath) -> Checkpoint:
    if not os.path.isdir(path):
        fd = open_regular(path)
        try:
            magic = os.read(fd, 4)
        finally:
            os.close(fd)
        if magic.startswith(TORCH_MAGICS):
            return Checkpoint(load_torch(path, mmap=magic.startswith(TORCH_MAGICS[0])), {})
    return _of_file(open_container(path))


def _of_file(file: File) -> Checkpoint:
    metadata = file.metadata
    if keys := file.format.shard_keys:
        metadata = metadata.without(*(key for key in keys if key in metadata))
    return Checkpoint({name: in_file(tensor) for name, tensor in file.tensors.items()}, metadata, file)
