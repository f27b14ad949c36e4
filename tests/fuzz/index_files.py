"""Index files of safetensors sets, and names and keys of GGUF sets: opened, they raise documented
errors only, and no file beyond the folder is opened.

The first byte of an input is its kind. The rest of an index is its content. The rest of a GGUF file
is its number, the number of files and of tensors, u16 each, then its name.
"""

from __future__ import annotations

import json
import os
import struct
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from glft_schema import FormatError, OptionError, open
from glft_schema.files.shards import whole_set
from glft_schema.testing.fuzzing import PropertyError
from tests.fuzz.promises import reported
from tests.oracles import gguf_reference
from tests.oracles.gguf_reference import Info, write_set

INDEX, GGUF = range(2)
NAME = "model.safetensors.index.json"
SHARDS = {"a.safetensors": "x", "b.safetensors": "y", "../outside.safetensors": "z"}
NUMBERS = struct.Struct("<HHH")
KEYS = (b"split.no", b"split.count", b"split.tensors.count")
GGUF_NAMES = (
    "set-00001-of-00002.gguf",
    "set-00002-of-00002.gguf",
    "set-00001-of-00001.gguf",
    "a.gguf",
    "a-00001-of-00002.GGUF",
)


@cache
def folder() -> Path:
    """Returns a folder with two safetensors files and a GGUF set, beside another file."""
    found = Path(tempfile.mkdtemp()) / "model"
    found.mkdir()
    for name, tensor in SHARDS.items():
        header = json.dumps({tensor: {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}).encode()
        (found / name).write_bytes(struct.pack("<Q", len(header)) + header + b"abcd")
    write_set(found)
    return found


def seeds() -> Iterator[bytes]:
    """Yields a valid index, some invalid ones, and names of sets."""
    names = dict(zip(("x", "y"), SHARDS, strict=False))
    for weight_map in (names, {}, {"x": "b.safetensors"}, {"z": "../outside.safetensors"}, {"x": NAME}, {"x": 1}, [1], None):
        yield bytes([INDEX]) + json.dumps({"metadata": {"total_size": 8}, "weight_map": weight_map}).encode()
    for name in GGUF_NAMES:
        for numbers in ((0, 2, 2), (1, 2, 2), (0, 1, 1), (5, 3, 1)):
            yield bytes([GGUF]) + NUMBERS.pack(*numbers) + name.encode()


def check_promises(stored: bytes) -> None:
    """Opens the set, and the files beside an index.

    Raises:
        PropertyError: for an error that is not documented, a message that is not one short line, or
            a file beyond the folder.
    """
    if stored[:1] == bytes([GGUF]) and len(stored) >= 1 + NUMBERS.size:
        _check_gguf(stored[1:])
    elif stored:
        (folder() / NAME).write_bytes(stored[1:])
        for name in (NAME, "", *SHARDS):
            _check(folder() / name)


def _check_gguf(stored: bytes) -> None:
    """Opens a GGUF file by its name, beside the files of another set."""
    entries = [(key, 2, number) for key, number in zip(KEYS, NUMBERS.unpack_from(stored), strict=True)]
    path = folder() / os.fsdecode(stored[NUMBERS.size :].replace(b"/", b"").replace(b"\0", b""))
    try:
        before = path.read_bytes() if path.is_file() else None
        path.write_bytes(gguf_reference.File(entries, [Info(b"t0", [4], 24, b"abcd")]).bytes())
    except OSError:  # not a name of a file
        return
    try:
        _check(path)
    finally:
        path.unlink() if before is None else path.write_bytes(before)


def _check(path: Path) -> None:
    """Opens a file, and checks what is opened with it, and the message of a documented error."""
    with reported(FormatError, OptionError, OSError), open(path) as file:
        if any(Path(shard.name).parent != path.parent for shard in file.shards if path.name in (NAME, "")):
            raise PropertyError("opened", f"expected files of the folder, found {[shard.name for shard in file.shards]}")
        if any(bytes(tensor.raw) != b"abcd" for tensor in file.tensors.values()):
            raise PropertyError("opened", "expected the bytes of each tensor, found others")
        whole_set(file)
