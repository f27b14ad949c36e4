"""Atomic writes: after any failure the old file is unchanged and no temporary file is left."""

from __future__ import annotations

import errno
import os
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import glft_schema.storage.atomic
from glft_schema import Container, FormatError, TensorError, convert, load_file, save_file
from glft_schema.cli.get_tensor import get_tensor
from glft_schema.cli.terminal import RefusedError
from glft_schema.cli.view import view
from glft_schema.describe.page import content
from glft_schema.errors import OptionError
from glft_schema.formats.glft import GLFT
from glft_schema.lab import run
from glft_schema.lab.minigpt import MiniGPTConfig
from glft_schema.storage.atomic import atomic_write, open_begun
from glft_schema.tensors.stored_tensor import StoredTensor
from glft_schema.tensors.tensor import Tensor
from glft_schema.testing.corpora import write_corpus
from glft_schema.testing.fuzzing import CORRUPTED, Case
from glft_schema.weights.checkpoints import Checkpoint
from glft_schema.weights.in_memory import in_memory
from tests.tools.in_memory import IN_MEMORY
from tests.tools.posix import fcntl, resource


class InterruptedExportError(Exception):
    """Raised by a source."""


def assert_only(path: Path, content: bytes) -> None:
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    "error",
    [
        InterruptedExportError(),
        KeyboardInterrupt(),
        MemoryError(),
        OSError("the disk fell off"),  # without errno
        UnicodeDecodeError("utf-8", b"x", 0, 1, "of mine"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_a_source_is_raised_unchanged(path: Path, error: BaseException) -> None:
    path.write_bytes(b"old")
    text = str(error)

    def load() -> torch.Tensor:
        raise error

    with pytest.raises(type(error)) as caught:
        save_file({"a": torch.ones(1 << 20), "b": StoredTensor((4,), torch.float32, load)}, path)
    assert caught.value is error
    assert str(error) == text
    assert_only(path, b"old")


@pytest.mark.parametrize(
    ("loaded", "problem"),
    [
        (torch.ones(5), r"expected float32 \[4\] as planned, found float32 \[5\]"),
        (torch.ones(4, dtype=torch.float64), r"expected float32 \[4\] as planned, found float64 \[4\]"),
        ([1.0] * 4, r"expected a tensor of torch or an array of numpy, found \[1.0, 1.0, 1.0, 1.0\]"),
        (torch.ones(4, device="meta"), r"expected a dense tensor with values in memory, found a Tensor \(meta\)"),
        (torch.ones(4).to_sparse(), r"expected a dense tensor with values in memory, found a Tensor \(torch.sparse_coo\)"),
    ],
)
def test_a_source_that_does_not_match_the_plan(path: Path, loaded: object, problem: str) -> None:
    path.write_bytes(b"old")
    with pytest.raises(TensorError, match=f"tensor 'b': {problem}"):
        save_file({"b": StoredTensor((4,), torch.float32, lambda: loaded)}, path)
    assert_only(path, b"old")


@contextmanager
def small_files(nbytes: int) -> Iterator[None]:
    """Limits the size of files: a write past it is cut short, and the next one fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(("tensors", "metadata"), [({"a": torch.ones(1 << 20)}, {}), ({}, {"a": "x" * (1 << 21)})])
@pytest.mark.parametrize("name", ["out.glft", "out.gguf", "out.safetensors"])
def test_a_full_disk_is_the_systems_error(tmp_path: Path, name: str, tensors: dict[str, Any], metadata: dict[str, str]) -> None:
    path = tmp_path / name
    path.write_bytes(b"old")
    with small_files(1 << 16), pytest.raises(OSError, match="File too large") as caught:
        convert(Checkpoint(in_memory(tensors), metadata), path)
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(path))
    assert_only(path, b"old")


def test_order_of_system_calls(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def spy(name: str, real: Callable[..., object], *args: object) -> object:
        calls.append(name)
        return real(*args)

    for name in ("pwrite", "fsync", "replace"):
        monkeypatch.setattr(glft_schema.storage.atomic.os, name, partial(spy, name, getattr(os, name)))
    save_file({"a": torch.ones(3)}, path)
    assert calls == ["pwrite", "fsync", "replace", "fsync"]


@pytest.mark.parametrize(
    ("of_folder", "code"),
    [
        (False, errno.EIO),
        pytest.param(True, errno.EIO, marks=pytest.mark.posix("syncs folders")),
        (True, errno.EINVAL),
        (True, errno.ENOTSUP),
    ],
)
def test_an_fsync_that_fails(path: Path, monkeypatch: pytest.MonkeyPatch, of_folder: bool, code: int) -> None:
    """An error, unless the file system cannot sync folders."""
    path.write_bytes(b"old")
    real = os.fsync

    def fsync(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode) == of_folder:
            raise OSError(code, os.strerror(code))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="Input/output error") if code == errno.EIO else nullcontext():
        save_file({"a": torch.ones(3)}, path)
    assert (path.read_bytes() == b"old") != of_folder
    assert os.listdir(path.parent) == [path.name]


NOT_UTF8 = b"\xff\xfe".decode("utf-8", "surrogateescape")


@pytest.mark.parametrize(
    "name", ["重" * 85, "n" * 255, pytest.param(NOT_UTF8, marks=pytest.mark.posix("has such names"))], ids=ascii
)
def test_names(tmp_path: Path, name: str) -> None:
    save_file({"a": torch.ones(3)}, tmp_path / name, format="glft")
    assert list(load_file(tmp_path / name)) == ["a"]


@pytest.mark.posix("has modes")
@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_mode_follows_the_umask(path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        save_file({"a": torch.ones(3)}, path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == mode


def work(*arguments: object, **more: object) -> None:
    raise AssertionError("it was done")


NOT_REGULAR = "not a regular file; left unchanged"
# Paths that cannot be written, relative to a folder or absolute: errno and message.
REFUSED = {
    **dict.fromkeys(("pipe", "socket", "/dev/null", "link to a device"), (errno.EINVAL, NOT_REGULAR)),
    **dict.fromkeys(("folder", "link to a folder"), (errno.EISDIR, NOT_REGULAR)),
    **dict.fromkeys(("new/", "folder/.", "missing/.."), (errno.EISDIR, "Is a directory")),
    **dict.fromkeys(("", "missing/file", "link to nothing in a missing folder"), (errno.ENOENT, "No such file or directory")),
    "file/below": (errno.ENOTDIR, "Not a directory"),
    "loop": (errno.ELOOP, "Too many levels of symbolic links"),
    "n" * 256: (errno.ENAMETOOLONG, "File name too long"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_targets_that_are_refused_before_any_work(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"old")
    links = {"a device": "/dev/null", "a folder": "folder", "nothing in a missing folder": "missing/file"}
    for link, to in links.items():
        (tmp_path / f"link to {link}").symlink_to(to)
    (tmp_path / "loop").symlink_to("loop")
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
    before = sorted(os.walk("."))
    code, text = REFUSED[name]
    with pytest.raises(OSError, match=text) as caught:
        save_file({"a": StoredTensor((3,), torch.float32, work)}, name, format="glft")  # as text: a Path drops a "/"
    assert (caught.value.errno, caught.value.strerror, caught.value.filename) == (code, text, name)
    assert sorted(os.walk(".")) == before
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.parametrize("is_there", [False, True])
def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path, is_there: bool) -> None:
    """Also if the target is missing or on another file system. The mode of an old file stays."""
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        target, link = Path(folder, "target"), tmp_path / "link"
        link.symlink_to(target)
        if is_there:
            target.write_bytes(b"old")
            target.chmod(0o640)
        save_file({"a": torch.ones(3)}, link, format="glft")
        assert (link.is_symlink(), os.path.samefile(link, target), os.listdir(folder)) == (True, True, ["target"])
        assert not is_there or os.name != "posix" or stat.S_IMODE(target.stat().st_mode) == 0o640
        assert list(load_file(target, mmap=False)) == ["a"]


def test_what_killed_writers_left_is_removed_and_nothing_else(path: Path) -> None:
    left = path.with_name(".model.glft.0123abcd.tmp")
    left.write_bytes(b"half")
    others = [".model.glft.tmp", ".model.glft.0123abcg.tmp", ".other.0123abcd.tmp", "model.glft.0123abcd.tmp"]
    for name in others:
        path.with_name(name).write_bytes(b"")
    path.with_name(".model.glft.0000000d.tmp").mkdir()
    os.mkfifo(path.with_name(".model.glft.0000000f.tmp"))
    path.with_name(".model.glft.00000001.tmp").symlink_to("other")
    path.with_name("other").write_bytes(b"not to be touched")
    kept = {entry.name for entry in path.parent.iterdir()} - {left.name}
    save_file({"a": torch.ones(3)}, path)
    assert {entry.name for entry in path.parent.iterdir()} == kept | {path.name}


def test_a_writer_does_not_take_another_for_killed(path: Path) -> None:
    with atomic_write(path) as first:
        first.write(b"first")
        with atomic_write(path) as second:
            second.write(b"second")
        assert path.read_bytes() == b"second"
    assert_only(path, b"first")


def test_a_new_file_that_another_writer_takes_for_left_behind(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another writer may lock or remove it before the first locks it. Then a new one is made."""
    real, seen = fcntl.flock, []

    def flock(fd: int, operation: int) -> None:
        (made,) = path.parent.glob(".model*")
        seen.append(made.name)
        if len(seen) == 1:
            other = os.open(made, os.O_WRONLY)
            opened.append(other)
            real(other, operation)
        if len(seen) == 2:
            made.unlink()
        real(fd, operation)

    opened: list[int] = []
    monkeypatch.setattr(fcntl, "flock", flock)
    with atomic_write(path) as stream:
        stream.write(b"new")
    assert len(set(seen)) == 3
    assert_only(path, b"new")
    os.close(opened[0])


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS])
def test_a_lock_that_fails(path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """An error, unless the file system has no locks. Then no file is taken for abandoned."""
    left = path.with_name(f".{path.name}.0123abcd.tmp")
    left.write_bytes(b"half")

    def flock(fd: int, operation: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)
    if code == errno.EIO:
        with pytest.raises(OSError, match="Input/output error") as caught, atomic_write(path):
            pass
        assert (caught.value.errno, caught.value.filename) == (errno.EIO, str(path))
        assert_only(left, b"half")
    else:
        with atomic_write(path) as stream:
            stream.write(b"new")
        assert (path.read_bytes(), left.read_bytes()) == (b"new", b"half")


def test_nothing_writes_behind_the_streams_back(path: Path) -> None:
    """numpy writes to descriptors through C streams, which lose a full disk's error on close."""
    with atomic_write(path) as stream:
        assert not hasattr(stream, "fileno")
        np.save(stream, np.arange(10.0))
    assert np.load(path).tolist() == list(range(10))
    with small_files(200), pytest.raises(OSError, match="File too large"), atomic_write(path) as stream:
        np.save(stream, np.arange(11.0))
    assert np.load(path).tolist() == list(range(10))


@pytest.mark.parametrize("error", [InterruptedExportError, KeyboardInterrupt])
def test_what_failed_first_is_what_is_raised(path: Path, error: type[BaseException]) -> None:
    """Not the error of a full disk: the buffer is dropped after the first error."""
    path.write_bytes(b"old")

    def write() -> None:
        with atomic_write(path) as stream:
            stream.write(bytes(100))
            raise error

    with small_files(10), pytest.raises(error):
        write()
    assert_only(path, b"old")


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda tensor: tensor.resize_(1), r"float32 \[1\]"),
        (lambda tensor: setattr(tensor, "data", tensor.half()), r"float16 \[64, 64\]"),
    ],
)
def test_a_model_that_changes_while_it_is_written(path: Path, change: Callable[[torch.Tensor], object], found: str) -> None:
    path.write_bytes(b"old")
    model = {key: torch.nn.Parameter(torch.ones(64, 64), requires_grad=False) for key in "ab"}
    with pytest.raises(TensorError, match=rf"tensor 'b': expected float32 \[64, 64\] as planned, found {found}"):
        convert(Checkpoint(in_memory(model), {}), path, progress=lambda key, nbytes: change(model["b"]))
    assert_only(path, b"old")


