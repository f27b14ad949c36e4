"""The declaration of safetensors against the safetensors library 0.8."""

from __future__ import annotations

import json
import tracemalloc
from collections import Counter
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any

import pytest
import safetensors
import safetensors.torch
import torch
from hypothesis import settings

import glft_schema
from glft_schema import Container, FormatError, LimitError, Limits, lazy
from glft_schema.errors import Finding, TensorError
from glft_schema.files.file import File
from glft_schema.files.parsing import check_rules, trace_fields
from glft_schema.formats.safetensors import SAFETENSORS, TYPES
from glft_schema.storage.torch_tensors import dtype_in_torch
from glft_schema.tensor_types.copied import F4
from tests.formats.safetensors_files import BITS, file_of, random_file
from tests.tools.depth import in_full

FILES = {25: 500, 300: 2000}.get(settings().max_examples, settings().max_examples)  # random files, more by default
MOST = (1 << 64) - 1
EXPLAINED = 0.05  # at most this part of random files is refused by this package only

ONE = '"dtype":"F32","shape":[1],"data_offsets":[0,4]'
A = f'"a":{{{ONE}}}'
EMPTY = '"e":{"dtype":"F32","shape":[0],"data_offsets":[%d,%d]}'
END = "expected the offset plus the bytes of such a tensor"
UNKNOWN = f'{{"a":{{{ONE},"x":%s}}}}'


def in_library(stored: bytes) -> dict[str, tuple[str, list[int], bytes]] | None:
    """Returns dtype, shape and payload of each tensor, or None if the library refuses the file."""
    try:
        found = safetensors.deserialize(stored)
    except safetensors.SafetensorError:
        return None
    return {name: (tensor["dtype"], tensor["shape"], bytes(tensor["data"])) for name, tensor in found}


def in_file(file: File) -> dict[str, tuple[str, list[int], bytes]]:
    """Returns dtype, shape as stored, and payload of each tensor."""
    found = {}
    for name, tensor in file.tensors.items():
        shape = list(tensor.shape)
        if tensor.type is F4:
            shape[-1] *= 2
        found[name] = (tensor.type.name, shape, bytes(tensor.raw))
    return found


def broken(stored: bytes) -> list[Finding]:
    return check_rules(Container.parse(stored), ("spec", "rust"))


def is_explained(error: FormatError) -> bool:
    """Tells whether only this package refuses the file: it holds tensors that torch could not."""
    return isinstance(error, LimitError) or "overflows 64 bits" in error.problem or "share a byte" in error.problem


@pytest.mark.fuzz
def test_the_library_and_this_package_accept_the_same_files(record_property: Any) -> None:
    verdicts: Counter[str] = Counter()
    for seed in range(FILES):
        stored = random_file(Random(seed))
        theirs = in_library(stored)
        try:
            file = Container.parse(stored)
        except FormatError as error:
            assert theirs is None or is_explained(error), (seed, stored, error)
            verdicts["refused" if theirs is None else "only here"] += 1
            continue
        assert Container.build(file) == stored, seed
        follows = not any("rust" in finding.sets for finding in check_rules(file, "rust"))
        assert follows == (theirs is not None), (seed, stored, check_rules(file, "rust"))
        assert theirs is None or in_file(file) == theirs, (seed, stored)
        assert max(span.end or 0 for span in trace_fields(file)) == len(stored), seed
        verdicts["accepted" if follows else "found"] += 1
    record_property("verdicts", dict(verdicts))
    assert verdicts["only here"] < EXPLAINED * FILES
    assert min(verdicts["accepted"], verdicts["refused"]) > FILES // 5
    assert verdicts["found"] > FILES // 100


