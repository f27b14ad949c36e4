"""Memory for results and for the passes over a chunk."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence
from functools import lru_cache

from glft_schema.lazy import torch

LARGEST_KEPT = 31 << 20  # bytes of the largest block that glibc can be made to keep; its own limit is 32 MiB
HUGE_PAGES = "GLFT_HUGE_PAGES"  # the environment variable: 1 asks for large pages
HUGE = 1 << 25  # bytes of the smallest result that large pages are asked for


@lru_cache(maxsize=1)
def keep_freed_memory() -> None:
    """Makes the C library keep the memory that a chunk's passes free for the next chunk.

    glibc returns large blocks to the system, which clears their pages before reuse; that takes
    longer than the passes. glibc raises its threshold for large blocks to the size of any block
    that is freed, so this frees a large one, untouched.
    """
    torch.empty(LARGEST_KEPT, dtype=torch.uint8, device="cpu")


def new_memory(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Returns a new tensor, uninitialised.

    With ``GLFT_HUGE_PAGES=1``, the system is asked for large pages for a result of 32 MiB or more
    on the CPU. Most systems clear them several times as fast as small ones; some wait for
    milliseconds at each.
    """
    memory = torch.empty(*shape, dtype=dtype, device=device)
    if memory.nbytes >= HUGE and device.type == "cpu" and os.environ.get(HUGE_PAGES) == "1":
        start = -(-memory.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        nbytes = (memory.data_ptr() + memory.nbytes - start) // mmap.PAGESIZE * mmap.PAGESIZE
        advise = getattr(ctypes.CDLL(None), "madvise", None)
        if advise and hasattr(mmap, "MADV_HUGEPAGE"):
            advise(ctypes.c_void_p(start), ctypes.c_size_t(nbytes), mmap.MADV_HUGEPAGE)  # advice: errors do not matter
    return memory
