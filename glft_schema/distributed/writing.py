"""Writes one file by all ranks: each writes its share of units, then rank 0 commits it."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from typing import NamedTuple

from glft_schema.codec.context import ByteOrder
from glft_schema.distributed.fingerprints import Inputs, digest, sha256_of
from glft_schema.distributed.journals import Journals
from glft_schema.distributed.origins import Origins
from glft_schema.distributed.ranks import TIMEOUT, Ranks
from glft_schema.distributed.spans import PlannedSpan, spans_between, spans_of, units_in
from glft_schema.distributed.units import Unit, runs, shares
from glft_schema.errors import FormatError, quote
from glft_schema.storage.atomic import atomic_write, open_own, partial_path
from glft_schema.storage.source import StrPath
from glft_schema.tensor_types.engine.chunks import matrix
from glft_schema.weights.payloads import PlannedPayload
from glft_schema.weights.save import FilePlan

KEY = 16  # hexadecimal digits


@contextmanager
def together(inputs: Iterable[StrPath] = (), *, ranks: Ranks | None = None, timeout: float = TIMEOUT) -> Iterator[Together]:
    """Lets all ranks write a file together. Pass the yielded object as ``ranks`` to `save_file`,
    `convert` or `quantize`.

    All ranks run the block, with equal arguments, on one file system. Each encodes and writes its
    share of the bytes. The file has the same bytes as one that a single process writes. If a rank
    fails, all raise, the old file stays, and the next run resumes with the units that are finished;
    see `atomic_write`.

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

    def write(self, plan: FilePlan, path: StrPath) -> None:
        """Writes a planned file. After an error all ranks raise."""
        with self.ranks.failing_together():
            self._write(plan, path)

    def _write(self, plan: FilePlan, path: StrPath) -> None:
        ranks, inputs, layout, source = self.ranks, self.inputs, plan.layout, self.inputs.fingerprint
        key = digest([plan_digest(plan), *source.entries])[:KEY]
        ranks.agree(versions=version("glft_schema"), inputs=str(source), plans=key)
        spans = spans_of(layout)
        units = units_in(spans, layout.nbytes)
        with open_on_all(ranks, path, key, layout.nbytes) as fd:
            with Journals(path, key, ranks.rank) as journals:
                found = ranks.of_first(journals.read() if ranks.is_first else [])
                known = {(start, stop): hashes for start, stop, *hashes in found}
                done = _verify(fd, [unit for unit in units if unit[:2] in known], known, spans, layout.order, ranks)
                left = [unit for unit in units if unit[:2] not in done]
                before, begun = layout.nbytes - sum(unit.stop - unit.start for unit in left), ranks.move(0)

                def look(moved: int, name: str = "") -> None:
                    if plan.progress and ranks.is_first:
                        plan.progress(name, min((before + moved - begun) / max(layout.nbytes, 1), 1.0))

                for run in runs(shares(left, ranks.count)[ranks.rank]):
                    origins = Origins(spans, layout.order)
                    for unit, name in finished_units(run, spans, _writing(fd, path, layout.order, origins)):
                        inputs.check_unchanged()
                        journals.add(unit, _sha256(fd, unit), origins.of_unit(unit))
                        look(ranks.move(unit.stop - unit.start), name)
            os.fsync(fd)
            inputs.check_unchanged()
            _gather_errors(plan.payloads, ranks, look, known=not done)
            inputs.check_unchanged()  # other ranks may have taken longer
        for payload in plan.payloads.values():
            payload.warn()


def _gather_errors(payloads: Mapping[str, PlannedPayload], ranks: Ranks, look: Callable[[int], object], *, known: bool) -> None:
    """Sets errors to the maximum of all ranks; unknown if an earlier run wrote some units."""
    own = {name: payload.error for name, payload in payloads.items() if payload.error is not None}
    errors = ranks.gather(own, look)
    for name, payload in payloads.items():
        worst = max((found[name] for found in errors if name in found), default=None)
        payload.error = worst if known or not worst else None


