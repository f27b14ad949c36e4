"""Types of weights that checkpoints store as several tensors: codes, scales and zero points.

The fields are those of a weight's rows, whatever the tensors are called and however they are laid
out: `composites` has the schemes of the libraries, which give these fields. Scales are repeated for
each `UNIT` columns, so that one formula serves all larger groups. A weight whose groups are not
multiples of `UNIT` has a type of a smaller unit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from types import FunctionType
from typing import Any, NamedTuple

from glft_schema.codec.numbers import f32, i8, i16, u8
from glft_schema.codec.predicates import meets
from glft_schema.codec.rules import Rule
from glft_schema.codec.structs import Struct
from glft_schema.codec.type_codes import TypeTable
from glft_schema.scalar.language import LookupTable, as_float, float32
from glft_schema.tensor_types.declaration import Reserved
from glft_schema.tensor_types.payload_layout import DIMS, IN, OUT
from glft_schema.tensor_types.small_floats import e2m1_doubled, e4m3_scale, e8m0, half_power
from glft_schema.tensor_types.tensor_type import TensorType

TWO_CODES = "two codes a byte"
UNIT = 32  # columns that share a scale in the compiled types
OF_INT8 = 0.007874015718698502  # 1 / 127, as bitsandbytes rounds it
# Of bitsandbytes: quantiles of the normal distribution (arXiv 2305.14314), and floats of four bits.
NF4_VALUES = LookupTable(lambda: (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
))  # fmt: skip
FP4_VALUES = LookupTable(lambda: tuple(
    sign * value for sign in (1, -1) for value in (0.0, 0.005208333333333333, 2 / 3, 1.0, 1 / 3, 0.5, 1 / 6, 0.25)
))  # fmt: skip


def e4m3(code):
    """E4M3 u8 -> float32. 127 and 255 are NaN."""
    mantissa = code & 7
    number = as_float((code >> 3 & 15) + 120 << 23 | mantissa << 20)
    size = float32(mantissa) / 512 if (code & 120) == 0 else number
    size = as_float(0x7FC00000) if (code & 127) == 127 else size
    return -size if (code & 128) > 0 else size


def e5m2(code):
    """E5M2 u8 -> float32, with infinities and NaN."""
    exponent, mantissa = code >> 2 & 31, code & 3
    number = as_float((255 if exponent == 31 else exponent + 112) << 23 | mantissa << 21)
    size = float32(mantissa) / 65536 if exponent == 0 else number
    return -size if (code & 128) > 0 else size


def doubled(code):
    """Twice an E2M1 number, for a halved scale."""
    return float32(e2m1_doubled(code))


def nf4(code):
    """The value of an NF4 code."""
    return NF4_VALUES[code]


def fp4(code):
    """The value of a code of bitsandbytes' FP4."""
    return FP4_VALUES[code]


def unchanged(scale):
    """A float32 scale."""
    return scale


def times(scale, factor):
    """E4M3 * factor, halved."""
    return e4m3(scale) * factor * 0.5


def divided(scale, divisor):
    """E4M3 / divisor, halved."""
    return e4m3(scale) / divisor * 0.5


