"""`replace_gguf_linear`: packed layers in a model that diffusers has loaded from a GGUF file."""

from __future__ import annotations

from typing import Any, cast

from torch import nn

from glft_schema.formats.registry import WITH_TYPES
from glft_schema.nn.modules import Linear


def replace_gguf_linear(model: nn.Module) -> int:
    """Replaces diffusers' ``GGUFLinear`` layers by packed ones with the same bytes, in place.

    diffusers dequantizes with its own formulas, many of them in float16. Packed layers decode the
    same weights as ggml, support all types, compile to one graph, and are faster. Layers of a float
    type, such as BF16, stay as they are.

    Args:
        model: a model loaded with ``GGUFQuantizationConfig``.

    Returns:
        The number of layers replaced.
    """
    layers = [
        (name, layer, type_)
        for name, layer in model.named_modules()
        if type(layer).__name__ == "GGUFLinear"
        and hasattr(layer.weight, "quant_type")  # otherwise its weight is float
        and (type_ := WITH_TYPES.types.of_code(int(cast(Any, layer.weight).quant_type))).is_quantized
    ]
    for name, layer, type_ in layers:
        weight: Any = layer.weight
        packed = Linear(int(layer.in_features), int(layer.out_features), type_, device="meta")
        packed.weight = nn.Parameter(weight.as_tensor(), requires_grad=False)
        packed.bias, packed.dtype = layer.bias, layer.compute_dtype
        model.set_submodule(name, packed.train(layer.training))
    return len(layers)
