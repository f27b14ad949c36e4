"""Memory for results and for the passes over a chunk."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from glft_schema.storage.dtypes import Array, Dtype

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
    np.empty(LARGEST_KEPT, np.uint8)


def new_memory(shape: Sequence[int], dtype: Dtype) -> Array:
    """Returns a new array, uninitialised. Raises MemoryError."""
    memory = np.empty(shape, dtype)
    ask_for_large_pages(memory.ctypes.data, memory.nbytes)
    return memory


def ask_for_large_pages(start: int, nbytes: int) -> None:
    """With ``GLFT_HUGE_PAGES=1``, asks the system for large pages for a new result of 32 MiB or
    more.

    Most systems clear large pages several times as fast as small ones; some need milliseconds each.
    """
    if nbytes >= HUGE and os.environ.get(HUGE_PAGES) == "1":
        first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        whole = (start + nbytes - first) // mmap.PAGESIZE * mmap.PAGESIZE
        advise = getattr(ctypes.CDLL(None), "madvise", None)
        if advise and hasattr(mmap, "MADV_HUGEPAGE"):
            advise(ctypes.c_void_p(first), ctypes.c_size_t(whole), mmap.MADV_HUGEPAGE)  # advice: errors do not matter
