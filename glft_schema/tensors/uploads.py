"""Copies of payloads to a GPU.

A payload is copied in pieces. Several threads read pieces of a file, or of memory, straight into
pinned buffers, and the device fetches each on a separate stream, while the next ones are read and
formulas of earlier tensors run on the main stream. From pageable memory, the driver would copy in
small steps while the program waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from queue import SimpleQueue
from typing import Any

from glft_schema.lazy import torch
from glft_schema.storage.dtypes import Dtype
from glft_schema.storage.source import Source
from glft_schema.storage.tensor_bytes import read_array
from glft_schema.storage.torch_tensors import as_tensor, dtype_in_torch, usable_device
from glft_schema.tensor_types import workers

PIECE, BUFFERS = 1 << 23, 16  # bytes of a pinned buffer, and their number


def start_upload(
    device: str | torch.device, source: Source, start: int, dtype: Dtype, shape: Sequence[int]
) -> Callable[[], torch.Tensor]:
    """Starts to copy numbers of a source, from byte `start`, to a device.

    Returns a function that returns them as a tensor of `shape`. On a GPU, the copy is asynchronous
    in the order of its current stream. The function raises as `Source.view`.

    Raises OptionError as `usable_device`.
    """
    target = usable_device(device)
    if target.type != "cuda":
        return partial(as_tensor(read_array(source, start, dtype, shape)).to, target)
    stream, free = _stream_and_buffers(target)
    with torch.cuda.stream(stream):  # tensors in their stored dtype hold memory that only uploads reuse
        out = torch.empty(tuple(shape), dtype=dtype_in_torch(dtype), device=target)
    flat = out.view(-1).view(torch.uint8)

    def copy(part: slice) -> None:
        buffer, fetched = free.get()
        try:
            there = flat[part]
            here = buffer[: len(there)]
            fetched.synchronize()  # the buffer's previous content is on the device
            source.read_into(here.numpy(), start, len(flat), part.start)
            with torch.inference_mode(), torch.cuda.stream(stream):  # `out` may be a tensor of this mode
                there.copy_(here, non_blocking=True)
                fetched.record(stream)
        finally:
            free.put((buffer, fetched))

    started = [workers.start(partial(copy, part)) for part in workers.parts_of(len(flat), PIECE, PIECE)]

    def finish() -> torch.Tensor:
        for wait in started:
            wait()
        current = torch.cuda.current_stream(target)
        current.wait_stream(stream)
        out.record_stream(current)  # keeps the upload stream from reusing the memory too early
        return out

    return finish


@lru_cache
def _stream_and_buffers(device: torch.device) -> tuple[torch.cuda.Stream, SimpleQueue[Any]]:
    """Returns the upload stream of a GPU, and its pinned buffers, each with an event that tells
    when the device has fetched it. Kept until exit."""
    free = SimpleQueue[Any]()
    for buffer in torch.empty(BUFFERS, PIECE, dtype=torch.uint8, device="cpu", pin_memory=True):
        free.put((buffer, torch.cuda.Event(blocking=True)))  # type: ignore[no-untyped-call]
    return torch.cuda.Stream(device), free  # type: ignore[no-untyped-call]
