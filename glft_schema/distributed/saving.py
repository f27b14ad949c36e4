"""`StorageWriter`: weights files from `torch.distributed.checkpoint.save`.

The bytes of the file are dealt out as for files that are read, see `writing`, so a rank does not
encode what it holds, but its share of the file. The rows that it needs come from the ranks that
hold them, a few at a time. So it does not matter how tensors are cut, and ranks that hold more than
others do not take longer.
"""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from importlib.metadata import version
from typing import Any, NamedTuple

import torch
from torch import distributed
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter as Writer
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from glft_schema.codec.context import ByteOrder
from glft_schema.distributed.exchange import Chunk, Exchange, Holdings, Piece, Remote, Request
from glft_schema.distributed.ranks import TIMEOUT, Ranks, described
from glft_schema.distributed.spans import Span, spans_between, spans_of, units_in
from glft_schema.distributed.units import Unit, runs, shares
from glft_schema.distributed.writing import KEY, opened_by_all, plan_digest, write_at
from glft_schema.errors import OptionError, TensorError
from glft_schema.families.operations import LazyTensor
from glft_schema.files.container import open
from glft_schema.files.layout import Layout
from glft_schema.formats.registry import WITH_TYPES
from glft_schema.models.saving import by_example
from glft_schema.quantizer.quantize import quantize
from glft_schema.quantizer.rules import Recipe
from glft_schema.storage.atomic import partial_path, resumable_write
from glft_schema.storage.source import StrPath
from glft_schema.weights.convert import convert
from glft_schema.weights.payloads import PlannedPayload
from glft_schema.weights.save import FilePlan, only_planned, save_file
from glft_schema.weights.schemes import Schemes
from glft_schema.weights.stored_tensors import of_lazy, packed_tensors


class StorageWriter(Writer):
    """Writes a weights file from `torch.distributed.checkpoint.save`.

    The file has the bytes that `save_file` writes of the whole tensors, whatever the mesh. All
    ranks encode an equal share of it, and need one file system. Rank 0 replaces the old file at the
    end; after an error it stays.

    Args:
        path: the file to write.
        metadata, schemes, format, header, alignment, rules, importance, strict: as `save_file`.
        like: a GGUF model of a declared family: the state dict has the names of transformers, and
            the file gets the names, metadata and, unless `schemes` or `recipe` say otherwise, the
            types of this one.
        recipe: a file type of llama-quantize such as ``Q4_K_M``, as `quantize`; needs `like`.
        process_group: the ranks; must be the group that `save` gets.
        timeout: seconds that a rank waits for the others while none of them makes progress.

    `save` raises CheckpointException on all ranks, with the error of each rank that failed:
        TensorError: if an entry is not a tensor, or cannot be stored as requested.
        OptionError: if ranks have other versions or plans than rank 0.
        RanksError: if another rank fails, or does not answer.
        FormatError, OSError: as `save_file`.
    """

    def __init__(
        self,
        path: StrPath,
        metadata: Mapping[str, Any] | None = None,
        *,
        schemes: Schemes | None = None,
        like: StrPath | None = None,
        recipe: StrPath | Recipe | None = None,
        format: str | None = None,
        header: Mapping[str, Any] | None = None,
        alignment: int | None = None,
        rules: Any = None,
        importance: Mapping[str, torch.Tensor] | None = None,
        strict: bool = False,
        process_group: distributed.ProcessGroup | None = None,
        timeout: float = TIMEOUT,
    ) -> None:
        super().__init__()
        if recipe is not None and like is None:
            raise OptionError("expected like with recipe: recipes need a model's metadata")
        self.path, self._like, self._recipe = path, like, recipe
        self._metadata, self._importance, self._format = metadata, importance, format
        given = {"schemes": schemes, "header": header, "alignment": alignment, "rules": rules, "strict": strict}
        self._options = {name: value for name, value in given.items() if value not in (None, False)}
        if recipe is not None and self._options:
            raise OptionError(f"expected no {next(iter(self._options))} with recipe")
        self._group, self._timeout = process_group, timeout

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begins another save, to `checkpoint_id` if it is given."""
        self.path = self.path if checkpoint_id is None else checkpoint_id

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Returns whether a path is not a folder."""
        return not os.path.isdir(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool) -> None:
        """Does nothing: `write_data` begins the file."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Notes the order of the tensors. Raises TensorError for an entry that is not a tensor."""
        for item in plan.items:
            if item.type == WriteItemType.BYTE_IO or item.tensor_data is None:
                raise TensorError("expected a tensor, found another object", item.index.fqn)
        return replace(plan, storage_data=[item.index.fqn for item in plan.items])

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Plans the file, and tells all ranks which parts the others hold."""
        entries: dict[str, _Entry] = {}
        for rank, plan in enumerate(plans):
            for item in plan.items:
                data = item.tensor_data
                assert data is not None
                entry = entries.setdefault(item.index.fqn, _Entry(tuple(data.size), data.properties.dtype, []))
                entry.chunks.append(Chunk(tuple(data.chunk.offsets), tuple(data.chunk.sizes), rank))
        order = dict.fromkeys(name for plan in plans for name in plan.storage_data)  # of the state dicts
        entries = {name: entries[name] for name in order}
        with ExitStack() as opened:
            self._planned(entries, Remote(), {}, opened).laid_out()  # raises what cannot be stored
        return [replace(plan, storage_data=entries) for plan in plans]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Writes this rank's share of the file; rank 0 also begins it and puts it in its place."""
        ranks = Ranks.of_process_group(self._timeout, self._group)
        with ranks.failing_together(), ExitStack() as opened:
            held = {_place(item): _resolved(planner, item) for item in plan.items}
            entries, remote = plan.storage_data, Remote()
            ties = _common_ties(ranks.gather(_ties(getattr(planner, "state_dict", {}), entries)))
            planned = self._planned(entries, remote, ties, opened)
            layout = planned.laid_out()
            ranks.agree(versions=version("glft_schema"), plans=plan_digest(planned, layout))
            exchange = Exchange(self._group, self._timeout)
            holdings = Holdings({name: entry.chunks for name, entry in entries.items()})
            _write(planned, layout, self.path, _Shared(held, entries, holdings, remote, exchange, ranks))
        done: Future[list[WriteResult]] = Future()
        done.set_result([WriteResult(item.index, item.tensor_storage_size() or 0, None) for item in plan.items])
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Does nothing: the file is in its place."""

    def _planned(self, entries: Mapping[str, _Entry], remote: Remote, ties: Mapping[str, str], opened: ExitStack) -> FilePlan:
        """Returns the plan of the file, with tensors that `remote` reads."""
        tensors = {name: remote.tensor(name, entry.shape, entry.dtype) for name, entry in entries.items()}
        with only_planned() as plans:
            self._save(tensors, ties, opened)
        return plans[0]

    def _save(self, tensors: Mapping[str, LazyTensor], ties: Mapping[str, str], opened: ExitStack) -> None:
        if self._like is None:
            stored = {name: replace(of_lazy(name, tensor), identity=ties.get(name)) for name, tensor in tensors.items()}
            options = {**self._options, "importance": self._importance, "format": self._format}
            save_file(stored, self.path, self._metadata, **options)
            return
        checkpoint = by_example(tensors, opened.enter_context(open(self._like)))
        if self._recipe is not None:
            quantize(checkpoint, self.path, self._recipe, importance=self._importance, override=self._metadata)
            return
        options = {**self._options, "importance": self._importance, "metadata": self._metadata}
        convert(checkpoint, self.path, format=WITH_TYPES.name, measure=False, **options)


class _Entry(NamedTuple):
    """A tensor of the state dicts."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    chunks: list[Chunk]


