"""A planned file as spans of bytes: payloads, and bytes that belong to none."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice, takewhile
from typing import NamedTuple

from glft_schema.codec.context import ByteOrder
from glft_schema.distributed.costs import cost
from glft_schema.distributed.units import CostedSpan, Unit, units_of
from glft_schema.files.layout import Layout
from glft_schema.tensors.region import Payload
from glft_schema.weights.payloads import PlannedPayload, Source

Seen = Callable[[PlannedPayload, slice, Source], None]


class PlannedSpan(NamedTuple):
    """Bytes of a file: a payload, or bytes that belong to none."""

    start: int
    nbytes: int
    content: PlannedPayload | bytes

    def part(self, first: int, last: int) -> tuple[int, int]:
        """Returns positions `first` and `last` of the file relative to the span, clipped to it."""
        return max(first - self.start, 0), min(last - self.start, self.nbytes)

    def pieces(self, first: int, last: int, order: ByteOrder, seen: Seen | None = None) -> Iterator[tuple[int, memoryview]]:
        """Yields the file's bytes `first` to `last` that lie in the span, in pieces with positions.
        `seen` is called with the payload, rows and their source."""
        first, last = self.part(first, last)
        if isinstance(self.content, bytes):
            yield self.start + first, memoryview(self.content)[first:last]
        elif first < last:
            for at, piece in self.content.span(first, last, order, partial(seen, self.content) if seen else None):
                yield self.start + at, piece

    @property
    def in_order(self) -> bool:
        """Whether pieces are yielded in the order of the file."""
        return isinstance(self.content, bytes) or len(list(self.content.type.fields())) < 2

    @property
    def cost(self) -> float:
        return 0.0 if isinstance(self.content, bytes) else cost(self.content)

    @property
    def name(self) -> str | None:
        """The tensor's name, or None."""
        return None if isinstance(self.content, bytes) else self.content.name


def spans_of(layout: Layout) -> list[PlannedSpan]:
    """Returns the spans of a planned file, in order, without padding that a new file has anyway."""
    spans = []
    for start, nbytes, content in layout.spans:
        content = content.content if isinstance(content, Payload) else content
        if nbytes and isinstance(content, (bytes, PlannedPayload)):
            spans.append(PlannedSpan(start, nbytes, content))
    return spans


def units_in(spans: Sequence[PlannedSpan], nbytes: int) -> list[Unit]:
    """Returns the units of a file of `nbytes` bytes."""
    return units_of([CostedSpan(span.start, span.nbytes, span.cost) for span in spans], nbytes)


def spans_between(spans: Sequence[PlannedSpan], first: int, last: int) -> Iterator[PlannedSpan]:
    """Yields the spans that overlap bytes `first` to `last`, in order."""
    start = bisect_right(spans, first, key=lambda span: span.start + span.nbytes)
    return takewhile(lambda span: span.start < last, islice(spans, start, None))
