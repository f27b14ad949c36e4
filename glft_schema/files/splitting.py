"""Splitting a GGUF file into a set, and merging a set. Payloads are copied one at a time."""

from __future__ import annotations

import os
from contextlib import suppress

from glft_schema.codec.metadata import TypedMetadata
from glft_schema.codec.typed_values import Typed
from glft_schema.errors import OptionError, shown
from glft_schema.files.container import Container
from glft_schema.files.file import File
from glft_schema.files.shards import shard_info, shard_path
from glft_schema.storage.source import StrPath
from glft_schema.tensors.tensor import Tensor


def split(file: File, prefix: StrPath, *, max_tensors: int | None = None, max_bytes: int | None = None) -> list[str]:
    """Splits a GGUF file into a set of files.

    Args:
        file: an open file.
        prefix: of the file names: ``PREFIX-00001-of-00003.gguf``.
        max_tensors: maximum number of tensors per file.
        max_bytes: maximum payload bytes per file; a larger tensor gets its own file.

    Returns:
        The paths, in order.

    Raises:
        OptionError: if `file` is not a single GGUF file, both limits are missing, or a path exists.
        FormatError: if the number of files or tensors exceeds its field in the metadata.
        OSError: from the system. Files already written are removed.
    """
    keys = file.format.shards
    if keys is None or shard_info(file):
        raise OptionError(f"expected a GGUF file that is not part of a set, found {shown(file.name)}")
    if not max_tensors and not max_bytes:
        raise OptionError("expected max_tensors or max_bytes (--max-tensors or --max-bytes), found neither")
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
        raise OptionError(f"expected no file at the output paths, found {shown(os.path.basename(taken[0]))}")
    rest = file.metadata.without(*(key for key in file.metadata if key != file.format.alignment_key))
    written: list[str] = []
    try:
        for number, (path, tensors) in enumerate(zip(paths, groups, strict=True)):
            written.append(path)
            counts = Typed(number, "uint16"), Typed(len(groups), "uint16"), Typed(len(file.tensors), "int32")
            _write(file, (rest if number else file.metadata) | dict(zip(keys, counts, strict=True)), tensors, path)
    except BaseException:
        for path in written:
            with suppress(OSError):
                os.unlink(path)
        raise
    return paths


def merge(file: File, path: StrPath) -> None:
    """Merges a set of GGUF files into one, with the first file's metadata and keys missing there.

    Raises:
        OptionError: if `file` is not the first file of a set.
        OSError: from the system.
    """
    keys = file.format.shards
    if keys is None or (len(file.shards) < 2 and file.metadata.get(keys.files) != 1):
        raise OptionError(f"expected the first file of a split GGUF model, found {shown(file.name)}")
    metadata = file.metadata
    for shard in file.shards[1:]:
        metadata = metadata | shard.metadata.without(*(key for key in shard.metadata if key in metadata))
    metadata = metadata.without(*keys)
    _write(file, metadata, list(file.tensors.values()), path)


def _write(file: File, metadata: TypedMetadata, tensors: list[Tensor], path: StrPath) -> None:
    rows = [{"name": tensor.name, "dims": tensor.dims, "dtype": tensor.dtype} for tensor in tensors]
    regions = {"header": file.header, "metadata": metadata, file.format.table: rows}
    payloads = {tensor.name: tensor for tensor in tensors}
    Container.build_file({"format": file.format.name, **regions, "data": payloads}, path)
