"""Exchange of the parts of tensors that one rank encodes and another one holds.

All ranks know which rank holds each part, and what each rank encodes next. Each rank computes what
to send and to receive, so no requests are sent.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cache
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.lib.stride_tricks import as_strided
from torch import distributed

from glft_schema.errors import TensorError
from glft_schema.storage.dtypes import Array, Dtype
from glft_schema.tensors.stored_tensor import Slices, StoredTensor

TAG = 0x676C  # of messages, to tell them from those of other code in the group


class Chunk(NamedTuple):
    """A part of a tensor that a rank holds.

    Attributes:
        offsets: index of its first element in the tensor.
        sizes: its shape.
        rank: the rank that holds it.
    """

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    rank: int


class Request(NamedTuple):
    """A part of a tensor that a rank needs."""

    name: str
    ranges: tuple[range, ...]

    @property
    def shape(self) -> list[int]:
        return [len(part) for part in self.ranges]


class Piece(NamedTuple):
    """A part of a request that one rank holds.

    Attributes:
        chunk: the chunk that contains it.
        held: its slices of the chunk.
        wanted: its slices of the request.
    """

    chunk: Chunk
    held: Slices
    wanted: Slices

    @property
    def numbers(self) -> int:
        """The number of its elements."""
        return math.prod(part.stop - part.start for part in self.wanted)


class Cut:
    """The chunks of tensors that are cut in the same way, in order."""

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        self.chunks = sorted(chunks)
        self.starts = [chunk.offsets[:1] for chunk in self.chunks]
        self.tallest = max((chunk.sizes[:1] or (1,))[0] for chunk in self.chunks)


# Lists of chunks that do not overlap; and for each tensor: name, shape, dtype, index of its list.
Entries = list[Any]


class Holdings:
    """The ranks that hold each part of a tensor.

    Args:
        cuts: the chunks of each tensor, by name.
    """

    def __init__(self, cuts: Mapping[str, Cut]) -> None:
        self._cuts = cuts

    @classmethod
    def of(cls, entries: Entries) -> Holdings:
        """Returns the holdings of `Entries`, also after a round trip through JSON."""
        lists, tensors = entries
        cuts = [Cut([Chunk(tuple(offsets), tuple(sizes), rank) for offsets, sizes, rank in chunks]) for chunks in lists]
        return cls({name: cuts[number] for name, _, _, number in tensors})

    def pieces(self, request: Request) -> list[Piece]:
        """Returns the pieces of a request, always in the same order.

        Raises:
            TensorError: if no rank holds a part of it.
        """
        name, ranges = request
        cut, first = self._cuts[name], 0
        if ranges:
            first = bisect_left(cut.starts, (ranges[0].start - cut.tallest + 1,))
        listed, numbers = [], 0
        for chunk in islice(cut.chunks, first, None):
            if ranges and chunk.offsets[0] >= ranges[0].stop:
                break
            parts = [_common(*part) for part in zip(ranges, chunk.offsets, chunk.sizes, strict=True)]
            if all(targets.start < targets.stop for _, targets in parts):
                listed.append(Piece(chunk, tuple(sources for sources, _ in parts), tuple(targets for _, targets in parts)))
                numbers += listed[-1].numbers
        if numbers != math.prod(request.shape):
            raise TensorError(f"expected {math.prod(request.shape)} numbers in the shards of all ranks, found {numbers}", name)
        return listed


def _common(wanted: range, offset: int, size: int) -> tuple[slice, slice]:
    """Returns the wanted indices of a chunk's dim, and their positions in the wanted range."""
    first = max(-(-(offset - wanted.start) // wanted.step), 0)
    last = min(-(-(offset + size - wanted.start) // wanted.step), len(wanted))
    held = wanted[first : max(last, first)]
    return slice(held.start - offset, held.stop - offset, held.step), slice(first, max(last, first))


class Remote:
    """The tensors that ranks hold, as tensors to be written.

    After `noting`, reads are recorded and return zeros. After `answer`, reads return the values.
    """

    def __init__(self) -> None:
        self._noted: list[Request] | None = None
        self._answers: dict[Request, Array] = {}

    def tensor(self, name: str, shape: tuple[int, ...], dtype: Dtype) -> StoredTensor:
        """Returns a tensor that ranks hold."""

        def read(index: Slices) -> Array:
            request = Request(name, tuple(range(size)[part] for size, part in zip(shape, index, strict=True)))
            if self._noted is None:
                return self._answers[request]
            self._noted.append(request)
            return as_strided(np.zeros(1, np.uint8), request.shape, [0] * len(shape))  # takes no memory

        return StoredTensor(shape, dtype, lambda: read(tuple(slice(0, size) for size in shape)), read=read)

    def noting(self) -> list[Request]:
        """Begins to record reads. Returns the list that they are added to."""
        self._noted = []
        return self._noted

    def answer(self, answers: dict[Request, Array]) -> None:
        """Answers reads from now on."""
        self._noted, self._answers = None, answers


class Exchange:
    """Messages between ranks through gloo.

    Args:
        group: the ranks; all of them by default.
        timeout: seconds to wait for a message.
    """

    def __init__(self, group: distributed.ProcessGroup | None, timeout: float) -> None:
        self._ranks, self._group = [0], group
        self._timeout = timedelta(seconds=timeout)
        if distributed.is_initialized():
            self._ranks = distributed.get_process_group_ranks(group)
            if "gloo" not in str(distributed.get_backend_config(group)):
                self._group = _gloo(tuple(self._ranks), len(self._ranks) < distributed.get_world_size())

    def messages(self, outgoing: Mapping[int, torch.Tensor], incoming: Mapping[int, int]) -> dict[int, torch.Tensor]:
        """Sends u8 [bytes] to other ranks, and returns their messages.

        Args:
            outgoing: by rank.
            incoming: the number of bytes, by rank.

        Raises:
            RuntimeError: if a rank is gone, or after the timeout.
        """
        received = {rank: torch.empty(nbytes, dtype=torch.uint8) for rank, nbytes in incoming.items()}
        works = [distributed.irecv(buffer, self._ranks[rank], self._group, TAG) for rank, buffer in received.items()]
        works += [distributed.isend(message, self._ranks[rank], self._group, TAG) for rank, message in outgoing.items()]
        for work in works:
            if work is not None:
                work.wait(self._timeout)
        return received


@cache  # torch cannot reuse the name of a group that has ended
def _gloo(ranks: tuple[int, ...], is_part: bool) -> distributed.ProcessGroup:
    """Returns a new gloo group of ranks whose group has no gloo. All of them must call it."""
    group: distributed.ProcessGroup = distributed.new_group(list(ranks), backend="gloo", use_local_synchronization=is_part)
    return group
