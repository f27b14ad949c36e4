"""Faults while reading: files truncated, replaced, not regular, larger than memory, or closed."""

from __future__ import annotations

import errno
import gc
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import glft_schema
from glft_schema import ClosedError, Container, FormatError, TruncatedError, load_file, save_file
from glft_schema.describe.byte_map import byte_map
from glft_schema.files.parsing import check_rules, parse_source
from glft_schema.files.splitting import merge, split
from glft_schema.formats.gguf import GGUF
from glft_schema.formats.glft import GLFT
from glft_schema.storage.file_source import MappedSource
from glft_schema.storage.opening import open_source
from glft_schema.storage.source import BytesSource
from glft_schema.testing.corpora import read_corpus, write_corpus
from glft_schema.testing.fuzzing import Case
from glft_schema.weights.checkpoints import open_checkpoint
from glft_schema.weights.convert import convert
from tests.catalogue import gguf_cases, glft_cases
from tests.golden import golden
from tests.oracles import glft_reference as reference
from tests.oracles.gguf_reference import F32, STRING, Info
from tests.oracles.gguf_reference import File as Written
from tests.tools import forked
from tests.tools.command_line import glft
from tests.tools.depth import FULL
from tests.tools.unmeasured import unmeasured

GOLDEN = ("four_types", "loose_layout", "gguf_little", "gguf_big")
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="counts on Linux's /proc, its devices and its signals")
MAPPED = pytest.mark.parametrize("mmap", [True, False])
CUT = pytest.mark.parametrize("mmap", [pytest.param(True, marks=pytest.mark.posix("cuts or overwrites a mapped file")), False])


def python(code: str, *arguments: object, seconds: int = 60) -> subprocess.CompletedProcess[str]:
    """Runs a script in a new interpreter, for at most `seconds`."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False, env=unmeasured())


def descriptors() -> int:
    """Returns the number of open files of this process."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


# Cut short


@pytest.mark.parametrize("name", GOLDEN)
def test_every_prefix_is_refused_until_the_last_byte_needed_is_there(name: str) -> None:
    """After it, every tensor has its right bytes."""
    stored = golden(name)
    whole = {key: bytes(tensor.raw) for key, tensor in Container.parse(stored).tensors.items()}
    needed = {"four_types": 168, "loose_layout": 82, "gguf_little": 418, "gguf_big": 418}[name]  # counted in their comments
    for cut in range(needed):
        with pytest.raises(TruncatedError) as caught:
            Container.parse(stored[:cut])
        assert caught.value.path.partition(" -> ")[0] in {*GLFT.regions, *GGUF.regions}
        assert caught.value.offset is not None
        assert 0 <= caught.value.offset <= cut
    for cut in range(needed, len(stored) + 1):
        assert {key: bytes(tensor.raw) for key, tensor in Container.parse(stored[:cut]).tensors.items()} == whole


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A GGUF file with arrays and a tensor."""
    path = tmp_path / "model.gguf"
    path.write_bytes(with_strings())
    return path


def with_strings(payload: int = 4096) -> bytes:
    """Returns a GGUF file with arrays of strings and numbers, and a tensor."""
    strings = [b"%d" % i for i in range(100)]
    entries = [(b"s", 9, (STRING, strings)), (b"n", 9, (4, list(range(5000))))]
    return Written(entries, [Info(b"w", [payload // 4], F32, b"\x00\x00\x80\x3f" * (payload // 4))]).bytes()


ACCESSES: dict[str, Callable[[Any], Any]] = {
    "a tensor": lambda file: file.get_tensor("w"),
    "its fields": lambda file: file.tensors["w"].fields,
    "its payload": lambda file: file.tensors["w"].payload,
    "its bytes": lambda file: file.tensors["w"].raw,
    "its pieces": lambda file: list(file.tensors["w"].pieces()),
    "its pieces in another byte order": lambda file: list(file.tensors["w"].pieces("big")),
    "a slice": lambda file: file.get_slice("w")[-3:],
    "a string": lambda file: file.metadata.stored_value("s").value[99],
    "the strings": lambda file: list(file.metadata.stored_value("s").value),
    "numbers": lambda file: file.metadata.stored_value("n").value[4999],
    "an array": lambda file: file.metadata["n"],
    "equality": lambda file: file == Container.parse(with_strings()),
    "building": lambda file: Container.build(file),
    "findings": lambda file: check_rules(file, "spec"),
    "the byte map": lambda file: byte_map(file),
}


@CUT
@pytest.mark.parametrize("access", ACCESSES)
def test_a_file_cut_short_while_open(model: Path, access: str, mmap: bool) -> None:
    with glft_schema.open(model, mmap=mmap) as file:
        ACCESSES[access](file)
        os.truncate(model, 100)
        with pytest.raises(TruncatedError, match=r"expected \d+ (bytes|elements|strings).*found"):
            ACCESSES[access](file)


@CUT
def test_a_file_overwritten_while_open(tmp_path: Path, mmap: bool) -> None:
    """The content differs from what was checked on opening, so it is checked again."""
    path = tmp_path / "model.gguf"
    stored = with_strings()
    for garbage in (b"\xff", b"\x7f", b"\0"):
        path.write_bytes(stored)
        with glft_schema.open(path, mmap=mmap) as file:
            with path.open("r+b") as stream:
                stream.write(garbage * len(stored))
            for access in ACCESSES.values():
                try:
                    access(file)
                except FormatError as error:
                    assert "expected" in str(error)


IN_USE = """
import os, sys, glft_schema
path, mmap = sys.argv[1], sys.argv[2] == "True"
file = glft_schema.open(path, mmap=mmap)
tensors = [file.get_tensor("w"), file.get_slice("w")[1000:]]
os.truncate(path, 100)
try:
    file.get_tensor("w")
