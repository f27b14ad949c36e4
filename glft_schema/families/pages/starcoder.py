"""StarCoder and SantaCoder."""

from __future__ import annotations

from dataclasses import replace

from glft_schema.families import rows
from glft_schema.families.operations import KEEP
from glft_schema.families.page import F, K
from glft_schema.families.pages.gpt2 import GPT2

# fmt: off
STARCODER = replace(
    GPT2, arch="starcoder", architectures=("GPTBigCodeForCausalLM",), model_type="gpt_bigcode",
    tensors=(
        *(row._replace(name=f"transformer.{row.name}", operation=KEEP) for row in GPT2.tensors[:-1]), rows.LM_HEAD,
    ),
    keys=(
        *GPT2.keys[:-2],
        K("attention.head_count_kv",          "", 1),
        *GPT2.keys[-2:],
    ),
    fields=(
        rows.choice("activation_function", *rows.GELU),
        F("multi_query", True, "the page has the rows of one head of keys"),
        F("num_key_value_heads", 1),
        *(field for field in GPT2.fields if field.name == "scale_attn_weights"),
    ),
    prefix="",
    ignored="inference_runner max_*_size max_*_length pad_key_length pre_allocate_kv_cache validate_runner_input summary_*",
)
