"""Memory for the passes over a chunk."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

LARGEST_KEPT = 31 << 20  # bytes of the largest block that glibc can be made to keep; its own limit is 32 MiB


@lru_cache(maxsize=1)
def keep_freed_memory() -> None:
    """Makes the C library keep the memory that a chunk's passes free for the next chunk.

    glibc returns large blocks to the system, which clears their pages before reuse; that takes
    longer than the passes. glibc raises its threshold for large blocks to the size of any block
    that is freed, so this frees a large one, untouched.
    """
    np.empty(LARGEST_KEPT, np.uint8)
