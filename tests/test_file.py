"""An open file: regions, tensors as views, slices that read only what they need, and what happens after closing."""

from __future__ import annotations

import contextlib
import copy
import os
import pickle
import re
import subprocess
import sys
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import construct
import numpy as np
import pytest
import torch

import glft_schema
from glft_schema import ClosedError, Container, File, FormatError, TruncatedError, load_file, save_file
from glft_schema.container import parse_source
from glft_schema.source import BytesSource, Source
from tests import reference
from tests.golden import golden

FOUR_TYPES = golden("four_types")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "four.gguf-lite"
    path.write_bytes(FOUR_TYPES)
    return path


class RecordingSource(BytesSource):
    """Notes which bytes are asked for."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.asked: list[tuple[int, int]] = []

    def private(self, start: int, nbytes: int) -> memoryview:
        self.asked.append((start, nbytes))
        return super().private(start, nbytes)


def test_regions_by_attribute_and_by_key(path: Path) -> None:
    with glft_schema.open(path) as file:
        assert file.header.version == file["header"]["version"] == 1
        assert file.metadata["arch"] == "toy"
        assert file.descriptors[2].name == "fc1"
        assert list(file.descriptors[2].dims) == [2, 3]
        assert list(file.regions) == ["header", "metadata", "descriptors", "data"]
        assert list(file.keys()) == ["a", "b", "fc1", "fc2"]
        assert file.info("fc2").nbytes == 34
        assert {"header", "metadata", "n_tensors"} <= {*dir(file), *dir(file.header)}
        assert "n_tensors" not in file.header
        assert file.header.get("n_tensors") is None
        assert file.header.counts == {"n_tensors": 4, "metadata_len": 22}
        with pytest.raises(AttributeError, match="no field 'magics'; the fields are magic, version"):
            _ = file.header.magics
        with pytest.raises(AttributeError, match="no region 'headers'; the regions are header, metadata, descriptors, data"):
            _ = file.headers
        with pytest.raises(KeyError):
            file.get_tensor("fc3")
        with pytest.raises(TypeError, match="not iterable"):
            list(file)


def test_records_are_values(path: Path) -> None:
    row = Container.parse_file(path).descriptors[1]
    assert row == {"name": "b", "dims": [3], "dtype": row.dtype, "offset": 4}
    assert repr(row) == "Record(name='b', dims=[3], dtype=F16, offset=4)"
    for again in (pickle.loads(pickle.dumps(row)), copy.deepcopy(row)):
        assert again == row
        assert again.dtype is row.dtype
    with pytest.raises(AttributeError, match="a parsed record is read-only"):
        row.offset = 5


def test_files_compare_and_pickle(path: Path) -> None:
    mapped, read, parsed = Container.parse_file(path), Container.parse_file(path, mmap=False), Container.parse(FOUR_TYPES)
    assert mapped == read == parsed
    assert mapped != Container.parse(FOUR_TYPES[:-1] + b"\x00")
    assert mapped != "a file"
    for file in (mapped, read, parsed):
        again = pickle.loads(pickle.dumps(file))
        assert again == file
        assert type(again.source) is type(file.source)


def test_every_road_gives_the_same_file(path: Path) -> None:
    with path.open("rb") as stream, subprocess.Popen(["cat", path], stdout=subprocess.PIPE) as pipe:
        roads = [
            Container.parse(bytearray(FOUR_TYPES)),
            Container.parse(memoryview(FOUR_TYPES)),
            Container.parse_stream(stream),
            Container.parse_stream(pipe.stdout),
            Container.parse_file(str(path)),
        ]
    assert all(file == roads[0] for file in roads)


def test_container_is_a_construct_inside_other_constructs() -> None:
    package = construct.Struct("weights" / construct.Prefixed(construct.Int32ul, Container), "end" / construct.Byte)
    built = package.build({"weights": Container.parse(FOUR_TYPES), "end": 7})
    assert built == len(FOUR_TYPES).to_bytes(4, "little") + FOUR_TYPES + b"\x07"
    parsed = package.parse(built)
    assert (parsed.weights, parsed.end) == (Container.parse(FOUR_TYPES), 7)
    assert isinstance(Container, construct.Construct)
    with pytest.raises(construct.SizeofError):
        Container.sizeof()


def test_printing_a_file() -> None:
    text = str(Container.parse(FOUR_TYPES))
    assert text.startswith("<GLFT file '<bytes>': 4 tensors, 168 bytes>\nheader: Record(magic=")
    assert re.search(r"'fc1' +Q8_per_channel +\[2, 3\] +10 bytes at 124", text)
    many = Container.build(
        {
            "descriptors": [{"name": str(i), "dims": [0], "dtype": 0} for i in range(25)],
            "data": {str(i): b"" for i in range(25)},
        }
    )
    assert str(Container.parse(many)).endswith("... and 5 more")


@pytest.mark.parametrize("mmap", [True, False])
def test_after_closing_every_access_is_an_error(path: Path, mmap: bool) -> None:
    file = Container.parse_file(path, mmap=mmap)
    tensor, kept = file.tensors["fc2"], file.get_tensor("a")
    file.close()
    file.close()
    accesses = [
        lambda: file.header,
        lambda: file["metadata"],
        lambda: file.tensors,
        file.keys,
        lambda: file.get_tensor("a"),
        tensor.dequantize,
        lambda: tensor[0],
        lambda: tensor.raw,
        lambda: tensor.payload,
        lambda: list(tensor.pieces()),
    ]
    for access in accesses:
        with pytest.raises(ClosedError, match=r"four.gguf-lite is closed"):
            access()
    assert kept.item() == -1.5
    assert repr(file) == str(file) == f"<GLFT file {str(path)!r}: closed>"


def test_floats_are_views_that_never_reach_the_file(path: Path) -> None:
    with glft_schema.open(path) as file:
        first, second = file.get_tensor("b"), file.get_tensor("b")
        assert first.data_ptr() == second.data_ptr()
        assert file.tensors["b"][1:].data_ptr() == first[1:].data_ptr()
        first.zero_()
        file.tensors["fc1"].payload.codes.zero_()
    assert path.read_bytes() == FOUR_TYPES
    data = bytearray(FOUR_TYPES)
    Container.parse(data).get_tensor("a").zero_()
    assert data == FOUR_TYPES


def test_dtypes(path: Path) -> None:
    with glft_schema.open(path) as file:
        assert [file.get_tensor(name).dtype for name in file.keys()] == [torch.float32, torch.float16, *[torch.float32] * 2]
        exact = file.get_tensor("fc2")
        for dtype in (torch.float64, torch.float16, torch.bfloat16):
            assert torch.equal(file.get_tensor("fc2", dtype), exact.to(dtype))
        with pytest.raises(ValueError, match=r"expected a float dtype, found torch.int8"):
            file.get_tensor("fc2", torch.int8)
        assert file.tensors["fc2"].dequantize(device="meta").device.type == "meta"
    assert {t.dtype for t in load_file(path, dtype=torch.bfloat16).values()} == {torch.bfloat16}
    assert {t.device.type for t in load_file(path, device="meta").values()} == {"meta"}


def test_slice_reads_only_its_bytes() -> None:
    q8 = torch.arange(6 * 64).reshape(6, 64).float()
    built = Container.build(
        {
            "descriptors": [
                {"name": "f32", "dims": [6, 2, 32], "dtype": "F32"},
                {"name": "q8", "dims": [6, 64], "dtype": "Q8_per_channel"},
                {"name": "q4", "dims": [6, 256], "dtype": "Q4_per_group_64"},
            ],
            "data": {"f32": {"weights": q8.view(6, 2, 32)}, "q8": bytes(12 + 384), "q4": bytes(48 + 768)},
        }
    )
    source = RecordingSource(built)
    file = parse_source(source)
    f32, q8_start, q4 = (file.tensors[name].position for name in ("f32", "q8", "q4"))
    cases = [
        ("f32", (3,), [(f32 + 3 * 256, 256)]),
        ("f32", (3, 1, 30), [(f32 + 3 * 256 + 62 * 4, 4)]),
        ("f32", (slice(1, 3), 0), [(f32 + 256, 128), (f32 + 512, 128)]),
        ("f32", (slice(0, 6, 4),), [(f32, 256), (f32 + 4 * 256, 256)]),
        ("q8", (slice(3, 5),), [(q8_start + 6, 4), (q8_start + 12 + 3 * 64, 128)]),
        ("q8", (2, 7), [(q8_start + 4, 2), (q8_start + 12 + 2 * 64 + 7, 1)]),
        ("q4", (5, 100), [(q4 + 2 * (5 * 4 + 1), 2), (q4 + 48 + 5 * 128 + 32, 32)]),
        ("q4", (slice(0, 2), slice(0, 0)), []),
    ]
    for name, index, expected in cases:
        source.asked.clear()
        file.get_slice(name)[index]
        assert source.asked == expected


@pytest.mark.parametrize("index", [(0, 0, 0), (2,), (0, -4), (..., ...), slice(None, None, -1), None, True, "a", [0]])
def test_indices_that_are_refused(index: object) -> None:
    with pytest.raises(IndexError):
        Container.parse(FOUR_TYPES).tensors["fc1"][index]


def mapped_kib(path: Path) -> int:
    """Returns how much of the mapping of `path` is resident in this process."""
    sizes = re.findall(rf"{re.escape(str(path))}\n(?:.*\n)*?Rss: +(\d+) kB", Path("/proc/self/smaps").read_text())
    return sum(int(size) for size in sizes)


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux's list of mappings")
def test_one_tensor_of_2000_touches_only_its_pages(tmp_path: Path) -> None:
    path = tmp_path / "many.gguf-lite"
    count, each = 2000, 1 << 20
    rows = [reference.Row(f"layers.{i}.weight", [256, 1024], reference.F32, b"", i * each) for i in range(count)]
    head = reference.write(b"", rows, b"")
    with path.open("wb") as stream:
        stream.write(head)
        stream.truncate(len(head) + count * each)  # the payloads are holes
    with glft_schema.open(path) as file:
        before = mapped_kib(path)
        tensor = file.get_tensor("layers.1000.weight")
        assert not tensor.any()
        assert before < 2 * len(head) / 1024 + 128
        assert mapped_kib(path) < before + each / 1024 + 128


def test_opening_allocates_nothing_for_a_claim_of_4_gb() -> None:
    claim = b"\x54\x46\x4c\x47\x01\0\0\0\0\0\0\0\xff\xff\xff\xff"
    assert len(claim) == 16
    tracemalloc.start()
    with pytest.raises(TruncatedError, match="metadata: expected 4294967295 bytes, found 0"):
        Container.parse(claim)
    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()


def test_a_file_that_shrinks_while_open(path: Path) -> None:
    for mmap in (True, False):
        path.write_bytes(FOUR_TYPES)
        with glft_schema.open(path, mmap=mmap) as file:
            with path.open("r+b") as stream:
                stream.truncate(150)
            assert file.get_tensor("a").item() == -1.5
            with pytest.raises(TruncatedError, match="expected 32 bytes, found 14"):
                file.get_tensor("fc2")


def test_a_file_replaced_while_open_stays_the_old_one(path: Path) -> None:
    with glft_schema.open(path) as file:
        save_file({"a": torch.ones(3)}, path)
        assert file.get_tensor("a").item() == -1.5
    assert load_file(path)["a"].tolist() == [1, 1, 1]


def test_what_is_not_a_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(OSError, match=r"is not a regular file"):
            glft_schema.open(path)
    with pytest.raises(FileNotFoundError):
        glft_schema.open(tmp_path / "missing")
    (tmp_path / "empty").touch()
    for mmap in (True, False):
        with pytest.raises(FormatError, match="header -> magic: expected 4 bytes, found 0"):
            glft_schema.open(tmp_path / "empty", mmap=mmap)


def test_opening_and_inspecting_does_not_import_torch(path: Path) -> None:
    code = f"import sys, glft_schema; print(glft_schema.Container.parse_file({str(path)!r})); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_threads_share_an_open_file(path: Path) -> None:
    for mmap in (True, False):
        with glft_schema.open(path, mmap=mmap) as file, ThreadPoolExecutor(8) as pool:
            names = [name for name in ("a", "fc1", "fc2") for _ in range(50)]
            for name, tensor in zip(names, pool.map(file.get_tensor, names), strict=True):
                assert torch.equal(tensor, file.get_tensor(name))


def test_file_is_exported() -> None:
    assert isinstance(Container.parse(FOUR_TYPES), File)


def test_numpys_integers_are_indices_and_its_arrays_are_not() -> None:
    tensor = Container.parse(FOUR_TYPES).tensors["fc1"]
    assert torch.equal(tensor[np.int64(1)], tensor[1])
    with pytest.raises(IndexError, match="expected integers, slices with a step above 0"):
        tensor[np.array([0, 1])]


@pytest.mark.parametrize("mmap", [True, False])
def test_closing_while_others_read(path: Path, mmap: bool) -> None:
    """A read gets the right numbers or ClosedError, also where the system reuses the file's descriptor at once."""
    expected = Container.parse(FOUR_TYPES).get_tensor("fc2")

    def read(tensor: glft_schema.Tensor) -> int:
        reads = 0
        with contextlib.suppress(ClosedError):
            while reads < 10_000:
                assert torch.equal(tensor.dequantize(), expected)
                reads += 1
        return reads

    with ThreadPoolExecutor(2) as pool:
        for _ in range(30):
            file = glft_schema.open(path, mmap=mmap)
            reading = pool.submit(read, file.tensors["fc2"])
            time.sleep(0.002)
            file.close()
            others = [os.open("/dev/zero", os.O_RDONLY) for _ in range(3)]
            assert reading.result() < 10_000
            for other in others:
                os.close(other)


