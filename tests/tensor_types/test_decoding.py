"""The compiled library and numpy decode to the same bits, in any thread, process
and memory."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

import glft_schema
from glft_schema import save_file
from glft_schema.tensor_types import TensorType, on_torch, running, workers
from glft_schema.tensor_types.ggml import GGML_TYPES
from glft_schema.tensor_types.library.loading import MODE, function_of
from glft_schema.tensor_types.symmetric import Q4_PER_GROUP_64, Q8_PER_CHANNEL
from tests.tools.depth import in_full

TYPES = (GGML_TYPES["Q4_K"], Q8_PER_CHANNEL, Q4_PER_GROUP_64)  # blocks; a scale per row; a scale per group
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)  # the library writes all but the last
by_type = pytest.mark.parametrize("type_", TYPES, ids=str)
Fields = dict[str, torch.Tensor]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few weights are worth a thread."""
    monkeypatch.setattr(running, "LEAST", 1 << 14)


@pytest.fixture(params=["library", "numpy"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How this process and new ones decode."""
    monkeypatch.delenv(MODE, raising=False)
    if request.param == "numpy":
        monkeypatch.setenv(MODE, "off")
    elif function_of("q4_k", "float32") is None:
        pytest.skip("the decoders are not compiled, or from other sources")
    return str(request.param)


@pytest.fixture
def calls(way: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Asserts that the library is called, or is not."""
    found: list[str] = []

    def counted(scheme: str, dtype: str) -> object:
        function = function_of(scheme, dtype)
        return function and (lambda *arguments: (found.append(scheme), function(*arguments)))

    monkeypatch.setattr(running, "function_of", counted)
    yield
    assert bool(found) == (way == "library")


@pytest.fixture
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """Threads that torch uses, 2 by default."""
    before, number = torch.get_num_threads(), getattr(request, "param", 2)
    torch.set_num_threads(number)
    yield number
    torch.set_num_threads(before)


def fields_of(type_: TensorType, rows: int, columns: int) -> Fields:
    """Returns rows drawn from a few that are encoded."""
    random = torch.Generator().manual_seed(rows)
    drawn = torch.randint(16, (rows,), generator=random)
    return {name: field[drawn] for name, field in encoded(type_, torch.randn(16, columns, generator=random)).items()}


def encoded(type_: TensorType, weights: torch.Tensor) -> Fields:
    return {name: torch.from_numpy(field) for name, field in type_.encode(weights, "w").items()}


def expected_of(type_: TensorType, fields: Fields, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Returns the weights by gguf-py, or by codes times scales in numpy."""
    if type_.block:
        weights = dequantize(fields["blocks"].numpy(), GGMLQuantizationType[type_.name])
    else:
        if (codes := fields.get("codes")) is None:
            codes = torch.stack((fields["nibbles"] << 4, fields["nibbles"]), 2).flatten(1).view(torch.int8) >> 4
        scales = fields["scales"].float().numpy()
        weights = codes.numpy().astype(np.float32) * scales.repeat(codes.shape[1] // scales.shape[1], 1)
    return torch.from_numpy(weights).to(dtype)


def assert_same_bits(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.dtype == expected.dtype
    assert torch.equal(found.contiguous().view(torch.uint8), expected.contiguous().view(torch.uint8))


@by_type
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("rows", "columns"),
    [
        *((1, 512), (1025, 256)),
        *(pytest.param(*dims, marks=pytest.mark.full) for dims in ((2, 256), (3, 1024), (300, 4096), (17, 768), (5000, 2048))),
    ],
)
def test_weights(type_: TensorType, dtype: torch.dtype, rows: int, columns: int, calls: None) -> None:
    fields = fields_of(type_, rows, columns)
    assert_same_bits(on_torch.decode(type_, fields, columns, dtype=dtype), expected_of(type_, fields, dtype))


def at_odd_address(tensor: torch.Tensor) -> torch.Tensor:
    memory = bytearray(1) + bytearray(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return torch.frombuffer(memory, dtype=tensor.dtype, offset=1).view(tensor.shape)


@by_type
def test_reads_at_any_address_and_writes_only_into_its_destination(type_: TensorType, calls: None) -> None:
    fields, memory = fields_of(type_, 43, 256), torch.full((45 * 256,), 7.0)
    moved, out = {name: at_odd_address(field) for name, field in fields.items()}, memory[3 : 3 + 43 * 256].view(43, 256)
    assert on_torch.decode(type_, moved, 256, out=out) is out
    assert_same_bits(out, expected_of(type_, fields))
    assert torch.equal(torch.cat((memory[:3], memory[3 + 43 * 256 :])), torch.full((512,), 7.0))


class Subclass(torch.Tensor):
    pass


def test_memory_of_any_kind(way: str) -> None:
    """Nothing is written into a tensor without memory."""
    type_, fields = TYPES[0], fields_of(TYPES[0], 8, 256)
    for dtype in DTYPES:
        zeros = torch.zeros(8, 256, dtype=dtype)
        for out in (at_odd_address(zeros), zeros.clone().as_subclass(Subclass), torch.nn.Parameter(zeros, requires_grad=False)):
            assert on_torch.decode(type_, fields, 256, out=out) is out
            assert torch.equal(out.data.as_subclass(torch.Tensor), expected_of(type_, fields, dtype))
    found = on_torch.decode(type_, {name: field.to("meta") for name, field in fields.items()}, 256)
    assert (found.device.type, found.shape) == ("meta", (8, 256))


@by_type
@pytest.mark.parametrize("threads", [1, in_full(2), 4], indirect=True)
@pytest.mark.parametrize("inference", [False, True])
def test_any_number_of_threads(type_: TensorType, inference: bool, threads: int, way: str) -> None:
    fields = fields_of(type_, 1 << 9, 1 << 8)
    with torch.inference_mode(inference):
        for dtype in (torch.float32, torch.float64):
            assert_same_bits(on_torch.decode(type_, fields, 1 << 8, dtype=dtype), expected_of(type_, fields, dtype))
    assert threads == 1 or way == "numpy" or len(workers._POOLS[threads, True].threads) == threads


def test_many_threads_at_once(threads: int, way: str, request: pytest.FixtureRequest) -> None:
    given = [(type_, fields_of(type_, 256, 256)) for type_ in TYPES] * (80 if request.config.getoption("full") else 8)
    expected = [expected_of(*each, torch.bfloat16) for each in given[:3]]
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda each: on_torch.decode(*each, 256, dtype=torch.bfloat16), given)
        for number, weights in enumerate(found):
            assert_same_bits(weights, expected[number % 3])


class Rows(torch.utils.data.Dataset[torch.Tensor]):
    def __init__(self, path: Path) -> None:
        self.tensor = glft_schema.open(path).tensors["w"]

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.tensor[4 * index : 4 * index + 4]


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.full)])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of fork in a process with threads
def test_workers_of_a_loader(start: str, threads: int, way: str, tmp_path: Path) -> None:
    """Also those that are forked after threads of this process have decoded."""
    type_, weights = TYPES[2], torch.randn(64, 4096, generator=torch.Generator().manual_seed(0))
    save_file({"w": weights}, tmp_path / "m.glft", schemes={"*": type_.scheme})
    expected, rows = expected_of(type_, encoded(type_, weights)), Rows(tmp_path / "m.glft")
    assert_same_bits(rows.tensor.dequantize(), expected)
    data = torch.utils.data.DataLoader(rows, 4, num_workers=2, multiprocessing_context=start)
    assert_same_bits(torch.cat([batch.flatten(0, 1) for batch in data]), expected)


def run_alone(code: str) -> str:
    """Returns the output of a process without coverage, whose lock may be held in a fork."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    return done.stdout + done.stderr


@pytest.mark.full
def test_forks_while_threads_decode(way: str) -> None:
    """A forked process has neither its parent's threads nor the functions that they were running.

    Operations of torch itself may wait there for ever, so the bytes are compared without torch.
    """
    code = """
import threading
from multiprocessing import get_context

import torch
from glft_schema.tensor_types.ggml import GGML_TYPES

torch.set_num_threads(2)
type_, columns, done = GGML_TYPES["Q4_K"], 1 << 10, threading.Event()
fields = type_.encode(torch.randn(1 << 10, columns), "w")
expected = type_.decode(fields, columns).tobytes()

def keep_busy():
    while not done.is_set():
        type_.decode(fields, columns)

def work():
    assert type_.decode(fields, columns).tobytes() == expected

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
    assert run_alone(code) == "0\n" * 20


@pytest.mark.full
def test_as_the_interpreter_exits(way: str) -> None:
    code = """
import atexit, numpy as np, torch
from glft_schema.tensor_types.ggml import GGML_TYPES

torch.set_num_threads(2)
type_, weights = GGML_TYPES["Q4_K"], torch.randn(1 << 10, 1 << 10)
fields = type_.encode(weights, "w")
expected = type_.decode(fields, 1 << 10)
atexit.register(lambda: print(np.array_equal(type_.decode(fields, 1 << 10), expected)))
"""
    assert run_alone(code) == "True\n"


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_torchs_defaults_do_not_matter(dtype: torch.dtype, way: str) -> None:
    fields = fields_of(TYPES[0], 40, 256)
    expected = expected_of(TYPES[0], fields, torch.float64)
    torch.set_default_dtype(dtype)
    try:
        with torch.device("meta"):
            found = on_torch.decode(TYPES[0], fields, 256, dtype=torch.float64)
    finally:
        torch.set_default_dtype(torch.float32)
    assert_same_bits(found, expected)


def test_fields_and_memory_of_other_shapes_are_refused(way: str) -> None:
    fields = fields_of(Q8_PER_CHANNEL, 4, 64)
    floats = {**fields, "scales": fields["scales"].float()}
    for given, columns, out, problem in (
        (fields, 128, None, "expected codes as [4, 128], found [4, 64]"),
        (floats, 64, None, "expected scales as float16, found float32"),
        (fields, 64, torch.zeros(8, 64), "expected scales as [8, 1], found [4, 1]"),
        (fields, 64, torch.zeros(4, 100), "expected weights [4, 64], found [4, 100]"),
        (fields, 64, torch.zeros(4, 100)[:, :64], "expected a contiguous out, found strides (400, 4)"),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(problem)}"):
            on_torch.decode(Q8_PER_CHANNEL, given, columns, out=out)
    with pytest.raises(glft_schema.FormatError, match="expected a row length that is a multiple of 256, found 250"):
        on_torch.decode(TYPES[0], fields_of(TYPES[0], 4, 256), 250)


def test_autograd_sees_what_is_written(way: str) -> None:
    factor, weights = torch.ones(4, 64, requires_grad=True), torch.ones(4, 64)
    total = (factor * weights).sum()
    on_torch.decode(Q8_PER_CHANNEL, fields_of(Q8_PER_CHANNEL, 4, 64), 64, out=weights)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()


@pytest.mark.long
@pytest.mark.parametrize("what", ["a slice", in_full("float64")])
def test_in_a_fork_after_torch_has_used_threads(what: str, way: str) -> None:
    code = f"""
import os, numpy as np, torch
from glft_schema.tensor_types.ggml import GGML_TYPES
torch.set_num_threads(2)
type_, columns = GGML_TYPES["Q8_0"], 1 << 10
blocks = torch.randint(0, 60, (600, type_.nbytes([1, 2 * columns])), dtype=torch.uint8).numpy()
blocks = blocks[:, :type_.nbytes([1, columns])] if {what == "a slice"} else blocks[:, :type_.nbytes([1, columns])].copy()
dtype = np.float32 if {what == "a slice"} else np.float64
torch.ones(1 << 22).add_(1)
expected = type_.decode({{"blocks": blocks}}, columns, dtype=dtype).tobytes()
child = os.fork()
if not child:
    os._exit(int(type_.decode({{"blocks": blocks}}, columns, dtype=dtype).tobytes() != expected))
print(os.waitpid(child, 0)[1])
"""
    assert run_alone(code) == "0\n"