@pytest.mark.parametrize(
    ("header", "data", "rules"),
    [
        (f"{{{A}}}", 4, ""),
        ("{}", 0, ""),
        (f"{{{A}}}   ", 4, ""),
        (f" {{{A}}}", 4, "safetensors-brace"),
        (f"{{{A}}}\n", 4, "safetensors-padding"),
        (f"{{{A},{A}}}", 4, "safetensors-names-once"),
        (f'{{{A.replace("[1]", "[7]")},{A}}}', 4, "safetensors-names-once"),
        (f'{{"__metadata__":{{"x":"1","x":"2"}},{A}}}', 4, "safetensors-metadata-keys-once"),
        (f'{{"__metadata__":null,{A}}}', 4, "safetensors-metadata-object"),
        (f'{{"__metadata__":{{}},{A},"__metadata__":{{}}}}', 4, "safetensors-metadata-once rust"),
        (UNKNOWN % "1", 4, "safetensors-known-keys"),
        (UNKNOWN % ("[" * 125 + "]" * 125), 4, "safetensors-known-keys"),
        (UNKNOWN % ("[" * 126 + "]" * 126), 4, "safetensors-known-keys, safetensors-nesting rust"),
        (f'{{"a":{{{ONE},"shape":[1]}}}}', 4, "safetensors-keys-once rust"),
        ('{"a":["F32",[1],[0,4]]}', 4, "safetensors-plain-entries"),
        (f'{{"a":{{{ONE}}}}}'.replace('"F32"', '{"F32":null}'), 4, "safetensors-plain-entries"),
        (f"{{{A}}}".replace("[0,4]", "[1,5]"), 5, "safetensors-contiguous rust"),
        (f'{{{A},{A.replace("a", "b", 1)}}}', 4, "safetensors-contiguous rust"),
        (f"{{{A},{EMPTY % (2, 2)}}}", 4, "safetensors-contiguous rust"),
        (f"{{{EMPTY % (4, 4)},{A},{EMPTY.replace('e', 'f', 1) % (0, 0)}}}", 4, ""),
        (f"{{{A}}}", 5, "safetensors-end rust"),
    ],
)  # fmt: skip
def test_rules_of_the_readme_and_of_the_library(header: str, data: int, rules: str) -> None:
    stored = file_of(header, bytes(data))
    findings = broken(stored)
    assert ", ".join(finding.rule + " rust" * ("rust" in finding.sets) for finding in findings) == rules
    assert all(finding.offset is not None and finding.offset >= 8 for finding in findings)
    assert (in_library(stored) is not None) == ("rust" not in rules)
    assert Container.build(Container.parse(stored)) == stored
    for finding in findings:
        with pytest.raises(FormatError) as caught:
            Container.build(Container.parse(stored), rules=finding.sets)
        assert caught.value.rule == next(first.rule for first in findings if set(first.sets).intersection(finding.sets))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[0,4]", "[0,8]", f"tensor_infos -> 0 -> end: {END}, 4, found 8 (tensor 'a', at byte 58)"),
        ("F32", "F33", f"tensor_infos -> 0 -> dtype: expected {TYPES}, found 'F33' (tensor 'a', at byte 22)"),
        ("F32", "f32", f"tensor_infos -> 0 -> dtype: expected {TYPES}, found 'f32' (tensor 'a', at byte 22)"),
    ],
)
def test_files_that_are_refused(old: str, new: str, message: str) -> None:
    stored = file_of(f"{{{A}}}".replace(old, new), bytes(4))
    with pytest.raises(FormatError) as caught:
        Container.parse(stored)
    assert (str(caught.value), in_library(stored)) == (message, None)


def test_a_payload_past_the_end() -> None:
    with pytest.raises(FormatError) as caught:
        Container.parse(file_of(f"{{{A}}}", bytes(3)))
    problem = "the file is truncated: 65 of 66 bytes (98.5 %), 0 of 1 tensor complete; download the rest"
    assert str(caught.value) == f"data -> 'a' -> weights: {problem} (tensor 'a', at byte 62)"


@pytest.mark.long  # the limit is 100 MB, so the header is
@pytest.mark.parametrize(("size", "rules"), [(100_000_001, ["safetensors-header-size"]), in_full((100_000_000, []))])
def test_headers_of_100_megabytes(size: int, rules: list[str]) -> None:
    stored = file_of(b"{}" + b" " * (size - 2))
    assert [finding.rule for finding in broken(stored)] == rules
    assert (in_library(stored) is not None) == (not rules)


def header_of(dtype: str, shape: Sequence[int], nbytes: int) -> str:
    return json.dumps({"a": {"dtype": dtype, "shape": shape, "data_offsets": [0, nbytes]}})


