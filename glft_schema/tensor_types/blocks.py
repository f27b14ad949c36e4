"""Types whose rows are cut into blocks of equal size, each a small Struct: how ggml stores all its quantized tensors.

A block type is declared by its block, field by field. Its payload is the blocks one after another, and its formula sees many
blocks at once, each field of theirs as one tensor.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from glft_schema.fields import Struct
from glft_schema.lazy import torch
from glft_schema.numbers import Number, TensorField, f16, u8, u16, u32
from glft_schema.rules import Rule
from glft_schema.tensor_types.bits import by_words
from glft_schema.tensor_types.chunks import Fault
from glft_schema.tensor_types.scaled import Encoder, Formula, Scaled
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
        scales: the fields of integers that stand for floats, and for which, where a check of values is to know them.
        reserved: stored numbers that stand for nothing.
    """
    block.title = name.lower()
    blocks_ = Blocks(block, weights)
    size = blocks_.size

    def decode(blocks: torch.Tensor) -> torch.Tensor | Scaled:
        made = dequantize(**blocks_.columns(blocks))
        return made if isinstance(made, Scaled) else made.reshape(blocks.shape[0], -1)

    decode.__doc__ = dequantize.__doc__

    def encode(numbers: torch.Tensor) -> dict[str, torch.Tensor]:
        assert quantize
        fields = quantize(numbers.reshape(-1, weights))
        parts = [fields[field.name].contiguous().view(torch.uint8) for field in block.subcons]
        return {"blocks": torch.cat(parts, 1).reshape(numbers.shape[0], -1)}

    def faults(numbers: torch.Tensor, made: Mapping[str, torch.Tensor]) -> Iterable[Fault]:
        if not all(map(math.isfinite, torch.stack(numbers.aminmax()).tolist())):  # which NaN goes through; quicker than a mask
            yield True, "NaN and infinities cannot be quantized", ~numbers.isfinite()
        for field in blocks_.columns(made["blocks"]).values():
            if field.is_floating_point() and not bool(field.isfinite().all()):
                beyond = (~field.isfinite().all(1)).repeat_interleave(weights).reshape(numbers.shape)
                yield True, "weights are too large for the scale of their block", beyond

    payload = Struct(
        Rule(
            f"{name.lower()}-rows",
            "dims",
            lambda at: _row(DIMS(at)) % weights == 0,
            f"rows that are a multiple of {weights} long",
            show=lambda dims: str(_row(dims)),
        ),
        "blocks" / blocks_ * f"blocks of {weights} weights in {size} bytes",
    )
    encoder = encode if quantize else None
    return TensorType(name, code, payload, decode, encoder, faults, None, block, scales, tuple(reserved))


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

    def columns(self, raw: torch.Tensor) -> dict[str, torch.Tensor]:
        """Cuts u8 of whole blocks, of any shape, into one tensor [blocks, numbers] per field, of the field's type.

        Unsigned words come as their bytes, the lowest first: torch computes with neither u16 nor u32.
        """
        rows = raw.reshape(-1, self.size)
        return {name: _numbers(rows[:, place], number) for name, place, number in self._places}

    def swapped(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.reshape(-1, self.size)[:, self._swap].reshape(tensor.shape) if tensor.numel() else tensor


def _numbers(part: torch.Tensor, number: Number) -> torch.Tensor:
    """Returns bytes [blocks, n] as numbers."""
    if number in (u8, u16, u32):
        return part
    if number is f16 and not by_words(part):  # put together by arithmetic, which a compiler fuses with what comes after
        low, high = part[:, 0::2].to(torch.int16), part[:, 1::2].to(torch.int16)
        return (low | high << 8).view(torch.float16)
    return part.view(number.dtype) if number.itemsize == 1 else part.contiguous().view(number.dtype)


def _row(dims: Sequence[int]) -> int:
    """Returns the length of a tensor's rows: of its last dim, in torch's order."""
    return dims[-1] if dims else 1
