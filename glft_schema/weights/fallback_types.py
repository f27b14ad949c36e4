"""Fallback types for rows that are not a multiple of a type's blocks.

Source: ``tensor_type_fallback`` in src/llama-quant.cpp of llama.cpp v0.5.0.
"""

from __future__ import annotations

from collections.abc import Sequence

from glft_schema.codec.type_codes import TypeTable
from glft_schema.tensor_types import TensorType

FALLBACKS = {  # type -> the next one to try, which has smaller blocks
    **dict.fromkeys(("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_xs"), "iq4_nl"),
    **dict.fromkeys(("q2_0", "q2_k", "q3_k", "tq1_0", "tq2_0"), "q4_0"),
    "q4_k": "q5_0",
    "q5_k": "q5_1",
    "q6_k": "q8_0",
    **dict.fromkeys(("q1_0", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl", "mxfp4", "nvfp4"), "f16"),
}


def divides(type_: TensorType, dims: Sequence[int]) -> bool:
    """Returns whether the rows of a tensor are a multiple of the type's blocks."""
    return type_.refusal((1, *dims[-1:])) is None


def fallback(type_: TensorType, dims: Sequence[int], types: TypeTable[TensorType]) -> TensorType | None:
    """Returns the fallback of `type_` whose blocks divide the rows, or None."""
    name: str | None = type_.scheme
    while (name := FALLBACKS.get(str(name))) in types:
        if divides(types[name], dims):
            return types[name]
    return None
