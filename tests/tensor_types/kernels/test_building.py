"""Kernels are kept only if they write the same numbers in less time."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from glft_schema import kernels
from glft_schema.errors import OptionError
from glft_schema.formats.glft import GLFT
from glft_schema.storage.source import BytesSource
from glft_schema.tensor_types.engine.steps import STEPS, watched
from glft_schema.tensor_types.ggml import GGML_TYPES
from glft_schema.tensor_types.kernels import building, in_use
from glft_schema.tensor_types.kernels.building import Example, build_kernel
from glft_schema.tensor_types.kernels.folder import FOLDER, manifests, read_manifest
from glft_schema.tensor_types.kernels.in_use import MODE, Identity
from tests.tensor_types.kernels.conftest import looked_up

pytestmark = pytest.mark.full
LINE = r"q4_k +[0-9.]+ billion numbers/s in one thread, [0-9.]+ times as fast as operations"


def glft(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "glft_schema", "kernels", *arguments], capture_output=True, text=True)


def doubled(arguments: list[torch.Tensor]) -> None:
    arguments[1].copy_(arguments[0] * 2)


def example(rows: int, factor: float, pause: float = 0.0) -> Example:
    numbers = torch.arange(rows, dtype=torch.float32)
    out = numbers * factor
    return Example([numbers, out], out, lambda: time.sleep(pause) if pause else None)


@pytest.mark.parametrize(
    ("factor", "pause", "problem"),
    [
        (2, 0.05, None),
        (3, 0.05, "it writes other numbers, for 5 rows"),
        (2, 0, "it takes [0-9.]+ times as long as the operations"),
    ],
)
def test_what_is_kept(factor: float, pause: float, problem: str | None, tmp_path: Path) -> None:
    """A kernel is compared with operations that only wait, or do nothing."""
    tmp_path.chmod(0o700)
    identity = Identity("doubled", (doubled,))
    found = build_kernel(tmp_path, identity, doubled, [example(rows, factor, pause) for rows in (5, 1000)])
    assert (found.library is None) == (problem is not None)
    if problem:
        assert re.fullmatch(problem, found.about["problem"])
    assert [manifest for _, manifest in manifests(tmp_path)] == [found]
    assert len(list(tmp_path.iterdir())) == (1 if problem else 2)


def test_a_function_that_cannot_be_compiled(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)

    def counting(arguments: list[torch.Tensor]) -> None:
        arguments[1].copy_(torch.full_like(arguments[0], len(arguments[0].nonzero())))

    found = build_kernel(tmp_path, Identity("counting", (counting,)), counting, [example(100, 2)])
    assert found.library is None
    assert found.about["problem"]
    assert [path.suffix for path in tmp_path.iterdir()] == [".json"]


def test_a_library_of_another_layout_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setattr(building.Kernel, "bound", lambda self, tensors: None)
    found = build_kernel(tmp_path, Identity("doubled", (doubled,)), doubled, [example(100, 2)])
    assert found.about["problem"] == "it was compiled for another layout"


def test_existing_kernels_are_kept(folder: Path) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    others = [folder / "run-0123456789abcdef.json", folder / ".building", folder / "notes.so"]
    for path in others:
        path.touch()
    (folder / ".glft-kernel-abandoned").mkdir()
    (folder / ".glft-kernel-file").touch()
    (folder / f"{'0' * 64}.so").touch()
    told: list[kernels.BuiltKernel] = []
    built = kernels.build(["Q4_K"], jobs=1, built=told.append)
    assert built == told
    assert sorted(kernel.name for kernel in built) == ["bfloat16", "float16", "q4_k"]
    kernels.remove(stale=True)
    for path in others:
        path.unlink()
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before


@pytest.mark.parametrize("damage", ["library", "no library", "manifest", "manifest of a failure"])
def test_a_damaged_kernel_is_replaced(damage: str, folder: Path) -> None:
    (path,) = folder.glob("q4_k-*.kernel.json")
    manifest = read_manifest(path)
    if "library" in damage:
        library = folder / f"{manifest.library}.so"
        library.write_bytes(b"") if damage == "library" else library.unlink()
        line = "q4_k             not used: its library is damaged: run glft kernels build again"
    elif damage == "manifest":
        path.write_text("{}")
        line = f"{path.name.removesuffix('.kernel.json')} not used: {path}: damaged"
    else:
        path.write_bytes(replace(manifest, library=None, about={"problem": "no compiler", "retry": True}).content())
        line = "q4_k             not used: no compiler"
    assert line in glft("list").stdout.splitlines()
    if damage not in ("library", "manifest"):  # building takes long
        return
    (built,) = [kernel for kernel in kernels.build(["q4_k"]) if kernel.name == "q4_k"]
    assert built.problem is None
    assert any(re.fullmatch(LINE, found) for found in glft("list").stdout.splitlines())
    type_ = GGML_TYPES["Q4_K"]
    type_.decode(type_.encode(torch.randn(4, 256), "w"), 256)  # the kernel is used, without a warning
    assert type(looked_up("q4_k")) is in_use.Kernel


def test_removing(folder: Path) -> None:
    (path,) = folder.glob("q4_k-*.kernel.json")
    fields = read_manifest(path)
    old = replace(fields, key={**fields.key, "torch": "2.0.0"})
    (folder / old.file).write_bytes(old.content())
    (folder / "q5_k-0.kernel.json").write_text("{}")
    lines = glft("list").stdout.splitlines()
    assert "q4_k             not used: built for torch 2.0.0" in lines
    assert glft("remove", "--stale").stdout == "removed 2 kernels\n"
    assert glft("remove", "Q8_per_channel", "float16").stdout == "removed 2 kernels\n"
    assert path.exists()
    assert glft("remove").stdout == "removed 3 kernels\n"
    assert list(folder.iterdir()) == []
    assert glft("remove").stdout == "removed 0 kernels\n"
    assert glft("list").stdout == f"no kernels in {folder}\n"
    folder.rmdir()
    assert glft("remove").stdout == "removed 0 kernels\n"
    assert glft("list").stdout == f"no kernels in {folder}\n"


def test_the_list(folder: Path) -> None:
    done = glft("list")
    assert (done.returncode, done.stderr) == (0, "")
    names = [line.split()[0] for line in done.stdout.splitlines()]
    assert names == ["bfloat16", "float16", "q4_k", "q4_per_group_64", "q8_per_channel"]
    assert re.fullmatch(LINE, done.stdout.splitlines()[2])
    folder.chmod(0o755)
    assert glft("list").stderr == f"glft: {folder}: expected mode 0700, found 0755\n"
    assert glft("remove").returncode == 2


def test_a_type_that_was_not_kept(folder: Path) -> None:
    (path,) = folder.glob("q4_k-*.kernel.json")
    path.write_bytes(replace(read_manifest(path), library=None, about={"problem": "it is blue"}).content())
    done = glft("build", "q4_k", "--jobs", "1")
    assert "q4_k             not used: it is blue" in done.stdout.splitlines()
    assert done.returncode == 1
    type_ = GGML_TYPES["Q4_K"]
    weights = torch.randn(4, 256)
    assert type_.decode(type_.encode(weights, "w"), 256).shape == (4, 256)  # without a warning
    assert looked_up("q4_k") == "it is blue"


@pytest.mark.parametrize("command", ["build", "remove"])
def test_an_unknown_type(command: str, folder: Path) -> None:
    done = glft(command, "q4_z")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "glft: expected a quantized type, found 'q4_z'\n")


def test_a_folder_that_cannot_be_used(folder: Path) -> None:
    folder.chmod(0o755)
    done = glft("build", "q4_k")
    assert done.returncode == 2
    assert done.stderr == f"glft: no kernels can be built: {folder}: expected mode 0700, found 0755\n"
    with pytest.raises(OptionError, match="expected mode 0700"):
        list(kernels.build(["q4_k"]))


def test_without_a_compiler(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command says so, fails, and tries again the next time."""
    glft("remove", "q4_k")
    with monkeypatch.context() as patch:
        patch.setenv("CXX", "/no/such/compiler")
        done = glft("build", "q4_k", "--jobs", "1")
    assert done.returncode == 1
    assert [line.split()[0] for line in done.stdout.splitlines() if " not used: " in line] == ["q4_k"]
    done = glft("build", "q4_k", "--jobs", "2")
    assert (done.returncode, done.stderr) == (0, "")
    assert any(re.fullmatch(LINE, line) for line in done.stdout.splitlines())


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
    assert len(list(manifests(folder))) < 5  # one that had just begun may be built


