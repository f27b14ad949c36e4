"""Where the bytes of a file go: its regions, and in the last of them the fields of each tensor type."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from glft_schema.files.file import File
from glft_schema.files.parsing import region_starts
from glft_schema.tensors.region import TensorMap
from glft_schema.tensors.tensor import Place

PAYLOADS = "data"


def byte_counts(file: File) -> dict[str, int]:
    """Returns the bytes of each region before the payloads, of each field of each tensor type, and of gaps.

    Keys are such as ``header``, ``Q4_per_group_64 scales`` and ``gaps``, in file order of their first byte; together they are
    the whole file. Payloads that several tensors share count once.
    """
    counts: Counter[str] = Counter()
    gaps = 0
    for shard in file.shards:
        starts, tensors = region_starts(shard), shard.tensors
        assert isinstance(tensors, TensorMap)
        ends = [*starts.values(), shard.nbytes][1:]
        sizes = {name: end - start for (name, start), end in zip(starts.items(), ends, strict=True)}
        payloads = _payloads(sorted(set(tensors.places().values()), key=lambda place: place.offset))
        gaps += sizes.pop(PAYLOADS) - payloads.total()
        counts.update(sizes)
        counts.update(payloads)
    return {name: count for name, count in counts.items() if count} | {"gaps": gaps}


def _payloads(places: Sequence[Place]) -> Counter[str]:
    """Returns the bytes of payloads by type and field."""
    counts: Counter[str] = Counter()
    of_kind = Counter((place.dtype, place.shape, place.nbytes) for place in places)  # a model has many tensors of few shapes
    for (dtype, shape, nbytes), number in of_kind.items():
        if not dtype.is_known:
            counts[f"{dtype} bytes"] += number * nbytes
        else:
            counts.update({f"{dtype} {field}": number * size for field, (_, size) in dtype.field_spans(shape).items()})
    return counts