@pytest.mark.posix("replaces an open file")
@pytest.mark.parametrize("suffix", [".safetensors", ".glft", ".gguf"])
def test_a_source_file_that_is_cut_or_replaced_while_it_is_read(tmp_path: Path, suffix: str) -> None:
    """Truncation is an error. After a replacement the open file stays the old one."""
    source, out = tmp_path / f"in{suffix}", tmp_path / "folder" / "out.glft"
    out.parent.mkdir()
    out.write_bytes(b"old")
    tensors = {"a": torch.ones(64, 64), "b": torch.full((64, 64), 2.0)}
    convert(Checkpoint(in_memory(tensors), {}), source)
    stored = source.read_bytes()
    with pytest.raises(FormatError):
        convert(source, out, progress=lambda key, nbytes: os.truncate(source, len(stored) - 5000))
    assert_only(out, b"old")
    source.write_bytes(stored)

    def replace(key: str, nbytes: int) -> None:
        source.with_name("other").write_bytes(bytes(len(stored)))
        source.with_name("other").replace(source)

    convert(source, out, progress=replace)
    assert all(torch.equal(tensor, tensors[key]) for key, tensor in load_file(out).items())


@pytest.mark.parametrize(("pieces", "found"), [((), 0), ((b"123",), 3), ((b"1234", b"5"), 5)])
def test_payloads_of_the_wrong_length_shift_nothing(path: Path, pieces: tuple[bytes, ...], found: int) -> None:
    path.write_bytes(b"old")
    rows = [{"name": name, "dims": [], "dtype": 0} for name in "ab"]
    sizeless = SimpleNamespace(write_to=lambda stream, order: sum(map(stream.write, pieces)))
    with pytest.raises(FormatError, match=f"data -> 'a': expected 4 bytes, found {found}"):
        Container.build_file({"descriptors": rows, "data": {"a": sizeless, "b": b"1234"}}, path)
    assert_only(path, b"old")


