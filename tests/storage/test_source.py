"""Sources: the bytes they read and keep, and files that change while open."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import glft_schema
from glft_schema import ClosedError, Container, FormatError, LimitError, TruncatedError, save_file
from glft_schema.storage.opening import open_source, read_regular
from glft_schema.storage.source import BytesSource, ReadSource, Source, SplicedSource
from tests.golden import golden
from tests.oracles import glft_reference as reference
from tests.tools.posix import resource

FOUR_TYPES = golden("four_types")


@pytest.mark.linux("measures a process's memory in KiB")
def test_opening_allocates_nothing_for_a_claim_of_4_gb(tmp_path: Path) -> None:
    claim = b"\x54\x46\x4c\x47\x01\0\0\0\0\0\0\0\xff\xff\xff\xff"
    path = tmp_path / "claim"
    path.write_bytes(claim)
    readers = [partial(Container.parse, claim), *(partial(Container.parse_file, path, mmap=mmap) for mmap in (True, False))]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for read in readers:
        tracemalloc.start()
        with pytest.raises(TruncatedError, match="metadata: expected 4294967295 bytes, found 0"):
            read()
        assert tracemalloc.get_traced_memory()[1] < 150_000
        tracemalloc.stop()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 8 << 10


@pytest.mark.parametrize("mmap", [pytest.param(True, marks=pytest.mark.posix("cuts a mapped file")), False])
def test_a_truncated_file_can_be_read_up_to_the_cut(four_types: Path, mmap: bool) -> None:
    with glft_schema.open(four_types, mmap=mmap) as file:
        os.truncate(four_types, 150)
        assert file.get_tensor("a").item() == -1.5
        with pytest.raises(TruncatedError, match="expected 32 bytes, found 14"):
            file.get_tensor("fc2")


def test_a_file_that_shrinks_while_it_is_read(four_types: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the check of its size and the read."""
    preadv = os.preadv

    def cut_short(fd: int, buffers: list[memoryview], offset: int) -> int:
        os.truncate(four_types, 150)
        return preadv(fd, buffers, offset)

    with glft_schema.open(four_types, mmap=False) as file:
        monkeypatch.setattr(os, "preadv", cut_short)
        with pytest.raises(TruncatedError, match=r"expected 34 bytes, found 16 .*at byte 134") as caught:
            bytes(file.tensors["fc2"].raw)
    assert caught.value.file == str(four_types)


