"""Records how a version of transformers reads configs: an oracle of tests/families.

Run it as ``python -m tests.golden.record_configs`` where that version is installed.
"""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

from tests.families.config_cases import BASES, Config, cases

PATH = Path(__file__).with_name("configs.json")
FIELDS = """num_key_value_heads rms_norm_eps norm_epsilon hidden_act hidden_activation sliding_window norm_topk_prob
use_sliding_window attention_multiplier embedding_multiplier residual_multiplier logits_scaling head_dim
query_pre_attn_scalar swiglu_limit swiglu_alpha use_bias decoder_sparse_step mlp_only_layers attn_logit_softcapping
final_logit_softcapping use_bidirectional_attention original_max_position_embeddings"""
Reading = dict[str, list[float]] | str


def read_by_transformers(config: Config) -> Reading:
    """Returns the frequencies of each rotary embedding of a model, then the factor of attention.

    Returns the name of the error if transformers refuses the config.
    """
    import torch
    from transformers import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import AutoModelForCausalLM

    try:
        read = CONFIG_MAPPING[config["model_type"]].from_dict(copy.deepcopy(config))
        class_ = AutoModelForCausalLM._model_mapping[type(read)]
        embedding = class_.__name__.replace("ForCausalLM", "RotaryEmbedding")
        module = getattr(sys.modules[class_.__module__], embedding)(read)
        if embedding.startswith("Gemma3") and hasattr(module, "inv_freq"):  # with two modules, before version 5
            model = class_(read).model
            modules = {"full": model.rotary_emb, "sliding": model.rotary_emb_local}
            buffers = {kind: (module.inv_freq, module.attention_scaling) for kind, module in modules.items()}
        elif hasattr(module, "inv_freq"):
            buffers = {"full": (module.inv_freq, module.attention_scaling)}
        else:
            kinds = {"full": "full_attention", "sliding": "sliding_attention"}
            parts = ("inv_freq", "attention_scaling")
            buffers = {kind: tuple(getattr(module, f"{name}_{part}") for part in parts) for kind, name in kinds.items()}
    except Exception as error:  # of any class
        return type(error).__name__
    return {
        kind: [float(f"{number:.6g}") for number in [*frequencies.to(torch.float64).tolist(), float(scale)]]
        for kind, (frequencies, scale) in buffers.items()
    }


def missing(architecture: str) -> dict[str, Any]:
    """Returns the value of each of `FIELDS` in a config that lacks it."""
    from transformers import CONFIG_MAPPING

    class_, values = CONFIG_MAPPING[BASES[architecture]["model_type"]], {}
    for field in FIELDS.split():
        config = {name: value for name, value in BASES[architecture].items() if name != field}
        values[field] = class_.from_dict(config).to_dict().get(field)
    return values


def main() -> None:
    """Writes the record."""
    import transformers

    readings: dict[str, dict[str, list[str]]] = {}
    for architecture, base in BASES.items():
        for case, config in cases(architecture):
            reading = json.dumps(read_by_transformers(config))
            readings.setdefault(case, {}).setdefault(reading, []).append(base["model_type"])
    grouped = {case: {" ".join(types): json.loads(found) for found, types in read.items()} for case, read in readings.items()}
    rows = ",\n".join(f"{json.dumps(case)}: {json.dumps(read, separators=(',', ':'))}" for case, read in grouped.items())
    defaults = json.dumps({architecture: missing(architecture) for architecture in BASES})
    PATH.write_text(f'{{"transformers": "{transformers.__version__}",\n"defaults": {defaults},\n"readings": {{\n{rows}\n}}}}\n')


if __name__ == "__main__":
    main()
