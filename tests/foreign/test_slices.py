"""Slices of the same tensors in safetensors, GGUF and GLFT are equal, or refused by both."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file as save_safetensors

import glft_schema
from glft_schema import save_file
from tests.foreign.clients import INDICES, SAFETENSORS, Index
from tests.foreign.conftest import require

SHAPES = ((), (1,), (11,), (5, 7), (4, 0), (5, 7, 3), (2, 1, 3, 4))
TENSORS = {f"w{number}": torch.randn(shape) for number, shape in enumerate(SHAPES)}
numbers = st.integers(-13, 13)
bounds = st.none() | numbers
slices = st.builds(slice, bounds, bounds, st.none() | st.integers(1, 9))
parts = st.one_of(numbers, slices)


@st.composite
def indices(draw: st.DrawFn) -> Any:
    """Integers, slices with steps and at most one ellipsis, alone or in a tuple."""
    made = draw(st.lists(parts, max_size=5))
    if draw(st.booleans()):
        made.insert(draw(st.integers(0, len(made))), ...)
    return made[0] if len(made) == 1 and draw(st.booleans()) else tuple(made)


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    require(SAFETENSORS)
    folder = tmp_path_factory.mktemp("slices")
    save_safetensors(TENSORS, folder / "w.safetensors")
    save_file(TENSORS, folder / "w.gguf", format="gguf")
    save_file(TENSORS, folder / "w.glft")
    with (
        safe_open(folder / "w.safetensors", "pt") as theirs,
        glft_schema.open(folder / "w.gguf") as gguf,
        glft_schema.open(folder / "w.glft") as glft,
    ):
        yield {SAFETENSORS: theirs, "GGUF": gguf, "GLFT": glft}


def part(reader: Any, name: str, index: Any) -> torch.Tensor | str:
    """Returns a slice, or the name of the error."""
    try:
        found = reader.get_slice(name)[index]
    except (IndexError, ValueError) as error:
        return type(error).__name__
    assert isinstance(found, torch.Tensor)
    return found


def same(one: torch.Tensor | str, other: torch.Tensor | str) -> bool:
    if isinstance(one, str) or isinstance(other, str):
        return isinstance(one, str) and one == other
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)


@settings(max_examples=300)
@given(st.sampled_from(list(TENSORS)), indices())
def test_random_indices(readers: dict[str, Any], name: str, index: Any) -> None:
    theirs, *ours = (part(reader, name, index) for reader in readers.values())
    assert all(same(theirs, mine) for mine in ours), (theirs, ours)


@pytest.mark.parametrize("format", ["GGUF", "GLFT"])
@pytest.mark.parametrize("row", INDICES, ids=lambda row: row.kind)
def test_other_kinds_of_index(readers: dict[str, Any], format: str, row: Index) -> None:
    theirs, mine = (part(readers[name], "w5", row.example) for name in (SAFETENSORS, format))
    assert (theirs if isinstance(theirs, str) else tuple(theirs.shape)) == row.they
    assert mine == "IndexError"
