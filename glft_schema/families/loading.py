"""Requirements of llama.cpp's loader for each family: metadata keys, tensors, and dims.

`COMMON` and a family's `Requirements` name the keys that the loader reads. It ignores others. A key
has the type of `gguf_keys`, or one of `TYPES`. The loader reads each tensor by name, with its dims
in the order of the file. It refuses a model with a tensor that it does not read.

Sources: llama.cpp's src/llama-model.cpp, llama-model-loader.cpp, llama-vocab.cpp and src/models/,
as in llama_cpp_python 0.3.36; compared with the loader of xllamacpp 2026.10.11549.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from glft_schema.families.pre_tokenizers import PRE_TOKENIZERS

PER_BLOCK = "uint32 array[uint32] array[int32] array[bool]"  # one number, or one for each block
SCALARS = "uint8 uint16 uint32 uint64 int8 int16 int32 int64 float32 float64 bool string"
TYPES = {  # of keys that the loader reads with another type than `gguf_keys` states, or that it lacks
    "feed_forward_length":              PER_BLOCK,
    "expert_feed_forward_length":       PER_BLOCK,
    "expert_used_count":                PER_BLOCK,
    "attention.head_count":             PER_BLOCK,
    "attention.head_count_kv":          PER_BLOCK,
    "attention.sliding_window_pattern": PER_BLOCK,
    "classifier.output_labels":         f"array[string] {SCALARS}",  # a scalar is ignored
    "classifier.pooling_type":          "uint32",
    "general.tensor_extra.name":        f"array[string] {SCALARS}",
    "general.tensor_extra.prec_a4":     "array[bool]",  # one for each of those names
    "split.count":                      "uint16",
    "split.no":                         "uint16",
    "split.tensors.count":              "int32",
    "tokenizer.ggml.scores":            "array[float32] array[int32]",
    "tokenizer.ggml.suppress_tokens":   "array[int32]",
    "tokenizer.ggml.normalizer.lowercase":     "bool",
    "tokenizer.ggml.normalizer.strip_accents": "bool",
    "tokenizer.ggml.prefix_token_id":   "uint32",
    "tokenizer.ggml.suffix_token_id":   "uint32",
    "tokenizer.ggml.middle_token_id":   "uint32",
}  # fmt: skip


class Loaded(NamedTuple):
    """A tensor that the loader reads.

    Attributes:
        name: ``{i}`` stands for the number of a block.
        dims: as stored, the columns first: names of `SIZES`, their sums, and numbers.
        required: whether the model must have it.
        when: a condition: a name of `SIZES` that is not 0, or a tensor of the block that the model
            has; after ``no``, the contrary. The tensor is read only if the condition holds.
        type: the only type that it may have; by default it may have any.
    """

    name: str
    dims: str
    required: bool = True
    when: str = ""
    type: str = ""


class Requirements(NamedTuple):
    """Requirements of the loader for the models of an architecture.

    Attributes:
        required: keys without the architecture's name, separated by spaces.
        optional: keys that it reads if the model has them.
        tensors: that it reads.
        limits: conditions of values, in addition to `LIMITS`.
        pattern: of blocks with a sliding window, the value that the loader assumes; 0 if the
            architecture has none.
    """

    required: str
    optional: str
    tensors: tuple[Loaded, ...]
    limits: tuple[Limit, ...] = ()
    pattern: int = 0


class Size(NamedTuple):
    """A size that the metadata states.

    Attributes:
        text: what it is, for messages.
        value: returns it, from the numbers of the metadata; see `checks.models.Numbers`.
    """

    text: str
    value: Callable[[Any], int]


class Limit(NamedTuple):
    """A condition of the value of a key.

    Attributes:
        key: without the architecture's name.
        expected: the condition in words.
        holds: returns whether it holds, from the numbers of the metadata.
    """

    key: str
    expected: str
    holds: Callable[[Any], bool]


class Vocabulary(NamedTuple):
    """A kind of vocabulary, by ``tokenizer.ggml.model``.

    Attributes:
        required: keys without ``tokenizer.ggml.``, separated by spaces.
        pre: whether ``tokenizer.ggml.pre`` must be known, if there is one.
    """

    required: str = ""
    pre: bool = False


# fmt: off
GENERAL = "general.name general.file_type split.count general.tensor_extra.name"  # read if the file has them
COMMON = Requirements(
    required="context_length embedding_length block_count attention.head_count",
    optional="feed_forward_length attention.head_count_kv attention.key_length attention.value_length attention.causal "
             "attention.key_length_swa attention.value_length_swa rope.dimension_count rope.dimension_count_swa "
             "rope.freq_base rope.scaling.type rope.scaling.factor rope.scaling.attn_factor rope.scaling.alpha "
             "rope.scaling.original_context_length rope.scaling.finetuned embedding_length_out nextn_predict_layers "
             "pooling_type classifier.pooling_type classifier.output_labels "
             "expert_count expert_used_count expert_group_count expert_group_used_count",
    tensors=(),
)
MOST_BLOCKS, MOST_EXPERTS = 512, 1024

SIZES = {  # name -> Size(what it is, for messages, n -> its value); n: `checks.models.Numbers`
    "layers":   Size("block_count - nextn_predict_layers",
                     lambda n: n.number("block_count") - n.number("nextn_predict_layers")),
    "embd":     Size("embedding_length",                  lambda n: n.number("embedding_length")),
    "ctx":      Size("context_length",                    lambda n: n.number("context_length")),
    "ff":       Size("feed_forward_length",               lambda n: n.number("feed_forward_length")),
    "heads":    Size("head_count",                        lambda n: n.number("attention.head_count")),
    "groups":   Size("head_count_kv",                     lambda n: n.number("attention.head_count_kv", n["heads"])),
    "own head": Size("embedding_length / head_count",     lambda n: n["embd"] // n["heads"] if n["heads"] else 0),
    "key":      Size("key_length",                        lambda n: n.number("attention.key_length", n["own head"])),
    "value":    Size("value_length",                      lambda n: n.number("attention.value_length", n["own head"])),
    "sliding":  Size("sliding_window",                    lambda n: n.number("attention.sliding_window") and n.slides),
    "head":     Size("key_length",
                     lambda n: n.number("attention.key_length_swa", n["key"]) if n["sliding"] else n["key"]),
    "column":   Size("value_length",
                     lambda n: n.number("attention.value_length_swa", n["value"]) if n["sliding"] else n["value"]),
    "q":        Size("head_count * key_length",           lambda n: n["heads"] * n["head"]),
    "k":        Size("head_count_kv * key_length",        lambda n: n["groups"] * n["head"]),
    "v":        Size("head_count_kv * value_length",      lambda n: n["groups"] * n["column"]),
    "rot":      Size("rope.dimension_count",              lambda n: n.number("rope.dimension_count", n["key"])),
    "pairs":    Size("rope.dimension_count / 2",          lambda n: n["rot"] // 2),
    "longrope": Size("longrope scaling",                  lambda n: n.value("rope.scaling.type") == "longrope"),
    "experts":  Size("expert_count",                      lambda n: n.number("expert_count")),
    "used":     Size("expert_used_count",                 lambda n: n.number("expert_used_count")),
    "expert groups": Size("expert_group_count",           lambda n: n.number("expert_group_count")),
    "ff_exp":   Size("expert_feed_forward_length",
                     lambda n: n.number("expert_feed_forward_length") or (n["ff"] // n["used"] if n["used"] else 0)),
    "labels":   Size("classifier.output_labels",          lambda n: n.count("classifier.output_labels") or 1),
    "vocab":    Size("tokens",                            lambda n: n.tokens),
    "types":    Size("token_type_count",                  lambda n: n.number("tokenizer.ggml.token_type_count")),
    "NVFP4":    Size("an output matrix in NVFP4",         lambda n: n.has_nvfp4_output),
}
LIMITS = (  # of values that the loader accepts
    Limit("block_count",              f"1 to {MOST_BLOCKS}",
          lambda n: 1 <= n.number("block_count") <= MOST_BLOCKS),
    Limit("nextn_predict_layers",     "at most the block_count",            lambda n: n["layers"] >= 0),
    Limit("expert_count",             f"at most {MOST_EXPERTS}",            lambda n: n["experts"] <= MOST_EXPERTS),
    Limit("expert_used_count",        "1 to the expert_count, or 0 of 0",
          lambda n: min(n["experts"], 1) <= n.largest("expert_used_count") <= n["experts"]),
    Limit("expert_group_count",       "fewer than the expert_count, a divisor of it",
          lambda n: not n["expert groups"] or n["experts"] % n["expert groups"] == 0 < n["experts"] - n["expert groups"]),
    Limit("expert_group_used_count",  "1 to below the expert_group_count",
          lambda n: n["expert groups"] <= 1 or 1 <= n.number("expert_group_used_count") < n["expert groups"]),
    Limit("rope.scaling.type",        "none, linear, yarn or longrope",
          lambda n: n.value("rope.scaling.type") in (None, "none", "linear", "yarn", "longrope")),
)

VOCABULARIES = {
    "none":     Vocabulary(),
    "no_vocab": Vocabulary(),
    "llama":    Vocabulary("tokens"),
    "bert":     Vocabulary("tokens"),
    "gpt2":     Vocabulary("tokens merges", pre=True),
}
OTHER_VOCABULARIES = ("hybriddna", "whitespace", "t5", "rwkv", "test", "plamo2", "gemma4")  # that the loader reads, too
WITHOUT_MERGES = ("kimi-k2",)  # values of tokenizer.ggml.pre
ALWAYS = "pre token_type_count"  # read if the file has them, even without tokens
OF_TOKENS = (
    "tokens scores token_type "
    "bos_token_id eos_token_id eot_token_id eom_token_id unknown_token_id seperator_token_id padding_token_id mask_token_id "
    "fim_pre_token_id fim_suf_token_id fim_mid_token_id fim_pad_token_id fim_rep_token_id fim_sep_token_id "
    "prefix_token_id suffix_token_id middle_token_id "
    "add_bos_token add_eos_token add_sep_token add_space_prefix remove_extra_whitespaces "
    "normalizer.lowercase normalizer.strip_accents suppress_tokens"
)
KNOWN_PRE = frozenset(PRE_TOKENIZERS.values()) - {"bert-bge-large", "jina-v2-en"} | {
    "default", "gemma4", "glm5", "hy_v4", "jina-de", "jina-es", "llada-moe", "llama-v3", "llama3", "mmbert", "mpt", "spark2_5",
    "ufakzeka", "whitespace",
}
PHI3_TOKENS = ("</s>", "<unk>", "<s>", "<|endoftext|>")  # required if general.name contains one of PHI3_NAMES
PHI3_NAMES = ("phi-3", "phi3")

HEAD = (
    Loaded("token_embd.weight",               "embd vocab"),
    Loaded("output_norm.weight",              "embd"),
    Loaded("output.weight",                   "embd vocab",    required=False),
    Loaded("output.scale",                    "1",             required=False, when="NVFP4"),
    Loaded("output.input_scale",              "1",             required=False, when="NVFP4"),
)


def weight(name: str, dims: str, required: bool = True, when: str = "", scales: str = "1") -> tuple[Loaded, ...]:
    """Returns the rows of a matrix of each block: its weight, and its scales for NVFP4."""
    return (
        Loaded(f"blk.{{i}}.{name}.weight",      dims,   required,       when),
        Loaded(f"blk.{{i}}.{name}.scale",       scales, required=False, when=f"{name}.weight"),
        Loaded(f"blk.{{i}}.{name}.input_scale", scales, required=False, when=f"{name}.weight"),
    )


def attention(q: str, k: str, v: str, required: bool = True) -> tuple[Loaded, ...]:
    """Returns the rows of queries, keys and values: in one matrix, or else in three."""
    return (
        *weight("attn_qkv",               f"embd {q}+{k}+{v}", required=False),
        Loaded("blk.{i}.attn_qkv.bias",   f"{q}+{k}+{v}",      required=False, when="attn_qkv.weight"),
        *weight("attn_q",                 f"embd {q}",         required, when="no attn_qkv.weight"),
        *weight("attn_k",                 f"embd {k}",         required, when="no attn_qkv.weight"),
        *weight("attn_v",                 f"embd {v}",         required, when="no attn_qkv.weight"),
        Loaded("blk.{i}.attn_q.bias",     q,                   required=False, when="no attn_qkv.bias"),
        Loaded("blk.{i}.attn_k.bias",     k,                   required=False, when="no attn_qkv.bias"),
        Loaded("blk.{i}.attn_v.bias",     v,                   required=False, when="no attn_qkv.bias"),
    )


NORMS = (
    Loaded("blk.{i}.attn_norm.weight",        "embd"),
    Loaded("blk.{i}.ffn_norm.weight",         "embd"),
)
HEAD_NORMS = (
    Loaded("blk.{i}.attn_k_norm.weight",      "head"),
    Loaded("blk.{i}.attn_q_norm.weight",      "head"),
)
FEED_FORWARD = (
    *weight("ffn_gate",                       "embd ff"),
    *weight("ffn_up",                         "embd ff"),
    *weight("ffn_down",                       "ff embd"),
)
LONGROPE = (
    Loaded("rope_factors_long.weight",        "pairs",         required=False, when="longrope", type="F32"),
    Loaded("rope_factors_short.weight",       "pairs",         required=False, when="longrope", type="F32"),
)
OLD_FACTOR = "rope.scale_linear"  # read without rope.scaling.factor
SLIDING = "attention.sliding_window_pattern rope.freq_base_swa"  # read if there is a sliding window
TOKEN_TYPES = Limit("tokenizer.ggml.token_type_count", "at least 1", lambda n: n["types"] > 0)
WITH_RMS = "feed_forward_length attention.layer_norm_rms_epsilon"
WITH_EPSILON = "feed_forward_length attention.layer_norm_epsilon"

REQUIREMENTS = {  # by architecture
    "llama": Requirements(WITH_RMS, "vocab_size", (
        *HEAD, *NORMS, *attention("q", "k", "v"),
        *weight("attn_output",                "q embd"),
        Loaded("blk.{i}.attn_output.bias",    "embd",          required=False),
        *LONGROPE,
        Loaded("rope_freqs.weight",           "pairs",         required=False, when="no longrope", type="F32"),
        *(row._replace(when=row.when or "no experts") for row in FEED_FORWARD),
        Loaded("blk.{i}.ffn_gate.bias",       "ff",            required=False, when="no experts"),
        Loaded("blk.{i}.ffn_up.bias",         "ff",            required=False, when="no experts"),
        Loaded("blk.{i}.ffn_down.bias",       "embd",          required=False, when="no experts"),
        Loaded("blk.{i}.ffn_gate_inp.weight", "embd experts",  when="experts"),
        *weight("ffn_gate_exps",              "embd ff experts", required=False, when="experts", scales="experts"),
        *weight("ffn_up_exps",                "embd ff experts", when="experts", scales="experts"),
        *weight("ffn_down_exps",              "ff embd experts", when="experts", scales="experts"),
    ), limits=(Limit("rope.dimension_count", "the key_length", lambda n: n["rot"] == n["key"] or not n["heads"]),)),
    "qwen2": Requirements(WITH_RMS, "", (
        *HEAD, *NORMS, *FEED_FORWARD, *attention("embd", "v", "v"),
        *weight("attn_output",                "embd embd"),
        Loaded("output.bias",                 "vocab",         required=False),
    )),
    "qwen3": Requirements(WITH_RMS, "", (
        *HEAD, *NORMS, *HEAD_NORMS, *FEED_FORWARD, *attention("q", "v", "v"),
        *weight("attn_output",                "q embd"),
        Loaded("cls.output.weight",           "embd labels",   required=False),
    )),
    "qwen3moe": Requirements("attention.layer_norm_rms_epsilon expert_count expert_used_count", "expert_feed_forward_length", (
        *HEAD, *NORMS, *HEAD_NORMS, *attention("q", "v", "v"),
        *weight("attn_output",                "q embd"),
        Loaded("blk.{i}.ffn_gate_inp.weight", "embd experts"),
        *weight("ffn_gate_exps",              "embd ff_exp experts", scales="experts"),
        *weight("ffn_up_exps",                "embd ff_exp experts", scales="experts"),
        *weight("ffn_down_exps",              "ff_exp embd experts", scales="experts"),
    ), limits=(Limit("expert_count", "at least 1", lambda n: n["experts"] > 0),)),
    "gemma3": Requirements(WITH_RMS, "attention.sliding_window final_logit_softcapping", (
        *HEAD, *NORMS, *HEAD_NORMS, *FEED_FORWARD, *attention("q", "k", "v"),
        *weight("attn_output",                "q embd"),
        Loaded("blk.{i}.post_attention_norm.weight", "embd"),
        Loaded("blk.{i}.post_ffw_norm.weight", "embd"),
    ), pattern=6),
    "phi3": Requirements(WITH_RMS, "attention.sliding_window", (
        *HEAD, *NORMS, *attention("embd", "v", "v", required=False),
        *weight("attn_output",                "embd embd"),
        *weight("ffn_up",                     "embd ff+ff"),
        *weight("ffn_down",                   "ff embd"),
        *(row._replace(when="") for row in LONGROPE),
    )),
    "gpt2": Requirements(WITH_EPSILON, "", (
        *HEAD, *NORMS,
        Loaded("output_norm.bias",            "embd"),
        Loaded("position_embd.weight",        "embd ctx"),
        Loaded("blk.{i}.attn_norm.bias",      "embd"),
        Loaded("blk.{i}.ffn_norm.bias",       "embd"),
        *weight("attn_qkv",                   "embd embd+v+v"),
        Loaded("blk.{i}.attn_qkv.bias",       "embd+v+v"),
        *weight("attn_output",                "embd embd"),
        Loaded("blk.{i}.attn_output.bias",    "embd"),
        *weight("ffn_up",                     "embd ff"),
        Loaded("blk.{i}.ffn_up.bias",         "ff"),
        *weight("ffn_down",                   "ff embd"),
        Loaded("blk.{i}.ffn_down.bias",       "embd"),
    )),
    "bert": Requirements(WITH_EPSILON, "", (
        Loaded("token_embd.weight",           "embd vocab"),
        Loaded("token_types.weight",          "embd types",    required=False),
        Loaded("position_embd.weight",        "embd ctx"),
        Loaded("token_embd_norm.weight",      "embd"),
        Loaded("token_embd_norm.bias",        "embd"),
        Loaded("cls.weight",                  "embd embd",     required=False),
        Loaded("cls.bias",                    "embd",          required=False),
        Loaded("cls.output.weight",           "embd labels",   required=False),
        Loaded("cls.output.bias",             "labels",        required=False),
        *attention("embd", "v", "v"),
        *weight("attn_output",                "embd embd"),
        Loaded("blk.{i}.attn_output.bias",    "embd",          required=False),
        Loaded("blk.{i}.attn_output_norm.weight", "embd"),
        Loaded("blk.{i}.attn_output_norm.bias", "embd"),
        *weight("ffn_up",                     "embd ff"),
        Loaded("blk.{i}.ffn_up.bias",         "ff",            required=False),
        *weight("ffn_down",                   "ff embd"),
        Loaded("blk.{i}.ffn_down.bias",       "embd",          required=False),
        Loaded("blk.{i}.layer_output_norm.weight", "embd"),
        Loaded("blk.{i}.layer_output_norm.bias", "embd"),
    ), limits=(TOKEN_TYPES,)),
}
# fmt: on
