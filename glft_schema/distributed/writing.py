"""One file, written by all ranks: each its share of the file's units, then rank 0 commits it."""

from __future__ import annotations

import hashlib
import os
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from importlib.metadata import version
from itertools import islice, takewhile
from typing import NamedTuple

from glft_schema.codec.context import ByteOrder
from glft_schema.distributed.costs import cost
from glft_schema.distributed.fingerprints import Fingerprint, digest
from glft_schema.distributed.ranks import TIMEOUT, Ranks
from glft_schema.distributed.units import Part, Unit, runs, shares, units_of
from glft_schema.errors import FormatError, OptionError, shown
from glft_schema.files.layout import Layout
from glft_schema.storage.atomic import partial_path, resumable_write
from glft_schema.storage.source import StrPath
from glft_schema.weights.payloads import PlannedPayload
from glft_schema.weights.save import FilePlan, written_by

KEY = 16  # hexadecimal digits
READ = 1 << 22  # bytes to hash at once
LINE = re.compile(r"([0-9]+) ([0-9]+) ([0-9a-f]{64})")


@contextmanager
def together(inputs: Iterable[StrPath] = (), *, ranks: Ranks | None = None, timeout: float = TIMEOUT) -> Iterator[None]:
    """Lets all ranks write each file of the block together: of `save_file`, `convert` and
    `quantize`.

    All ranks run the block, with equal arguments, on one file system. Each encodes and writes its
    share of the bytes. The file has the bytes that one process writes. If a rank fails, all raise,
    the old file stays, and the next run goes on with what is finished; see `resumable_write`.

    Args:
        inputs: files that are read, which must be the same on all ranks and not change.
        ranks: those that work together; by default of torch's process group.
        timeout: seconds that a rank waits for the others while none of them makes progress.

    Raises:
        RanksError: if another rank fails, or does not answer.
        OptionError: if ranks have other versions, inputs or plans than rank 0.
    """
    ranks = Ranks.of_process_group(timeout) if ranks is None else ranks
    paths = [*inputs]
    with ranks.failing_together(), written_by(lambda plan, path: write(plan, path, ranks, paths)):
        yield


class Span(NamedTuple):
    """Bytes of a file: a payload, or bytes that belong to none."""

    start: int
    nbytes: int
    content: PlannedPayload | bytes

    def pieces(self, first: int, last: int, order: ByteOrder) -> Iterator[tuple[int, memoryview]]:
        """Yields those of the file's bytes `first` to `last` that are in the span, with
        positions."""
        first, last = max(first - self.start, 0), min(last - self.start, self.nbytes)
        if isinstance(self.content, bytes):
            yield self.start + first, memoryview(self.content)[first:last]
        elif first < last:
            for at, piece in self.content.span(first, last, order):
                yield self.start + at, piece

    @property
    def in_order(self) -> bool:
        """Whether pieces are yielded in the order of the file."""
        return isinstance(self.content, bytes) or len(list(self.content.type.fields())) < 2

    @property
    def cost(self) -> float:
        return 0.0 if isinstance(self.content, bytes) else cost(self.content)

    @property
    def name(self) -> str | None:
        """The tensor's name, or None."""
        return None if isinstance(self.content, bytes) else self.content.name


def spans_of(layout: Layout, payloads: Mapping[str, PlannedPayload]) -> list[Span]:
    """Returns the spans of a file, in order."""
    spans = [Span(start, len(piece), piece) for start, piece in layout.pieces]
    spans += [Span(start, payloads[name].nbytes, payloads[name]) for name, start in layout.starts.items()]
    return sorted((span for span in spans if span.nbytes), key=lambda span: span.start)


def units_in(spans: Sequence[Span], nbytes: int) -> list[Unit]:
    """Returns the units of a file of `nbytes` bytes."""
    return units_of([Part(span.start, span.nbytes, span.cost) for span in spans], nbytes)


def spans_between(spans: Sequence[Span], first: int, last: int) -> Iterator[Span]:
    """Yields the spans that have some of the bytes `first` to `last`, in order."""
    start = bisect_right(spans, first, key=lambda span: span.start + span.nbytes)
    return takewhile(lambda span: span.start < last, islice(spans, start, None))


def write(plan: FilePlan, path: StrPath, ranks: Ranks, inputs: Sequence[StrPath] = ()) -> None:
    """Writes a planned file together with the other ranks; see `together`."""
    layout = plan.laid_out()
    spans, source = spans_of(layout, plan.payloads), Fingerprint.of_inputs(inputs)
    key = digest([plan_digest(plan, layout), *source.entries])[:KEY]
    ranks.agree(versions=version("glft_schema"), inputs=source, plans=key)
    units = units_in(spans, layout.nbytes)
    with opened_by_all(ranks, resumable_write(path, key), partial_path(path, key), layout.nbytes) as fd:
        journals, begun = Journals(path, key, ranks.rank), ranks.move(0)
        known = ranks.of_first(journals.read() if ranks.is_first else {})
        done = _verified(fd, [unit for unit in units if (unit.start, unit.stop) in known], known, ranks)
        left = [unit for unit in units if (unit.start, unit.stop) not in done]
        before = layout.nbytes - sum(unit.stop - unit.start for unit in left)

        def look(moved: int, name: str = "") -> None:
            if plan.progress and ranks.is_first:
                plan.progress(name, min((before + moved - begun) / max(layout.nbytes, 1), 1.0))

        def finished(unit: Unit, name: str) -> None:
            journals.add(unit, _sha256(fd, unit))
            look(ranks.move(unit.stop - unit.start), name)

        for run in runs(shares(left, ranks.count)[ranks.rank]):
            _write_run(fd, run, spans, layout.order, path, finished)
        os.fsync(fd)
        errors = ranks.gather(
            {name: payload.error for name, payload in plan.payloads.items() if payload.error is not None}, look
        )
        for name, payload in plan.payloads.items():
            worst = max((found[name] for found in errors if name in found), default=None)
            payload.error = None if done and worst else worst  # the error of units that an earlier run wrote is not known
        if (now := Fingerprint.of_inputs(inputs)) != source:
            raise OptionError(f"expected inputs that do not change, {source}, found {now}")


