"""`StorageWriter`: weights files from `torch.distributed.checkpoint.save`.

The file's bytes are divided among the ranks as in `writing`: each rank encodes its share of the
file, not the tensors that it holds. The rows that it needs come from the ranks that hold them, a
few at a time. So tensors may be cut in any way, and ranks that hold more than others do not take
longer.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import distributed
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter as Writer
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from glft_schema.distributed.exchange import Chunk, Entries, Exchange, Holdings, Piece, Remote, Request
from glft_schema.distributed.ranks import TIMEOUT, Ranks
from glft_schema.distributed.shares import Task
from glft_schema.distributed.writing import plan_digest, write_shares
from glft_schema.errors import OptionError, TensorError
from glft_schema.families.donors import Donor
from glft_schema.files.container import open
from glft_schema.formats.registry import WITH_TYPES, target_format
from glft_schema.quantizer.quantize import Quantizing, as_recipe, plan_quantization
from glft_schema.quantizer.recipe_rules import Recipe
from glft_schema.storage.dtypes import Dtype, dtype_of, words
from glft_schema.storage.source import StrPath
from glft_schema.storage.torch_tensors import as_array, identity_of
from glft_schema.weights.checkpoints import by_example
from glft_schema.weights.convert import plan_conversion
from glft_schema.weights.in_memory import packed_tensors
from glft_schema.weights.save import FilePlan, Writing, plan_file
from glft_schema.weights.schemes import Schemes


class StorageWriter(Writer):
    """Writes a weights file from `torch.distributed.checkpoint.save`.

    The file has the bytes that `save_file` writes for the whole tensors, whatever the mesh. Each
    rank encodes an equal share of it; all need a shared file system. Rank 0 replaces the old file
    at the end; after an error the old file stays.

    Args:
        path: the file to write.
        metadata: as in `save_file`.
        like: a GGUF model of a declared family: the state dict has the names of transformers, and
            the file gets the names, metadata and, unless `schemes` or `recipe` choose others, the
            types of this model.
        recipe: a file type of llama-quantize such as ``Q4_K_M``, as in `quantize`. Requires `like`,
            and excludes the other arguments of `save_file` but `metadata` and `importance`.
        process_group: the ranks; must be the group that `save` gets.
        timeout: seconds that a rank waits for the others while none of them makes progress.
        schemes, alignment, format, header, rules, importance, strict, allow_requantize: as in
            `save_file`.

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
        like: StrPath | None = None,
        recipe: StrPath | Recipe | None = None,
        process_group: distributed.ProcessGroup | None = None,
        timeout: float = TIMEOUT,
        schemes: Schemes | None = None,
        alignment: int | None = None,
        format: str | None = None,
        header: Mapping[str, Any] | None = None,
        rules: str | Iterable[str] | None = None,
        importance: Mapping[str, Any] | None = None,
        strict: bool = False,
        allow_requantize: bool = False,
    ) -> None:
        super().__init__()
        if recipe is not None and like is None:
            raise OptionError("expected like with recipe: recipes need a model's metadata")
        writing = Writing(schemes or (), alignment, header, rules, importance, strict, allow_requantize)
        given = {**vars(replace(writing, importance=None)), "format": format}
        chosen = [name for name, value in given.items() if value != vars(Writing()).get(name)]
        if recipe is not None and chosen:
            raise OptionError(f"expected no {chosen[0]} with recipe")
        self.path, self._like, self._metadata = path, like, metadata
        self._recipe = None if recipe is None else as_recipe(recipe)
        self._format, self._writing, self._group, self._timeout = format, writing, process_group, timeout
        self._entries: Entries = []  # on rank 0

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
        """Records the tensors' order. Raises TensorError for an entry that is not a tensor."""
        for item in plan.items:
            if item.type == WriteItemType.BYTE_IO or item.tensor_data is None:
                raise TensorError("expected a tensor, found another object", item.index.fqn)
        return replace(plan, storage_data=[item.index.fqn for item in plan.items])

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Records the parts that ranks hold, on rank 0."""
        self._entries = entries_of(plans)
        return [replace(plan, storage_data=None) for plan in plans]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Writes this rank's share of the file, which rank 0 begins and commits."""
        ranks = Ranks.of_process_group(self._timeout, self._group)
        with ranks.failing_together(), ExitStack() as opened:
            held = {_place(item): _resolve(planner, item) for item in plan.items}
            entries, remote = ranks.of_first(self._entries), Remote()
            tensors = _tensors_of(entries)
            ties = _common_ties(ranks.gather(_ties(getattr(planner, "state_dict", {}), tensors)))
            planned = self._plan(tensors, remote, ties, opened)
            ranks.agree(versions=version("glft_schema"), plans=plan_digest(planned))
            shared = _Shared(held, tensors, Holdings.of(entries), remote, Exchange(self._group, self._timeout), ranks)
            write_shares(planned, self.path, ranks, exchange=partial(_exchange, shared=shared))
        done: Future[list[WriteResult]] = Future()
        done.set_result([WriteResult(item.index, item.tensor_storage_size() or 0, None) for item in plan.items])
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Does nothing: `write_data` has committed the file."""

    def _plan(self, tensors: Tensors, remote: Remote, ties: Mapping[str, str], opened: ExitStack) -> FilePlan:
        """Returns the plan of the file, with tensors that `remote` reads."""
        lazy = {name: remote.tensor(name, shape, dtype) for name, (shape, dtype) in tensors.items()}
        target = target_format(self.path, self._format)
        if self._like is None:
            stored = {name: replace(tensor, identity=ties.get(name)) for name, tensor in lazy.items()}
            return plan_file(stored, target, self._metadata, self._writing)
        if target is not WITH_TYPES:
            raise OptionError(f"expected {WITH_TYPES.name} as the output for like, found {target.name}")
        checkpoint = by_example(lazy, Donor.of(opened.enter_context(open(self._like))))
        if self._recipe is None:
            return plan_conversion(checkpoint, WITH_TYPES, self._writing, self._metadata)
        job = Quantizing(self._recipe, self._writing.importance, override=self._metadata)
        plans, _ = plan_quantization(checkpoint, self.path, job)
        return plans[self.path]


Tensors = Mapping[str, tuple[tuple[int, ...], Dtype]]  # shape and dtype, by name


def entries_of(plans: Sequence[SavePlan]) -> Entries:
    """Returns the tensors of all state dicts, in their order, as a list that JSON can hold.

    Tensors that are cut in the same way, among the same ranks, share one list of chunks.
    """
    entries: dict[str, tuple[Any, list[Chunk]]] = {name: (None, []) for plan in plans for name in plan.storage_data}
    known: dict[Chunk, Chunk] = {}  # most tensors are cut like others
    for rank, plan in enumerate(plans):
        for item in plan.items:
            data, name = item.tensor_data, item.index.fqn
            assert data is not None
            chunk = Chunk(data.chunk.offsets, data.chunk.sizes, rank)
            entries[name][1].append(known.setdefault(chunk, chunk))
            if entries[name][0] is None:
                entries[name] = (tuple(data.size), str(data.properties.dtype).removeprefix("torch.")), entries[name][1]
    numbers: dict[tuple[Chunk, ...], int] = {}
    tensors = [(name, *kind, numbers.setdefault(tuple(chunks), len(numbers))) for name, (kind, chunks) in entries.items()]
    return [[*numbers], tensors]


def _tensors_of(entries: Entries) -> Tensors:
    """Returns shape and dtype of each tensor."""
    return {name: (tuple(shape), dtype_of(dtype)) for name, shape, dtype, _ in entries[1]}


class _Shared(NamedTuple):
    """The state of a save that its steps share.

    Attributes:
        held: this rank's parts of tensors, by name and offsets.
        tensors: shape and dtype of all tensors, by name.
        holdings: the ranks that hold each part.
        remote: the tensors that the plan reads.
        exchange: sends and receives messages.
        ranks: all ranks.
    """

    held: Mapping[tuple[str, tuple[int, ...]], torch.Tensor]
    tensors: Tensors
    holdings: Holdings
    remote: Remote
    exchange: Exchange
    ranks: Ranks

    def part(self, request: Request, piece: Piece) -> torch.Tensor:
        """Returns a piece that this rank holds, on the CPU."""
        return self.held[request.name, piece.chunk.offsets][piece.held].cpu()


def _place(item: WriteItem) -> tuple[str, tuple[int, ...]]:
    assert item.tensor_data is not None
    return item.index.fqn, tuple(item.tensor_data.chunk.offsets)


def _resolve(planner: SavePlanner, item: WriteItem) -> torch.Tensor:
    """Returns this rank's part of a tensor."""
    resolved = planner.resolve_data(item)
    assert isinstance(resolved, torch.Tensor)
    return resolved.detach()


