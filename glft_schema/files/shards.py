"""Models split into several GGUF files, ``model-00001-of-00003.gguf``, opened as one.

The metadata of each file has its index (``split.no``, from 0), the number of files
(``split.count``) and of tensors in all files (``split.tensors.count``). File names count from 1.
The first file has the model's metadata. Source: llama.cpp's llama-model-loader.cpp and gguf-split.
"""

from __future__ import annotations

import errno
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from glft_schema.errors import FormatError, shown
from glft_schema.files.file import File
from glft_schema.storage.source import StrPath
from glft_schema.tensors.region import Tensors
from glft_schema.tensors.tensor import Tensor

NAME = re.compile(r"(?P<prefix>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


class ShardInfo(NamedTuple):
    """The position of a file in its set."""

    number: int  # from 0
    files: int
    tensors: int  # in all files

    def __str__(self) -> str:
        return f"file {self.number + 1} of {self.files} with {self.tensors} tensors in all"


def shard_info(file: File) -> ShardInfo | None:
    """Returns the position of `file` in its set, or None if it is a single file.

    Raises:
        FormatError: if a ``split`` value in the metadata is not a non-negative integer.
    """
    keys = file.format.shards
    if keys is None or file.metadata.get(keys.files, 1) == 1:
        return None
    numbers = [file.metadata.get(key) for key in keys]
    for key, number in zip(keys, numbers, strict=True):
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise FormatError(f"expected a non-negative integer, found {shown(number)}", f"metadata -> {key}", file=file.name)
    return ShardInfo(*numbers)


def shard_path(prefix: StrPath, number: int, count: int) -> Path:
    """Returns the path of file `number` of a set, counted from 0."""
    return Path(f"{prefix}-{number + 1:05d}-of-{count:05d}.gguf")


class ShardedTensors(Tensors):
    """The tensors of several files by name, in the order of the files."""

    def __init__(self, shards: tuple[File, ...]) -> None:
        self.gaps = tuple(gap for shard in shards for gap in shard.tensors.gaps)
        self.trailing = sum(shard.tensors.trailing for shard in shards)
        self._shards = {name: shard for shard in shards for name in shard.tensors}

    def __getitem__(self, name: str) -> Tensor:
        return self._shards[name].tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._shards)

    def __len__(self) -> int:
        return len(self._shards)


class ShardedFile(File):
    """A set of files, opened as one: regions of the first file, tensors of all files."""

    def __init__(self, shards: tuple[File, ...]) -> None:
        self._shards = shards
        self._tensors = ShardedTensors(shards)
        first = shards[0]
        super().__init__(first.format, first.regions, first.source, first.device, first.limits, first._parse)

    def __reduce__(self) -> tuple[Any, ...]:
        self.source.check_open()
        return ShardedFile, (self._shards,)

    @property
    def shards(self) -> tuple[File, ...]:
        return self._shards

    @property
    def tensors(self) -> Tensors:
        self.source.check_open()
        return self._tensors


def open_set(first: File, open_one: Callable[[Path], File]) -> File:
    """Returns the whole set if `first` is the first file of one, otherwise `first`.

    Args:
        first: an open file.
        open_one: opens another file of the set.

    Raises:
        OSError: if a file of the set is missing or cannot be opened.
        FormatError: if the files do not belong together.
    """
    split, keys = shard_info(first), first.format.shards
    if keys is None or split is None or split.number != 0:
        return first
    match = NAME.fullmatch(str(first.name))
    if not match or (int(match["number"]), int(match["count"])) != (1, split.files):
        name = shard_path("NAME", 0, split.files)
        raise FormatError(f"expected the first of {split.files} files to be named {name}", file=first.name)
    shards = [first]
    try:
        for number in range(1, split.files):
            path = shard_path(match["prefix"], number, split.files)
            if not path.exists():
                raise FileNotFoundError(errno.ENOENT, f"file {number + 1} of {split.files} is missing", str(path))
            shards.append(open_one(path))
            found, expected = shard_info(shards[-1]), ShardInfo(number, split.files, split.tensors)
            if found != expected:
                raise FormatError(f"expected {expected}, found {found or 'a single file'}", "metadata -> split", file=str(path))
        names = [name for shard in shards for name in shard.tensors]
        if duplicates := [name for name, count in Counter(names).items() if count > 1]:
            problem = "expected unique tensor names across the files, found this name twice"
            raise FormatError(problem, first.format.table, tensor=duplicates[0], file=first.name)
        if len(names) != split.tensors:
            problem = f"expected {split.tensors} tensors in the whole set, found {len(names)}"
            raise FormatError(problem, f"metadata -> {keys.tensors}", file=first.name)
    except BaseException:
        for shard in shards[1:]:
            shard.close()
        raise
    return ShardedFile(tuple(shards))
