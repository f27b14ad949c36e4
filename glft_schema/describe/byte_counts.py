"""Where the bytes of a file go: its regions, and in the last of them the fields of each tensor type."""

from __future__ import annotations

from collections import Counter

from glft_schema.container import trace_regions
from glft_schema.file import File


def byte_counts(file: File) -> dict[str, int]:
    """Returns the bytes of each region before the payloads, of each field of each tensor type, and of gaps.

    Keys are such as ``header``, ``Q4_per_group_64 scales`` and ``gaps``, in file order of their first byte; together they are
    the whole file. Payloads that several tensors share count once.
    """
    counts: Counter[str] = Counter()
    for shard in file.shards:
        regions = trace_regions(shard)
        counts.update({span.path: (span.end or 0) - span.start for span in regions if span.path != "data"})
        for tensor in sorted(
            {tensor.place: tensor for tensor in shard.tensors.values()}.values(), key=lambda tensor: tensor.offset
        ):
            places = tensor.dtype.places(tensor.shape) or {"bytes": (0, tensor.nbytes)}
            counts.update({f"{tensor.dtype} {field}": nbytes for field, (_, nbytes) in places.items() if nbytes})
        counts["gaps"] += sum(gap.nbytes for gap in shard.tensors.gaps)
    return {name: nbytes for name, nbytes in counts.items() if nbytes and name != "gaps"} | {"gaps": counts["gaps"]}