except glft_schema.TruncatedError:
    print("refused", flush=True)
print([float(tensor.sum()) for tensor in tensors])
"""


@LINUX
@MAPPED
def test_a_file_cut_short_while_its_tensors_are_in_use(tmp_path: Path, mmap: bool) -> None:
    """Data read on demand is safe. Access to a truncated map ends the process."""
    path, numbers = tmp_path / "model.gguf", 1 << 16
    path.write_bytes(with_strings(4 * numbers))
    ended = forked.run("-c", IN_USE, path, mmap)
    assert ended.stdout.splitlines()[:1] == ["refused"], ended.stderr
    if mmap:
        assert ended.returncode == -signal.SIGBUS
    else:
        assert ended.stdout.splitlines()[1:] == [str([float(numbers), float(numbers - 1000)])]


@LINUX
def test_parsing_does_not_touch_the_map(model: Path) -> None:
    """So truncation during parsing is an error, never SIGBUS."""
    source = open_source(model)
    view = source.read(0, 4096)
    os.truncate(model, 0)
    assert bytes(view[:4]) == b"GGUF"


# Replaced, grown


@pytest.mark.posix("replaces an open file")
@MAPPED
def test_a_file_replaced_or_grown_while_open(model: Path, mmap: bool) -> None:
    with glft_schema.open(model, mmap=mmap) as file:
        with model.open("ab") as stream:
            stream.write(b"more" * 5000)
        assert file == Container.parse(with_strings())
        assert file.nbytes == len(with_strings())
        assert file.tensors.trailing == 0
        save_file({"other": torch.ones(3)}, model)
        assert list(file.keys()) == ["w"]
        assert file.get_tensor("w").sum() == 1024
        assert [str(text) for text in file.metadata["s"]][99] == "99"


# No regular file

ODD: dict[str, tuple[Callable[[Path], object], type[OSError], int]] = {
    "a pipe": (lambda path: os.mkfifo(path), OSError, errno.EINVAL),
    "a folder": (os.mkdir, IsADirectoryError, errno.EISDIR),
    "a link to nothing": (lambda path: path.symlink_to("nowhere"), FileNotFoundError, errno.ENOENT),
    "a link to itself": (lambda path: path.symlink_to(path), OSError, errno.ELOOP),
    "a socket": (lambda path: socket.socket(socket.AF_UNIX).bind(str(path)), OSError, errno.EINVAL),
    "nothing": (lambda path: None, FileNotFoundError, errno.ENOENT),
    "a link to /dev/zero": (lambda path: path.symlink_to("/dev/zero"), OSError, errno.EINVAL),
}
READERS: dict[str, Callable[[Path], object]] = {
    "open": glft_schema.open,
    "parse_file": lambda path: Container.parse_file(path, mmap=False),
    "load_file": load_file,
    "open_checkpoint": open_checkpoint,
}


@LINUX
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the socket stays bound
@pytest.mark.parametrize("kind", ODD)
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # socket paths are limited to about 100 bytes
    make, error, number = ODD[kind]
    path = Path("odd")
    make(path)
    for read in [open_source] if kind == "a folder" else READERS.values():  # which open a folder of weights
        with pytest.raises(error) as caught:
            read(path)
        assert (caught.value.errno, caught.value.filename) == (number, "odd")
        if number in (errno.EINVAL, errno.EISDIR):
            assert "not a regular file" in str(caught.value)


# Larger than 4 GiB: sparse files, of a few KiB on disk

LARGE = """
import re, resource, sys
import glft_schema

