"""From a valid file broken ones, each with what has to be reported of it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TypeVar

from hypothesis import reject
from hypothesis import strategies as st

from glft_schema.container import Container, format_named
from glft_schema.errors import SchemeError, shown
from glft_schema.file import File
from glft_schema.formats.format import Format
from glft_schema.strategies.breaking import Breaker, can_be_broken, unchanged
from glft_schema.strategies.corruption import Corruption
from glft_schema.strategies.damage import DAMAGES, Damage, truncated
from glft_schema.strategies.sites import Site, sites

T = TypeVar("T")

SPREAD = 1 << 24  # numbers among which hypothesis has no favourites; it draws the first ones of a short list far more often
TRIES = 8  # for a rule that the file has a place for, before a field is broken

__all__ = ["Corruption", "corruptions", "rule_ids"]


def rule_ids(format: str | Format) -> list[str]:
    """Returns the ids of the rules of a format and of its tensor types, in order.

    Raises:
        SchemeError: for a format that there is not.
    """
    found = format if isinstance(format, Format) else format_named(format)
    return list(dict.fromkeys(site.check.id for site in sites(found)))


def corruptions(file: File | bytes, rule: str | None = None) -> st.SearchStrategy[Corruption]:
    """Returns a strategy of broken files that are made from a valid one.

    Args:
        file: the valid file, opened or as bytes.
        rule: the id of the rule to break, see `rule_ids`; unless given, any rule, or any field: cut off, of an unknown type,
            with a count that claims too much, not UTF-8, with a payload that overlaps another one or lies outside.

    Raises:
        SchemeError: for a rule that the format does not have, or for which nobody knows what breaks it.
        FormatError: where `file` is not valid.
    """
    parsed = file if isinstance(file, File) else Container.parse(file)
    places = [site for site in sites(parsed.format) if rule in (None, site.check.id)]
    if not places:
        raise SchemeError(f"expected a rule of {parsed.format.name}, {', '.join(rule_ids(parsed.format))}, found {shown(rule)}")

    if not (places := [site for site in places if can_be_broken(site)]):
        raise SchemeError(f"expected a rule with a counterexample, found {shown(rule)}: its `broken_by` can give one")
    by_rule = sorted(places, key=lambda site: site.check.id)
    rules = [list(group) for _, group in groupby(by_rule, key=lambda site: site.check.id)]
    return broken(parsed, rules, DAMAGES if rule is None else ())


@st.composite
def broken(draw: st.DrawFn, file: File, rules: Sequence[Sequence[Site]], damages: Sequence[Damage]) -> Corruption:
    """Breaks a rule, or does one of the damages, which are a third, each rule or damage as often as another.

    Gives the example up where the file has no place for the rule.
    """
    for _ in range(TRIES if damages else 1):
        a_damage = _evenly(draw, (False, False, True))
        if damages and a_damage:
            damage = _evenly(draw, damages)
            found = draw(damage(file))
        else:
            found = Breaker(draw, file).broken(_evenly(draw, _evenly(draw, rules)))
        if found is not None:
            return found if not unchanged(file, found.stored) else reject()
    return draw(truncated(file)) if damages else reject()


def _evenly(draw: st.DrawFn, choices: Sequence[T]) -> T:
    """Draws one of the choices, each about as often.

    Hypothesis copies drawn numbers, many a zero among them, over others of the same kind; of a sum it does not hit all parts.
    """
    return choices[sum(draw(st.integers(0, SPREAD - 1)) for _ in range(3)) % len(choices)]
