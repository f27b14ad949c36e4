"""From a valid file broken ones, each with what has to be reported of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypothesis import reject
from hypothesis import strategies as st

from glft_schema.errors import OptionError, shown
from glft_schema.files.container import Container
from glft_schema.files.file import File
from glft_schema.formats.format import Format
from glft_schema.formats.registry import format_named
from glft_schema.testing.strategies.aspects import WEIGHTS, aspect_of_rule, drawn_aspect, evenly
from glft_schema.testing.strategies.broken_fields import DAMAGES, Damage
from glft_schema.testing.strategies.broken_rules import Breaker, can_be_broken, unchanged
from glft_schema.testing.strategies.corruption import Corruption
from glft_schema.testing.strategies.rule_sites import Site, sites

TRIES = 8  # for a rule that the file has a place for, before a field is broken

__all__ = ["Corruption", "corruptions", "rule_ids"]


def rule_ids(format: str | Format) -> list[str]:
    """Returns the ids of the rules of a format and of its tensor types, in order.

    Raises:
        OptionError: for a format that there is not.
    """
    found = format if isinstance(format, Format) else format_named(format)
    return list(dict.fromkeys(site.check.id for site in sites(found)))


def corruptions(file: File | bytes, rule: str | None = None, *, aspect: str | None = None) -> st.SearchStrategy[Corruption]:
    """Returns a strategy of broken files that are made from a valid one.

    Args:
        file: the valid file, opened or as bytes.
        rule: the id of the rule to break, see `rule_ids`; unless given, any rule, or any field: cut off, of an unknown type,
            with a count that claims too much, not UTF-8, with a payload that overlaps another one or lies outside.
        aspect: what is to be broken, one of `aspects.WEIGHTS`, where the file has a place for it; unless given, each of them as
            often as its weight says.

    Raises:
        OptionError: for a rule that the format does not have, or for which nobody knows what breaks it.
        FormatError: where `file` is not valid.
    """
    parsed = file if isinstance(file, File) else Container.parse(file)
    places = [site for site in sites(parsed.format) if rule in (None, site.check.id)]
    if not places:
        raise OptionError(f"expected a rule of {parsed.format.name}, {', '.join(rule_ids(parsed.format))}, found {shown(rule)}")

    if not (places := [site for site in places if can_be_broken(site)]):
        raise OptionError(f"no values are known that break {shown(rule)}: its predicate can give some, `broken_by`")
    return broken(parsed, _by_aspect(parsed.format, places, with_damages=rule is None), aspect)


def _by_aspect(
    format: Format, places: Sequence[Site], with_damages: bool
) -> dict[str, tuple[list[list[Site]], Sequence[Damage]]]:
    """Returns what can be broken in each aspect: rules, each with its places, and damages."""
    rules: dict[str, dict[str, list[Site]]] = {}
    for site in places:
        rules.setdefault(aspect_of_rule(format, site), {}).setdefault(site.check.id, []).append(site)
    found = {aspect: (list(rules.get(aspect, {}).values()), DAMAGES[aspect] if with_damages else ()) for aspect in WEIGHTS}
    return {aspect: choices for aspect, choices in found.items() if any(choices)}


@st.composite
def broken(
    draw: st.DrawFn,
    file: File,
    by_aspect: Mapping[str, tuple[Sequence[Sequence[Site]], Sequence[Damage]]],
    aspect: str | None,
) -> Corruption:
    """Breaks a rule, or does one of the damages, which are a third; each rule or damage of an aspect as often as another.

    Goes on to other aspects where the file has no place for anything of this one; gives the example up where it has none.
    """
    left = dict(by_aspect)
    while left:
        rules, damages = left.pop(aspect if aspect in left else drawn_aspect(draw, left))
        for _ in range(TRIES if damages else 1):
            if damages and (not rules or evenly(draw, (False, False, True))):
                found = draw(evenly(draw, damages)(file))
            else:
                found = Breaker(draw, file).broken(evenly(draw, evenly(draw, rules)))
            if found is not None:
                return found if not unchanged(file, found.stored) else reject()
    return reject()
