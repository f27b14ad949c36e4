"""The same bytes in memory, from a file, a stream or inside a construct give the same result."""

from __future__ import annotations

import contextlib
import gzip
import io
import mmap
import os
import pickle
import tempfile
import threading
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import construct
import pytest

from glft_schema import Container, File, FormatError, LimitError, TruncatedError
from glft_schema.codec.construct_errors import our_errors
from glft_schema.codec.trace import without_root
from glft_schema.describe.byte_map import byte_map
from glft_schema.describe.hex_view import HexView
from glft_schema.errors import OptionError
from glft_schema.files.parsing import check_rules
from glft_schema.formats.format import Format
from glft_schema.formats.registry import FORMATS
from glft_schema.limits import Limits
from glft_schema.storage.opening import open_source
from glft_schema.storage.tensor_bytes import array_bytes, write_all
from glft_schema.storage.torch_tensors import as_array
from tests.catalogue import gguf_cases, glft_cases
from tests.golden import golden
from tests.oracles import glft_reference as reference
from tests.tools.depth import FULL

GOLDEN = ("four_types", "loose_layout", "gguf_little", "gguf_big")
CASES: dict[str, bytes] = {
    **{f"GGUF, {name}": case.stored for name, case in {**gguf_cases.REFUSED, **gguf_cases.READ}.items()},
    **{f"GLFT, {name}": case.stored for name, case in {**glft_cases.REFUSED, **glft_cases.READ}.items()},
    **{name: golden(name) for name in GOLDEN},
    "a safetensors file": b"\2\0\0\0\0\0\0\0{}",
    "a byte": b"G",
}
Reader = Callable[[bytes, Path], File]


def verdict(read: Callable[[], File]) -> Any:
    """Returns the whole result: the error, or metadata, bytes and values."""
    try:
        file = read()
    except FormatError as error:
        path = without_root(error.path).removeprefix("inside").removeprefix(" -> ")
        return type(error), error.problem, path, error.offset, error.tensor, error.rule, error.key
    with file:
        tensors = []
        for tensor in file.tensors.values():
            values = None if tensor.type.bytes_only else tensor.dequantize()
            numbers = None if values is None else (values.dtype, values.shape, bytes(array_bytes(as_array(values))))
            tensors.append((tensor.name, tensor.dims, str(tensor.type), tensor.position, bytes(tensor.raw), numbers))
        return file.format.name, file.nbytes, Container.build(file), repr(dict(file.metadata)), tensors, file.tensors.gaps


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    """The verdicts on the bytes in memory. The catalogues state them."""
    return {name: verdict(lambda stored=stored: Container.parse(stored)) for name, stored in CASES.items()}


def written(stored: bytes, folder: Path) -> Path:
    path = folder / "file"
    path.write_bytes(stored)
    return path


def mapped_by_the_caller(stored: bytes, folder: Path) -> File:
    if not stored:
        return Container.parse(b"")  # cannot be mapped
    with written(stored, Path(tempfile.mkdtemp(dir=folder))).open("rb") as stream:
        return Container.parse(memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)))


def file_object(stored: bytes, folder: Path, **options: Any) -> File:
    with open(written(stored, folder), "rb", **options) as stream:
        return Container.parse_stream(stream)


def after_what_was_read(stored: bytes, folder: Path) -> File:
    with written(b"x" * 5000 + stored, folder).open("rb") as stream:
        assert stream.read(5000) == b"x" * 5000  # the buffer has read further
        file = Container.parse_stream(stream, mmap=False)
        assert stream.read() == b""
        return file


def read_and_written(stored: bytes, folder: Path) -> File:
    with (folder / "file").open("w+b") as stream:
        stream.write(b"x" + stored)
        stream.seek(1)
        return Container.parse_stream(stream)


def pipe(stored: bytes, folder: Path) -> File:
    """Reads what another thread sends, even if the reader stops early."""
    reading, writing = os.pipe()

    def send() -> None:
        with contextlib.suppress(OSError), open(writing, "wb", buffering=0) as into:
            write_all(into, stored)

    sending = threading.Thread(target=send)
    sending.start()
    try:
        with open(reading, "rb") as stream:
            return Container.parse_stream(stream)
    finally:
        sending.join()


class ThreeAtATime:
    """A stream that returns three bytes per read, whatever the size."""

    def __init__(self, stored: bytes) -> None:
        self._left = io.BytesIO(stored)

    def read(self, size: int = -1) -> bytes:
        return self._left.read(3)


