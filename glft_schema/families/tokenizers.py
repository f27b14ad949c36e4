"""The vocabulary in metadata of GGUF as a tokenizer of transformers: the inverse of `vocabulary`.

transformers converts the values of the keys, except for WordPiece.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from glft_schema.errors import FormatError, quote
from glft_schema.families.libraries import library
from glft_schema.families.vocabulary import ARCHITECTURE, CONTROL, SPACE
from glft_schema.formats.chat_templates import TEMPLATE

KEYS = "tokenizer.ggml."
FIELDS = {  # field of transformers' conversion -> key
    "tokenizer_type": "model",
    "pre_tokenizer_type": "pre",
    "tokens": "tokens",
    "scores": "scores",
    "token_type": "token_type",
    "merges": "merges",
    "precompiled_charsmap": "precompiled_charsmap",
    "bos_token_id": "bos_token_id",
    "eos_token_id": "eos_token_id",
    "unk_token_id": "unknown_token_id",
    "pad_token_id": "padding_token_id",
    "add_prefix_space": "add_space_prefix",
}
SPECIAL = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
    "sep_token": "seperator_token_id",  # the spelling of the key
    "cls_token": "cls_token_id",
    "mask_token": "mask_token_id",
}
WITH_BOS = ("llama", "bert")  # kinds of vocabulary that begin texts with a token, unless a key says otherwise


def begins_with_bos(metadata: Mapping[str, Any]) -> bool:
    """Returns whether the tokenizer of a GGUF model begins texts with a BOS token."""
    return bool(metadata.get(KEYS + "add_bos_token", metadata.get(KEYS + "model") in WITH_BOS))


def tokenizer_of(metadata: Mapping[str, Any]) -> Any:
    """Returns the tokenizer of a GGUF model.

    Raises:
        FormatError: if a key is missing, or the number of a special token is out of range.
        Exception: from transformers, for a vocabulary that it does not support.
    """
    found = {field: value for field, key in FIELDS.items() if (value := metadata.get(KEYS + key)) is not None}
    for field in ("tokenizer_type", "tokens", *(["merges"] if found.get("tokenizer_type") == "gpt2" else [])):
        if field not in found:
            raise FormatError("expected a vocabulary, found none", f"metadata -> {KEYS}{FIELDS[field]}")
    tokens = found["tokens"] = list(found["tokens"])
    found.setdefault("scores", [0.0] * len(tokens))
    found |= {field: list(found[field]) for field in ("scores", "token_type", "merges") if field in found}
    ids = {name: metadata[KEYS + key] for name, key in SPECIAL.items() if KEYS + key in metadata}
    settings: dict[str, Any] = {name: _token(tokens, number, SPECIAL[name]) for name, number in ids.items()}
    if context := metadata.get(f"{metadata.get(ARCHITECTURE)}.context_length"):
        settings["model_max_length"] = context
    if TEMPLATE in metadata:
        settings["chat_template"] = metadata[TEMPLATE]
    if found["tokenizer_type"] == "bert":
        return _wordpiece(found, metadata, settings)
    for name in ("add_bos_token", "add_eos_token"):
        if KEYS + name in metadata:
            settings[name] = metadata[KEYS + name]
    settings.setdefault("add_bos_token", begins_with_bos(metadata))
    return _convert(metadata.get(ARCHITECTURE), found, settings)


def _token(tokens: list[str], number: int, key: str) -> str:
    if not 0 <= number < len(tokens):
        problem = f"expected fewer than {len(tokens)}, the number of tokens, found {quote(number)}"
        raise FormatError(problem, f"metadata -> {KEYS}{key}")
    return tokens[number]


def _convert(architecture: Any, found: dict[str, Any], settings: dict[str, Any]) -> Any:
    """Returns a tokenizer that transformers converts."""
    try:
        backend, more = _conversion()(architecture, found)
    except ValueError:  # an architecture that it does not know
        backend, more = _conversion()(found["tokenizer_type"], found)  # llama or gpt2, which are architectures, too
    return library("transformers").PreTrainedTokenizerFast(tokenizer_object=backend, **{**settings, **more})


@cache
def _conversion() -> Callable[[Any, Any], tuple[Any, dict[str, Any]]]:
    """Returns transformers' function from a vocabulary to a backend and more settings."""
    try:
        module = importlib.import_module("transformers.integrations.gguf")
    except ImportError:
        module = importlib.import_module("transformers.integrations.ggml")  # of older versions
    return module.convert_gguf_tokenizer  # type: ignore[no-any-return]


def _wordpiece(found: dict[str, Any], metadata: Mapping[str, Any], settings: dict[str, Any]) -> Any:
    """Returns a WordPiece tokenizer, which marks continuations with ``##`` instead of words."""
    types = found.get("token_type", [0] * len(found["tokens"]))
    words = [text if type_ == CONTROL else _word(text) for text, type_ in zip(found["tokens"], types, strict=True)]
    normalizer = {"do_lower_case": "lowercase", "strip_accents": "strip_accents"}
    settings |= {name: metadata.get(f"{KEYS}normalizer.{key}") for name, key in normalizer.items()}
    if settings["do_lower_case"] is None:
        settings["do_lower_case"] = True
    for name, instead in (("cls_token", "bos_token"), ("sep_token", "eos_token")):
        settings.setdefault(name, settings.get(instead))
    return library("transformers").BertTokenizer(vocab={word: number for number, word in enumerate(words)}, **settings)


def _word(text: str) -> str:
    return text.removeprefix(SPACE) if text.startswith(SPACE) else "##" + text
