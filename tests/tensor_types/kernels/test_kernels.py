"""Kernels write what the operations write, in every way they are used."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import glft_schema
from glft_schema import save_file
from glft_schema.errors import OptionError
from glft_schema.formats.glft import GLFT
from glft_schema.nn import Linear
from glft_schema.tensor_types import TensorType
from glft_schema.tensor_types.engine.decoders import decoder
from glft_schema.tensor_types.ggml import GGML_TYPES
from glft_schema.tensor_types.kernels import in_use, workers
from glft_schema.tensor_types.kernels.in_use import MODE, find

pytestmark = pytest.mark.full
KINDS = [GGML_TYPES["Q4_K"], GLFT.types["Q8_per_channel"], GLFT.types["Q4_per_group_64"]]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
by_type = pytest.mark.parametrize("type_", KINDS, ids=str)


@pytest.fixture
def required(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that is not found is an error."""
    monkeypatch.setenv(MODE, "require")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The numbers of rows for which kernels are bound."""
    found: list[int] = []
    bound = in_use.Kernel.bound

    def counting(self: in_use.Kernel, tensors: list[torch.Tensor], *fixed: object) -> object:
        if run := bound(self, tensors, *fixed):
            found.append(len(tensors[-1]))
        return run

    monkeypatch.setattr(in_use.Kernel, "bound", counting)
    return found


def fields_of(type_: TensorType, rows: int, columns: int) -> dict[str, torch.Tensor]:
    return type_.encode(torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows)), "w")


def by_operations(type_: TensorType, fields: dict[str, torch.Tensor], columns: int, dtype: torch.dtype) -> torch.Tensor:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MODE, "off")
        return type_.decode(fields, columns, dtype=dtype)


def assert_same_bits(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.dtype == expected.dtype
    assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8))


@by_type
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "columns"), [(1, 512), (2, 256), (3, 1024), (1025, 256), (300, 4096), (17, 768)])
def test_writes_the_same_bits(
    type_: TensorType, dtype: torch.dtype, rows: int, columns: int, required: None, calls: list[int]
) -> None:
    fields = fields_of(type_, rows, columns)
    assert_same_bits(type_.decode(fields, columns, dtype=dtype), by_operations(type_, fields, columns, dtype))
    assert calls


@by_type
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("batch", [1, 3, 40])
@pytest.mark.parametrize(("rows", "columns"), [(300, 4096), (4099, 1024), (7, 256)])
def test_packed_layers(
    type_: TensorType, threads: int, batch: int, rows: int, columns: int, required: None, calls: list[int]
) -> None:
    """Kernels decode for several threads, each of which multiplies its rows."""
    layer, x = Linear(columns, rows, type_), torch.randn(batch, columns, generator=torch.Generator().manual_seed(1))
    fields = fields_of(type_, rows, columns)
    layer.weight.copy_(type_.packed(fields))
    weights, before = by_operations(type_, fields, columns, torch.float32), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.no_grad():
            for dtype, error in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)):
                expected = x.to(dtype).float() @ weights.to(dtype).float().T
                assert float((layer(x.to(dtype)).float() - expected).abs().max() / expected.abs().max()) < error
    finally:
        torch.set_num_threads(before)
    assert calls


@by_type
def test_writes_only_into_its_destination(type_: TensorType, required: None, calls: list[int]) -> None:
    """Pairs of float32 are written only where a pair may begin."""
    fields, memory = fields_of(type_, 43, 256), torch.full((45 * 256,), 7.0)
    expected = by_operations(type_, fields, 256, torch.float32)
    for first in range(4):
        memory.fill_(7.0)
        type_.decode(fields, 256, out=memory[first : first + 43 * 256].view(43, 256))
        assert_same_bits(memory[first : first + 43 * 256].view(43, 256), expected)
        assert torch.equal(torch.cat((memory[:first], memory[first + 43 * 256 :])), torch.full((512,), 7.0))
    assert len(calls) == (2 if type_ is KINDS[2] else 4)


@by_type
def test_reads_files_and_parts_of_tensors(type_: TensorType, required: None, calls: list[int], tmp_path: Path) -> None:
    weights = torch.randn(64, 1024, generator=torch.Generator().manual_seed(0))
    path = tmp_path / ("m.gguf" if type_ is KINDS[0] else "m.glft")
    save_file({"w": weights, "v": weights[:8] + 1}, path, schemes={"*": type_.scheme})
    expected = type_.round_trip(weights, "w")
    for mmap in (True, False):
        with glft_schema.open(path, mmap=mmap) as file:
            tensor = file.tensors["w"]
            assert_same_bits(tensor.dequantize(), expected)
            assert_same_bits(tensor[3:60:7, 256:768], expected[3:60:7, 256:768].contiguous())
            assert_same_bits(tensor[5], expected[5])
            assert_same_bits(torch.cat(list(tensor.chunks(4096))).view(64, 1024), expected)
            out = torch.empty(64, 1024)
            assert file.get_tensor("w", out=out) is out
            assert_same_bits(out, expected)
    assert calls


def test_tensors_of_another_layout_are_decoded_by_operations(required: None, calls: list[int]) -> None:
    type_ = KINDS[0]
    fields = fields_of(type_, 8, 256)
    kernel = find(decoder("q4_k", type_.formula, 256))
    assert kernel
    out = torch.empty(8, 256)
    given = list(type_.columns(fields).values())
    assert kernel.bound([*given, out])
    wrong = [
        [*given, out.double()],
        [*given, torch.empty(8, 255)],
        [*given, torch.empty(256, 8).T],
        [*given, out[:7]],
        [*given, out.to("meta")],
        [*given[:-1], out],
        [given[0].float(), *given[1:], out],
        [given[0].clone(), *given[1:], out],  # other strides
        [given[1], given[0], *given[2:], out.requires_grad_()],
        [*(field[:1] for field in given), torch.empty(1, 256)],
        [torch.nn.Parameter(given[0], requires_grad=False), *given[1:], torch.empty(8, 256)],
    ]
    calls.clear()
    assert [kernel.bound(tensors) for tensors in wrong] == [None] * len(wrong)
    single = {"blocks": fields["blocks"][:1]}
    assert_same_bits(type_.decode(single, 256), by_operations(type_, single, 256, torch.float32))
    assert_same_bits(type_.decode(fields, 256, dtype=torch.float64), by_operations(type_, fields, 256, torch.float64))
    assert not calls


@by_type
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_any_number_of_threads(type_: TensorType, threads: int, required: None) -> None:
    fields, before = fields_of(type_, 1 << 10, 1 << 10), torch.get_num_threads()
    expected = by_operations(type_, fields, 1 << 10, torch.float32)
    torch.set_num_threads(threads)
    try:
        assert_same_bits(type_.decode(fields, 1 << 10), expected)
    finally:
        torch.set_num_threads(before)
    assert threads == 1 or workers._POOLS[threads]._max_workers == threads


def test_many_threads_at_once(required: None) -> None:
    given = [(type_, fields_of(type_, 256, 1024)) for type_ in KINDS]
    expected = [by_operations(type_, fields, 1024, torch.bfloat16) for type_, fields in given]
    in_use.forget_kernels()  # they are also loaded at once
    wrong: list[object] = []

    def work(number: int) -> None:
        for turn in range(20):
            which = (number + turn) % len(given)
            type_, fields = given[which]
            try:
                assert_same_bits(type_.decode(fields, 1024, dtype=torch.bfloat16), expected[which])
            except BaseException as error:
                wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


class Rows(torch.utils.data.Dataset[torch.Tensor]):
    def __init__(self, path: Path) -> None:
        self.file = glft_schema.open(path)

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.file.tensors["w"][4 * index : 4 * index + 4]


@pytest.mark.parametrize("way", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of fork in a process with threads
def test_in_workers_of_a_loader(way: str, required: None, tmp_path: Path) -> None:
    weights = torch.randn(64, 256, generator=torch.Generator().manual_seed(0))
    save_file({"w": weights}, tmp_path / "m.glft", schemes={"*": "q4_per_group_64"})
    expected = KINDS[2].round_trip(weights, "w")
    data = torch.utils.data.DataLoader(Rows(tmp_path / "m.glft"), 4, num_workers=2, multiprocessing_context=way)
    assert_same_bits(torch.cat([batch.flatten(0, 1) for batch in data]), expected)


def test_after_fork_while_kernels_run(required: None) -> None:
    """A forked process has neither its parent's threads nor the kernels that they were running.

    It runs in a process that coverage does not watch: coverage's own lock may be held in the fork.
    Operations of torch itself may wait there for ever, so the bytes are compared without torch.
    """
    code = """
