"""Kernels are kept only if they write the same numbers in less time."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from glft_schema import kernels
from glft_schema.errors import OptionError
from glft_schema.tensor_types.engine.steps import watched
from glft_schema.tensor_types.ggml import GGML_TYPES
from glft_schema.tensor_types.kernels import building, in_use
from glft_schema.tensor_types.kernels.building import build_step
from glft_schema.tensor_types.kernels.folder import FOLDER, Manifest, manifests, read_manifest
from glft_schema.tensor_types.kernels.in_use import MODE, Identity
from tests.tensor_types.kernels.conftest import looked_up

pytestmark = pytest.mark.full
LINE = r"by_power +[0-9.]+ billion numbers/s in one thread, [0-9.]+ times as fast as operations"


def glft(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "glft_schema", "kernels", *arguments], capture_output=True, text=True)


def waiting(x: torch.Tensor) -> tuple[torch.Tensor]:
    if not torch.compiler.is_compiling():
        time.sleep(0.005)
    return (x * 2,)


def differing(x: torch.Tensor) -> tuple[torch.Tensor]:
    return (x * (3 if torch.compiler.is_compiling() else 2),)


def doubled(x: torch.Tensor) -> tuple[torch.Tensor]:
    return (x * 2,)


def branching(x: torch.Tensor) -> tuple[torch.Tensor]:
    return (x if x.sum() > 0 else -x,)


def built(folder: Path, step: Callable[..., tuple[torch.Tensor]]) -> Manifest:
    folder.chmod(0o700)
    return build_step(folder, Identity("doubled", (doubled,)), step, True, [torch.ones(100)], {})


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        (waiting, None),
        (differing, "it writes other numbers, for a length of 2"),
        (doubled, "it takes [0-9.]+ times as long as the operations"),  # a call takes longer than one operation
        (branching, "Unsupported: Data-dependent branching .*"),
    ],
)
def test_what_is_kept(step: Callable[..., tuple[torch.Tensor]], problem: str | None, tmp_path: Path) -> None:
    found = built(tmp_path, step)
    assert (found.library is None) == (problem is not None)
    if problem:
        assert re.fullmatch(problem, found.about["problem"])
    assert [manifest for _, manifest in manifests(tmp_path)] == [found]
    assert len(list(tmp_path.iterdir())) == (1 if problem else 2)


def test_a_library_of_another_layout_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building.Kernel, "run", lambda self, tensors: None)
    assert built(tmp_path, doubled).about["problem"] == "it was compiled for another layout"


def test_existing_kernels_are_kept(folder: Path) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    others = [folder / "run-0123456789abcdef.json", folder / ".building", folder / "notes.so"]
    for path in others:
        path.touch()
    (folder / ".glft-kernel-abandoned").mkdir()
    (folder / ".glft-kernel-file").touch()
    (folder / f"{'0' * 64}.so").touch()
    told: list[kernels.BuiltKernel] = []
    assert kernels.build(["MXFP4"], jobs=1, built=told.append) == told
    assert [kernel.name for kernel in told] == ["by_power"]
    kernels.remove(stale=True)
    for path in others:
        path.unlink()
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before


@pytest.mark.parametrize("damage", ["library", "no library", "manifest", "manifest of a failure"])
def test_a_damaged_kernel_is_replaced(damage: str, folder: Path) -> None:
    (path,) = folder.glob("by_power-*.kernel.json")
    manifest = read_manifest(path)
    if "library" in damage:
        library = folder / f"{manifest.library}.so"
        library.write_bytes(b"") if damage == "library" else library.unlink()
        line = "by_power         not used: its library is damaged: run glft kernels build again"
    elif damage == "manifest":
        path.write_text("{}")
        line = f"{path.name.removesuffix('.kernel.json')} not used: {path}: damaged"
    else:
        path.write_bytes(replace(manifest, library=None, about={"problem": "no compiler", "retry": True}).content())
        line = "by_power         not used: no compiler"
    assert line in glft("list").stdout.splitlines()
    if damage not in ("library", "manifest"):  # building takes long
        return
    (built,) = kernels.build(["mxfp4"])
    assert built.problem is None
    assert any(re.fullmatch(LINE, found) for found in glft("list").stdout.splitlines())
    GGML_TYPES["MXFP4"].encode(torch.randn(4, 256), "w")  # the kernel is used, without a warning
    assert type(looked_up("by_power")) is in_use.Kernel


def test_removing(folder: Path) -> None:
    (path,) = folder.glob("by_power-*.kernel.json")
    fields = read_manifest(path)
    for old in (replace(fields, key={**fields.key, "torch": "2.0.0"}), replace(fields, kernel="q4_k")):
        (folder / old.file).write_bytes(old.content())
    (folder / "rounded-0.kernel.json").write_text("{}")
    lines = glft("list").stdout.splitlines()
    assert "by_power         not used: built for torch 2.0.0" in lines
    assert "q4_k             not used: built for a step that is not there" in lines
    assert glft("remove", "--stale").stdout == "removed 3 kernels\n"
    assert glft("remove", "in_eight_bits", "try_scale").stdout == "removed 1 kernel\n"
    assert path.exists()
    assert glft("remove").stdout == "removed 1 kernel\n"
    assert list(folder.iterdir()) == []
    assert glft("remove").stdout == "removed 0 kernels\n"
    assert glft("list").stdout == f"no kernels in {folder}\n"
    folder.rmdir()
    assert glft("remove").stdout == "removed 0 kernels\n"
    assert glft("list").stdout == f"no kernels in {folder}\n"


def test_the_list(folder: Path) -> None:
    done = glft("list")
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["by_power", "in_eight_bits"]
    assert re.fullmatch(LINE, done.stdout.splitlines()[0])
    folder.chmod(0o755)
    assert glft("list").stderr == f"glft: {folder}: expected mode 0700, found 0755\n"
    assert glft("remove").returncode == 2


def test_a_kernel_that_was_not_kept(folder: Path) -> None:
    (path,) = folder.glob("by_power-*.kernel.json")
    path.write_bytes(replace(read_manifest(path), library=None, about={"problem": "it is blue"}).content())
    done = glft("build", "mxfp4", "--jobs", "1")
    assert (done.returncode, done.stdout) == (1, "by_power         not used: it is blue\n")
    GGML_TYPES["MXFP4"].encode(torch.randn(4, 256), "w")  # without a warning
    assert looked_up("by_power") == "it is blue"


def test_an_encoder_without_steps(folder: Path) -> None:
    done = glft("build", "q4_per_group_64")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "no kernels: the encoders of these types have no steps to compile\n"


@pytest.mark.parametrize(
    ("command", "problem"),
    [("build", "expected a quantized type"), ("remove", "expected a step of encoders, above_least, by_power, .* or try_scale")],
)
def test_an_unknown_name(command: str, problem: str, folder: Path) -> None:
    done = glft(command, "q4_z")
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(f"glft: {problem}, found 'q4_z'\n", done.stderr)


def test_a_folder_that_cannot_be_used(folder: Path) -> None:
    folder.chmod(0o755)
    done = glft("build", "mxfp4")
    assert done.returncode == 2
    assert done.stderr == f"glft: no kernels can be built: {folder}: expected mode 0700, found 0755\n"
    with pytest.raises(OptionError, match="expected mode 0700"):
        kernels.build(["mxfp4"])


def test_without_a_compiler(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command says so, fails, and tries again the next time."""
    glft("remove", "by_power")
    with monkeypatch.context() as patch:
        patch.setenv("CXX", "/no/such/compiler")
        done = glft("build", "mxfp4", "--jobs", "1")
    assert done.returncode == 1
    assert re.fullmatch("by_power         not used: .*no/such/compiler.*\n", done.stdout)
    done = glft("build", "mxfp4", "--jobs", "2")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(LINE, done.stdout.rstrip())