def decode_nibbles(w, codes, scales, *, unit, value, scale, high):
    for g in range(len(scales)):
        weights, packed = w[unit * g : unit * g + unit], codes[unit // 2 * g : unit // 2 * g + unit // 2]
        factor = scale(scales[g])
        for i in range(unit):
            weights[i] = value(packed[i // 2] >> 4 * ((i + high) % 2) & 15) * factor


def decode_nibbles_of_row(w, codes, scales, factors, *, unit, scale):
    for g in range(len(scales)):
        weights, packed = w[unit * g : unit * g + unit], codes[unit // 2 * g : unit // 2 * g + unit // 2]
        factor = scale(scales[g], factors[0])
        for i in range(unit):
            weights[i] = doubled(packed[i // 2] >> 4 * (i % 2) & 15) * factor


def decode_bytes(w, codes, scales, *, unit, value):
    for g in range(len(scales)):
        weights, numbers = w[unit * g : unit * g + unit], codes[unit * g : unit * g + unit]
        for i in range(unit):
            weights[i] = value(numbers[i]) * scales[g]


def decode_nibbles_from_zero(w, codes, zeros, scales, *, unit):
    for g in range(len(scales)):
        weights, packed = w[unit * g : unit * g + unit], codes[unit // 2 * g : unit // 2 * g + unit // 2]
        for i in range(unit):
            weights[i] = float32((packed[i // 2] >> 4 * (i % 2) & 15) - zeros[g]) * scales[g]


def decode_bytes_from_zero(w, codes, zeros, scales, *, unit):
    for g in range(len(scales)):
        weights, numbers = w[unit * g : unit * g + unit], codes[unit * g : unit * g + unit]
        for i in range(unit):
            weights[i] = float32(numbers[i] - zeros[g]) * scales[g]


def decode_affine_nibbles(w, codes, scales, biases, *, unit):
    for g in range(len(scales)):
        weights, packed = w[unit * g : unit * g + unit], codes[unit // 2 * g : unit // 2 * g + unit // 2]
        for i in range(unit):
            weights[i] = float32(packed[i // 2] >> 4 * (i % 2) & 15) * scales[g] + biases[g]


def decode_affine_bytes(w, codes, scales, biases, *, unit):
    for g in range(len(scales)):
        weights, numbers = w[unit * g : unit * g + unit], codes[unit * g : unit * g + unit]
        for i in range(unit):
            weights[i] = float32(numbers[i]) * scales[g] + biases[g]


def decode_row(w, codes, scales):
    for i in range(len(w)):
        w[i] = float32(codes[i]) * scales[0] * OF_INT8


class Composite(NamedTuple):
    """A composite type.

    Attributes:
        sentence: the formula in words.
        formula: with constants as parameters.
        fields: of a row.
        constants: of the formula, without the unit.
        unit: the largest unit.
        floats: see `Declaration.scales`.
        reserved: codes of NaN and infinities.
    """

    sentence: str
    formula: Callable[..., Any]
    fields: tuple[Any, ...]
    constants: Mapping[str, Any] = {}
    unit: int = UNIT
    floats: Any = None
    reserved: Reserved | None = None


def _declarations(unit: int) -> dict[str, Composite]:
    """Returns the declarations of the types whose scales are repeated for each `unit` columns."""
    groups = IN // unit
    # fmt: off
    nibbles = "codes"  / u8[OUT, IN // 2] * TWO_CODES
    numbers = "codes"  / u8[OUT, IN]      * "unsigned codes"
    signed  = "codes"  / i8[OUT, IN]      * "signed codes"
    zeros   = "zeros"  / i16[OUT, groups] * "zero points"
    scales  = "scales" / f32[OUT, groups] * "scales"
    biases  = "biases" / f32[OUT, groups] * "biases"
    powers  = "scales" / u8[OUT, groups]  * "E8M0 scales: 2^(e - 127)"
    small   = "scales" / u8[OUT, groups]  * "E4M3 scales"
    factors = "factors" / f32[OUT]        * "one number per row"
    of_row  = "scales" / f32[OUT]         * "one scale per row"
    low, high = ({"scale": unchanged, "high": number} for number in (0, 1))
    zero, bias = "(code - zero point) * scale", "code * scale + bias"
    return {
        "UINT4":    Composite(f"{zero}; low nibbles are even columns", decode_nibbles_from_zero, (nibbles, zeros, scales)),
        "UINT8":    Composite(zero, decode_bytes_from_zero, (numbers, zeros, scales)),
        "INT8":     Composite(zero, decode_bytes_from_zero, (signed, zeros, scales)),
        "AFFINE4":  Composite(f"{bias}; low nibbles are even columns", decode_affine_nibbles, (nibbles, scales, biases)),
        "AFFINE8":  Composite(bias, decode_affine_bytes, (numbers, scales, biases)),
        "FP4_E8M0": Composite("E2M1 * 2^(scale - 127); low nibbles are even columns; a scale of 255 is 2^128, not NaN",
                             decode_nibbles, (nibbles, powers), {**low, "value": doubled, "scale": half_power}, UNIT, e8m0),
        "FP4_E4M3": Composite("E2M1 * (E4M3 * factor of the row); low nibbles are even columns", decode_nibbles_of_row,
                             (nibbles, small, factors), {"scale": times}, 16, e4m3_scale),
        "FP4_E4M3_DIVIDED": Composite("E2M1 * (E4M3 / factor of the row); low nibbles are even columns", decode_nibbles_of_row,
                                     (nibbles, small, factors), {"scale": divided}, 16, e4m3_scale),
        "FP8_E4M3": Composite("E4M3 * scale", decode_bytes, (numbers, scales), {"value": e4m3},
                             reserved=Reserved("codes", "127 and 255: NaN", lambda codes: codes & 127 == 127)),
        "FP8_E5M2": Composite("E5M2 * scale", decode_bytes, (numbers, scales), {"value": e5m2},
                             reserved=Reserved("codes", "124 to 127, 252 to 255: not finite", lambda codes: codes & 124 > 123)),
        "NF4":      Composite("NF4 * scale; high nibbles are even columns", decode_nibbles, (nibbles, scales),
                             {**high, "value": nf4}),
        "FP4":      Composite("FP4 of bitsandbytes * scale; high nibbles are even columns", decode_nibbles, (nibbles, scales),
                             {**high, "value": fp4}),
        "INT8_ROW": Composite("code * scale of the row * 0.007874015718698502", decode_row, (signed, of_row), unit=1),
    }
    # fmt: on


@cache
def composite_type(name: str, unit: int) -> TensorType:
    """Returns a type whose scales are repeated for each `unit` columns.

    Args:
        name: of the type with the largest unit.
        unit: 1, 2, 4, 8, 16 or 32, at least 2 if a byte has two codes. The type has a smaller unit
            if it must.
    """
    declared = _declarations(unit)[name]
    if unit > declared.unit:
        return composite_type(name, declared.unit)
    own, source = name if unit == declared.unit else f"{name}_{unit}", declared.formula
    formula = FunctionType(source.__code__, source.__globals__, f"decode_{own.lower()}")
    formula.__doc__, formula.__module__ = f"{declared.sentence}.", source.__module__
    formula.__kwdefaults__ = {"unit": unit, **declared.constants} if source.__code__.co_kwonlyargcount else None
    rule = Rule(f"{own.lower()}-columns", DIMS, meets(IN % unit == 0, f"`in` to be a multiple of {unit}"))
    payload, floats = Struct(rule, *declared.fields), declared.floats and {"scales": declared.floats}
    type_ = TensorType(own, own, payload, formula, scales=floats, reserved=tuple(filter(None, [declared.reserved])))
    COMPOSITE_TYPES.add(type_)
    return type_


def compiled_types() -> list[TensorType]:
    """Returns the types of the largest units, which the library has."""
    return [composite_type(name, UNIT) for name in _declarations(UNIT)]


def is_composite(type_: TensorType) -> bool:
    """Tells whether a type is one of `composite_type`."""
    return type_.formula is not None and type_.formula.__module__ == __name__


def _declare_all() -> None:
    """Declares the types of all units, which are found by name."""
    for name, declared in _declarations(UNIT).items():
        for unit in (1, 2, 4, 8, 16, 32):
            if unit > 1 or declared.fields[0].docs != TWO_CODES:
                composite_type(name, unit)


COMPOSITE_TYPES = TypeTable[TensorType]("composite", more=_declare_all)  # those in use, and those asked for by name