@pytest.mark.parametrize(
    ("dtype", "shape", "nbytes"),
    [("F32", [MOST, 0], 0), ("F32", [0, MOST, 2], 0), ("F4", [2, 3], 3), ("F4", [0, 1], 0)],
)
def test_tensors_that_torch_cannot_hold_are_refused(dtype: str, shape: list[int], nbytes: int, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(file_of(header_of(dtype, shape, nbytes), bytes(nbytes)))
    with pytest.raises(FormatError, match=r"overflows 64 bits|share a byte"):
        glft_schema.open(path)
    with safetensors.safe_open(path, "pt") as opened, pytest.raises(Exception, match=r"torch|overflow|range|F4"):
        opened.get_tensor("a")


@pytest.mark.parametrize(
    ("shape", "opens", "library_opens"),  # as the page says
    [
        ((1 << 58, 0), True, True),
        ((1 << 59, 0), False, True),
        ((0, 1 << 40, 1 << 40), False, True),
        ((0, 1 << 32, 1 << 31), False, True),
        ((1 << 63, 0), False, True),
        ((1 << 32, 1 << 32, 0), False, False),
    ],
)
def test_large_shapes_of_no_elements(shape: tuple[int, ...], opens: bool, library_opens: bool) -> None:
    stored = file_of(header_of("F32", shape, 0))
    assert (in_library(stored) is not None) == library_opens
    if opens:
        assert Container.parse(stored).get_tensor("a").shape == shape
    else:
        with pytest.raises(FormatError, match=r"the size in bytes of dims \[.*\] overflows 64 bits"):
            Container.parse(stored)


def samples() -> dict[str, torch.Tensor]:
    """Returns a tensor of each dtype that the library writes, and some of other shapes."""
    tensors = {
        f"{type_}.ä\n\x01\x7f\u2028": torch.arange(48, dtype=torch.uint8).view(dtype_in_torch(type_.dtype)).reshape(2, -1)
        for type_ in TYPES
        if not type_.bytes_only
    }
    return tensors | {"scalar": torch.tensor(1.0), "": torch.zeros(0, 3), "z": torch.ones(1, 2, 3, dtype=torch.bool)}


def built(tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None) -> bytes:
    types = {dtype_in_torch(type_.dtype): type_ for type_ in TYPES if not type_.bytes_only}
    rows = [{"name": name, "dims": list(tensor.shape), "dtype": types[tensor.dtype]} for name, tensor in tensors.items()]
    table = {"tensor_infos": sorted(rows, key=SAFETENSORS.order), "data": {n: {"weights": t} for n, t in tensors.items()}}
    return bytes(Container.build({"format": "safetensors", "metadata": metadata, **table}, rules=("spec", "rust")))


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}, {'"ä\\/\n\x01\x7f': "\t\b\f\u2028😀"}])
def test_new_files_are_those_of_the_library(metadata: dict[str, str] | None) -> None:
    for tensors in (samples(), *({name: tensor} for name, tensor in samples().items())):
        assert built(tensors, metadata) == safetensors.torch.save(tensors, metadata)


def test_all_dtypes_of_the_library() -> None:
    with pytest.raises(safetensors.SafetensorError, match="expected one of `BOOL`") as caught:
        safetensors.deserialize(file_of('{"a":{"dtype":"","shape":[0],"data_offsets":[0,0]}}'))
    assert str(caught.value).split("`")[3::2] == [type_.name for type_ in TYPES]
    for type_ in TYPES:
        dims = [2, 2] if type_ is F4 else [2, 4]  # torch counts bytes
        assert type_.nbytes(dims) == BITS[type_.name]
        assert (type_.bytes_only is None) == (not type_.name.startswith("F6_"))


