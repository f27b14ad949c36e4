"""Well-known keys of GGUF's metadata, with the types of their values.

Sources: ggml's docs/gguf.md, and llama.cpp b11434: gguf-py (`GGUFWriter.add_*`), and for keys that
gguf-py has no method for, the tools that write them. The types are those that gguf-py writes.
docs/gguf.md calls most counts uint64, but llama.cpp's model loader reads only uint32. Keys that
some tools write with another kind of type are left out: ``attention.sliding_window_pattern`` (a
number or bools), ``attention.shared_kv_layers`` (an integer or a float), and
``attention.recurrent_layers``, ``attention.rope_pattern`` and ``attention.indexer.types`` (bools,
or numbers from llama.cpp's saver).

``tokenizer.ggml.normalizer.nfc`` is of llama.cpp b11739. Its loader reads the key for every
vocabulary, and its tokenizer normalizes texts for Unigram only (``t5``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from glft_schema.display import format_count
from glft_schema.formats.file_types import FILE_TYPE, FILE_TYPES
from glft_schema.formats.gguf_names import ARCHITECTURE, POOLINGS, TOKEN_TYPES, TOKENIZER

ARCH = "[arch]"  # stands for the name of an architecture
PER_LAYER = {"uint32": "array[int32]", "float32": "array[float32]"}  # of an architecture's keys; lists as gguf-py writes them
NOT_OF_ARCHITECTURES = ("general.", "tokenizer.", "split.", "adapter.", "imatrix.", "diffusion.", "clip.")
NUMBERED = re.compile(r"(general\.base_model|general\.dataset|tokenizer\.chat_template)\.[^.]+")  # N: a number or a name

# fmt: off
ROWS = (  # prefix, type, keys without the prefix
    ("general",              "string",         "type architecture name author version organization finetune basename "
                                               "description quantized_by size_label license license.name license.link url "
                                               "doi uuid repo_url"),
    ("general",              "uint32",         "quantization_version alignment file_type base_model.count dataset.count"),
    ("general",              "array[string]",  "tags languages datasets tensor_extra.name"),
    ("general",              "array[bool]",    "tensor_extra.prec_a4"),
    ("general.source",       "string",         "url doi uuid repo_url huggingface.repository"),
    ("general.base_model.N", "string",         "name author version organization description url doi uuid repo_url"),
    ("general.dataset.N",    "string",         "name author version organization description url doi uuid repo_url"),
    ("general.sampling",     "string",         "sequence"),
    ("general.sampling",     "int32",          "top_k penalty_last_n mirostat"),
    ("general.sampling",     "float32",        "top_p min_p xtc_probability xtc_threshold temp penalty_repeat mirostat_tau "
                                               "mirostat_eta"),
    ("tokenizer",            "string",         "huggingface.json rwkv.world chat_template chat_template.N"),
    ("tokenizer",            "array[string]",  "chat_templates"),
    ("tokenizer.ggml",       "string",         "model pre"),
    ("tokenizer.ggml",       "uint32",         "token_type_count bos_token_id eos_token_id eot_token_id eom_token_id "
                                               "unknown_token_id seperator_token_id padding_token_id mask_token_id "
                                               "fim_pre_token_id fim_suf_token_id fim_mid_token_id fim_pad_token_id "
                                               "fim_rep_token_id fim_sep_token_id separator_token_id "
                                               "prefix_token_id suffix_token_id middle_token_id cls_token_id"),
    ("tokenizer.ggml",       "bool",           "add_bos_token add_eos_token add_sep_token add_space_prefix "
                                               "remove_extra_whitespaces normalizer.lowercase normalizer.strip_accents "
                                               "normalizer.nfc"),
    ("tokenizer.ggml",       "array[string]",  "tokens merges added_tokens"),
    ("tokenizer.ggml",       "array[uint8]",   "precompiled_charsmap"),
    ("tokenizer.ggml",       "array[int32]",   "token_type suppress_tokens"),
    ("tokenizer.ggml",       "array[float32]", "scores"),
    ("[arch]",               "string",         "tensor_data_layout hidden_activation decision.type"),
    ("[arch]",               "uint32",         "vocab_size context_length embedding_length embedding_length_out "
                                               "features_length block_count leading_dense_block_count feed_forward_length "
                                               "expert_feed_forward_length expert_shared_feed_forward_length "
                                               "expert_chunk_feed_forward_length expert_count expert_used_count "
                                               "expert_shared_count expert_group_count expert_group_used_count "
                                               "expert_gating_func experts_per_group moe_every_n_layers moe_latent_size "
                                               "nextn_predict_layers n_deepstack_layers pooling_type "
                                               "decoder_start_token_id decoder_block_count rescale_every_n_layers "
                                               "time_mix_extra_dim time_decay_extra_dim token_shift_count "
                                               "interleave_moe_layer_step "
                                               "full_attention_interval altup.active_idx altup.num_inputs "
                                               "embedding_length_per_layer_input kda.head_dim wkv.head_size "
                                               "posnet.embedding_length posnet.block_count convnext.embedding_length "
                                               "convnext.block_count shortconv.l_cache expert_latent_length num_loops "
                                               "hash_layer_count dense_2_feat_in dense_2_feat_out dense_3_feat_in "
                                               "dense_3_feat_out target_hidden_size block_size conv_kernel_size "
                                               "conv_group_size selector_rank selector_top_k adapters.count adapters.lora_rank "
                                               "hyper_connection.count hyper_connection.sinkhorn_iterations "
                                               "hyper_connection.low_rank ple.ngram_size ple.heads_per_ngram ple.conv_kernel "
                                               "ple.eos_token_id ple.image_token_id attn_res.block_size hrm.layers_per_stack "
                                               "hrm.h_cycles hrm.l_cycles classifier.pooling_type decision.block_count "
                                               "decision.head_count decision.routing_block_count decision.max_head_tokens"),
    ("[arch]",               "float32",        "expert_weights_scale expert_group_scale logit_scale attn_logit_softcapping "
                                               "router_logit_softcapping final_logit_softcapping residual_scale "
                                               "embedding_scale swiglu_clamp_exp swiglu_clamp_shexp adapters.router_gain "
                                               "hyper_connection.epsilon hyper_connection.magnitude activation.situ_beta "
                                               "activation.situ_linear_beta kda.gate_lower_bound"),
    ("[arch]",               "bool",           "use_parallel_residual expert_weights_norm swin_norm skip_loop_final_norm "
                                               "sample_from_anchor has_confidence_head norm_before_residual norm_before_fc "
                                               "hrm.prefix_lm kda.safe_gate"),
    ("[arch]",               "array[string]",  "classifier.output_labels"),
    ("[arch]",               "array[int32]",   "deepstack_mapping target_layers ple.layers adapters.token_ids_activate "
                                               "adapters.token_ids_substitute"),
    ("[arch]",               "array[uint64]",  "ple.layer_multipliers ple.head_offsets ple.head_vocab_sizes"),
    ("[arch]",               "array[float32]", "activation_sparsity_scale"),
    ("[arch].attention",     "uint32",         "head_count head_count_kv key_length value_length group_norm_groups "
                                               "q_lora_rank kv_lora_rank decay_lora_rank iclr_lora_rank "
                                               "value_residual_mix_lora_rank gate_lora_rank relative_buckets_count "
                                               "sliding_window temperature_length key_length_mla value_length_mla "
                                               "key_length_swa value_length_swa key_length_mla_swa value_length_mla_swa "
                                               "kv_lora_rank_swa output_group_count output_lora_rank compress_ratios "
                                               "indexer.head_count indexer.key_length indexer.top_k indexer.block_size "
                                               "indexer.local_blocks indexer.kpool"),
    ("[arch].attention",     "float32",        "max_alibi_bias clamp_kqv layer_norm_epsilon layer_norm_rms_epsilon "
                                               "group_norm_epsilon scale output_scale temperature_scale value_scale "
                                               "compress_rope_freq_base"),
    ("[arch].attention",     "bool",           "causal indexer.kpool_select_tail"),
    ("[arch].rope",          "string",         "scaling.type"),
    ("[arch].rope",          "uint32",         "dimension_count dimension_count_swa scaling.original_context_length"),
    ("[arch].rope",          "float32",        "freq_base freq_base_swa scaling.factor scaling.alpha scaling.attn_factor "
                                               "scaling.yarn_log_multiplier scaling.yarn_ext_factor scaling.yarn_attn_factor "
                                               "scaling.yarn_beta_fast scaling.yarn_beta_slow scale_linear"),
    ("[arch].rope",          "bool",           "scaling.finetuned"),
    ("[arch].rope",          "array[int32]",   "dimension_sections"),
    ("[arch].ssm",           "uint32",         "conv_kernel inner_size state_size time_step_rank group_count"),
    ("[arch].ssm",           "bool",           "dt_b_c_rms"),
    ("xielu",                "float32",        "alpha_p alpha_n beta eps"),
    ("diffusion",            "bool",           "shift_logits"),
    ("split",                "uint16",         "no count"),
    ("split",                "int32",          "tensors.count"),
    ("adapter",              "string",         "type lora.task_name lora.prompt_prefix"),
    ("adapter",              "float32",        "lora.alpha"),
    ("adapter",              "array[uint32]",  "alora.invocation_tokens"),
    ("imatrix",              "uint32",         "chunk_count chunk_size"),
    ("imatrix",              "array[string]",  "datasets"),
    ("clip",                 "string",         "projector_type vision.projector_type audio.projector_type "
                                               "gen.audio.projector_type gen.audio.model_variant"),
    ("clip",                 "bool",           "has_vision_encoder has_audio_encoder has_gen_audio_encoder "
                                               "has_llava_projector use_gelu use_silu"),
    ("clip",                 "float32",        "vision.swiglu_clamp vision.attention.layer_norm_epsilon "
                                               "audio.attention.layer_norm_epsilon gen.audio.attention.layer_norm_epsilon"),
    ("clip",                 "array[float32]", "vision.image_mean vision.image_std"),
    ("clip",                 "array[bool]",    "vision.is_deepstack_layers"),
    ("clip",                 "array[int32]",   "vision.expert_count_per_layer vision.wa_layer_indexes vision.wa_pattern_mode "
                                               "vision.feature_layer vision.image_grid_pinpoints "
                                               "vision.projector.spatial_offsets audio.feature_layer audio.rvq.codebook_size "
                                               "audio.wa_pattern_mode"),
    ("clip.vision",          "uint32",         "image_size image_min_pixels image_max_pixels preproc_min_tiles "
                                               "preproc_max_tiles preproc_image_size patch_size embedding_length "
                                               "feed_forward_length projection_dim block_count spatial_merge_size "
                                               "expert_used_count n_wa_pattern window_size attention.head_count "
                                               "attention.head_count_kv attention.head_dim projector.scale_factor "
                                               "projector.query_side projector.window_side sam.block_count "
                                               "sam.embedding_length sam.head_count"),
    ("clip.audio",           "uint32",         "num_mel_bins embedding_length feed_forward_length projection_dim block_count "
                                               "subsampling_factor chunk_size conv_kernel_size max_pos_emb "
                                               "rvq.num_quantizers window_size local_block_count local_group_size "
                                               "attention.head_count projector.stack_factor projector.window_size "
                                               "projector.downsample_rate projector.head_count"),
    ("clip.gen.audio",       "uint32",         "embedding_length feed_forward_length block_count projection_dim "
                                               "attention.head_count attention.head_count_kv"),
)
# fmt: on

TYPES = {f"{prefix}.{rest}": type_ for prefix, type_, rests in ROWS for rest in rests.split()}

# Meanings of integer values, by key. Sources: llama_pooling_type, llama_expert_gating_func_type and
# llama_token_type of llama.cpp v0.5.0.
MEANINGS = {
    FILE_TYPE: {code: name for name, code in FILE_TYPES.items()},
    "tokenizer.ggml.token_type": dict(enumerate(TOKEN_TYPES, 1)),
    "[arch].pooling_type": dict(enumerate(POOLINGS)),
    "[arch].expert_gating_func": {1: "softmax", 2: "sigmoid", 3: "softmax of the chosen experts"},
}
COUNTS = (("[arch].block_count", "layer", "layers"), ("[arch].context_length", "context", "context"))

KINDS = {  # by the name of a type without its width
    "uint": ("an integer", "integers"),
    "int": ("an integer", "integers"),
    "float": ("a float", "floats"),
    "bool": ("a bool", "bools"),
    "string": ("a string", "strings"),
}


def type_of_key(key: str, of_array: bool = False) -> str | None:
    """Returns the type of a key in new files, such as ``uint32``; None if it is not well known.

    Args:
        key: the key.
        of_array: whether the value is an array. Numeric keys of an architecture may have one, with
            an element for each layer.
    """
    of_architecture = _is_of_architecture(key)
    known = TYPES.get(key) or TYPES.get(f"{ARCH}.{key.partition('.')[2]}" if of_architecture else NUMBERED.sub(r"\1.N", key))
    return PER_LAYER.get(known, known) if of_array and of_architecture and known else known


def meaning(key: str, value: Any) -> str | None:
    """Returns the name of an enumerated value, such as ``Q4_1`` for ``general.file_type`` 3, or
    None."""
    names = MEANINGS.get(f"{ARCH}.{key.partition('.')[2]}" if _is_of_architecture(key) else key, {})
    return names.get(value) if isinstance(value, int) else None


def summary(metadata: Mapping[str, Any]) -> list[str]:
    """Returns a description of a model from its metadata, such as ``["llama", "30 layers", "8,192
    context", "49,152 tokens"]``."""
    architecture, kind = metadata.get(ARCHITECTURE), metadata.get("general.type", "model")
    parts = [text for text in (architecture, kind) if isinstance(text, str) and text != "model"]
    for key, one, many in COUNTS:
        count = metadata.get(key.replace(ARCH, str(architecture)))
        parts += [format_count(count, one, many)] if isinstance(count, int) else []
    tokens = metadata.get(f"{TOKENIZER}tokens")
    return [*parts, *([f"{len(tokens):,} tokens"] if isinstance(tokens, Sequence) and not isinstance(tokens, str) else [])]


def suits(key: str, type_: str) -> bool:
    """Tells whether a key may have values of a type.

    Integers and floats may have any width, as docs/gguf.md recommends to readers. Numeric keys of
    an architecture may also have an array with a number for each layer; llama.cpp reads both.
    """
    kinds = _kinds(key)
    return not kinds or _kind(type_) in kinds


def kinds_of_key(key: str) -> str:
    """Returns the kinds of type that suit a well-known key, in words."""
    return " or ".join(_kinds(key))


def _kinds(key: str) -> list[str]:
    """Returns the kinds of type that suit a key; none if the key is not well known."""
    types = (type_of_key(key), type_of_key(key, of_array=True))
    return list(dict.fromkeys(_kind(type_) for type_ in types if type_))


def _kind(type_: str) -> str:
    """Returns a type in words, without the width of numbers; nested arrays unchanged."""
    element = type_.removeprefix("array[").removesuffix("]")
    one, many = KINDS.get(element.rstrip("0123456789"), (type_, type_))
    return one if element == type_ else f"an array of {many}"


def _is_of_architecture(key: str) -> bool:
    return not key.startswith(NOT_OF_ARCHITECTURES)
