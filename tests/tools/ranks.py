"""Runs a function in several processes of one gloo group."""

from __future__ import annotations

import datetime
import logging
import tempfile
import traceback
import warnings
from collections.abc import Callable
from typing import Any

from tests.tools.forked import Forked

TIMEOUT = 120.0  # seconds


class RankError(Exception):
    """A rank that raised an error, or ended without a result."""


def run(ranks: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Returns what each rank returns.

    Args:
        ranks: the number of processes.
        function: of a module.
        arguments: its arguments, the same on all ranks.

    Raises:
        RankError: with the errors of the ranks that failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        processes = [Forked(_rank, f"{folder}/store", rank, ranks, function, arguments) for rank in range(ranks)]
        errors = [process.communicate(TIMEOUT)[1] for process in processes]
    found = [each.returned or (f"ended without a result {error}", None) for each, error in zip(processes, errors, strict=True)]
    if failed := [f"rank {rank}: {text}" for rank, (text, _) in enumerate(found) if text]:
        raise RankError("\n".join(failed))
    return [value for _, value in found]


def _rank(store: str, rank: int, ranks: int, function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[str, Any]:
    import torch
    from torch import distributed

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        store=distributed.FileStore(store, ranks),
        rank=rank,
        world_size=ranks,
        timeout=datetime.timedelta(seconds=TIMEOUT / 2),
    )
    try:
        return "", function(*arguments)
    except BaseException:
        return traceback.format_exc(), None
    finally:
        distributed.destroy_process_group()