def peak():  # of this program; ru_maxrss is at least that of the process that started it
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])

before = peak()
for mmap in (True, False):
    if not mmap:  # a map needs address space, not memory
        resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
    try:
        file = glft_schema.open(sys.argv[1], mmap=mmap)
        print(len(file.tensors), sum(map(len, (file.metadata.stored_value(k).value for k in file.metadata if k == "k"))))
    except ValueError as error:
        print(type(error).__name__, error.text)
print(peak() - before < 64 << 10)
"""
GIB = 1 << 30


def sparse(path: Path, head: bytes, size: int) -> Path:
    path.write_bytes(head)
    os.truncate(path, size)
    return path


def opened_in_little_memory(path: Path) -> list[str]:
    """Returns the result of opening, mapped or not, with little memory and in 10 seconds."""
    ended = python(LARGE, path, seconds=10)
    assert ended.stdout.splitlines()[2:] == ["True"], ended
    mapped, in_pieces = ended.stdout.splitlines()[:2]
    assert mapped == in_pieces
    return mapped


@LINUX
@pytest.mark.parametrize(
    ("head", "start"),
    [
        (reference.write(b"", [reference.Row("w", [4], reference.F32, b"", 5 * GIB + 3)], b""), 5 * GIB + 3),
        (Written([], [Info(b"w", [4], F32, offset=5 * GIB)], b"").bytes(), 5 * GIB),
    ],
    ids=["glft", "gguf"],
)
@MAPPED
def test_a_tensor_beyond_5_gib(head: bytes, start: int, mmap: bool, tmp_path: Path) -> None:
    at = len(head) + start
    path = sparse(tmp_path / "large", head, at)
    with path.open("ab") as stream:
        stream.write(struct.pack("<4f", 1, 2, 3, 4))
    with glft_schema.open(path, mmap=mmap) as file:
        assert file.get_tensor("w").tolist() == [1, 2, 3, 4]
        assert file.get_slice("w")[2:].tolist() == [3, 4]
        assert file.tensors["w"].position == at
    os.truncate(path, at + 15)
    with pytest.raises(TruncatedError, match="data -> 'w' -> weights: expected 16 bytes, found 15") as caught:
        glft_schema.open(path, mmap=mmap)
    assert caught.value.offset == at


# Sparse files beyond a limit: head, and size in GiB.
LARGE_CLAIMS = {
    "GLFT metadata": (struct.pack("<IIII", 0x474C4654, 1, 0, 2**32 - 1), 5),
    "GLFT rows": (struct.pack("<IIII", 0x474C4654, 1, 300_000_000, 0), 8),
    "GGUF rows": (Written(n_tensors=300_000_000).head(), 8),
    "a key": (Written(n_kv=1).head() + struct.pack("<Q", 4 * GIB), 5),
    "strings": (Written([(b"k", 9, (8, []))]).head()[:-8] + struct.pack("<Q", 1 << 29), 5),
}


@LINUX
@pytest.mark.parametrize("claim", LARGE_CLAIMS)
def test_claims_of_large_files_meet_a_limit(tmp_path: Path, claim: str) -> None:
    head, size = LARGE_CLAIMS[claim]
    assert opened_in_little_memory(sparse(tmp_path / "large", head, size * GIB)).startswith("LimitError ")


@LINUX
def test_an_array_of_4_gib(tmp_path: Path) -> None:
    """It is valid, and its elements are not read."""
    head = Written([(b"k", 9, (0, []))]).head()[:-8] + struct.pack("<Q", 4 * GIB)
    assert opened_in_little_memory(sparse(tmp_path / "large", head, len(head) + 4 * GIB + 32)) == f"0 {4 * GIB}"
    for mmap in (True, False):
        with glft_schema.open(tmp_path / "large", mmap=mmap) as file:
            numbers = file.metadata.stored_value("k").value
            assert (numbers[5], numbers[-1], numbers[-3:].tolist()) == (0, 0, [0, 0, 0])
            assert repr(numbers) == "[0, 0, 0, 0, ... 4,294,967,296 in all]"


@LINUX
@pytest.mark.parametrize("filled", [False, True])
def test_a_large_gap_is_read_in_pieces(tmp_path: Path, filled: bool) -> None:
    """Checking and building it takes a fraction of its size in memory."""
    gap = 1 << (28 if FULL else 26)
    head = Written([], [Info(b"w", [1], F32, offset=gap)], b"").bytes()
    path = sparse(tmp_path / "large", head, len(head) + gap + 32)
    code = """
