"""The types of ggml, as GGUF files number them: all that the modules of the families declare."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from glft_schema.codec.structs import Struct
from glft_schema.codec.type_codes import TypeTable
from glft_schema.tensor_types import fp4, i_quants, k_quants, legacy, ternary, unquantized
from glft_schema.tensor_types.blocks import block_type
from glft_schema.tensor_types.engine.scaled import Encoder, Formula
from glft_schema.tensor_types.tensor_type import Floats, OpaqueType, Reserved, TensorType

FAMILIES = (unquantized, legacy, k_quants, i_quants, ternary, fp4)
DECLARED = [value for family in FAMILIES for value in vars(family).values() if isinstance(value, TensorType)]
GGML_TYPES = TypeTable[TensorType]("ggml", *sorted(DECLARED, key=lambda type_: type_.code), unknown=OpaqueType.of)


def register_type(
    name: str,
    code: int,
    *,
    weights: int,
    block: Struct,
    dequantize: Formula,
    quantize: Encoder | None = None,
    scales: Mapping[str, Floats] | None = None,
    reserved: Iterable[Reserved] = (),
    searches: bool = False,
    weighted: Encoder | None = None,
) -> TensorType:
    """Adds a type of your own to those of GGUF, in this process: files with it can then be read, sliced, written, converted.

    Args:
        name: such as ``Q4_X``; its lower-case form names it in schemes.
        code: its number in a file.
        weights: how many a block holds.
        block: the fields of a block: a `Struct` of arrays of constant dims, in file order.
        dequantize: the block's fields as keywords, each [blocks, numbers] -> float32 [blocks, weights].
        quantize: float32 [blocks, weights] -> the block's fields by name; None where there is no encoder.
        scales: the fields of integers that stand for floats, and for which, so that a check of values looks at them, too.
        reserved: stored numbers that stand for nothing, so that a check of values finds them.
        searches: whether `quantize` is so many operations that they should not be compiled for a GPU.
        weighted: (weights, how much each of them matters, float32 [rows, in] of the tensor's rows) -> the block's fields.

    Raises:
        ValueError: where the name or the code is taken.
    """
    if not isinstance(code, int) or code < 0 or not isinstance(weights, int) or weights < 1:
        raise ValueError(f"expected a code from 0 on and at least 1 weight in a block, found {code!r} and {weights!r}")
    for known in GGML_TYPES:
        if code == known.code or name.lower() == known.scheme:
            raise ValueError(f"expected a code and a name that are free, found those of {known.code} {known}")
    type_ = block_type(name, code, weights, block, dequantize, quantize, scales, reserved, searches, weighted)
    GGML_TYPES.add(type_)
    return type_
