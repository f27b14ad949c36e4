"""BERT, and embedding models like it."""

from __future__ import annotations

from glft_schema.families import rows
from glft_schema.families.page import ANY, F, Family, K, T
from glft_schema.families.requirements import limit

# fmt: off
LAYER = "encoder.layer.{i}."
BERT = Family(
    "bert", ("BertModel", "BertForMaskedLM"), "bert",
    tensors=(
        T("embeddings.word_embeddings",       "token_embd",               "embd vocab"),
        T("embeddings.position_embeddings",   "position_embd",            "embd ctx"),
        T("embeddings.token_type_embeddings", "token_types",              "embd types", required=False),
        T("embeddings.LayerNorm",             "token_embd_norm",          "embd", bias="required"),
        *rows.attention("embd", names=" ".join(f"{LAYER}attention.self.{part}" for part in ("query", "key", "value"))),
        T(LAYER + "attention.output.dense",   "blk.{i}.attn_output",      "embd embd", bias="optional"),
        T(LAYER + "attention.output.LayerNorm", "blk.{i}.attn_output_norm", "embd", bias="required"),
        T(LAYER + "intermediate.dense",       "blk.{i}.ffn_up",           "embd ff", bias="optional"),
        T(LAYER + "output.dense",             "blk.{i}.ffn_down",         "ff embd", bias="optional"),
        T(LAYER + "output.LayerNorm",         "blk.{i}.layer_output_norm", "embd", bias="required"),
        T("", "cls",                          "embd embd",                bias="optional", required=False),
        T("", "cls.output",                   "embd labels",              bias="optional", required=False),
    ),
    keys=(
        *rows.SIZES,
        K("attention.layer_norm_epsilon",     "layer_norm_eps", 1e-12, "required"),
        rows.FILE_TYPE,
        K("attention.causal",                 "", False),
    ),
    fields=(
        F("hidden_act", "gelu"),
        F("position_embedding_type", "absolute", "llama.cpp adds embeddings of positions"),
        F("is_decoder", False, "llama.cpp attends to all tokens"),
        F("type_vocab_size", ANY),  # the rows of a tensor
    ),
    vocabularies=("wordpiece",),
    limits=(limit("tokenizer.ggml.token_type_count", "at least 1", lambda n: n["types"] > 0),),
    dropped=("embeddings.position_ids", "pooler.dense.*", "cls.predictions*", "cls.seq_relationship*"),
    prefix="bert.",
    ropes=("default",),
    defaults={"type_vocab_size": 2},
)
