"""Options of config.json: converted with the same logits in llama.cpp, or refused by name."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import glft_schema as glft
from glft_schema.families.page import Family
from glft_schema.families.pages import FAMILIES
from tests.families.test_folders import with_pooling
from tests.families.tiny_folders import CONFIGS, make_folder, values
from tests.oracles.llama_model import LlamaModel
from tests.tools.depth import some_by_default

TOKENS = [1, 45, 120, 77, 200, 12, 99, 33, 250, 7, 8, 9, 61, 17, 140, 3, 90, 55, 21, 230, 111, 5, 66, 180]
CLOSE = 0.01  # difference of logits in standard deviations; llama.cpp holds keys and values in float16
FOLDERS = [name for name in CONFIGS if name not in ("tiny-llama-3", "tiny-yarn", "tiny-gpt-oss")]
LAYERS = ["full_attention", "sliding_attention"]
CONTEXT = "original_max_position_embeddings"
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
FACTORS = {"short_factor": [1.5] * 8, "long_factor": [2.5] * 8}

# Other values of fields. A folder's test has those fields that its config class has.
OTHER: dict[str, list[Any]] = {
    "num_key_value_heads": [1, 4],
    "hidden_act": ["gelu", "relu"],
    "hidden_activation": ["gelu", "silu"],
    "activation_function": ["gelu", "relu"],
    "max_position_embeddings": [512],
    "original_max_position_embeddings": [1024],
    "rms_norm_eps": [1e-2],
    "layer_norm_eps": [1e-2],
    "layer_norm_epsilon": [1e-2],
    "head_dim": [8, 64],
    "tie_word_embeddings": [True, False],
    "attention_bias": [True],
    "mlp_bias": [True],
    "sliding_window": [8, 64],
    "use_sliding_window": [True],
    "max_window_layers": [1],
    "layer_types": [LAYERS],  # the window is not set
    "rope_parameters": [
        {"rope_type": "default", "rope_theta": 1e3},
        {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
        {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0},
        {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
        {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, CONTEXT: 64},
        YARN,
        {**YARN, "attention_factor": 1.5},
        {**YARN, "mscale": 0.7, "mscale_all_dim": 1.0},
        {**YARN, "mscale": 1.0, "mscale_all_dim": 0.0},
        {**YARN, "beta_fast": 8.0},
        {**YARN, "beta_slow": 2.0},
        {**YARN, "truncate": False},
        {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 64, **FACTORS},
        {
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "original_max_position_embeddings": 64,
            "attention_factor": 2.0,
            **FACTORS,
        },
    ],
    "query_pre_attn_scalar": [64],
    "final_logit_softcapping": [2.0],
    "attn_logit_softcapping": [2.0],
    "use_bidirectional_attention": [True],
    "_sliding_window_pattern": [2],
    "norm_topk_prob": [False],
    "num_experts_per_tok": [1],
    "num_local_experts": [2],
    "moe_intermediate_size": [64],
    "decoder_sparse_step": [2],
    "mlp_only_layers": [[1]],
    "n_inner": [128],
    "scale_attn_weights": [False],
    "scale_attn_by_inverse_layer_idx": [True],
    "reorder_and_upcast_attn": [True],
    "add_cross_attention": [True],
    "is_decoder": [True],
    "type_vocab_size": [1],
    "embedding_multiplier": [3.0],
    "attention_multiplier": [0.5],
    "residual_multiplier": [0.5],
    "logits_scaling": [2.0],
    "norm_epsilon": [1e-2],
    "swiglu_alpha": [1.0],
    "swiglu_limit": [3.0],
    "use_bias": [False],
    "num_experts": [2],
    "shared_expert_intermediate_size": [32],
}
SIZES = "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads n_positions n_embd n_layer n_head"


def config_class(name: str) -> Any:
    transformers = pytest.importorskip("transformers")
    return getattr(transformers, CONFIGS[name][0]).config_class


def family_of(name: str) -> Family:
    return next(family for family in FAMILIES if CONFIGS[name][0] in family.architectures)


@pytest.mark.parametrize("name", FOLDERS)
def test_every_field_of_the_config_class_is_on_the_page(name: str) -> None:
    family = family_of(name)
    fields = set(config_class(name)().to_dict())
    assert {field for field in fields if not family.covers(field)} == set()
    untested = {field for field in fields if field not in OTHER and field not in SIZES.split()}
    without_effect = Family("", (), "", (), (), (), (), ignored=family.ignored)
    others = {field.name for field in family.fields}
    assert {field for field in untested if not without_effect.covers(field)} <= others


def model_of(folder: Path) -> Any:
    """Writes weights of a folder's config, and returns the model."""
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.from_pretrained(folder)
    model = getattr(transformers, config.architectures[0])._from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(values(name, tuple(parameter.shape)))
    model.tie_weights()
    model.save_pretrained(folder)
    return model


