"""The texts of values in errors: bounded, whatever the values are."""

from __future__ import annotations

from collections import OrderedDict, deque
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from glft_schema import Typed
from glft_schema.errors import quote


class Point(NamedTuple):
    x: int


class Broken:
    def __repr__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    "value", [[], (), {}, set(), frozenset(), [1], (1,), (1, "a"), {1}, frozenset([1]), {"a": [1, (b"x",)]}, 1 << 90, True,
              None, 1.5, "a", b"a", Point(3), range(3), torch.float32, torch.ones(2), torch.Size([2, 3]), torch.device("meta"),
              np.array(1.5), np.ones(2), np.dtype("f4"), Path("a"), int, Typed(1, "uint8"), slice(None, 2)]
)  # fmt: skip
def test_short_values_are_shown_as_python_does(value: object) -> None:
    assert quote(value) == repr(value)


def test_values_of_any_size_and_depth() -> None:
    shared: tuple[object, ...] = ()
    for _ in range(1000):
        shared = (shared, shared)
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    circular: dict[str, object] = {}
    circular["a"] = circular
    assert quote(shared) == "(" * 77 + "..."
    assert quote(deep) == "[" * 77 + "..."
    assert quote(circular) == ("{'a': " * 20)[:77] + "..."
    assert quote(["x" * 10**7], 20) == "['xxxxxxxxxxxxxxx..."
    assert quote("x" * 100, 20) == "'xxxxxxxx'... (100 in all)"
    assert quote([bytearray(10**7)], 20) == r"[bytearray(b'\x00..."
    assert quote({1: 10**5000}) == "{1: an integer of 16610 bits}"
    assert quote(range(10**9)) == "range(0, 1000000000)"
    assert quote(OrderedDict(a=[deep] * 10**6), 20) == "{'a': [[[[[[[[[[[..."
    assert quote([Broken()]) == "[an object of Broken]"


class Pair(NamedTuple):
    one: object
    other: object


class Items(list[object]):
    pass


def test_what_holds_others_is_visited_only_as_far_as_it_is_shown() -> None:
    """The repr of each of these would be of 2 to the power of 60 objects."""
    pairs: object = 1
    items: list[object] = []
    for _ in range(60):
        pairs, items = Pair(pairs, pairs), Items([items, items])
    array = np.empty(1, object)
    array[0] = pairs
    assert quote(pairs, 30) == "Pair(one=Pair(one=Pair(one=..."
    for value in (items, array, {1: pairs}.values(), ValueError(pairs), deque([pairs]), torch.nn.ReLU()):
        assert quote(value) == f"an object of {type(value).__name__}"