@contextmanager
def opened_by_all(ranks: Ranks, begun: AbstractContextManager[int], partial: str, nbytes: int) -> Iterator[int]:
    """Opens a temporary file on all ranks. When the block ends, the file is in place for all.

    Args:
        ranks: all ranks.
        begun: makes the file and puts it in its place, on rank 0.
        partial: path of the temporary file.
        nbytes: of the file.

    Yields:
        A descriptor for reading and writing.
    """
    with ExitStack() as opened:
        fd = opened.enter_context(begun) if ranks.is_first else -1
        if ranks.is_first:
            os.truncate(fd, nbytes)
        ranks.gather(None)
        if not ranks.is_first:
            fd = os.open(partial, os.O_RDWR)
            opened.callback(os.close, fd)
        yield fd
    ranks.gather(None)


def plan_digest(plan: FilePlan, layout: Layout) -> str:
    """Returns the SHA-256 of all that decides about a file's bytes, except the tensors' values."""
    payloads = [
        (name, str(payload.type), payload.stored.shape, payload.stored.dtype, payload.measure, _importance(payload))
        for name, payload in plan.payloads.items()
    ]
    return digest([version("glft_schema"), layout.nbytes, layout.starts, *layout.pieces, *payloads])


def _importance(payload: PlannedPayload) -> str:
    importance = payload.stored.importance
    return "" if importance is None else digest([importance.detach().cpu().contiguous().numpy().tobytes()])


class Journals:
    """The units that ranks have finished, with their SHA-256: a file for each rank.

    Args:
        path: the file that is written.
        key: as for `resumable_write`.
        rank: whose journal is written.
    """

    def __init__(self, path: StrPath, key: str, rank: int) -> None:
        self._folder, start = os.path.split(partial_path(path, key))
        self._names = re.compile(re.escape(start.removesuffix("part")) + r"[0-9]+\.part")
        self._own = partial_path(path, key, str(rank))

    def read(self) -> dict[tuple[int, int], str]:
        """Returns the SHA-256 of the units in all journals, by first and last byte."""
        found: dict[tuple[int, int], str] = {}
        with os.scandir(self._folder) as entries:
            journals = [entry.path for entry in entries if self._names.fullmatch(entry.name)]
        for journal in sorted(journals):
            with suppress(OSError), open(journal, encoding="ascii", errors="replace") as lines:
                matches = [LINE.fullmatch(line.rstrip("\n")) for line in lines]  # the last one may be incomplete
                found |= {(int(match[1]), int(match[2])): match[3] for match in matches if match}
        return found

    def add(self, unit: Unit, sha256: str) -> None:
        """Adds a unit to this rank's journal."""
        fd = os.open(self._own, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            os.write(fd, f"{unit.start} {unit.stop} {sha256}\n".encode())
        finally:
            os.close(fd)


def _verified(fd: int, units: list[Unit], known: Mapping[tuple[int, int], str], ranks: Ranks) -> set[tuple[int, int]]:
    """Returns the finished units whose bytes are those of the journals. Ranks share the work."""
    own = [(unit.start, unit.stop) for unit in units[ranks.rank :: ranks.count] if _sha256(fd, unit) == known[unit[:2]]]
    return {unit for found in ranks.gather(own) for unit in found}


def _sha256(fd: int, unit: Unit) -> str:
    total = hashlib.sha256()
    for start in range(unit.start, unit.stop, READ):
        total.update(os.pread(fd, min(READ, unit.stop - start), start))
    return total.hexdigest()


def _write_run(
    fd: int,
    run: Sequence[Unit],
    spans: Sequence[Span],
    order: ByteOrder,
    path: StrPath,
    finished: Callable[[Unit, str], None],
) -> None:
    """Writes units that follow each other. `finished` is called with each and a tensor's name."""
    first, last, left = run[0].start, run[-1].stop, [*run]

    def finish(until: int, name: str) -> None:
        while left and left[0].stop <= until:
            finished(left.pop(0), name)

    name = ""
    for span in spans_between(spans, first, last):
        finish(span.start, name)
        name = span.name or name
        with _naming(span.name):
            for at, piece in span.pieces(first, last, order):
                write_at(fd, piece, at, span.name, path)
                if span.in_order:
                    finish(at + len(piece), name)
    finish(last, name)


@contextmanager
def _naming(tensor: str | None) -> Iterator[None]:
    """Adds the tensor's name to errors of its source."""
    try:
        yield
    except FormatError as error:
        error.tensor = error.tensor or tensor
        raise


def write_at(fd: int, piece: memoryview, position: int, tensor: str | None, path: StrPath) -> None:
    """Writes all bytes of a piece. Raises OSError, which names the tensor and the file."""
    left = piece.cast("B")
    try:
        while left:
            written = os.pwrite(fd, left, position)
            left, position = left[written:], position + written
    except OSError as error:
        text = f"tensor {shown(tensor)}: {error.strerror}" if tensor else error.strerror
        raise OSError(error.errno, text, os.fspath(path)) from None
