"""Types whose rows are cut into blocks of equal size, each a small Struct: how ggml stores all its quantized tensors.

A block type is declared by its block, field by field. Its payload is the blocks one after another, and its formula sees many
blocks at once, each field of theirs as one tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from construct.expr import FuncPath

from glft_schema.codec.numbers import Number, TensorField, u8
from glft_schema.codec.rules import Predicate, Rule
from glft_schema.codec.structs import Struct
from glft_schema.lazy import torch
from glft_schema.tensor_types.engine.bits import by_words
from glft_schema.tensor_types.engine.chunks import Fault
from glft_schema.tensor_types.engine.scaled import Encoder, Formula
from glft_schema.tensor_types.tensor_type import DIMS, IN, OUT, Floats, Reserved, TensorType


def block_type(
    name: str,
    code: int,
    weights: int,
    block: Struct,
    dequantize: Formula,
    quantize: Encoder | None = None,
    scales: Mapping[str, Floats] | None = None,
    reserved: Iterable[Reserved] = (),
    searches: bool = False,
    weighted: Encoder | None = None,
) -> TensorType:
    """Declares a type.

    Args:
        name: as ggml calls it.
        code: its number in a file.
        weights: how many a block holds.
        block: the fields of a block, each of constant dims, in file order.
        dequantize: the block's fields as keywords, each [blocks, numbers] -> `Scaled`, or the weights, float32
            [blocks, weights].
        quantize: float32 [blocks, weights] -> the block's fields by name; None where there is no encoder.
        weighted: the same of weights and how much each of them matters, float32 [rows, in], row by row of the tensor; None
            where that makes no difference.
        scales: the fields of integers that stand for floats, and for which, where a check of values is to know them.
        reserved: stored numbers that stand for nothing.
        searches: whether `quantize` searches, see `TensorType`.
    """
    block.title = name.lower()
    blocks_ = Blocks(block, weights)
    size = blocks_.size

    def of_blocks(encoder: Encoder | None) -> Encoder | None:
        def encode(numbers: torch.Tensor, *importance: torch.Tensor) -> dict[str, torch.Tensor]:
            assert encoder
            fields = encoder(numbers.reshape(-1, weights), *importance)
            parts = [fields[field.name].contiguous() for field in block.subcons]
            word, blocks = blocks_.word if by_words(parts[0]) else torch.uint8, len(parts[0])
            made = torch.cat([part.flatten().view(word).view(blocks, -1) for part in parts], 1)
            return {"blocks": made.view(torch.uint8).reshape(len(numbers), -1)}

        return encode if encoder else None

    def faults(numbers: torch.Tensor, made: Mapping[str, torch.Tensor]) -> Iterable[Fault]:
        if not _has_finite_sum(numbers):
            yield True, "NaN and infinities cannot be quantized", ~numbers.isfinite()
        for key, field in blocks_.columns("blocks", made["blocks"]).items():
            field = scales[key](field) if scales and key in scales else field
            if field.is_floating_point() and not _has_finite_sum(field):
                beyond = (~field.isfinite().all(1)).repeat_interleave(weights).reshape(numbers.shape)
                yield True, "weights are too large for the scale of their block", beyond

    whole_blocks = FuncPath(lambda dims: _row(dims) % weights == 0)
    rows = Predicate(f"rows that are a multiple of {weights} long", whole_blocks, show=lambda dims: str(_row(dims)))
    payload = Struct(
        Rule(f"{name.lower()}-rows", DIMS, rows),
        "blocks" / blocks_ * f"blocks of {weights} weights in {size} bytes",
    )
    return TensorType(
        name,
        code,
        payload,
        dequantize,
        of_blocks(quantize),
        faults,
        block=block,
        scales=scales,
        reserved=tuple(reserved),
        searches=searches,
        weighted=of_blocks(weighted),
    )


class Blocks(TensorField):
    """Blocks one after another, u8[OUT, IN // weights, size]: the bytes of each as its Struct says.

    Attributes:
        block: the Struct.
        weights: how many a block holds.
        size: bytes of a block.
    """

    def __init__(self, block: Struct, weights: int) -> None:
        self.block = block
        self.weights = weights
        self.size = int(block.sizeof())
        super().__init__(u8, (OUT, IN // weights, self.size))
        self._places: list[tuple[str, slice, Number]] = []  # the fields: name, bytes, and the kind of their numbers
        self._swap: list[int] = []  # where each byte of a block comes from when its numbers change their byte order
        for field in block.subcons:
            number, start = field.subcon.number, len(self._swap)
            for first in range(start, start + field.sizeof(), number.itemsize):
                self._swap.extend(reversed(range(first, first + number.itemsize)))
            self._places.append((field.name, slice(start, len(self._swap)), number))

        sizes = [field.sizeof() for field in block.subcons]
        self._width = next(width for width in (4, 2, 1) if not any(size % width for size in sizes))

    @property
    def word(self) -> torch.dtype:
        """The widest integers that each field of a block is a whole number of."""
        return {4: torch.int32, 2: torch.int16, 1: torch.uint8}[self._width]

    def columns(self, name: str, raw: torch.Tensor) -> dict[str, torch.Tensor]:
        """Cuts u8 of whole blocks, of any shape, into one tensor [blocks, numbers] per field of a block, of that field's type.

        Unsigned words come as their bytes, the lowest first: torch computes with neither u16 nor u32.
        """
        rows = raw.reshape(-1, self.size)
        return {name: _numbers(rows, place, number) for name, place, number in self._places}

    def swapped(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.reshape(-1, self.size)[:, self._swap].reshape(tensor.shape) if tensor.numel() else tensor


def _numbers(rows: torch.Tensor, place: slice, number: Number) -> torch.Tensor:
    """Returns some bytes of each of the rows [blocks, bytes] as numbers: a view if aligned and not traced, else a copy."""
    if not (number.is_float or number.is_signed):  # torch.compile would put no guard on `number in (u8, u16, u32)`
        return rows[:, place]
    size = number.itemsize
    if torch.compiler.is_compiling() or any(
        count % size for count in (place.start, place.stop, *rows.shape[1:], rows.stride(0), rows.storage_offset())
    ):
        return rows[:, place].contiguous().view(number.dtype)
    return rows.view(number.dtype)[:, place.start // size : place.stop // size]


def _has_finite_sum(numbers: torch.Tensor) -> bool:
    """Tells whether numbers have a finite sum, as only finite ones have; the quickest look at them all."""
    return bool(numbers.sum(dtype=torch.float32).isfinite())


def _row(dims: Sequence[int]) -> int:
    """Returns the length of a tensor's rows: of its last dim, in torch's order."""
    return dims[-1] if dims else 1
