"""Wheels and editable installations, by hatchling, from a copy of the source tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from glft_schema.tensor_types.library import building, loading

ROOT = Path(__file__).parents[3]
COMPILED = "glft_schema/tensor_types/library/compiled/"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    pytest.importorskip("hatchling")
    ignored = shutil.ignore_patterns("__pycache__", "compiled")
    shutil.copytree(ROOT / "glft_schema", tmp_path / "tree" / "glft_schema", ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / "tree")
    return tmp_path / "tree"


def built(tree: Path, *arguments: str, **variables: str) -> tuple[subprocess.CompletedProcess[str], list[Path]]:
    """Runs hatchling; returns its output, and the wheels."""
    program = "import sys; from hatchling.cli import hatchling; sys.exit(hatchling())"
    path = os.pathsep.join(entry for entry in sys.path if entry and Path(entry).resolve() != ROOT)
    command = [sys.executable, "-c", program, "build", *arguments, "-d", "dist"]
    done = subprocess.run(
        command, cwd=tree, env={**os.environ, **variables, "PYTHONPATH": path}, capture_output=True, text=True
    )
    return done, list((tree / "dist").glob("*"))


def test_a_wheel_without_a_compiler(tree: Path) -> None:
    done, [wheel] = built(tree, "-t", "wheel", CC="no-such-compiler")
    assert done.returncode == 0, done.stderr
    problem = "glft_schema is installed without compiled functions, which are faster: the compiler no-such-compiler cannot run"
    assert [line for line in done.stderr.splitlines() if "glft_schema is" in line] == [f"{problem}: No such file or directory"]
    assert wheel.name.endswith("-py3-none-any.whl")
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.startswith(COMPILED)]
    assert not (tree / COMPILED).exists()


def test_a_target_that_cannot_be_compiled_for(tree: Path) -> None:
    """Stops, since a wheel for this target is what was asked for."""
    done, wheels = built(tree, "-t", "wheel", GLFT_TARGET="x86-linux")
    assert "GLFT_TARGET=x86-linux: expected a target x86_64-linux, aarch64-linux," in done.stderr
    assert (done.returncode, wheels) == (1, [])


@pytest.mark.full
@pytest.mark.skipif(building.compiler() is None, reason="no C compiler")
def test_a_wheel_for_this_machine_and_an_editable_installation(tree: Path, tmp_path: Path) -> None:
    """The source tree is unchanged by a wheel, and has the libraries after an editable
    installation, which are in no wheel or sdist."""
    pytest.importorskip("editables")
    done, [wheel] = built(tree, "-t", "wheel")
    assert (done.returncode, "glft_schema is" in done.stderr) == (0, False), done.stderr
    assert "-py3-none-" in wheel.name
    assert "-any" not in wheel.name
    assert not (tree / COMPILED).exists()
    first = wheel.read_bytes()
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    assert loading.Library(tmp_path / "site" / COMPILED).function("q4_k_bf16")
    done, _ = built(tree, "-t", "wheel:editable")
    assert done.returncode == 0, done.stderr
    assert os.listdir(tree / COMPILED) != []
    (tree / COMPILED / "old.so").write_bytes(b"")
    shutil.rmtree(tree / "dist")
    built(tree, "-t", "wheel")
    assert wheel.read_bytes() == first
    shutil.rmtree(tree / "dist")
    _, [sdist] = built(tree, "-t", "sdist")
    shutil.unpack_archive(sdist, tmp_path / "sdist")
    assert list((tmp_path / "sdist").rglob("build_hook.py"))
    assert not list((tmp_path / "sdist").rglob("compiled"))
