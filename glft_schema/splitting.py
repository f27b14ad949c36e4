"""A GGUF file cut into several, and several put together: payloads are copied as they are, one at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from glft_schema.container import Container
from glft_schema.errors import SchemeError, shown
from glft_schema.file import File
from glft_schema.formats.gguf import ALIGNMENT, GGUF
from glft_schema.shards import COUNT, KEYS, NUMBER, TENSORS, shard_path, split_of
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
        SchemeError: where `file` is no single GGUF file, or neither limit is given.
        OSError: from the system.
    """
    if file.format is not GGUF or split_of(file):
        raise SchemeError(f"expected a single GGUF file to be split, found {shown(file.name)}")
    if not max_tensors and not max_bytes:
        raise SchemeError("expected a number of tensors or of bytes for each file, found neither")
    groups: list[list[Tensor]] = [[]]
    for tensor in file.tensors.values():
        used = sum(other.nbytes for other in groups[-1])
        full = (max_tensors and len(groups[-1]) >= max_tensors) or (max_bytes and used + tensor.nbytes > max_bytes)
        if groups[-1] and full:
            groups.append([])
        groups[-1].append(tensor)
    paths = []
    for number, tensors in enumerate(groups):
        entries = {NUMBER: Typed(number, "uint16"), COUNT: Typed(len(groups), "uint16")}
        entries[TENSORS] = Typed(len(file.tensors), "int32")
        kept = file.metadata if number == 0 else file.metadata.without(*(key for key in file.metadata if key != ALIGNMENT))
        paths.append(str(shard_path(prefix, number, len(groups))))
        _write(file.header, kept | entries, tensors, paths[-1])
    return paths


def merge(file: File, path: StrPath) -> None:
    """Writes a set of GGUF files as one, with the first one's metadata.

    Raises:
        SchemeError: where `file` is no set.
        OSError: from the system.
    """
    if len(file.shards) < 2:
        raise SchemeError(f"expected the first file of a set, found {shown(file.name)}")
    metadata = file.metadata.without(*KEYS)
    _write(file.header, metadata, list(file.tensors.values()), path)


def _write(header: Mapping[str, Any], metadata: Metadata, tensors: list[Tensor], path: StrPath) -> None:
    rows = [{"name": tensor.name, "dims": tensor.dims, "dtype": tensor.dtype} for tensor in tensors]
    payloads = {tensor.name: tensor for tensor in tensors}
    regions = {"header": header, "metadata": metadata, GGUF.table: rows, "data": payloads}
    Container.build_file({"format": GGUF.name, **regions}, path)