class _Shared(NamedTuple):
    """The state of a save that its steps share.

    Attributes:
        held: this rank's parts of tensors, by name and offsets.
        entries: all tensors, by name.
        holdings: the ranks that hold each part.
        remote: the tensors that the plan reads.
        exchange: sends and receives messages.
        ranks: all ranks.
    """

    held: Mapping[tuple[str, tuple[int, ...]], torch.Tensor]
    entries: Mapping[str, _Entry]
    holdings: Holdings
    remote: Remote
    exchange: Exchange
    ranks: Ranks

    def part(self, request: Request, piece: Piece) -> torch.Tensor:
        """Returns a part of what this rank holds, on the CPU."""
        return self.held[request.name, piece.chunk.offsets][piece.held].cpu()


class _Task(NamedTuple):
    """Bytes of a file that a rank writes at once.

    Attributes:
        span: of the file.
        first, last: bytes of the file.
        rows: of the matrix that are encoded; None for bytes that are there.
    """

    span: Span
    first: int
    last: int
    rows: slice | None


def _place(item: WriteItem) -> tuple[str, tuple[int, ...]]:
    assert item.tensor_data is not None
    return item.index.fqn, tuple(item.tensor_data.chunk.offsets)


def _resolved(planner: SavePlanner, item: WriteItem) -> torch.Tensor:
    """Returns this rank's part of a tensor."""
    found = planner.resolve_data(item)
    assert isinstance(found, torch.Tensor)
    return found.detach()


def _ties(state: Mapping[str, Any], entries: Mapping[str, _Entry]) -> list[Sequence[str]]:
    """Returns the names of tensors that share their memory on this rank. Raises TensorError for
    packed weights.
    """
    names: dict[Any, list[str]] = {}
    for name in entries:
        tensor = state.get(name)
        if isinstance(tensor, torch.Tensor):
            if tensor in packed_tensors():
                raise TensorError("expected dense weights, found packed ones, which glft_schema.save_file saves", name)
            local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
            key = (local.device, local.data_ptr(), tuple(tensor.shape), local.stride(), local.dtype)
            names.setdefault(key if local.numel() else name, []).append(name)
    return [tuple(tied) for tied in names.values() if len(tied) > 1]


def _common_ties(found: Sequence[list[Sequence[str]]]) -> dict[str, str]:
    """Returns the first name of tensors that are tied on all ranks that have numbers of them."""
    everywhere = set.intersection(*(set(map(tuple, ties)) for ties in found))
    return {name: tied[0] for tied in everywhere for name in tied}


