"""The method ``glft`` of transformers: packed layers in `from_pretrained` and `save_pretrained`."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any

from transformers.core_model_loading import ConversionOps, WeightConverter, WeightRenaming
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING, AUTO_QUANTIZER_MAPPING
from transformers.quantizers.base import HfQuantizer
from transformers.quantizers.quantizers_utils import should_convert_module

from glft_schema.errors import OptionError
from glft_schema.nn.layers import packed_owner
from glft_schema.nn.load_into import list_some
from glft_schema.nn.modules import Experts
from glft_schema.nn.skeleton import check_rows, choose, encode, pack_layers, types_of
from glft_schema.weights.glft_config import GlftConfig


class TransformersQuantizer(HfQuantizer):
    """Packs the layers of a model before its weights are loaded.

    Weights that are not packed yet are encoded one by one as they are loaded.
    """

    quantization_config: GlftConfig  # type: ignore[assignment]
    is_trainable = is_qat_trainable = is_compileable = True  # biases, norms and adapters; packed weights are frozen
    _transposed: set[str]
    _dense: dict[str, Any]  # the model's modules before they are packed

    def _process_model_before_weight_loading(self, model: Any, **options: Any) -> None:
        types = self.quantization_config.types
        if not self.pre_quantized:
            patterns = self.get_modules_to_not_convert(model, None, model._keep_in_fp32_modules)
            kept = [path for path, _ in model.named_modules() if not should_convert_module(path, patterns)]
            types = _with_tied(model, choose(model, types, kept))
        assert not isinstance(types, str)
        model.config._experts_implementation = "eager"  # to index one expert at a time
        self._dense = dict(model.named_modules())
        self._transposed = pack_layers(model, _adapt_names(model, types))
        model._move_missing_keys_from_meta_to_device = partial(self._move_missing, model)

    def _move_missing(self, model: Any, missing: set[str], *others: Any) -> None:
        """Puts the dense layers back whose weights the checkpoint lacks, before transformers
        allocates and initializes them."""
        lacking = sorted(missing - model.all_tied_weights_keys.keys())
        paths = [name.removesuffix(".weight") for name in lacking if packed_owner(model, name)]
        for path in paths:
            if getattr(packed := model.get_submodule(path), "bias", None) is not None:
                self._dense[path].bias = packed.bias
            model.set_submodule(path, self._dense[path])
        if paths:
            warnings.warn(f"{list_some(paths)}: not packed, because the checkpoint lacks the weights", stacklevel=2)
        type(model)._move_missing_keys_from_meta_to_device(model, missing, *others)

    def update_weight_conversions(self, weight_conversions: list[Any], model: Any) -> list[Any]:
        """Adapts the conversions so that unpacked checkpoints load into packed experts."""
        stacks = [path for path, layer in model.named_modules() if isinstance(layer, Experts)]
        updated = [_with_weight(conversion, stacks) for conversion in weight_conversions]
        names = sorted({".".join(path.split(".")[-2:]) for path in stacks})
        return updated + [WeightRenaming(f"{re.escape(name)}$", f"{name}.weight") for name in names]

    def _process_model_after_weight_loading(self, model: Any, **options: Any) -> None:
        """Checks the bytes of rows, and drops the conversions that would split packed weights when
        they are saved. Raises OptionError if layers on disk are not packed."""
        if not self.pre_quantized and "disk" in getattr(model, "hf_device_map", {}).values():
            raise OptionError("layers on disk are read as they were saved: save the packed model, and load it instead")
        check_rows(model)
        del model._move_missing_keys_from_meta_to_device, self._dense
        stacks = [path for path, layer in model.named_modules() if isinstance(layer, Experts)]
        conversions = getattr(model, "_weight_conversions", [])
        model._weight_conversions = [each for each in conversions if not _targets(each, stacks, ".weight")]

    def param_needs_quantization(self, model: Any, param_name: str, **options: Any) -> bool:
        return packed_owner(model, param_name) is not None

    def get_quantize_ops(self) -> ConversionOps:
        return Encode(self._transposed)

    def is_serializable(self) -> bool:
        return True

    def get_state_dict_and_metadata(self, model: Any, *options: Any) -> tuple[None, dict[str, str]]:
        """Writes the types that the model has now into its config."""
        note_types(model)
        return None, {}


class Encode(ConversionOps):
    """Encodes a weight in the type of its layer.

    Args:
        transposed: the names of weights that the checkpoint has as [..., in, out].
    """

    def __init__(self, transposed: set[str]) -> None:
        self.transposed = transposed

    def convert(self, input_dict: dict[str, Any], *patterns: Any, **options: Any) -> dict[str, Any]:
        """Returns the weight packed, by its name."""
        ((name, weights),) = input_dict.items()
        tensor = weights[0] if isinstance(weights, list) else weights
        layer = packed_owner(options["model"], name)
        assert layer is not None
        return {name: encode(layer, name, tensor.transpose(-2, -1) if name in self.transposed else tensor)}


def register() -> None:
    """Registers the method ``glft`` with transformers."""
    AUTO_QUANTIZATION_CONFIG_MAPPING["glft"] = GlftConfig
    AUTO_QUANTIZER_MAPPING["glft"] = TransformersQuantizer


def note_types(model: Any) -> None:
    """Writes the types of packed weights into a model's config; without any, removes the entry."""
    if types := types_of(model):
        model.config.quantization_config = GlftConfig(types)
    elif hasattr(model.config, "quantization_config"):
        del model.config.quantization_config


def prepare_to_save(model: Any) -> None:
    """Enables `save_pretrained` for a model that this quantizer did not pack."""
    register()
    note_types(model)
    if config := getattr(model.config, "quantization_config", None):
        model.hf_quantizer = TransformersQuantizer(config)
        model._weight_conversions = []  # those of the model's class would split the bytes of experts


def _targets(conversion: Any, stacks: list[str], suffix: str = "") -> bool:
    """Tells whether a conversion's targets that end with `suffix` include one of the `stacks`."""
    targets = [target.removesuffix(suffix) for target in conversion.target_patterns if target.endswith(suffix)]
    return any(path.endswith(target) for target in targets for path in stacks)


def _with_weight(conversion: Any, stacks: list[str]) -> Any:
    """Returns a conversion, with ``.weight`` names as targets if these are packed experts."""
    if not isinstance(conversion, WeightConverter) or not _targets(conversion, stacks):
        return conversion
    targets = [f"{target}.weight" for target in conversion.target_patterns]
    return conversion.copy(list(conversion.source_patterns), targets, operations=list(conversion.operations))


def _with_tied(model: Any, types: dict[str, str]) -> dict[str, str]:
    """Returns types with the same type for tied weights, which become one tensor later."""
    for target, source in model.all_tied_weights_keys.items():
        scheme = types.get(source, types.get(target))
        types |= {source: scheme, target: scheme} if scheme else {}
    return types


def _adapt_names(model: Any, types: Mapping[str, str]) -> Mapping[str, str]:
    """Returns types by the names of this model, with its base prefix added or removed as needed."""
    names, prefix = model.state_dict().keys(), f"{model.base_model_prefix}."
    if all(name in names for name in types):
        return types
    known = {name: next((each for each in (prefix + name, name.removeprefix(prefix)) if each in names), name) for name in types}
    return {known[name]: scheme for name, scheme in types.items()}
