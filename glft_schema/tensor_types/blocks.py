"""Types whose rows are cut into blocks of equal size, each a small Struct: how ggml stores all its quantized tensors.

A block type is declared by its block, field by field. Its payload is the blocks one after another,
``u8[OUT, IN // weights, size]``, and its formula sees many blocks at once, each field of theirs as one tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from glft_schema.fields import Rule, Struct, TensorField, u8
from glft_schema.lazy import torch
from glft_schema.tensor_types.tensor_type import DIMS, IN, OUT, TensorType

Formula = Callable[..., "torch.Tensor"]
Encoder = Callable[["torch.Tensor"], Mapping[str, "torch.Tensor"]]


def block_type(
    name: str, code: int, weights: int, block: Struct, dequantize: Formula, quantize: Encoder | None = None
) -> TensorType:
    """Declares a type.

    Args:
        name: as ggml calls it.
        code: its number in a file.
        weights: how many a block holds.
        block: the fields of a block, each of constant dims, in file order.
        dequantize: the block's fields as keywords, each [blocks, numbers] -> float32 [blocks, weights].
        quantize: float32 [blocks, weights] -> the block's fields by name; None where there is no encoder.
    """
    size = int(block.sizeof())

    def decode(blocks: torch.Tensor) -> torch.Tensor:
        return dequantize(**columns(block, blocks.reshape(-1, size))).reshape(blocks.shape[0], -1)

    def encode(numbers: torch.Tensor) -> dict[str, torch.Tensor]:
        if quantize is None:
            raise NotImplementedError(f"there is no encoder for {name}")
        fields = quantize(numbers.reshape(-1, weights))
        parts = [fields[field.name].contiguous().view(torch.uint8) for field in block.subcons]
        return {"blocks": torch.cat(parts, 1).reshape(numbers.shape[0], -1)}

    payload = Struct(
        Rule(f"{name.lower()}-rows", "dims", lambda at: _row(at) % weights == 0, f"rows that are a multiple of {weights} long"),
        "blocks" / u8[OUT, IN // weights, size] * f"blocks of {weights} weights in {size} bytes",
    )
    return TensorType(name, code, payload, decode, encode, block=block)


def columns(block: Struct, raw: torch.Tensor) -> dict[str, torch.Tensor]:
    """Cuts blocks u8[blocks, size] into one tensor [blocks, numbers] per field, of the field's type."""
    fields, start = {}, 0
    for field in block.subcons:
        declared: TensorField = field.subcon
        stop = start + int(field.sizeof())
        part = raw[:, start:stop]
        fields[field.name] = part if declared.number is u8 else part.contiguous().view(declared.number.dtype)
        start = stop
    return fields


def _row(context: Any) -> int:
    """Returns the length of a tensor's rows: of its last dim."""
    dims = DIMS(context)
    return int(dims[-1]) if dims else 1