def problem_of(name: str, field: str, value: Any, parent: Path) -> str:
    """Returns what is wrong with the file of a folder with another value; empty if nothing is."""
    parent.mkdir()
    folder = make_folder(parent, name)
    config = json.loads((folder / "config.json").read_text()) | {field: value}
    if field != "rope_parameters":
        config.get("rope_scaling", {}).pop("truncate", None)  # llama.cpp computes otherwise
    else:
        config = {
            old: kept for old, kept in config.items() if old not in ("rope_theta", "rope_scaling", "rope_local_base_freq")
        }
    if field in ("sliding_window", "layer_types") and name.startswith("tiny-qwen"):
        config["use_sliding_window"] = True
    if field == "head_dim" and "query_pre_attn_scalar" in config:
        config["query_pre_attn_scalar"] = value
    if name == "tiny-bert":
        with_pooling(folder, {"pooling_mode_mean_tokens": True})
    (folder / "config.json").write_text(json.dumps(config))
    try:
        model = model_of(folder)
    except Exception:
        return "" if field in ("rope_parameters", "add_cross_attention") else "transformers refuses it"
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            glft.convert(folder, parent / "out.gguf", schemes={"*": "f32"})
    except glft.FormatError as error:
        return "" if any(one in str(error) for one in (field, *(value if isinstance(value, dict) else ()))) else str(error)
    texts = [text for warning in caught if "scores are minus" not in (text := str(warning.message))]
    if name == "tiny-gpt-oss-bf16" and isinstance(value, dict) and not value.get("truncate", True):
        return "" if "truncate: expected True, as llama.cpp assumes, found False" in texts[0] else f"{texts}"
    if any("the logits of texts longer than the window differ" not in text for text in texts):
        return f"{texts}"
    if texts and value == 8:
        return ""
    with torch.no_grad(), LlamaModel(parent / "out.gguf") as loaded:
        found = model(torch.tensor([TOKENS]))
        if name == "tiny-bert":
            expected, ours = found.last_hidden_state[0].mean(0).numpy(), loaded.embedding(TOKENS)
        else:
            expected, ours = found.logits[0, -1].numpy(), loaded.logits(TOKENS)
    difference = np.abs(ours - expected).max() / expected.std()
    return "" if difference <= CLOSE else f"the logits differ by {difference:.3f} standard deviations"


@pytest.mark.parametrize("name", some_by_default(FOLDERS, 3))
def test_options_have_the_same_logits_or_are_refused(name: str, tmp_path: Path) -> None:
    known = config_class(name)().to_dict()
    options = [(field, value) for field, others in OTHER.items() if field in known for value in others]
    found = {
        f"{field} = {value}": problem_of(name, field, value, tmp_path / str(i)) for i, (field, value) in enumerate(options)
    }
    assert len(found) > 5
    assert {option: problem for option, problem in found.items() if problem} == {}
