"""Estimated costs of writing tensors, from a table, so that all ranks compute the same plan."""

from __future__ import annotations

from glft_schema.weights.payloads import PlannedPayload

# Nanoseconds to encode a weight on one core, by type. Measured on one core of a Xeon with AVX-512
# and torch 2.13, for rows of 4096 normal numbers; only the ratios matter.
NANOSECONDS = {
    "f64": 2.4,
    "f32": 0.4,
    "f16": 1.0,
    "bf16": 1.1,
    "q8_per_channel": 0.7,
    "q4_per_group_64": 1.0,
    "q4_0": 1.1,
    "q4_1": 3.2,
    "q5_0": 1.2,
    "q5_1": 3.0,
    "q8_0": 1.1,
    "q8_1": 1.2,
    "q8_k": 1.4,
    "q2_k": 11.1,
    "q3_k": 3.9,
    "q4_k": 11.8,
    "q5_k": 10.0,
    "q6_k": 6.4,
    "iq1_s": 34,
    "iq1_m": 38,
    "iq2_xxs": 144,
    "iq2_xs": 250,
    "iq2_s": 131,
    "iq3_xxs": 261,
    "iq3_s": 206,
    "iq4_nl": 12.1,
    "iq4_xs": 13.0,
    "tq1_0": 1.3,
    "tq2_0": 0.8,
    "mxfp4": 1.6,
    "nvfp4": 2.3,
    "q1_0": 0.7,
    "q2_0": 1.1,
}
OTHERS = 5.0  # of types that are not in the table
A_BYTE = 1.5  # nanoseconds to read, write and hash a byte
A_SOURCE_BYTE = 1.0  # nanoseconds to hash a byte that a weight is encoded from


def cost(payload: PlannedPayload) -> float:
    """Returns the estimated nanoseconds that one core takes to write a payload."""
    if payload.copy_of:
        return payload.nbytes * A_BYTE
    a_weight = 0.0 if payload.is_unchanged else NANOSECONDS.get(payload.type.scheme, OTHERS)
    return payload.nbytes * A_BYTE + payload.stored.numel * (a_weight + payload.stored.dtype.itemsize * A_SOURCE_BYTE)
