"""This package, llama.cpp and gguf-py agree about files, except for known disagreements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glft_schema.formats.gguf import GGUF
from glft_schema.testing.damage import aspects, damaged
from glft_schema.testing.fuzzing import cases
from tests.catalogue import disagreements as table
from tests.catalogue.disagreements import GGUF_PY, LLAMA_CPP, ROWS, Disagreement, Row, disagreements, row_of
from tests.catalogue.gguf_cases import READ, REFUSED, entries
from tests.fuzz.seeds import seeds
from tests.oracles.gguf_reference import File
from tests.oracles.readers import NEVER, Contents, Difference, Elements, Entry, GgufPy, Verdict, differences, in_llama_cpp, ours
from tests.tools import gguf_strategies as strategies

PAGE = Path(__file__).parents[2] / "docs" / "background" / "gguf-readers.md"
SOME = settings(max_examples=settings().max_examples // 10)  # each is read by three readers

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


def found_in(stored: bytes, gguf_py: GgufPy | None) -> list[tuple[str, Disagreement, Row | None]]:
    """Returns each disagreement about a file with its reader and its row."""
    mine = ours(stored)
    readings = {LLAMA_CPP: in_llama_cpp(stored)} | ({GGUF_PY: gguf_py(stored)} if gguf_py else {})
    return [
        (reader, found, row_of(reader, found))
        for reader, theirs in readings.items()
        for found in disagreements(reader, mine, theirs)
    ]


def assert_explained(stored: bytes, gguf_py: GgufPy | None) -> list[tuple[str, str]]:
    """Asserts that a row explains each disagreement about a file; returns readers and rows."""
    explained = []
    for reader, found, row in found_in(stored, gguf_py):
        assert row is not None, (reader, found, stored)
        explained.append((reader, row.files))
    return explained


@pytest.mark.full
@pytest.mark.fuzz
def test_every_disagreement_about_random_files_is_explained(gguf_py: GgufPy, record_property: Any) -> None:
    rows: Counter[tuple[str, str]] = Counter()
    count = 0

    @SOME
    @given(files)
    def compare(stored: bytes) -> None:
        nonlocal count
        count += 1
        rows.update(assert_explained(stored, gguf_py))

    compare()
    record_property("files", count)
    record_property("rows", dict(rows))
    print(f"{count:,} files: " + "; ".join(f"{number:,} {reader}, {files}" for (reader, files), number in rows.most_common()))
    assert rows[GGUF_PY, "version 1"]
    assert count >= SOME.max_examples


@pytest.mark.fuzz
@given(files)
def test_llama_cpp_reads_what_keeps_to_its_rules_and_nothing_else(stored: bytes) -> None:
    assert_explained(stored, None)


def test_every_disagreement_about_the_searchs_files_is_explained(gguf_py: GgufPy) -> None:
    found = [assert_explained(stored, gguf_py) for stored in seeds() if stored.startswith(b"GGUF")]
    assert {reader for explained in found for reader, _ in explained} == {LLAMA_CPP, GGUF_PY}


@pytest.mark.parametrize(
    ("reader", "row"), [(reader, row) for reader in ROWS for row in ROWS[reader]], ids=lambda part: getattr(part, "files", part)
)
def test_every_row_has_a_file_of_its_own(reader: str, row: Row, gguf_py: GgufPy) -> None:
    assert row in [explained for of, _, explained in found_in(row.example, gguf_py) if of == reader]


def test_what_no_row_explains_is_found(gguf_py: GgufPy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(table.ROWS, GGUF_PY, tuple(row for row in ROWS[GGUF_PY] if row.files != "version 1"))
    assert found_in(READ["version 1"].stored, gguf_py)[-1][2] is None
    with pytest.raises(AssertionError, match="gguf-py"):
        assert_explained(READ["version 1"].stored, gguf_py)


def test_contents_are_compared_to_the_last_byte(gguf_py: GgufPy) -> None:
    stored = entries((b"k", 9, (4, [1, 2])), (b"n", 6, b"\x7f\xa0\x00\x01"), (b"t", 8, b"\xff"))
    expected = [
        Entry(b"k", 9, Elements(4, [b"\1\0\0\0", b"\2\0\0\0"])),
        Entry(b"n", 6, b"\1\0\xa0\x7f"),  # a NaN with a payload
        Entry(b"t", 8, b"\xff"),
    ]
    for reader in (ours, in_llama_cpp, gguf_py):
        assert reader(stored).contents == Contents(expected, [])
    (found,) = differences(Contents(expected, []), Contents([*expected[:2], Entry(b"t", 8, b"\xfe")], []))
    assert found == Difference("value", b"\xff", b"\xfe")
    (found,) = differences(Contents(expected, []), Contents(expected[:2], []))
    assert found == Difference("number of keys", 3, 2)
    empty = Verdict(Contents([Entry(b"k", 9, Elements(4, []))], []))
    other = Verdict(Contents([Entry(b"k", 9, Elements(None, []))], []))
    assert not list(disagreements(GGUF_PY, empty, other))


def test_a_reader_that_never_returns_is_ended(gguf_py: GgufPy) -> None:
    assert gguf_py(REFUSED["an array of 2^40 numbers"].stored) == Verdict(None, NEVER)
    assert gguf_py(READ["nothing in it"].stored).contents == Contents([], [])  # the next file is read


def test_page_has_every_row() -> None:
    lines = PAGE.read_text("utf-8").splitlines()
    start = lines.index("| reader | file | glft_schema | the reader | why |") + 2
    expected = [f"| {of} | {row.files} | {row.we} | {row.they} | {row.why} |" for of, rows in ROWS.items() for row in rows]
    assert lines[start : start + len(expected)] == expected
    assert not "".join(lines[start + len(expected) :]).startswith("|")
