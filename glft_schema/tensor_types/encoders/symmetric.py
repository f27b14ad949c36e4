"""Encoders of GLFT's quantized types, as scalar functions of a row.

The scale is rounded before the codes are computed with it. A subnormal scale, rounded down by up to
a third, can give codes beyond the largest one, which are clamped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from glft_schema.scalar.language import float16, float32
from glft_schema.storage.dtypes import LARGEST, Array, name_of
from glft_schema.tensor_types.chunks import Fault
from glft_schema.tensor_types.conversions import widen
from glft_schema.tensor_types.encoders.searches import code_between, largest

GROUP = 64  # weights that share a scale in Q4_per_group_64
INT8_MAX = 127
Q8_MAX = INT8_MAX
Q4_MAX = 7


def to_q8_per_channel(w, scales, codes):
    """The scale of a row is max |w| / 127."""
    scale = float16(largest(w) / Q8_MAX)
    divisor = scale if scale != 0.0 else float32(1)
    scales[0] = scale
    for i in range(len(w)):
        codes[i] = code_between(w[i] / divisor, low=-Q8_MAX - 1, high=Q8_MAX)


def to_q4_per_group_64(w, scales, nibbles):
    """The scale of 64 neighbours is max |w| / 7. The low nibble of a byte is the even column."""
    for g in range(len(scales)):
        x, packed = w[64 * g : 64 * g + 64], nibbles[32 * g : 32 * g + 32]
        scale = float16(largest(x) / Q4_MAX)
        divisor = scale if scale != 0.0 else float32(1)
        scales[g] = scale
        for i in range(32):
            even = code_between(x[2 * i] / divisor, low=-Q4_MAX - 1, high=Q4_MAX)
            odd = code_between(x[2 * i + 1] / divisor, low=-Q4_MAX - 1, high=Q4_MAX)
            packed[i] = even & 15 | (odd & 15) << 4


def scale_faults(weights: Array, fields: Mapping[str, Array]) -> Iterable[Fault]:
    """Finds NaN, infinities, scales that overflow, and non-zero weights whose scale underflows."""
    scales = widen(fields["scales"])
    if scales.min(initial=np.inf) > 0 and scales.max(initial=0) < np.inf:  # false if there is a NaN
        return
    group, name = weights.shape[1] // scales.shape[1], name_of(fields["scales"].dtype)
    yield True, "NaN and infinities cannot be quantized", ~np.isfinite(weights)
    yield True, f"max|w| is too large for a {name} scale (at most {LARGEST[name]:g})", np.isinf(scales).repeat(group, 1)
    lost = (scales == 0).repeat(group, 1) & (weights != 0)
    yield False, f"non-zero weights are stored as 0, because their {name} scale underflows", lost
