"""What is odd about the numbers of a file that keeps to every rule of its format: NaN, infinities, codes that mean nothing.

What is looked at follows from the declarations of the types: every field of floats, every field of integers that `scales`
says to be floats of another format, and what `reserved` says to stand for nothing. A payload is read a piece at a time.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from glft_schema.codec.context import LITTLE
from glft_schema.codec.numbers import TensorField
from glft_schema.files.file import File
from glft_schema.lazy import torch
from glft_schema.storage.tensor_bytes import tensor_over
from glft_schema.tensor_types import TensorType
from glft_schema.tensor_types.blocks import Blocks
from glft_schema.tensor_types.engine.chunks import index_of
from glft_schema.tensor_types.tensor_type import Floats, Reserved
from glft_schema.tensors.tensor import Tensor
from glft_schema.weights.patterns import leave_out

PIECE = 1 << 22  # bytes of a payload that are looked at at a time
FEW = 1 << 10  # weights
NAN, INFINITE, RESERVED = "NaN", "infinite", "reserved"
SUBNORMAL, ALL_ZERO, UNKNOWN = "subnormal", "all zero", "unknown type"
FAULTS = (NAN, INFINITE, RESERVED)
EXTREME = 2.0**100  # a scale from which on a code may make an infinity of it


@dataclass(frozen=True)
class Oddity:
    """What is odd about the numbers of one field of a tensor.

    Attributes:
        tensor: its name.
        file: the file that it is in.
        field: where the numbers are stored, such as ``weights``, ``scales``, ``d``; ``weights`` of a quantized type are those
            that its formula makes.
        kind: ``NaN``, ``infinite`` or ``reserved``, a code that stands for nothing; ``subnormal``, a scale with fewer digits
            than others; ``all zero``, where every weight is; ``unknown type``, of which nobody can say.
        count: how many numbers of the field.
        index: the first weight concerned, in torch's order; of a code the first of its block.
        byte: where its number begins, or the block that the weight is made of, in bytes from the start of the file.
        meaning: what a reserved code is; empty of the other kinds.
    """

    tensor: str
    file: str
    field: str
    kind: str
    count: int
    index: tuple[int, ...]
    byte: int
    meaning: str = ""

    @property
    def is_fault(self) -> bool:
        """Whether no encoder gives it of finite weights; the other kinds are in good files, too."""
        return self.kind in FAULTS


def check_values(file: File, exclude: Iterable[str] = ()) -> Iterator[tuple[Tensor, list[Oddity]]]:
    """Looks at the numbers of each tensor of an open file: weights, scales and codes.

    NaN and infinities are found where they are stored: a scale stands for all weights that it multiplies. Never more than
    some megabytes of a payload are in memory, where the file was opened with ``mmap=False``.

    Args:
        file: an open file, or a set.
        exclude: names or fnmatch patterns of tensors not to look at.

    Yields:
        Each tensor, and what is odd about it: mostly nothing.

    Raises:
        SchemeError: for a pattern that matches nothing.
        ClosedError, TruncatedError, OSError: where the file cannot be read any more.
    """
    found: dict[Hashable, list[Oddity]] = {}
    for tensor in leave_out(file.tensors, exclude).values():
        if tensor.identity not in found:  # tied tensors are looked at once
            found[tensor.identity] = list(oddities(tensor))
        yield tensor, [replace(oddity, tensor=tensor.name) for oddity in found[tensor.identity]]


def oddities(tensor: Tensor) -> Iterator[Oddity]:
    """Yields what is odd about one tensor, see `check_values`."""
    numbers = math.prod(tensor.shape)
    whole = Oddity(tensor.name, tensor.file, "weights", ALL_ZERO, numbers, (0,) * len(tensor.shape), tensor.position)
    if not tensor.dtype.is_known:
        yield replace(whole, field="", kind=UNKNOWN)
    elif numbers:
        found = _Found(tensor)
        for name, declared in tensor.dtype.fields():
            if looks := list(_looks(tensor.dtype, name, declared)):
                found.read(name, declared, looks)
        if found.extreme:
            found.dequantize()
        yield from found.oddities.values()
        if _is_zero(tensor):
            yield whole


def _is_zero(tensor: Tensor) -> bool:
    """Tells whether every weight is 0. Mostly the first few are not."""
    return not bool(next(tensor.chunks(FEW)).any()) and not any(bool(chunk.any()) for chunk in tensor.chunks())


class _Look(NamedTuple):
    """What is to be looked at in a field.

    Attributes:
        field: its name.
        start: its first byte in a block; 0 where there are no blocks.
        nbytes: its bytes in a block, or of a number.
        is_scale: whether its floats multiply codes.
        floats: what its numbers stand for; None where they are no floats.
        reserved: which of them stand for nothing.
    """

    field: str
    start: int
    nbytes: int
    is_scale: bool
    floats: Floats | None
    reserved: list[Reserved]


def _looks(type_: TensorType, name: str, declared: TensorField) -> Iterator[_Look]:
    """Yields what is to be looked at in a field of the payload, or in its blocks."""
    fields = (
        [(part.name, part.subcon) for part in declared.block.subcons] if isinstance(declared, Blocks) else [(name, declared)]
    )
    start = 0
    for field, part in fields:
        nbytes = part.sizeof() if isinstance(declared, Blocks) else part.number.itemsize
        floats = (type_.scales or {}).get(field, _as_they_are if part.number.dtype.is_floating_point else None)
        reserved = [codes for codes in type_.reserved if codes.field == field]
        if floats or reserved:
            yield _Look(field, start, nbytes, not type_.exact, floats, reserved)
        start += nbytes


def _as_they_are(numbers: torch.Tensor) -> torch.Tensor:
    return numbers


class _Found:
    """What was found in a tensor so far.

    Attributes:
        oddities: by field, kind and meaning.
        extreme: a scale is so large that a code may make an infinity of it.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.oddities: dict[tuple[str, str, str], Oddity] = {}
        self.extreme = False
        self._tensor = tensor
        self._weights = math.prod(tensor.shape)

    def read(self, name: str, declared: TensorField, looks: list[_Look]) -> None:
        """Looks at a field of the payload, piece by piece: at its numbers, or at the fields of its blocks."""
        source, position, *_ = self._tensor.identity
        start, nbytes = self._tensor.dtype.field_spans(self._tensor.shape)[name]
        pitch = declared.size if isinstance(declared, Blocks) else declared.number.itemsize
        for at in range(0, nbytes, PIECE // pitch * pitch):
            view = source.private(position + start + at, min(PIECE // pitch * pitch, nbytes - at))
            numbers = tensor_over(view, declared.number.dtype, [len(view) // declared.number.itemsize])
            numbers = numbers if self._tensor.order == LITTLE else declared.swapped(numbers)
            rows = numbers.reshape(len(view) // pitch, -1)
            fields = declared.columns(name, rows)
            for look in looks:
                self._look_at(look, fields[look.field], _Rows(at // pitch, nbytes // pitch, position + start + at, pitch))

    def dequantize(self) -> None:
        """Looks at the weights that the formula makes."""
        unit, block = self._tensor.dtype.unit(self._tensor.shape), 0  # weights that share a scale
        blocks, look = self._weights // unit, _Look("weights", 0, 0, False, _as_they_are, [])
        pitch = self._tensor.nbytes // blocks
        for chunk in self._tensor.chunks():
            weights = chunk.reshape(-1, unit)
            rows = _Rows(block, blocks, self._tensor.position + block * pitch, pitch)
            self._note(look, NAN, weights.isnan(), rows)
            self._note(look, INFINITE, weights.isinf(), rows)
            block += len(weights)

    def _look_at(self, look: _Look, numbers: torch.Tensor, rows: _Rows) -> None:
        for codes in look.reserved:
            self._note(look, RESERVED, codes.found(numbers), rows, codes.numbers)
        if look.floats is None:
            return
        floats = look.floats(numbers)
        if not all(math.isfinite(extreme) for extreme in floats.aminmax()):
            self._note(look, NAN, floats.isnan(), rows)
            self._note(look, INFINITE, floats.isinf(), rows)
        if look.is_scale:
            size = floats.abs()
            self._note(look, SUBNORMAL, (size > 0) & (size < torch.finfo(floats.dtype).tiny), rows)
            self.extreme |= bool(((size > EXTREME) & (size < math.inf)).any())

    def _note(self, look: _Look, kind: str, mask: torch.Tensor, rows: _Rows, meaning: str = "") -> None:
        """Counts the numbers that `mask` has, and keeps the place of the first."""
        if not (count := int(mask.count_nonzero())):
            return
        if known := self.oddities.get((look.field, kind, meaning)):
            self.oddities[look.field, kind, meaning] = replace(known, count=known.count + count)
            return
        across = mask.shape[1]
        row, number = divmod(int(mask.reshape(-1).to(torch.uint8).argmax()), across)
        group = number if look.floats else 0  # of packed codes nobody says which weights a byte has
        weight = ((rows.first + row) * across + group) * self._weights // (rows.all * across)
        byte = rows.byte + row * rows.pitch + look.start + number * look.nbytes // across
        index = index_of(weight, self._tensor.shape)
        found = Oddity(self._tensor.name, self._tensor.file, look.field, kind, count, index, byte, meaning)
        self.oddities[look.field, kind, meaning] = found


class _Rows(NamedTuple):
    """Rows of numbers that are looked at together: blocks, or single numbers.

    Attributes:
        first: which row of the payload's field is the first one.
        all: how many that field has.
        byte: where the first one begins, in bytes from the start of the file.
        pitch: bytes from one to the next.
    """

    first: int
    all: int
    byte: int
    pitch: int