def test_values_are_those_of_the_library(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    safetensors.torch.save_file(samples(), path)
    with glft_schema.open(path) as file, safetensors.safe_open(path, "pt") as theirs:
        assert set(file.tensors) == set(theirs.keys())
        for name in {*file.tensors} - {name for name in file.tensors if name.startswith("F4.")}:
            torch.testing.assert_close(file.get_tensor(name), theirs.get_tensor(name), rtol=0, atol=0, equal_nan=True)


def test_f4_comes_in_pairs() -> None:
    """The library 0.8 writes F4 with a shape in weights, and cannot load it."""
    codes = torch.arange(12, dtype=torch.uint8).reshape(3, 4)
    stored = safetensors.torch.save({"a": codes.view(torch.float4_e2m1fn_x2)})
    assert b'"shape":[3,8]' in stored
    with pytest.raises(KeyError):
        safetensors.torch.load(stored)
    tensor = Container.parse(stored).tensors["a"]
    assert (tensor.type, tensor.shape, tensor.nbytes) == (F4, (3, 4), 12)
    assert tensor.dequantize().dtype == torch.float4_e2m1fn_x2
    assert torch.equal(tensor.dequantize().view(torch.uint8), codes)
    assert torch.equal(tensor[1:, 1:3].view(torch.uint8), codes[1:, 1:3])


def test_f6_is_copied_but_is_no_tensor() -> None:
    header = '{"a":{"dtype":"F6_E2M3","shape":[2,4],"data_offsets":[0,6]}}'
    tensor = Container.parse(file_of(header, b"abcdef")).tensors["a"]
    assert (bytes(tensor.raw), b"".join(tensor.pieces()), tensor.nbytes) == (b"abcdef", b"abcdef", 6)
    rows = [{"name": "b", "dims": tensor.dims, "dtype": "F6_E2M3"}]
    copy = Container.build({"format": "safetensors", "tensor_infos": rows, "data": {"b": tensor}})
    assert in_library(copy) == {"b": ("F6_E2M3", [2, 4], b"abcdef")}
    problem = "neither numpy nor torch has float6_e2m3fn: F6_E2M3 can be copied and hashed only"
    for values in (tensor.dequantize, lambda: tensor[0], lambda: tensor.payload, lambda: list(tensor.chunks())):
        with pytest.raises(TensorError, match=f"^tensor 'a': {problem}$"):
            values()
    with pytest.raises(FormatError, match="F6_E3M2: expected numbers of 6 bits that fill whole bytes, found"):
        Container.parse(file_of(header.replace("2M3", "3M2").replace("2,4", "2,3"), b"abcdef"))


def test_a_dtype_that_torch_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch before 2.8 has no float4_e2m1fn_x2."""
    file = Container.parse(safetensors.torch.save({"a": torch.zeros(2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)}))
    monkeypatch.delattr(torch, "float4_e2m1fn_x2")
    monkeypatch.delattr(lazy.torch, "float4_e2m1fn_x2", raising=False)  # it caches attributes
    dtype_in_torch.cache_clear()
    with pytest.raises(TensorError, match=r"^tensor 'a': torch .* has no float4_e2m1fn_x2: F4 can be read by numpy\(\) only$"):
        file.get_tensor("a")
    assert file.tensors["a"].numpy().tolist() == [0.0] * 4
    assert bytes(file.tensors["a"].raw) == bytes(2)


def test_limits_are_not_rules() -> None:
    stored = file_of(f"{{{A}}}", bytes(4))
    for limit in ("metadata", "objects", "dims"):
        with Limits(**{limit: 0}), pytest.raises(LimitError, match=f"limit {limit}"):
            Container.parse(stored)


def long(element: str, nbytes: int) -> str:
    return ",".join([element] * (nbytes // (len(element) + 1)))


# fmt: off
LONG = {
    "offsets":        ('{"a":{"dtype":"F32","shape":[0],"data_offsets":[%s]}}', "0"),
    "shape":          ('{"a":{"dtype":"F32","shape":[%s],"data_offsets":[0,0]}}', "10"),
    "type":           ('{"a":{"dtype":[%s],"shape":[0],"data_offsets":[0,0]}}', "1.5"),
    "texts":          ('{"a":{"dtype":"F32","shape":[0],"data_offsets":[%s]}}', '"xy"'),
    "metadata":       ('{"__metadata__":{"a":[%s]}}', "10"),
    "a row":          ('{"a":[%s]}', "10"),
    "a replaced row": ('{"a":{"dtype":"F32","shape":[0],"data_offsets":[%s]},"a":{}}', "0"),
}
NESTED = {
    "arrays":         ('{"a":{"dtype":"F32","shape":[0],"data_offsets":[%s]}}', "[0]"),
    "an unknown key": ('{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0],"x":[%s]}}', "[]"),
    "objects":        ('{"a":{"dtype":"F32","shape":[0],"data_offsets":[%s]}}', '{"":0}'),
    "members":        ('{"a":{"dtype":"F32","shape":[0],"data_offsets":{%s}}}', '"":0'),
}
# fmt: on


@pytest.mark.parametrize("name", LONG)
def test_long_lists_take_little_memory(name: str) -> None:
    text, element = LONG[name]
    stored = file_of(text % long(element, 100_000), b"")
    tracemalloc.start()
    try:
        with pytest.raises(FormatError):
            Container.parse(stored)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 40 * len(stored)


@pytest.mark.parametrize("name", NESTED)
def test_arrays_and_members_are_counted_before_they_are_decoded(name: str) -> None:
    text, element = NESTED[name]
    with (
        Limits(objects=1000),
        pytest.raises(LimitError, match=r"^tensor_infos: expected at most 1000 tensors, entries and arrays"),
    ):
        Container.parse(file_of(text % long(element, 40_000), b""))


def test_a_row_with_an_end_of_its_own() -> None:
    row = {"name": "a", "dims": [1], "dtype": "F32", "offset": 0, "end": 5}
    with pytest.raises(FormatError, match=r"^tensor_infos -> 0 -> end: expected 4 \(computed from the other fields\), found 5"):
        Container.build_stream({"format": "safetensors", "tensor_infos": [row], "data": {"a": bytes(4)}}, BytesIO())