def test_a_file_that_is_replaced_while_it_is_opened(four_types: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the check of its kind and the open."""
    gc.collect()  # errors of earlier tests keep descriptors
    open_, before = os.open, set(os.listdir("/dev/fd"))

    def replaced(name: str, flags: int, *more: int) -> int:
        four_types.unlink()
        os.mkfifo(four_types)
        return open_(name, flags, *more)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", replaced)
        with pytest.raises(OSError, match="not a regular file") as caught:
            glft_schema.open(four_types)
    assert caught.value.filename == str(four_types)
    assert set(os.listdir("/dev/fd")) == before


@pytest.mark.parametrize("mmap", [True, False])
def test_an_empty_file(path: Path, mmap: bool) -> None:
    path.touch()
    with pytest.raises(FormatError, match="header -> magic: expected 4 bytes, found 0"):
        glft_schema.open(path, mmap=mmap)


@pytest.mark.parametrize("mmap", [True, False])
def test_closing_while_others_read(four_types: Path, mmap: bool) -> None:
    """A read returns the right values or raises ClosedError, even if the descriptor is reused."""
    expected = Container.parse(FOUR_TYPES).get_tensor("fc2")

    def read(tensor: glft_schema.Tensor) -> int:
        reads = 0
        with contextlib.suppress(ClosedError):
            while reads < 10_000:
                assert torch.equal(tensor.dequantize(), expected)
                reads += 1
        return reads

    with ThreadPoolExecutor(2) as pool:
        for _ in range(30):
            file = glft_schema.open(four_types, mmap=mmap)
            reading = pool.submit(read, file.tensors["fc2"])
            time.sleep(0.002)
            file.close()
            others = [os.open("/dev/zero", os.O_RDONLY) for _ in range(3)]
            assert reading.result() < 10_000
            for other in others:
                os.close(other)


def test_a_small_slice_of_a_file_read_in_pieces_keeps_little(tmp_path: Path) -> None:
    save_file({"w": torch.randn(64, 1000), "q": torch.randn(64, 1024)}, tmp_path / "f.glft", schemes={"q": "q4_per_group_64"})
    with glft_schema.open(tmp_path / "f.glft", mmap=False) as file, glft_schema.open(tmp_path / "f.glft") as mapped:
        for name, index in (("w", (slice(None), 0)), ("w", slice(None, None, 32)), ("q", (slice(0, 64, 32), slice(70, 80)))):
            part = file.get_slice(name)[index]
            assert torch.equal(part, mapped.get_slice(name)[index])
            assert torch.equal(part, mapped.get_tensor(name)[index])
            assert part.untyped_storage().nbytes() < 10_000


SPAN = (3, 90)  # first byte and size
STORED = bytes(range(100))
SOURCES: dict[str, Callable[[Path], Source]] = {
    "mapped": open_source,
    "a file": partial(open_source, mmap=False),
    "part of a mapped file": partial(open_source, offset=2, size=95),
    "part of a file": partial(open_source, mmap=False, offset=2, size=95),
    "bytes": lambda path: BytesSource(path.read_bytes()),
    "spliced": lambda path: SplicedSource(STORED[:50], open_source(path), 50),
    "read": lambda path: ReadSource(open_source(path)),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_reading_a_span_into_memory_in_parts(kind: str, path: Path) -> None:
    """At every offset, in parts of all sizes; no other bytes are written."""
    path.write_bytes(STORED)
    (start, nbytes), source = SPAN, SOURCES[kind](path)
    expected = STORED[start:][:nbytes] if "part" not in kind else STORED[start + 2 :][:nbytes]
    for size in range(1, nbytes + 1):
        memory = np.full(nbytes + 2, 255, np.uint8)
        for first in range(0, nbytes, size):
            source.read_into(memory[1:-1][first : first + size], start, nbytes, first)
        assert memory.tobytes() == b"\xff" + expected + b"\xff"
    source.close()
    with pytest.raises(ClosedError):
        source.read_into(memory[1:-1], start, nbytes, 0)


@pytest.mark.parametrize("kind", SOURCES)
def test_reading_a_part_of_a_span_that_is_not_there(kind: str, path: Path) -> None:
    """The error names the size of the whole span, like the error of a view."""
    path.write_bytes(STORED)
    source, memory = SOURCES[kind](path), np.zeros(10, np.uint8)
    left = source.size - 20
    for first in (0, 50):
        with pytest.raises(TruncatedError, match=f"^expected 99 bytes, found {left} .*at byte 20") as caught:
            source.read_into(memory, 20, 99, first)
        with pytest.raises(TruncatedError) as viewing:
            source.view(20, 99)
        assert str(caught.value) == str(viewing.value)
    assert not memory.any()


def test_a_file_that_shrinks_while_a_span_is_read_into_memory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In small steps, as a system may read."""
    path.write_bytes(STORED)
    source, memory, preadv = open_source(path), np.zeros(60, np.uint8), os.preadv

    def cut_short(fd: int, buffers: list[Any], offset: int) -> int:
        if offset >= 50:
            os.truncate(path, 55)
        return preadv(fd, [memoryview(buffers[0])[:7]], offset)

    monkeypatch.setattr(os, "preadv", cut_short)
    source.read_into(memory[:25], 4, 90, 20)
    assert memory[:25].tobytes() == STORED[24:49]
    with pytest.raises(TruncatedError, match=r"expected 90 bytes, found 51 .*at byte 4"):
        source.read_into(memory, 4, 90, 30)


@pytest.mark.skipif(sys.platform != "linux", reason="needs sparse files and MAP_NORESERVE")
def test_a_file_larger_than_the_machines_memory(tmp_path: Path) -> None:
    size = 2 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    columns = 1 << 28
    row = reference.Row("w", [size // (4 * columns), columns], reference.F32, b"")
    head = reference.write(b"", [row], b"")
    path = tmp_path / "huge"
    with path.open("wb") as stream:
        stream.write(head)
        stream.truncate(len(head) + 4 * columns * row.dims[0])
    with glft_schema.open(path) as file:
        assert file.nbytes > size // 2
        assert file.get_slice("w")[-1, -3:].tolist() == [0, 0, 0]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors in /proc")
def test_a_closed_file_goes_with_its_last_tensor(four_types: Path) -> None:
    gc.collect()  # errors of earlier tests keep descriptors
    before = len(os.listdir("/proc/self/fd"))
    file = glft_schema.open(four_types)
    tensor = file.get_tensor("a")
    file.close()
    assert tensor.item() == -1.5
    del tensor
    assert len(os.listdir("/proc/self/fd")) == before
    assert file.source.closed


def test_files_that_are_read_as_a_whole(tmp_path: Path) -> None:
    """Their size is checked before they are read, and again after, since it may not be stated."""
    path = tmp_path / "a.json"
    path.write_bytes(b"12345")
    with glft_schema.Limits(whole_file=5):
        assert read_regular(path) == b"12345"
    os.truncate(path, 1 << 40)
    with pytest.raises(LimitError, match=r"expected at most 67108864 bytes \(.*\), found 1099511627776 .* in .*a\.json"):
        read_regular(path)
    if sys.platform == "linux":
        with glft_schema.Limits(whole_file=5), pytest.raises(LimitError, match=r"expected at most 5 bytes .*, found 6 .*"):
            read_regular("/proc/self/status")
