"""A kernel is rebuilt when anything changes that its function computes with."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache, partial
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import pytest
import torch

from glft_schema import kernels
from glft_schema.tensor_types.kernels.fingerprint import fingerprint

SOURCE = """
FACTOR = 3
TABLE = (1, 2)
NAMED = {"a": 1}
_NUMBERS = {0: 3}

def helper(number, scale=2):
    return number * scale * FACTOR

class Pair(tuple):
    FACTOR = 1
    def total(self):
        return self.FACTOR * sum(self)

def formula(number):
    def inner():
        return TABLE[0] + NAMED["a"]
    return _NUMBERS[0] + helper(number) + Pair((1, 2)).total() + inner()
"""


def made(source: str) -> Callable[..., object]:
    namespace: dict[str, Any] = {"__name__": "made"}
    exec(source, namespace)
    function = namespace["formula"]
    assert isinstance(function, FunctionType)
    return function


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("FACTOR = 3", "FACTOR = 4"),
        ("FACTOR = 3", "FACTOR = 3.0"),
        ("FACTOR = 3", "FACTOR = True"),
        ("TABLE = (1, 2)", "TABLE = (1, 3)"),
        ('{"a": 1}', '{"a": 2}'),
        ("scale=2", "scale=3"),
        ("number * scale * FACTOR", "number + scale * FACTOR"),
        ("FACTOR * sum(self)", "FACTOR * max(self)"),
        ("    FACTOR = 1", "    FACTOR = 2"),
        ("{0: 3}", "{0: 4}"),
        ("TABLE[0]", "TABLE[1]"),
        ("helper(number) +", "helper(number) -"),
        ("def helper(number, scale=2)", "def helper(number, *, scale=2)"),
    ],
)
def test_any_part_that_is_reached_counts(old: str, new: str) -> None:
    assert SOURCE.count(f"\n{old}") == 1 or SOURCE.count(old) == 1
    assert fingerprint(made(SOURCE.replace(old, new, 1))) != fingerprint(made(SOURCE))


@pytest.mark.parametrize(
    ("old", "new"),
    [("FACTOR = 3", "FACTOR = 3  # three"), ("FACTOR = 3", "FACTOR = 3\nOTHER = 5")],
)
def test_comments_and_other_names_do_not_count(old: str, new: str) -> None:
    assert fingerprint(made(SOURCE.replace(old, new, 1))) == fingerprint(made(SOURCE))


def test_use_does_not_count() -> None:
    function = made(SOURCE)
    before = fingerprint(function)
    function(2)
    assert fingerprint(function) == before


def test_values_that_functions_hold(tmp_path: Path) -> None:
    """Closures, arguments of partial functions, wrapped functions, tensors, files by content."""

    def holding(value: object) -> Callable[..., object]:
        return lambda: value

    path = tmp_path / "table.bin"
    prints = []
    for content in (b"one", b"two"):
        path.write_bytes(content)
        prints.append(fingerprint(holding(path)))
    values = [torch.zeros(2), torch.zeros(2, dtype=torch.int32), torch.ones(2), torch.zeros(1, 2), torch.float16, torch.float32]
    values += [{1, 2}, {1, 3}, [1], (1,), None, ..., partial(made(SOURCE), 1), partial(made(SOURCE), 2)]
    values += [np.arange(2000), np.arange(2000).reshape(2, -1), np.append(np.arange(1999), 7), range(2), range(3)]
    prints += [fingerprint(holding(value)) for value in values]
    assert len(set(prints)) == len(prints)

    @lru_cache
    def cached(number: int) -> int:
        return number + 1

    @lru_cache
    def other(number: int) -> int:
        return number + 2

    assert fingerprint(cached) != fingerprint(other)


class Color(IntEnum):
    RED = 1


@dataclass
class Settings:
    factor: int = 1


def importing() -> object:
    from glft_schema import errors

    return errors


@pytest.mark.parametrize(
    ("thing", "name"), [(object(), "object"), (Settings(), "Settings"), (kernels, "module"), (Color.RED, "Color")]
)
def test_a_value_whose_content_is_unknown_is_refused(thing: object, name: str) -> None:
    with pytest.raises(ValueError, match=f"a kernel cannot depend on {name} objects"):
        fingerprint(lambda: thing)
    with pytest.raises(ValueError, match="a kernel cannot depend on an import in importing"):
        fingerprint(importing)


def test_functions_that_refer_to_themselves() -> None:
    def one(number: int) -> int:
        return other(number)

    def other(number: int) -> int:
        return one(number)

    assert len(fingerprint(one)) == 64


@pytest.mark.full
def test_all_steps_in_any_process() -> None:
    """Hash seeds and what ran before make no difference; steps differ."""
    code = """
import sys
from glft_schema import kernels
if sys.argv[1] == "used":
    for name in ("q8_0", "q4_k", "iq3_xxs", "mxfp4"):
        kernels._steps(kernels._quantized()[name])
print(*[(name, kernels._identity(name).key()) for name in kernels.STEPS], sep="\\n")
"""
    texts = [
        subprocess.run(
            [sys.executable, "-c", code, how],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for how, seed in (("new", "1"), ("used", "2"))
    ]
    assert texts[0] == texts[1]
    assert len({line.partition(",")[2] for line in texts[0].splitlines()}) == len(texts[0].splitlines()) > 15