def _tasks(units: Sequence[Unit], spans: Sequence[Span], order: ByteOrder) -> list[_Task]:
    """Returns the tasks of units, in the order of the file."""
    tasks = []
    for run in runs(units):
        first, last = run[0].start, run[-1].stop
        for span in spans_between(spans, first, last):
            start, stop = max(first, span.start), min(last, span.start + span.nbytes)
            rows: Sequence[slice | None] = [None]
            if isinstance(span.content, PlannedPayload):
                rows = span.content.chunks_between(start - span.start, stop - span.start, order)
            tasks += [_Task(span, start, stop, some) for some in rows]
    return tasks


def _write(plan: FilePlan, layout: Layout, path: StrPath, shared: _Shared) -> None:
    """Writes a planned file whose tensors all ranks hold."""
    ranks, spans = shared.ranks, spans_of(layout, plan.payloads)
    tasks = [_tasks(dealt, spans, layout.order) for dealt in shares(units_in(spans, layout.nbytes), ranks.count)]
    key = ranks.of_first(secrets.token_hex(KEY // 2))
    with opened_by_all(ranks, _written_once(path, key), partial_path(path, key), layout.nbytes) as fd:
        problem: Exception | None = None
        for number in range(max(map(len, tasks))):
            answers = _exchanged([of_rank[number] if number < len(of_rank) else None for of_rank in tasks], shared)
            if problem is None and number < len(tasks[ranks.rank]):
                try:
                    _write_task(fd, tasks[ranks.rank][number], answers, layout.order, path, shared)
                except Exception as error:  # the other ranks still need what this one holds
                    problem = error
                    ranks.fail(described(error))
        if problem is not None:
            raise problem
        os.fsync(fd)
        ranks.gather(None)


@contextmanager
def _written_once(path: StrPath, key: str) -> Iterator[int]:
    """Does as `resumable_write`, but removes the temporary file after an error."""
    try:
        with resumable_write(path, key) as fd:
            yield fd
    except BaseException:
        with suppress(OSError):
            os.unlink(partial_path(path, key))
        raise


def _needed(task: _Task | None, remote: Remote) -> list[Request]:
    """Returns the parts of tensors that a task reads."""
    if task is None or task.rows is None or isinstance(task.span.content, bytes) or task.span.content.copy_of is not None:
        return []
    payload, noted = task.span.content, remote.noting()
    payload.stored.part(task.rows) if payload.has_parts else payload.stored.load()
    return noted


def _exchanged(tasks: Sequence[_Task | None], shared: _Shared) -> dict[Request, torch.Tensor]:
    """Returns what this rank's task reads, and sends the others what theirs read.

    Args:
        tasks: of each rank.
        shared: of this rank.
    """
    own: list[tuple[Request, list[Piece]]] = []
    outgoing: dict[int, list[torch.Tensor]] = {}
    incoming: Counter[int] = Counter()
    for rank, task in enumerate(tasks):
        for request in _needed(task, shared.remote):
            pieces = shared.holdings.pieces(request)
            if rank == shared.ranks.rank:
                own.append((request, pieces))
                continue
            for piece in pieces:
                if piece.chunk.rank == shared.ranks.rank:
                    outgoing.setdefault(rank, []).append(shared.part(request, piece).contiguous().view(-1).view(torch.uint8))
    for request, pieces in own:
        for piece in pieces:
            if piece.chunk.rank != shared.ranks.rank:
                incoming[piece.chunk.rank] += piece.numbers * shared.entries[request.name].dtype.itemsize
    received = shared.exchange.messages({rank: torch.cat(parts) for rank, parts in outgoing.items()}, incoming)
    answers = {}
    for request, pieces in own:
        dtype = shared.entries[request.name].dtype
        answers[request] = torch.empty(request.shape, dtype=dtype)
        for piece in pieces:
            target = answers[request][piece.wanted]
            if piece.chunk.rank == shared.ranks.rank:
                target.copy_(shared.part(request, piece))
            else:
                nbytes, message = piece.numbers * dtype.itemsize, received[piece.chunk.rank]
                target.copy_(message[:nbytes].clone().view(dtype).view(target.shape))  # the clone is aligned
                received[piece.chunk.rank] = message[nbytes:]
    return answers


def _write_task(
    fd: int, task: _Task, answers: dict[Request, torch.Tensor], order: ByteOrder, path: StrPath, shared: _Shared
) -> None:
    """Encodes and writes the bytes of a task."""
    shared.remote.answer(answers)
    span, written = task.span, 0
    pieces = span.pieces(task.first, task.last, order)
    if task.rows is not None and isinstance(span.content, PlannedPayload):
        source = span.content.source_of(task.rows)
        encoded = span.content.encoded(task.rows, source, task.first - span.start, task.last - span.start, order)
        pieces = ((span.start + at, piece) for at, piece in encoded)
    for at, piece in pieces:
        write_at(fd, piece, at, span.name, path)
        written += len(piece)
    shared.ranks.move(written)
