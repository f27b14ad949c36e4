"""Limits torch to one thread for small tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from glft_schema.lazy import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Limits torch to one thread: on small tensors, starting others costs more than they save."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
