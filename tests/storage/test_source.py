"""Where bytes come from: what is read and kept of them, and what happens when they change, vanish or never come."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import resource
import sys
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import glft_schema
from glft_schema import ClosedError, Container, FormatError, TruncatedError, load_file, save_file
from glft_schema.files.parsing import parse_source
from glft_schema.storage.source import BytesSource
from tests.golden import golden
from tests.oracles import glft_reference as reference

FOUR_TYPES = golden("four_types")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "four.gguf-lite"
    path.write_bytes(FOUR_TYPES)
    return path


def mapped_kib(path: Path) -> int:
    """Returns how much of the mapping of `path` is resident in this process."""
    sizes = re.findall(rf"{re.escape(str(path))}\n(?:.*\n)*?Rss: +(\d+) kB", Path("/proc/self/smaps").read_text())
    return sum(int(size) for size in sizes)


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux's list of mappings")
def test_one_tensor_of_2000_touches_only_its_pages(tmp_path: Path) -> None:
    path = tmp_path / "many.gguf-lite"
    count, each = 2000, 1 << 20
    rows = [reference.Row(f"layers.{i}.weight", [256, 1024], reference.F32, b"", i * each) for i in range(count)]
    head = reference.write(b"", rows, b"")
    with path.open("wb") as stream:
        stream.write(head)
        stream.truncate(len(head) + count * each)  # the payloads are holes
    with glft_schema.open(path) as file:
        before = mapped_kib(path)
        tensor = file.get_tensor("layers.1000.weight")
        assert not tensor.any()
        assert before < 2 * len(head) / 1024 + 128
        assert mapped_kib(path) < before + each / 1024 + 128


def test_opening_allocates_nothing_for_a_claim_of_4_gb(tmp_path: Path) -> None:
    claim = b"\x54\x46\x4c\x47\x01\0\0\0\0\0\0\0\xff\xff\xff\xff"
    assert len(claim) == 16
    path = tmp_path / "claim"
    path.write_bytes(claim)
    roads = [lambda: Container.parse(claim), lambda: Container.parse_file(path), lambda: Container.parse_file(path, mmap=False)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for road in roads:
        tracemalloc.start()
        with pytest.raises(TruncatedError, match="metadata: expected 4294967295 bytes, found 0"):
            road()
        assert tracemalloc.get_traced_memory()[1] < 150_000
        tracemalloc.stop()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 8 << 10


def test_a_file_that_shrinks_while_open(path: Path) -> None:
    for mmap in (True, False):
        path.write_bytes(FOUR_TYPES)
        with glft_schema.open(path, mmap=mmap) as file:
            with path.open("r+b") as stream:
                stream.truncate(150)
            assert file.get_tensor("a").item() == -1.5
            with pytest.raises(TruncatedError, match="expected 32 bytes, found 14"):
                file.get_tensor("fc2")


def test_a_file_that_shrinks_while_it_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at its size and the reading of its bytes."""
    preadv = os.preadv

    def cut_short(fd: int, buffers: list[memoryview], offset: int) -> int:
        os.truncate(path, 150)
        return preadv(fd, buffers, offset)

    with glft_schema.open(path, mmap=False) as file:
        monkeypatch.setattr(os, "preadv", cut_short)
        with pytest.raises(TruncatedError, match=r"expected 34 bytes, found 16 .*at byte 134") as caught:
            bytes(file.tensors["fc2"].raw)
    assert caught.value.file == str(path)


