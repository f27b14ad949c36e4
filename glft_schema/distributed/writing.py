"""Writes one file by all ranks: each writes its share of the bytes, then rank 0 commits it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from itertools import zip_longest
from typing import NamedTuple

from glft_schema.distributed.fingerprints import Inputs, digest
from glft_schema.distributed.ranks import TIMEOUT, Ranks, describe_error
from glft_schema.distributed.shares import Task, spans_of, tasks_of
from glft_schema.errors import FormatError, quote
from glft_schema.storage.atomic import atomic_write, naming, open_begun
from glft_schema.storage.source import StrPath
from glft_schema.storage.system import write_at
from glft_schema.weights.payloads import PlannedPayload
from glft_schema.weights.save import FilePlan


@contextmanager
def together(inputs: Iterable[StrPath] = (), *, ranks: Ranks | None = None, timeout: float = TIMEOUT) -> Iterator[Together]:
    """Lets all ranks write a file together. Pass the yielded object as ``ranks`` to `save_file`,
    `convert` or `quantize`.

    All ranks run the block, with equal arguments, on one file system. Each encodes and writes its
    share of the bytes. The file has the same bytes as one that a single process writes. If a rank
    fails, all raise, and the old file stays.

    Args:
        inputs: files that are read, which must be the same on all ranks and not change.
        ranks: the processes that work together; by default those of torch's process group.
        timeout: seconds that a rank waits for the others while none of them makes progress.

    Raises:
        RanksError: if another rank fails, or does not answer.
        OptionError: if ranks have other versions, inputs or plans than rank 0, or an input changes.
    """
    ranks = Ranks.of_process_group(timeout) if ranks is None else ranks
    with ranks.failing_together():
        yield Together(ranks, Inputs(inputs))


class Together(NamedTuple):
    """Ranks that write files together, see `together`.

    Attributes:
        ranks: all of them.
        inputs: the files that are read.
    """

    ranks: Ranks
    inputs: Inputs

    @property
    def is_first(self) -> bool:
        """Whether this process shows progress."""
        return self.ranks.is_first

    def write(self, plan: FilePlan, path: StrPath) -> None:
        """Writes a planned file. After an error all ranks raise."""
        with self.ranks.failing_together():
            self.ranks.agree(versions=version("glft_schema"), inputs=self.inputs.fingerprint, plans=plan_digest(plan))
            write_shares(plan, path, self.ranks, check=self.inputs.check_unchanged)


def write_shares(
    plan: FilePlan,
    path: StrPath,
    ranks: Ranks,
    *,
    exchange: Callable[[Sequence[Task | None]], object] = lambda tasks: None,
    check: Callable[[], object] = lambda: None,
) -> None:
    """Writes a planned file; all ranks call it with equal plans.

    Args:
        plan: the file.
        path: where to write it.
        ranks: all ranks.
        exchange: called with the current task of each rank, or None, before this rank's is written;
            also after this rank has failed.
        check: called when this rank's share is written.
    """
    layout, problem = plan.layout, None

    def look(moved: int, name: str = "") -> None:
        if plan.progress and ranks.is_first:
            plan.progress(name, min((moved - begun) / max(layout.nbytes, 1), 1.0))

    begun = ranks.move(0)
    with _open_on_all(ranks, path, layout.nbytes) as fd:
        for tasks in zip_longest(*tasks_of(layout, ranks.count)):
            exchange(tasks)
            task = tasks[ranks.rank]
            if task is None or problem is not None:
                continue
            try:
                with _naming(task.span.name):
                    nbytes = sum(_write_at(fd, piece, at, task.span.name, path) for at, piece in task.pieces(layout.order))
                look(ranks.move(nbytes), task.span.name or "")
            except Exception as error:  # other ranks may still need what this one holds
                problem = error
                ranks.fail(describe_error(error))
        if problem is not None:
            raise problem
        with naming(path):
            os.fsync(fd)
        check()
        _gather_errors(plan.payloads, ranks, look)
    for payload in plan.payloads.values():
        payload.warn()


def _gather_errors(payloads: Mapping[str, PlannedPayload], ranks: Ranks, look: Callable[[int], object]) -> None:
    """Sets errors to the maximum of all ranks."""
    errors = ranks.gather({name: payload.error for name, payload in payloads.items() if payload.error is not None}, look)
    for name, payload in payloads.items():
        payload.error = max((found[name] for found in errors if name in found), default=None)


@contextmanager
def _open_on_all(ranks: Ranks, path: StrPath, nbytes: int) -> Iterator[int]:
    """Opens a temporary file on all ranks, which rank 0 begins. After the block, rank 0 renames it,
    and all ranks see the new file at `path`. Yields a descriptor for reading and writing."""
    with ExitStack() as opened:
        name = ""
        if ranks.is_first:
            stream = opened.enter_context(atomic_write(path))
            fd, name = stream.fd, stream.name
            with naming(path):
                os.ftruncate(fd, nbytes)
        name = ranks.of_first(name)
        if not ranks.is_first:
            fd = open_begun(path, name)
            opened.callback(os.close, fd)
        ranks.gather(None)  # a rank that fails removes the file, so all have it before one begins
        yield fd
        if not ranks.is_first:
            opened.close()
        ranks.gather(None)  # Windows renames no open file
    ranks.gather(None)


def plan_digest(plan: FilePlan) -> str:
    """Returns the SHA-256 of all that decides about a file's bytes, except the tensors' values."""
    payloads = [
        (name, str(payload.type), payload.stored.shape, payload.stored.dtype, payload.measure, _importance(payload))
        for name, payload in plan.payloads.items()
    ]
    spans = spans_of(plan.layout)
    heads = [span.content for span in spans if isinstance(span.content, bytes)]
    places = [(span.start, span.nbytes, span.name) for span in spans]
    return digest([version("glft_schema"), plan.layout.nbytes, *places, *heads, *payloads])


def _importance(payload: PlannedPayload) -> str:
    importance = payload.stored.importance
    return "" if importance is None else digest([importance.tobytes()])


@contextmanager
def _naming(tensor: str | None) -> Iterator[None]:
    """Adds the tensor's name to errors of its source."""
    try:
        yield
    except FormatError as error:
        error.tensor = error.tensor or tensor
        raise


def _write_at(fd: int, piece: memoryview, position: int, tensor: str | None, path: StrPath) -> int:
    """Writes all bytes of a piece, and returns their number. Raises OSError, which names the tensor
    and the file."""
    data = piece.cast("B")
    try:
        write_at(fd, data, position)
    except OSError as error:
        text = f"tensor {quote(tensor)}: {error.strerror}" if tensor else error.strerror
        raise OSError(error.errno, text, os.fspath(path)) from None
    return len(data)
