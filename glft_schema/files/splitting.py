"""Splitting a file into a set, and merging a set. Payloads are copied one at a time."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from glft_schema.codec.metadata import TypedMetadata
from glft_schema.errors import OptionError, alternatives, quote
from glft_schema.files.container import Container, as_file
from glft_schema.files.file import File
from glft_schema.files.shards import shard_info, shard_path
from glft_schema.formats.format import ShardIndex
from glft_schema.formats.registry import FORMATS
from glft_schema.lazy import outside_graphs
from glft_schema.limits import check_repeats
from glft_schema.storage.atomic import atomic_write, new_files
from glft_schema.storage.source import StrPath, path_text
from glft_schema.storage.tensor_bytes import write_all
from glft_schema.tensors.tensor import Tensor


@outside_graphs
def split(file: File | StrPath, prefix: StrPath, *, max_tensors: int | None = None, max_bytes: int | None = None) -> list[str]:
    """Splits a GGUF or safetensors file into a set of files.

    Args:
        file: an open file or a path.
        prefix: the start of the file names: ``PREFIX-00001-of-00003.gguf``. The index of
            safetensors files is ``PREFIX.safetensors.index.json``.
        max_tensors: maximum number of tensors per file.
        max_bytes: maximum bytes of payloads and their padding per file, as in llama-gguf-split; a
            larger tensor gets its own file.

    Returns:
        The paths, in order; an index is the last.

    Raises:
        OptionError: if `file` is part of a set or its format has no sets, neither limit is given,
            or a path exists.
        FormatError: if the number of files or tensors does not fit its metadata field, or the file
            is not valid.
        OSError: from the system. Files already written are removed.
    """
    prefix, file = path_text(prefix), as_file(file)
    shards, keys = file.format.shards, file.format.shard_keys
    if shards is None or shard_info(file) or len(file.shards) > 1:
        known = alternatives(format.name for format in FORMATS if format.shards)
        raise OptionError(f"expected a {known} file that is not part of a set, found {quote(file.name)}")
    if not max_tensors and not max_bytes:
        raise OptionError("expected max_tensors or max_bytes (--max-tensors or --max-bytes), found neither")
    groups: list[list[Tensor]] = [[]]
    used, alignment = 0, file.regions.counts.get("alignment", 1)
    for tensor in file.tensors.values():
        padded = tensor.nbytes + -tensor.nbytes % alignment
        full = (max_tensors and len(groups[-1]) >= max_tensors) or (max_bytes and used + padded > max_bytes)
        if groups[-1] and full:
            groups.append([])
            used = 0
        groups[-1].append(tensor)
        used += padded
    paths = [str(shard_path(prefix, number, len(groups), file.format.endings[0])) for number in range(len(groups))]
    index = [f"{prefix}{shards.suffix}"] if isinstance(shards, ShardIndex) else []
    with new_files(paths + index) as created:
        for number, (path, tensors) in enumerate(zip(paths, groups, strict=True)):
            metadata = file.metadata
            if keys:
                rest = metadata.without(*(key for key in metadata if key != file.format.alignment_key))
                metadata = (rest if number else metadata) | keys.entries(number, len(groups), len(file.tensors))
            _write(file, metadata, tensors, path)
            created.append(path)
        for path in index:
            _write_index(path, paths, groups)
    return paths + index


def _write_index(path: str, paths: list[str], groups: list[list[Tensor]]) -> None:
    """Writes the index of a set, as transformers does."""
    files = zip(paths, groups, strict=True)
    names = {tensor.name: os.path.basename(shard) for shard, tensors in files for tensor in tensors}
    total = sum(tensor.nbytes for tensors in groups for tensor in tensors)
    index = {"metadata": {"total_size": total}, "weight_map": names}
    with atomic_write(path) as stream:
        write_all(stream, (json.dumps(index, indent=2, sort_keys=True) + "\n").encode())


@outside_graphs
def merge(file: File | StrPath, path: StrPath) -> None:
    """Merges a set of files into one. Metadata of earlier files takes precedence.

    Args:
        file: an open set, or the path of its first file, index or folder.
        path: the file to write.

    Raises:
        OptionError: if `file` is neither the first file nor the index of a set.
        FormatError: if a file is not valid.
        OSError: from the system.
    """
    file = as_file(file)
    keys = file.format.shard_keys
    if len(file.shards) < 2 and not (keys and file.metadata.get(keys.files) == 1):
        if isinstance(file.format.shards, ShardIndex):
            problem = f"a shard of {file.format.name} does not name its set: give the index or the directory"
            raise OptionError(f"expected the index of a split model, found {quote(file.name)}: {problem}")
        raise OptionError(f"expected the first file or the index of a split model, found {quote(file.name)}")
    metadata = file.metadata
    for shard in file.shards[1:]:
        if isinstance(metadata, TypedMetadata):
            metadata = metadata | shard.metadata.without(*(key for key in shard.metadata if key in metadata))
        else:
            metadata = {**shard.metadata, **metadata}
    if keys:
        metadata = metadata.without(*(key for key in keys if key in metadata))
    _write(file, metadata, list(file.tensors.values()), path)


def _write(file: File, metadata: Mapping[str, Any], tensors: list[Tensor], path: StrPath) -> None:
    rows = [{"name": tensor.name, "dims": tensor.dims, "dtype": tensor.type} for tensor in tensors]
    rows = sorted(rows, key=file.format.order) if file.format.order else rows
    regions = {"header": file.header, "metadata": metadata}
    regions = {name: region for name, region in regions.items() if file.format.field(name) is not None}
    payloads = {tensor.name: tensor for tensor in tensors}
    distinct = {tensor.identity: tensor.nbytes for tensor in tensors}
    check_repeats(sum(tensor.nbytes for tensor in tensors), sum(distinct.values()))
    Container.build_file({"format": file.format.name, **regions, file.format.table: rows, "data": payloads}, path)
