"""Files that tests of several commands read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from glft_schema import save_file


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    """A GGUF file with two matrices of floats and one of integers, a text and two arrays."""
    tensors = {"w.weight": torch.arange(256.0).reshape(4, 64), "n.weight": torch.ones(64), "i": torch.arange(3)}
    metadata = {"general.architecture": "toy", "t.tokens": [f"token {i}" for i in range(30)], "t.scores": np.zeros(5000)}
    save_file(tensors, tmp_path / "model.gguf", metadata, schemes={"w.weight": "bf16"})
    return tmp_path / "model.gguf"
