"""BERT, and embedding models like it."""

from __future__ import annotations

from dataclasses import replace

from glft_schema.families import rows
from glft_schema.families.config import Config
from glft_schema.families.page import LABELS, F, Family, K, T
from glft_schema.families.requirements import limit
from glft_schema.formats.gguf_names import POOLINGS

MOST_LABELS = 1 << 16  # made for a config that does not name them


def labels(config: Config) -> list[str]:
    """Returns the names of the labels, in order."""
    count = min(config.get("num_labels", 2), MOST_LABELS)
    names = config.get("id2label") or {number: f"LABEL_{number}" for number in range(count)}
    return [names[number] for number in sorted(names, key=int)]


def classifier(base: Family, architecture: str, *head: T) -> Family:
    """Returns the page of a model with a head that classifies texts."""
    return replace(
        base,
        architectures=(architecture,),
        tensors=(
            *(row._replace(name=row.name and base.prefix + row.name) for row in base.tensors if row.gguf[:3] != "cls"),
            *head,
        ),
        keys=(*base.keys, K(LABELS, "own.labels", labels), K("pooling_type", "", POOLINGS.index("rank"))),
        dropped=("*.position_ids",),
        prefix="",
        restored=lambda tensors, config: {
            **base.restored(tensors, config),
            "id2label": (names := dict(enumerate(config.pop("own.labels")))),
            "label2id": {name: number for number, name in names.items()},
        },
    )


# fmt: off
LAYER = "encoder.layer.{i}."
BERT = Family(
    "bert", ("BertModel", "BertForMaskedLM"), "bert",
    tensors=(
        T("embeddings.word_embeddings",       "token_embd",               "embd vocab"),
        T("embeddings.position_embeddings",   "position_embd",            "embd ctx"),
        T("embeddings.token_type_embeddings", "token_types",              "embd types", required=False),
        T("embeddings.LayerNorm",             "token_embd_norm",          "embd", bias="required"),
        *rows.attention("embd", module=LAYER + "attention", names="self.query self.key self.value", output="output.dense",
                        bias="optional"),
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
    ),
    vocabularies=("wordpiece", "unigram"),
    limits=(limit("tokenizer.ggml.token_type_count", "at least 1", lambda n: n["types"] > 0),),
    dropped=("embeddings.position_ids", "pooler.dense.*", "cls.predictions*", "cls.seq_relationship*"),
    prefix="bert.",
    ignored="type_vocab_size output_past *num_labels sbert_ce_default_activation_function sentence_transformers",
    ropes=("default",),
    defaults={"type_vocab_size": 2},
)
BERT_CLASSIFIER = classifier(
    BERT, "BertForSequenceClassification",
    T("bert.pooler.dense",                    "cls",                      "embd embd",   bias="required"),
    T("classifier",                           "cls.output",               "embd labels", bias="required"),
)