def test_a_corpus_that_cannot_be_written(tmp_path: Path) -> None:
    """Its manifest is written last, so the old one stays valid."""
    write_corpus([Case(b"old", CORRUPTED)], tmp_path, format=GLFT)
    before = sorted((entry.name, entry.read_bytes()) for entry in tmp_path.iterdir())
    case = Case(bytes(100), CORRUPTED)
    with small_files(50), pytest.raises(OSError, match="File too large") as caught:
        write_corpus([case], tmp_path, format=GLFT)
    assert caught.value.filename == str(tmp_path / f"corrupted-{case.sha256[:12]}.glft")
    assert sorted((entry.name, entry.read_bytes()) for entry in tmp_path.iterdir()) == before


def test_verbs_refuse_before_any_work(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_file({"a": torch.ones(3)}, path)
    out = path.parent / "missing" / "out.npy"
    monkeypatch.setattr(content, "page", work)
    monkeypatch.setattr(Tensor, "dequantize", work)
    for verb in (lambda: view(path, out), lambda: get_tensor(path, "a", out)):
        with pytest.raises(RefusedError) as caught:
            verb()
        assert (caught.value.exit_code, caught.value.message) == (2, f"{out}: No such file or directory")
    monkeypatch.setattr(run, "train", work)
    (path.parent / "manifest.json").mkdir()
    with pytest.raises(IsADirectoryError, match="not a regular file; left unchanged"):
        run.run_lab(path.parent, MiniGPTConfig(), 1, 0)


@pytest.mark.posix("has modes")
def test_until_it_is_complete_the_new_file_is_this_users_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_bytes(b"old")
    out.chmod(0o440)
    with atomic_write(out) as file:
        file.write(b"new")
        assert os.fstat(file.fd).st_mode & 0o777 == 0o600
    assert (out.read_bytes(), out.stat().st_mode & 0o777) == (b"new", 0o440)


@pytest.mark.parametrize("name", ["/etc/passwd", "../.out.01234567.tmp", ".out.01234567.tmpx", ".out.0123456.tmp", ""])
def test_another_process_cannot_name_other_files(name: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="expected the name of a temporary file of 'out', found "):
        open_begun(tmp_path / "out", name)


def test_a_file_that_another_process_has_begun(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="which another process has begun: all need one file system"):
        open_begun(tmp_path / "out", ".out.01234567.tmp")
    (tmp_path / "other").touch()
    os.link(tmp_path / "other", tmp_path / ".out.01234567.tmp")
    with pytest.raises(OptionError, match="expected a regular file with one name, found another one"):
        open_begun(tmp_path / "out", ".out.01234567.tmp")
