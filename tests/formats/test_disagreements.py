"""This package, llama.cpp and gguf-py agree about files, except for known disagreements."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glft_schema.formats.gguf import GGUF
from glft_schema.testing.damage import aspects, damaged
from glft_schema.testing.fuzzing import cases
from tests.catalogue.disagreements import GGUF_PY, LLAMA_CPP, ROWS, Row, disagreements, row_of
from tests.catalogue.gguf_cases import entries
from tests.fuzz.seeds import seeds
from tests.oracles.gguf_reference import File
from tests.oracles.readers import Contents, Elements, Entry, GgufPy, in_llama_cpp, ours
from tests.tools import gguf_strategies as strategies

SOME = settings(max_examples=min(settings().max_examples, 10_000))  # each is read by three readers

valid = strategies.files().map(File.bytes)
files = st.one_of(
    valid,
    strategies.loose_files(),
    aspects().flatmap(lambda aspect: valid.flatmap(lambda stored: damaged(stored, aspect))),
    cases(GGUF).map(lambda case: case.stored),
)


@pytest.fixture(scope="module")
def gguf_py() -> Iterator[GgufPy]:
    pytest.importorskip("gguf")
    with closing(GgufPy()) as reader:
        yield reader


def assert_explained(stored: bytes, gguf_py: GgufPy) -> list[tuple[str, Row]]:
    """Asserts that a row explains each disagreement about a file; returns readers and rows."""
    mine, explained = ours(stored), []
    for reader, theirs in ((LLAMA_CPP, in_llama_cpp(stored)), (GGUF_PY, gguf_py(stored))):
        for found in disagreements(reader, mine, theirs):
            row = row_of(reader, found)
            assert row is not None, (reader, found, stored)
            explained.append((reader, row))
    return explained


@pytest.mark.fuzz
@SOME
@given(files)
def test_every_disagreement_about_random_files_is_explained(gguf_py: GgufPy, stored: bytes) -> None:
    assert_explained(stored, gguf_py)


def test_every_disagreement_about_the_searchs_files_is_explained(gguf_py: GgufPy) -> None:
    found = [assert_explained(stored, gguf_py) for stored in seeds() if stored.startswith(b"GGUF")]
    assert {reader for explained in found for reader, _ in explained} == {LLAMA_CPP, GGUF_PY}


@pytest.mark.parametrize(
    ("reader", "row"), [(reader, row) for reader in ROWS for row in ROWS[reader]], ids=lambda part: getattr(part, "files", part)
)
def test_every_row_has_a_file_of_its_own(reader: str, row: Row, gguf_py: GgufPy) -> None:
    assert (reader, row) in assert_explained(row.example, gguf_py)


def test_contents_are_compared_to_the_last_byte(gguf_py: GgufPy) -> None:
    stored = entries((b"k", 9, (4, [1, 2])), (b"n", 6, b"\x7f\xa0\x00\x01"), (b"t", 8, b"\xff"))
    expected = [
        Entry(b"k", 9, Elements(4, [b"\1\0\0\0", b"\2\0\0\0"])),
        Entry(b"n", 6, b"\1\0\xa0\x7f"),  # a NaN with a payload
        Entry(b"t", 8, b"\xff"),
    ]
    for reader in (ours, in_llama_cpp, gguf_py):
        assert reader(stored).contents == Contents(expected, [])