def test_interrupted(folder: Path) -> None:
    glft("remove")
    command = [sys.executable, "-m", "glft_schema", "kernels", "build", "--jobs", "2"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, preexec_fn=interruptible, start_new_session=True)
    while not list(folder.iterdir()):
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=120)
    assert process.returncode != 0
    kept = [path for path in folder.iterdir() if path.name.startswith(".")]
    assert kept == []
    assert len(list(manifests(folder))) < 5  # of many; one that had just begun may be built


def interruptible() -> None:
    """A shell may start background jobs with SIGINT ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_from_a_script_without_a_guard(folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("from glft_schema import kernels\nprint(len(kernels.build(['mxfp4'], jobs=2)))\n")
    (tmp_path / "torch.py").write_text("raise SystemExit('the wrong torch')")  # nothing is imported from the current folder
    next(folder.glob("by_power*")).unlink()
    done = subprocess.run(
        [sys.executable, script.name], cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PYTHONSAFEPATH": "1"}
    )
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


def test_in_the_background(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``auto`` builds what is missing, for later processes, and starts one process only."""
    new = tmp_path / "new"
    monkeypatch.setenv(FOLDER, str(new))
    monkeypatch.setenv(MODE, "auto")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "torch.py").write_text("raise SystemExit('the wrong torch')")
    type_ = GGML_TYPES["Q4_0"]
    weights = torch.randn(4, 256, generator=torch.Generator().manual_seed(0))
    expected = type_.encode(weights, "w")["blocks"]
    GGML_TYPES["MXFP4"].encode(weights, "w")
    (builder,) = in_use._BUILDERS
    try:
        deadline = time.monotonic() + 300
        while not list(new.glob("from_farthest-*.kernel.json")):  # the first of all steps
            assert time.monotonic() < deadline
            assert builder.poll() is None
            time.sleep(0.1)
    finally:
        os.killpg(builder.pid, signal.SIGKILL)
        builder.wait()
        in_use._BUILDERS.clear()
    monkeypatch.setenv(MODE, "")
    in_use.forget_kernels()
    assert torch.equal(type_.encode(weights, "w")["blocks"], expected)
    found = looked_up("from_farthest")
    assert isinstance(found, in_use.Kernel) or "times as long as" in found  # on a busy machine


