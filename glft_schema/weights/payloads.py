"""A tensor on its way into a file: planned with its type and size, made when its turn comes, reported when it is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from glft_schema.codec.context import LITTLE, ByteOrder
from glft_schema.display import Progress
from glft_schema.errors import TensorError
from glft_schema.lazy import torch
from glft_schema.tensor_types import TensorType
from glft_schema.tensor_types.engine.chunks import Rows, matrix, row_chunks
from glft_schema.tensor_types.engine.differences import max_error
from glft_schema.tensors.tensor import Tensor
from glft_schema.weights.schemes import Choice
from glft_schema.weights.stored_tensors import StoredTensor, check_dense


@dataclass(frozen=True)
class WrittenTensor:
    """A tensor as it went into a file.

    Attributes:
        name: its name.
        source: the dtype it came in.
        type: the type it was stored in.
        nbytes: bytes of its payload; 0 where it shares that of `alias_of`.
        alias_of: the tensor that it is tied to, or None.
        note: why the type is not the one asked for or stored; mostly empty.
        copied: the payload is that of the source, bit for bit but for the byte order; nothing was computed.
        error: max |stored - source|, where that was asked for.
    """

    name: str
    source: torch.dtype
    type: TensorType
    nbytes: int
    alias_of: str | None
    note: str
    copied: bool = False
    error: float | None = None


@dataclass
class PlannedPayload:
    """A payload that is made when it is written.

    Attributes:
        name: of the tensor.
        stored: what it is made of.
        choice: the type it gets.
        done: called with the name when it is written.
        measure: whether what is stored is compared with its source.
        error: max |stored - source|, once it is known.
    """

    name: str
    stored: StoredTensor
    choice: Choice
    done: Callable[[str], None] | None = None
    measure: bool = False
    error: float | None = None

    @property
    def type(self) -> TensorType:
        """The type it gets."""
        return self.choice.type

    @property
    def copy_of(self) -> Tensor | None:
        """The tensor of another weights file whose payload it is, or None."""
        file_tensor = self.stored.file_tensor
        return file_tensor if file_tensor is not None and file_tensor.dtype == self.type else None

    @property
    def is_kept(self) -> bool:
        """Whether the numbers are stored as they come."""
        return self.type.exact == str(self.stored.dtype).removeprefix("torch.")

    @property
    def nbytes(self) -> int:
        """Bytes of the payload."""
        if self.copy_of:
            return self.copy_of.nbytes
        return self.type.nbytes(self.stored.shape)

    def pieces(self, order: ByteOrder = LITTLE) -> Iterator[memoryview]:
        """Yields the payload's bytes.

        Raises:
            TensorError: where the tensor cannot be stored as planned.
        """
        if self.copy_of:
            yield from self.copy_of.pieces(order)
            self.error = 0.0
        else:
            yield from self._encoded(order)
        if self.done:
            self.done(self.name)

    def _encoded(self, order: ByteOrder) -> Iterator[memoryview]:
        source = self.stored.rows or self._loaded()
        if self.is_kept:
            self.error = 0.0
            for part in (source[rows] for rows in self._row_chunks()) if isinstance(source, Rows) else (source,):
                yield from self.type.pieces({"weights": part}, order)
        else:
            self.error = 0.0 if self.measure else None
            fields = self.type.encode(
                source, self.name, importance=self.stored.importance, watch=self._compare if self.measure else None
            )
            del source
            yield from self.type.pieces(fields, order)

    def _loaded(self) -> torch.Tensor:
        """Returns the tensor. Raises TensorError where it is not what was planned."""
        tensor, dims = self.stored.load(), self.stored.shape
        check_dense(self.name, tensor)
        if (tuple(tensor.shape), tensor.dtype) != (dims, self.stored.dtype):
            payloads_of, found = f"{self.stored.dtype} {list(dims)}", f"{tensor.dtype} {list(tensor.shape)}"
            raise TensorError(f"expected {payloads_of} as planned, found {found}", self.name)
        return tensor

    def _row_chunks(self) -> Iterator[slice]:
        return row_chunks(*matrix(self.stored.shape))

    def _compare(self, source: torch.Tensor, fields: Mapping[str, torch.Tensor]) -> None:
        """Takes the error of some rows [rows, in], given what is stored of them."""
        stored = self.type.decode(fields, source.shape[1])
        self.error = max(self.error or 0.0, max_error(stored, source))

    def written(self, alias_of: PlannedPayload | None = None) -> WrittenTensor:
        """Returns what became of it, once it is written; `alias_of` is the tensor whose payload it shares."""
        nbytes, name = (0, alias_of.name) if alias_of else (self.nbytes, None)
        error = alias_of.error if alias_of else self.error
        copied = self.copy_of is not None or (self.is_kept and self.stored.file_tensor is None)
        return WrittenTensor(self.name, self.stored.dtype, self.type, nbytes, name, self.choice.note, copied, error)


def payloads_of(
    choices: Mapping[str, Choice], tensors: Mapping[str, StoredTensor], progress: Progress | None, measure: bool
) -> dict[str, PlannedPayload]:
    """Returns a payload for each tensor; as they are written, `progress` is told the share of all numbers."""
    total = sum(tensor.numel for tensor in tensors.values()) or 1
    written = 0

    def done(name: str) -> None:
        nonlocal written
        written += tensors[name].numel
        if progress:
            progress(name, written / total)

    return {name: PlannedPayload(name, tensors[name], choice, done, measure) for name, choice in choices.items()}
