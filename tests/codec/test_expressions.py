"""Expressions say in words what they compute."""

from __future__ import annotations

from typing import Any

import pytest
from construct import Container, len_, obj_, this

from glft_schema.codec.expressions import Lookup, as_expression, fields_in, matches, nbytes_, read, reverse_, subexpressions

CONTEXT = Container(n=3, name="aé", dims=[2, 5], metadata={"k": 7, "text": "a"}, _=Container(m=4))


@pytest.mark.parametrize(
    ("expression", "text", "value"),
    [
        (this.n, "n", 3),
        (this._.m, "_parent.m", 4),
        (this.n == 3, "(n == 3)", True),
        ((this.n >= 1) & (this.n <= 2), "((n >= 1) & (n <= 2))", False),
        (this.n * 2 // 4, "((n * 2) // 4)", 1),
        (this.n + 2 - 1, "((n + 2) - 1)", 4),
        (-this.n, "(0 - n)", -3),
        (this.name == b"GG", "(name == [71, 71])", False),
        (len_(this.dims), "len(dims)", 2),
        (nbytes_(this.name) < 4, "(nbytes(name) < 4)", True),
        (reverse_(this.dims), "reversed(dims)", [5, 2]),
        (matches(r"\w+")(this.name), 'matches(name, "\\\\w+")', True),
        (Lookup(this.metadata, "k", 32), 'value_or(metadata, "k", 32)', 7),
        (Lookup(this.metadata, "other", 32), 'value_or(metadata, "other", 32)', 32),
        (Lookup(this.metadata, "text", 32), 'value_or(metadata, "text", 32)', 32),
    ],
)
def test_reading_and_computing(expression: Any, text: str, value: object) -> None:
    found = read(expression)
    assert str(found) == text
    assert found in list(subexpressions(found))
    for computed in (expression(CONTEXT), found(CONTEXT)):
        assert (bool(computed) if value is True else computed) == value


@pytest.mark.parametrize(("key", "value"), [("text", "a"), ("k", "none"), ("other", "none")])
def test_texts_of_keys_are_for_sentences_only(key: str, value: str) -> None:
    looked_up = Lookup(this.metadata, key, "none")
    assert looked_up(CONTEXT) == value
    assert (looked_up != "a")(CONTEXT) == (value != "a")
    assert str(as_expression(looked_up != "a")) == f'(value_or(metadata, "{key}", "none") != "a")'
    assert read(looked_up) is read(looked_up != "a") is None


def test_paths_from_the_root_and_parameters() -> None:
    assert str(read(this._root.header.version)) == str(read(this._._root.header.version)) == "_root.header.version"
    assert str(read(this._params.out)) == "out"
    assert read(obj_ > 1) is None


FUNCTIONS = [lambda at: 1, len_(lambda at: []), this.n + (lambda at: 1), Lookup(lambda at: {}, "k", 1)]
UNSAYABLE = [this.dims[0], this.n / 2, this]


@pytest.mark.parametrize("function", [*FUNCTIONS, *UNSAYABLE])
def test_functions_are_called_but_cannot_be_read(function: Any) -> None:
    assert read(function) is None
    assert as_expression(function)(CONTEXT) == function(CONTEXT)
    assert fields_in(as_expression(function)) is None
