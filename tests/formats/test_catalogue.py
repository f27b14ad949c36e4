"""Catalogues of unusual and bad files: each is read or refused as stated, at little cost."""

from __future__ import annotations

import math
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glft_schema import Container, FormatError, TensorError, TruncatedError
from glft_schema.codec.rules import GGML, REQUIRED, SPEC
from glft_schema.errors import quote
from glft_schema.files.parsing import check_rules
from glft_schema.tensor_types.tensor_type import OpaqueType
from glft_schema.tensors.tensor import Tensor
from tests.catalogue import gguf_cases
from tests.catalogue.__main__ import HUGE, READ, REFUSED, results
from tests.catalogue.cases import Read, Refused
from tests.catalogue.gguf_cases import COUNTS, sized
from tests.catalogue.judging import judged
from tests.oracles import glft_reference as reference
from tests.oracles.peers import gguf

EVERYWHERE = {"architecture", "quantization-version"}  # broken by most of the small files

# llama.cpp's own test files (tests/test-gguf.cpp, without HANDCRAFTED_).
TEST_GGUF_CPP = """
HEADER_BAD_MAGIC HEADER_BAD_VERSION_0 HEADER_BAD_VERSION_1 HEADER_BAD_VERSION_FUTURE HEADER_BAD_N_TENSORS HEADER_BAD_N_KV
HEADER_EMPTY
KV_BAD_KEY_SIZE KV_EMPTY_KEY KV_BAD_TYPE KV_DUPLICATE_KEY KV_BAD_ALIGN KV_WRONG_TYPE_ALIGN KV_SUCCESS
TENSORS_BAD_NAME_SIZE TENSORS_BAD_N_DIMS TENSORS_BAD_SHAPE TENSORS_ZERO_DIM TENSORS_NE_TOO_BIG TENSORS_NBYTES_TOO_BIG
TENSORS_NBYTES_PAD_WRAP TENSORS_BAD_TYPE TENSORS_BAD_OFFSET TENSORS_DUPLICATE_NAME TENSORS_BAD_ALIGN TENSORS_INCONSISTENT_ALIGN
TENSORS_SUCCESS TENSORS_CUSTOM_ALIGN
DATA_NOT_ENOUGH_DATA DATA_BAD_ALIGN DATA_INCONSISTENT_ALIGN DATA_MEM_SIZE_OVERFLOW DATA_SUCCESS DATA_CUSTOM_ALIGN
"""
# In llama.cpp, Ollama, mlx, gguf-tools and openvino. CVE-2024-39721, a device instead of a file, is
# in test_source.py.
VULNERABILITIES = """
CVE-2024-25664 CVE-2024-25665 CVE-2024-25666 CVE-2024-25667 CVE-2024-25668 type-index
CVE-2024-23605 CVE-2024-23496 CVE-2024-21802 CVE-2024-21836 CVE-2024-21825 CVE-2024-32878
CVE-2025-53630 CVE-2026-27940 CVE-2026-33298 oss-security-V-01
CVE-2024-39720 CVE-2024-12055 CVE-2024-8063 CVE-2025-0312 CVE-2025-0315 CVE-2025-0317 CVE-2025-66959 CVE-2025-66960
CVE-2026-7482
CVE-2024-37032 CVE-2024-45436 CVE-2025-62609 mlx#4136 mlx#4213 mlx#4179 gguf-tools#25 openvino#4170
"""
LLAMA_CPP = TEST_GGUF_CPP.split()


@pytest.mark.parametrize("name", REFUSED)
def test_bad_files_are_refused(name: str) -> None:
    case = REFUSED[name]
    with pytest.raises(FormatError) as caught:
        Container.parse(case.stored)
    error = caught.value
    rule = case.rule and f"{name[:4].lower()}-{case.rule}"
    assert (type(error), error.path, error.offset) == (case.error, case.path, case.offset)
    assert (error.tensor, error.key, error.rule) == (case.tensor, case.key, rule)
    assert error.problem.endswith(case.message or "no message")
    named = [f"{what} {quote(name)}" for what, name in (("tensor", case.tensor), ("key", case.key)) if name is not None]
    where = [*named, *([f"limit {error.limit}"] if error.limit else []), f"at byte {case.offset}"]
    assert str(error) == f"{case.path}: {error.problem} ({', '.join(where)})"
    assert str(error).isprintable()
    assert len(str(error)) < 500


@pytest.mark.parametrize("name", READ)
def test_unusual_files_are_read_and_built_back(name: str) -> None:
    case = READ[name]
    file = Container.parse(case.stored)
    assert Container.build(file) == case.stored
    for rules, expected in ((SPEC, case.spec), (GGML, case.ggml)):
        found = check_rules(file, rules)
        broken = {finding.rule.removeprefix(f"{name[:4].lower()}-") for finding in found} - EVERYWHERE
        assert sorted(broken) == expected.split()
    assert check_rules(file, REQUIRED) == []
    for tensor in file.tensors.values():
        assert bytes(tensor.raw) == case.stored[tensor.position : tensor.position + tensor.nbytes]
        if isinstance(tensor.type, OpaqueType):
            with pytest.raises(TensorError, match=r"type \d+ is unknown"):
                tensor.dequantize()
        else:
            assert tuple(tensor.dequantize().shape) == tuple(tensor.shape)
            np.testing.assert_array_equal(tensor.dequantize().flatten(), oracle(name, tensor))


def oracle(name: str, tensor: Tensor) -> Any:
    """Returns a tensor's numbers by the reference reader, `struct` or gguf-py."""
    if name.startswith("GLFT"):
        return reference.numbers(tensor.type.code, list(tensor.dims), bytes(tensor.raw))
    if letter := {"F32": "f", "I8": "b"}.get(tensor.type.name):
        order = "<" if tensor.order == "little" else ">"
        return struct.unpack(f"{order}{math.prod(tensor.shape)}{letter}", tensor.raw)
    return gguf.quants.dequantize(np.frombuffer(tensor.raw, np.uint8), gguf.GGMLQuantizationType(tensor.type.code))


def test_every_known_vulnerability_and_every_file_of_llama_cpp_has_a_case() -> None:
    assert len(LLAMA_CPP) == len(set(LLAMA_CPP)) == 34
    cases: list[Refused | Read] = [*gguf_cases.REFUSED.values(), *gguf_cases.READ.values()]
    assert {name for case in cases for name in case.shows.split()} == {*LLAMA_CPP, *VULNERABILITIES.split()}


@pytest.mark.parametrize(("field", "number", "version"), HUGE)
def test_huge_counts_in_small_files(field: str, number: int, version: int) -> None:
    with pytest.raises(TruncatedError) as caught:
        Container.parse(sized(field, number, version))
    assert caught.value.path == COUNTS[field]


LINUX = pytest.mark.skipif(sys.platform != "linux", reason="memory is read from Linux's /proc")


@pytest.mark.full
@LINUX
def test_no_file_takes_long_or_much_memory() -> None:
    """Each file is read in its own process under the limits of `judging`."""
    for entry, found in results():
        assert (found.end, entry.message in found.text) == (entry.end, True), entry.name


@LINUX
def test_a_reader_that_takes_too_much_is_detected(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"GGUF")
    assert [judge.end for judge in judged([path], "endless", seconds=1)] == ["SIGXCPU"]
    assert [judge.end for judge in judged([path, path], "greedy")] == ["MemoryError"] * 2
