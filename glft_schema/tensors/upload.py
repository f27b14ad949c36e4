"""Uploads to a GPU through two pinned buffers, so that reading, copying and computing overlap. From
pageable memory, the driver would copy in small steps while the program waits. Instead, all threads
copy a payload into pinned memory. The device fetches it on a separate stream while the next piece
fills the other buffer and formulas of earlier tensors run on the main stream.
"""

from __future__ import annotations

import threading
from functools import lru_cache

from glft_schema.errors import OptionError, one_line, quote
from glft_schema.lazy import torch

FRAMEWORKS = ("pt", "pt2", "torch", "pytorch", "np", "numpy", "tf", "tensorflow", "flax", "jax", "mlx", "paddle")
PIECE = 1 << 25  # bytes per buffer


def usable_device(device: str | torch.device) -> torch.device:
    """Returns a device. Raises OptionError if torch does not know it or cannot use it."""
    problem = f"expected a device that torch can use here, such as 'cpu', found {quote(device)}"
    if device in FRAMEWORKS:
        raise OptionError(f"{problem}, which is a framework of safetensors' safe_open: leave it out")
    if not isinstance(device, (str, int, torch.device)):
        raise OptionError(problem)
    try:
        torch.empty(0, device=device)
        return torch.device(device)
    except (ImportError, RuntimeError, AssertionError) as error:
        raise OptionError(f"{problem}: {one_line(str(error), 120)}") from None


def torch_dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """Returns a dtype, given as such or by name. Raises OptionError if torch does not have it."""
    found = getattr(torch, dtype.removeprefix("torch."), None) if isinstance(dtype, str) else dtype
    if dtype is None or isinstance(found, torch.dtype):
        return found
    raise OptionError(f"expected a dtype of torch, such as torch.float16 or 'float16', found {quote(dtype)}")


def to_device(tensor: torch.Tensor, device: str | torch.device) -> torch.Tensor:
    """Copies a CPU tensor to a device. On a GPU, the copy is asynchronous in stream order.

    Raises OptionError as `usable_device`.
    """
    target = usable_device(device)
    if target == tensor.device:
        return tensor
    if target.type != "cuda" or tensor.is_cuda or not tensor.numel():
        return tensor.to(target)
    index = torch.cuda.current_device() if target.index is None else target.index
    return _uploads(index).upload(tensor)


class Uploads:
    """The upload stream of one GPU and its two pinned buffers, used in turn. Kept until exit.

    Tensors returned in their stored dtype hold memory of this stream, which only uploads reuse.
    """

    def __init__(self, index: int) -> None:
        self.device = torch.device("cuda", index)
        self.stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        self.buffers = [torch.empty(PIECE, dtype=torch.uint8, device="cpu", pin_memory=True) for _ in range(2)]
        self.fetched = [torch.cuda.Event() for _ in self.buffers]  # type: ignore[no-untyped-call]
        self.turn = 0
        self._lock = threading.Lock()

    def upload(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a copy of `tensor` on the device. The current stream waits for it."""
        stored, arrived = tensor.contiguous().view(-1).view(torch.uint8), torch.cuda.Event()  # type: ignore[no-untyped-call]
        with self._lock, torch.cuda.stream(self.stream):
            out = torch.empty(tensor.shape, dtype=tensor.dtype, device=self.device)
            flat = out.view(-1).view(torch.uint8)
            for start in range(0, len(stored), PIECE):
                part = stored[start : start + PIECE]
                buffer, fetched = self.buffers[self.turn][: len(part)], self.fetched[self.turn]
                fetched.synchronize()  # the buffer's previous content is on the device
                buffer.copy_(part)
                flat[start : start + len(part)].copy_(buffer, non_blocking=True)
                fetched.record(self.stream)
                self.turn = 1 - self.turn
            arrived.record(self.stream)
        current = torch.cuda.current_stream(self.device)
        current.wait_event(arrived)
        out.record_stream(current)  # keeps the upload stream from reusing the memory too early
        return out


_uploads = lru_cache(Uploads)
