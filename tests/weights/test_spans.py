"""Payloads written in parts: bytes of any span, from any source."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import glft_schema as glft
from glft_schema.codec.context import BIG, LITTLE
from glft_schema.formats.registry import FORMATS
from glft_schema.storage.dtypes import as_dtype, is_float
from glft_schema.storage.torch_tensors import dtype_in_torch
from glft_schema.tensors.stored_tensor import of_file
from glft_schema.weights import payloads
from glft_schema.weights.in_memory import in_memory
from glft_schema.weights.payloads import PlannedPayload
from glft_schema.weights.schemes import TypeChoice
from tests.tools.depth import some_by_default

TYPES = {f"{format.name} {type_}": type_ for format in FORMATS for type_ in format.types if type_.has_encoder}


def joined(pieces: Iterable[tuple[int, memoryview]], first: int, last: int) -> bytes:
    """Returns pieces at their places; no byte is missing or written twice."""
    found, count = bytearray(last - first), 0
    for at, piece in pieces:
        assert first <= at <= at + len(piece) <= last
        found[at - first : at - first + len(piece)] = piece
        count += len(piece)
    assert count == last - first
    return bytes(found)


@pytest.mark.parametrize(
    ("order", "name"),
    [*((LITTLE, name) for name in TYPES), *some_by_default([(BIG, name) for name in TYPES], 7)],
)
def test_any_span_has_the_bytes_of_the_whole(name: str, order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    type_, shape = TYPES[name], (3, 2, 256)
    monkeypatch.setattr(payloads, "PART", 2 * 256)  # two rows at once
    tensor = torch.randn(shape) if is_float(type_.dtype) else torch.arange(1536).view(shape).to(dtype_in_torch(type_.dtype))
    if not type_.takes(as_dtype(tensor.dtype)):
        pytest.skip("takes other dtypes")
    stored = in_memory({"x": tensor})["x"]
    if type_.takes_importance:
        stored = replace(stored, importance=np.random.default_rng(0).random(3 * 256, np.float32) + np.float32(0.1))
    payload = PlannedPayload("x", stored, TypeChoice(type_, "", None), measure=True)
    whole = payload.to_bytes(order)
    error, payload.error = payload.error, None
    for first, last in [(0, len(whole)), (0, 1), (len(whole) - 1, len(whole)), (100, 100), (len(whole) // 3, len(whole) // 2)]:
        assert joined(payload.span(first, last, order), first, last) == whole[first:last]
        if last - first == len(whole):
            assert payload.error == error


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> glft.File:
    path: Path = tmp_path_factory.mktemp("spans") / "m.gguf"
    torch.manual_seed(0)
    tensors = {"a": torch.randn(9, 512), "b": torch.randn(70), "c": torch.randn(3, 4, 32), "d": torch.tensor(2.0)}
    glft.save_file(tensors, path, schemes={"a": "q4_k", "c": "q8_0"})
    return glft.open(path)


@settings(deadline=None)
@given(st.data())
def test_spans_of_copied_and_converted_tensors(file: glft.File, data: st.DataObject) -> None:
    name, scheme = data.draw(st.sampled_from("abcd")), data.draw(st.sampled_from(["q8_0", "f32", "bf16", "same"]))
    tensor, order = file.tensors[name], data.draw(st.sampled_from([LITTLE, BIG]))
    type_ = tensor.type if scheme == "same" else next(t for t in file.format.types if t.scheme == scheme)
    if type_.refusal(tensor.shape):
        return
    payload = PlannedPayload(name, of_file(tensor), TypeChoice(type_, "", None))
    whole = payload.to_bytes(order)
    first, last = sorted(data.draw(st.tuples(*[st.integers(0, len(whole))] * 2)))
    assert joined(payload.span(first, last, order), first, last) == whole[first:last]
