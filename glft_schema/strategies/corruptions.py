"""From a valid file broken ones, each with what has to be reported of it."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import reject
from hypothesis import strategies as st

from glft_schema.container import Container, format_named
from glft_schema.errors import SchemeError, shown
from glft_schema.file import File
from glft_schema.formats.format import Format
from glft_schema.strategies.breaking import Breaker, can_be_broken
from glft_schema.strategies.corruption import Corruption
from glft_schema.strategies.damage import DAMAGES, truncated
from glft_schema.strategies.sites import Site, sites

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
    if rule is not None:
        return broken(parsed, places)
    return broken(parsed, places, truncated(parsed)) | st.sampled_from(DAMAGES).flatmap(lambda damage: damage(parsed))


@st.composite
def broken(
    draw: st.DrawFn, file: File, places: Sequence[Site], otherwise: st.SearchStrategy[Corruption] | None = None
) -> Corruption:
    """Breaks one of the rules; where the file has no place for that, does something else, or gives the example up."""
    found = Breaker(draw, file).broken(draw(st.sampled_from(places)))
    if found is not None:
        return found
    return reject() if otherwise is None else draw(otherwise)
