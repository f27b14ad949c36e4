"""Encoders without the checks of what they lose."""

from __future__ import annotations

import numpy as np
import torch

from glft_schema.tensor_types.ggml import GGML_TYPES


def encoded(name: str, weights: np.ndarray, importance: np.ndarray | None = None) -> np.ndarray:
    """Returns u8 [rows, bytes of a row] of float32 [rows, n], by the importance of each column."""
    type_, (rows, columns) = GGML_TYPES[name], weights.shape
    encode, _ = type_._encoding(None if importance is None else torch.from_numpy(importance), columns, name)
    blocks = torch.zeros(rows, type_.nbytes([1, columns]), dtype=torch.uint8)
    encode(torch.from_numpy(weights), {"blocks": blocks})
    return blocks.numpy()
