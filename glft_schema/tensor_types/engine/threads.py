"""The number of threads that computations use."""

from __future__ import annotations

import os
import sys


def threads() -> int:
    """Returns torch's number of threads if torch is imported (see `torch.set_num_threads`),
    otherwise OMP_NUM_THREADS or the number of processors that this process may use."""
    of_torch = getattr(sys.modules.get("torch"), "get_num_threads", None)
    if of_torch is not None:
        return int(of_torch())
    asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    if asked.isdecimal() and int(asked):
        return int(asked)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