def at(offset: int, **options: Any) -> Reader:
    """Returns a reader of a part at `offset`, with other bytes before and after it."""

    def read(stored: bytes, folder: Path) -> File:
        path = written(b"\xff" * offset + stored + b"what follows", folder)
        return Container.parse_file(path, offset=offset, size=len(stored), **options)

    return read


def prefixed(stored: bytes, folder: Path, compiled: bool = False) -> File:
    declared = construct.Struct("inside" / construct.Prefixed(construct.Int64ul, Container))
    declared = declared.compile() if compiled else declared
    return declared.parse(len(stored).to_bytes(8, "little") + stored + b"what follows").inside


def last_field_of_a_file(stored: bytes, folder: Path) -> File:
    declared = construct.Struct("skipped" / construct.Bytes(7), "inside" / Container, construct.Terminated)
    return declared.parse_file(written(bytes(7) + stored, folder)).inside


READERS: dict[str, Reader] = {
    "bytearray": lambda stored, folder: Container.parse(bytearray(stored)),
    "a view from an odd byte on": lambda stored, folder: Container.parse(memoryview(b"x" + stored)[1:]),
    "mapped by the caller": mapped_by_the_caller,
    "a file": lambda stored, folder: Container.parse_file(written(stored, folder)),
    "a file in pieces": lambda stored, folder: Container.parse_file(written(stored, folder), mmap=False),
    "a file object": file_object,
    "an unbuffered file object": lambda stored, folder: file_object(stored, folder, buffering=0),
    "a file object from the middle on": after_what_was_read,
    "a file object being written to": read_and_written,
    "BytesIO": lambda stored, folder: Container.parse_stream(io.BytesIO(stored)),
    "three bytes at a time": lambda stored, folder: Container.parse_stream(ThreeAtATime(stored)),
    "a pipe": pipe,
    "byte 7 of a larger file": at(7),
    "byte 7, in pieces": at(7, mmap=False),
    "byte 4097 of a larger file": at(4097),
    "inside Prefixed": prefixed,
    "the last field of a file": last_field_of_a_file,
    "Container.compile": lambda stored, folder: Container.compile().parse(stored),
    "inside a compiled Struct": lambda stored, folder: prefixed(stored, folder, compiled=True),
}


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_gives_the_verdict_of_bytes(reader: str, expected: dict[str, Any], tmp_path: Path) -> None:
    """By default on a third of the cases each, so that each case is read in eight ways."""
    tried = list(CASES) if FULL else list(CASES)[list(READERS).index(reader) % 3 :: 3]
    found = {name: verdict(lambda stored=CASES[name]: READERS[reader](stored, tmp_path)) for name in tried}
    different = {name: (found[name], expected[name]) for name in tried if found[name] != expected[name]}
    assert different == {}


@pytest.mark.parametrize("format", FORMATS)
def test_the_compiled_schema_gives_the_verdict_of_the_interpreted_one(format: Format) -> None:
    """Compares construct's compiler. Errors have no offset, as those of the Struct itself."""

    def outcome(declared: Any, stored: bytes) -> Any:
        try:
            with our_errors():
                parsed = declared.parse(stored)
        except FormatError as error:
            return type(error), error.problem, error.path, error.tensor
        return list(parsed), repr(parsed), {name: bytes(tensor.raw) for name, tensor in parsed.data.items()}

    interpreted, compiled = format.struct, format.struct.compile()
    assert type(compiled) is construct.Compiled
    for name, stored in CASES.items():
        assert outcome(compiled, stored) == outcome(interpreted, stored), name
    for stored in map(golden, GOLDEN):
        if format.claims(stored[:16]):
            assert compiled.build(compiled.parse(stored)) == interpreted.build(interpreted.parse(stored)) == stored


# Streams


def test_something_else_is_refused_before_the_rest_is_waited_for() -> None:
    """The pipe stays open without data, so waiting for its end would block forever."""
    reading, writing = os.pipe()
    os.write(writing, b"<!DOCTYPE html>\n")
    with open(reading, "rb") as stream, pytest.raises(FormatError, match="found b'<!DO', the start of a web page"):
        Container.parse_stream(stream)
    os.close(writing)
    with open("/dev/zero", "rb") as endless, pytest.raises(FormatError, match=r"found b'\\x00\\x00\\x00\\x00'"):
        Container.parse_stream(endless)


