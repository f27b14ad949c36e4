"""A planned file divided among ranks: each writes consecutive bytes, of about equal costs."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from glft_schema.codec.context import ByteOrder
from glft_schema.files.layout import Layout
from glft_schema.tensors.region import Payload
from glft_schema.weights.payloads import PlannedPayload

PAGE = 1 << 20  # bytes; shares meet at its multiples, as clients of a network file system may lose the end of a page
# Nanoseconds to encode a weight on one core, by type. Measured on one core of a Xeon with AVX-512
# and torch 2.13, for rows of 4096 normal numbers; only the ratios matter.
NANOSECONDS = {
    "f64": 2.4,
    "f32": 0.4,
    "f16": 1.0,
    "bf16": 1.1,
    "q8_per_channel": 0.7,
    "q4_per_group_64": 1.0,
    "q4_0": 1.1,
    "q4_1": 3.2,
    "q5_0": 1.2,
    "q5_1": 3.0,
    "q8_0": 1.1,
    "q8_1": 1.2,
    "q8_k": 1.4,
    "q2_k": 11.1,
    "q3_k": 3.9,
    "q4_k": 11.8,
    "q5_k": 10.0,
    "q6_k": 6.4,
    "iq1_s": 34,
    "iq1_m": 38,
    "iq2_xxs": 144,
    "iq2_xs": 250,
    "iq2_s": 131,
    "iq3_xxs": 261,
    "iq3_s": 206,
    "iq4_nl": 12.1,
    "iq4_xs": 13.0,
    "tq1_0": 1.3,
    "tq2_0": 0.8,
    "mxfp4": 1.6,
    "nvfp4": 2.3,
    "q1_0": 0.7,
    "q2_0": 1.1,
}
OTHERS = 5.0  # of types that are not in the table
A_BYTE = 1.0  # nanoseconds to read and write a byte


class PlannedSpan(NamedTuple):
    """Bytes of a file: a payload, or bytes that belong to none."""

    start: int
    nbytes: int
    content: PlannedPayload | bytes

    @property
    def cost(self) -> float:
        """Nanoseconds that one core takes to write it, about; the same on all ranks."""
        if isinstance(self.content, bytes):
            return 0.0
        is_encoded = not (self.content.copy_of or self.content.is_unchanged)
        a_weight = NANOSECONDS.get(self.content.type.scheme, OTHERS) if is_encoded else 0.0
        return self.nbytes * A_BYTE + self.content.stored.numel * a_weight

    @property
    def name(self) -> str | None:
        """The tensor's name, or None."""
        return None if isinstance(self.content, bytes) else self.content.name


class Task(NamedTuple):
    """Bytes of a file that a rank writes at once.

    Attributes:
        span: of the file.
        first, last: bytes of the file.
        rows: rows of the matrix to encode; None for bytes that are not encoded.
    """

    span: PlannedSpan
    first: int
    last: int
    rows: slice | None

    def pieces(self, order: ByteOrder) -> Iterator[tuple[int, memoryview]]:
        """Yields the bytes in pieces, each with its position in the file."""
        start, content = self.span.start, self.span.content
        if isinstance(content, bytes):
            yield self.first, memoryview(content)[self.first - start : self.last - start]
            return
        for at, piece in content.pieces(self.rows, self.first - start, self.last - start, order):
            yield start + at, piece


def spans_of(layout: Layout) -> list[PlannedSpan]:
    """Returns the spans of a planned file, in order, without padding that a new file has anyway."""
    spans = []
    for start, nbytes, content in layout.spans:
        content = content.content if isinstance(content, Payload) else content
        if nbytes and isinstance(content, (bytes, PlannedPayload)):
            spans.append(PlannedSpan(start, nbytes, content))
    return spans


def tasks_of(layout: Layout, ranks: int) -> list[Iterator[Task]]:
    """Returns the tasks of each rank, in the order of the file."""
    spans = spans_of(layout)
    return [_tasks(spans, first, last, layout.order) for first, last in pairwise(_cuts(spans, layout.nbytes, ranks))]


def _cuts(spans: Sequence[PlannedSpan], nbytes: int, ranks: int) -> list[int]:
    """Returns the positions at which the shares of ranks begin, and the end of the file."""
    ends, cuts = list(accumulate(span.cost for span in spans)), [0]
    for rank in range(1, ranks):
        wanted = ends[-1] * rank / ranks if ends else 0.0
        at = bisect_left(ends, wanted)
        position = 0
        if wanted:
            span = spans[at]
            position = span.start + round(span.nbytes * (1 - (ends[at] - wanted) / span.cost))
        cuts.append(min(-(-position // PAGE) * PAGE, nbytes))
    return [*cuts, nbytes]


def _tasks(spans: Sequence[PlannedSpan], first: int, last: int, order: ByteOrder) -> Iterator[Task]:
    """Yields the tasks of bytes `first` to `last` of a file."""
    for span in spans:
        start, stop = max(first, span.start), min(last, span.start + span.nbytes)
        if start < stop:
            chunks: Sequence[slice | None] = [None]
            if isinstance(span.content, PlannedPayload):
                chunks = span.content.chunks_between(start - span.start, stop - span.start, order)
            yield from (Task(span, start, stop, rows) for rows in chunks)
