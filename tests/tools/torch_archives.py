"""Torch files written by hand: zip archives with any fault, and pickles by instructions."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch


class Member(NamedTuple):
    """A record of an archive. Fields other than the first two are faults.

    Attributes:
        name: its name in the directory.
        stored: its bytes.
        local: its name in the local header.
        flags: in both headers.
        method: in both headers.
        local_method: in the local header.
        nbytes: the number of bytes in the directory.
        packed: the number of compressed bytes in the directory.
        start: the position of the local header in the directory.
        extra: the extra field in the directory.
        disk: the number of the disk.
        external: attributes.
    """

    name: str | bytes
    stored: bytes
    local: str | None = None
    flags: int = 0
    method: int = 0
    local_method: int | None = None
    nbytes: int | None = None
    packed: int | None = None
    start: int | None = None
    extra: bytes = b""
    disk: int = 0
    external: int = 0


def encoded(name: str | bytes) -> bytes:
    return name.encode() if isinstance(name, str) else name


def archive(members: Sequence[Member], end: dict[str, int] | None = None, end64: dict[str, int] | None = None) -> bytes:
    """Returns a zip archive as torch writes it: stored records, a directory and three end records.

    Args:
        members: its records.
        end: numbers in the end record that differ: count, size, start, disks, here, comment.
        end64: the same of the zip64 record, nbytes, and those of the locator: disk, end64, n_disks.
    """
    out, directory = b"", b""
    for member in members:
        name, local, size = encoded(member.name), encoded(member.local or member.name), len(member.stored)
        local_method = member.method if member.local_method is None else member.local_method
        start, nbytes = (
            given if given is not None else true for given, true in ((member.start, len(out)), (member.nbytes, size))
        )
        packed = nbytes if member.packed is None else member.packed
        out += (
            struct.pack("<4s5H3I2H", b"PK\3\4", 0, member.flags, local_method, 0, 0, 0, 0, 0, len(local), 0)
            + local
            + member.stored
        )
        lengths = (len(name), len(member.extra), 0)
        fields = (0, 0, member.flags, member.method, 0, 0, 0, packed, nbytes, *lengths, member.disk, 0, member.external, start)
        directory += struct.pack("<4s6H3I5H2I", b"PK\1\2", *fields) + name + member.extra
    true = {"count": len(members), "size": len(directory), "start": len(out), "disks": 0, "comment": 0}
    at = len(out) + len(directory)
    large = {"nbytes": 44, **true, "disk": 0, "end64": at, "n_disks": 1, **(end64 or {})}
    small = {**true, **(end or {})}
    out += directory
    numbers = [large[name] for name in ("nbytes", "disks", "count", "count", "size", "start")]
    numbers[2] = large.get("here", large["count"])
    out += struct.pack("<4sQIQQQQQ", b"PK\6\6", numbers[0], 0, *numbers[1:])
    out += struct.pack("<4sIQI", b"PK\6\7", large["disk"], large["end64"], large["n_disks"])
    numbers = [
        small["disks"],
        small.get("here", small["count"]),
        *(small[name] for name in ("count", "size", "start", "comment")),
    ]
    return out + struct.pack("<4sIHHIIH", b"PK\5\6", *numbers)


def saved(content: Any, **options: Any) -> bytes:
    """Returns a file of `torch.save`."""
    stream = io.BytesIO()
    torch.save(content, stream, **options)
    return stream.getvalue()


def members(content: Any) -> list[Member]:
    """Returns the records of a file of `torch.save`."""
    with zipfile.ZipFile(io.BytesIO(saved(content))) as stored:
        return [Member(name, stored.read(name)) for name in stored.namelist()]


def with_pickle(pickle: bytes, *storages: bytes) -> bytes:
    """Returns an archive of a pickle and the storages 0, 1 ..."""
    records = [("data.pkl", pickle), ("version", b"3\n"), *((f"data/{i}", stored) for i, stored in enumerate(storages))]
    return archive([Member(f"m/{name}", stored) for name, stored in records])


def text(value: str) -> bytes:
    """Returns the instruction that pushes a text."""
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def tensor(
    storage: str = "torch\nFloatStorage",
    key: str = "0",
    numel: bytes = b"K\4",
    view: bytes = b"K\0K\4\x85K\1\x85",
    more: bytes = b"",
) -> bytes:
    """Returns the instructions that rebuild a tensor; by default of four elements of storage 0."""
    pid = b"(" + text("storage") + b"c" + storage.encode() + b"\n" + text(key) + text("cpu") + numel + b"tQ"
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + pid + view + b"\x89N" + more + b"tR"


def entry(value: bytes, name: str = "a") -> bytes:
    """Returns the pickle of a dict with one entry."""
    return b"\x80\2}" + text(name) + value + b"s."