def _ties(state: Mapping[str, Any], tensors: Iterable[str]) -> dict[str, str]:
    """Returns the tensors that share an earlier one's memory on this rank, with the first name, and
    those with an empty shard, with an empty string. Raises TensorError for packed weights.
    """
    firsts: dict[Any, str] = {}
    ties: dict[str, str] = {}
    for name in tensors:
        tensor = state.get(name)
        if isinstance(tensor, torch.Tensor):
            if tensor in packed_tensors():
                raise TensorError("expected dense weights, found packed ones, which glft_schema.save_file saves", name)
            local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
            first = firsts.setdefault((tensor.shape, identity_of(local)), name) if local.numel() else ""
            if first != name:
                ties[name] = first
    return ties


def _common_ties(found: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Returns the first name of each group of tensors that are tied on all ranks, by name. A rank
    with an empty shard of a tensor has no say about the tensor."""
    firsts: dict[tuple[str, ...], str] = {}
    tied: dict[str, str] = {}
    for name in dict.fromkeys(name for ties in found for tie in ties.items() for name in reversed(tie)):
        on_ranks = tuple(ties.get(name, name) for ties in found)
        first = firsts.setdefault(on_ranks, name) if any(on_ranks) else name
        if first != name:
            tied |= {first: first, name: first}
    return tied


def _needs(task: Task | None, remote: Remote) -> list[Request]:
    """Returns the parts of tensors that a task reads."""
    if task is None or task.rows is None or isinstance(task.span.content, bytes) or task.span.content.copy_of is not None:
        return []
    payload, noted = task.span.content, remote.noting()
    payload.stored.rows(task.rows) if payload.has_parts else payload.stored.load()
    return noted


def _exchange(tasks: Sequence[Task | None], shared: _Shared) -> None:
    """Receives the values that this rank's task reads, and sends the other ranks theirs.

    Args:
        tasks: the current task of each rank, or None.
        shared: the state of this rank.
    """
    own: list[tuple[Request, list[Piece]]] = []
    outgoing: dict[int, list[torch.Tensor]] = {}
    incoming: Counter[int] = Counter()
    for rank, task in enumerate(tasks):
        for request in _needs(task, shared.remote):
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
                incoming[piece.chunk.rank] += piece.numbers * shared.tensors[request.name][1].itemsize
    received = shared.exchange.messages({rank: torch.cat(parts) for rank, parts in outgoing.items()}, incoming)
    answers = {}
    for request, pieces in own:
        dtype = shared.tensors[request.name][1]
        answers[request] = np.empty(request.shape, dtype)
        for piece in pieces:
            if piece.chunk.rank == shared.ranks.rank:
                found = as_array(shared.part(request, piece))
            else:
                nbytes, message = piece.numbers * dtype.itemsize, received[piece.chunk.rank]
                found = as_array(message[:nbytes]).view(dtype).reshape([part.stop - part.start for part in piece.wanted])
                received[piece.chunk.rank] = message[nbytes:]
            words(answers[request])[piece.wanted] = words(found)
    shared.remote.answer(answers)
