"""The vocabulary in metadata of GGUF as a tokenizer of transformers: the inverse of `vocabulary`.

The tokenizer splits texts as llama.cpp does, by the tokens, scores or merges, and the rules of
``tokenizer.ggml.pre``. Parts of a tokenizer that GGUF does not store are missing, as they are in
llama.cpp. ``tokenizer.ggml.normalizer.nfc`` is applied to BPE, which llama.cpp does not do: b11739
reads the key, but normalizes texts for Unigram only.

Source: llama.cpp's src/llama-vocab.cpp, compared with that of xllamacpp 2026.10.11549.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from glft_schema.errors import FormatError, MetadataWarning, quote, warn
from glft_schema.families.libraries import library
from glft_schema.families.pages.every_model import DEFAULT_IDS, PHI3_NAMES, PHI3_TOKENS
from glft_schema.families.pre_tokenizers import BEGINNING, IGNORE_MERGES, RULES
from glft_schema.families.vocabulary import SPACE
from glft_schema.formats.chat_templates import TEMPLATE
from glft_schema.formats.gguf_names import ARCHITECTURE, CONTROL, NORMAL, TOKENIZER, UNKNOWN, USER_DEFINED

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
ALWAYS_CONTROL = (  # whatever type a file gives them
    "<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> <|endoftext|> </s> <|eom_id|> <EOT> "
    "_<EOT> [EOT] [EOS] <|end_of_text|> <end_of_utterance> <eos> <turn|> <|tool_response> "
    "<\uff5cend\u2581of\u2581sentence\uff5c> [e~["
)
ADVICE = "take the tokenizer of the original folder (tokenizer= or --tokenizer)"
PROBES = ("Hello, world! It's 2024.\n\n", "  na\u00efve\tcaf\u00e9 \u6f22\u5b57 \U0001f680")


def begins_with_bos(metadata: Mapping[str, Any]) -> bool:
    """Returns whether the tokenizer of a GGUF model begins texts with a BOS token."""
    kind, pre = (metadata.get(TOKENIZER + key) for key in ("model", "pre"))
    return bool(metadata.get(TOKENIZER + "add_bos_token", kind in WITH_BOS or (kind == "gpt2" and pre in BEGINNING.split())))


def tokenizer_of(metadata: Mapping[str, Any]) -> Any:
    """Returns the tokenizer of a GGUF model.

    Raises:
        FormatError: if a key is missing, llama.cpp's rules for the vocabulary are not known, the
            number of a special token is out of range, or two tokens are equal.
        Exception: from transformers or tokenizers, for an invalid vocabulary.

    Warns:
        MetadataWarning: if some texts are not split as in llama.cpp.
    """
    for key in ("model", "tokens", *(["merges"] if metadata.get(TOKENIZER + "model") == "gpt2" else [])):
        if TOKENIZER + key not in metadata:
            raise FormatError("expected a vocabulary, found none", f"metadata -> {TOKENIZER}{key}")
    kind, tokens = metadata[TOKENIZER + "model"], list(metadata[TOKENIZER + "tokens"])
    defaults = DEFAULT_IDS[kind] if kind in ("llama", "t5") else {}
    ids = {name: id_ for name, key in SPECIAL.items() if (id_ := metadata.get(TOKENIZER + key, defaults.get(key))) is not None}
    settings: dict[str, Any] = {name: _token(tokens, number, SPECIAL[name]) for name, number in ids.items()}
    if context := metadata.get(f"{metadata.get(ARCHITECTURE)}.context_length"):
        settings["model_max_length"] = context
    if TEMPLATE in metadata:
        settings["chat_template"] = metadata[TEMPLATE]
    if kind == "bert":
        tokenizer = _wordpiece(tokens, metadata, settings)
    else:
        settings |= {
            "add_bos_token": begins_with_bos(metadata),
            "add_eos_token": metadata.get(TOKENIZER + "add_eos_token", kind == "t5"),
        }
        backend = _backend(kind, tokens, metadata)
        tokenizer = library("transformers").PreTrainedTokenizerFast(tokenizer_object=backend, **settings)
    found = {name: getattr(tokenizer, f"{name}_id") for name in ids}
    if len(tokenizer) != len(tokens) or found != ids:
        raise FormatError(
            f"expected {len(tokens)} tokens and {ids}, found {len(tokenizer)} and {found}", f"metadata -> {TOKENIZER}tokens"
        )
    keeps_texts = kind not in ("bert", "t5")
    if keeps_texts and any(tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) != text for text in PROBES):
        warn("the tokenizer loses characters of some texts, for which it has no tokens", MetadataWarning)
    return tokenizer


def _token(tokens: list[str], number: int, key: str) -> str:
    if not 0 <= number < len(tokens):
        problem = f"expected fewer than {len(tokens)}, the number of tokens, found {quote(number)}"
        raise FormatError(problem, f"metadata -> {TOKENIZER}{key}")
    return tokens[number]


def _backend(kind: str, tokens: list[str], metadata: Mapping[str, Any]) -> Any:
    """Returns a tokenizer of the library tokenizers, which finds special tokens first."""
    backends = {"gpt2": _byte_level, "llama": _sentencepiece, "t5": _unigram}
    if kind not in backends:
        problem = f"expected {', '.join(backends)} or bert, found {quote(kind)}: {ADVICE}"
        raise FormatError(problem, f"metadata -> {TOKENIZER}model")
    backend = backends[kind]({text: number for number, text in enumerate(tokens)}, metadata)
    types = metadata.get(TOKENIZER + "token_type", [NORMAL] * len(tokens))
    is_phi3 = any(name in str(metadata.get("general.name")).lower() for name in PHI3_NAMES)
    added = library("tokenizers").AddedToken
    for text, type_ in zip(tokens, types, strict=True):
        if type_ in (CONTROL, UNKNOWN, USER_DEFINED) or text in ALWAYS_CONTROL.split():
            strips = is_phi3 and text not in PHI3_TOKENS[1:]
            backend.add_tokens([added(text, special=type_ != USER_DEFINED, normalized=False, rstrip=strips)])
    if metadata.get(TOKENIZER + "normalizer.nfc"):
        steps = library("tokenizers").normalizers
        backend.normalizer = steps.Sequence([steps.NFC(), *filter(None, [backend.normalizer])])
    return backend


def _byte_level(vocab: dict[str, int], metadata: Mapping[str, Any]) -> Any:
    """Returns byte-level BPE, with the rules of the pre-tokenizer that the metadata names."""
    library_, pre = library("tokenizers"), metadata.get(TOKENIZER + "pre", "default")
    rules = next((rules for names, rules in RULES.items() if pre in names.split()), None)
    if rules is None:
        problem = f"expected a pre-tokenizer whose rules are known, found {quote(pre)}: {ADVICE}"
        raise FormatError(problem, f"metadata -> {TOKENIZER}pre")
    pairs = dict.fromkeys(tuple(text.split(" ", 1)) for text in metadata.get(TOKENIZER + "merges", ()))
    merges = [pair for pair in pairs if {*pair, "".join(pair)} <= vocab.keys()]  # others make added tokens, found before
    backend = library_.Tokenizer(library_.models.BPE(vocab=vocab, merges=merges, ignore_merges=pre in IGNORE_MERGES.split()))
    steps = library_.pre_tokenizers
    splits = [steps.Split(library_.Regex(rule), "isolated") for rule in rules]
    backend.pre_tokenizer = steps.Sequence([*splits, steps.ByteLevel(add_prefix_space=False, use_regex=False)])
    backend.decoder = library_.decoders.ByteLevel()
    return backend


def _sentencepiece(vocab: dict[str, int], metadata: Mapping[str, Any]) -> Any:
    """Returns BPE with tokens for bytes: any two tokens that form a third merge, by its score."""
    library_, scores = library("tokenizers"), list(metadata.get(TOKENIZER + "scores", [0.0] * len(vocab)))
    merges = [(text[:i], text[i:]) for text in vocab for i in range(1, len(text)) if text[:i] in vocab and text[i:] in vocab]
    plain = {text for text, type_ in zip(vocab, metadata.get(TOKENIZER + "token_type", scores), strict=True) if type_ == NORMAL}
    formed = {left + right for left, right in merges} & plain
    if len({scores[vocab[text]] for text in formed}) < len(formed) or not set().union(*plain) <= vocab.keys():
        problem = "tokens of equal scores, or with characters that are no tokens: llama.cpp may split texts otherwise"
        warn(problem, MetadataWarning)
    merges.sort(key=lambda pair: -scores[vocab[pair[0] + pair[1]]])
    backend = library_.Tokenizer(library_.models.BPE(vocab=vocab, merges=merges, byte_fallback=True))
    prefix = metadata.get(TOKENIZER + "add_space_prefix", True)
    normalizers, decoders = library_.normalizers, library_.decoders
    backend.normalizer = normalizers.Sequence([*[normalizers.Prepend(SPACE)] * prefix, normalizers.Replace(" ", SPACE)])
    strip = [decoders.Strip(" ", 1, 0)] * prefix
    backend.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    return backend


def _unigram(vocab: dict[str, int], metadata: Mapping[str, Any]) -> Any:
    """Returns Unigram, with the characters that SentencePiece replaces."""
    library_, scores = library("tokenizers"), list(metadata.get(TOKENIZER + "scores", [0.0] * len(vocab)))
    unknown = metadata.get(TOKENIZER + "unknown_token_id", DEFAULT_IDS["t5"]["unknown_token_id"])
    backend = library_.Tokenizer(library_.models.Unigram([*zip(vocab, scores, strict=True)], unknown, False))
    if charsmap := bytes(metadata.get(TOKENIZER + "precompiled_charsmap", ())):
        backend.normalizer = library_.normalizers.Precompiled(charsmap)
    steps, scheme = library_.pre_tokenizers, "always" if metadata.get(TOKENIZER + "add_space_prefix") else "never"
    words = [steps.WhitespaceSplit()] if metadata.get(TOKENIZER + "remove_extra_whitespaces") else []
    backend.pre_tokenizer = steps.Sequence([*words, steps.Metaspace(SPACE, scheme)])
    backend.decoder = library_.decoders.Metaspace(SPACE, scheme)
    return backend


def _wordpiece(tokens: list[str], metadata: Mapping[str, Any], settings: dict[str, Any]) -> Any:
    """Returns a WordPiece tokenizer, which marks continuations with ``##`` instead of words."""
    types = metadata.get(TOKENIZER + "token_type", [NORMAL] * len(tokens))
    special = {settings.get(name) for name in SPECIAL}  # whatever type a file gives them, if any
    words = [text if type_ == CONTROL or text in special else _word(text) for text, type_ in zip(tokens, types, strict=True)]
    normalizer = {"do_lower_case": "lowercase", "strip_accents": "strip_accents"}
    settings |= {name: metadata.get(f"{TOKENIZER}normalizer.{key}") for name, key in normalizer.items()}
    if settings["do_lower_case"] is None:
        settings["do_lower_case"] = True
    for name, instead in (("cls_token", "bos_token"), ("sep_token", "eos_token")):
        settings.setdefault(name, settings.get(instead))
    return library("transformers").BertTokenizer(vocab={word: number for number, word in enumerate(words)}, **settings)


def _word(text: str) -> str:
    return text.removeprefix(SPACE) if text.startswith(SPACE) else "##" + text
