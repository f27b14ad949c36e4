"""Files that break one rule or field of a valid file, with the expected error or findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypothesis import reject
from hypothesis import strategies as st

from glft_schema.codec.expressions import equality, references_in
from glft_schema.codec.json_table import JsonRule
from glft_schema.codec.rules import Rule
from glft_schema.errors import OptionError, quote
from glft_schema.files.container import Container
from glft_schema.files.file import File
from glft_schema.formats.format import Format
from glft_schema.formats.registry import format_named
from glft_schema.testing.damage import ALIGNMENT, CONSISTENCY, WEIGHTS, Corruption, aspect_of_region, draw_aspect, evenly
from glft_schema.testing.faults import FIELD_FAULTS, Breaker, FieldFault, RuleLocation, rule_locations

TRIES = 8  # to break a rule or field of an aspect, before another aspect is tried

Choices = tuple[Sequence[Sequence[RuleLocation]], Sequence[FieldFault]]


def rule_ids(format: str | Format) -> list[str]:
    """Returns the ids of the rules of a format and of its tensor types, in order.

    Raises:
        OptionError: for an unknown format.
    """
    declared = format if isinstance(format, Format) else format_named(format)
    return list(dict.fromkeys(location.check.id for location in rule_locations(declared)))


def distinct_rules(format: Format) -> list[str]:
    """Returns the ids of a format's rules. Tensor-type rules with equal sentences give one id."""
    rules = {at.check.id if at.type is None else at.check.expected: at.check.id for at in rule_locations(format)}
    return list(rules.values())


def aspect_of_rule(format: Format, location: RuleLocation) -> str:
    """Returns the aspect of a rule."""
    check = location.check
    if isinstance(check, Rule):
        names = {name for reference in references_in(check.condition) for name in reference.names}
        if "alignment" in names or equality(check.when) == ("key", format.alignment_key):
            return ALIGNMENT
    elif not location.of_rows and not isinstance(check, JsonRule):
        return CONSISTENCY  # between rows
    return aspect_of_region(format, location.region or check.field)


def corruptions(file: File | bytes, rule: str | None = None, *, aspect: str | None = None) -> st.SearchStrategy[Corruption]:
    """Returns a strategy of broken files that are made from a valid one.

    Args:
        file: the valid file, opened or as bytes.
        rule: the id of the rule to break; see `rule_ids`. By default any rule is broken, or a field
            without a rule: cut off, with an unknown type, a count that is too large, text that is
            not UTF-8, a faulty metadata line or JSON text, or an offset outside of the file or
            within another payload.
        aspect: the aspect to break, one of `damage.WEIGHTS`, if the file has it. By default each
            aspect is drawn by its weight.

    Raises:
        OptionError: for an unknown rule, or a rule without known values that break it.
        FormatError: if `file` is not valid.
    """
    parsed = file if isinstance(file, File) else Container.parse(file)
    locations = [location for location in rule_locations(parsed.format) if rule in (None, location.check.id)]
    if not locations and rule is not None:
        raise OptionError(f"expected a {parsed.format.name} rule ({', '.join(rule_ids(parsed.format))}), found {quote(rule)}")

    if not (locations := [location for location in locations if location.can_be_broken]) and rule is not None:
        raise OptionError(f"no values are known that break {quote(rule)}: declare some as `broken_by` of its predicate")
    rules: dict[str, dict[str, list[RuleLocation]]] = {name: {} for name in WEIGHTS}
    for location in locations:
        fault = location.check.id if location.type is None else location.check.field  # one fault for all tensor types
        rules[aspect_of_rule(parsed.format, location)].setdefault(fault, []).append(location)
    choices = {name: (list(rules[name].values()), FIELD_FAULTS[name] if rule is None else ()) for name in WEIGHTS}
    return break_file(parsed, {name: choice for name, choice in choices.items() if any(choice)}, aspect)


@st.composite
def break_file(draw: st.DrawFn, file: File, choices: Mapping[str, Choices], aspect: str | None) -> Corruption:
    """Breaks a rule or, in a third of the examples, a field.

    All rules of an aspect are equally likely, and so are its faults of fields. The rules of tensor
    types on the same field count as one rule.

    Args:
        draw: the draw function of a composite strategy.
        file: the valid file.
        choices: the rules, each with its locations, and the faults of fields of each aspect.
        aspect: the first aspect to try; others follow if the file has nothing to break there.
    """
    left, breaker = dict(choices), Breaker(draw, file)
    while left:
        rules, faults = left.pop(aspect if aspect in left else draw_aspect(draw, left))
        for _ in range(TRIES if faults else 1):
            if faults and (not rules or evenly(draw, (False, False, True))):
                corruption = evenly(draw, faults)(breaker)
            else:
                corruption = breaker.break_rule(evenly(draw, evenly(draw, rules)))
            if corruption is not None:
                return corruption if not breaker.is_unchanged(corruption.stored) else reject()
    return reject()
