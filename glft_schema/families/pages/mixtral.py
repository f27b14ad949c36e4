"""Mixtral: Llama with experts."""

from __future__ import annotations

from glft_schema.families import rows
from glft_schema.families.config import columns_of_head
from glft_schema.families.page import Family, K
from glft_schema.families.pages.llama import LLAMA, permuted

# fmt: off
MIXTRAL = Family(
    "llama", ("MixtralForCausalLM",), "mixtral",
    tensors=(
        *rows.BLOCKS, rows.LM_HEAD, *permuted(), *rows.experts("ff", "model.layers.{i}.block_sparse_moe", "w1 w3 w2"),
    ),
    keys=(
        *rows.decoder(1_000_000.0), *rows.EXPERTS, *rows.OWN_HEAD_SIZE, rows.FILE_TYPE,
        K("vocab_size",                       "vocab_size"),
        K("rope.dimension_count",             "", columns_of_head),
    ),
    fields=(
        rows.SILU, rows.LOCAL_EXPERTS, rows.WINDOW, *rows.YARN,
    ),
    vocabularies=LLAMA.vocabularies,
    defaults={"num_key_value_heads": 8, "rms_norm_eps": 1e-5},
)
