"""Numbers stored as they are. GLFT and GGUF give F32 and F16 the same codes; the others are GGUF's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from glft_schema.codec.numbers import Number, bf16, f16, f32, f64, i8, i16, i32, i64
from glft_schema.codec.structs import Struct
from glft_schema.lazy import torch
from glft_schema.tensor_types.engine.chunks import Fault
from glft_schema.tensor_types.tensor_type import DIMS, TensorType


def as_stored(weights: torch.Tensor) -> torch.Tensor:
    """the number as it is stored."""
    return weights


def to_f16(weights: torch.Tensor) -> torch.Tensor:
    """Rounds to float16; NaN becomes the quiet one of its sign, as in llama.cpp, whatever the processor would make of it."""
    rounded = weights.to(torch.float16)
    wide = weights.to(torch.float32) if weights.dtype.itemsize == 1 else weights
    if bool(wide.isnan().any()):
        quiet = torch.where(wide.signbit(), -0x0200, 0x7E00).to(torch.int16).view(torch.float16)
        rounded = torch.where(wide.isnan(), quiet, rounded)
    return rounded


def to_bf16(weights: torch.Tensor) -> torch.Tensor:
    """Rounds to bfloat16; NaN keeps its upper bits and becomes a quiet one, as in llama.cpp."""
    rounded = weights.to(torch.bfloat16)
    wide = weights.to(torch.float32)
    if bool(wide.isnan().any()):
        quiet = (wide.view(torch.int32) >> 16 | 0x40).to(torch.int16).view(torch.bfloat16)
        rounded = torch.where(wide.isnan(), quiet, rounded)
    return rounded


def overflow(weights: torch.Tensor, fields: Mapping[str, torch.Tensor]) -> Iterable[Fault]:
    """Finds finite numbers that became infinite. NaN and infinities are stored as they are."""
    stored = fields["weights"]
    if torch.finfo(weights.dtype).max > torch.finfo(stored.dtype).max:
        wide = weights if weights.dtype.itemsize > 1 else weights.to(torch.float32)  # torch's float8 knows no isfinite
        yield True, f"a finite number is too large for {stored.dtype}", stored.isinf() & wide.isfinite()


def changed(weights: torch.Tensor, fields: Mapping[str, torch.Tensor]) -> Iterable[Fault]:
    """Finds integers that became others."""
    stored = fields["weights"]
    if torch.promote_types(weights.dtype, stored.dtype) != stored.dtype:
        yield True, f"an integer is too large for {stored.dtype}", stored.to(weights.dtype) != weights


def unquantized(
    name: str,
    code: int,
    number: Number,
    sentence: str,
    torch_name: str,
    to_number: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> TensorType:
    """Declares a type that is numbers one after another, in C order; `to_number` rounds others to them."""

    def rounded(weights: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"weights": to_number(weights) if to_number else weights.to(number.dtype)}

    faults = changed if number.is_signed else overflow
    return TensorType(name, code, Struct("weights" / number[DIMS] * sentence), as_stored, rounded, faults, exact=torch_name)


# fmt: off
F32  = unquantized("F32",   0, f32,  "IEEE 754 single", "float32")
F16  = unquantized("F16",   1, f16,  "IEEE 754 half", "float16", to_f16)
BF16 = unquantized("BF16", 30, bf16, "the upper half of an IEEE 754 single", "bfloat16", to_bf16)
F64  = unquantized("F64",  28, f64,  "IEEE 754 double", "float64")
I8   = unquantized("I8",   24, i8,   "two's complement", "int8")
I16  = unquantized("I16",  25, i16,  "two's complement", "int16")
I32  = unquantized("I32",  26, i32,  "two's complement", "int32")
I64  = unquantized("I64",  27, i64,  "two's complement", "int64")
# fmt: on
