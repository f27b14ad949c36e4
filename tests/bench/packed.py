"""Forward passes of packed layers beside diffusers' and dense ones, in bfloat16."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec

import torch
from torch import nn

from glft_schema.nn import Linear
from glft_schema.tensor_types.ggml import GGML_TYPES
from tests.bench.measure import Row, compared

TYPES = ("Q4_K", "Q6_K", "Q8_0", "Q4_0", "IQ4_XS")
SIZE = 4096
GOALS = {1: 5.0, 32: 4.0, 512: 2.0}  # times diffusers' speed, by batch


def by_diffusers(packed: torch.Tensor, name: str) -> nn.Module | None:
    """Returns diffusers' layer with the same bytes, or None if it is not installed or lacks the
    type."""
    if not find_spec("diffusers"):
        return None
    import gguf
    from diffusers.quantizers.gguf.utils import SUPPORTED_GGUF_QUANT_TYPES, GGUFLinear, GGUFParameter

    type_ = gguf.GGMLQuantizationType[name]
    if type_ not in SUPPORTED_GGUF_QUANT_TYPES:
        return None
    layer = GGUFLinear(SIZE, SIZE, bias=False, compute_dtype=torch.bfloat16)
    layer.weight = GGUFParameter(packed.clone(), requires_grad=False, quant_type=type_)
    return layer


def rows() -> Iterator[Row]:
    dense = {dtype: nn.Linear(SIZE, SIZE, bias=False, dtype=dtype) for dtype in (torch.bfloat16, torch.float32)}
    weights = torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(0)) / 64
    ratios = []
    for name in TYPES:
        layer, type_ = Linear(SIZE, SIZE, name), GGML_TYPES[name]
        layer.weight.copy_(torch.from_numpy(type_.pack(type_.encode(weights, "w"))))
        theirs = by_diffusers(layer.weight.data, name)
        for batch, goal in GOALS.items():
            x = torch.randn(batch, SIZE).to(torch.bfloat16)
            what = f"forward of packed {name}, 4096 x 4096, batch {batch}, bfloat16"
            peers = {
                "dense bfloat16": partial(dense[torch.bfloat16], x),
                "dense float32": partial(dense[torch.float32], x.float()),
            }
            if theirs is not None:
                peers["diffusers' GGUFLinear"] = partial(theirs, x)
            with torch.no_grad():
                found = list(compared(what, partial(layer, x), peers, {"diffusers' GGUFLinear": 1 / goal}))
            yield from found
            ratios += [found[0].ratio] * (batch == 512)
    mean = sum(ratios) / len(ratios)
    yield Row("forward of packed layers, batch 512, mean of the types", mean, "dense bfloat16", 1.0, "of its time", 1.3)