import resource, sys, glft_schema
from glft_schema.files.parsing import check_rules
file = glft_schema.open(sys.argv[1], mmap=False)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print([finding.rule for finding in check_rules(file, "spec")])
with open("/dev/null", "wb") as stream:
    glft_schema.Container.build_stream(file, stream)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 << 10)
"""
    if filled:
        with path.open("r+b") as stream:
            stream.seek(len(head) + gap - 1)
            stream.write(b"\1")
    rules, is_little = forked.run("-c", code, path).stdout.splitlines()
    assert ("gguf-gaps" in rules, is_little) == (filled, "True")


# Several at once


@MAPPED
def test_16_threads_read_one_open_file(tmp_path: Path, mmap: bool) -> None:
    tensors = {f"w{i}": torch.arange(5000.0).reshape(50, 100) + i for i in range(8)}
    save_file(tensors, tmp_path / "f.gguf", {"s": [str(i) for i in range(2000)]})
    start = threading.Barrier(16)

    def read(number: int) -> None:
        start.wait()
        for i in range(20):
            name = f"w{(number + i) % 8}"
            assert torch.equal(file.get_tensor(name), tensors[name])
            assert torch.equal(file.get_slice(name)[i, 3:], tensors[name][i, 3:])
            assert file.metadata["s"][number + i] == str(number + i)

    with glft_schema.open(tmp_path / "f.gguf", mmap=mmap) as file, ThreadPoolExecutor(16) as pool:
        list(pool.map(read, range(16)))


FORKED = """
import os, sys, threading, time, glft_schema
file = glft_schema.open(sys.argv[1], mmap=sys.argv[2] == "True")
source, stop, total = file.source, threading.Event(), 1024 * (0x80 + 0x3F)

def read():
    while not stop.is_set():
        source.read(0, 100)
        time.sleep(0.001)

threads = [threading.Thread(target=read) for _ in range(4)]
for thread in threads:
    thread.start()
