"""A folder with a kernel, built once per run."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from glft_schema import kernels
from glft_schema.tensor_types.kernels import in_use
from glft_schema.tensor_types.kernels.folder import FOLDER, Manifest, manifests, write_kernel


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kernel of MXFP4's encoder, `by_power`, and a library that is none, named as that of Q8_0.

    All processes of the run share the folder: building waits for the others.
    """
    if not shutil.which("g++"):
        pytest.skip("there is no C++ compiler")
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if base.name.startswith("popen-") else base) / "kernels"  # xdist's processes have a folder each
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER, str(folder))
        (kernel,) = kernels.build(["mxfp4"], jobs=1)
    if "times as long as" in (kernel.problem or ""):
        pytest.skip(f"the machine is busy, so that a kernel was not kept: {kernel.problem}")
    assert (kernel.name, kernel.problem) == ("by_power", None)
    ((_, manifest),) = manifests(folder, "by_power")
    assert isinstance(manifest, Manifest)
    library, identity = b"no library", kernels._identity("in_eight_bits float32[n0 32]")
    other = replace(manifest, kernel=identity.name, key=identity.key(), library=sha256(library).hexdigest())
    write_kernel(folder, other, library)
    return folder


@pytest.fixture
def folder(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the folder, which this process uses."""
    folder = tmp_path / "kernels"
    shutil.copytree(built, folder)
    folder.chmod(0o700)
    monkeypatch.setenv(FOLDER, str(folder))
    monkeypatch.delenv(in_use.MODE)
    in_use.forget_kernels()
    yield folder
    in_use.forget_kernels()


def looked_up(name: str) -> in_use.Kernel | str:
    """Returns the kernel of this name that this process has looked up, or why there is none."""
    (found,) = [kernel for identity, kernel in in_use._LOADED.items() if identity.name == name]
    return found
