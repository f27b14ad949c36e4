"""Where the bytes of a file go: its regions, and in the last of them the fields of each tensor type."""

from __future__ import annotations

from collections import Counter

from glft_schema.describe.byte_map import STEP, UNCLAIMED, byte_map
from glft_schema.file import File


def byte_counts(file: File) -> dict[str, int]:
    """Returns the bytes of each region before the payloads, of each field of each tensor type, and of gaps.

    Keys are such as ``header``, ``Q4_per_group_64 scales`` and ``gaps``, in file order of their first byte; together they are
    the whole file. Payloads that several tensors share count once.
    """
    counts: Counter[str] = Counter()
    gaps = 0
    for shard in file.shards:
        for stretch in byte_map(shard):
            region = stretch.path.partition(STEP)[0]
            if region != "data":
                counts[region or UNCLAIMED] += stretch.nbytes
            elif stretch.tensor is not None:
                field = stretch.name if stretch.node else "bytes"
                counts[f"{shard.tensors[stretch.tensor].dtype} {field}"] += stretch.nbytes
            else:
                gaps += stretch.nbytes
    return dict(counts) | {"gaps": gaps}