import os, threading
from multiprocessing import get_context

import torch
from glft_schema.tensor_types.ggml import GGML_TYPES

torch.set_num_threads(2)
type_, columns, done = GGML_TYPES["Q4_K"], 1 << 10, threading.Event()
fields = type_.encode(torch.randn(1 << 10, columns), "w")
mode = os.environ["GLFT_KERNELS"]
os.environ["GLFT_KERNELS"] = "off"
expected = type_.decode(fields, columns).numpy().tobytes()
os.environ["GLFT_KERNELS"] = mode

def keep_busy():
    while not done.is_set():
        type_.decode(fields, columns)

def work():
    assert type_.decode(fields, columns).numpy().tobytes() == expected

threads = [threading.Thread(target=keep_busy) for _ in range(3)]
for thread in threads:
    thread.start()
for _ in range(20):
    process = get_context("fork").Process(target=work)
    process.start()
    process.join(60)
    print(process.exitcode)
    process.kill()
done.set()
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n" * 20, "")


def test_as_the_interpreter_exits(folder: Path) -> None:
    code = """
import atexit, torch
from glft_schema.tensor_types.ggml import GGML_TYPES

torch.set_num_threads(2)
type_, weights = GGML_TYPES["Q4_K"], torch.randn(1 << 10, 1 << 10)
fields = type_.encode(weights, "w")
expected = type_.decode(fields, 1 << 10)
atexit.register(lambda: print(torch.equal(type_.decode(fields, 1 << 10), expected)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


def test_threads_that_cannot_be_started(required: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container with a limit of threads: the others do the work."""
    type_, columns, before = KINDS[0], 1 << 10, torch.get_num_threads()
    fields = fields_of(type_, 1 << 10, columns)
    expected = by_operations(type_, fields, columns, torch.float32)
    start = threading.Thread.start

    def start_two(self: threading.Thread) -> None:
        if sum(thread.name.startswith("glft_schema") for thread in threading.enumerate()) == 2:
            raise RuntimeError("can't start new thread")
        start(self)

    for pool in workers._POOLS.values():
        pool.shutdown()
    workers.forget_threads()
    monkeypatch.setattr(threading.Thread, "start", start_two)
    torch.set_num_threads(8)
    try:
        for _ in range(20):
            assert_same_bits(type_.decode(fields, columns), expected)
        assert workers._POOLS[8]._max_workers == 2
    finally:
        torch.set_num_threads(before)
        workers.forget_threads()