child = os.fork()
if child == 0:
    right = sum(file.tensors["w"].raw) == total and file.metadata["s"][7] == "7"
    file.close()
    os._exit(0 if right and source._file is None else 1)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
right = sum(file.tensors["w"].raw) == total
stop.set()
for thread in threads:
    thread.join()
print(status, right)
"""


@pytest.mark.posix("forks")
@MAPPED
def test_a_child_reads_its_parents_open_file(model: Path, mmap: bool) -> None:
    ended = forked.run("-c", f"import warnings; warnings.simplefilter('ignore')\n{FORKED}", model, mmap)
    assert ended.stdout == "0 True\n", ended.stderr


# After the end


@MAPPED
def test_a_closed_file_and_what_was_taken_from_it_before(model: Path, mmap: bool) -> None:
    with glft_schema.open(model, mmap=mmap) as file:
        tensor = file.tensors["w"]
        numbers, strings = (file.metadata.stored_value(key).value for key in "ns")
        text, kept, array = strings[3], file.get_tensor("w"), file.metadata["n"]
        pieces, tensors, part = tensor.pieces(), file.tensors, file.get_slice("w")
    file.close()  # again
    for access in (
        *(partial(access, file) for access in ACCESSES.values()),
        lambda: tensor.raw,
        lambda: tensor.payload,
        lambda: tensor.dequantize(),
        lambda: tensor[0:0],
        lambda: part[...],
        lambda: next(pieces),
        lambda: tensors["w"].raw,
        lambda: strings[3],
        lambda: list(strings),
        lambda: strings == ["a"] * 100,
        lambda: numbers[0:0],
        lambda: list(numbers),
        lambda: repr(numbers),
        lambda: file.metadata,
        lambda: file.keys(),
        lambda: pickle.dumps(file),
        lambda: pickle.dumps(tensor),
    ):
        with pytest.raises(ClosedError, match=r"model\.gguf is closed"):
            access()
    assert (text, float(kept.sum()), int(array[-1])) == ("3", 1024, 4999)
    assert "closed" in repr(file)
    assert (tensor.name, tensor.shape, len(strings), len(numbers), len(tensors)) == ("w", (1024,), 100, 5000, 1)


INTERRUPTED = """
import os, signal, sys, gc, glft_schema

def interrupt(number, frame):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
before, interrupted = len(os.listdir("/proc/self/fd")), 0
for i in range(10):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001 * (i + 1))
        file = glft_schema.open(sys.argv[1], mmap=i % 2 == 0)  # kept: Python ignores an error in __del__
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        interrupted += 1
file = None
gc.collect()
print(interrupted > 2, len(os.listdir("/proc/self/fd")) - before)
"""


@LINUX
def test_an_interrupted_parse_leaves_no_descriptor_behind(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(Written([], [Info(b"w%d" % i, [1], F32, bytes(4)) for i in range(10_000)]).bytes())
    assert python(INTERRUPTED, path).stdout == "True 0\n"


@LINUX
def test_bad_files_leave_no_descriptor_behind(tmp_path: Path) -> None:
    path, before = tmp_path / "bad", descriptors()
    kept = []  # tracebacks must not keep files open
    for stored in (case.stored for cases in (gguf_cases, glft_cases) for case in cases.REFUSED.values()):
        path.write_bytes(stored)
        for mmap in (True, False):
            with pytest.raises(FormatError) as caught:
                glft_schema.open(path, mmap=mmap)
            kept.append(caught)
            with pytest.raises(FormatError), path.open("rb") as stream:
                Container.parse_stream(stream, mmap=mmap)
        with pytest.raises(FormatError):
            Container.parse_file(path, size=len(stored) + 1)
    assert descriptors() == before


def test_a_map_of_a_file_open_for_writing_only_names_the_file(model: Path) -> None:
    with pytest.raises(PermissionError) as error:
        MappedSource(os.open(model, os.O_WRONLY), "model.gguf")
    assert error.value.filename == "model.gguf"


@LINUX
def test_a_map_that_cannot_be_made_is_the_systems_error(tmp_path: Path) -> None:
    path = sparse(tmp_path / "huge", golden("four_types"), 1 << 42)
    code = """
