"""The types of ggml, as GGUF files number them. A new one is declared in the module of its family and listed here."""

from __future__ import annotations

from glft_schema.fields import Struct
from glft_schema.tensor_types.blocks import Encoder, Formula, block_type
from glft_schema.tensor_types.fp4 import IQ4_NL, IQ4_XS, MXFP4, NVFP4
from glft_schema.tensor_types.i_quants import IQ1_M, IQ1_S, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS
from glft_schema.tensor_types.k_quants import Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, Q8_K
from glft_schema.tensor_types.legacy import Q1_0, Q2_0, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q8_1
from glft_schema.tensor_types.plain import BF16, F16, F32, F64, I8, I16, I32, I64
from glft_schema.tensor_types.tensor_type import OpaqueType, TensorType
from glft_schema.tensor_types.ternary import TQ1_0, TQ2_0
from glft_schema.type_table import TypeTable

# fmt: off
GGML = TypeTable[TensorType](
    "ggml",
    F32, F16, BF16, F64, I8, I16, I32, I64,
    Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q8_1,
    Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, Q8_K,
    IQ2_XXS, IQ2_XS, IQ3_XXS, IQ1_S, IQ4_NL, IQ3_S, IQ2_S, IQ4_XS, IQ1_M,
    TQ1_0, TQ2_0, MXFP4, NVFP4, Q1_0, Q2_0,
    unknown=OpaqueType.of,
)
# fmt: on


def register_type(
    name: str, code: int, weights: int, block: Struct, dequantize: Formula, quantize: Encoder | None = None
) -> TensorType:
    """Adds a type of your own to those of GGUF, in this process: files with it can then be read, sliced, written, converted.

    Args:
        name: such as ``Q4_X``; its lower-case form names it in schemes.
        code: its number in a file.
        weights: how many a block holds.
        block: the fields of a block: a `Struct` of arrays of constant dims, in file order.
        dequantize: the block's fields as keywords, each [blocks, numbers] -> float32 [blocks, weights].
        quantize: float32 [blocks, weights] -> the block's fields by name; None where there is no encoder.

    Raises:
        ValueError: where the name or the code is taken.
    """
    for known in GGML:
        if code == known.code or name.lower() == known.scheme:
            raise ValueError(f"expected a code and a name that are free, found those of {known.code} {known}")
    type_ = block_type(name, code, weights, block, dequantize, quantize)
    GGML.add(type_)
    return type_
