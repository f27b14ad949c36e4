"""`StorageReader`: reads shards of weights files for `torch.distributed.checkpoint.load`."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Iterator

import torch
from torch import nn
from torch.distributed.checkpoint import metadata as stored
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader as Reader
from torch.futures import Future

from glft_schema.codec.metadata import TypedMetadata
from glft_schema.distributed.fingerprints import fingerprint_of
from glft_schema.distributed.ranks import check_equal
from glft_schema.errors import FormatError, TensorError
from glft_schema.families.export import family_in_gguf, hf_model
from glft_schema.families.tensor_names import Names
from glft_schema.files.container import open
from glft_schema.files.file import File
from glft_schema.formats.gguf_names import EMBEDDING, OUTPUT
from glft_schema.nn.load_into import Renaming, rename_tensors
from glft_schema.nn.modules import Packed
from glft_schema.storage.source import StrPath
from glft_schema.storage.system import MAPS
from glft_schema.storage.torch_tensors import as_tensor, dtype_in_torch
from glft_schema.tensor_types.chunks import CHUNK, slices
from glft_schema.tensors.stored_tensor import Slices, StoredTensor, of_file


class StorageReader(Reader):
    """Reads a weights file for `torch.distributed.checkpoint.load`.

    Each rank reads the blocks of its own shards and dequantizes them into the shards' memory, on
    their device. Shards may be cut along any dims. Tensors of a GGUF model of a declared family are
    also known by the names of transformers' model, with the values and the order of rows there.

    Args:
        path: the file, an index of files, or a folder of them; opened by each rank.
        names: a mapping or function from names in the file to names in the state dict, or to None
            to omit the tensor. Names that a mapping lacks stay the same. By default, tensors are
            known by the file's and by transformers' names.
        packed: names of tensors to read as bytes, u8 [rows, bytes of a row], or a module that has
            packed weights of these names; see `glft_schema.nn`.
        mmap: whether to map the files. On a network file system, False is faster.

    `load` raises CheckpointException on all ranks, with the error of each rank that failed:
        OSError, FormatError: if the file cannot be opened.
        OptionError: if ranks open files that differ.
        TensorError: if a target has neither a float dtype nor the tensor's; if a tensor in `packed`
            is not quantized, is cut inside a block, or its target is not uint8.
    """

    def __init__(
        self,
        path: StrPath,
        *,
        names: Renaming | None = None,
        packed: Collection[str] | nn.Module = (),
        mmap: bool = MAPS,
    ) -> None:
        super().__init__()
        self.path = path
        self._names = names
        self._packed = _packed_names(packed) if isinstance(packed, nn.Module) else frozenset(packed)
        self._mmap = mmap
        self._file: File | None = None
        self._tensors: dict[str, StoredTensor] = {}
        self._problem: Exception | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begins another load, of `checkpoint_id` if it is given."""
        self.path = self.path if checkpoint_id is None else checkpoint_id

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Returns whether a path can be read."""
        return os.path.exists(checkpoint_id)

    def read_metadata(self) -> stored.Metadata:
        """Opens the file. Returns the name and the shape of each tensor."""
        self._problem, self._tensors = None, {}
        try:
            self._file = open(self.path, mmap=self._mmap)
            self._tensors = tensors_by_name(self._file, self._names)
            sizes = {name: (self._size(name, tensor), dtype_in_torch(tensor.dtype)) for name, tensor in self._tensors.items()}
        except Exception as error:  # raised by `set_up_storage_reader`: torch would report it here as another error
            self._problem, sizes = error, {}
        return stored.Metadata({name: _of_one_chunk(*size) for name, size in sizes.items()}, storage_meta=stored.StorageMeta())

    def set_up_storage_reader(self, metadata: stored.Metadata, is_coordinator: bool) -> None:
        """Raises what prevented the file from being opened."""
        if self._problem is not None:
            raise self._problem

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Adds the fingerprint of the files to the plan."""
        assert self._file is not None
        plan.storage_data = fingerprint_of(self._file)
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Raises OptionError if ranks have opened other files than rank 0."""
        check_equal([plan.storage_data for plan in plans], "files")
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Reads this rank's parts of tensors. All targets are checked before one is written."""
        assert self._file is not None
        try:
            for item in plan.items:
                self._check(item, planner.resolve_tensor(item))
            for item in plan.items:
                target = planner.resolve_tensor(item)
                self._read(item, target.detach())
                planner.commit_tensor(item, target)
        finally:
            self._file.close()
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _size(self, name: str, tensor: StoredTensor) -> tuple[int, ...]:
        """Returns the shape of a tensor, or of its bytes."""
        if name not in self._packed:
            return tensor.shape
        if tensor.packed is None:
            raise TensorError("expected a quantized tensor for packed, found another type", name)
        rows = tensor.shape[0] if len(tensor.shape) > 1 else 1
        return rows, tensor.packed.type.nbytes(tensor.shape) // max(rows, 1)

    def _check(self, item: ReadItem, target: torch.Tensor) -> None:
        """Raises TensorError if the target's dtype cannot take the tensor's values or bytes."""
        name = item.storage_index.fqn
        found = torch.uint8 if name in self._packed else dtype_in_torch(self._tensors[name].dtype)
        if found != target.dtype and not target.dtype.is_floating_point:
            raise TensorError(f"expected a target of a float dtype or {found}, found {target.dtype}", name)
        if name in self._packed and target.dtype != torch.uint8:
            raise TensorError(f"expected a target of {torch.uint8} for the tensor's bytes, found {target.dtype}", name)

    def _read(self, item: ReadItem, target: torch.Tensor) -> None:
        """Reads a part of a tensor into its target, some rows at a time."""
        tensor, name = self._tensors[item.storage_index.fqn], item.storage_index.fqn
        for index, out in _chunks(item.storage_offsets, target):
            if name in self._packed:
                assert tensor.packed is not None
                out.copy_(as_tensor(tensor.packed.packed_rows(index)))
            elif tensor.file_tensor is not None and out.is_contiguous():
                tensor.file_tensor.read(index, out=out)
            else:
                out.copy_(as_tensor(tensor.part(index)))


