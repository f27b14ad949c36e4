"""Operating-system differences, behind `glft_schema.storage.system`, tested on each system."""

from __future__ import annotations

import errno
import json
import mmap
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import glft_schema as glft
from glft_schema.files.shards import is_file_name
from glft_schema.storage.system import map_copy_on_write, open_file, read_at, write_at
from tests.golden import golden
from tests.tools.command_line import assert_refused, in_this_process
from tests.tools.unmeasured import unmeasured

POSIX = os.name == "posix"
IN_USE = "is open or mapped, by this program or another one, so Windows cannot replace it; left unchanged"


# Positions


@pytest.fixture(params=["of this system", "by a moved position"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param != "of this system":
        monkeypatch.delattr(os, "preadv", raising=False)
        monkeypatch.delattr(os, "pwrite", raising=False)


def test_threads_read_and_write_at_positions(tmp_path: Path, either_way: None) -> None:
    fd = open_file(str(tmp_path / "file"), os.O_RDWR | os.O_CREAT)
    pieces = [bytes([number, 10, 13, 26]) * 1000 for number in range(64)]  # 10, 13 and 26 mean more in text
    other = os.dup(fd)  # shares the position
    os.lseek(other, 7, os.SEEK_SET)

    def check(numbers: range) -> None:
        for number in numbers:
            write_at(fd, memoryview(pieces[number]), 4000 * number)
        for number in numbers:
            found = memoryview(bytearray(4000))
            assert read_at(fd, found, 4000 * number) == 4000
            right.append(found == pieces[number])

    right: list[bool] = []
    threads = [threading.Thread(target=check, args=(range(first, 64, 4),)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == [True] * 64
    assert (tmp_path / "file").read_bytes() == b"".join(pieces)
    assert read_at(fd, memoryview(bytearray(10)), 64 * 4000) == 0
    assert os.lseek(other, 0, os.SEEK_CUR) == 7
    os.close(fd)
    os.close(other)


@pytest.mark.parametrize("is_default", [True, False])
def test_a_private_map(tmp_path: Path, is_default: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not is_default:
        monkeypatch.delattr(mmap, "MAP_PRIVATE", raising=False)
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    fd = open_file(str(path), os.O_RDONLY)
    with map_copy_on_write(fd, 3, 0) as found:
        found[1] = 0
        assert (found[:], path.read_bytes()) == (b"a\0c", b"abc")
    os.close(fd)


def test_a_link_that_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for _ in range(2):
        with pytest.raises(OSError) as caught:  # noqa: PT011
            open_file(str(tmp_path / "link"), os.O_RDONLY, follow=False)
        assert caught.value.errno == errno.ELOOP
        monkeypatch.delattr(os, "O_NOFOLLOW", raising=False)


def test_what_is_mapped_by_default(four_types: Path) -> None:
    with glft.open(four_types) as file, glft.open(four_types, mmap=POSIX) as same:
        assert file.source.mapped == same.source.mapped == POSIX


# Files in use

HOLDS = """
import ctypes, mmap, os, sys
if sys.argv[2] == "a map of a closed file" and os.name == "nt":  # Python's map has a handle of the file
    kernel, handle = ctypes.windll.kernel32, ctypes.c_void_p
    kernel.CreateFileW.restype = kernel.CreateFileMappingW.restype = kernel.MapViewOfFile.restype = handle
    opened = handle(kernel.CreateFileW(sys.argv[1], 1 << 31, 1, None, 3, 0, None))
    mapping = handle(kernel.CreateFileMappingW(opened, None, 2, 0, 0, None))
    assert kernel.MapViewOfFile(mapping, 4, 0, 0, ctypes.c_size_t(0))
    assert kernel.CloseHandle(mapping) and kernel.CloseHandle(opened)
else:
    file = open(sys.argv[1], "rb")
    if sys.argv[2] != "open":
        file = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
print("holds", flush=True)
sys.stdin.read()
"""


@contextmanager
def held(path: Path, how: str) -> Iterator[None]:
    """Lets another process hold a file open."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", HOLDS, path, how], env=unmeasured(), text=True, **pipes) as process:
        assert process.stdout
        assert process.stdout.readline() == "holds\n"
        yield
        process.communicate("")


@pytest.mark.parametrize("how", ["open", "a map", "a map of a closed file"])
@pytest.mark.parametrize("command", ["convert", "edit", "quantize", "merge"])
def test_another_program_uses_the_file(tmp_path: Path, command: str, how: str) -> None:
    source, out = tmp_path / "in.gguf", tmp_path / "out.gguf"
    metadata = {"split.no": 0, "split.count": 1} if command == "merge" else {"llama.block_count": 1}
    glft.save_file(
        {"blk.0.ffn_up.weight": np.ones((1, 256), np.float32)}, source, {"general.architecture": "llama", **metadata}
    )
    given: dict[str, list[object]] = {
        "convert": [source, out, "--scheme", "*=q8_0"],
        "edit": [out, "--set", "a=b"],
        "quantize": [source, out, "Q8_0"],
        "merge": [source, out],
    }
    glft.save_file({"old": np.full(1, 1.0, np.float32)}, out)
    before = out.read_bytes()
    with held(out, how):
        done = in_this_process(command, *given[command])
        assert sorted(os.listdir(tmp_path)) == ["in.gguf", "out.gguf"]
        if POSIX:
            assert (done.returncode, out.read_bytes() == before) == (0, False)
            return
        assert_refused(done, f"out.gguf: {IN_USE}")
        assert out.read_bytes() == before
    assert in_this_process(command, *given[command]).returncode == 0
    assert out.read_bytes() != before


@pytest.mark.parametrize("is_mapped", [True, False])
def test_this_program_uses_the_file(path: Path, is_mapped: bool) -> None:
    glft.save_file({"a": np.full(1, 1.0, np.float32)}, path)
    before = path.read_bytes()
    with glft.open(path, mmap=is_mapped) as file:
        tensor = file.get_tensor("a")
        if POSIX:
            glft.save_file({"a": np.full(1, 2.0, np.float32)}, path)
            assert file.get_tensor("a").tolist() == [1]
        else:
            with pytest.raises(PermissionError, match=IN_USE) as caught:
                glft.save_file({"a": np.full(1, 2.0, np.float32)}, path)
            assert (caught.value.filename, path.read_bytes()) == (str(path), before)
    assert os.listdir(path.parent) == [path.name]
    assert tensor.tolist() == [1]
    del tensor, file
    glft.edit(path, set={"b": "c"})  # reads the file that it replaces
    glft.save_file({"a": np.full(1, 3.0, np.float32)}, path)
    assert glft.load_file(path)["a"].tolist() == [3]


def test_a_read_only_file(path: Path) -> None:
    glft.save_file({"a": np.full(1, 1.0, np.float32)}, path)
    path.chmod(0o400)
    if POSIX:  # the folder's mode decides
        glft.save_file({"a": np.full(1, 2.0, np.float32)}, path)
        assert glft.load_file(path)["a"].tolist() == [2]
    else:
        with pytest.raises(PermissionError, match="is read-only; left unchanged"):
            glft.save_file({"a": np.full(1, 2.0, np.float32)}, path)
    path.chmod(0o600)
    assert os.listdir(path.parent) == [path.name]


HALF_WAY = """
import signal, sys, time
from glft_schema.cli import main
from glft_schema.tensors.tensor import Tensor

name = sys.argv.pop(1)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it

def write_to(self, *given):
    print("half way", flush=True)
    if name != "killed":
        signal.raise_signal(getattr(signal, name))
    time.sleep(60)

Tensor.write_to = write_to
main()
"""


@pytest.mark.parametrize(("how", "code"), [("killed", None), ("SIGINT", 130), ("SIGTERM", 143), ("SIGBREAK", 149)])
def test_a_writer_that_ends_half_way(tmp_path: Path, how: str, code: int | None) -> None:
    """A signal, such as that of Ctrl-C, or of Ctrl-Break on Windows, leaves no temporary file. The
    next writer removes the file that a killed process has left."""
    if code and not hasattr(signal, how):
        pytest.skip("a signal of Windows")
    source, out = tmp_path / "in.gguf", tmp_path / "out.gguf"
    glft.save_file({"w": np.full(1, 1.0, np.float32)}, source, {"split.no": 0, "split.count": 1})
    out.write_bytes(b"old")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, "-c", HALF_WAY, how, "merge", source, out]
    with subprocess.Popen(command, env=unmeasured(), text=True, **pipes) as process:
        assert process.stdout
        assert process.stdout.readline() == "half way\n"
        if code is None:
            process.kill()
        errors = process.communicate()[1]
    assert code in (None, process.returncode)
    assert "Traceback" not in errors
    assert out.read_bytes() == b"old"
    assert len(os.listdir(tmp_path)) == 2 + (code is None)
    assert in_this_process("merge", source, out).returncode == 0
    assert sorted(os.listdir(tmp_path)) == ["in.gguf", "out.gguf"]


# Text and names


def test_output_is_utf8_with_line_feeds(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    glft.save_file({"été": np.full(1, 1.0, np.float32)}, path, {"general.name": "重"})
    for command in (["inspect", path], ["hash", path], ["schema", "gguf"]):
        variables = {name: value for name, value in unmeasured().items() if name not in ("PYTHONUTF8", "PYTHONIOENCODING")}
        done = subprocess.run([sys.executable, "-m", "glft_schema", *command], env=variables, capture_output=True, check=True)
        assert b"\r" not in done.stdout
        assert command[0] != "inspect" or {"été", "重"} <= {*done.stdout.decode().split()}


def test_text_without_an_encoding_is_escaped(tmp_path: Path) -> None:
    """Also on stderr, such as a name that is not valid Unicode."""
    name = "\\udcff" if POSIX else "\\ud800"
    program = f"import sys; from glft_schema.cli import main; sys.argv[1:] = ['inspect', 'a{name}']; main()"
    done = subprocess.run([sys.executable, "-c", program], env=unmeasured(), cwd=tmp_path, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"glft: a" + name.encode())


@pytest.mark.posix("closes a stream by its number")
def test_a_closed_stderr(tmp_path: Path) -> None:
    program = "import os, sys; r, w = os.pipe(); os.dup2(w, 2); os.close(r); os.close(w)\n"
    program += "from glft_schema.cli import main; sys.argv[1:] = ['inspect', 'missing']; main()"
    done = subprocess.run([sys.executable, "-c", program], env=unmeasured(), cwd=tmp_path, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (141, b"")


RESERVED = [
    "CON",
    "nul.gguf",
    "aux",
    "COM1.safetensors",
    "lpt9",
    "CONIN$",
    "a:b",
    "a?",
    "a\\b",
    "a/b",
    "a.",
    "a ",
    "a\n",
    "..",
    ".",
]


@pytest.mark.parametrize("name", RESERVED)
def test_names_that_some_system_reserves(name: str, tmp_path: Path) -> None:
    assert not is_file_name(name)
    index = tmp_path / "model.safetensors.index.json"
    index.write_bytes(b'{"weight_map": {"w": %s}}' % json.dumps(name).encode())
    with pytest.raises(glft.FormatError, match="expected the name of a file in the directory, found"):
        glft.open(index)


@pytest.mark.parametrize("name", ["model-00001-of-00002.gguf", "console.gguf", "com10", "a.b c", ".a", "重", "nul1"])
def test_names_of_all_systems(name: str) -> None:
    assert is_file_name(name)


def test_a_container_is_the_same_on_all_systems(path: Path) -> None:
    glft.Container.build_file(glft.Container.parse(golden("four_types")), path)
    assert path.read_bytes() == golden("four_types")
