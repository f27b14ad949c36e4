"""Payloads to be written: planned with type and size, encoded when written, and listed in the
report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import numpy as np

from glft_schema.codec.context import LITTLE, ByteOrder
from glft_schema.display import Progress, with_display
from glft_schema.errors import FormatError, TensorError
from glft_schema.storage.dtypes import Array, is_float, is_integer, name_of
from glft_schema.storage.tensor_bytes import array_bytes
from glft_schema.storage.torch_tensors import array_of
from glft_schema.tensor_types import TensorType
from glft_schema.tensor_types.chunks import CHUNK, as_matrix, slices, warn_of_lost
from glft_schema.tensor_types.conversions import float32_of
from glft_schema.tensor_types.differences import max_error
from glft_schema.tensor_types.payload_layout import matrix
from glft_schema.tensors.stored_tensor import StoredTensor
from glft_schema.tensors.tensor import Tensor
from glft_schema.weights.in_memory import check_dense
from glft_schema.weights.requantizing import type_before
from glft_schema.weights.schemes import TypeChoice

PART = 4 * CHUNK  # numbers that are encoded at once
_COMPARING = Lock()


@with_display
@dataclass(frozen=True)
class WrittenTensor:
    """The result of writing a tensor.

    Attributes:
        name: of the tensor.
        source: the name of its dtype before writing, or the scheme of a weight that was stored as
            several tensors.
        type: its type in the file.
        nbytes: bytes of its payload; 0 if it shares the payload of `alias_of`.
        alias_of: the tensor it is tied to, or None.
        note: why the type differs from the requested or stored one, or empty.
        asked: the type that a scheme asked for, or None.
        quantized_from: its previous quantized type if it was requantized, which adds error.
        copied: whether the payload equals the source's except for byte order.
        error: max |stored - source|; None if it was not measured.
    """

    name: str
    source: str
    type: TensorType
    nbytes: int
    alias_of: str | None
    note: str
    copied: bool = False
    error: float | None = None
    asked: TensorType | None = None
    quantized_from: TensorType | None = None


@dataclass
class PlannedPayload:
    """A payload that is encoded when written."""

    name: str
    stored: StoredTensor  # the source
    choice: TypeChoice
    done: Callable[[str], None] | None = None  # called with the name after writing
    measure: bool = False  # whether to compare the payload with its source
    error: float | None = None  # max |stored - source|, set by writing
    lost: Counter[str] = field(default_factory=Counter)  # numbers that encoding has lost, by kind

    @property
    def type(self) -> TensorType:
        return self.choice.type

    @property
    def copy_of(self) -> Tensor | None:
        """The tensor of a weights file whose payload is copied, or None."""
        file_tensor = self.stored.file_tensor
        return file_tensor if file_tensor is not None and file_tensor.type == self.type else None

    @property
    def is_unchanged(self) -> bool:
        """Whether the values are stored unchanged."""
        return self.type.exact == name_of(self.stored.dtype)

    @property
    def is_exact(self) -> bool:
        """Whether all values are stored exactly."""
        stored, own = self.stored.dtype, self.type.dtype
        widened = is_float(stored) and self.type.exact in ("float32", "float64") and stored.itemsize <= own.itemsize
        return self.copy_of is not None or self.is_unchanged or widened or (is_integer(stored) and np.can_cast(stored, own))

    @property
    def nbytes(self) -> int:
        return self.copy_of.nbytes if self.copy_of else self.type.nbytes(self.stored.shape)

    def write_to(self, stream: Any, order: ByteOrder = LITTLE) -> int:
        """Reads, encodes and writes the payload, a few rows at a time. Returns its size in bytes.

        Args:
            stream: an `OutputFile`, at the first byte of the payload.
            order: byte order of the file.

        Raises:
            TensorError: if the tensor does not match the plan.
            FormatError, OSError: from the source and the file.
        """
        copied, start = self.copy_of, stream.tell()
        self.error = 0.0 if copied is not None or self.is_unchanged or self.measure else None
        try:
            if copied is not None and copied.order == order:
                copied.write_to(stream, order)
            else:
                for at, piece in self.span(0, self.nbytes, order):
                    stream.write_at(start + at, piece)
                stream.seek(start + self.nbytes)
        except FormatError as error:  # the source was truncated after opening
            error.tensor = self.name
            raise
        self.warn()
        if self.done:
            self.done(self.name)
        return self.nbytes

    def to_bytes(self, order: ByteOrder = LITTLE) -> bytes:
        """Returns the payload's bytes. Raises as `write_to`."""
        stored = bytearray(self.nbytes)
        for at, piece in self.span(0, self.nbytes, order):
            stored[at : at + len(piece)] = piece
        return bytes(stored)

    def warn(self) -> None:
        """Warns of numbers that encoding has lost since the last call."""
        warn_of_lost(self.name, self.lost)
        self.lost.clear()

    def span(self, first: int, last: int, order: ByteOrder = LITTLE) -> Iterator[tuple[int, memoryview]]:
        """Yields bytes `first` to `last` of the payload in pieces, each with its position.

        Only the rows of these bytes are read and encoded. The pieces of a type with several fields
        are not in order. Raises as `write_to`.
        """
        for rows in self.chunks_between(first, last, order):
            yield from self.pieces(rows, first, last, order)

    def chunks_between(self, first: int, last: int, order: ByteOrder = LITTLE) -> list[slice | None]:
        """Returns the rows of the matrix that are encoded at once; None for bytes that are copied.
        A source that cannot be read in parts is encoded at once."""
        copied = self.copy_of
        if copied is not None and (copied.order == order or not copied.type.is_known):
            return [None]
        rows, columns = matrix(self.stored.shape)
        numbers = [
            _rows_between(first - start, last - start, nbytes // rows, rows)
            for start, nbytes in (self.type.field_spans(self.stored.shape).values() if rows else ())
        ]
        numbers = [part for part in numbers if part]
        if not numbers:
            return []
        at_once = max(PART // max(columns, 1), 1) if self.has_parts else rows
        return [*slices(max(part.stop for part in numbers), at_once, min(part.start for part in numbers))]

    def pieces(self, rows: slice | None, first: int, last: int, order: ByteOrder = LITTLE) -> Iterator[tuple[int, memoryview]]:
        """Yields the bytes between `first` and `last` of rows that `chunks_between` returned, in
        pieces as `span` does."""
        if rows is None:
            assert self.copy_of is not None
            self.error = 0.0
            for piece in self.copy_of.pieces(order, first, last):
                yield first, piece
                first += len(piece)
            return
        fields = self._fields_of(rows)
        spans, count = self.type.field_spans(self.stored.shape), matrix(self.stored.shape)[0]
        for name, part in self.type.fields():
            start, nbytes = spans[name]
            start += rows.start * (nbytes // count)
            stored = array_bytes(fields[name] if order == LITTLE else part.swap(fields[name]))
            begin, end = max(first - start, 0), min(last - start, len(stored))
            if begin < end:
                yield start + begin, stored[begin:end]

    @property
    def has_parts(self) -> bool:
        """Whether the source can be read in parts."""
        return len(self.stored.shape) > 1 and self.stored.has_parts

    def _fields_of(self, rows: slice) -> Mapping[str, Array]:
        """Returns the fields of some rows of the matrix. Raises as `write_to`."""
        if self.copy_of is not None:
            self.error = 0.0
            return self.copy_of.rows(range(rows.start, rows.stop))
        dims = self.stored.shape
        if self.has_parts:
            source = self.stored.rows(rows)
            self._check(source, (rows.stop - rows.start, *dims[1:]))
        else:
            source = self.load()[rows] if len(dims) > 1 else self.load()
        importance = self.stored.importance
        if importance is not None and len(dims) > 2 and importance.size == dims[0] * dims[-1]:
            importance = importance.reshape(dims[0], dims[-1])[rows]
        self.error = 0.0 if self.is_unchanged else (self.error or 0.0) if self.measure else None
        if self.is_unchanged:
            return {"weights": source}
        scale, weights = None, source
        if self.choice.scale is not None:
            scale, given = self.choice.scale.of(rows), as_matrix(source)
            weights = (float32_of(given) / scale).reshape(source.shape)
        watch = self._compare if self.measure and scale is None else None
        try:
            fields = self.type.encode(
                weights, self.name, importance=importance, watch=watch, lost=self.lost, search=self.choice.search
            )
            if self.measure and scale is not None:
                self._compare(given, fields, scale)
            return fields
        except TensorError as error:
            if error.index is not None and len(dims) > 1:
                raise TensorError(error.problem, error.tensor, (error.index[0] + rows.start, *error.index[1:])) from None
            raise

    def load(self) -> Array:
        """Returns the source tensor. Raises TensorError if it does not match the plan."""
        given = self.stored.load()
        check_dense(self.name, given)
        tensor: Array = array_of(given)
        self._check(tensor, self.stored.shape)
        return tensor

    def _check(self, tensor: Array, dims: tuple[int, ...]) -> None:
        """Raises TensorError if a source, or rows of it, do not match the plan."""
        if (tensor.shape, tensor.dtype) != (dims, self.stored.dtype):
            planned, found = f"{name_of(self.stored.dtype)} {list(dims)}", f"{name_of(tensor.dtype)} {list(tensor.shape)}"
            raise TensorError(f"expected {planned} as planned, found {found}", self.name)

    def _compare(self, source: Array, fields: Mapping[str, Array], scale: Array | None = None) -> None:
        """Updates the error with some rows [rows, in], and the fields that encode them / scale.
        Thread-safe."""
        decoded = self.type.decode(fields, source.shape[1])
        if scale is not None:
            decoded *= scale
        error = max_error(decoded, source)
        with _COMPARING:
            self.error = max(self.error or 0.0, error)

    def report(self, alias_of: PlannedPayload | None = None) -> WrittenTensor:
        """Returns the report after writing. `alias_of` is the tensor whose payload it shares."""
        nbytes, name = (0, alias_of.name) if alias_of else (self.nbytes, None)
        error = (alias_of or self).error if self.measure else None
        is_decoded = self.stored.file_tensor is not None or self.stored.origin
        copied = self.copy_of is not None or (self.is_unchanged and not is_decoded)
        note, asked, before = self.choice.note, self.choice.asked, type_before(self.stored, self.type)
        source = self.stored.origin or name_of(self.stored.dtype)
        return WrittenTensor(self.name, source, self.type, nbytes, name, note, copied, error, asked, before)


def _rows_between(first: int, last: int, pitch: int, rows: int) -> range:
    """Returns the rows of `pitch` bytes that overlap bytes `first` to `last`."""
    if not pitch:
        return range(0)
    return range(min(max(first, 0) // pitch, rows), min(max(-(-last // pitch), 0), rows))


def payloads_of(
    choices: Mapping[str, TypeChoice], tensors: Mapping[str, StoredTensor], progress: Progress | None, measure: bool
) -> dict[str, PlannedPayload]:
    """Plans a payload for each tensor. `progress` receives the share of weights written."""
    total = sum(tensor.numel for tensor in tensors.values()) or 1
    written = 0

    def done(name: str) -> None:
        nonlocal written
        written += tensors[name].numel
        if progress:
            progress(name, written / total)

    return {name: PlannedPayload(name, tensors[name], choice, done, measure) for name, choice in choices.items()}
