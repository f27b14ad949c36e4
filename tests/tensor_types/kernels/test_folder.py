"""Kernels that cannot be trusted are passed over, with one warning and the same numbers."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from glft_schema.tensor_types.ggml import GGML_TYPES
from glft_schema.tensor_types.kernels import in_use, machine
from glft_schema.tensor_types.kernels.folder import FOLDER, Manifest, UntrustedError, check_folder, kernel_folder, make_folder
from tests.tensor_types.kernels.conftest import looked_up

pytestmark = pytest.mark.full
TYPE = GGML_TYPES["MXFP4"]
MANIFEST = "by_power-[0-9a-f]{16}.kernel.json"
DAMAGED = f"{MANIFEST}: damaged"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def manifest(folder: Path, name: str = "by_power") -> Path:
    (path,) = folder.glob(f"{name}-*.kernel.json")
    return path


def written(folder: Path, **fields: object) -> None:
    """Replaces fields of the manifest, with the digest and the file's name that they have."""
    old = manifest(folder)
    values = json.loads(old.read_text())
    del values["digest"]
    new = Manifest(**{**values, **fields})
    old.unlink()
    (folder / new.file).write_bytes(new.content())


def library(folder: Path, name: str = "by_power") -> Path:
    return folder / f"{json.loads(manifest(folder, name).read_text())['library']}.so"


def with_key(folder: Path, **parts: str) -> None:
    written(folder, key={**json.loads(manifest(folder).read_text())["key"], **parts})


def other_library(folder: Path) -> None:
    """Names the library of another kernel, without a new digest."""
    text = manifest(folder).read_text()
    manifest(folder).write_text(text.replace(library(folder).stem, library(folder, "in_eight_bits").stem))


def swapped(folder: Path) -> None:
    one, other = manifest(folder), manifest(folder, "in_eight_bits")
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)


def libraries_swapped(folder: Path) -> None:
    one, other = library(folder), library(folder, "in_eight_bits")
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def replaced_by_link(path: Path, target: Path) -> None:
    path.rename(target)
    path.symlink_to(target)


def replaced_by_folder(folder: Path) -> None:
    path = manifest(folder)
    path.unlink()
    path.mkdir()


POISON: dict[str, tuple[Callable[[Path], object], str]] = {
    "library truncated": (lambda folder: cut(library(folder), 100_000), "[0-9a-f]{64}.so: damaged"),
    "library empty": (lambda folder: cut(library(folder), 0), "[0-9a-f]{64}.so: damaged"),
    "library missing": (lambda folder: library(folder).unlink(), "[0-9a-f]{64}.so: No such file or directory"),
    "libraries swapped": (libraries_swapped, "[0-9a-f]{64}.so: damaged"),
    "library a link": (
        lambda folder: replaced_by_link(library(folder), folder.parent / "elsewhere.so"),
        "[0-9a-f]{64}.so: Too many levels of symbolic links",
    ),
    "library writable by others": (
        lambda folder: library(folder).chmod(0o666),
        "[0-9a-f]{64}.so: expected a regular file that others cannot write to",
    ),
    "manifest truncated": (lambda folder: cut(manifest(folder), 100), DAMAGED),
    "manifest of something else": (lambda folder: manifest(folder).write_text("[1]"), DAMAGED),
    "manifest nested deeply": (
        lambda folder: manifest(folder).write_text("[" * 200_000),
        DAMAGED,
    ),
    "manifest too large": (
        lambda folder: manifest(folder).write_text(" " * 2_000_000),
        f"{MANIFEST}: expected at most 1048576 bytes, found 2000000",
    ),
    "manifests swapped": (
        swapped,
        f"{MANIFEST}: holds the kernel 'in_eight_bits-[0-9a-f]{{16}}.kernel.json'",
    ),
    "library of another kernel": (other_library, DAMAGED),
    "no layout": (lambda folder: written(folder, layout=[]), DAMAGED),
    "layout of texts": (
        lambda folder: written(folder, layout=[{"dtype": "float32", "sizes": "ab"}]),
        DAMAGED,
    ),
    "no dtype of torch": (
        lambda folder: written(folder, layout=[{"dtype": "nothing", "sizes": []}]),
        "has no attribute 'nothing'",
    ),
    "library elsewhere": (lambda folder: written(folder, library="../../lib"), DAMAGED),
    "manifest a folder": (replaced_by_folder, "expected a regular file that others cannot write to"),
    "other torch": (lambda folder: with_key(folder, torch="2.0.0"), "were built for torch 2.0.0: run glft kernels build again"),
    "other processor": (
        lambda folder: with_key(folder, processor="Z80"),
        "were built for processor Z80: run glft kernels build again",
    ),
    "other code": (
        lambda folder: with_key(folder, functions="0" * 64),
        "were built for other code of the step: run glft kernels build again",
    ),
    "folder for others": (lambda folder: folder.chmod(0o755), "kernels: expected mode 0700, found 0755"),
    "parent writable by others": (
        lambda folder: folder.parent.chmod(0o777),
        "expected a folder that others cannot write to; chmod go-w fixes it",
    ),
    "folder a link": (
        lambda folder: replaced_by_link(folder, folder.parent / "elsewhere"),
        "kernels: expected a folder, found a link or file",
    ),
}
OWNERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "library of another": (lambda folder: os.chown(library(folder), 12345, -1), "so: expected user 0 as owner, found 12345"),
    "manifest of another": (
        lambda folder: os.chown(manifest(folder), 12345, -1),
        "json: expected user 0 as owner, found 12345",
    ),
    "folder of another": (lambda folder: os.chown(folder, 12345, -1), "kernels: expected user 0 as owner, found 12345"),
    "parent of another": (
        lambda folder: os.chown(folder.parent, 12345, -1),
        "expected a folder of this user or root, found user 12345",
    ),
}


