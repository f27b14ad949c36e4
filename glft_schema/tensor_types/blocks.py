"""Block types: each row is a sequence of blocks of equal size, and each block is a small Struct.
ggml's quantized types are block types.

A block type is declared by the fields of its block. Its formula and encoder are scalar functions of
one block.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from construct.expr import FuncPath

from glft_schema.codec.expressions import Constant, Expression
from glft_schema.codec.numbers import Number, TensorField, u8
from glft_schema.codec.rules import Predicate, Rule
from glft_schema.codec.structs import Struct, unwrap
from glft_schema.errors import alternatives, quote
from glft_schema.storage.dtypes import Array
from glft_schema.tensor_types.chunks import Fault, has_finite_sum
from glft_schema.tensor_types.declaration import Floats, Reserved
from glft_schema.tensor_types.payload_layout import DIMS, IN, OUT, Fields
from glft_schema.tensor_types.scalar_layout import Encoder, Formula
from glft_schema.tensor_types.tensor_type import TensorType

TOO_LARGE = "weights are too large for the scale of their block"
ARGUMENTS = ("w", "importance", "mean_square")  # parameters of functions beside the fields
STORED_AS_ZERO = "non-zero weights are stored as 0, because the scale of their block is 0"


def block_type(
    name: str,
    code: int,
    weights: int,
    block: Struct,
    *,
    dequantize: Formula | None = None,
    quantize: Encoder | tuple[Encoder, ...] | None = None,
    scales: Mapping[str, Floats] | None = None,
    reserved: Iterable[Reserved] = (),
    searches: bool = False,
    largest: float = math.inf,
) -> TensorType:
    """Declares a block type for the type table of a format; `register_type` adds it to GGUF's.

    The arguments are those of `register_type`, and `searches` and `largest` of a `Declaration`; the
    encoder refuses larger weights. `formula_of` may add the formula.

    Raises:
        ValueError: if the name is in use, or the block or a function is invalid; the message says
            what to write instead.
    """
    reserved = tuple(reserved) if isinstance(reserved, Iterable) else (reserved,)
    if mistake := _mistake(name, block, weights, dequantize, quantize) or _mistake_in_checks(block, scales, reserved):
        raise ValueError(f"{name}: {mistake}")
    block.title = name.lower()
    blocks = Blocks(block, weights)

    def faults(numbers: Array, encoded: Fields) -> Iterable[Fault]:
        if not has_finite_sum(numbers):
            yield True, "NaN and infinities cannot be quantized", ~np.isfinite(numbers)
        has_zero, parts = np.zeros(numbers.size // weights, bool), 1
        for key, field in blocks.columns("blocks", encoded["blocks"]).items():
            field = scales[key](field) if scales and key in scales else field
            if field.dtype.kind == "f":
                if not has_finite_sum(field):
                    yield True, TOO_LARGE, (~np.isfinite(field).all(1)).repeat(weights).reshape(numbers.shape)
                has_zero |= (field == 0).any(1)
                parts = max(parts, math.gcd(weights, field.shape[1]))
        if math.isfinite(largest):
            yield True, TOO_LARGE, abs(numbers) > largest
        if type_.formula and has_zero.any():  # only then can all weights that share a scale become 0
            stored = type_.decode({"blocks": encoded["blocks"].reshape(-1, blocks.size)[has_zero]}, weights)
            lost = np.zeros((len(has_zero), parts, weights // parts), bool)
            lost[has_zero] = ~stored.reshape(-1, *lost.shape[1:]).any(2, keepdims=True)
            yield False, STORED_AS_ZERO, lost.reshape(numbers.shape) & (numbers != 0)

    whole_blocks = FuncPath(lambda dims: _row(dims) % weights == 0)
    rows = Predicate(f"a row length that is a multiple of {weights}", whole_blocks, show=lambda dims: str(_row(dims)))
    payload = Struct(
        Rule(f"{name.lower()}-rows", DIMS, rows),
        "blocks" / blocks * f"blocks of {weights} weights in {blocks.size} bytes",
    )
    type_ = TensorType(
        name,
        code,
        payload,
        dequantize,
        quantize,
        faults,
        block=block,
        scales=scales,
        reserved=reserved,
        searches=searches,
        largest=largest,
    )
    return type_


class Blocks(TensorField):
    """A sequence of blocks, u8[OUT, IN // weights, size], each laid out as a Struct says.

    Attributes:
        block: the Struct.
        weights: per block.
        size: bytes of a block.
    """

    def __init__(self, block: Struct, weights: int) -> None:
        self.block = block
        self.weights = weights
        self._spans: list[tuple[str, slice, Number]] = []  # of each field: its name, bytes and kind of number
        start = 0
        for field in block.subcons:
            end = start + field.sizeof()
            self._spans.append((field.name, slice(start, end), field.subcon.number))
            start = end
        self.size = start
        super().__init__(u8, (OUT, IN // weights, self.size))

    @cached_property
    def _swap(self) -> list[int]:
        """The index of the byte that replaces each byte of a block in the other byte order."""
        firsts = [
            (at, number.itemsize) for _, span, number in self._spans for at in range(span.start, span.stop, number.itemsize)
        ]
        return [at for first, size in firsts for at in reversed(range(first, first + size))]

    def parts(self, name: str) -> list[tuple[str, slice | None, Number]]:
        return [(field, span, number) for field, span, number in self._spans]

    def columns(self, name: str, raw: Array) -> dict[str, Array]:
        """Splits the bytes of whole blocks, u8 of any shape, into one array [blocks, numbers] per
        field, in the field's dtype."""
        rows = np.ascontiguousarray(raw).reshape(-1, self.size)
        return {name: rows[:, span].view(number.dtype) for name, span, number in self._spans}

    def swap(self, array: Array) -> Array:
        return array.reshape(-1, self.size)[:, self._swap].reshape(array.shape) if array.size else array


def _mistake_in_checks(block: Struct, scales: Any, reserved: tuple[Any, ...]) -> str | None:
    """Returns the mistake in `scales` or `reserved`, or None."""
    names = [field.name for field in block.subcons]
    if not isinstance(scales or {}, Mapping) or not all(callable(floats) for floats in (scales or {}).values()):
        return f"write scales as a mapping of fields to functions, found {quote(scales)}"
    if other := next((part for part in reserved if not isinstance(part, Reserved)), None):
        return f"write reserved as a list of Reserved(field, text, function), found {quote(other)}"
    if unknown := next((name for name in (*(scales or ()), *(part.field for part in reserved)) if name not in names), None):
        return f"expected a field of the block, {alternatives(names)}, in scales and reserved, found {quote(unknown)}"
    return None


def _mistake(name: Any, block: Any, weights: Any, dequantize: Any, quantize: Any) -> str | None:
    """Returns the mistake in a declaration and its correction, or None."""
    if not isinstance(name, str) or not name:
        return f"write the name as text, found {name!r}"
    if type(weights) is not int or weights < 1:
        return f"expected at least one weight per block, found {weights!r}"
    if not isinstance(block, Struct):
        return f'write the block as Struct("d" / f16[1], ...) of glft_schema.codec, found {block!r}'
    if not block.subcons:
        return 'expected at least one field, such as "d" / f16[1], found none'
    for field in block.subcons:
        array = unwrap(field)
        if not field.name:
            return f'give each field of the block a name, such as "d" / f16[1], found {array!r} without one'
        if not field.name.isidentifier():
            return f"{field.name}: choose a name of letters, digits and '_'"
        if not isinstance(array, TensorField) or not all(map(_is_size, array.dims)):
            example = f"{array!r}[1]" if isinstance(array, Number) else "u8[16]"
            return f"{field.name}: write an array of numbers with constant dims, such as {example}, found {array!r}"
    names = [field.name for field in block.subcons]
    if twice := next((name for name in names if names.count(name) > 1), None):
        return f"{twice}: choose another name, because another field has this one"
    if other := next((name for name in names if name in ARGUMENTS), None):
        return f"{other}: choose another name, because functions have a parameter of this name"
    parameters = f"(w, {', '.join(names)})"
    if not all(map(callable, quantize if isinstance(quantize, tuple) else () if quantize is None else (quantize,))):
        return f"write the encoder as a function of {parameters}, found {quote(quantize)}"
    if not (dequantize is None or callable(dequantize)):
        return f"write the formula as a function of {parameters}, found {quote(dequantize)}"
    return None


def _is_size(dim: Expression) -> bool:
    return isinstance(dim, Constant) and type(dim.value) is int and dim.value > 0


def _row(dims: Sequence[int]) -> int:
    """Returns the length of a tensor's rows: its last dim, in torch's order."""
    return dims[-1] if dims else 1
