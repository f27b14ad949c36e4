"""Encoders without the checks of what they lose."""

from __future__ import annotations

import numpy as np

from glft_schema.tensor_types.ggml import GGML_TYPES


def encoded(name: str, weights: np.ndarray, importance: np.ndarray | None = None) -> np.ndarray:
    """Returns u8 [rows, bytes of a row] of float32 [rows, n], by the importance of each column."""
    type_, (rows, columns) = GGML_TYPES[name], weights.shape
    encode = type_._encoder_of_rows(importance, columns, name).encode
    blocks = np.zeros((rows, type_.nbytes([1, columns])), np.uint8)
    encode(weights, {"blocks": blocks})
    return blocks
