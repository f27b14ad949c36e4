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
    shared = set()
    for tensor in sorted(file.tensors.values(), key=lambda tensor: tensor.offset):
        for field, (start, nbytes) in tensor.dtype.places(tensor.dims).items():
            place = (tensor.offset + start, nbytes)
            if place not in shared and nbytes:
                shared.add(place)
                key = f"{tensor.dtype} {field}"
                counts[key] = counts.get(key, 0) + nbytes
    counts["gaps"] = sum(gap.nbytes for gap in file.tensors.gaps)
    return counts
