"""Libraries that are no kernels, or that fail."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from glft_schema.tensor_types.kernels.folder import Manifest, write_kernel
from glft_schema.tensor_types.kernels.library import Library, Shim

SOURCE = """
int AOTInductorModelContainerCreateWithDevice(void **made, long count, const char *device, const char *folder)
{
    *made = made;
    return CREATE;
}
int AOTInductorModelContainerRun(void *made, void **in, long ins, void **out, long outs, void *stream, void *proxy)
{
    return RUN;
}
"""


def library(folder: Path, **results: object) -> Path:
    """Compiles a library whose functions return numbers; 0 is success."""
    if not shutil.which("gcc"):
        pytest.skip("there is no C compiler")
    path = folder / "library.so"
    defined = [f"-D{name}={result}" for name, result in results.items()]
    subprocess.run(["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", path, *defined], input=SOURCE, text=True, check=True)
    return path


def test_a_library_without_the_functions(tmp_path: Path) -> None:
    path = library(tmp_path, CREATE=0, RUN=0, AOTInductorModelContainerRun="other")
    with pytest.raises(OSError, match="undefined symbol: AOTInductorModelContainerRun"):
        Library(path, Shim())


def test_no_library(tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("text")
    with pytest.raises(OSError, match="file too short"):
        Library(tmp_path / "text.so", Shim())


def test_a_model_that_cannot_be_created(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="AOTInductor cannot create the model"):
        Library(library(tmp_path, CREATE=1, RUN=0), Shim())


def test_a_kernel_that_fails(tmp_path: Path) -> None:
    failing = Library(library(tmp_path, CREATE=0, RUN=1), Shim())
    with pytest.raises(RuntimeError, match="a kernel failed; torch has printed why"):
        failing.run([torch.zeros(4, 2)])


def test_a_tensor_that_torch_cannot_make(tmp_path: Path) -> None:
    interface = Shim()
    interface.dtypes = dict.fromkeys(interface.dtypes, 12345)
    working = Library(library(tmp_path, CREATE=0, RUN=0), interface)
    with pytest.raises(RuntimeError, match="torch cannot make a tensor of a kernel's argument"):
        working.run([torch.zeros(4, 2)])


def test_writing_that_fails_leaves_nothing(tmp_path: Path) -> None:
    manifest = Manifest("k", {"kernel": "k"}, None, [{"dtype": "float32", "sizes": []}], {})
    (tmp_path / manifest.file / "inside").mkdir(parents=True)
    with pytest.raises(OSError, match="directory"):
        write_kernel(tmp_path, manifest, None)
    assert [path.name for path in tmp_path.iterdir()] == [manifest.file]
