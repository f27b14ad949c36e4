"""Payloads on a device are those of the file: on a GPU, and by the same code with the processor's
memory in place of a device's."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import glft_schema
from glft_schema import ClosedError, TruncatedError, load_file, save_file
from glft_schema.formats.registry import FORMATS
from glft_schema.storage.opening import open_source
from glft_schema.storage.source import BytesSource, Source
from glft_schema.tensor_types import TensorType
from glft_schema.tensors import tensor as tensors
from glft_schema.tensors import uploads
from glft_schema.tensors.tensor import PayloadLocation, Tensor

TYPES = list({str(type_): type_ for format in FORMATS for type_ in format.types if not type_.bytes_only}.values())
COPY = torch.Tensor.copy_
START = 13  # bytes of the files before a payload
U8 = next(type_ for type_ in TYPES if str(type_) == "U8")
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


class Stream:
    """Copies are done when somebody waits for them."""

    def __init__(self) -> None:
        self.copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.lock = threading.Lock()

    def copy(self, there: torch.Tensor, here: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        if not non_blocking:
            return COPY(there, here)
        assert torch.is_inference_mode_enabled() or not there.is_inference()  # as torch checks
        with self.lock:
            self.copies.append((there, here))
        return there

    def finish(self) -> None:
        with self.lock, torch.inference_mode():
            for there, here in self.copies:
                COPY(there, here)
            self.copies.clear()

    def wait_stream(self, other: Stream) -> None:
        other.finish()


class Event:
    def __init__(self, blocking: bool) -> None:
        self.streams = list[Stream]()

    def record(self, stream: Stream) -> None:
        self.streams = [stream]

    def synchronize(self) -> None:
        for stream in self.streams:
            stream.finish()


class Processor:
    """torch with a stand-in for a GPU: its memory is the processor's."""

    def __init__(self) -> None:
        self.stream = Stream()
        self.cuda = SimpleNamespace(
            Event=Event,
            Stream=lambda device: self.stream,
            current_stream=lambda device: Stream(),
            stream=lambda stream: nullcontext(),
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def empty(self, *shape: Any, dtype: torch.dtype, device: Any, pin_memory: bool = False) -> torch.Tensor:
        return torch.empty(*shape, dtype=dtype)


@pytest.fixture(params=["processor", pytest.param("cuda", marks=GPU)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A device whose buffers are small, so that payloads of a few kB need several."""
    if request.param == "processor":
        processor = Processor()
        monkeypatch.setattr(uploads, "torch", processor)
        monkeypatch.setattr(torch.Tensor, "copy_", lambda there, *given, **named: processor.stream.copy(there, *given, **named))
        monkeypatch.setattr(uploads, "usable_device", lambda device: torch.device("cuda", 0))
        monkeypatch.setattr("glft_schema.files.container.usable_device", lambda device: device)
        monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
    monkeypatch.setattr(uploads, "PIECE", 1000)
    monkeypatch.setattr(uploads, "BUFFERS", 3)
    uploads._stream_and_buffers.cache_clear()
    yield "cuda"
    uploads._stream_and_buffers.cache_clear()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A file of some tensors, whose payloads have several fields and sizes."""
    path = tmp_path / "model.glft"
    state = {f"block.{number}": torch.randn(3 + 9 * number, 192) for number in range(4)}
    state |= {"norm": torch.randn(5), "w": torch.randn(200, 64), "empty": torch.empty(0, 7)}
    save_file(state, path, schemes={"block.*": "q4_per_group_64", "w": "q8_per_channel"})
    return path


@pytest.fixture(params=[1, 4])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def tensor_in(
    source: Source, type_: TensorType, shape: tuple[int, ...], order: Any = "little", device: str = "cpu", start: int = START
) -> Tensor:
    return Tensor("w", shape, PayloadLocation(0, type_.nbytes(shape), type_, shape), source, start, order, device)


def random_bytes(count: int, most: int = 255) -> bytes:
    return np.random.default_rng(count).integers(0, most, count, np.uint8, endpoint=True).tobytes()


def bits(values: torch.Tensor, type_: TensorType) -> torch.Tensor:
    """Returns the bytes of values; decoded weights with another number for NaN."""
    there = values.cpu().contiguous()
    return there.view(-1).view(torch.uint8) if type_.exact else there.nan_to_num(7.0)


@pytest.mark.parametrize("order", ["little", "big"])
@pytest.mark.parametrize("type_", TYPES, ids=str)
def test_values_and_slices_of_all_types(type_: TensorType, order: str, device: str, tmp_path: Path) -> None:
    """From a file that is mapped or not, and from memory."""
    unit = type_.least_row
    shape = (9, unit * -(-700 // unit))
    stored = bytes(START) + random_bytes(type_.nbytes(shape), 1 if type_.exact == "bool" else 255)
    (tmp_path / "f").write_bytes(stored)
    across = slice(unit, shape[1] - unit + 1)
    for source in (open_source(tmp_path / "f"), open_source(tmp_path / "f", mmap=False), BytesSource(stored)):
        here, there = (tensor_in(source, type_, shape, order, where) for where in ("cpu", device))
        for index in (..., 3, slice(2, 7), slice(1, None, 3), slice(4, 4), (slice(2, 5), across), (8, across), (..., 1)):
            expected, found = here.read(index), there.read(index)
            assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
            assert torch.equal(bits(found, type_), bits(expected, type_)), index


@pytest.mark.parametrize("mmap", [True, False])
def test_payloads_around_the_size_of_a_buffer(device: str, threads: int, mmap: bool, tmp_path: Path) -> None:
    path = tmp_path / "f"
    for count in (0, 1, 999, 1000, 1001, 2999, 3000, 3001, 100_003):
        stored = random_bytes(count)
        path.write_bytes(bytes(START) + stored + b"after")
        for offset in (0, 7):  # of the source in the file
            tensor = tensor_in(open_source(path, mmap, offset=offset), U8, (count,), start=START - offset)
            assert tensor.dequantize(device=device).cpu().numpy().tobytes() == stored


def test_in_inference_mode_and_out_of_it(device: str, threads: int) -> None:
    """Buffers and results may be inference tensors; the threads that copy are not in the mode."""
    stored = random_bytes(4000)
    for modes in ((True, False), (False, True)):
        uploads._stream_and_buffers.cache_clear()
        for mode in modes:
            with torch.inference_mode(mode):
                found = tensor_in(BytesSource(bytes(START) + stored), U8, (4000,)).dequantize(device=device)
                assert found.is_inference() == mode
                assert found.cpu().numpy().tobytes() == stored


@pytest.mark.parametrize("ahead", [0, 5000, 1 << 27])
@pytest.mark.parametrize("mmap", [True, False])
def test_whole_files(device: str, threads: int, ahead: int, mmap: bool, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With tensors in file order, however far reading is ahead."""
    monkeypatch.setattr(tensors, "AHEAD", ahead)
    for dtype in (None, torch.bfloat16):
        expected, found = load_file(model, dtype=dtype), load_file(model, device, dtype=dtype, mmap=mmap)
        assert list(found) == list(expected)
        for name, values in expected.items():
            assert found[name].dtype == values.dtype
            assert torch.equal(found[name].cpu(), values)


def test_names_that_share_a_payload(device: str, tmp_path: Path) -> None:
    path = tmp_path / "m.glft"
    weights = torch.randn(40, 64)
    save_file({"a": weights, "b": weights + 1, "c": weights}, path)
    found = load_file(path, device)
    assert found["a"] is found["c"]
    assert list(found) == ["a", "b", "c"]


def test_two_threads_load_at_once(device: str, threads: int, model: Path) -> None:
    expected = load_file(model)
    with ThreadPoolExecutor(4) as pool:
        for loaded in pool.map(lambda _: load_file(model, device), range(12)):
            assert all(torch.equal(loaded[name].cpu(), values) for name, values in expected.items())


def test_sums_of_two_loads(device: str, model: Path) -> None:
    """Operations on the main stream wait for the copies, and memory in use is not written again."""
    expected = load_file(model)
    for _ in range(5):
        one, two = load_file(model, device), load_file(model, device)
        sums = {name: one[name] + two[name] for name in expected}
        del one, two
        load_file(model, device)
        assert all(torch.equal(sums[name].cpu(), 2 * values) for name, values in expected.items())


def test_a_file_cut_short_while_open(device: str, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the upload, and during it; afterwards, all buffers are free again."""
    path, source, preadv = tmp_path / "f", BytesSource(bytes(START) + random_bytes(9000)), os.preadv
    path.write_bytes(source.view(0, source.size))

    def cut_short(fd: int, buffers: list[Any], offset: int) -> int:
        if offset >= START + 2000:
            os.truncate(path, START + 2500)
        return preadv(fd, buffers, offset)

    for mmap in (True, False):
        tensor = tensor_in(open_source(path, mmap), U8, (9000,))
        with monkeypatch.context() as patched:
            patched.setattr(os, "preadv", cut_short)
            with pytest.raises(TruncatedError, match=r"expected 9000 bytes, found 2500 .*at byte 13") as caught:
                tensor.dequantize(device=device)
            assert caught.value.file == str(path)
        with pytest.raises(TruncatedError, match=r"expected 9000 bytes, found 2500 .*at byte 13"):
            tensor.dequantize(device=device)
        path.write_bytes(source.view(0, source.size))
        found = tensor.dequantize(device=device)
        assert torch.equal(found.cpu(), tensor_in(source, U8, (9000,)).dequantize())
    assert uploads._stream_and_buffers(torch.device("cuda", 0))[1].qsize() == uploads.BUFFERS


def test_a_failed_read_names_the_file(device: str, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    path.write_bytes(bytes(START + 9000))
    tensor = tensor_in(open_source(path), U8, (9000,))

    def fail(fd: int, buffers: list[Any], offset: int) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(OSError, match="Input/output error") as caught:
        tensor.dequantize(device=device)
    assert caught.value.filename == str(path)


def test_a_file_that_is_closed(device: str, threads: int, model: Path) -> None:
    """A load in progress returns the right values or raises ClosedError."""
    expected = load_file(model)["w"]
    for _ in range(20):
        with ThreadPoolExecutor(1) as pool, glft_schema.open(model) as file:
            loading = pool.submit(file.tensors["w"].dequantize, device=device)
            file.close()
            with suppress(ClosedError):
                assert torch.equal(loading.result().cpu(), expected)


@GPU
def test_into_existing_tensors(model: Path) -> None:
    expected = load_file(model)
    out = {name: torch.zeros_like(values, device="cuda") for name, values in expected.items()}
    loaded = load_file(model, "cuda", out=out)
    assert all(loaded[name] is out[name] and torch.equal(out[name].cpu(), values) for name, values in expected.items())


@GPU
def test_a_file_larger_than_all_buffers(tmp_path: Path) -> None:
    """With buffers of the usual size, so that pieces wait for the device to fetch earlier ones."""
    weights = torch.randn(3, uploads.PIECE * uploads.BUFFERS // 8)
    save_file({"w": weights, "v": weights[0] + 1}, tmp_path / "m.glft")
    for _ in range(3):
        loaded = load_file(tmp_path / "m.glft", "cuda")
        assert torch.equal(loaded["w"].cpu(), weights)
        assert torch.equal(loaded["v"].cpu(), weights[0] + 1)
