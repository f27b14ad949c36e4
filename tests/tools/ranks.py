"""Runs a function in several processes of one gloo group."""

from __future__ import annotations

import datetime
import logging
import pickle
import tempfile
import traceback
import warnings
from collections.abc import Callable
from typing import Any

from tests.tools.forked import CONTEXT

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
        pipes = [CONTEXT.Pipe(duplex=False) for _ in range(ranks)]
        processes = [
            CONTEXT.Process(target=_rank, args=(sender, f"{folder}/store", rank, ranks, function, arguments), daemon=True)
            for rank, (_, sender) in enumerate(pipes)
        ]
        for process in processes:
            process.start()
        for _, sender in pipes:
            sender.close()
        found = [_received(receiver) for receiver, _ in pipes]
        for process in processes:
            process.join(TIMEOUT)
    if failed := [f"rank {rank}: {text}" for rank, (text, _) in enumerate(found) if text]:
        raise RankError("\n".join(failed))
    return [value for _, value in found]


def _received(receiver: Any) -> tuple[str, Any]:
    try:
        return pickle.loads(receiver.recv_bytes()) if receiver.poll(TIMEOUT) else ("no result in time", None)
    except (EOFError, ConnectionResetError):
        return "ended without a result", None


def _rank(sender: Any, store: str, rank: int, ranks: int, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    import torch
    from torch import distributed

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    timeout = datetime.timedelta(seconds=TIMEOUT / 2)
    distributed.init_process_group(
        "gloo", store=distributed.FileStore(store, ranks), rank=rank, world_size=ranks, timeout=timeout
    )
    try:
        sender.send_bytes(pickle.dumps(("", function(*arguments))))  # a pipe of torch would send file descriptors
    except BaseException:
        sender.send_bytes(pickle.dumps((traceback.format_exc(), None)))
    finally:
        distributed.destroy_process_group()
