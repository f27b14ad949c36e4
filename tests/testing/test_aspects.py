"""The aspects of corruptions and damage are drawn by their weights."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from glft_schema import Container
from glft_schema.testing import Corruption, corruptions
from glft_schema.testing.damage import WEIGHTS, damaged, spans_by_aspect
from tests.fuzz.mutator import drawn
from tests.golden import golden
from tests.oracles import glft_reference as reference
from tests.oracles.gguf_reference import ARRAY, STRING, File, Info
from tests.oracles.peers import makes_examples_of_bytes
from tests.tools.depth import FULL

T = TypeVar("T")
SEEDED = settings(database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
GGUF_FILE = File(
    [(b"general.architecture", STRING, b"toy"), (b"general.alignment", 4, 32), (b"k", ARRAY, (0, [1, 2]))],
    [Info(b"w", [2], 0, bytes(8)), Info(b"v", [1], 0, bytes(4))],
)
FILES = {"GLFT": golden("four_types"), "GGUF": GGUF_FILE.bytes()}

BETWEEN_ROWS = {"gguf-keys-once", "gguf-names-once", "glft-names-once", "gguf-contiguous"}
OF_ALIGNMENT = {"gguf-offset", "gguf-padding", "gguf-limit-alignment", "gguf-alignment"}
OF_ALIGNMENT |= {"gguf-alignment-8", "gguf-alignment-u32", "gguf-alignment-power"}
REGIONS = {"descriptors": "tensor info", "tensor_infos": "tensor info", "padding": "alignment"}


def aspect_of(made: Corruption) -> str:
    """Returns the aspect of a corruption by its rule and sentence."""
    if made.rule in BETWEEN_ROWS or "claims more than there is" in made.sentence or "a payload begins" in made.sentence:
        return "consistency"
    cut = re.match("cut off at byte [0-9]+, in (.*)", made.sentence)  # a count before may be to blame
    region = (cut[1] if cut else made.path).partition(" -> ")[0]
    return "alignment" if made.rule in OF_ALIGNMENT else REGIONS.get(region, region)


def examples(strategy: st.SearchStrategy[T], count: int) -> Iterator[T]:
    """Yields examples from random bytes; hypothesis would copy parts of one into another."""
    return (example for number in range(count) if (example := drawn(strategy, Random(number))) is not None)


@pytest.mark.full
@makes_examples_of_bytes
@pytest.mark.parametrize("format", FILES)
def test_corruptions_follow_the_weights(format: str) -> None:
    found = Counter(aspect_of(made) for made in examples(corruptions(FILES[format]), 400))
    assert set(found) == set(WEIGHTS) - ({"alignment"} if format == "GLFT" else set())
    whole = sum(WEIGHTS[aspect] for aspect in found)
    for aspect, count in found.items():  # in percent
        assert abs(100 * WEIGHTS[aspect] / whole - 100 * count / found.total()) < 7, aspect


@pytest.mark.parametrize("aspect", WEIGHTS)
def test_an_aspect_can_be_asked_for(aspect: str) -> None:
    @seed(1)
    @settings(SEEDED, max_examples=20 if FULL else 8)
    @given(corruptions(GGUF_FILE.bytes(), aspect=aspect))
    def draw(made: Corruption) -> None:
        assert aspect_of(made) == aspect
        assert made.problem() is None

    draw()


def test_other_aspects_replace_one_that_a_file_lacks() -> None:
    found = {aspect_of(made) for made in examples(corruptions(reference.write(b"", [], b""), aspect="data"), 50)}
    assert "data" not in found
    assert len(found) > 1


def test_spans_of_the_fields() -> None:
    spans, file = spans_by_aspect(FILES["GGUF"]), Container.parse(FILES["GGUF"])
    start = file.tensors.start
    assert (spans["header"], spans["consistency"]) == ([(0, 4), (4, 8)], [(8, 16), (16, 24)])  # magic, version; the counts
    assert spans["alignment"] == [(67, 92), (92, 96), (96, 100), (start - len(file.padding), start)]  # key, type, value
    assert spans["data"] == [(start, file.source.size)]
    assert spans["metadata"][:2] == [(24, 52), (52, 56)]  # the first key, its type
    assert min(spans["tensor info"]) == (spans["metadata"][-1][1], spans["metadata"][-1][1] + 9)


@pytest.mark.parametrize("stored", [b"nothing", b""])
def test_spans_of_what_is_no_file(stored: bytes) -> None:
    assert spans_by_aspect(stored) == {"data": [(0, len(stored))]}
    assert set(spans_by_aspect(FILES["GGUF"][:30])) == {"header", "consistency"}


@makes_examples_of_bytes
@pytest.mark.parametrize("aspect", WEIGHTS)
def test_damage_of_an_aspect(aspect: str) -> None:
    """Of single changed bytes, most are in the aspect; others may be of a second change."""
    stored, found = FILES["GGUF"], list[bool]()
    spans = spans_by_aspect(stored)[aspect]
    for other in examples(damaged(stored, aspect), 40):
        changed = [at for at, (old, new) in enumerate(zip(stored, other, strict=False)) if old != new]
        if len(other) == len(stored) and len(changed) == 1:
            found.append(any(start <= changed[0] < end for start, end in spans))
    assert found
    assert sum(found) > 0.8 * len(found)
