"""RoBERTa and XLM-RoBERTa, and embedding models like them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from glft_schema.families.config import Config
from glft_schema.families.operations import DropRows
from glft_schema.families.page import K, T
from glft_schema.families.pages.bert import BERT, classifier
from glft_schema.tensors.stored_tensor import StoredTensor


def context(config: Config) -> int:
    """Returns the context length, which excludes the positions up to the padding token's id."""
    return int(config["max_position_embeddings"] - config["pad_token_id"] - 1)


def positions(tensors: Mapping[str, StoredTensor], config: Config) -> Config:
    """Returns the number of all positions."""
    padding = config["pad_token_id"] or 1
    return {"max_position_embeddings": tensors["position_embd.weight"].shape[0] + padding + 1, "pad_token_id": padding}


# fmt: off
POSITIONS = T("embeddings.position_embeddings", "position_embd", "embd ctx", DropRows("pad_token_id"))
CONTEXT = K("context_length",                 "", context, "required")
ROBERTA = replace(
    BERT, architectures=("RobertaModel", "RobertaForMaskedLM"), model_type="roberta",
    tensors=tuple(POSITIONS if row.gguf == POSITIONS.gguf else row for row in BERT.tensors),
    keys=tuple(CONTEXT if key.key == CONTEXT.key else key for key in BERT.keys),
    ignored=f"{BERT.ignored} max_position_embeddings",
    vocabularies=("bpe",),
    dropped=(*BERT.dropped, "lm_head.*"),
    prefix="roberta.",
    restored=positions,
    defaults={**BERT.defaults, "max_position_embeddings": 512, "pad_token_id": 1},
)
XLM_ROBERTA = replace(
    ROBERTA, architectures=("XLMRobertaModel", "XLMRobertaForMaskedLM"), model_type="xlm-roberta", vocabularies=("unigram",),
)
HEAD = (
    T("classifier.dense",                     "cls",                      "embd embd",   bias="required"),
    T("classifier.out_proj",                  "cls.output",               "embd labels", bias="required"),
)
ROBERTA_CLASSIFIER = classifier(ROBERTA, "RobertaForSequenceClassification", *HEAD)
XLM_ROBERTA_CLASSIFIER = classifier(XLM_ROBERTA, "XLMRobertaForSequenceClassification", *HEAD)