@contextmanager
def open_on_all(ranks: Ranks, path: StrPath, key: str, nbytes: int, *, resume: bool = True) -> Iterator[int]:
    """Opens the temporary file of a key on all ranks. After the block, all ranks see the new file
    at `path`.

    Args:
        ranks: all ranks.
        path: the file, which rank 0 begins and commits.
        key, resume: as for `atomic_write`.
        nbytes: of the file.

    Yields:
        A descriptor for reading and writing.
    """
    with ExitStack() as opened:
        if ranks.is_first:
            fd = opened.enter_context(atomic_write(path, key, resume=resume)).fd
            os.truncate(fd, nbytes)
        ranks.gather(None)
        if not ranks.is_first:
            fd = open_own(partial_path(path, key), os.O_RDWR)
            opened.callback(os.close, fd)
        yield fd
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


def _verify(
    fd: int,
    units: Sequence[Unit],
    known: Mapping[tuple[int, int], Sequence[str]],
    spans: Sequence[PlannedSpan],
    order: ByteOrder,
    ranks: Ranks,
) -> set[tuple[int, int]]:
    """Returns the finished units whose bytes match the journals, and whose source is unchanged.
    Ranks share the work."""
    own = []
    written = [unit for unit in shares(units, ranks.count)[ranks.rank] if _sha256(fd, unit) == known[unit[:2]][0]]
    for run in runs(written):
        origins, other = Origins(spans, order), set[Unit]()
        for unit, _ in finished_units(run, spans, _comparing(fd, run, order, origins, other)):
            if origins.of_unit(unit) == known[unit[:2]][1] and unit not in other:
                own.append(unit[:2])
            ranks.move(1)
    return {(start, stop) for found in ranks.gather(own) for start, stop in found}


def _sha256(fd: int, unit: Unit) -> str:
    return sha256_of(lambda start, nbytes: os.pread(fd, nbytes, start), [(unit.start, unit.stop - unit.start)])


Steps = Callable[[PlannedSpan, int, int], Iterator[int]]  # processes a span, and yields positions


def finished_units(run: Sequence[Unit], spans: Sequence[PlannedSpan], steps: Steps) -> Iterator[tuple[Unit, str]]:
    """Yields the units of a run once all of their bytes are processed, with a tensor's name."""
    first, last, left, name = run[0].start, run[-1].stop, deque(run), ""

    def until(position: int) -> Iterator[tuple[Unit, str]]:
        while left and left[0].stop <= position:
            yield left.popleft(), name

    for span in spans_between(spans, first, last):
        yield from until(span.start)
        name = span.name or name
        with _naming(span.name):
            for position in steps(span, first, last):
                if span.in_order:
                    yield from until(position)
    yield from until(last)


def _writing(fd: int, path: StrPath, order: ByteOrder, origins: Origins) -> Steps:
    """Returns steps that encode and write bytes of a span, and hash their source."""

    def steps(span: PlannedSpan, first: int, last: int) -> Iterator[int]:
        for at, piece in span.pieces(first, last, order, origins.add):
            write_at(fd, piece, at, span.name, path)
            yield at + len(piece)

    return steps


def _comparing(fd: int, run: Sequence[Unit], order: ByteOrder, origins: Origins, other: set[Unit]) -> Steps:
    """Returns steps that only hash the source of a span's bytes. Units whose bytes differ from a
    copy of the source are added to `other`."""

    def steps(span: PlannedSpan, first: int, last: int) -> Iterator[int]:
        payload = span.content
        if isinstance(payload, bytes):
            return  # the key includes their hash
        part = span.part(first, last)
        for rows in payload.chunks_between(*part, order):
            if rows is not None:
                origins.add(payload, rows, payload.source_of(rows))
                yield span.start + rows.stop * (payload.nbytes // matrix(payload.stored.shape)[0])
                continue
            for at, piece in payload.copy(*part, order):
                for unit in run:
                    start, stop = max(unit.start - span.start, at), min(unit.stop - span.start, at + len(piece))
                    if start < stop and piece[start - at : stop - at] != os.pread(fd, stop - start, span.start + start):
                        other.add(unit)
                yield span.start + at + len(piece)

    return steps


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
        text = f"tensor {quote(tensor)}: {error.strerror}" if tensor else error.strerror
        raise OSError(error.errno, text, os.fspath(path)) from None