def test_a_file_that_is_replaced_while_it_is_opened(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at what it is and the opening."""
    open_, before = os.open, set(os.listdir("/dev/fd"))

    def replaced(name: str, flags: int, *more: int) -> int:
        path.unlink()
        os.mkfifo(path)
        return open_(name, flags, *more)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", replaced)
        with pytest.raises(OSError, match="it is not a regular file") as caught:
            glft_schema.open(path)
    assert caught.value.filename == str(path)
    assert set(os.listdir("/dev/fd")) == before


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's account of a process's memory")
def test_a_file_that_there_is_no_room_to_map(path: Path) -> None:
    os.truncate(path, 1 << 33)  # the rest is a hole
    pages, before = int(Path("/proc/self/statm").read_text().split()[0]), set(os.listdir("/dev/fd"))
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (1 << 31), hard))
    try:
        with pytest.raises(OSError, match="Cannot allocate memory") as caught:
            glft_schema.open(path)
        with glft_schema.open(path, mmap=False) as file:
            assert file.get_tensor("a").item() == -1.5
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert (caught.value.errno, caught.value.filename) == (errno.ENOMEM, str(path))
    assert set(os.listdir("/dev/fd")) == before


def test_a_file_replaced_while_open_stays_the_old_one(path: Path) -> None:
    with glft_schema.open(path) as file:
        save_file({"a": torch.ones(3)}, path)
        assert file.get_tensor("a").item() == -1.5
    assert load_file(path)["a"].tolist() == [1, 1, 1]


def test_what_is_not_a_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(OSError, match=r"is not a regular file"):
            glft_schema.open(path)
    with pytest.raises(FileNotFoundError):
        glft_schema.open(tmp_path / "missing")
    (tmp_path / "empty").touch()
    for mmap in (True, False):
        with pytest.raises(FormatError, match="header -> magic: expected 4 bytes, found 0"):
            glft_schema.open(tmp_path / "empty", mmap=mmap)


def test_threads_share_an_open_file(path: Path) -> None:
    for mmap in (True, False):
        with glft_schema.open(path, mmap=mmap) as file, ThreadPoolExecutor(8) as pool:
            names = [name for name in ("a", "fc1", "fc2") for _ in range(50)]
            for name, tensor in zip(names, pool.map(file.get_tensor, names), strict=True):
                assert torch.equal(tensor, file.get_tensor(name))


@pytest.mark.parametrize("mmap", [True, False])
def test_closing_while_others_read(path: Path, mmap: bool) -> None:
    """A read gets the right numbers or ClosedError, also where the system reuses the file's descriptor at once."""
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
            file = glft_schema.open(path, mmap=mmap)
            reading = pool.submit(read, file.tensors["fc2"])
            time.sleep(0.002)
            file.close()
            others = [os.open("/dev/zero", os.O_RDONLY) for _ in range(3)]
            assert reading.result() < 10_000
            for other in others:
                os.close(other)


def test_writing_into_a_view_changes_nothing_that_is_built(path: Path) -> None:
    with glft_schema.open(path) as file:
        file.get_tensor("a").zero_()
        file.tensors["fc1"].payload.codes.zero_()
        assert Container.build(file) == FOUR_TYPES
        assert file == Container.parse(FOUR_TYPES)
        assert bytes(file.tensors["a"].raw) == bytes.fromhex("0000C0BF")


def test_a_small_slice_of_a_file_read_in_pieces_keeps_little(tmp_path: Path) -> None:
    save_file({"w": torch.randn(64, 1000), "q": torch.randn(64, 1024)}, tmp_path / "f", schemes={"q": "q4_per_group_64"})
    with glft_schema.open(tmp_path / "f", mmap=False) as file, glft_schema.open(tmp_path / "f") as mapped:
        for name, index in (("w", (slice(None), 0)), ("w", slice(None, None, 32)), ("q", (slice(0, 64, 32), slice(70, 80)))):
            part = file.get_slice(name)[index]
            assert torch.equal(part, mapped.get_slice(name)[index])
            assert torch.equal(part, mapped.get_tensor(name)[index])
            assert part.untyped_storage().nbytes() < 10_000


class Failing(BytesSource):
    """Fails at the first reading, as a connection may."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.failed = False

    def view(self, start: int, nbytes: int) -> memoryview:
        if start and not self.failed:
            self.failed = True
            raise TruncatedError("expected more, found a lost connection")
        return super().view(start, nbytes)


def test_a_source_that_fails_once() -> None:
    data = FOUR_TYPES + bytes(1 << 17)
    data = data[:8] + (1 << 20).to_bytes(4, "little") + data[12:]
    with pytest.raises(TruncatedError):
        parse_source(Failing(data))


def test_many_bad_files_leave_no_descriptors_behind(path: Path) -> None:
    path.write_bytes(FOUR_TYPES[:150])
    before, kept = len(os.listdir("/proc/self/fd")), []
    for mmap in (True, False):
        for _ in range(20):
            with pytest.raises(FormatError) as caught:
                glft_schema.open(path, mmap=mmap)
            kept.append(caught)
    assert len(os.listdir("/proc/self/fd")) <= before + 1


@pytest.mark.skipif(sys.platform != "linux", reason="counts on sparse files and on Linux's way of promising memory")
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
def test_a_closed_file_goes_with_its_last_tensor(path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    file = glft_schema.open(path)
    tensor = file.get_tensor("a")
    file.close()
    assert tensor.item() == -1.5
    del tensor
    assert len(os.listdir("/proc/self/fd")) == before
    assert file.source.closed
