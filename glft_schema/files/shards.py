"""Models in several GGUF files, ``model-00001-of-00003.gguf``, opened as one.

Each file says in its metadata which one it is (``split.no``, counted from 0), of how many (``split.count``) and how many
tensors all have together (``split.tensors.count``); file names count from 1. The first has the model's metadata. Source:
llama.cpp's llama-model-loader.cpp and gguf-split.
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
from glft_schema.lazy import torch
from glft_schema.storage.source import StrPath
from glft_schema.tensors.region import Tensors
from glft_schema.tensors.tensor import Tensor

NAME = re.compile(r"(?P<prefix>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


class ShardInfo(NamedTuple):
    """Which file of a set one is.

    Attributes:
        number: counted from 0.
        files: how many there are.
        tensors: of all files together.
    """

    number: int
    files: int
    tensors: int


def shard_info(file: File) -> ShardInfo | None:
    """Returns which file of a set `file` is, or None where it stands alone.

    Raises:
        FormatError: where its metadata say so, but not with three integers from 0 on.
    """
    keys = file.format.shards
    if keys is None or file.metadata.get(keys.files, 1) == 1:
        return None
    found = [file.metadata.get(key) for key in keys]
    for key, number in zip(keys, found, strict=True):
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise FormatError(f"expected an integer from 0 on, found {shown(number)}", f"metadata -> {key}", file=file.name)
    return ShardInfo(*found)


def shard_path(prefix: StrPath, number: int, count: int) -> Path:
    """Returns the path of a file of a set, `number` counted from 0."""
    return Path(f"{prefix}-{number + 1:05d}-of-{count:05d}.gguf")


class ShardedTensors(Tensors):
    """The tensors of several files by name, those of the first file first."""

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
    """A set of files, opened as one: the regions are those of the first, the tensors those of all."""

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

    @property
    def device(self) -> str | torch.device:
        return self._shards[0].device

    @device.setter
    def device(self, device: str | torch.device) -> None:
        for shard in self._shards:
            shard.device = device


def open_set(first: File, open_one: Callable[[Path], File]) -> File:
    """Returns `first`, or where it is the first file of a set, all of the set as one.

    Another file of a set stands for itself.

    Args:
        first: an open file.
        open_one: opens another one.

    Raises:
        OSError: where a file of the set is missing or cannot be opened.
        FormatError: where the files do not belong together.
    """
    split, keys = shard_info(first), first.format.shards
    if keys is None or split is None or split.number != 0:
        return first
    named = NAME.fullmatch(str(first.name))
    if not named or (int(named["number"]), int(named["count"])) != (1, split.files):
        expected = shard_path("NAME", 0, split.files)
        raise FormatError(f"expected the first of {split.files} files to be called {expected}", file=first.name)
    shards = [first]
    try:
        for number in range(1, split.files):
            path = shard_path(named["prefix"], number, split.files)
            if not path.exists():
                raise FileNotFoundError(errno.ENOENT, f"file {number + 1} of {split.files} is missing", str(path))
            shards.append(open_one(path))
            found, wanted = shard_info(shards[-1]), ShardInfo(number, split.files, split.tensors)
            if found != wanted:
                raise FormatError(f"expected {wanted}, found {found}", "metadata -> split", file=str(path))
        names = [name for shard in shards for name in shard.tensors]
        if twice := [name for name, seen in Counter(names).items() if seen > 1]:
            problem = "expected each name once in all files, found it again"
            raise FormatError(problem, first.format.table, tensor=twice[0], file=first.name)
        if len(names) != split.tensors:
            problem = f"expected {split.tensors} tensors in all files, found {len(names)}"
            raise FormatError(problem, f"metadata -> {keys.tensors}", file=first.name)
    except BaseException:
        for shard in shards[1:]:
            shard.close()
        raise
    return ShardedFile(tuple(shards))
