"""OLMo 3: OLMo 2 with a sliding window in three of four layers, which yarn does not scale."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from glft_schema.families import rows
from glft_schema.families.config import PATTERN
from glft_schema.families.page import WINDOW, F, K
from glft_schema.families.pages.olmo2 import OLMO2

# fmt: off
THETA, OF_SLIDING = "rope.rope_theta", "rope.sliding_attention.rope_theta"
THREE_OF_FOUR = partial(rows.sliding_layers, period=4)
OLMO3 = replace(
    OLMO2, architectures=("Olmo3ForCausalLM",), model_type="olmo3",
    keys=(
        *rows.SIZES, *rows.heads(500_000.0),
        K("rope.freq_base_swa",               OF_SLIDING, 500_000.0, "sliding", lambda config: config[THETA]),
        *rows.RMS, rows.FILE_TYPE,
        K(WINDOW,                             "sliding_window", None),
        K(PATTERN,                            "layer_types", THREE_OF_FOUR, "sliding"),
    ),
    fields=(
        *OLMO2.fields,
        F("layer_types", rows.some_sliding, "llama.cpp stops if no layer has the window"),
        F(OF_SLIDING, lambda config: config[THETA], "llama.cpp rotates by one base in all layers"),
    ),
    defaults={"rms_norm_eps": 1e-5, "sliding_window": 4096},
)
