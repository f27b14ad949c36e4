"""Floats of four and eight bits: E2M1, E8M0 and E4M3, and the values of ggml's IQ4.

Source: OCP Microscaling Formats v1.0 (E2M1, E8M0), OCP 8-bit Floating Point v1.0 (E4M3),
ggml-common.h of llama.cpp.
"""

from __future__ import annotations

from glft_schema.lazy import torch
from glft_schema.scalar.language import as_float, float32, int32

E2M1_DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # twice the value of each four-bit float
IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def widened(numbers: torch.Tensor) -> torch.Tensor:
    """Returns float8 and float4, with which torch computes little, as float32; others unchanged.

    A byte of float4 has two numbers, the first one in its low bits, so the last dim doubles.
    """
    if not numbers.dtype.is_floating_point or numbers.dtype.itemsize > 1:
        return numbers
    if "float4" not in str(numbers.dtype):
        return numbers.to(torch.float32)
    codes, values = numbers.view(torch.uint8), torch.tensor(E2M1_DOUBLED, device=numbers.device) / 2
    return values[torch.stack((codes & 15, codes >> 4), -1).to(torch.int64)].flatten(-2)


def e2m1_doubled(code):
    """Twice an E2M1 number: 0, 1, 2, 3, 4, 6, 8, 12; bit 3 is the sign. Computed, because vector
    units compute faster than they look up."""
    magnitude = code & 7
    doubled = magnitude + int32(magnitude > 4) + int32(magnitude > 5) + 3 * int32(magnitude > 6)
    return -doubled if (code & 8) > 0 else doubled


def half_power(e):
    """E8M0 -> float32 2^(e - 128): exponent e - 1, or a subnormal number."""
    return as_float(0x00200000 << e if e < 2 else e - 1 << 23)


def e8m0(e: torch.Tensor) -> torch.Tensor:
    """E8M0 u8 -> float64 2^(e - 127). 255 is NaN, as the OCP specifies; the formula reads 2^128."""
    e = e.to(torch.float64)
    return torch.where(e == 255, float("nan"), (e - 127).exp2())


def e4m3_scale(d: torch.Tensor) -> torch.Tensor:
    """Unsigned E4M3 u8 -> float32. 127 is NaN, as the OCP specifies; the formula reads it as 0."""
    return torch.where(d == 127, float("nan"), 2 * ue4m3(d))


def ue4m3(d: torch.Tensor) -> torch.Tensor:
    """Unsigned E4M3 u8 -> float32, halved. Bit 7 is ignored. 0x7F, a NaN, is 0; 0xFF is 240."""
    exponent, mantissa = (d >> 3 & 15).to(torch.int32), (d & 7).to(torch.float32)
    normal = (1 + mantissa / 8) * ((exponent + 120) << 23).view(torch.float32)
    value = torch.where(exponent == 0, mantissa * 2.0**-9, normal)
    return torch.where(d == 127, 0.0, value) * 0.5


def half_e4m3(d):
    """Unsigned E4M3 -> float32, halved, with the exceptions of `ue4m3`."""
    exponent, mantissa = d >> 3 & 15, float32(d & 7)
    normal = (1 + mantissa / 8) * as_float(exponent + 120 << 23)
    value = mantissa / 512 if exponent == 0 else normal
    return float32(0) if d == 127 else value * 0.5
