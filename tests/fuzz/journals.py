"""Promises for what an interrupted run may have left beside its output: a journal and a part of the
file, with any bytes.

A run that goes on writes exactly the file of one that was not interrupted. The bytes are the
journal and, after a line `MARK`, the unfinished file. Without the mark, the unfinished file is the
one that a run has left. Owners and modes are the right ones.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch

import glft_schema as glft
from glft_schema.display import Progress
from glft_schema.distributed import together
from glft_schema.storage.atomic import partial_path
from glft_schema.testing.fuzzing import PropertyError, escaping

MARK = b"\n--\n"
STATE = {"w": torch.arange(64.0).view(2, 32), "v": torch.arange(5.0)}


class Left(NamedTuple):
    """What a run leaves that is interrupted when it has written all, and what it would write.

    Attributes:
        key: in the names of its files.
        journal, partial: their bytes.
        whole: the bytes of the file.
    """

    key: str
    journal: bytes
    partial: bytes
    whole: bytes


class _StoppedError(Exception):
    pass


def seeds() -> Iterator[bytes]:
    """Yields journals with and without an unfinished file: whole, damaged, of other runs."""
    left = _left()
    start, stop, sha256, origin = left.journal.split()
    yield left.journal
    yield left.journal[:-9]
    yield b"12 no line" + left.journal * 2
    yield b"\xff\0" + left.journal
    yield b" ".join([start, stop, sha256[::-1], origin]) + b"\n"
    yield b" ".join([start, stop, sha256, origin[::-1]]) + b"\n" + left.journal
    yield b" ".join([stop, start, sha256, origin]) + b"\n"
    yield b"9" * 20 + b" " + left.journal
    for partial in (left.partial, left.partial[:-3], b"", left.partial + b"more", bytes(len(left.partial))):
        yield left.journal + MARK + partial


def check_promises(stored: bytes) -> None:
    """Goes on with a journal and an unfinished file.

    Raises:
        PropertyError: if an error is raised, another file is written, or something is left.
    """
    left = _left()
    journal, mark, partial = stored.partition(MARK)
    with tempfile.TemporaryDirectory(prefix="glft-fuzz-") as name, escaping():
        out = Path(name, "out.gguf")
        for part, content in (("", partial if mark else left.partial), ("0", journal)):
            path = Path(partial_path(out, left.key, part))
            path.write_bytes(content)
            path.chmod(0o600)
        _write(out)
        if out.read_bytes() != left.whole:
            raise PropertyError("resumed", "expected the bytes of a run without interruption, found others")
        if [path.name for path in out.parent.iterdir()] != [out.name]:
            raise PropertyError("resumed", "expected no temporary file after a run, found one")


def _write(out: Path, progress: Progress | None = None) -> None:
    with together() as ranks:
        glft.save_file(STATE, out, {"general.architecture": "toy"}, schemes={"w": "q8_0"}, progress=progress, ranks=ranks)


@cache
def _left() -> Left:
    def stop(name: str, share: float) -> None:
        raise _StoppedError

    with tempfile.TemporaryDirectory(prefix="glft-fuzz-") as name:
        out = Path(name, "out.gguf")
        try:
            _write(out, stop)
        except _StoppedError:
            journal, partial = sorted(out.parent.iterdir())
        content = journal.read_bytes(), partial.read_bytes()
        _write(out)
        return Left(partial.name.split(".")[3], *content, out.read_bytes())