def test_half_precision_that_a_kernel_does_not_take(required: None) -> None:
    """Memory at an odd address, a subclass of tensors, and a parameter: operations write them."""
    type_ = KINDS[0]
    fields = fields_of(type_, 8, 256)
    expected = by_operations(type_, fields, 256, torch.bfloat16)
    odd = torch.frombuffer(bytearray(8 * 256 * 2 + 1), dtype=torch.bfloat16, offset=1).view(8, 256)
    parameter = torch.nn.Parameter(torch.zeros(8, 256, dtype=torch.bfloat16), requires_grad=False)
    for out in (odd, parameter):
        assert torch.equal(type_.decode(fields, 256, out=out), expected)


def test_a_missing_kernel_is_an_error_if_required(required: None) -> None:
    type_ = GGML_TYPES["Q8_0"]
    with pytest.raises(
        OptionError, match="GLFT_KERNELS is require, but the kernel q8_0 cannot be used: run glft kernels build"
    ):
        type_.decode(fields_of(type_, 4, 64), 64)


def test_an_unknown_mode_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MODE, "yes")
    with pytest.raises(OptionError, match="expected GLFT_KERNELS as auto, off or require, found 'yes'"):
        KINDS[0].decode(fields_of(KINDS[0], 4, 256), 256)