def test_writing_into_a_view_changes_nothing_that_is_built(path: Path) -> None:
    with glft_schema.open(path) as file:
        file.get_tensor("a").zero_()
        file.tensors["fc1"].payload.codes.zero_()
        assert Container.build(file) == FOUR_TYPES
        assert file == Container.parse(FOUR_TYPES)
        assert bytes(file.tensors["a"].raw) == bytes.fromhex("0000C0BF")


def test_a_small_slice_of_a_file_read_in_pieces_keeps_little(tmp_path: Path) -> None:
    save_file({"w": torch.randn(64, 1000), "q": torch.randn(64, 1024)}, tmp_path / "f", schemes={"q": "q4_per_group_64"})
    with glft_schema.open(tmp_path / "f", mmap=False) as file, glft_schema.open(tmp_path / "f") as mapped:
        for name, index in (("w", (slice(None), 0)), ("w", slice(None, None, 32)), ("q", (slice(0, 64, 32), slice(70, 80)))):
            part = file.get_slice(name)[index]
            assert torch.equal(part, mapped.get_slice(name)[index])
            assert torch.equal(part, mapped.get_tensor(name)[index])
            assert part.untyped_storage().nbytes() < 10_000


def test_a_device_of_ones_own(path: Path) -> None:
    with glft_schema.open(path, device="meta") as file:
        assert file.device == "meta"
        assert file.get_tensor("a").device.type == "meta"
        file.device = "cpu"
        assert file.tensors["a"].dequantize().device.type == "cpu"


