"""The old file's safety: whatever fails while a new one is written, it stays, and nothing else does."""

from __future__ import annotations

import errno
import os
import resource
import stat
from pathlib import Path

import pytest
import torch

import glft_schema.atomic
from glft_schema import TensorError, load_file, save_file
from glft_schema.checkpoints import StoredTensor


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf-lite"


class InterruptedExportError(Exception):
    """Raised by a source half way."""


def assert_only(path: Path, content: bytes) -> None:
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    assert path.read_bytes() == content


@pytest.mark.parametrize("error", [InterruptedExportError, KeyboardInterrupt, MemoryError])
def test_a_source_that_fails_half_way(path: Path, error: type[BaseException]) -> None:
    path.write_bytes(b"old")

    def load() -> torch.Tensor:
        raise error

    with pytest.raises(error):
        save_file({"a": torch.ones(1 << 20), "b": StoredTensor((4,), torch.float32, load)}, path)
    assert_only(path, b"old")


@pytest.mark.parametrize("found", [torch.ones(5), torch.ones(4, dtype=torch.float64)])
def test_a_source_that_changed_since_it_was_planned(path: Path, found: torch.Tensor) -> None:
    path.write_bytes(b"old")
    with pytest.raises(TensorError, match=r"expected torch.float32 \[4\] as planned, found"):
        save_file({"b": StoredTensor((4,), torch.float32, lambda: found)}, path)
    assert_only(path, b"old")


def test_a_full_disk_is_the_systems_error(path: Path) -> None:
    path.write_bytes(b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    try:
        for tensors, metadata in (({"a": torch.ones(1 << 20)}, {}), ({}, {"a": "x" * (1 << 21)})):
            with pytest.raises(OSError, match="File too large") as caught:
                save_file(tensors, path, metadata)
            assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(path))
            assert_only(path, b"old")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_order_of_system_calls(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def spy(name: str) -> None:
        real = getattr(os, name)
        monkeypatch.setattr(glft_schema.atomic.os, name, lambda *args, **more: (calls.append(name), real(*args, **more))[1])

    for name in ("fsync", "replace"):
        spy(name)
    save_file({"a": torch.ones(3)}, path)
    assert calls == ["fsync", "replace", "fsync"]


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP])
def test_folders_that_cannot_be_synced(path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    real = os.fsync

    def fsync(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(code, os.strerror(code))
        real(fd)

    monkeypatch.setattr(glft_schema.atomic.os, "fsync", fsync)
    save_file({"a": torch.ones(3)}, path)
    assert list(load_file(path)) == ["a"]


def test_folders_that_may_be_written_but_not_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def open_(name: str, flags: int, *more: int) -> int:
        if Path(name) == path.parent:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return real(name, flags, *more)

    monkeypatch.setattr(glft_schema.atomic.os, "open", open_)
    save_file({"a": torch.ones(3)}, path)
    assert list(load_file(path)) == ["a"]


@pytest.mark.parametrize("which", ["file", "folder"])
def test_a_sync_that_fails_is_reported(path: Path, monkeypatch: pytest.MonkeyPatch, which: str) -> None:
    path.write_bytes(b"old")

    def fsync(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode) == (which == "folder"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(glft_schema.atomic.os, "fsync", fsync)
    with pytest.raises(OSError, match="Input/output error"):
        save_file({"a": torch.ones(3)}, path)
    if which == "file":
        assert_only(path, b"old")


def test_names_at_the_limit_of_the_file_system(tmp_path: Path) -> None:
    for name in ("重" * 85, "n" * 255):
        save_file({"a": torch.ones(3)}, tmp_path / name)
        assert list(load_file(tmp_path / name)) == ["a"]


def test_errors_without_a_number_keep_their_text(path: Path) -> None:
    def load() -> torch.Tensor:
        raise OSError("the disk fell off")

    with pytest.raises(OSError, match=r"^the disk fell off$"):
        save_file({"b": StoredTensor((4,), torch.float32, load)}, path)


def test_errors_of_a_source_are_its_own(path: Path) -> None:
    def load() -> torch.Tensor:
        raise UnicodeDecodeError("utf-8", b"x", 0, 1, "of mine")

    with pytest.raises(UnicodeDecodeError, match="of mine"):
        save_file({"b": StoredTensor((4,), torch.float32, load)}, path)


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_mode_follows_the_umask(path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        save_file({"a": torch.ones(3)}, path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_mode_of_a_replaced_file_and_symbolic_links_stay(path: Path, tmp_path: Path) -> None:
    path.write_bytes(b"old")
    path.chmod(0o640)
    link = tmp_path / "link"
    link.symlink_to(path)
    save_file({"a": torch.ones(3)}, link)
    assert link.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert list(load_file(path)) == ["a"]


def test_targets_that_are_no_files_are_left_alone(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for target in (tmp_path / "pipe", tmp_path, Path("/dev/null")):
        with pytest.raises(OSError, match="is not a regular file; it is left alone"):
            save_file({"a": torch.ones(3)}, target)
    with pytest.raises(FileNotFoundError) as caught:
        save_file({"a": torch.ones(3)}, tmp_path / "missing" / "file")
    assert caught.value.filename == str(tmp_path / "missing" / "file")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert [entry.name for entry in tmp_path.iterdir()] == ["pipe"]
