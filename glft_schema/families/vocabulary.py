"""The vocabulary of a Hugging Face folder as metadata of GGUF.

Each kind of vocabulary has a function that reads its file and writes to a `gguf.GGUFWriter`, which
sets the names and types of the keys. The function returns None if the file has another kind, or
else notes about texts that llama.cpp splits otherwise.

Source: llama.cpp's conversion/base.py and bert.py, and gguf-py's vocab.py, of b11434. llama.cpp
b11739 added ``normalizer.nfc``.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import sha256
from itertools import chain, groupby, repeat
from pathlib import Path
from typing import Any, NamedTuple

from glft_schema.codec.typed_values import Typed
from glft_schema.errors import FormatError, quote
from glft_schema.families.config import Config, read_json
from glft_schema.families.converter import ADVICE
from glft_schema.families.libraries import keys_of, library
from glft_schema.families.pre_tokenizers import PRE_TOKENIZERS, TEXT
from glft_schema.families.sentencepiece_model import BPE, read_model
from glft_schema.formats.gguf_names import ARCHITECTURE, BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED
from glft_schema.storage.opening import read_regular

OF_LLAMA = "bpe with bytes"
TOKENIZER, SENTENCEPIECE, SETTINGS = "tokenizer.json", "tokenizer.model", "tokenizer_config.json"
ADDED, SETTINGS_FILES = "added_tokens.json", ("chat_template.jinja", "chat_template.json", "merges.txt")
TOKENIZER_FILES = (TOKENIZER, SENTENCEPIECE, SETTINGS, ADDED, *SETTINGS_FILES)
MODEL_TYPES = {1: "UNIGRAM", 3: "WORD", 4: "CHAR"}
ADD_SPACE, NO_PREFIX = "tokenizer.ggml.add_space_prefix", {"prepend_scheme": "never"}
ADDED_SCORE, UNUSED_SCORE, UNMERGED_SCORE = -1000.0, -10000.0, -1e9
GLM4_TOKENS = {"eos": "<|endoftext|>", "eot": "<|user|>", "unknown": "<|endoftext|>", "bos": "<|endoftext|>"}
GLM_TOKENS = {"bos": "[gMASK]", "eot": "<|user|>", "unknown": "<|endoftext|>", "eom": "<|observation|>"}
WORDPIECE, UNIGRAM = "WordPiece", "Unigram"
SPLITS = ("Precompiled", "WhitespaceSplit", "Metaspace", "Sequence", None)  # steps of a tokenizer that llama.cpp follows
SPACE = "\u2581"  # SentencePiece's sign for a space
ANY_BYTE = re.compile("<0x[0-9A-Fa-f]{2}>")
LOOKS_SPECIAL = re.compile(r"<pad>|<mask>|<2mass>|\[@BOS@\]|<\|.*\|>|<\uff5c.*\uff5c>|<unused.*>", re.DOTALL)


class Token(NamedTuple):
    """A token as GGUF stores it."""

    text: str
    type: int = NORMAL
    score: float = 0.0


def vocabulary_keys(folder: Path, arch: str, kinds: Sequence[str], config: Config) -> tuple[dict[str, Typed], list[str]]:
    """Returns the keys ``tokenizer.*`` of a folder, and notes about what llama.cpp does otherwise.

    Args:
        folder: the folder.
        arch: of its family.
        kinds: of vocabulary, tried in this order.
        config: of the folder.

    Raises:
        FormatError: if the folder has no vocabulary of these kinds, or llama.cpp has no
            pre-tokenizer for it.
        OptionError: if a library is missing.
        OSError: if a file cannot be read.
    """
    settings = read_json(folder / SETTINGS) if (folder / SETTINGS).is_file() else {}
    writer = library("gguf").GGUFWriter(path=None, arch=arch)
    for kind in kinds:
        file, _, write = KINDS[kind]
        if (folder / file).is_file() and (notes := write(writer, folder, config, settings)) is not None:
            if "type_vocab_size" in config:
                writer.add_token_type_count(config["type_vocab_size"])
            stated = settings.get("add_prefix_space") if OF_LLAMA in kinds else None
            if isinstance(stated, bool):
                writer.kv_data[0].pop(ADD_SPACE, None)
                writer.add_add_space_prefix(stated)
            if OF_LLAMA in kinds and config.get("vocab_size") == 49152:  # small models of Granite
                writer.add_add_bos_token(False)
            return {key: value for key, value in keys_of(writer).items() if key != ARCHITECTURE}, notes
    raise FormatError(
        f"expected a tokenizer ({TOKENIZER} or {SENTENCEPIECE}) for the {arch} family, found none: copy "
        "it from the base model, or take the vocabulary of a GGUF of this model with --like",
        file=str(folder),
    )


def wordpiece(writer: Any, folder: Path, config: Config, settings: Config) -> list[str] | None:
    """WordPiece, with a prefix for words instead of continuations."""
    if read_json(folder / TOKENIZER)["model"].get("type") == UNIGRAM:
        return None
    tokens, tokenizer = json_tokens(folder, config)
    if (type_ := type(tokenizer.model).__name__) != WORDPIECE:
        problem = f"expected a {WORDPIECE} tokenizer for bert, as llama.cpp's converter writes it, found {quote(type_)}"
        raise FormatError(problem, file=str(folder / TOKENIZER))
    words = [token if token.type == CONTROL else token._replace(text=_phantom(token.text)) for token in tokens]
    _add_tokens(writer, "bert", pre_tokenizer(tokenizer, folder), words)
    _add_special(writer, folder, n_vocab=len(words))
    return []


def _phantom(text: str) -> str:
    return text[2:] if text.startswith("##") else SPACE + text


def bpe(writer: Any, folder: Path, config: Config, settings: Config) -> list[str] | None:
    """Byte-level BPE."""
    tokens, tokenizer = json_tokens(folder, config)
    _add_tokens(writer, "gpt2", pre_tokenizer(tokenizer, folder), tokens)
    _add_special(writer, folder, load_merges=True)
    return []


def glm_bpe(
    writer: Any, folder: Path, config: Config, settings: Config, special: Mapping[str, str] = GLM_TOKENS
) -> list[str] | None:
    """Byte-level BPE of GLM, whose special tokens are found by their text."""
    notes, entries = bpe(writer, folder, config, settings), writer.kv_data[0]
    texts = entries["tokenizer.ggml.tokens"].value
    for name, text in special.items():
        if text in texts:
            entries.pop(key := f"tokenizer.ggml.{name}_token_id", None)
            writer.add_uint32(key, texts.index(text))
    return notes


def bpe_with_bytes(writer: Any, folder: Path, config: Config, settings: Config) -> list[str] | None:
    """BPE with tokens for single bytes, which llama.cpp runs as SentencePiece."""
    whole = read_json(folder / TOKENIZER)
    model = whole["model"]
    if model["type"] != "BPE" or not model.get("byte_fallback"):
        return None
    merges = [tuple(pair.split(" ") if isinstance(pair, str) else pair) for pair in model["merges"]]
    ranks = {left + right: rank for rank, (left, right) in reversed([*enumerate(merges)])}
    named = {_content(mark) for name, mark in settings.items() if name.endswith("_token") and not isinstance(mark, bool)}
    tokens = []
    for token in json_tokens(folder, config)[0]:
        type_ = CONTROL if token.text in named else BYTE if ANY_BYTE.fullmatch(token.text) else token.type
        tokens.append(Token(token.text, type_, -ranks.get(token.text, -UNMERGED_SCORE)))
    _add_tokens(writer, "llama", "default", tokens, scores=True)
    _add_special(writer, folder, n_vocab=len(tokens))
    prefix = next((step for step in _steps(whole) if step.get("type") in ("Metaspace", "Prepend")), NO_PREFIX)
    notes = ["scores are minus the ranks of the merges, by which llama.cpp splits texts; its converter writes -1000"]
    if prefix.get("prepend_scheme") == "never":
        writer.add_add_space_prefix(False)
    elif prefix["type"] == "Metaspace":
        where = "begins with one, or follows a special token" if prefix.get("prepend_scheme") == "first" else "begins with one"
        notes.append(f"this tokenizer adds no space to a text that {where}; llama.cpp does")
    if not _merges_are_complete(tokens, merges):
        notes.append(
            "llama.cpp joins any two tokens that form a third, here only some are merged: texts may be split otherwise"
        )
    return notes


def _merges_are_complete(tokens: list[Token], merges: list[tuple[str, str]]) -> bool:
    """Returns whether merges join any tokens that form a third, with one rank for each third."""
    known, pairs = {token.text for token in tokens if token.type == NORMAL}, set(merges)
    formed = [left + right for left, right in merges]
    return len([*groupby(formed)]) == len(set(formed)) and all(
        (text[:i], text[i:]) in pairs for text in known for i in range(1, len(text)) if text[:i] in known and text[i:] in known
    )


def _steps(part: Any) -> Iterator[Config]:
    """Yields a normalizer or pre-tokenizer, or those of a sequence or of a whole tokenizer."""
    part = part or {}
    yield part
    for name in ("normalizer", "pre_tokenizer"):
        yield from _steps(part[name]) if name in part else ()
    for name in ("normalizers", "pretokenizers"):
        for step in part.get(name, ()):
            yield from _steps(step)


def _content(mark: Any) -> Any:
    """Returns the text of a special token, which may be stored with flags."""
    return mark.get("content") if isinstance(mark, dict) else mark


def sentencepiece(
    writer: Any, folder: Path, config: Config, settings: Config, phi3: bool = False, prefix: bool = True
) -> list[str] | None:
    """SentencePiece with added tokens. For phi3, also those of tokenizer.json, typed as marked."""
    model = read_model(read_regular(folder / SENTENCEPIECE))
    if model.model_type != BPE:
        problem = "expected pieces joined by their scores (model_type BPE), as llama.cpp joins them, found model_type"
        raise FormatError(f"{problem} {MODEL_TYPES.get(model.model_type, model.model_type)}", file=str(folder / SENTENCEPIECE))
    size = config.get("vocab_size", len(model.pieces))
    tokens = [Token(f"[PAD{number}]", UNUSED, UNUSED_SCORE) for number in range(size)]
    for number, piece in enumerate(model.pieces[:size]):
        text = piece.text.replace(SPACE, " ") if piece.type == USER_DEFINED else piece.text
        tokens[number] = Token(text, piece.type, piece.score)
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
    if not (prefix and model.dummy_prefix):
        writer.add_add_space_prefix(False)
    return ["this tokenizer replaces characters or spaces of a text; llama.cpp does not"] if model.normalizes else []


def unigram(writer: Any, folder: Path, config: Config, settings: Config) -> list[str] | None:
    """Unigram, with the characters that SentencePiece replaces."""
    whole = read_json(folder / TOKENIZER)
    model, steps = whole["model"], {step.get("type"): step for step in _steps(whole)}
    if model["type"] != UNIGRAM or model.get("byte_fallback"):
        return None
    tokens, tokenizer = json_tokens(folder, config)
    scores = chain((score for _, score in model["vocab"]), repeat(UNUSED_SCORE))
    tokens = [token._replace(score=score) for token, score in zip(tokens, scores, strict=False)]
    tokens[model["unk_id"]] = tokens[model["unk_id"]]._replace(type=UNKNOWN)
    _add_tokens(writer, "t5", "default", tokens, scores=True)
    _add_special(writer, folder, n_vocab=len(tokens))
    space = steps.get("Metaspace", NO_PREFIX)
    writer.add_add_space_prefix(space.get("prepend_scheme") != "never" and space.get("add_prefix_space", True))
    writer.add_remove_extra_whitespaces("WhitespaceSplit" in steps)
    if "Precompiled" in steps:
        writer.add_precompiled_charsmap(b64decode(steps["Precompiled"]["precompiled_charsmap"]))
    with_ends, plain = (tokenizer.encode("a", add_special_tokens=flag).ids for flag in (True, False))
    start = next(i for i in range(len(with_ends)) if with_ends[i : i + len(plain)] == plain)
    before, after = with_ends[:start], with_ends[start + len(plain) :]
    ids = {"bos": before[:1], "eos": after[-1:], "unknown": [model["unk_id"]]}
    for key in ("add_bos_token", "add_eos_token", *(f"{name}_token_id" for name, found in ids.items() if found)):
        writer.kv_data[0].pop(f"tokenizer.ggml.{key}", None)  # llama.cpp and gguf assume others
    writer.add_add_bos_token(bool(before))
    writer.add_add_eos_token(bool(after))
    for name, found in ids.items():
        for number in found:
            writer.add_uint32(f"tokenizer.ggml.{name}_token_id", number)
    others = [type_ for type_ in steps if type_ not in SPLITS]
    return [f"this tokenizer has the steps {', '.join(others)}; llama.cpp does not"] if others else []


class VocabularyFile(NamedTuple):
    """A kind of vocabulary.

    Attributes:
        file: its file in a folder.
        model: ``tokenizer.ggml.model``.
        write: adds its keys to a `gguf.GGUFWriter`. Returns notes, or None for another kind.
    """

    file: str
    model: str
    write: Callable[[Any, Path, Config, Config], list[str] | None]


KINDS = {
    "sentencepiece": VocabularyFile(SENTENCEPIECE, "llama", sentencepiece),
    "gemma sentencepiece": VocabularyFile(SENTENCEPIECE, "llama", partial(sentencepiece, prefix=False)),
    "phi3 sentencepiece": VocabularyFile(SENTENCEPIECE, "llama", partial(sentencepiece, phi3=True)),
    "bpe with bytes": VocabularyFile(TOKENIZER, "llama", bpe_with_bytes),
    "bpe": VocabularyFile(TOKENIZER, "gpt2", bpe),
    "glm bpe": VocabularyFile(TOKENIZER, "gpt2", glm_bpe),
    "glm4 bpe": VocabularyFile(TOKENIZER, "gpt2", partial(glm_bpe, special=GLM4_TOKENS)),
    "wordpiece": VocabularyFile(TOKENIZER, "bert", wordpiece),
    "unigram": VocabularyFile(TOKENIZER, "t5", unigram),
}


def json_tokens(folder: Path, config: Config) -> tuple[list[Token], Any]:
    """Returns the tokens of a tokenizer.json, and the tokenizer.

    Raises FormatError if there are more tokens than the config allows.
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
            if not (added[number].normalized or ANY_BYTE.fullmatch(text)):  # llama.cpp expects normalized texts
                text = tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids, skip_special_tokens=False)
            tokens.append(_added_token(text, added[number].special))
    return tokens, tokenizer


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
        for step in _steps(read_json(folder / TOKENIZER)):
            for key, value in _normalizer(step):
                writer.kv_data[0].pop(key, None)  # newer versions of gguf write it
                writer.add_bool(key, value)


def _normalizer(step: Config) -> Iterator[tuple[str, bool]]:
    """Yields the keys of a normalizer."""
    type_ = step.get("type")
    for flag, kind in (("lowercase", "Lowercase"), ("strip_accents", "StripAccents"), ("nfc", "NFC")):
        value = True if type_ == kind else step.get(flag) if type_ == "BertNormalizer" else None
        if value is not None:
            yield f"tokenizer.ggml.normalizer.{flag}", value
