"""What of a file is broken, in six aspects, and how often each is: the weights of all that breaks and damages files.

Which aspect a rule or a byte is of follows from the declaration: from the region that it is in, and from what the region is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from typing import TypeVar

from hypothesis import strategies as st

from glft_schema.codec.expressions import Reference, ValueOfKey, equality, read, subexpressions
from glft_schema.codec.rules import Rule
from glft_schema.codec.structs import Derived, Padding, Struct, is_count, unwrapped
from glft_schema.errors import FormatError
from glft_schema.files.parsing import trace_source
from glft_schema.formats.format import Format
from glft_schema.formats.registry import format_of
from glft_schema.storage.source import BytesSource
from glft_schema.tensors.region import TensorData
from glft_schema.testing.strategies.rule_sites import Site

T = TypeVar("T")

METADATA, TENSOR_INFO, HEADER = "metadata", "tensor info", "header"
CONSISTENCY = "consistency"  # of parts of a file with each other: counts, names and keys that come twice, overlaps
ALIGNMENT, DATA = "alignment", "data"

WEIGHTS = {METADATA: 35, TENSOR_INFO: 35, HEADER: 10, CONSISTENCY: 10, ALIGNMENT: 5, DATA: 5}  # percent

SPREAD = 1 << 24  # numbers among which hypothesis has no favourites; it draws the first ones of a short list far more often


def evenly(draw: st.DrawFn, choices: Sequence[T]) -> T:
    """Draws one of the choices, each about as often.

    Hypothesis copies drawn numbers, many a zero among them, over others of the same kind; of a sum it does not hit all parts.
    """
    return choices[sum(draw(st.integers(0, SPREAD - 1)) for _ in range(3)) % len(choices)]


def drawn_aspect(draw: st.DrawFn, among: Collection[str] = WEIGHTS.keys()) -> str:
    """Draws an aspect as often as `WEIGHTS` has it, one of those that are there."""
    return evenly(draw, [aspect for aspect, weight in WEIGHTS.items() if aspect in among for _ in range(weight)])


@st.composite
def aspects(draw: st.DrawFn) -> str:
    """Draws an aspect as often as `WEIGHTS` has it.

    To be drawn before the file that is broken: hypothesis also tries each beginning of an example with the simplest choices
    behind it.
    """
    return drawn_aspect(draw)


def aspect_of_rule(format: Format, site: Site) -> str:
    """Returns the aspect that a rule is about."""
    check, steps = site.check, _steps(format)
    if isinstance(check, Rule):
        expression = read(check.holds)
        names = (
            {name for part in subexpressions(expression) if isinstance(part, Reference) for name in part.names}
            if expression
            else {}
        )
        if steps.keys() & names or (equality(check.when) or ("", None))[1] in steps.values():
            return ALIGNMENT
    elif site.type is None and not (site.of_rows and site.region == format.table):
        return CONSISTENCY  # between rows
    return aspect_of_region(format, site.region or check.field)


def aspect_of_region(format: Format, region: str) -> str:
    """Returns the aspect that a region as a whole is of."""
    declared = next(unwrapped(part) for part in format.struct.subcons if part.name == region)
    if isinstance(declared, Padding):
        return ALIGNMENT
    if isinstance(declared, TensorData):
        return DATA
    if isinstance(declared, Struct):
        return HEADER
    return TENSOR_INFO if region == format.table else METADATA


@lru_cache(maxsize=16)
def places_by_aspect(stored: bytes) -> dict[str, list[tuple[int, int]]]:
    """Returns where the fields of a file begin and end, as far as it can be read, by aspect; of no format, all is data."""
    source = BytesSource(stored)
    try:
        format = format_of(source)
    except FormatError:
        return {DATA: [(0, len(stored))]}
    steps, keys = set(_steps(format).values()), dict[str, str]()
    found: dict[str, list[tuple[int, int]]] = {}
    for span in trace_source(format, source)[0]:
        row, _, name = span.path.rpartition(" -> ")
        if name == "key":
            keys[row] = span.value
        if span.has_parts or span.end in (None, span.start):
            continue
        aspect = aspect_of_region(format, span.path.partition(" -> ")[0])
        if aspect == HEADER and name in _counts(format):
            aspect = CONSISTENCY
        elif aspect == METADATA and keys.get(row) in steps:
            aspect = ALIGNMENT
        found.setdefault(aspect, []).append((span.start, span.end or span.start))
    return found or {DATA: [(0, len(stored))]}


def _steps(format: Format) -> dict[str, str]:
    """Returns the values that readers look up in the metadata by themselves, with their keys: what payloads are aligned to."""

    def looked_up() -> Iterator[tuple[str, str]]:
        for part in format.struct.subcons:
            if isinstance(declared := unwrapped(part), Derived) and isinstance(value := read(declared.of), ValueOfKey):
                yield part.name, value.key

    return dict(looked_up())


def _counts(format: Format) -> set[str]:
    """Returns the names of the fields that say how much of something there is."""
    structs = (unwrapped(part) for part in format.struct.subcons)
    return {part.name for struct in structs if isinstance(struct, Struct) for part in struct.subcons if is_count(part)}