import os, resource, sys, glft_schema
resource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40))
before = len(os.listdir("/proc/self/fd"))
try:
    glft_schema.open(sys.argv[1])
except OSError as error:
    print(error.errno, error.filename, len(os.listdir("/proc/self/fd")) - before)
print(glft_schema.open(sys.argv[1], mmap=False).nbytes)
"""
    assert python(code, path).stdout == f"{errno.ENOMEM} {path} 0\n{1 << 42}\n"


class FailingDisk(BytesSource):
    """Fails once, in the middle of a file."""

    def __init__(self, stored: bytes, error: Exception) -> None:
        super().__init__(stored, "/mnt/failing")
        self._error: Exception | None = error

    def _view(self, start: int, nbytes: int) -> memoryview:
        if start and (error := self._error):
            self._error = None
            raise error
        return super()._view(start, nbytes)


@pytest.mark.parametrize(
    "stored", [reference.write(b"a=" + bytes(1 << 17), [], b""), with_strings(1 << 17)], ids=["glft", "gguf"]
)
@pytest.mark.parametrize("error", [OSError(errno.EIO, "lost"), MemoryError("lost"), TruncatedError("lost")], ids=repr)
def test_errors_of_a_source_while_parsing_come_through(error: Exception, stored: bytes) -> None:
    """They are not reported as others, and an OSError has the file's name."""
    with pytest.raises(type(error), match="lost") as caught:
        parse_source(FailingDisk(stored, error)).get_tensor("w")
    if isinstance(caught.value, OSError):
        assert (caught.value.errno, caught.value.filename) == (errno.EIO, "/mnt/failing")


# Names are not paths

NAMES = ("../x", "/etc/x", "C:\\x", "a/../b", "a\0b", ".", "..", "n" * 65535)


def test_names_of_tensors_never_become_files(tmp_path: Path) -> None:
    """Output paths come from the caller only; names of tensors are copied unchanged."""
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    tensors = {name: torch.ones(4) for name in NAMES}
    save_file(tensors, folder / "m.gguf", rules=[])
    save_file(tensors, folder / "m.glft")
    with glft_schema.open(folder / "m.gguf") as file:
        assert list(file.tensors) == list(NAMES)
        split(file, folder / "part", max_tensors=3)
    with glft_schema.open(folder / "part-00001-of-00003.gguf") as parts:
        merge(parts, folder / "merged.gguf")
    convert(folder / "merged.gguf", folder / "again.glft")
    assert glft("get-tensor", folder / "m.glft", "../x", folder / "one.npy").returncode == 0
    made = {"m.gguf", "m.glft", "merged.gguf", "again.glft", "one.npy", *(f"part-0000{i}-of-00003.gguf" for i in (1, 2, 3))}
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == {folder / name for name in made}
    assert list(load_file(folder / "again.glft")) == list(NAMES)


def test_kinds_in_a_manifest_never_become_paths(tmp_path: Path) -> None:
    """A corpus manifest may be untrusted, and failing cases are written to disk."""
    write_corpus([Case(b"bad", "../../outside")], tmp_path / "in" / "out", format=GGUF)
    names = [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(names) == 2
    assert all(name.startswith("in/out/") for name in names)
    assert read_corpus(tmp_path / "in" / "out" / "manifest.json")[0].stored == b"bad"


@LINUX
def test_fuzzing_does_not_wait_on_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    os.mkfifo(tmp_path / "manifest.json")
    for name in ("pipe", "manifest.json"):
        refused = forked.Forked("glft_schema", "fuzz", name, folder=tmp_path)
        _, problem = refused.communicate(timeout=60)
        assert (refused.returncode, problem) == (2, f"glft: {name}: not a regular file\n")
