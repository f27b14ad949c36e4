"""Payloads from a file to a GPU: through two pinned buffers, so that reading, copying and computing go on at the same time.

Memory that the system may move can only be copied to a device piece by piece, by the driver, while the program waits. So a
payload is copied into pinned memory here, by all threads; from there the device fetches it by itself, on a stream of its own,
while the next piece goes into the other buffer and the formulas of earlier tensors run on the main stream.
"""

from __future__ import annotations

import threading
from functools import lru_cache

from glft_schema.lazy import torch

PIECE = 1 << 25  # bytes of a buffer


def to_device(tensor: torch.Tensor, device: str | torch.device) -> torch.Tensor:
    """Returns a tensor of the processor's memory on a device; on a GPU as soon as the current stream gets to it."""
    target = torch.device(device)
    if target == tensor.device:
        return tensor
    if target.type != "cuda" or tensor.is_cuda or not tensor.numel():
        return tensor.to(target)
    index = torch.cuda.current_device() if target.index is None else target.index
    return _uploads(index).upload(tensor)


class Uploads:
    """What copies to one GPU: a stream, and two pinned buffers that take turns.

    They are kept until the process ends. Tensors that are handed out as they were stored lie in memory of this stream, which
    torch uses again for uploads only.
    """

    def __init__(self, index: int) -> None:
        self.device = torch.device("cuda", index)
        self.stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        self.buffers = [torch.empty(PIECE, dtype=torch.uint8, device="cpu", pin_memory=True) for _ in range(2)]
        self.fetched = [torch.cuda.Event() for _ in self.buffers]  # type: ignore[no-untyped-call]
        self.turn = 0
        self._lock = threading.Lock()

    def upload(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a copy of `tensor` on the device, for the current stream, which waits for it."""
        stored, arrived = tensor.contiguous().view(-1).view(torch.uint8), torch.cuda.Event()  # type: ignore[no-untyped-call]
        with self._lock, torch.cuda.stream(self.stream):
            out = torch.empty(tensor.shape, dtype=tensor.dtype, device=self.device)
            flat = out.view(-1).view(torch.uint8)
            for start in range(0, len(stored), PIECE):
                part = stored[start : start + PIECE]
                buffer, fetched = self.buffers[self.turn][: len(part)], self.fetched[self.turn]
                fetched.synchronize()  # what was in the buffer is on the device
                buffer.copy_(part)
                flat[start : start + len(part)].copy_(buffer, non_blocking=True)
                fetched.record(self.stream)
                self.turn = 1 - self.turn
            arrived.record(self.stream)
        current = torch.cuda.current_stream(self.device)
        current.wait_event(arrived)
        out.record_stream(current)  # its memory belongs to the other stream, which may not use it again before
        return out


@lru_cache
def _uploads(index: int) -> Uploads:
    return Uploads(index)
