"""Copies by the system: complete or continued by reads, whatever copy_file_range answers."""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from glft_schema import ClosedError, Container, TruncatedError
from glft_schema.storage import open_source
from glft_schema.storage.atomic import BLOCK, atomic_write
from glft_schema.storage.source import BytesSource, SplicedSource
from glft_schema.storage.tensor_bytes import copy_all, write_all
from tests.tools.forked_writers import container

SIZE = 3 * BLOCK + 17
BYTES = bytes(range(251)) * (SIZE // 251 + 1)
Copy = Callable[..., int]

STRACED = shutil.which("strace") and not subprocess.run(["strace", "true"], capture_output=True).returncode
needs_the_call = pytest.mark.skipif(not hasattr(os, "copy_file_range"), reason="the system has no copy_file_range")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").write_bytes(BYTES[: SIZE + 5])
    return tmp_path / "source"


def copied(source: Path, out: Path) -> bytes:
    """Returns a file with bytes before, between and after two copies."""
    with closing(open_source(source, offset=5)) as opened, atomic_write(out) as stream:
        write_all(stream, b"before")
        assert copy_all(stream, opened, 0, SIZE) == SIZE
        write_all(stream, b"between" * 1000)
        copy_all(stream, opened, 3, SIZE - 3)
        write_all(stream, b"after")
        assert stream.tell() == 2 * SIZE + 7011 - 3
    return out.read_bytes()


EXPECTED = b"".join((b"before", BYTES[5 : SIZE + 5], b"between" * 1000, BYTES[8 : SIZE + 5], b"after"))


def failing(code: int, first: int = 0) -> Callable[[Copy], Copy]:
    """Returns a copy_file_range that fails, at first or always."""

    def wrap(copy: Copy) -> Copy:
        calls = iter(range(10**6))

        def fail(*arguments: int) -> int:
            if first and next(calls) >= first:
                return copy(*arguments)
            raise OSError(code, os.strerror(code))

        return fail

    return wrap


ANSWERS: dict[str, Callable[[Copy], Copy]] = {
    "whole": lambda copy: copy,
    **{errno.errorcode[code]: failing(code) for code in (errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EIO)},
    "interrupted": failing(errno.EINTR, first=3),
    "nothing": lambda copy: lambda *arguments: 0,
    "short": lambda copy: lambda source, target, n, at: copy(source, target, min(n, 1_000_003), at),
    "full after a part": lambda copy: (
        lambda source, target, n, at: (
            copy(source, target, 70_001, at) if at < BLOCK else failing(errno.ENOSPC)(copy)(source, target, n, at)
        )
    ),
}


@needs_the_call
@pytest.mark.parametrize("answer", ANSWERS)
def test_answers_of_the_system(source: Path, path: Path, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    monkeypatch.setattr(os, "copy_file_range", ANSWERS[answer](os.copy_file_range))
    assert copied(source, path) == EXPECTED
    monkeypatch.delattr(os, "copy_file_range")
    assert copied(source, path) == EXPECTED


def test_sources_that_have_changed(source: Path, path: Path) -> None:
    path.write_bytes(b"old")
    opened = open_source(source)
    os.truncate(source, SIZE - 1)
    with pytest.raises(TruncatedError, match=f"expected {SIZE} bytes, found {SIZE - 1}"), atomic_write(path) as stream:
        copy_all(stream, opened, 0, SIZE)
    opened.close()
    with pytest.raises(ClosedError), atomic_write(path) as stream:
        copy_all(stream, opened, 0, SIZE)
    assert path.read_bytes() == b"old"


def test_other_streams_and_sources(path: Path) -> None:
    stream = io.BytesIO()
    copy_all(stream, BytesSource(BYTES), 1, SIZE)
    assert stream.getvalue() == BYTES[1 : SIZE + 1]
    with atomic_write(path) as file:
        copy_all(file, BytesSource(BYTES), 1, SIZE)
    assert path.read_bytes() == BYTES[1 : SIZE + 1]


def test_a_spliced_source(source: Path, path: Path) -> None:
    with closing(open_source(source)) as opened:
        spliced = SplicedSource(b"head", opened, 3)
        expected = b"head" + BYTES[3 : SIZE + 5]
        assert spliced.size == len(expected)
        for start, nbytes in ((0, 0), (0, 4), (0, 5), (2, 9), (3, 1), (4, 0), (4, 6), (100, 7), (spliced.size, 0)):
            assert spliced.read(start, nbytes) == expected[start : start + nbytes], (start, nbytes)
        for start in (0, 2, 4, 9):
            with atomic_write(path) as stream:
                copy_all(stream, spliced, start, spliced.size - start)
            assert path.read_bytes() == expected[start:]
        with pytest.raises(TruncatedError, match="expected 2 bytes, found 1"):
            spliced.read(spliced.size - 1, 2)


EDIT = """
import sys
from glft_schema import edit
edit(sys.argv[1], set={"k": "another text"})
"""


@needs_the_call
@pytest.mark.skipif(not STRACED, reason="strace is not installed or does not run")
def test_payloads_stay_in_the_system(path: Path) -> None:
    """An edit of metadata lets the system copy them; then the file is made safe, and renamed."""
    Container.build_file(container(1, 1 << 21), path)
    log, calls = path.with_name("log"), "trace=copy_file_range,read,pread64,preadv,preadv2,write,pwrite64,fsync,rename"
    subprocess.run(["strace", "-f", "-y", "-o", log, "-e", calls, sys.executable, "-c", EDIT, path], check=True)
    assert path.read_bytes() == Container.build({**container(1, 1 << 21), "metadata": {"k": "another text"}})
    assert sorted(os.listdir(path.parent)) == [log.name, path.name]
    found = re.findall(r"^\d+ +(\w+)\(.*model\.glft.* = (\d+)", log.read_text(), re.MULTILINE)
    nbytes = Counter[str]()
    for call, number in found:
        nbytes[call[:4]] += int(number)
    assert nbytes["copy"] == 4 * (2 * (1 << 21) + 13)
    assert nbytes["writ"] + nbytes["pwri"] < 200  # the header, the metadata and the table
    assert nbytes["read"] + nbytes["prea"] < 1 << 20
    order = [call for call, _ in found]
    assert order[order.index("copy_file_range") :][-2:] == ["fsync", "rename"]