class Endless:
    """An endless stream: a file followed by zeros."""

    def __init__(self, stored: bytes) -> None:
        self._stored = io.BytesIO(stored)
        self.given = 0

    def read(self, size: int = -1) -> bytes:
        piece = self._stored.read(size) or bytes(size)
        self.given += len(piece)
        return piece


@pytest.mark.parametrize("most", [*range(18), 168, 1_000_000])
def test_an_endless_stream_ends_at_the_limit(most: int) -> None:
    """Also at a limit below the number of bytes that are checked first."""
    stored = golden("four_types")
    endless = Endless(stored)
    problem = rf"expected at most {most} bytes in a stream \(a limit of glft_schema\)"
    with Limits(stream=most), pytest.raises(LimitError, match=problem) as caught:
        Container.parse_stream(endless)
    assert caught.value.limit == "stream"
    assert endless.given <= max(18, most + 1)
    with Limits(stream=most):
        if most < 18:
            with pytest.raises(TruncatedError if most > 3 else FormatError):
                Container.parse_stream(io.BytesIO(stored[:most]))
        elif most == len(stored):
            assert Container.parse_stream(io.BytesIO(stored)) == Container.parse(stored)


def test_streams_that_give_no_bytes(tmp_path: Path) -> None:
    path = written(golden("four_types"), tmp_path)
    problem = "expected a stream of bytes, found one that returns .*: open the file in binary mode"
    with path.open("r", encoding="latin-1") as text, pytest.raises(TypeError, match=problem):
        Container.parse_stream(text)
    with pytest.raises(TypeError, match=problem):
        Container.parse_stream(io.StringIO("GGUF"))
    with path.open("rb") as stream:
        pass
    with pytest.raises(ValueError, match="closed file"):
        Container.parse_stream(stream)
    with path.open("ab") as stream, pytest.raises(io.UnsupportedOperation, match="read"):
        Container.parse_stream(stream)


def test_a_stream_that_does_not_wait() -> None:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    with open(reading, "rb", buffering=0) as stream:
        with pytest.raises(BlockingIOError, match="the stream is non-blocking and has no bytes yet"):
            Container.parse_stream(stream)
        os.write(writing, golden("four_types")[:20])
        with pytest.raises(BlockingIOError, match="no bytes yet"):
            Container.parse_stream(stream)
    os.close(writing)


def test_errors_of_a_stream_come_through() -> None:
    class Broken(io.RawIOBase):
        def read(self, size: int = -1) -> bytes:
            raise ConnectionResetError("the other side has gone")

    with pytest.raises(ConnectionResetError, match="the other side has gone"):
        Container.parse_stream(Broken())


def test_a_stream_over_a_file_is_not_taken_for_the_file(tmp_path: Path) -> None:
    """It has the file's descriptor, but other bytes."""
    with gzip.open(tmp_path / "packed", "wb") as packed:
        packed.write(golden("gguf_little"))
    with gzip.open(tmp_path / "packed", "rb") as packed:
        assert packed.fileno() >= 0
        assert Container.parse_stream(packed) == Container.parse(golden("gguf_little"))
    with zipfile.ZipFile(tmp_path / "archive", "w") as archive:
        archive.writestr("inside", golden("four_types"))
    with zipfile.ZipFile(tmp_path / "archive") as archive, archive.open("inside") as member:
        assert Container.parse_stream(member) == Container.parse(golden("four_types"))


@pytest.mark.posix("removes an open file")
@pytest.mark.parametrize("mmap", [True, False])
def test_a_file_object_may_be_closed_and_its_name_go(tmp_path: Path, mmap: bool) -> None:
    path = written(golden("four_types"), tmp_path)
    before = len(os.listdir("/dev/fd"))
    with path.open("rb") as stream:
        file = Container.parse_stream(stream, mmap=mmap)
    path.unlink()
    assert file.name == str(path)
    assert file == Container.parse(golden("four_types"))
    assert file.get_tensor("a").item() == -1.5
    again = pickle.loads(pickle.dumps(file))  # as its bytes: the path may not have them any more
    assert again == file
    assert again.name == "<bytes>"
    file.close()
    assert len(os.listdir("/dev/fd")) == before


