"""Hashes of the source of each unit of a file, so that a later run can detect changes.

The values are hashed as the encoder gets them, whatever they come from: a mapped file, a torch
file, the operations of a family, memory. Rows are hashed in groups at fixed positions, because the
number of ranks determines which rows are read at once.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence

from glft_schema.codec.context import ByteOrder
from glft_schema.distributed.spans import PlannedSpan, spans_between
from glft_schema.distributed.units import Unit
from glft_schema.storage.tensor_bytes import array_bytes
from glft_schema.tensor_types.engine.chunks import slices
from glft_schema.weights.payloads import PlannedPayload, Source


class Origins:
    """Hashes of the groups of rows that have been read.

    Args:
        spans: of the file.
        order: its byte order.
    """

    def __init__(self, spans: Sequence[PlannedSpan], order: ByteOrder) -> None:
        self._spans, self._order = spans, order
        self._groups: defaultdict[str, dict[int, bytes]] = defaultdict(dict)  # by tensor and first row

    def add(self, payload: PlannedPayload, rows: slice, source: Source) -> None:
        """Hashes the source of some rows, which begin and end at groups."""
        count = rows.stop - rows.start
        matrices = [array.reshape(count, array.size // count) for array in source.values()]
        for group in slices(count, payload.group):
            total = hashlib.sha256()
            for matrix in matrices:
                total.update(array_bytes(matrix[group]))
            self._groups[payload.name][rows.start + group.start] = total.digest()

    def of_unit(self, unit: Unit) -> str:
        """Returns the SHA-256 for a unit whose rows have been added. Call it for units in order.

        Bytes that are copied from a file are not included: they must equal the source's.
        """
        total = hashlib.sha256()
        for span in spans_between(self._spans, unit.start, unit.stop):
            payload = span.content
            if isinstance(payload, bytes):
                continue
            for rows in payload.chunks_between(*span.part(unit.start, unit.stop), self._order):
                for group in slices(rows.stop, payload.group, rows.start) if rows else ():
                    total.update(self._groups[payload.name][group.start])
            if span.start + span.nbytes <= unit.stop:
                self._groups.pop(payload.name, None)
        return total.hexdigest()
