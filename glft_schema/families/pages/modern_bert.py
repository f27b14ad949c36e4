"""ModernBERT."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from glft_schema.families import rows
from glft_schema.families.config import PATTERN, SLIDING, Config
from glft_schema.families.page import F, Family, K, T
from glft_schema.families.pages.bert import classifier
from glft_schema.formats.gguf_names import POOLINGS
from glft_schema.tensors.stored_tensor import StoredTensor

THETA, LOCAL = "rope_theta", "rope_local_base_freq"


def named(tensors: Mapping[str, StoredTensor], config: Config) -> Config:
    """Returns fields by the names that transformers reads for this model."""
    pooling = POOLINGS[config.pop("own.pooling")]
    return {"global_rope_theta": config.pop(THETA), "local_rope_theta": config.pop(LOCAL), "classifier_pooling": pooling}


def at_least(field: str, least: int, config: Config) -> int:
    """Returns the value of a field if it is not too small, or else the least."""
    return max(least, int(config[field]))


def layers(config: Config) -> list[str]:
    """Returns the kind of attention of each block: the first of each period is not sliding."""
    period = config["global_attn_every_n_layers"]
    return rows.kinds(config, lambda i: i % period == 0)


# fmt: off
LEAST = {"global_attn_every_n_layers": 2, "local_attention": 1}
MODERN_BERT = Family(
    "modern-bert", ("ModernBertModel", "ModernBertForMaskedLM"), "modernbert",
    tensors=(
        T("embeddings.tok_embeddings",        "token_embd",          "embd vocab"),
        T("embeddings.norm",                  "token_embd_norm",     "embd"),
        T("layers.{i}.attn_norm",             "blk.{i}.attn_norm",   "embd", required=False),  # the first block has none
        T("layers.{i}.attn.Wqkv",             "blk.{i}.attn_qkv",    "embd embd+embd+embd"),
        T("layers.{i}.attn.Wo",               "blk.{i}.attn_output", "embd embd"),
        T("layers.{i}.mlp_norm",              "blk.{i}.ffn_norm",    "embd"),
        T("layers.{i}.mlp.Wi",                "blk.{i}.ffn_up",      "embd ff+ff"),
        T("layers.{i}.mlp.Wo",                "blk.{i}.ffn_down",    "ff embd"),
        T("final_norm",                       "output_norm",         "embd"),
        T("", "cls",                          "embd embd",           required=False),
        T("", "cls.norm",                     "embd",                required=False),
        T("", "cls.output",                   "embd labels",         bias="optional", required=False),
    ),
    keys=(
        *rows.SIZES,
        K("rope.freq_base",                   f"rope.{THETA}", 160_000.0, absent=10_000.0),
        K("rope.freq_base_swa",               f"{SLIDING}.{THETA}", 10_000.0, "sliding"),
        K("attention.layer_norm_rms_epsilon", "norm_eps", 1e-5, "ignored"),
        K("attention.layer_norm_epsilon",     "norm_eps", 1e-5, "required"),
        rows.FILE_TYPE,
        K("attention.causal",                 "", False),
        K("classifier.pooling_type",          "own.pooling", lambda config: POOLINGS.index(config["classifier_pooling"]),
          absent=POOLINGS.index("mean")),
        K("attention.sliding_window",         "local_attention", 128, absent=0),
        K(PATTERN,                            "global_attn_every_n_layers", 3, "sliding"),
        K("rope.scaling.type",                "", "none"),
        K("vocab_size",                       "vocab_size", loader="ignored"),
        K("hidden_activation",                "hidden_activation", "gelu"),
    ),
    fields=(
        F("hidden_activation", lambda config: "silu" if config["hidden_activation"] == "silu" else "gelu"),
        *(F(name, partial(at_least, name, least), "llama.cpp needs windows") for name, least in LEAST.items()),
        F("layer_types", layers, "llama.cpp attends to all tokens in the first block of each period"),
        *(F(f"{part}_bias", False, "llama.cpp loads no such bias") for part in ("attention", "mlp", "norm", "classifier")),
        F("classifier_activation", "gelu"),
        *rows.YARN,
    ),
    vocabularies=("bpe",),
    pattern=3,
    dropped=("head.*", "decoder.*"),
    prefix="model.",
    names={"global_rope_theta": THETA, "local_rope_theta": LOCAL},
    restored=named,
    ignored=(
        "classifier_pooling decoder_bias deterministic_flash_attn initializer_cutoff_factor layer_norm_eps "
        "position_embedding_type reference_compile repad_logits_with_grad sparse_pred*"
    ),
    ropes=("default",),
    defaults={"max_position_embeddings": 8192, "classifier_pooling": "cls"},
)
MODERN_BERT_CLASSIFIER = classifier(
    MODERN_BERT, "ModernBertForSequenceClassification",
    T("head.dense",                           "cls",                 "embd embd"),
    T("head.norm",                            "cls.norm",            "embd"),
    T("classifier",                           "cls.output",          "embd labels", bias="required"),
)