def encoded() -> torch.Tensor:
    return TYPE.encode(torch.randn(64, 256, generator=torch.Generator().manual_seed(0)), "w")["blocks"]


@pytest.mark.parametrize("name", [*POISON, *(pytest.param(name, marks=as_root) for name in OWNERS)])
def test_a_kernel_that_cannot_be_trusted(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    poison, sentence = {**POISON, **OWNERS}[name]
    with monkeypatch.context() as patch:
        patch.setenv(in_use.MODE, "off")
        expected = encoded()
    poison(folder)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = [encoded() for _ in range(3)]
    assert all(torch.equal(one, expected) for one in found)
    (warning,) = caught
    assert warning.category is RuntimeWarning
    assert re.search(sentence, str(warning.message)), str(warning.message)
    assert str(warning.message).startswith(("glft_schema passed over", "glft_schema kernels in"))


def test_a_kernel_as_it_was_built(folder: Path) -> None:
    """The test above would find nothing if kernels were never used."""
    assert encoded().shape == (64, 8 * 17)
    assert type(looked_up("by_power")) is in_use.Kernel


def test_no_folder_is_one_line_in_the_log(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path / "none"))
    with caplog.at_level(logging.INFO, "glft_schema"):
        encoded()
        encoded()
    expected = f"no kernels in {tmp_path / 'none'}: `glft kernels build` makes quantizing up to twice as fast"
    assert caplog.messages == [expected]


def test_a_torch_without_the_interface(folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(in_use, "shim", lambda: None)
    with caplog.at_level(logging.INFO, "glft_schema"):
        encoded()
    assert caplog.messages == [f"torch {torch.__version__} has no interface for kernels: encoders run operation by operation"]


def test_the_folder_is_in_the_users_folder_of_caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(FOLDER, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert kernel_folder() == tmp_path / "glft_schema" / "kernels"
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert kernel_folder() == Path.home() / ".cache" / "glft_schema" / "kernels"
    make_folder(tmp_path / "a" / "b")
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "a", tmp_path / "a" / "b")] == [0o700] * 2
    with pytest.raises(UntrustedError, match="gone: No such file or directory"):
        check_folder(tmp_path / "gone")
    (tmp_path / "a" / "file").touch()
    with pytest.raises(UntrustedError, match="file: expected a folder, found a link or file"):
        check_folder(tmp_path / "a" / "file")


@pytest.mark.parametrize("features", ["flags\t\t: fpu avx2\n", "flags\t\t: fpu avx2 avx512f\n"])
def test_the_processor_is_known_by_its_features(features: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"processor\t: 0\nmodel name\t: Fast One\ncpu MHz\t\t: 2000\n{features}\nprocessor\t: 1\n"
    found = []
    for megahertz in (2000, 3000):
        told = io.StringIO(text.replace("2000", str(megahertz)))
        monkeypatch.setattr(machine, "open", lambda *_, told=told, **__: told, raising=False)
        found.append(machine.processor())
    assert found[0] == found[1]
    assert re.fullmatch("Fast One [0-9a-f]{8}", found[0])


def test_a_kernel_that_others_replace_while_it_is_used(folder: Path) -> None:
    """A library's name is its content, so that a reader never sees half of another."""
    expected = encoded()
    shutil.rmtree(folder)
    assert torch.equal(encoded(), expected)


@pytest.mark.parametrize("home", ["/root/none", "no/absolute/path", "closed"])
def test_a_home_that_cannot_be_used(home: str, open_folder: Path, tmp_path: Path) -> None:
    """Encoding goes on without kernels: here as another user, with a home that it cannot read."""
    if home == "closed":
        tmp_path.chmod(0o700)
        home = str(tmp_path)
    code = """
import os, sys
import torch
from glft_schema.tensor_types.ggml import GGML_TYPES
if os.geteuid() == 0:
    os.setuid(12345)
os.environ["HOME"] = sys.argv[1]
for mode in ("", "auto"):
    os.environ["GLFT_KERNELS"] = mode
    type_ = GGML_TYPES["MXFP4"]
    print(type_.encode(torch.ones(4, 32), "w")["blocks"].shape)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, home],
        env={name: value for name, value in os.environ.items() if name not in (FOLDER, "XDG_CACHE_HOME", in_use.MODE)},
        cwd=open_folder,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "torch.Size([4, 17])\n" * 2), done.stderr


@as_root
def test_a_folder_in_the_home_of_another(open_folder: Path) -> None:
    """Nothing is made there, as ``sudo`` would with the user's HOME."""
    os.chown(open_folder, 12345, -1)
    with pytest.raises(UntrustedError, match="expected a folder of this user or root, found user 12345"):
        make_folder(open_folder / ".cache" / "kernels")
    assert list(open_folder.iterdir()) == []
