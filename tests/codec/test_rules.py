"""Rules: which raise errors, and which become findings."""

from __future__ import annotations

from typing import Any

import pytest
from construct import this

from glft_schema import FormatError
from glft_schema.codec.numbers import u8
from glft_schema.codec.predicates import above, at_most, differs_from, meets, multiple_of, one_of
from glft_schema.codec.rules import GGML, SPEC, Check, Predicate, Rule, spec
from glft_schema.codec.structs import Struct
from glft_schema.codec.trace import Trace
from glft_schema.errors import Finding, OptionError
from tests.codec.assertions import assert_stored, build_error, cursor, parse_error

EVEN = Rule("even", this.b, multiple_of(2))
LARGE = spec("large", this.b, Predicate("more than a", lambda of: lambda at: of(at) > at.a, show=hex))
RARE = Rule("rare", this.a, differs_from(9, "another number than 9"), sets=(SPEC, GGML), building=False)
Pair = Struct("a" / u8, "b" / u8, EVEN, LARGE, RARE)


def findings(struct: Struct, stored: str) -> list[Finding]:
    """Returns the findings of a parse."""
    found: list[Finding] = []
    struct.parse_stream(cursor(stored), trace=Trace(), findings=found)
    return found


def test_a_required_rule_raises() -> None:
    assert_stored(Pair, "01 02", {"a": 1, "b": 2})
    for error in (parse_error(Pair, "01 03"), build_error(Pair, {"a": 1, "b": 3})):
        assert (type(error), error.rule, str(error)) == (FormatError, "even", "b: expected a multiple of 2, found 3")


def test_other_rules_become_findings() -> None:
    assert findings(Pair, "01 02") == []
    assert Pair.parse(b"\x09\x04") == {"a": 9, "b": 4}
    assert findings(Pair, "09 04") == [
        Finding("rare", (SPEC, GGML), "a", "expected another number than 9, found 9", offset=0, building=False),
        Finding("large", (SPEC,), "b", "expected more than a, found 0x4", offset=1),
    ]


def test_building_enforces_the_sets_asked_for() -> None:
    value = {"a": 4, "b": 4}
    assert Pair.build(value) == Pair.build(value, rules=(GGML,)) == b"\x04\x04"
    error = build_error(Pair, value, rules=(GGML, SPEC))
    assert (error.rule, str(error)) == ("large", "b: expected more than a, found 0x4")
    assert Pair.build({"a": 9, "b": 10}, rules=(SPEC,)) == b"\x09\x0a"  # building=False
    assert Pair.build({"a": 1, "b": 3}, forging=True) == b"\x01\x03"


def test_sizes_keep_to_required_rules_on_parameters() -> None:
    payload = Struct(Rule("even-n", this._params.n, multiple_of(2)), "codes" / u8[this._params.n])
    assert payload.sizeof(n=4) == 4
    with pytest.raises(FormatError, match=r"-> n: expected a multiple of 2, found 3$"):
        payload.sizeof(n=3)


def test_a_check_that_is_more_than_a_sentence() -> None:
    class Ascending(Check):
        def check(self, context: Any, path: str) -> None:
            if context.b < context.a:
                self.report(context, f"expected at least {context.a}, found {context.b}", f"{path} -> b")

    pair = Struct("a" / u8, "b" / u8, Ascending("ascending", "b", sets=(GGML,)))
    assert findings(pair, "05 04") == [Finding("ascending", (GGML,), "b", "expected at least 5, found 4", offset=1)]
    assert str(build_error(pair, {"a": 5, "b": 4}, rules=(GGML,))) == "b: expected at least 5, found 4"


def test_checks_of_a_field_stay_in_order() -> None:
    positive = Rule("positive", this.a, meets(lambda at: at.a > 0, "above 0"))
    struct = Struct("a" / u8, "x" / u8, "b" / u8, positive, Rule("multiple", this.x, multiple_of(this.a, "a")))
    for stored, rule in (("00 01 01", "positive"), ("02 01 01", "multiple")):
        assert parse_error(struct, stored).rule == rule


def test_a_rule_is_checked_as_soon_as_its_fields_are_read() -> None:
    struct = Struct("a" / u8, "b" / u8, Rule("small", this.a, at_most(1)))
    error = parse_error(struct, "02")  # before the end of the file is found in b
    assert (error.rule, str(error)) == ("small", "a: expected at most 1, found 2")


def test_the_field_that_a_rule_guards() -> None:
    row = Struct("x" / u8, "keys" / u8, Rule("one", 5 - this.x, above(0)), Rule("two", this._root.x, above(0), field="keys"))
    found = [str(parse_error(row, stored)) for stored in ("05 00", "00 07")]
    assert found == ["x: expected above 0 for 5 - x, found 0", "keys: expected above 0 for _root.x, found 0"]
    for of in (this._root.h, this._.h, len):
        with pytest.raises(ValueError, match="expected an expression on a field of the Struct"):
            Rule("x", of, above(0))


def test_one_rule_set_by_name() -> None:
    assert Rule("x", this.x, above(0), sets="spec").sets == (SPEC,)
    with pytest.raises(OptionError, match="expected one of spec, ggml, rust, required, found 'strict'"):
        Rule("x", this.x, above(0), sets="strict")


def test_consecutive_integers_only() -> None:
    with pytest.raises(ValueError, match=r"expected consecutive integers, found \(1, 3\)"):
        one_of(1, 3)
