"""EmbeddingGemma."""

from __future__ import annotations

from dataclasses import replace

from glft_schema.families import rows
from glft_schema.families.page import F, K, T
from glft_schema.families.pages.gemma3 import GEMMA3

# fmt: off
OWN = (
    rows.gemma_scale(0),
    F("use_bidirectional_attention", True, "llama.cpp attends to all tokens"),
)
GEMMA_EMBEDDING = replace(
    GEMMA3, arch="gemma-embedding", architectures=("Gemma3TextModel",),
    tensors=(
        *(row._replace(name=row.name.removeprefix(GEMMA3.body)) for row in GEMMA3.tensors),
        T("", "dense_2", "embd dense_2", required=False),  # modules of sentence-transformers
        T("", "dense_3", "dense_3 embd", required=False),
    ),
    keys=(
        *GEMMA3.keys,
        *(K(f"dense_{number}_feat_{side}", "", None) for number in (2, 3) for side in ("in", "out")),
    ),
    prefix=GEMMA3.body,
    fields=(*(field for field in GEMMA3.fields if field.name not in {own.name for own in OWN}), *OWN),
    defaults={**GEMMA3.defaults, "use_bidirectional_attention": False},
)
