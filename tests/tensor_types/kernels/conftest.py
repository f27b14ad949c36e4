"""A folder with the kernels of three types, built once per run."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from glft_schema import kernels
from glft_schema.tensor_types.kernels import in_use
from glft_schema.tensor_types.kernels.folder import FOLDER, Manifest, manifests

TYPES = ("q4_k", "q8_per_channel", "q4_per_group_64")  # computed scales and offsets; a scale per row; pairs


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kernels, in a folder that all processes of the run share: building one waits for the
    others."""
    if not shutil.which("g++"):
        pytest.skip("there is no C++ compiler")
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if base.name.startswith("popen-") else base) / "kernels"  # xdist's processes have a folder each
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER, str(folder))
        assert len(kernels.build(TYPES, jobs=1)) == 5
        for path, manifest in manifests(folder):
            assert isinstance(manifest, Manifest)
            if "times as long as" in manifest.about.get("problem", ""):
                pytest.skip(f"the machine is busy, so that a kernel was not kept: {manifest.about['problem']}")
            assert set(manifest.about) <= {"numbers_per_second", "times_as_fast"}, (path, manifest.about)
    return folder


@pytest.fixture
def folder(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the kernels, which this process uses."""
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
