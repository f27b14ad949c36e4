"""Files that several processes write together: equal bytes, and faults of one of them."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import glft_schema as glft
from glft_schema.distributed import together
from glft_schema.distributed.ranks import Ranks, RanksError
from tests.tools import forked
from tests.tools.command_line import glft as glft_command
from tests.tools.depth import FULL
from tests.tools.launch import KILLED, left_in, run

OLD = b"the old file"
SCHEMES = {
    "gguf": ("--scheme", "*=q4_k", "--scheme", "b=q8_0"),
    "glft": ("--scheme", "*=q8_per_channel", "--scheme", "c=q4_per_group_64"),
    "safetensors": (),
}


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 20 MB, with ``--full`` of 60 MB: matrices of all sizes, vectors and a stack."""
    return model(tmp_path_factory.mktemp("source"), 3 if FULL else 1)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of 60 MB, of which ranks have several units each."""
    return model(tmp_path_factory.mktemp("large"), 3)


def model(folder: Path, size: int) -> Path:
    torch.manual_seed(0)
    tensors = {
        "a": torch.randn(667 * size, 4096),
        "b": torch.randn(371 * size, 2048),
        "c": torch.randn(500 * size, 3072),
        "norm": torch.randn(4096),
        "stack": torch.randn(2 * size, 64, 768),
        "tiny": torch.randn(3, 64),
    }
    path = folder / "in.safetensors"
    glft.save_file(tensors, path)
    return path


@pytest.mark.long
@pytest.mark.parametrize(
    ("ending", "counts"),
    [("gguf", [1, 3]), *(pytest.param(ending, [1, 2, 3, 4], marks=pytest.mark.full) for ending in SCHEMES)],
)
def test_any_number_of_processes_writes_the_bytes_of_one(ending: str, counts: list[int], source: Path, tmp_path: Path) -> None:
    alone, out = tmp_path / f"alone.{ending}", tmp_path / f"out.{ending}"
    options = ("convert", source, out, *SCHEMES[ending])
    glft.convert(source, alone, schemes=[tuple(text.split("=")) for text in SCHEMES[ending][1::2]])
    report = glft_command(*options).stdout  # with the errors of tensors
    for ranks in counts:
        assert run(ranks, options) == [(0, report, ""), *[(0, "", "")] * (ranks - 1)]
        assert sha256(out) == sha256(alone)
        assert left_in(tmp_path) == set()


def converted(source: Path, out: Path) -> tuple[object, ...]:
    return ("convert", source, out, "--scheme", "*=q4_k")


@pytest.mark.long
@pytest.mark.parametrize(
    ("killed", "finished"), [(1, 1), *(pytest.param(*pair, marks=pytest.mark.full) for pair in ((0, 0), (2, 1)))]
)
def test_a_rank_that_is_killed(large: Path, tmp_path: Path, killed: int, finished: int) -> None:
    """The others end, and the old file stays. The next run removes what rank 0 has left."""
    out, alone = tmp_path / "out.gguf", tmp_path / "alone.gguf"
    out.write_bytes(OLD)
    glft.convert(large, alone, schemes={"*": "q4_k"})
    environment = {rank: {"KILLED": f"{killed} {finished}"} for rank in range(3)}
    found = run(3, (KILLED, "--timeout", 3, *converted(large, out)), environment=environment, module="-c")
    assert found[killed].code == -signal.SIGKILL
    for rank, each in enumerate(found):
        if rank != killed:
            assert each.code == 1
            reasons = f"rank ({killed}|0) does not answer: no progress for 3 seconds|the store of the ranks"
            assert re.search(reasons, each.error), each.error
    assert out.read_bytes() == OLD
    assert len(left_in(tmp_path)) == (killed == 0)
    assert [each.code for each in run(2, converted(large, out))] == [0, 0]
    assert sha256(out) == sha256(alone)
    assert left_in(tmp_path) == set()


def test_what_is_left_is_removed_by_other_writers(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    (tmp_path / ".out.gguf.01234567.tmp").write_bytes(b"left")
    with together([source]) as ranks:
        glft.convert(source, out, ranks=ranks)
    assert left_in(tmp_path) == set()


def test_a_second_run_for_the_same_file(source: Path, tmp_path: Path) -> None:
    """Both write a file of their own, and remove no file that is in use."""
    out, seen = tmp_path / "out.gguf", []

    def again(name: str, share: float) -> None:
        if not seen:
            with together([source]) as ranks:
                glft.convert(source, out, ranks=ranks)
            seen.append(left_in(tmp_path))

    with together([source]) as ranks:
        glft.convert(source, out, progress=again, ranks=ranks)
    assert len(seen[0]) == 1
    assert left_in(tmp_path) == set()
    glft.convert(source, tmp_path / "alone.gguf")
    assert sha256(out) == sha256(tmp_path / "alone.gguf")


@pytest.mark.long
def test_a_full_disk_on_one_rank(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    out.write_bytes(OLD)
    found = run(3, converted(source, out), most_bytes={2: 1 << 20})
    for rank, each in enumerate(found):
        assert each.code != 0
        assert re.search(("rank 2: " * (rank != 2)) + ".*tensor '.*File too large", each.error)
    assert out.read_bytes() == OLD
    assert [each.code for each in run(1, converted(source, out))] == [0]
    assert left_in(tmp_path) == set()


@pytest.mark.parametrize(
    ("name", "scheme", "problem"),
    [
        ("other/in.safetensors", "q4_k", "rank 1: expected the inputs of rank 0, in.safetensors of .*changed at 1 ns"),
        ("in.safetensors", "q5_k", "rank 1: expected the plans of rank 0"),
        ("none.gguf", "q4_k", "none.gguf: No such file or directory"),
    ],
)
def test_ranks_with_other_arguments(name: str, scheme: str, problem: str, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    out.write_bytes(OLD)
    (source.parent / "other").mkdir(exist_ok=True)
    shutil.copyfile(source, source.parent / "other" / source.name)
    os.utime(source.parent / "other" / source.name, ns=(1, 1))
    other = ("convert", source.parent / name, out, "--scheme", f"*={scheme}")
    for each in run(2, converted(source, out), of_rank={1: other}):
        assert each.code != 0
        assert re.search(problem, each.error)
    assert out.read_bytes() == OLD
    assert left_in(tmp_path) == set()


def test_ranks_with_other_versions(source: Path, tmp_path: Path) -> None:
    known = tmp_path / "packages" / "glft_schema-99.0.dist-info"
    known.mkdir(parents=True)
    (known / "METADATA").write_text("Metadata-Version: 2.1\nName: glft_schema\nVersion: 99.0\n")
    path = os.pathsep.join([str(known.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    found = run(2, converted(source, tmp_path / "out.gguf"), environment={1: {"PYTHONPATH": path}})
    assert all(re.search(r"rank 1: expected the versions of rank 0, [0-9.]+, found 99\.0", each.error) for each in found)


def test_a_folder_as_output(source: Path, tmp_path: Path) -> None:
    (found,) = run(1, ("convert", source, f"{tmp_path}/folder/"))
    assert (found.code, found.error) == (2, "glft: expected a file as the output of several processes, found a folder\n")


def test_no_store(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WORLD_SIZE": "2", "RANK": "one", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RanksError, match="rank one: no store: "):
        Ranks.of_environment(1)


@pytest.mark.full
def test_torchrun_begins_again_after_a_rank_is_killed(large: Path, tmp_path: Path) -> None:
    out, program = tmp_path / "out.gguf", tmp_path / "killed.py"
    program.write_text(KILLED)
    torchrun = [Path(sys.executable).parent / "torchrun", "--nproc-per-node", 2, "--max-restarts", 1]
    command = [*map(str, [*torchrun, program, *converted(large, out)])]
    done = subprocess.run(command, env={**os.environ, "KILLED": "1 1"}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "(exitcode: -9) local_rank: 1 " in done.stderr
    glft.convert(large, tmp_path / "alone.gguf", schemes={"*": "q4_k"})
    assert sha256(out) == sha256(tmp_path / "alone.gguf")
    assert left_in(tmp_path) == set()


def test_help() -> None:
    done = forked.run("glft_schema.distributed", "--help")
    assert "torchrun --nproc-per-node N" in done.stdout


@pytest.mark.long
def test_the_end_of_rank_0_is_one_line(tmp_path: Path) -> None:
    """Without a launcher, rank 0 has the store. torch logs its end with a stack in C++, unless told
    not to before its import, so that rank 1 is a new interpreter."""
    source = tmp_path / "m.safetensors"
    glft.save_file({"w": torch.randn(2048, 4096)}, source)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    command = ["convert", source, tmp_path / "out.gguf", "--scheme", "*=q8_0"]
    first = forked.Forked("-c", KILLED, *command, environment={**variables, "RANK": "0", "KILLED": "0 0"})
    environment = {**os.environ, **variables, "RANK": "1"}
    second_command = [sys.executable, "-m", "glft_schema.distributed", *command]
    second = subprocess.Popen(second_command, env=environment, stderr=subprocess.PIPE, text=True)
    first.communicate(timeout=60)
    assert first.returncode == -signal.SIGKILL
    _, text = second.communicate(timeout=60)
    assert second.returncode == 1
    assert text.startswith("glft: rank 1: the store of the ranks is gone: ")
    assert text.count("\n") == 1
