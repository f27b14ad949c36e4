"""Where the bytes of a file go: its regions, and in the last of them the fields of each tensor type."""

from __future__ import annotations

from glft_schema.container import trace_regions
from glft_schema.file import File


def byte_counts(file: File) -> dict[str, int]:
    """Returns the bytes of each region before the payloads, of each field of each tensor type, and of gaps.

    Keys are such as ``header``, ``Q4_per_group_64 scales`` and ``gaps``, in file order of their first byte; together they are
    the whole file. Payloads that several tensors share count once.
    """
    counts = {span.path: span.end - span.start for span in trace_regions(file) if span.end is not None}
    del counts["data"]
    for place in sorted({file.tensors.place(name) for name in file.tensors}, key=lambda place: place.offset):
        for field, (_, nbytes) in place.dtype.places(place.shape).items():
            if nbytes:
                counts[f"{place.dtype} {field}"] = counts.get(f"{place.dtype} {field}", 0) + nbytes
    counts["gaps"] = sum(gap.nbytes for gap in file.tensors.gaps)
    return counts
