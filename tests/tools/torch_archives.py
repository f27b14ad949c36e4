"""Torch files written by hand: archives of zipfile, and pickles by instructions."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Mapping
from typing import Any

import torch


def saved(content: Any, **options: Any) -> bytes:
    """Returns a file of `torch.save`."""
    stream = io.BytesIO()
    torch.save(content, stream, **options)
    return stream.getvalue()


def members(content: Any) -> dict[str, bytes]:
    """Returns the records of a file of `torch.save`."""
    with zipfile.ZipFile(io.BytesIO(saved(content))) as stored:
        return {name: stored.read(name) for name in stored.namelist()}


def archive(records: Mapping[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    """Returns an archive of records. Unlike torch's, they are not aligned."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as made:
        for name, stored in records.items():
            made.writestr(name, stored)
    return stream.getvalue()


def with_pickle(pickle: bytes, storage: bytes) -> bytes:
    """Returns an archive of a pickle and the storage 0."""
    return archive({"m/data.pkl": pickle, "m/version": b"3\n", "m/data/0": storage})


def text(value: str) -> bytes:
    """Returns the instruction that pushes a text."""
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def tensor(
    storage: str = "torch\nFloatStorage",
    numel: bytes = b"K\4",
    view: bytes = b"K\0K\4\x85K\1\x85",
    more: bytes = b"",
) -> bytes:
    """Returns the instructions that rebuild a tensor; by default of four elements of storage 0."""
    pid = b"(" + text("storage") + b"c" + storage.encode() + b"\n" + text("0") + text("cpu") + numel + b"tQ"
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + pid + view + b"\x89N" + more + b"tR"


def entry(value: bytes, name: str = "a") -> bytes:
    """Returns the pickle of a dict with one entry."""
    return b"\x80\2}" + text(name) + value + b"s."
