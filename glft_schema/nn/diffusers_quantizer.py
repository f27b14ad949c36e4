"""The method ``glft`` of diffusers: packed layers in `from_pretrained` and `save_pretrained`."""

from __future__ import annotations

from typing import Any

import torch
from diffusers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING, AUTO_QUANTIZER_MAPPING
from diffusers.quantizers.base import DiffusersQuantizer

from glft_schema.nn.layers import packed_owner
from glft_schema.nn.skeleton import check_rows, choose, encode, pack_layers, types_of
from glft_schema.weights.glft_config import GlftConfig


class DiffusersLayerQuantizer(DiffusersQuantizer):
    """Packs the layers of a model before its weights are loaded.

    Weights that are not packed yet are encoded one by one as they are loaded.
    """

    quantization_config: GlftConfig  # type: ignore[assignment]
    is_serializable = is_trainable = use_keep_in_fp32_modules = True

    def __init__(self, quantization_config: Any, **options: Any) -> None:
        super().__init__(quantization_config, **options)
        self.is_saved = self.pre_quantized
        self.pre_quantized = True  # otherwise diffusers refuses weights of another shape than the layer's bytes

    def update_torch_dtype(self, torch_dtype: torch.dtype | None) -> torch.dtype:
        """Returns float32 by default, because without a dtype diffusers casts weights to uint8."""
        return torch_dtype or torch.float32

    def check_if_quantized_param(self, model: Any, param_value: Any, param_name: str, *values: Any, **options: Any) -> bool:
        return packed_owner(model, param_name) is not None

    def create_quantized_param(self, *values: Any, **options: Any) -> Any:
        """Puts a tensor of a checkpoint into a packed layer."""
        model, tensor, name, device, *_ = values
        layer = packed_owner(model, name)
        assert layer is not None
        layer.weight = encode(layer, name, tensor.to(device))

    def _process_model_before_weight_loading(self, model: Any, keep_in_fp32_modules: Any = (), **options: Any) -> None:
        types = self.quantization_config.types
        if not self.is_saved:
            kept = [path for path, _ in model.named_modules() if {*path.split(".")} & {*keep_in_fp32_modules}]
            types = choose(model, types, kept)
        assert not isinstance(types, str)
        pack_layers(model, types)
        prepare_to_save(model)

    def _process_model_after_weight_loading(self, model: Any, **options: Any) -> None:
        check_rows(model)


def register() -> None:
    """Registers the method ``glft`` with diffusers."""
    AUTO_QUANTIZATION_CONFIG_MAPPING["glft"] = GlftConfig
    AUTO_QUANTIZER_MAPPING["glft"] = DiffusersLayerQuantizer


def prepare_to_save(model: Any) -> None:
    """Lets `save_pretrained` save a packed model, with its types in the config."""
    register()
    if types := types_of(model):
        config = GlftConfig(types)
        model.register_to_config(quantization_config=config)
        model.hf_quantizer = DiffusersLayerQuantizer(config)
