"""Tiny Hugging Face folders of each family, written by hand: no library names their tensors."""

from __future__ import annotations

import json
import shutil
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

import glft_schema as glft

ROWS, WIDE, HEADS, GROUPS, SIZE, EXPERTS = 64, 96, 4, 2, 16, 3  # columns, feed-forward, heads of q and k, head size, experts
SPECIAL = ["<unk>", "<s>", "</s>", "<|endoftext|>"]
WORDS = ["\u2581a", "b", "\u2581the", "\u00e9"]
TOKENS = len(SPECIAL) + 256 + len(WORDS)
NORMS = ("norm", "Norm", "ln_")

COMMON = {
    "hidden_size": ROWS, "intermediate_size": WIDE, "num_hidden_layers": 2, "num_attention_heads": HEADS,
    "num_key_value_heads": GROUPS, "max_position_embeddings": 256, "vocab_size": TOKENS, "rms_norm_eps": 1e-5,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
OTHERS = {
    "gpt2": ["vocab_size"],
    "starcoder2": [key for key in COMMON if key != "rms_norm_eps"],
    "bert": [key for key in COMMON if key not in ("num_key_value_heads", "rms_norm_eps")],
}
ROPE = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {"rope_type": "llama3", **ROPE}
FACTORS = {"short_factor": [1 + i / 8 for i in range(8)], "long_factor": [2 + i / 4 for i in range(8)]}

# fmt: off
# With this rope_theta, yarn interpolates up to dim 1.99999, so that truncating it changes nothing.
GPT_OSS = {"head_dim": 16, "num_local_experts": EXPERTS, "num_experts_per_tok": 2, "sliding_window": 32, "rope_theta": 10766.0,
           "swiglu_limit": 7.0, "layer_types": ["sliding_attention", "full_attention"],
           "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 32.0,
                            "beta_slow": 1.0, "truncate": False}}