def interruptible() -> None:
    """A shell may start background jobs with SIGINT ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_from_a_script_without_a_guard(folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("from glft_schema import kernels\nprint(len(kernels.build(['q4_k'], jobs=2)))\n")
    (tmp_path / "torch.py").write_text("raise SystemExit('the wrong torch')")  # nothing is imported from the current folder
    next(folder.glob("q4_k*")).unlink()
    done = subprocess.run(
        [sys.executable, script.name], cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PYTHONSAFEPATH": "1"}
    )
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr


def test_in_the_background(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``auto`` builds what is missing, for later processes, and starts one process only."""
    new = tmp_path / "new"
    monkeypatch.setenv(FOLDER, str(new))
    monkeypatch.setenv(MODE, "auto")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "torch.py").write_text("raise SystemExit('the wrong torch')")
    expected = {}
    fields = {}
    for name in ("Q8_per_channel", "Q4_per_group_64"):
        type_ = GLFT.types[name]
        fields[name] = type_.encode(torch.randn(4, 64, generator=torch.Generator().manual_seed(0)), "w")
        expected[name] = type_.decode(fields[name], 64)
    (builder,) = in_use._BUILDERS
    try:
        deadline = time.monotonic() + 300
        while not list(new.glob("q8_per_channel-*.kernel.json")):
            assert time.monotonic() < deadline
            assert builder.poll() is None
            time.sleep(0.1)
    finally:
        os.killpg(builder.pid, signal.SIGKILL)
        builder.wait()
        in_use._BUILDERS.clear()
    monkeypatch.setenv(MODE, "require")
    in_use.forget_kernels()
    type_ = GLFT.types["Q8_per_channel"]
    assert torch.equal(type_.decode(fields[type_.name], 64), expected[type_.name])