def tensors_by_name(file: File, names: Renaming | None = None) -> dict[str, StoredTensor]:
    """Returns the tensors of a file by the names that a state dict may have; see `StorageReader`.

    Raises:
        OptionError: if two tensors get the same name.
        TensorError, OptionError: if a declared family cannot map the tensors; see `hf_model`.
    """
    if names is not None:
        return rename_tensors(file, names, file.name)
    tensors = {name: of_file(tensor) for name, tensor in file.weights.items()}
    metadata = file.metadata
    if not isinstance(metadata, TypedMetadata):
        return tensors
    try:
        family = family_in_gguf(metadata)
    except FormatError:  # no model of a declared family
        return tensors
    mapped, config = hf_model(tensors, file, fused=True)
    places = Names(family, config, len(tensors)).places(tensors, fused=True)
    if OUTPUT in places and OUTPUT not in tensors:  # tied
        (embedding,), (output,) = places[EMBEDDING].in_hf(config), places[OUTPUT].in_hf(config)
        mapped[output] = mapped[embedding]
    return tensors | {prefix + name: tensor for name, tensor in mapped.items() for prefix in {"", family.prefix}}


def _packed_names(module: nn.Module) -> frozenset[str]:
    return frozenset(
        f"{name}.weight" if name else "weight"
        for name, layer in module.named_modules(remove_duplicate=False)
        if isinstance(layer, Packed)
    )


def _of_one_chunk(shape: tuple[int, ...], dtype: torch.dtype) -> stored.TensorStorageMetadata:
    size = torch.Size(shape)
    chunk = stored.ChunkStorageMetadata(torch.Size([0] * len(size)), size)
    return stored.TensorStorageMetadata(stored.TensorProperties(dtype=dtype), size, [chunk])


def _chunks(offsets: Iterable[int], target: torch.Tensor) -> Iterator[tuple[Slices, torch.Tensor]]:
    """Yields parts of a tensor, of about `CHUNK` numbers, and their targets; none if it is empty.

    Args:
        offsets: index of the target's first element in the tensor.
        target: the tensor to fill.
    """
    inner = math.prod(target.shape[1:])
    if not target.numel():
        return
    if target.dim() < 2:
        yield tuple(slice(at, at + size) for at, size in zip(offsets, target.shape, strict=True)), target
        return
    first, *others = offsets
    across = tuple(slice(at, at + size) for at, size in zip(others, target.shape[1:], strict=True))
    for rows in slices(len(target), max(CHUNK // inner, 1)):
        yield (slice(first + rows.start, first + rows.stop), *across), target[rows]