@pytest.mark.parametrize("mode", ["yes", "require"])
def test_an_unknown_mode_is_refused(mode: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MODE, mode)
    with pytest.raises(OptionError, match=f"expected GLFT_KERNELS as auto or off, found '{mode}'"):
        GGML_TYPES["MXFP4"].encode(torch.zeros(4, 256), "w")


@pytest.mark.kernels
@pytest.mark.filterwarnings("ignore::glft_schema.QuantizationWarning")
def test_all_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Encoders write the same bytes with kernels, also for zeros of either sign, tiny and pruned
    weights. Kernels that were slower are not kept.

    ``pytest -m kernels`` runs it: it builds for ten to thirty minutes.
    """
    monkeypatch.setenv(FOLDER, str(tmp_path / "new"))
    monkeypatch.delenv(MODE)
    in_use.forget_kernels()
    done = kernels.build()
    assert all(kernel.problem is None or "times as long" in kernel.problem for kernel in done), done
    all_kept = all(kernel.problem is None for kernel in done)
    random = torch.Generator().manual_seed(5)
    weights, importance = torch.randn(700, 2048, generator=random), torch.rand(2048, generator=random)
    for number, factor in enumerate((0.0, 1e-44, 1e-30, 1e-8, 1e-4, 100.0)):
        weights[9 * number] *= factor
    weights[60:80] *= torch.rand(20, 2048, generator=random) < 0.05
    weights[80:90] = weights[80:90].round()
    importance[::7] = 0
    for name, type_ in kernels._quantized().items():
        for given in [None] * (type_.has_encoder and not type_.needs_importance) + [importance] * type_.takes_importance:
            monkeypatch.setenv(MODE, "off")
            expected = type_.encode(weights, "w", importance=given)
            monkeypatch.setenv(MODE, "")
            with watched() as by_kernels:
                encoded = type_.encode(weights, "w", importance=given)
            assert all(by_kernels) or not all_kept, name
            assert all(torch.equal(encoded[field], expected[field]) for field in expected), (name, given is None)
