"""A GGUF file cut into several, and several put together: payloads are copied as they are, one at a time."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from glft_schema.container import Container
from glft_schema.errors import SchemeError, shown
from glft_schema.file import File
from glft_schema.formats.gguf import ALIGNMENT, GGUF, SPLIT_NUMBER
from glft_schema.shards import COUNT, KEYS, TENSORS, shard_path, split_of
from glft_schema.source import StrPath
from glft_schema.tensors import Tensor
from glft_schema.typed_values import Metadata, Typed


def split(file: File, prefix: StrPath, max_tensors: int | None = None, max_bytes: int | None = None) -> list[str]:
    """Writes a GGUF file as a set of files.

    Args:
        file: an open file.
        prefix: what the files' names begin with: ``PREFIX-00001-of-00003.gguf``.
        max_tensors: how many tensors each may have.
        max_bytes: how many bytes the payloads of each may have together; a larger tensor has a file of its own.

    Returns:
        The paths, in order.

    Raises:
        SchemeError: where `file` is no single GGUF file, neither limit is given, or a file has one of the names.
        FormatError: where there are more files or tensors than their numbers can say.
        OSError: from the system. No file of the set is left then.
    """
    if file.format is not GGUF or split_of(file):
        raise SchemeError(f"expected a single GGUF file to be split, found {shown(file.name)}")
    if not max_tensors and not max_bytes:
        raise SchemeError("expected a number of tensors or of bytes for each file, found neither")
    groups: list[list[Tensor]] = [[]]
    used = 0
    for tensor in file.tensors.values():
        full = (max_tensors and len(groups[-1]) >= max_tensors) or (max_bytes and used + tensor.nbytes > max_bytes)
        if groups[-1] and full:
            groups.append([])
            used = 0
        groups[-1].append(tensor)
        used += tensor.nbytes
    paths = [str(shard_path(prefix, number, len(groups))) for number in range(len(groups))]
    if taken := [path for path in paths if os.path.lexists(path)]:
        raise SchemeError(f"expected names that are free, found a file {shown(os.path.basename(taken[0]))}")
    others = file.metadata.without(*(key for key in file.metadata if key != ALIGNMENT))
    begun: list[str] = []
    try:
        for number, (path, tensors) in enumerate(zip(paths, groups, strict=True)):
            begun.append(path)
            entries = {SPLIT_NUMBER: Typed(number, "uint16"), COUNT: Typed(len(groups), "uint16")}
            entries[TENSORS] = Typed(len(file.tensors), "int32")
            _write(file.header, (others if number else file.metadata) | entries, tensors, path)
    except BaseException:
        for path in begun:
            with suppress(OSError):
                os.unlink(path)
        raise
    return paths


def merge(file: File, path: StrPath) -> None:
    """Writes a set of GGUF files as one, with the first one's metadata, and what the others have beside.

    Raises:
        SchemeError: where `file` is not the first of a set.
        OSError: from the system.
    """
    if len(file.shards) < 2 and (file.format is not GGUF or file.metadata.get(COUNT) != 1):
        raise SchemeError(f"expected the first file of a set, found {shown(file.name)}")
    metadata = file.metadata
    for shard in file.shards[1:]:
        metadata = metadata | shard.metadata.without(*(key for key in shard.metadata if key in metadata))
    metadata = metadata.without(*KEYS)
    _write(file.header, metadata, list(file.tensors.values()), path)


def _write(header: Mapping[str, Any], metadata: Metadata, tensors: list[Tensor], path: StrPath) -> None:
    rows = [{"name": tensor.name, "dims": tensor.dims, "dtype": tensor.dtype} for tensor in tensors]
    payloads = {tensor.name: tensor for tensor in tensors}
    regions = {"header": header, "metadata": metadata, GGUF.table: rows, "data": payloads}
    Container.build_file({"format": GGUF.name, **regions}, path)