def test_a_file_without_a_name(tmp_path: Path) -> None:
    with tempfile.TemporaryFile(dir=tmp_path) as stream:
        stream.write(golden("four_types")[:-1])
        stream.seek(0)
        with pytest.raises(TruncatedError) as caught:
            Container.parse_stream(stream)
        assert caught.value.file == "<bytes>"
        stream.write(golden("four_types")[-1:])
        stream.seek(0)
        assert Container.parse_stream(stream) == Container.parse(golden("four_types"))


def test_a_file_object_is_not_read_whole(tmp_path: Path) -> None:
    row = reference.Row("w", [1 << 31], reference.F32, b"")
    head = reference.write(b"", [row], b"")
    path = written(head, tmp_path)
    os.truncate(path, len(head) + (4 << 31))
    for is_mapped in (True, False):
        tracemalloc.start()
        with path.open("rb") as stream, Container.parse_stream(stream, mmap=is_mapped) as file:
            assert file.get_slice("w")[-1:].tolist() == [0]
            assert stream.tell() == path.stat().st_size
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
        tracemalloc.stop()


# Parts of files


@pytest.fixture
def part(tmp_path: Path) -> Path:
    """A file with ``gguf_little`` from byte 7 on."""
    return written(b"\xff" * 7 + golden("gguf_little") + b"what follows", tmp_path)


SIZE = len(golden("gguf_little"))


@pytest.mark.parametrize("mmap", [True, False])
def test_a_part_is_a_file_like_any_other(part: Path, mmap: bool) -> None:
    whole = Container.parse(golden("gguf_little"))
    with Container.parse_file(part, mmap=mmap, offset=7, size=SIZE) as file:
        again = pickle.loads(pickle.dumps(file))
        assert file == whole == again
        assert (file.name, file.nbytes, again.source.mapped) == (str(part), SIZE, mmap)
        assert check_rules(file, "spec") == check_rules(whole, "spec")
        assert list(HexView(byte_map(file)).whole()) == list(HexView(byte_map(whole)).whole())
        for name, tensor in whole.tensors.items():
            assert file.tensors[name].position == tensor.position
            assert bytes(file.tensors[name].raw) == bytes(tensor.raw)
        assert Container.build(file) == golden("gguf_little")
        if os.name == "posix":
            Container.build_file({}, part)
            assert file == whole  # the old file stays open


def test_where_errors_in_a_part_are(part: Path) -> None:
    with pytest.raises(TruncatedError) as caught:
        Container.parse_file(part, offset=7, size=20)
    with pytest.raises(TruncatedError) as plain:
        Container.parse(golden("gguf_little")[:20])
    assert (caught.value.path, caught.value.offset) == (plain.value.path, plain.value.offset)
    assert str(caught.value) == f"{plain.value} in {part}"


@pytest.mark.parametrize(
    ("span", "error", "problem"),
    [
        ({"offset": 7, "size": 999_999}, TruncatedError, f"expected 999999 bytes at byte 7 of the file, found {SIZE + 12}"),
        ({"offset": SIZE + 7 + 12}, TruncatedError, "header -> magic: expected 4 bytes, found 0"),
        ({"offset": 1 << 70}, TruncatedError, "header -> magic: expected 4 bytes, found 0"),
        ({"offset": 1 << 70, "size": 1}, TruncatedError, "expected 1 bytes at byte "),
        ({"offset": -1}, OptionError, "expected a non-negative integer as offset, found -1"),
        ({"size": "4"}, OptionError, "expected a non-negative integer as size, found '4'"),
    ],
)
def test_parts_that_are_not_there(span: dict[str, Any], error: type[Exception], problem: str, part: Path) -> None:
    with pytest.raises(error, match=f"^{problem}"):
        Container.parse_file(part, **span)


def test_views_of_a_part_at_the_edges_of_pages(tmp_path: Path) -> None:
    stored = bytes(range(256)) * 64
    path = written(stored, tmp_path)
    for offset in (0, 1, 4095, 4096, 4097, 8192, len(stored) - 1, len(stored)):
        for size in {0, 1, 4096, 5000, None}:
            if size is not None and offset + size > len(stored):
                continue
            for is_mapped in (True, False):
                source = open_source(path, is_mapped, offset=offset, size=size)
                wanted = stored[offset : None if size is None else offset + size]
                assert source.size == len(wanted)
                for read in (source.view, source.read, source.private):
                    assert bytes(read(0, source.size)) == wanted
                    with pytest.raises(TruncatedError, match=f"expected {source.size + 1} bytes, found {source.size}"):
                        read(0, source.size + 1)
                source.close()
