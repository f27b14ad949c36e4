"""Fallback types for rows that blocks do not divide, and codes of file types.

Source: ``tensor_type_fallback`` in src/llama-quant.cpp, and the guess of a file type in
src/llama-model-loader.cpp, of llama.cpp v0.5.0.
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
FILE_TYPES = {  # general.file_type of a file that has mostly tensors of a type
    "f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q8_0": 7, "q5_0": 8, "q5_1": 9, "q2_k": 10, "q3_k": 12, "q4_k": 15,
    "q5_k": 17, "q6_k": 18, "iq2_xxs": 19, "iq2_xs": 20, "iq3_xxs": 23, "iq1_s": 24, "iq4_nl": 25, "iq3_s": 26,
    "iq2_s": 28, "iq4_xs": 30, "iq1_m": 31, "bf16": 32, "tq1_0": 36, "tq2_0": 37, "mxfp4": 38, "nvfp4": 39, "q1_0": 40,
    "q2_0": 41,
}  # fmt: skip


def divides(type_: TensorType, dims: Sequence[int]) -> bool:
    """Returns whether the rows of a tensor are a multiple of the type's blocks."""
    return type_.refusal((1, *dims[-1:])) is None


def fallback(type_: TensorType, dims: Sequence[int], types: TypeTable[TensorType]) -> TensorType | None:
    """Returns the type for rows that are not a multiple of the blocks of `type_`, or None."""
    name: str | None = type_.scheme
    while (name := FALLBACKS.get(str(name))) in types:
        if divides(types[name], dims):
            return types[name]
    return None
