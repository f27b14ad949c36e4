"""Requirements of llama.cpp's loader for models of any architecture: metadata keys and sizes.

`OF_ALL` and the pages of the architectures name the keys that the loader reads. Other keys are
ignored. A key has the type of `gguf_keys`, or one of `LOADER_TYPES`. The loader reads each tensor
by name, with its dims in the order of the file. It refuses a model with a tensor that it does not
read.

Sources: llama.cpp's src/llama-model.cpp, llama-model-loader.cpp, llama-vocab.cpp and src/models/,
of b11434; compared with the loader of xllamacpp 2026.10.11549, which has the pre-tokenizer
k2-horizon and the vocabulary plamo3, too. The key normalizer.nfc is of b11739.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from glft_schema.families.page import MOST_BLOCKS
from glft_schema.families.pre_tokenizers import PRE_TOKENIZERS
from glft_schema.families.requirements import limit

PER_BLOCK = "uint32 array[uint32] array[int32] array[bool]"  # one number, or one for each block
SCALARS = "uint8 uint16 uint32 uint64 int8 int16 int32 int64 float32 float64 bool string"
LOADER_TYPES = {  # of keys with other types than in `gguf_keys`, or without a type there
    "feed_forward_length":              PER_BLOCK,
    "expert_feed_forward_length":       PER_BLOCK,
    "expert_used_count":                PER_BLOCK,
    "attention.head_count":             PER_BLOCK,
    "attention.head_count_kv":          PER_BLOCK,
    "attention.sliding_window_pattern": PER_BLOCK,
    "attention.recurrent_layers":       PER_BLOCK,
    "rope.dimension_sections":          "uint32 array[uint32] array[int32]",  # one number, or four
    "classifier.output_labels":         f"array[string] {SCALARS}",  # a scalar is ignored
    "general.tensor_extra.name":        f"array[string] {SCALARS}",
    "tokenizer.ggml.scores":            "array[float32] array[int32]",
    "tokenizer.ggml.precompiled_charsmap": "array[int8] array[uint8]",
}  # fmt: skip


class Size(NamedTuple):
    """A size that the metadata states.

    Attributes:
        text: what it is, for messages.
        value: computes the size from the `loader.ModelSizes` of a model.
    """

    text: str
    value: Callable[[Any], int]


class VocabularyKind(NamedTuple):
    """A kind of vocabulary, by ``tokenizer.ggml.model``.

    Attributes:
        required: the required keys without ``tokenizer.ggml.``, separated by spaces.
        pre: whether ``tokenizer.ggml.pre`` must be known, if there is one.
    """

    required: str = ""
    pre: bool = False


def _is_recurrent(n: Any) -> int:
    """Returns whether a block is recurrent, without a key that tells."""
    return int(n.block < n["layers"] and (n.block + 1) % (n.number("full_attention_interval", 4) or 1) != 0)


# fmt: off
GENERAL = "general.name general.file_type split.count general.tensor_extra.name"  # read if the file has them
OF_ALL = (  # keys of any architecture
             "feed_forward_length attention.head_count_kv attention.key_length attention.value_length attention.causal "
             "attention.key_length_swa attention.value_length_swa rope.dimension_count rope.dimension_count_swa "
             "rope.freq_base rope.scaling.type rope.scaling.factor rope.scaling.attn_factor rope.scaling.alpha "
             "rope.scaling.original_context_length rope.scaling.finetuned embedding_length_out nextn_predict_layers "
             "pooling_type classifier.pooling_type classifier.output_labels "
             "expert_count expert_used_count expert_group_count expert_group_used_count"
)
MOST_EXPERTS = 1024

SIZES = {  # name -> Size(what it is, for messages, n -> its value); n: `loader.ModelSizes`
    "layers":   Size("block_count - nextn_predict_layers",
                     lambda n: n["blocks"] - n.number("nextn_predict_layers")),
    "deep":     Size("at least 64 blocks",                lambda n: n["layers"] >= 64),
    "blocks":   Size("block_count",                       lambda n: n.number("block_count")),
    "embd":     Size("embedding_length",                  lambda n: n.number("embedding_length")),
    "ctx":      Size("context_length",                    lambda n: n.number("context_length")),
    "ff":       Size("feed_forward_length",               lambda n: n.number("feed_forward_length")),
    "heads":    Size("head_count",                        lambda n: n.number("attention.head_count")),
    "groups":   Size("head_count_kv",                     lambda n: n.number("attention.head_count_kv", n["heads"])),
    "own head": Size("embedding_length / head_count",     lambda n: n["embd"] // n["heads"] if n["heads"] else 0),
    "key":      Size("key_length",                        lambda n: n.number("attention.key_length", n["own head"])),
    "value":    Size("value_length",                      lambda n: n.number("attention.value_length", n["own head"])),
    "sliding":  Size("sliding_window",
                     lambda n: n.number("attention.sliding_window", n.window) and n.slides),
    "head":     Size("key_length",
                     lambda n: n.number("attention.key_length_swa", n["key"]) if n["sliding"] else n["key"]),
    "column":   Size("value_length",
                     lambda n: n.number("attention.value_length_swa", n["value"]) if n["sliding"] else n["value"]),
    "q":        Size("head_count * key_length",           lambda n: n["heads"] * n["head"]),
    "k":        Size("head_count_kv * key_length",        lambda n: n["groups"] * n["head"]),
    "v":        Size("head_count_kv * value_length",      lambda n: n["groups"] * n["column"]),
    "rot":      Size("rope.dimension_count",              lambda n: n.number("rope.dimension_count", n["key"])),
    "turned":   Size("rope.dimension_count",
                     lambda n: n.number("rope.dimension_count_swa", n["rot"]) if n.slides else n["rot"]),
    "q_rot":    Size("head_count * rope.dimension_count or key_length", lambda n: n["heads"] * n["turned"]),
    "kv_rot":   Size("head_count_kv * rope.dimension_count or key_length", lambda n: n["groups"] * n["turned"]),
    "pairs":    Size("rope.dimension_count / 2",          lambda n: n["rot"] // 2),
    "longrope": Size("longrope scaling",                  lambda n: n.value("rope.scaling.type") == "longrope"),
    "attends":  Size("head_count_kv",  lambda n: n.number("attention.head_count_kv", n["heads"], n.block)),
    "kv_here":  Size("head_count_kv * key_length",        lambda n: n["attends"] * n["head"]),
    "recurrent": Size("recurrent_layers or full_attention_interval",
                     lambda n: n.number("attention.recurrent_layers", _is_recurrent(n), n.block)),
    "kernel":   Size("ssm.conv_kernel",                   lambda n: n.number("ssm.conv_kernel")),
    "state":    Size("ssm.state_size",                    lambda n: n.number("ssm.state_size")),
    "rank":     Size("ssm.time_step_rank",                lambda n: n.number("ssm.time_step_rank")),
    "inner":    Size("ssm.inner_size",                    lambda n: n.number("ssm.inner_size")),
    "ssm_groups": Size("ssm.group_count",                 lambda n: n.number("ssm.group_count")),
    "of_group": Size("ssm.inner_size / ssm.group_count",  lambda n: n["inner"] // max(n["ssm_groups"], 1)),
    "k_state":  Size("ssm.group_count * ssm.state_size",  lambda n: n.number("ssm.group_count") * n["state"]),
    "v_state":  Size("ssm.time_step_rank * ssm.state_size", lambda n: n["rank"] * n["state"]),
    "out":      Size("embedding_length_out or embedding_length", lambda n: n.number("embedding_length_out") or n["embd"]),
    "conv":     Size("shortconv.l_cache",                 lambda n: n.number("shortconv.l_cache")),
    "experts":  Size("expert_count",                      lambda n: n.number("expert_count")),
    "used":     Size("expert_used_count",                 lambda n: n.number("expert_used_count")),
    "expert groups": Size("expert_group_count",           lambda n: n.number("expert_group_count")),
    "ff_exp":   Size("expert_feed_forward_length",
                     lambda n: n.number("expert_feed_forward_length") or (n["ff"] // n["used"] if n["used"] else 0)),
    "ff_shexp": Size("expert_shared_feed_forward_length",
                     lambda n: n.number("expert_shared_feed_forward_length") or n["ff"]),
    "ff_shared": Size("expert_shared_feed_forward_length", lambda n: n.number("expert_shared_feed_forward_length")),
    "shared":   Size("shared experts",                    lambda n: n["experts"] and n["ff_shared"]),
    "ff_count": Size("expert_feed_forward_length * expert_shared_count",
                     lambda n: n["ff_exp"] * n.number("expert_shared_count")),
    "dense":    Size("leading_dense_block_count or interleave_moe_layer_step",
                     lambda n: n.block < n.number("leading_dense_block_count") or not n["every"] or (n.block + 1) % n["every"]),
    "every":    Size("interleave_moe_layer_step",         lambda n: n.number("interleave_moe_layer_step", 1)),
    "nextn":    Size("nextn_predict_layers",              lambda n: n.block >= n["layers"]),
    "is lite":  Size("26 or 27 blocks, or 48 with 128256 tokens",
                     lambda n: n["layers"] in (26, 27) or (n["layers"], n["vocab"]) == (48, 128256)),
    "q_lora":   Size("q_lora_rank",                       lambda n: 0 if n["is lite"] else n.number("attention.q_lora_rank")),
    "kv_lora":  Size("kv_lora_rank",                      lambda n: n.number("attention.kv_lora_rank")),
    "mla":      Size("key_length_mla and value_length_mla",
                     lambda n: n.number("attention.key_length_mla") and n.number("attention.value_length_mla")),
    "mla_key":  Size("key_length_mla - rope.dimension_count",
                     lambda n: (n.number("attention.key_length_mla") if n["mla"] else n["key"]) - n["rot"]),
    "mla_value": Size("value_length_mla",  lambda n: n.number("attention.value_length_mla") if n["mla"] else n["value"]),
    "mla_q":    Size("head_count * key_length_mla",       lambda n: n["heads"] * (n["mla_key"] + n["rot"])),
    "mla_v":    Size("head_count * value_length_mla",     lambda n: n["heads"] * n["mla_value"]),
    "mla_k":    Size("head_count * (key_length_mla - rope.dimension_count)", lambda n: n["heads"] * n["mla_key"]),
    "kv":       Size("head_count_kv * embedding_length / head_count", lambda n: n["groups"] * n["own head"]),
    "labels":   Size("classifier.output_labels",          lambda n: n.count("classifier.output_labels") or 1),
    "dense_2":  Size("dense_2_feat_out",                  lambda n: n.number("dense_2_feat_out")),
    "dense_3":  Size("dense_3_feat_in",                   lambda n: n.number("dense_3_feat_in")),
    "vocab":    Size("tokens",                            lambda n: n.tokens),
    "types":    Size("token_type_count",                  lambda n: n.number("tokenizer.ggml.token_type_count")),
    "NVFP4":    Size("an output matrix in NVFP4",         lambda n: n.has_nvfp4_output),
}
LIMITS = (  # of values that the loader accepts
    limit("block_count",              f"1 to {MOST_BLOCKS}",
          lambda n: 1 <= n["blocks"] <= MOST_BLOCKS),
    limit("nextn_predict_layers",     "at most {blocks} (the block_count)", lambda n: n["layers"] >= 0),
    limit("expert_count",             f"at most {MOST_EXPERTS}",            lambda n: n["experts"] <= MOST_EXPERTS),
    limit("expert_used_count",        "1 to {experts} (the expert_count), or 0 of 0",
          lambda n: min(n["experts"], 1) <= n.largest("expert_used_count") <= n["experts"]),
    limit("expert_group_count",       "a divisor of {experts} (the expert_count) below it",
          lambda n: not n["expert groups"] or n["experts"] % n["expert groups"] == 0 < n["experts"] - n["expert groups"]),
    limit("expert_group_used_count",  "1 to below {expert groups} (the expert_group_count)",
          lambda n: n["expert groups"] <= 1 or 1 <= n.number("expert_group_used_count") < n["expert groups"]),
    limit("rope.scaling.type",        "none, linear, yarn or longrope",
          lambda n: n.value("rope.scaling.type") in (None, "none", "linear", "yarn", "longrope")),
)

VOCABULARIES = {
    "none":     VocabularyKind(),
    "no_vocab": VocabularyKind(),
    "llama":    VocabularyKind("tokens"),
    "bert":     VocabularyKind("tokens"),
    "gpt2":     VocabularyKind("tokens merges", pre=True),
    "t5":       VocabularyKind("tokens"),
}
OTHER_VOCABULARIES = ("hybriddna", "whitespace", "rwkv", "test", "plamo2", "plamo3", "gemma4")  # also of the loader
WITHOUT_MERGES = ("kimi-k2",)  # values of tokenizer.ggml.pre that need no merges
ALWAYS = "pre token_type_count"  # read if the file has them, even without tokens
OF_TOKENS = (
    "tokens scores token_type "
    "bos_token_id eos_token_id eot_token_id eom_token_id unknown_token_id seperator_token_id padding_token_id mask_token_id "
    "fim_pre_token_id fim_suf_token_id fim_mid_token_id fim_pad_token_id fim_rep_token_id fim_sep_token_id "
    "prefix_token_id suffix_token_id middle_token_id "
    "add_bos_token add_eos_token add_sep_token add_space_prefix remove_extra_whitespaces "
    "normalizer.lowercase normalizer.strip_accents normalizer.nfc suppress_tokens precompiled_charsmap"
)
KNOWN_PRE = frozenset(PRE_TOKENIZERS.values()) - {"bert-bge-large", "jina-v2-en"} | {
    "default", "glm5", "jina-de", "jina-es", "k2-horizon", "llada-moe", "llama-v3", "llama3", "mpt", "whitespace",
}
PHI3_TOKENS = ("</s>", "<unk>", "<s>", "<|endoftext|>")  # required if general.name contains one of PHI3_NAMES
PHI3_NAMES = ("phi-3", "phi3")

DEFAULT_IDS = {  # by kind of vocabulary: of special tokens without a key
    "llama": {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0},
    "gpt2":  {"bos_token_id": 11, "eos_token_id": 11},
    "bert":  {"bos_token_id": 101, "padding_token_id": 0},
    "t5":    {"eos_token_id": 1, "unknown_token_id": 2, "padding_token_id": 0},
}

# fmt: on
