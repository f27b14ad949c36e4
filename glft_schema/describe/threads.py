"""How many threads torch computes in while it looks at little."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from glft_schema.lazy import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Lets torch compute in one thread: on small tensors, waiting for the others costs more than they bring."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