CONFIGS: dict[str, tuple[str, str, dict[str, Any]]] = {  # folder -> architecture, tokenizer, config without the common fields
    "tiny-llama":    ("LlamaForCausalLM",   "model", {"rope_theta": 5e4}),
    "tiny-llama-3":  ("LlamaForCausalLM",   "json",  {"rope_theta": 5e5, "rope_scaling": LLAMA3}),
    "tiny-yarn":     ("LlamaForCausalLM",   "model", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4,
                                                                          "original_max_position_embeddings": 64}}),
    "tiny-mistral":  ("MistralForCausalLM", "bytes", {"head_dim": 32, "sliding_window": None}),
    "tiny-qwen2":    ("Qwen2ForCausalLM",   "model", {"tie_word_embeddings": True}),
    "tiny-qwen3":    ("Qwen3ForCausalLM",   "json",  {"head_dim": 32}),
    "tiny-qwen3moe": ("Qwen3MoeForCausalLM", "json", {"head_dim": 16, "num_experts": EXPERTS, "num_experts_per_tok": 2,
                                                      "moe_intermediate_size": 32, "norm_topk_prob": True}),
    "tiny-mixtral":  ("MixtralForCausalLM", "bytes", {"num_local_experts": EXPERTS, "num_experts_per_tok": 2,
                                                      "sliding_window": None}),
    "tiny-granite":  ("GraniteForCausalLM", "json",  {"embedding_multiplier": 12.0, "logits_scaling": 8.0,
                                                      "residual_multiplier": 0.22, "attention_multiplier": 0.0625}),
    "tiny-olmo2":    ("Olmo2ForCausalLM",   "json",  {"rope_theta": 5e5}),
    "tiny-qwen2moe": ("Qwen2MoeForCausalLM", "json", {"num_experts": EXPERTS, "num_experts_per_tok": 2,
                                                      "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48}),
    "tiny-starcoder2": ("Starcoder2ForCausalLM", "json", {"norm_epsilon": 1e-5, "hidden_act": "gelu_pytorch_tanh",
                                                          "use_bias": True, "tie_word_embeddings": True}),
    "tiny-gemma2":   ("Gemma2ForCausalLM",  "model", {"head_dim": 16, "sliding_window": 32, "tie_word_embeddings": True,
                                                      "query_pre_attn_scalar": 16, "hidden_activation": "gelu_pytorch_tanh",
                                                      "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}),
    "tiny-gemma3":   ("Gemma3ForCausalLM",  "model", {"head_dim": 16, "sliding_window": 32, "tie_word_embeddings": True,
                                                      "rope_theta": 1e6, "rope_local_base_freq": 1e4,
                                                      "query_pre_attn_scalar": 16,
                                                      "hidden_activation": "gelu_pytorch_tanh"}),
    "tiny-phi3":     ("Phi3ForCausalLM",    "model", {"original_max_position_embeddings": 512, "rope_theta": 1e4,
                                                      "max_position_embeddings": 2048,
                                                      "rope_scaling": {"type": "longrope"} | FACTORS, "pad_token_id": 0}),
    "tiny-gpt-oss":  ("GptOssForCausalLM",  "json",  GPT_OSS | {"quantization_config": {"quant_method": "mxfp4"}}),
    "tiny-gpt-oss-bf16": ("GptOssForCausalLM", "json", GPT_OSS),
    "tiny-gpt2":     ("GPT2LMHeadModel",    "json",  {"n_layer": 2, "n_head": HEADS, "n_embd": ROWS, "n_ctx": 64,
                                                      "n_positions": 64, "layer_norm_epsilon": 1e-5,
                                                      "activation_function": "gelu_new"}),
    "tiny-bert":     ("BertModel",          "words", {"type_vocab_size": 2, "layer_norm_eps": 1e-12, "hidden_act": "gelu"}),
}
TYPES = {"GPT2LMHead": "gpt2", "GptOss": "gpt_oss", "Qwen3Moe": "qwen3_moe", "Qwen2Moe": "qwen2_moe", "Gemma3": "gemma3_text"}
# fmt: on


def make_folder(parent: Path, name: str, shards: int = 1) -> Path:
    """Writes the folder of a family: config, weights in bfloat16 and tokenizer."""
    folder = parent / name
    folder.mkdir()
    architecture, tokenizer, fields = CONFIGS[name]
    kind = architecture.removesuffix("ForCausalLM").removesuffix("Model")
    model_type = TYPES.get(kind, kind.lower())
    common = {key: value for key, value in COMMON.items() if model_type not in OTHERS or key in OTHERS[model_type]}
    config = common | {"architectures": [architecture], "model_type": model_type} | fields
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {tensor: values(tensor, dims) for tensor, dims in shapes_of(model_type, config).items()}
    names = sorted(tensors)
    files = {f"model-{i + 1:05d}-of-{shards:05d}.safetensors": names[i::shards] for i in range(shards)}
    for file, held in files.items():
        save_file({name: tensors[name] for name in held}, folder / (file if shards > 1 else "model.safetensors"))
    if shards > 1:
        weight_map = {name: file for file, held in files.items() for name in held}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    if tokenizer == "model":
        write_model(folder)
    else:  # byte-level BPE, BPE with a token for each byte, or WordPiece
        shutil.copytree(Path(__file__).with_name("tokenizers") / tokenizer, folder, dirs_exist_ok=True)
    return folder


def edit_json(path: Path, **parts: Any) -> None:
    """Sets parts of a JSON file, such as config.json."""
    path.write_text(json.dumps(json.loads(path.read_text()) | parts))


def edit_tensors(folder: Path, tensors: Mapping[str, torch.Tensor | None]) -> None:
    """Sets or removes tensors of a folder."""
    stored = load_file(folder / "model.safetensors") | tensors
    save_file({name: tensor for name, tensor in stored.items() if tensor is not None}, folder / "model.safetensors")


def edited(path: Path, change: Callable[[dict[str, Any], dict[str, Any]], object]) -> Path:
    """Writes a GGUF file beside another one, with other tensors or metadata."""
    with glft.open(path) as file:
        tensors = {name: tensor.dequantize() for name, tensor in file.tensors.items()}
        metadata = {key: glft.Typed(value, file.metadata.type_of(key)) for key, value in file.metadata.items()}
    change(tensors, metadata)
    glft.save_file(tensors, path.with_name("edited.gguf"), metadata, rules=[])
    return path.with_name("edited.gguf")


def make_undeclared(parent: Path) -> Path:
    """Writes a folder of gemma, which is not declared: gemma2 with fewer norms."""
    folder = make_folder(parent, "tiny-gemma2")
    edit_json(folder / "config.json", architectures=["GemmaForCausalLM"], model_type="gemma")
    names = load_file(folder / "model.safetensors")
    edit_tensors(folder, {name: None for name in names if "feedforward" in name})
    return folder


def values(name: str, dims: tuple[int, ...]) -> torch.Tensor:
    """Returns numbers that depend on the tensor's name: small, and near 1 for norms."""
    numbers = torch.arange(torch.Size(dims).numel(), dtype=torch.float32)
    spread = ((numbers * 7919 + zlib.crc32(name.encode()) % 1009) % 1009 - 504) / 2048
    if name.endswith(("_blocks", "_scales")):  # codes, and powers of two from 2^-9 to 2^-6
        numbers = numbers * 7919 + zlib.crc32(name.encode()) % 1009
        return (numbers % 256 if name.endswith("_blocks") else 118 + numbers % 4).reshape(dims).to(torch.uint8)
    base = 1 if len(dims) == 1 and any(norm in name for norm in NORMS) and not name.endswith("bias") else 0
    return (base + spread).reshape(dims).to(torch.bfloat16)


def shapes_of(model_type: str, config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Returns the shape of each tensor, as transformers saves the model."""
    if model_type in WHOLE:
        lines = [line for i in range(2) for line in WHOLE[model_type].replace(".N.", f".{i}.").strip().splitlines()]
        return {name: tuple(map(int, dims)) for name, *dims in map(str.split, lines)}
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (TOKENS, ROWS), "model.norm.weight": (ROWS,)}
    if not config.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = (TOKENS, ROWS)
    if model_type == "starcoder2":
        shapes["model.norm.bias"] = (ROWS,)
    size = config.get("head_dim", SIZE)
    q, k = HEADS * size, GROUPS * size
    norms = (q, k) if model_type == "olmo2" else (size, size)
    for name in BLOCKS[model_type].split():
        wide = 32 if "mlp.experts." in name else 48 if "shared_expert." in name else WIDE
        dims = {
            "q_proj": (q, ROWS), "k_proj": (k, ROWS), "v_proj": (k, ROWS), "qkv_proj": (q + 2 * k, ROWS), "o_proj": (ROWS, q),
            "q_norm": norms[:1], "k_norm": norms[1:], "gate_up_proj": (2 * WIDE, ROWS), "gate_proj": (wide, ROWS),
            "up_proj": (wide, ROWS), "down_proj": (ROWS, wide), "w1": (WIDE, ROWS), "w2": (ROWS, WIDE), "w3": (WIDE, ROWS),
            "c_fc": (WIDE, ROWS), "c_proj": (ROWS, WIDE), "gate": (EXPERTS, ROWS), "router": (EXPERTS, ROWS),
            "shared_expert_gate": (1, ROWS),
        }.get(name.rpartition(".")[2], (ROWS,))  # fmt: skip
        kinds = {"weight": dims}
        if name.endswith(BIASED.get(model_type, ())):
            kinds["bias"] = dims[:1]
        shapes |= {f"model.layers.{i}.{name}.{kind}": dims for i in range(2) for kind, dims in kinds.items()}
    if model_type == "gpt_oss":
        experts = dict(gpt_oss_experts("quantization_config" in config))
        shapes |= {f"model.layers.{i}.{name}": dims for i in range(2) for name, dims in experts.items()}
    return shapes


def gpt_oss_experts(packed: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yields the shapes of a block's sinks and experts, which are in MXFP4 if `packed`."""
    yield "self_attn.sinks", (HEADS,)
    for name, rows, columns in (("gate_up", 2 * WIDE, ROWS), ("down", ROWS, WIDE)):
        name = f"mlp.experts.{name}_proj"
        yield f"{name}_bias", (EXPERTS, rows)
        if packed:
            yield f"{name}_blocks", (EXPERTS, rows, columns // 32, 16)
            yield f"{name}_scales", (EXPERTS, rows, columns // 32)
        else:
            yield name, (EXPERTS, columns, rows)


LLAMA = "input_layernorm post_attention_layernorm self_attn.o_proj self_attn.q_proj self_attn.k_proj self_attn.v_proj"
DENSE = " mlp.gate_proj mlp.up_proj mlp.down_proj"
QK = " self_attn.q_norm self_attn.k_norm"
GEMMA = f"{LLAMA} pre_feedforward_layernorm post_feedforward_layernorm{DENSE}"
MOE = " mlp.gate" + "".join(f" mlp.experts.{e}.{name}_proj" for e in range(EXPERTS) for name in ("gate", "up", "down"))
SHARED = " mlp.shared_expert_gate mlp.shared_expert.gate_proj mlp.shared_expert.up_proj mlp.shared_expert.down_proj"
W = "".join(f" block_sparse_moe.experts.{e}.w{i}" for e in range(EXPERTS) for i in (1, 2, 3))
BLOCKS = {  # by model_type
    **dict.fromkeys(("llama", "mistral", "qwen2", "granite"), LLAMA + DENSE),
    "qwen3": LLAMA + QK + DENSE,
    "qwen3_moe": LLAMA + QK + MOE,
    "qwen2_moe": LLAMA + MOE + SHARED,
    "mixtral": f"{LLAMA} block_sparse_moe.gate{W}",
    "olmo2": f"{LLAMA.removeprefix('input_layernorm ')}{QK} post_feedforward_layernorm{DENSE}",
    "starcoder2": f"{LLAMA} mlp.c_fc mlp.c_proj",
    "gemma2": GEMMA,
    "gemma3_text": GEMMA + QK,
    "phi3": "input_layernorm post_attention_layernorm self_attn.o_proj self_attn.qkv_proj mlp.gate_up_proj mlp.down_proj",
    "gpt_oss": f"{LLAMA} mlp.router",
}
BIASED = {  # ends of names with a bias, too
    **dict.fromkeys(("qwen2", "qwen2_moe"), ("q_proj", "k_proj", "v_proj")),
    "starcoder2": ("proj", "c_fc", "norm"),
    "gpt_oss": ("proj", "router"),
}
# N is a block. Matrices of gpt2 are transposed, and GGUF lacks the pooler of bert.
WHOLE = {
    "gpt2": """
transformer.wte.weight 264 64
transformer.wpe.weight 64 64
transformer.ln_f.weight 64
transformer.ln_f.bias 64
transformer.h.N.ln_1.weight 64
transformer.h.N.ln_1.bias 64
transformer.h.N.ln_2.weight 64
transformer.h.N.ln_2.bias 64
transformer.h.N.attn.c_attn.weight 64 192
transformer.h.N.attn.c_attn.bias 192
transformer.h.N.attn.c_proj.weight 64 64
transformer.h.N.attn.c_proj.bias 64
transformer.h.N.mlp.c_fc.weight 64 256
transformer.h.N.mlp.c_fc.bias 256
transformer.h.N.mlp.c_proj.weight 256 64
transformer.h.N.mlp.c_proj.bias 64
""",
    "bert": """
embeddings.word_embeddings.weight 264 64
embeddings.position_embeddings.weight 256 64
embeddings.token_type_embeddings.weight 2 64
embeddings.LayerNorm.weight 64
embeddings.LayerNorm.bias 64
pooler.dense.weight 64 64
pooler.dense.bias 64
encoder.layer.N.attention.self.query.weight 64 64
encoder.layer.N.attention.self.query.bias 64
encoder.layer.N.attention.self.key.weight 64 64
encoder.layer.N.attention.self.key.bias 64
encoder.layer.N.attention.self.value.weight 64 64
encoder.layer.N.attention.self.value.bias 64
encoder.layer.N.attention.output.dense.weight 64 64
encoder.layer.N.attention.output.dense.bias 64
encoder.layer.N.attention.output.LayerNorm.weight 64
encoder.layer.N.attention.output.LayerNorm.bias 64
encoder.layer.N.intermediate.dense.weight 96 64
encoder.layer.N.intermediate.dense.bias 96
encoder.layer.N.output.dense.weight 64 96
encoder.layer.N.output.dense.bias 64
encoder.layer.N.output.LayerNorm.weight 64
encoder.layer.N.output.LayerNorm.bias 64
""",
}


def write_model(folder: Path) -> None:
    """Writes tokenizer.model: SentencePiece's protobuf, with a score and a type for each piece."""
    pieces = [*SPECIAL[:3], *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS, SPECIAL[3]]
    types = [2, 3, 3, *[6] * 256, *[1] * (len(WORDS) + 1)]
    table = b""
    for number, (piece, type_) in enumerate(zip(pieces, types, strict=True)):
        text = piece.encode()
        row = b"\x0a" + bytes([len(text)]) + text + b"\x15" + struct.pack("<f", -number) + b"\x18" + bytes([type_])
        table += b"\x0a" + bytes([len(row)]) + row
    trainer = b"\x18\x02\x98\x02\x01"  # model_type BPE, byte_fallback
    normalizer = b"\x1a\x02\x20\x00"  # spaces are kept
    (folder / "tokenizer.model").write_bytes(table + b"\x12" + bytes([len(trainer)]) + trainer + normalizer)
    settings = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "bos_token": "<s>", "eos_token": "</s>"}
    added = {str(TOKENS - 1): {"content": "<|endoftext|>", "special": True}} if "phi3" in folder.name else {}
    if "llama" in folder.name:
        added = {
            str(TOKENS - 2): {"content": "\u2581user"},
            str(TOKENS - 3): {"content": "<|control|>"},
            "999": {"content": "x"},
        }
        settings["add_prefix_space"] = False
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"added_tokens_decoder": added}))
    if "qwen2" in folder.name:
        (folder / "added_tokens.json").write_text(json.dumps({"<added>": TOKENS - 1, "<beyond>": 999}))
    if "phi3" in folder.name:
        (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": [{"id": TOKENS - 2, "content": "<user>"}]}))
