"""`torch.compile` around this package: right values in every call, whatever was read before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import glft_schema as glft
from glft_schema.formats.gguf import GGUF
from glft_schema.formats.glft import GLFT
from glft_schema.tensor_types import TensorType
from glft_schema.tensor_types.ggml import GGML_TYPES
from tests.tools.depth import FULL, some

TYPES = [*(type_ for type_ in GGML_TYPES if not type_.exact), GGML_TYPES["F16"], GGML_TYPES["BF16"], *GLFT.types]
MIXED = [GGML_TYPES["Q4_0"], GGML_TYPES["Q6_K"], GLFT.types["Q4_per_group_64"], GGML_TYPES["F16"]]
DIMS = {"w": [4, 512], "v": [6, 256]}
Read = Callable[[glft.File, str, torch.Tensor], torch.Tensor]

READS: dict[str, Read] = {
    "get_tensor": lambda file, name, zero: file.get_tensor(name) + zero,
    "get_slice": lambda file, name, zero: file.get_slice(name)[1:3, 32:200] + zero,
    "load_file": lambda file, name, zero: glft.load_file(file.name)[name] + zero,
    "dequantize": lambda file, name, zero: file.tensors[name].dequantize(torch.bfloat16) + zero,
    "fields": lambda file, name, zero: sum((part.sum() for part in file.tensors[name].fields.values()), zero),
    "chunks": lambda file, name, zero: sum((part.sum() for part in file.get_slice(name).chunks(300)), zero),
    "open": lambda file, name, zero: glft.open(file.name).get_tensor(name) + zero,
    "header": lambda file, name, zero: zero + file.header.n_tensors + file.tensors[name].nbytes + file.nbytes,
    "metadata": lambda file, name, zero: zero + int(file.metadata["toy.number"]),
    "text": lambda file, name, zero: zero + len(str(file.tensors[name].type) + str(file.header)),
    "type": lambda file, name, zero: zero + (file.tensors[name].type == GGML_TYPES["Q4_0"]),
    "quantize": lambda file, name, zero: glft.lab.fake_quantize(file.get_tensor(name), "f16") + zero,
}


pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),  # from imports of the code generator
    pytest.mark.filterwarnings("ignore:Skipping serialization:UserWarning"),  # torch 2.6's
]


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    """Resets the compiler. A silent fallback to eager after too many graphs is an error."""
    torch._dynamo.reset()
    with torch._dynamo.config.patch(cache_size_limit=1000, fail_on_cache_limit_hit=True):
        yield
    torch._dynamo.reset()


def write(path: Path, type_: TensorType, seed: int) -> Path:
    """Writes a file with two tensors of a type, and a number in its metadata.

    Payloads are random bytes below 60, of which no scale and no float is NaN or infinite.
    """
    rng, format = np.random.default_rng(seed), GLFT if type_ in GLFT.types else GGUF
    payloads = {name: rng.integers(0, 60, type_.nbytes(dims), dtype=np.uint8).tobytes() for name, dims in DIMS.items()}
    rows = [{"name": name, "dims": dims[:: 1 if format is GLFT else -1], "dtype": type_} for name, dims in DIMS.items()]
    regions = {"format": format.name, "metadata": {"toy.number": str(seed)}, format.table: rows, "data": payloads}
    glft.Container.build_file(regions, path)
    return path


def check(read: Callable[..., torch.Tensor], *calls: tuple[Any, ...]) -> None:
    """Compares three compiled calls of each kind with the uncompiled result."""
    compiled, zero = torch.compile(read, backend="eager"), torch.zeros(())  # reads never reach a code generator
    expected = [read(*call, zero) for call in calls]
    for _ in range(3):
        for call, numbers in zip(calls, expected, strict=True):
            assert torch.equal(compiled(*call, zero), numbers), call


@pytest.mark.parametrize("name", READS)
def test_every_way_of_reading_is_right(name: str, tmp_path: Path) -> None:
    """One function for all types: the graph of one type must not run for another."""
    types = TYPES if name in ("get_tensor", "get_slice", "load_file") else some(MIXED, 2)
    files = [glft.open(write(tmp_path / f"{seed}", type_, seed)) for seed, type_ in enumerate(types)]
    calls = [(file, name) for i, file in enumerate(files) for j, name in enumerate(DIMS) if FULL or i % 2 == j]
    check(READS[name], *calls)


def test_a_file_that_a_function_closes_over(tmp_path: Path) -> None:
    for type_ in (GGML_TYPES["Q4_0"], GGML_TYPES["Q4_K"]):
        file = glft.open(write(tmp_path / type_.name, type_, 1))
        check(lambda zero, file=file: file.get_tensor("w") + zero, ())


def test_reading_in_a_single_graph_is_torchs_error(tmp_path: Path) -> None:
    file = glft.open(write(tmp_path / "file", GGML_TYPES["Q4_0"], 1))
    compiled = torch.compile(lambda zero: file.get_tensor("w") + zero, backend="eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported):
        compiled(torch.zeros(()))
