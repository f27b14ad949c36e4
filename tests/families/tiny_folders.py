"""Tiny Hugging Face folders of each family, written by hand: no library names their tensors.

Configs and settings of tokenizers are in `folders`. With the rope_theta of tiny-gpt-oss, yarn
interpolates up to dim 1.99999, so that truncating it changes nothing.
"""

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

FOLDERS = Path(__file__).with_name("folders")
CONFIGS = {  # folder -> architecture, tokenizer
    "tiny-llama": ("LlamaForCausalLM", "model"),
    "tiny-llama-3": ("LlamaForCausalLM", "json"),
    "tiny-yarn": ("LlamaForCausalLM", "model"),
    "tiny-mistral": ("MistralForCausalLM", "bytes"),
    "tiny-qwen2": ("Qwen2ForCausalLM", "model"),
    "tiny-qwen3": ("Qwen3ForCausalLM", "json"),
    "tiny-qwen3moe": ("Qwen3MoeForCausalLM", "json"),
    "tiny-mixtral": ("MixtralForCausalLM", "bytes"),
    "tiny-granite": ("GraniteForCausalLM", "json"),
    "tiny-olmo2": ("Olmo2ForCausalLM", "json"),
    "tiny-qwen2moe": ("Qwen2MoeForCausalLM", "json"),
    "tiny-starcoder2": ("Starcoder2ForCausalLM", "json"),
    "tiny-gemma2": ("Gemma2ForCausalLM", "model"),
    "tiny-gemma3": ("Gemma3ForCausalLM", "model"),
    "tiny-phi3": ("Phi3ForCausalLM", "model"),
    "tiny-gpt-oss": ("GptOssForCausalLM", "json"),
    "tiny-gpt-oss-bf16": ("GptOssForCausalLM", "json"),
    "tiny-gpt2": ("GPT2LMHeadModel", "json"),
    "tiny-bert": ("BertModel", "words"),
}


def make_folder(parent: Path, name: str, shards: int = 1) -> Path:
    """Writes the folder of a family: config, weights in bfloat16 and tokenizer."""
    folder = shutil.copytree(FOLDERS / name, parent / name)
    if CONFIGS[name][1] == "model":
        write_model(folder / "tokenizer.model")
    else:  # byte-level BPE, BPE with a token for each byte, or WordPiece
        shutil.copytree(FOLDERS.with_name("tokenizers") / CONFIGS[name][1], folder, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    tensors = {tensor: values(tensor, dims) for tensor, dims in shapes_of(config).items()}
    names = sorted(tensors)
    files = {f"model-{i + 1:05d}-of-{shards:05d}.safetensors": names[i::shards] for i in range(shards)}
    for file, held in files.items():
        save_file({name: tensors[name] for name in held}, folder / (file if shards > 1 else "model.safetensors"))
    if shards > 1:
        weight_map = {name: file for file, held in files.items() for name in held}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
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


def shapes_of(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Returns the shape of each tensor, as transformers saves the model."""
    model_type = config["model_type"]
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


def write_model(path: Path) -> None:
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
    path.write_bytes(table + b"\x12" + bytes([len(trainer)]) + trainer + normalizer)
