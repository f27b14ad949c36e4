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
from glft_schema.testing.damage import WEIGHTS, aspects, damaged, spans_by_aspect
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


def test_the_weights() -> None:
    expected = {"metadata": 35, "tensor info": 35, "header": 10, "consistency": 10, "alignment": 5, "data": 5}
    assert expected == WEIGHTS


def assert_weights(found: Counter[str], within: float) -> None:
    """Asserts that the shares of the aspects are those of their weights, in percent."""
    whole = sum(WEIGHTS[aspect] for aspect in found)
    for aspect in found:
        expected, share = 100 * WEIGHTS[aspect] / whole, 100 * found[aspect] / found.total()
        assert abs(share - expected) < within, (aspect, share, expected)


def examples(strategy: st.SearchStrategy[T], count: int) -> Iterator[T]:
    """Yields examples from random bytes; hypothesis would copy parts of one into another."""
    return (example for number in range(count) if (example := drawn(strategy, Random(number))) is not None)


@pytest.mark.full
def test_aspects_follow_the_weights() -> None:
    found = Counter(examples(aspects(), 1000))
    assert set(found) == set(WEIGHTS)
    assert_weights(found, within=4)


@pytest.mark.full
@makes_examples_of_bytes
@pytest.mark.parametrize("format", FILES)
def test_corruptions_follow_the_weights(format: str) -> None:
    found = Counter(aspect_of(made) for made in examples(corruptions(FILES[format]), 400))
    assert set(found) == set(WEIGHTS) - ({"alignment"} if format == "GLFT" else set())
    assert_weights(found, within=7)


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
    empty, found = reference.write(b"", [], b""), set[str]()

    @seed(1)
    @settings(SEEDED, max_examples=50)
    @given(corruptions(empty, aspect="data"))
    def draw(made: Corruption) -> None:
        found.add(aspect_of(made))

    draw()
    assert "data" not in found
    assert len(found) > 1


def test_spans_of_the_fields() -> None:
    spans = spans_by_aspect(GGUF_FILE.bytes())
    assert spans["header"] == [(0, 4), (4, 8)]  # magic, version
    assert spans["consistency"] == [(8, 16), (16, 24)]  # the two counts
    key = 24 + 8 + len("general.architecture") + 4 + 8 + len("toy")
    value = key + 8 + len("general.alignment") + 4
    file = Container.parse(GGUF_FILE.bytes())
    padding = file.tensors.start - len(file.padding)
    entry = [(key, value - 4), (value - 4, value), (value, value + 4)]  # key, type, value
    assert spans["alignment"] == [*entry, (padding, file.tensors.start)]
    assert spans["data"] == [(file.tensors.start, file.source.size)]
    assert spans["metadata"][:2] == [(24, 52), (52, 56)]  # the first key, its type
    assert min(spans["tensor info"]) == (spans["metadata"][-1][1], spans["metadata"][-1][1] + 9)
    assert spans_by_aspect(b"nothing") == {"data": [(0, 7)]}
    assert spans_by_aspect(b"") == {"data": [(0, 0)]}
    assert set(spans_by_aspect(GGUF_FILE.bytes()[:30])) == {"header", "consistency"}


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


@pytest.mark.full
@makes_examples_of_bytes
@pytest.mark.parametrize("format", FILES)
def test_damaged_bytes_follow_the_weights(format: str) -> None:
    """Of single changed bytes, each is in a field of the aspect."""
    stored, found = FILES[format], Counter[str]()
    aspect_at = {at: aspect for aspect, spans in spans_by_aspect(stored).items() for span in spans for at in range(*span)}
    for other in examples(damaged(stored), 1000):
        changed = [at for at, (old, new) in enumerate(zip(stored, other, strict=False)) if old != new]
        if len(other) == len(stored) and len(changed) == 1:
            found[aspect_at[changed[0]]] += 1
    assert found.total() > 100
    assert found["metadata"] + found["tensor info"] > found.total() / 2
    assert set(found) == set(WEIGHTS) - ({"alignment"} if format == "GLFT" else set())
    assert_weights(found, within=12)
