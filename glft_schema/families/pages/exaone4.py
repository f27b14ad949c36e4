"""EXAONE 4."""

from __future__ import annotations

from glft_schema.families import rows
from glft_schema.families.config import BLOCKS, PATTERN, Config
from glft_schema.families.page import SCALED, WINDOW, F, Family, K, T
from glft_schema.families.rope_factors import llama3_config, llama3_factors
from glft_schema.tensors.stored_tensor import StoredTensor

SLIDING = 64  # the number of blocks with which llama.cpp has a sliding window


def layers(config: Config) -> list[str]:
    """Returns the layer types of a config that states none."""
    return rows.sliding_layers({"sliding_window": 0, **config}, config.get("sliding_window_pattern", 4))


def blocks(config: Config) -> object:
    """Returns the number of blocks with which llama.cpp has a window just as the config has."""
    count = config[BLOCKS]
    return SLIDING if config.get("sliding_window") else count if count != SLIDING else "another number"


def exaone4_config(tensors: dict[str, StoredTensor], config: Config) -> Config:
    """Returns the fields of the rotary embedding, and of no window for other numbers of blocks."""
    no_window = {"sliding_window": None, "layer_types": rows.full_layers(config)} if config[BLOCKS] != SLIDING else {}
    return llama3_config(tensors, config) | no_window


# fmt: off
EXAONE4 = Family(
    "exaone4", ("Exaone4ForCausalLM",), "exaone4",
    tensors=(
        rows.EMBEDDING, rows.LM_HEAD, *rows.POST_NORMS, *rows.HEAD_NORMS, *rows.attention(o="embd"), *rows.FEED_FORWARD,
        T("", "rope_freqs",                    "pairs", required=False),
    ),
    keys=(
        *rows.decoder(),
        *(key._replace(absent=rows.head_size) for key in rows.OWN_HEAD_SIZE), rows.FILE_TYPE,
        K("vocab_size",                       "vocab_size"),
        K(WINDOW,                             "sliding_window", None, absent=4096),
        K(PATTERN,                            "layer_types", layers, "sliding"),
    ),
    fields=(
        rows.SILU,
        F("head_dim", rows.head_size, "llama.cpp divides the embedding by the heads"),
        F(BLOCKS, blocks, "llama.cpp has a sliding_window in models of 64 blocks, and in no others"),
        F("layer_types", rows.some_sliding, "llama.cpp stops if no layer has the window"),
        *rows.YARN,
    ),
    vocabularies=("bpe",),
    pattern=4,
    generated=llama3_factors,
    restored=exaone4_config,
    ignored="sliding_window_pattern",
    ropes=(*SCALED, "llama3"),
    defaults={"num_key_value_heads": 32, "rms_norm_eps": 1e-5, "sliding_window": 4096},
)
