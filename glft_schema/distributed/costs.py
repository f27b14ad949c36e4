"""Estimated costs of writing tensors, from a table, so that all ranks compute the same plan."""

from __future__ import annotations

from glft_schema.weights.payloads import PlannedPayload

# Nanoseconds to encode a weight on one core, by type. Measured on one core of an EPYC 9004 with
# torch 2.13, without kernels, for rows of 4096 normal numbers; only the ratios matter.
NANOSECONDS = {
    "f64": 3.5,
    "f32": 1.8,
    "f16": 0.5,
    "bf16": 1.2,
    "q8_per_channel": 0.6,
    "q4_per_group_64": 0.7,
    "q4_0": 25,
    "q4_1": 78,
    "q5_0": 24,
    "q5_1": 65,
    "q8_0": 1.2,
    "q8_1": 1.5,
    "q8_k": 1.0,
    "q2_k": 95,
    "q3_k": 34,
    "q4_k": 74,
    "q5_k": 75,
    "q6_k": 25,
    "iq1_s": 260,
    "iq1_m": 210,
    "iq2_xxs": 480,
    "iq2_xs": 920,
    "iq2_s": 270,
    "iq3_xxs": 500,
    "iq3_s": 360,
    "iq4_nl": 34,
    "iq4_xs": 34,
    "tq1_0": 2.0,
    "tq2_0": 1.2,
    "mxfp4": 4.5,
    "nvfp4": 6.7,
    "q1_0": 1.7,
    "q2_0": 1.5,
}
OTHERS = 25.0  # of types that are not in the table
A_BYTE = 1.5  # nanoseconds to read, write and hash a byte
A_SOURCE_BYTE = 1.0  # nanoseconds to hash a byte that a weight is encoded from


def cost(payload: PlannedPayload) -> float:
    """Returns the nanoseconds that one core takes to write a payload, about."""
    if payload.copy_of:
        return payload.nbytes * A_BYTE
    a_weight = 0.0 if payload.is_unchanged else NANOSECONDS.get(payload.type.scheme, OTHERS)
    return payload.nbytes * A_BYTE + payload.stored.numel * (a_weight + payload.stored.dtype.itemsize * A_SOURCE_BYTE)
