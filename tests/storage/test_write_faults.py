"""Faults while writing: killed processes, full or failing disks, two writers, missing permissions.

``pytest -rP`` shows the figures; ``HYPOTHESIS_PROFILE=thorough`` multiplies the rounds by 20.
"""

from __future__ import annotations

import errno
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

import glft_schema as glft
from glft_schema import Container
from tests.families.tiny_folders import edited, make_folder
from tests.tools.command_line import in_this_process
from tests.tools.forked_writers import LAST, WITHOUT_EFFECT, Writers, container
from tests.tools.unmeasured import unmeasured

ROUNDS = max(settings.default.max_examples // 100, 10)  # 10, and 200 of the thorough profile
OLD, NEW = Container.build(container(1)), Container.build(container(2))
TEMPORARY = re.compile(r"\.model\.glft\.[0-9a-f]{8}\.tmp")
if os.name != "posix":
    pytest.skip("only POSIX forks, has these signals and permissions, and traces system calls", allow_module_level=True)
ROOT = os.getuid() == 0


@pytest.fixture(scope="module")
def writers() -> Iterator[Writers]:
    started = Writers()
    yield started
    started.end()


def beside(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.parent.iterdir() if entry != path)


def test_killed_writers_leave_whole_files(writers: Writers, path: Path) -> None:
    """A fork that writes two versions in turn is killed at random; the next one cleans up."""
    path.write_bytes(OLD)
    at, left = random.Random(0), 0
    for _ in range(ROUNDS):
        writers.begin(path)
        child = writers.answer()
        time.sleep(at.uniform(0, 0.2))
        assert len(beside(path)) <= 1  # its own; the previous fork's may not be removed yet
        os.kill(child, 9)
        assert writers.answer() == "ended"
        assert path.read_bytes() in (OLD, NEW)
        assert all(TEMPORARY.fullmatch(name) for name in beside(path))
        left += len(beside(path))
    assert "errno" not in writers.write(path)
    assert path.read_bytes() == NEW
    assert beside(path) == []
    assert left > 0  # some were killed while writing
    print(f"{ROUNDS} kills, 0 torsos; {left} left a file behind, which the next writer removed")


@pytest.fixture
def strace() -> None:
    if not shutil.which("strace"):
        pytest.skip("strace is not installed")
    done = subprocess.run(["strace", "-e", "inject=getppid:error=EIO", "true"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"strace does not run: {done.stderr.strip()}")


@contextmanager
def traced(writers: Writers, log: Path, *options: str) -> Iterator[None]:
    """Attaches strace to the writers, with output to `log`."""
    calls = f"trace={','.join(WITHOUT_EFFECT)}"
    command = ["strace", "-f", "-y", "-o", str(log), "-p", str(writers.process.pid), "-e", calls, *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr
    if "attached" not in (said := process.stderr.readline()):
        process.wait()
        pytest.skip(f"strace may not attach to processes: {said.strip()}")
    try:
        yield
    finally:
        process.terminate()
        process.communicate()


def calls_of_a_write(writers: Writers, path: Path, log: Path) -> list[str]:
    """Returns strace's lines for a process that replaces `path`."""
    path.write_bytes(OLD)
    path.chmod(0o640)
    with traced(writers, log):
        writers.write(path)
    lines = [line.split(maxsplit=1) for line in log.read_text().splitlines()]
    child = next(pid for pid, call in lines if str(path) in call)
    return [call for pid, call in lines if pid == child and not call.startswith(("+++", "---"))]


def kind(call: str) -> str:
    """Returns a call's key in `WITHOUT_EFFECT`."""
    name = call.partition("(")[0]
    return "%%stat" if "stat" in name else name


# Maximum number of calls whose failure goes unnoticed, because nothing is lost.
UNSEEN = {
    "openat": 1,  # of the folder, to find abandoned files
    "%%stat": 3,  # likewise; the check that the new file still exists; one of Python's own
    "close": 3,  # of the folder, twice, and of the lock, after the file is closed
    "unlink": 1,  # of the temporary name after the rename
}


@pytest.mark.parametrize("error", ["EIO", "ENOSPC", "EINTR"])
def test_every_system_call_that_fails(writers: Writers, path: Path, tmp_path: Path, strace: None, error: str) -> None:
    log = tmp_path.parent / f"{tmp_path.name}.log"
    counts = Counter(map(kind, calls_of_a_write(writers, path, log)))
    options = [f"--inject={call}:error={error}:when={LAST}" for call in WITHOUT_EFFECT]
    unseen: Counter[str] = Counter()
    with traced(writers, log, *options):
        for call, number in [(call, n) for call, count in sorted(counts.items()) for n in range(1, count + 1)]:
            path.write_bytes(OLD)
            path.chmod(0o640)
            answer = writers.write(path, call, number)
            if call != "close":  # strace skips the call, but the system would close
                assert answer["after"] == answer["before"], (call, number)
            assert beside(path) == [], (call, number)
            renamed = call == "fsync" and number == 2  # of the folder, the last step
            assert path.read_bytes() == (OLD if "errno" in answer and not renamed else NEW), (call, number)
            if "errno" in answer:
                code = getattr(errno, error)
                assert answer["text"] == f"[Errno {code}] {os.strerror(code)}: {str(path)!r}", (call, number)
                assert (answer["errno"], answer["filename"]) == (code, str(path))
            else:
                unseen[call] += 1
    assert log.read_text().count("(INJECTED)") == sum(counts.values())
    if error != "EINTR":  # most calls are retried
        assert unseen <= Counter(UNSEEN)


# Commands that write: IN is a folder of inputs. Outputs with an ending replace a file.
COMMANDS = {
    "compare": "IN/in.gguf IN/nan.gguf --html OUT.html",
    "convert": "IN/in.gguf OUT.safetensors",
    "convert to a folder": "IN/in.gguf OUT/",
    "edit": "IN/in.gguf --set general.name=x -o OUT.gguf",
    "get-tensor": "IN/in.gguf output.weight OUT.npy",
    "imatrix": "IN/imatrix.gguf OUT.dat",
    "merge": "IN/in-00001-of-00002.gguf OUT.gguf",
    "merge-lora": "IN/in.gguf IN/lora.gguf OUT.gguf",
    "plan": "IN/in.gguf --types q8_0 --bpw 12 -o OUT.txt",
    "quantize": "IN/in.gguf OUT.gguf Q8_0",
    "quantize a set": "IN/in-00001-of-00002.gguf OUT Q8_0 --keep-split",
    "split": "IN/in.gguf OUT --max-tensors 8",
    "view": "IN/in.gguf -o OUT.html",
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    path = folder / "in.gguf"
    glft.convert(make_folder(folder, "tiny-llama"), path, schemes={"*": "f32"})
    glft.split(path, folder / "in", max_tensors=11)
    edited(path, lambda tensors, metadata: tensors["output.weight"].fill_(math.nan)).rename(folder / "nan.gguf")
    lora = {"general.type": "adapter", "general.architecture": "llama", "adapter.type": "lora", "adapter.lora.alpha": 8.0}
    pair = {"lora_a": torch.ones(4, 64), "lora_b": torch.ones(64, 4)}
    glft.save_file({f"blk.0.attn_q.weight.{name}": factor for name, factor in pair.items()}, folder / "lora.gguf", lora)
    sums = glft.weights.ColumnSums(torch.ones(1, 64), torch.tensor([1]))
    glft.weights.ImportanceMatrix({"blk.0.attn_q.weight": sums}).save(folder / "imatrix.gguf")
    return folder


@pytest.mark.parametrize("call", ["pwrite", "fsync", "replace"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_fails_changes_nothing(
    command: str, call: str, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in the second of several files."""
    words = COMMANDS[command].replace("IN", str(inputs)).replace("OUT", str(tmp_path / "made")).split()
    replaced = [Path(word) for word in words if word.startswith(f"{tmp_path}/made.")]
    of_second = 3 if call == "fsync" else 2  # the second fsync is of the folder
    for number in (1, of_second) if words[1] == f"{tmp_path}/made" else (1,):
        for path in replaced:
            path.write_bytes(b"old")
        monkeypatch.setattr(os, call, failing(getattr(os, call), number))
        done = in_this_process(command.split()[0], *words)
        monkeypatch.undo()
        assert (done.returncode, os.strerror(errno.ENOSPC) in done.stderr) == (2, True), done
        assert {path: path.read_bytes() for path in tmp_path.iterdir()} == dict.fromkeys(replaced, b"old")


def failing(real: Callable[..., Any], number: int) -> Callable[..., Any]:
    """Returns a function that calls another one, except for one call."""
    calls = iter(range(1, 1 << 30))

    def called(*arguments: Any, **more: Any) -> Any:
        if next(calls) == number:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*arguments, **more)

    return called


ON_A_SMALL_DISK = """
import json, os, subprocess, sys
from functools import partial
from glft_schema import Container, edit
from tests.tools.forked_writers import container
folder = sys.argv[1]
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=30m", "tmpfs", folder], check=True)
path = folder + "/model.glft"
Container.build_file(container(1, 1 << 21), path)
old, before = open(path, "rb").read(), len(os.listdir("/proc/self/fd"))
jobs = [partial(Container.build_file, container(2, columns), path) for columns in (1 << 21, 1 << 23)]
for job in [partial(edit, path, set={"k": "x"}), *jobs]:
    try:
        job()
    except OSError as error:
        print(error.errno, error.filename == path, open(path, "rb").read() == old, os.listdir(folder))
    assert len(os.listdir("/proc/self/fd")) == before
os.truncate(path, 1)
jobs[0]()
"""


def test_a_full_disk(tmp_path: Path) -> None:
    """30 MiB with an old file of 16: full while the system copies, at the end, and at the start."""
    own = ["unshare", "--user", "--map-root-user", "--mount"]
    if not shutil.which("unshare") or subprocess.run([*own, "true"], capture_output=True).returncode:
        pytest.skip("a file system of one's own needs unshare and user namespaces, which are not here")
    done = subprocess.run([*own, sys.executable, "-c", ON_A_SMALL_DISK, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"{errno.ENOSPC} True True ['model.glft']"] * 3


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_output_that_goes_to_a_full_disk() -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "glft_schema", "schema", "glft", "--as", "json"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "glft: standard output: No space left on device\n")


HALF_WAY = """
import signal, sys, time
from glft_schema import Container
from tests.tools.forked_writers import container

class Slow:
    def write_to(self, stream, order):
        print("half way", flush=True)
        time.sleep(60)

made = container(2)
made["data"]["c"] = Slow()
Container.build_file(made, sys.argv[1])
"""


def interrupted(command: list[object], number: signal.Signals) -> tuple[int, str]:
    """Runs a command up to "half way", sends it a signal, and returns its exit code and stderr."""

    def restore_signals() -> None:  # nohup and background shells ignore them
        for ignored in (signal.SIGHUP, signal.SIGINT):
            signal.signal(ignored, signal.SIG_DFL)

    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, **pipes, text=True, preexec_fn=restore_signals, env=unmeasured())
    assert process.stdout
    assert process.stdout.readline() == "half way\n"
    process.send_signal(number)
    errors = process.communicate()[1]
    return process.returncode, errors


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals(writers: Writers, path: Path, number: signal.Signals) -> None:
    """An interrupt is an exception and leaves nothing. After SIGTERM the next writer cleans up."""
    path.write_bytes(OLD)
    command = [sys.executable, "-c", HALF_WAY, path]
    assert interrupted(command, number)[0] == -number
    assert path.read_bytes() == OLD
    assert len(beside(path)) == (number == signal.SIGTERM)
    assert "errno" not in writers.write(path)
    assert beside(path) == []


COMMAND_LINE_HALF_WAY = """
import sys, time
from glft_schema.cli import main
from glft_schema.tensors.tensor import Tensor

def write_to(self, *given):
    print("half way", flush=True)
    time.sleep(60)

Tensor.write_to = write_to
main()
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signals_on_the_command_line(path: Path, number: signal.Signals, code: int) -> None:
    """The partial file is removed, also after SIGTERM and SIGHUP."""
    only, out = path.with_name("only.gguf"), path.with_name("out.gguf")
    glft.save_file({"w": torch.ones(1)}, only, {"split.no": 0, "split.count": 1})
    out.write_bytes(b"old")
    command = [sys.executable, "-c", COMMAND_LINE_HALF_WAY, "merge", only, out]
    returncode, errors = interrupted(command, number)
    assert returncode == code
    assert "Traceback" not in errors
    assert (out.read_bytes(), beside(path)) == (b"old", [only.name, out.name])


AGAIN = """
import sys
from glft_schema import Container
from tests.tools.forked_writers import container
made = container(int(sys.argv[2]), 20_000)
for _ in range(int(sys.argv[3])):
    Container.build_file(made, sys.argv[1])
"""


def test_two_writers_and_a_reader(path: Path) -> None:
    """Each writer repeats its version; the reader only ever sees one of the two."""
    versions = [Container.build(container(letter, 20_000)) for letter in (1, 2)]
    path.write_bytes(versions[0])
    writing = [subprocess.Popen([sys.executable, "-c", AGAIN, path, str(letter), str(2 * ROUNDS)]) for letter in (1, 2)]
    read: Counter[bytes] = Counter()
    while any(process.poll() is None for process in writing):
        read[path.read_bytes()] += 1
    assert read.keys() <= set(versions)
    assert [process.returncode for process in writing] == [0, 0]
    assert beside(path) == []
    print(f"{4 * ROUNDS} files written by two, {read.total()} reads, all of whole files")


AS_NOBODY = """
import json, os, sys
from glft_schema import Container
from tests.tools.forked_writers import container
Container.build(container(1, 1))
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
found = {}
for name in sys.argv[1:]:
    try:
        Container.build_file(container(2, 1), name)
        found[name] = "written"
    except OSError as error:
        found[name] = [error.errno, error.filename]
print(json.dumps(found))
"""


def as_nobody(*paths: Path) -> list[object]:
    """Writes to each path as an unprivileged user: nobody, or the current user if not root."""
    done = subprocess.run([sys.executable, "-c", AS_NOBODY, *paths], capture_output=True, text=True, check=True)
    return list(json.loads(done.stdout).values())


KILLED = """
import os, sys
from glft_schema.storage.atomic import atomic_write
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
with atomic_write(sys.argv[1]) as stream:
    stream.write(bytes(1 << 21))
    if sys.argv[2] == "killed":
        os.kill(os.getpid(), 9)
"""


def test_what_a_killed_writer_left_of_a_read_only_file(open_folder: Path) -> None:
    path = open_folder / "old"
    path.write_bytes(b"old")
    path.chmod(0o444)
    open_folder.chmod(0o777)
    assert subprocess.run([sys.executable, "-c", KILLED, path, "killed"], check=False).returncode == -9
    assert len(beside(path)) == 1
    subprocess.run([sys.executable, "-c", KILLED, path, "done"], check=True)
    assert beside(path) == []
    assert path.stat().st_size == 1 << 21


def test_folders_without_permission(open_folder: Path) -> None:
    for name, mode in (("read only", 0o555), ("closed", 0o000), ("not to be read", 0o333)):
        (open_folder / name).mkdir()
        if name == "read only":
            (open_folder / name / "old").write_bytes(b"old")
        (open_folder / name).chmod(mode)
    paths = [open_folder / "read only" / name for name in ("old", "new")] + [open_folder / "closed" / "new"]
    try:
        found = as_nobody(*paths, open_folder / "not to be read" / "new")
        assert found == [*([errno.EACCES, str(path)] for path in paths), "written"]
    finally:
        for folder in open_folder.iterdir():
            folder.chmod(0o755)
    assert paths[0].read_bytes() == b"old"
    assert sorted(entry.name for entry in open_folder.rglob("*") if entry.is_file()) == ["new", "old"]


@pytest.mark.skipif(not ROOT, reason="only root can give files to others")
def test_owner_and_group_are_kept_where_they_can_be(open_folder: Path) -> None:
    path = open_folder / "model.glft"
    path.write_bytes(b"old")
    path.chmod(0o640)
    os.chown(path, 65534, 65534)
    Container.build_file(container(2, 1), path)
    assert (path.stat().st_uid, path.stat().st_gid, path.stat().st_mode & 0o7777) == (65534, 65534, 0o640)
    for mode, expected in ((0o640, 0o600), (0o664, 0o644)):
        os.chown(path, 0, 0)
        path.chmod(mode)
        open_folder.chmod(0o777)
        assert as_nobody(path) == ["written"]
        assert (path.stat().st_uid, path.stat().st_gid, path.stat().st_mode & 0o7777) == (65534, 65534, expected)
