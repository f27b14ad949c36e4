"""The bytes of a file by region, and within the payloads by tensor type and field."""

from __future__ import annotations

from collections import Counter

from glft_schema.files.container import as_file
from glft_schema.files.file import File
from glft_schema.files.parsing import starts_of
from glft_schema.storage.source import StrPath
from glft_schema.tensors.region import TensorMap

PAYLOADS = "data"  # the region of payloads, in every format
GAPS = "gaps"  # key of the bytes that belong to no field


def byte_counts(file: File | StrPath) -> dict[str, int]:
    """Returns the bytes of each region, of each field of each tensor type, and of gaps.

    Keys such as ``header``, ``Q4_per_group_64 scales`` and ``gaps`` are in the order of their first
    bytes. The counts add up to the size of the file. A payload that several tensors share counts
    once.

    Args:
        file: an open file or set, or a path.

    Raises:
        FormatError, OSError: if the file at a path cannot be opened.
    """
    counts: Counter[str] = Counter()
    gaps = 0
    for shard in as_file(file).shards:
        starts, tensors = starts_of(shard, filter(None, (field.name for field in shard.format.struct.subcons))), shard.tensors
        assert isinstance(tensors, TensorMap)
        ends = [*starts.values(), shard.nbytes][1:]
        sizes = {name: end - start for (name, start), end in zip(starts.items(), ends, strict=True)}
        payloads: Counter[str] = Counter()
        places = sorted(set(tensors.places().values()), key=lambda place: place.offset)
        kinds = Counter((place.type, place.shape, place.nbytes) for place in places)  # few
        for (dtype, shape, nbytes), number in kinds.items():
            spans = dtype.field_spans(shape) if dtype.is_known else {"bytes": (0, nbytes)}
            payloads.update({f"{dtype} {field}": number * size for field, (_, size) in spans.items()})
        gaps += sizes.pop(PAYLOADS, 0) - payloads.total()
        counts.update(sizes)
        counts.update(payloads)
    return {name: count for name, count in counts.items() if count} | {GAPS: gaps}