class Failing(BytesSource):
    """Fails at the first reading, as a connection may."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.failed = False

    def view(self, start: int, nbytes: int) -> memoryview:
        if start and not self.failed:
            self.failed = True
            raise TruncatedError("expected more, found a lost connection")
        return super().view(start, nbytes)


def test_a_source_that_fails_once() -> None:
    data = FOUR_TYPES + bytes(1 << 17)
    data = data[:8] + (1 << 20).to_bytes(4, "little") + data[12:]
    with pytest.raises(TruncatedError):
        parse_source(Failing(data))


def test_errors_inside_other_constructs_have_the_whole_path() -> None:
    package = construct.Struct("weights" / Container)
    with pytest.raises(FormatError) as caught:
        package.parse(FOUR_TYPES[:20])
    assert caught.value.path == "weights -> metadata"
    with pytest.raises(FormatError) as caught:
        package.build({"weights": {"metadata": {"": ""}}})
    assert caught.value.path == "weights -> metadata"


def test_an_error_says_which_file(path: Path) -> None:
    path.write_bytes(FOUR_TYPES[:20])
    with pytest.raises(FormatError) as caught:
        glft_schema.open(path)
    assert caught.value.file == str(path)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.file, again.offset) == (str(caught.value), str(path), 16)


def test_many_bad_files_leave_no_descriptors_behind(path: Path) -> None:
    path.write_bytes(FOUR_TYPES[:150])
    before, kept = len(os.listdir("/proc/self/fd")), []
    for mmap in (True, False):
        for _ in range(20):
            with pytest.raises(FormatError) as caught:
                glft_schema.open(path, mmap=mmap)
            kept.append(caught)
    assert len(os.listdir("/proc/self/fd")) <= before + 1


@pytest.mark.skipif(sys.platform != "linux", reason="counts on sparse files and on Linux's way of promising memory")
def test_a_file_larger_than_the_machines_memory(tmp_path: Path) -> None:
    size = 2 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    columns = 1 << 28
    row = reference.Row("w", [size // (4 * columns), columns], reference.F32, b"")
    head = reference.write(b"", [row], b"")
    path = tmp_path / "huge"
    with path.open("wb") as stream:
        stream.write(head)
        stream.truncate(len(head) + 4 * columns * row.dims[0])
    with glft_schema.open(path) as file:
        assert file.nbytes > size // 2
        assert file.get_slice("w")[-1, -3:].tolist() == [0, 0, 0]


def test_steps_beyond_every_size() -> None:
    tensor = Container.parse(FOUR_TYPES).tensors["fc1"]
    for step in (5, 2**62, 10**30):
        assert torch.equal(tensor[::step, ::step], tensor.dequantize()[:1, :1])


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors in /proc")
def test_a_closed_file_goes_with_its_last_tensor(path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    file = glft_schema.open(path)
    tensor = file.get_tensor("a")
    file.close()
    assert tensor.item() == -1.5
    del tensor
    assert len(os.listdir("/proc/self/fd")) == before
    assert file.source.closed


def test_a_file_over_a_source_of_ones_own_is_not_pickled() -> None:
    class Other(Source):
        def _view(self, start: int, nbytes: int) -> memoryview:
            return memoryview(FOUR_TYPES)[start : start + nbytes]

    file = parse_source(Other("elsewhere", len(FOUR_TYPES)))
    assert file.get_tensor("a").item() == -1.5
    with pytest.raises(TypeError, match="a file over a Other cannot be pickled"):
        pickle.dumps(file)
    assert copy.deepcopy(file) is copy.copy(file) is file
