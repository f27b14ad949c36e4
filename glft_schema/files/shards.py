"""Models split into several files, opened as one.

The metadata of a GGUF file such as ``model-00001-of-00003.gguf`` has its index in the set
(``split.no``, from 0), the number of files (``split.count``) and the number of tensors in all files
(``split.tensors.count``). File names count from 1. The first file has the model's metadata. Source:
llama.cpp's llama-model-loader.cpp and gguf-split.

safetensors files have an index, ``model.safetensors.index.json``, whose ``weight_map`` maps each
tensor to a file name, and torch files ``pytorch_model.bin.index.json``. Source: transformers.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from glft_schema.codec.text import is_utf8
from glft_schema.errors import FormatError, quote, safe
from glft_schema.files.file import File
from glft_schema.formats.format import Format
from glft_schema.formats.registry import index_suffixes, indexed_format
from glft_schema.storage.locations import STDIN, beside, file_name, is_remote, shown
from glft_schema.storage.opening import read_regular
from glft_schema.storage.source import StrPath
from glft_schema.storage.system import RESERVED
from glft_schema.tensor_types import TensorType
from glft_schema.tensors.region import Tensors
from glft_schema.tensors.tensor import Tensor

TORCH_FILE, TORCH_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"  # ends of names
NAME = re.compile(r"(?P<prefix>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<ending>\.[^.]*)", re.DOTALL)


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
    keys = file.format.shard_keys
    if keys is None or file.metadata.get(keys.files, 1) == 1:
        return None
    numbers = [file.metadata.get(key) for key in keys]
    for key, number in zip(keys, numbers, strict=True):
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise FormatError(f"expected a non-negative integer, found {quote(number)}", f"metadata -> {key}", file=file.name)
    return ShardInfo(*numbers)


def shard_path(prefix: StrPath, number: int, count: int, ending: str) -> Path:
    """Returns the path of file `number` of a set, counted from 0."""
    return Path(f"{prefix}-{number + 1:05d}-of-{count:05d}{ending}")


class ShardedTensors(Tensors):
    """The tensors of several files by name, in the order of the files."""

    def __init__(self, shards: Iterable[File]) -> None:
        self.gaps = tuple(gap for shard in shards for gap in shard.tensors.gaps)
        self.trailing = sum(shard.tensors.trailing for shard in shards)
        self._shards = {name: shard for shard in shards for name in shard.tensors}
        self._types = set[TensorType]().union(*(shard.tensors.types for shard in shards))

    @property
    def types(self) -> set[TensorType]:
        return self._types

    def __getitem__(self, name: str) -> Tensor:
        return self._shards[name].tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._shards)

    def __len__(self) -> int:
        return len(self._shards)


class ShardedFile(File):
    """A set of files, opened as one: regions of the first file, tensors of all files.

    Args:
        shards: the files.
        name: the name of the set; by default the path of the first file.
    """

    def __init__(self, shards: tuple[File, ...], name: str | None = None) -> None:
        self._shards = shards
        self._tensors = ShardedTensors(shards)
        first = shards[0]
        super().__init__(first.format, first.regions, first.source, first.device, first.limits, first._parse)
        self.name = name or first.name

    def __reduce__(self) -> tuple[Any, ...]:
        self.source.check_open()
        return ShardedFile, (self._shards, self.name)

    @property
    def shards(self) -> tuple[File, ...]:
        return self._shards

    @property
    def tensors(self) -> Tensors:
        self.source.check_open()
        return self._tensors


def open_set(path: str, open_one: Callable[[StrPath], File]) -> File:
    """Opens a file, or the set of files that a folder, an index or a first file stands for.

    Args:
        path: the file, index or folder.
        open_one: opens a single file.

    Raises:
        OSError: if a file is missing or cannot be opened.
        FormatError: if a file or the index is invalid, or the files do not belong together.
    """
    if os.path.isdir(path):
        path = str(find_set(Path(path)))
    with ExitStack() as opened:  # closes the files that are open if one is at fault

        def open_shard(path: StrPath) -> File:
            return opened.enter_context(open_one(path))

        format = indexed_format(path)
        file = _open_index(path, format, open_shard) if format else _open_numbered(path, open_shard)
        opened.pop_all()
    return file


def _open_numbered(path: str, open_one: Callable[[StrPath], File]) -> File:
    """Opens the set that begins with a file, or this file if it is not the first one of a set."""
    first = open_one(path)
    shards, split = [first], _place_in_set(first)
    if split is None or split.number != 0:
        return first
    names = NAME.fullmatch(str(first.name))
    assert names  # `_place_in_set` has checked it
    prefix = PurePath(names["prefix"]).name
    for number in range(1, split.files):
        name = str(shard_path(prefix, number, split.files, names["ending"]))
        try:
            shards.append(open_one(beside(path, name)))
        except FileNotFoundError as error:
            problem = f"file {number + 1} of {split.files} is missing"
            raise FileNotFoundError(errno.ENOENT, problem, error.filename) from None
        found, expected = shard_info(shards[-1]), ShardInfo(number, split.files, split.tensors)
        if found != expected:
            problem = f"expected {expected}, found {found or 'a single file'}"
            raise FormatError(problem, "metadata -> split", file=shards[-1].name)
    tensors = [name for shard in shards for name in shard.tensors]
    if duplicates := [name for name, count in Counter(tensors).items() if count > 1]:
        problem = "expected unique tensor names across the files, found this name twice"
        raise FormatError(problem, first.format.table, tensor=duplicates[0], file=first.name)
    if len(tensors) != split.tensors:
        problem, keys = f"expected {split.tensors} tensors in the whole set, found {len(tensors)}", first.format.shard_keys
        raise FormatError(problem, f"metadata -> {keys and keys.tensors}", file=first.name)
    return ShardedFile(tuple(shards))


def _place_in_set(file: File) -> ShardInfo | None:
    """Returns the position of a file in its set, as `shard_info`, if its name states the same."""
    if (split := shard_info(file)) is None:
        return None
    match, ending = NAME.fullmatch(str(file.name)), file.format.endings[0]
    named = match and (int(match["number"]) - 1, int(match["count"]), match["ending"])
    if named != (split.number, split.files, ending) and (named or split.number == 0):
        name = shard_path("NAME", split.number, split.files, ending)
        raise FormatError(f"expected file {split.number + 1} of {split.files} to be named {name}", file=file.name)
    return split


def _open_index(index: str, format: Format, open_one: Callable[[StrPath], File]) -> File:
    """Opens the files of a format that an index lists."""
    weight_map, names = read_index(index)
    shards = dict[str, File]()
    for name in names:
        shards[name] = open_one(beside(index, name))
        if shards[name].format is not format:
            raise FormatError(f"expected a {format.name} file, found {shards[name].format.name}", file=shards[name].name)
    check_listed(index, weight_map, {name: shard.tensors for name, shard in shards.items()})
    return ShardedFile(tuple(shards.values()), shown(index))


def whole_set(file: File) -> tuple[str, Path] | None:
    """Returns a description of a file's position in its set, and the path that opens the set.

    None if the file is a complete model, or the whole set is open. Raises as `shard_info`.
    """
    if len(file.shards) > 1:
        return None
    if split := shard_info(file):
        match = NAME.fullmatch(str(file.name))
        first = shard_path(match["prefix"] if match else "NAME", 0, split.files, file.format.endings[0])
        return f"file {split.number + 1} of {split.files}", first
    return listed_in(file.name)


def listed_in(path: StrPath) -> tuple[str, Path] | None:
    """Returns a description of a file that an index in its folder lists, and the index, or None. Of
    a URL, whose folder cannot be listed, the name tells."""
    suffixes = (*(suffix for _, suffix in index_suffixes()), TORCH_INDEX)
    if is_remote(path):
        match = NAME.fullmatch(file_name(path))
        if not match or not any(suffix.endswith(f"{match['ending']}.index.json") for suffix in suffixes):
            return None
        return f"file {match['number']} of {match['count']}", Path(f"{match['prefix']}{match['ending']}.index.json")
    path = Path(path)
    for suffix in suffixes:
        for index in sorted(path.parent.glob(f"*{suffix}")):
            with suppress(FormatError, OSError):  # not an index, or not readable
                if path.name in _read_index(index)[1]:
                    return "one of the files of an index", index
    return None


def check_whole(file: File | None, path: StrPath) -> None:
    """Raises FormatError, which names the file to open, if a file is part of a set.

    Args:
        file: the open file; None for a torch file.
        path: its path.
    """
    if part := whole_set(file) if file else listed_in(path):
        raise FormatError(f"expected a whole model, found {part[0]}: open {safe(part[1].name)}", file=shown(path))


def find_set(folder: Path) -> Path:
    """Returns the index in a folder, or its only weights file of a format with an index; those of
    torch if there are no others.

    Raises:
        FormatError: if there are several, or none.
    """
    kinds = [(format.name, suffix, format.endings) for format, suffix in index_suffixes()]
    for _, suffix, endings in (*kinds, ("torch", TORCH_INDEX, (TORCH_FILE,))):
        indices = sorted(folder.glob(f"*{suffix}"))
        files = sorted(path for ending in endings for path in folder.glob(f"*{ending}"))
        if len(indices) > 1:
            found = ", ".join(safe(index.name) for index in indices)
            raise FormatError(f"expected one index in the directory, found {found}", file=str(folder))
        for index in indices:
            whole = index.with_name(index.name.removesuffix(".index.json"))
            if whole in files and _read_index(index)[1] != [whole.name]:
                found = f"{safe(whole.name)}, which transformers loads, and {safe(index.name)}, which does not list it alone"
                raise FormatError(f"expected one model in the directory, found {found}: remove one", file=str(folder))
        if indices or len(files) == 1:
            return (indices or files)[0]
        if files:
            break
    expected = " or ".join(f"an index (*{suffix}) or one {name} file" for name, suffix, _ in kinds)
    others = sorted(path.name for path in folder.iterdir() if path.suffix == ".gguf")
    hint = f"; give one of its GGUF files: {', '.join(map(safe, others[:5]))}{', ...' * (len(others) > 5)}" if others else ""
    if (folder / "model_index.json").is_file():
        hint = "; a pipeline of diffusers has a model in each of its folders: give their files, one by one"
    raise FormatError(f"expected {expected}, found {len(files)} files{hint}", file=str(folder))


def read_index(index: StrPath) -> tuple[dict[str, str], list[str]]:
    """Returns the file name of each tensor, and all file names.

    Raises:
        OSError: if a file is missing, or the index cannot be read.
        FormatError: if it is not an index of files in its folder.
    """
    (weight_map, names), file = _read_index(index), shown(index)
    if not names:
        raise FormatError("expected at least one tensor, found none", "weight_map", file=file)
    if bad := [name for name in names if not is_file_name(name)]:
        raise FormatError(f"expected the name of a file in the directory, found {quote(bad[0])}", "weight_map", file=file)
    if (match := NAME.fullmatch(names[0])) and len(names) < int(match["count"]):
        problem = f"expected {int(match['count'])} files, as the name {safe(names[0])} says, found {len(names)}"
        raise FormatError(problem, "weight_map", file=file)
    for path in (beside(index, name) for name in names):
        if not (is_remote(path) or os.path.exists(path)):
            problem = f"{safe(os.path.basename(file))} lists this file, which is missing: download it, too"
            raise FileNotFoundError(errno.ENOENT, problem, path)
    return weight_map, names


def check_listed(index: StrPath, weight_map: Mapping[str, str], tensors: Mapping[str, Collection[str]]) -> None:
    """Raises FormatError unless an index lists exactly the tensors that each of its files has."""
    file = shown(index)
    for tensor, name in weight_map.items():
        if tensor not in tensors[name]:
            raise FormatError(f"expected this tensor in {safe(name)}, found none", "weight_map", tensor=tensor, file=file)
    for name, held in tensors.items():
        for tensor in held:
            if weight_map.get(tensor) != name:
                problem = f"expected {quote(name)} for this tensor, which it has, found {safe(weight_map.get(tensor, 'none'))}"
                raise FormatError(problem, "weight_map", tensor=tensor, file=file)


def _read_index(index: StrPath) -> tuple[dict[str, Any], list[Any]]:
    """Returns the file name of each tensor, and all file names, without checking them."""
    stored = read_regular(index)
    try:
        weight_map = json.loads(stored.decode("utf-8"))["weight_map"]
        return weight_map, sorted(set(weight_map.values()), key=str)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise FormatError("expected JSON with a weight_map", file=shown(index)) from None


def is_file_name(text: object) -> bool:
    """Returns whether a value is the name of a file in the same folder, on any system."""
    return isinstance(text, str) and text not in ("", STDIN) and not RESERVED.search(text) and is_utf8(text)
