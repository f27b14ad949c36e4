"""The temporary file of `atomic_write` with a key: this user's alone, whatever is at its path."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import glft_schema as glft
from glft_schema.storage.atomic import atomic_write, partial_path

KEY = "0123456789abcdef"


class StoppedError(Exception):
    """Ends a block."""


@pytest.mark.parametrize("mask", [0o022, 0o002, 0o077])
def test_only_the_user_can_write_until_the_file_is_there(mask: int, tmp_path: Path) -> None:
    out, before = tmp_path / "out", os.umask(mask)
    try:
        with pytest.raises(StoppedError), atomic_write(out, KEY):
            raise StoppedError
        with atomic_write(out, KEY):
            assert os.stat(partial_path(out, KEY)).st_mode & 0o777 == 0o600
    finally:
        os.umask(before)
    assert out.stat().st_mode & 0o777 == 0o666 & ~mask


def test_a_file_that_is_removed_before_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By another writer, which took it for abandoned. It is created instead."""
    partial, real = Path(partial_path(tmp_path / "out", KEY)), os.lstat
    partial.write_bytes(b"left")

    def lstat(path: str) -> os.stat_result:
        if partial.exists() and partial.stat().st_size:
            partial.unlink()
        return real(path)

    monkeypatch.setattr("os.lstat", lstat)
    with atomic_write(tmp_path / "out", KEY) as file:
        assert os.read(file.fd, 4) == b""


def test_a_file_that_is_exchanged_while_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has been opened is checked, not only the path."""
    partial, real = Path(partial_path(tmp_path / "out", KEY)), os.lstat
    partial.write_bytes(b"left")

    def lstat(path: str) -> os.stat_result:
        found = real(path)
        if path == str(partial):
            partial.chmod(0o666)
        return found

    monkeypatch.setattr("os.lstat", lstat)
    with pytest.raises(glft.OptionError, match="found mode 0666: remove "), atomic_write(tmp_path / "out", KEY):
        pass
