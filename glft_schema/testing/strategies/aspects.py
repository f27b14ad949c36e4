"""Six aspects of a file, and the probability of corruptions and damage in each.

The aspect of a rule or byte follows from the schema node of its region.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import TypeVar

from hypothesis import strategies as st

from glft_schema.codec.expressions import equality, references_in
from glft_schema.codec.json_table import JsonRule
from glft_schema.codec.rules import Rule
from glft_schema.describe.nodes import PaddingNode, PayloadsNode, RefNode
from glft_schema.describe.schema import struct_of
from glft_schema.errors import FormatError
from glft_schema.files.parsing import trace_source
from glft_schema.formats.format import Format
from glft_schema.formats.registry import format_of
from glft_schema.storage.source import BytesSource
from glft_schema.testing.strategies.rule_locations import RuleLocation

T = TypeVar("T")

METADATA, TENSOR_INFO, HEADER = "metadata", "tensor info", "header"
CONSISTENCY = "consistency"  # between parts of a file: counts, duplicate names and keys, overlaps
ALIGNMENT, DATA = "alignment", "data"

WEIGHTS = {METADATA: 35, TENSOR_INFO: 35, HEADER: 10, CONSISTENCY: 10, ALIGNMENT: 5, DATA: 5}  # percent

SPREAD = 1 << 24  # hypothesis draws evenly from this many numbers, but prefers the first of a few


def evenly(draw: st.DrawFn, choices: Sequence[T]) -> T:
    """Draws one of the choices with equal probability.

    Draws a sum, since hypothesis often repeats numbers or draws 0, but rarely for all terms.
    """
    return choices[sum(draw(st.integers(0, SPREAD - 1)) for _ in range(3)) % len(choices)]


def draw_aspect(draw: st.DrawFn, among: Collection[str] = WEIGHTS.keys()) -> str:
    """Draws an aspect by its weight in `WEIGHTS`."""
    return evenly(draw, [aspect for aspect, weight in WEIGHTS.items() if aspect in among for _ in range(weight)])


# Draw aspects before the file: hypothesis also tries prefixes of examples, followed by zeros.
aspects = st.composite(draw_aspect)


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


def aspect_of_region(format: Format, region: str) -> str:
    """Returns the aspect of a region as a whole."""
    node = struct_of(format.struct).field(region).node
    if isinstance(node, PaddingNode):
        return ALIGNMENT
    if isinstance(node, PayloadsNode):
        return DATA
    if isinstance(node, RefNode):
        return HEADER
    return TENSOR_INFO if region == format.table else METADATA


@lru_cache(maxsize=16)
def spans_by_aspect(stored: bytes) -> dict[str, list[tuple[int, int]]]:
    """Returns start and end of each field, by aspect; a file of an unknown format is data."""
    source = BytesSource(stored)
    try:
        format = format_of(source)
    except FormatError:
        return {DATA: [(0, len(stored))]}
    keys = dict[str, str]()
    spans: dict[str, list[tuple[int, int]]] = {}
    for span in trace_source(format, source)[0]:
        row, _, name = span.path.rpartition(" -> ")
        if name == "key":
            keys[row] = span.value
        if span.has_parts or span.end in (None, span.start):
            continue
        aspect = aspect_of_region(format, span.path.partition(" -> ")[0])
        if aspect == HEADER and name in _counts(format):
            aspect = CONSISTENCY
        elif aspect == METADATA and row in keys and keys[row] == format.alignment_key:
            aspect = ALIGNMENT
        spans.setdefault(aspect, []).append((span.start, span.end or span.start))
    return spans or {DATA: [(0, len(stored))]}


def _counts(format: Format) -> set[str]:
    """Returns the names of the fields that are counts."""
    nodes = [part.node for part in struct_of(format.struct).fields]
    return {
        part.name for node in nodes if isinstance(node, RefNode) for part in struct_of(node.declared).fields if part.is_count
    }
