"""Opens checkpoints of any kind: safetensors, a folder or index of shards, torch, GLFT or GGUF."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from glft_schema.codec.text import is_utf8
from glft_schema.errors import FormatError, safe, shown
from glft_schema.files.container import open as open_container
from glft_schema.files.file import File
from glft_schema.formats.registry import SAFETENSORS_ENDING, find_format
from glft_schema.storage.file_source import open_regular, read_regular
from glft_schema.storage.source import BytesSource, StrPath
from glft_schema.storage.streams import START
from glft_schema.weights.patterns import leave_out
from glft_schema.weights.safetensors_files import open_safetensors
from glft_schema.weights.stored_tensors import StoredTensor, in_file, in_memory
from glft_schema.weights.torch_files import TORCH_MAGICS, load_torch

INDEX_SUFFIX = f"{SAFETENSORS_ENDING}.index.json"


class Checkpoint(NamedTuple):
    """An open checkpoint."""

    tensors: Mapping[str, Any]
    metadata: Mapping[str, Any]  # typed if from GGUF, otherwise text; without the keys of a GGUF set
    file: File | None = None  # if it is a weights file


def open_checkpoint(path: StrPath, exclude: Iterable[str] = ()) -> dict[str, StoredTensor]:
    """Opens a checkpoint: safetensors (a file, folder or index), a torch file, or a weights file.

    A torch file is read with ``weights_only=True``, so it cannot run code. If its dict has the
    weights under ``state_dict``, ``model_state_dict`` or ``model``, that entry is used. Tensors of
    safetensors files are read one at a time.

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
    checkpoint = _open_any(path)
    return checkpoint._replace(tensors=in_memory(leave_out(checkpoint.tensors, exclude)))


def _open_any(path: StrPath) -> Checkpoint:
    """Opens a checkpoint of any kind. Its entries may not be tensors."""
    if os.path.isdir(path):
        return Checkpoint(_open_folder(Path(path)), {})
    if os.fspath(path).endswith(INDEX_SUFFIX):
        return Checkpoint(_open_index(Path(path)), {})
    fd = open_regular(path)
    try:
        magic = os.read(fd, START)
    finally:
        os.close(fd)
    if magic.startswith(TORCH_MAGICS):
        return Checkpoint(load_torch(path, mmap=magic.startswith(TORCH_MAGICS[0])), {})
    if find_format(BytesSource(magic)):
        file = open_container(path)
        tensors = {name: in_file(tensor) for name, tensor in file.tensors.items()}
        metadata = file.metadata
        if keys := file.format.shards:
            metadata = metadata.without(*(key for key in keys if key in metadata))
        return Checkpoint(tensors, metadata, file)
    return Checkpoint(*open_safetensors(path))


def _open_folder(folder: Path) -> Mapping[str, Any]:
    indices = sorted(folder.glob(f"*{INDEX_SUFFIX}"))
    if not indices:
        files = sorted(folder.glob(f"*{SAFETENSORS_ENDING}"))
        if len(files) != 1:
            raise FormatError(f"expected an index (*{INDEX_SUFFIX}) or one safetensors file, found {len(files)} files")
        return open_safetensors(files[0])[0]
    if len(indices) > 1:
        raise FormatError(f"expected one index in the directory, found {', '.join(safe(index.name) for index in indices)}")
    return _open_index(indices[0])


def _open_index(index: Path) -> Mapping[str, Any]:
    stored = read_regular(index)
    try:
        weight_map = json.loads(stored.decode("utf-8"))["weight_map"]
        shards = set(weight_map.values())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise FormatError(f"expected JSON with a weight_map in {safe(index.name)}") from None
    if not shards:
        raise FormatError(f"expected at least one tensor in the weight_map, found none in {safe(index.name)}")
    opened = {}
    for shard in sorted(shards, key=str):
        if not _is_file_name(shard):
            raise FormatError(f"expected the name of a file in the directory, found {shown(shard)}", "weight_map")
        opened[shard] = open_safetensors(index.parent / shard)[0]
    missing = [name for name, shard in weight_map.items() if name not in opened[shard]]
    if missing:
        raise FormatError(f"expected tensor {shown(missing[0])} in {safe(weight_map[missing[0]])}, found none", "weight_map")
    return {name: opened[shard][name] for name, shard in weight_map.items()}


def _is_file_name(text: object) -> bool:
    """Returns whether a value is the name of a file in the same folder."""
    if not isinstance(text, str) or text in ("", ".", ".."):
        return False
    return text == os.path.basename(text) and "\0" not in text and is_utf8(text)
