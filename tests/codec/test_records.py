"""Records: the fields of a parsed Struct."""

from __future__ import annotations

import copy
import pickle

import pytest

from glft_schema.codec.records import Record


def row() -> Record:
    return Record({"name": "w", "rank": 2}, {"n": 5})


def test_fields_and_counts_by_attribute_and_by_key() -> None:
    record = row()
    assert (record.name, record["rank"], len(record), dict(record)) == ("w", 2, 2, {"name": "w", "rank": 2})
    assert (record.n, record["n"], record.get("n"), dict(record.counts), "n" in record) == (5, 5, 5, {"n": 5}, False)
    assert repr(record) == "<Record: name 'w', rank 2, n 5>"


def test_records_are_equal_to_mappings_with_equal_items() -> None:
    assert row() == {"rank": 2, "name": "w"} == row()
    assert row() == Record({"name": "w", "rank": 2}, {"n": 6})
    for other in ({"name": "w"}, {"name": "w", "rank": 3}, {"name": "w", "rank": 2, "n": 5}, ("w", 2)):
        assert row() != other


def test_records_are_read_only() -> None:
    record = row()
    problem = "a parsed record is read-only; to change 'name', build from a mapping with the new value"
    with pytest.raises(AttributeError, match=f"^{problem}$"):
        record.name = "v"
    with pytest.raises(TypeError):
        record["name"] = "v"
    assert record.name == "w"


def test_fields_that_are_not_there() -> None:
    with pytest.raises(AttributeError, match=r"^no field 'size'; the fields are name, rank$"):
        _ = row().size
    with pytest.raises(KeyError, match=r"^'size'$"):
        row()["size"]


def test_a_field_with_the_name_of_a_method() -> None:
    record = Record({"items": 3, "counts": 4})
    assert (record["items"], record["counts"]) == (3, 4)
    assert list(record.items()) == [("items", 3), ("counts", 4)]


def test_copies_and_pickles() -> None:
    for again in (pickle.loads(pickle.dumps(row())), copy.copy(row()), copy.deepcopy(row())):
        assert (again, again.name, again.n, type(again)) == (row(), "w", 5, type(row()))