@pytest.mark.kernels
@pytest.mark.filterwarnings("ignore::glft_schema.QuantizationWarning")
def test_all_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kernel writes the same numbers as the operations for random payloads, or is not kept;
    encoders write the same bytes, also for zeros of either sign, tiny and pruned weights.

    ``pytest -m kernels`` runs it: it builds for ten to thirty minutes.
    """
    monkeypatch.setenv(FOLDER, str(tmp_path / "new"))
    monkeypatch.delenv(MODE)
    in_use.forget_kernels()
    done = kernels.build(encoders=True)
    assert all(kernel.problem is None or "times as long" in kernel.problem for kernel in done), done
    all_steps = all(kernel.problem is None for kernel in done if kernel.name in STEPS)
    built = {kernel.name: kernel.problem for kernel in done if kernel.name not in STEPS}
    assert sum(problem is None for problem in built.values()) > 20
    for name, type_ in kernels._quantized().items():
        columns = 256 if type_.least_row <= 256 else type_.least_row
        for rows in (2, 3, 64, 1000):
            payload = torch.randint(0, 256, (type_.nbytes([rows, columns]),), dtype=torch.uint8).numpy().tobytes()
            fields = type_.cut(BytesSource(payload), 0, [rows, columns], range(rows), range(columns))
            for dtype in (torch.float32, torch.float16, torch.bfloat16):
                found = {}
                for mode in ("off", "" if built[name] else "require"):
                    monkeypatch.setenv(MODE, mode)
                    found[mode] = type_.decode(fields, columns, dtype=dtype)
                one, other = found.values()
                same = (one.view(torch.uint8) == other.view(torch.uint8)).view(*one.shape, -1).all(-1)
                assert bool((same | one.isnan() & other.isnan()).all()), (name, rows, dtype)
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
            assert all(by_kernels) or not all_steps, name
            assert all(torch.equal(encoded[field], expected[field]) for field in expected), (name, given is None)
