"""Tokenizers of GGUF files split texts as llama.cpp does, or a warning or an error says so."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import glft_schema as glft
from glft_schema.families.pages.every_model import KNOWN_PRE
from glft_schema.families.pre_tokenizers import RULES
from glft_schema.families.sentencepiece_model import read_model
from glft_schema.families.tokenizers import tokenizer_of
from tests.families.test_vocabulary import SPECIAL_TEXTS, TEXTS, trained
from tests.oracles.llama_vocabulary import LlamaVocabulary
from tests.tools.depth import some_by_default

pytest.importorskip("transformers")
CHARACTERS = [
    *"aZsTlLd09 \n\r\t'\".,:(]_/\\|$+<^`~#", "\u00e9", "\u00df", "\u0436", "\u6f22", "\u304b", "\u0621", "\u0928", "\u093f",
    "\u0967", "\u00bd", "\u20ac", "\u2026", "\u3002", "\u201c", "\u00a0", "\u3000", "\u2028", "\u0085", "\u0301", "\u200d",
    "\ufe0f", "\U0001f680", "\u212a", "\uff01", "\uff5e", "\u0800", "\ua7d1", "\U00010400", "\U0001d400", "\u00ad", "\x01",
]  # fmt: skip
WORDS = [" ", "'s", "'LL", "'\u017f", "abc", "Word", "12345", "  ", "\n", "\r\n", "\u6f22\u5b57", "~", "...", "$5", "a\u0301"]
CONTROLS = ["<s>", "</s>", "<|im_start|>", "  "]
WHOLE = ["abc", "Word"]  # tokens that no merge makes
NAMES = [name for names in RULES for name in names.split()]
OTHERS = [
    "afmoe",
    "chameleon",
    "kimi-k2",
    "superbpe",
    "jais-2",
    "youtu",
    "exaone-moe",
    "tiny_aya",
    "cohere2moe",
    "gemma4",
]


def save(path: Path, kind: str, tokens: list[str], types: list[int], **more: Any) -> dict[str, Any]:
    """Writes a GGUF file with a vocabulary, and returns its metadata."""
    entries: dict[str, Any] = {"general.architecture": "llama", "llama.context_length": 64, "llama.embedding_length": 32}
    entries |= {"llama.block_count": 1, "llama.attention.head_count": 1, "llama.feed_forward_length": 32}
    entries |= {"llama.attention.layer_norm_rms_epsilon": glft.Typed(1e-5, "float32"), "tokenizer.ggml.model": kind}
    entries |= {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": glft.Typed(types, "array[int32]")}
    entries |= {"general.name" if key == "name" else f"tokenizer.ggml.{key}": value for key, value in more.items()}
    glft.save_file({}, path, metadata=entries, rules=())
    return glft.open(path).metadata


@pytest.fixture(scope="module")
def joins() -> tuple[list[str], list[str]]:
    """Returns tokens and merges that join any two characters, so that each split shows."""
    tokenizers = pytest.importorskip("tokenizers")
    split = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    spelled = ["".join(part for part, _ in split.pre_tokenize_str(character)) for character in CHARACTERS]
    merges = dict.fromkeys((text[:i], text[i]) for text in spelled for i in range(1, len(text)))
    pairs = list(itertools.product(spelled, spelled))
    random.Random(1).shuffle(pairs)
    merges |= dict.fromkeys(pairs)
    tokens = dict.fromkeys([*CONTROLS, *WHOLE, *sorted(split.alphabet()), *("".join(pair) for pair in merges)])
    return list(tokens), [" ".join(pair) for pair in merges]


def random_texts(count: int) -> Iterator[str]:
    draw = random.Random(2)
    for i in range(count):
        known = CHARACTERS if i % 2 else [*WORDS, *CONTROLS]
        yield "".join(draw.choice(known) * draw.choice((1, 1, 1, 2, 3)) for _ in range(draw.randint(1, 9)))


def differences(path: Path, texts: list[str], metadata: Any) -> dict[str, tuple[list[int], list[int]]]:
    """Returns the texts that llama.cpp and our tokenizer split differently."""
    tokenizer, found = tokenizer_of(metadata), {}
    with LlamaVocabulary(path) as vocabulary:
        assert (vocabulary.size, vocabulary.bos, vocabulary.eos) == (
            len(tokenizer), tokenizer.bos_token_id, tokenizer.eos_token_id,
        )  # fmt: skip
        for text in texts:
            for special in (True, False):
                ours = tokenizer(text, add_special_tokens=False, split_special_tokens=not special).input_ids
                if (theirs := vocabulary.tokens(text, special=special)) != ours:
                    found[text] = theirs, ours
            if text and vocabulary.tokens(text, ends=True) != tokenizer(text).input_ids:
                found[f"whole {text}"] = vocabulary.tokens(text, ends=True), tokenizer(text).input_ids
    return found


@pytest.mark.parametrize("pre", some_by_default([*NAMES, None], 4))
def test_pre_tokenizers(pre: str | None, tmp_path: Path, joins: tuple[list[str], list[str]]) -> None:
    path, (tokens, merges) = tmp_path / "model.gguf", joins
    types = [3, 3, 3, 4, *[1] * (len(tokens) - len(CONTROLS))]
    more = {"merges": merges, "bos_token_id": 0, "eos_token_id": 1} | ({} if pre is None else {"pre": pre})
    count = 100 if any(names.split()[0] == pre for names in RULES) else 40  # others have the same rules
    assert differences(path, list(random_texts(count)), save(path, "gpt2", tokens, types, **more)) == {}


def test_pre_tokenizers_without_rules(tmp_path: Path, joins: tuple[list[str], list[str]]) -> None:
    """Each name that llama.cpp knows has rules or is refused."""
    assert set(NAMES) <= KNOWN_PRE
    assert KNOWN_PRE - set(NAMES) >= set(OTHERS)
    tokens, merges = joins
    for pre in sorted(KNOWN_PRE - set(NAMES)):
        metadata = save(tmp_path / "model.gguf", "gpt2", tokens, [1] * len(tokens), merges=merges, pre=pre)
        with pytest.raises(glft.FormatError, match=f"pre.*expected a pre-tokenizer whose rules are known, found '{pre}'"):
            tokenizer_of(metadata)


def test_nfc(tmp_path: Path, joins: tuple[list[str], list[str]]) -> None:
    """llama.cpp b11739 reads the key, and normalizes texts for Unigram only."""
    tokens, merges = joins
    plain, normalizing = (
        tokenizer_of(save(tmp_path / "model.gguf", "gpt2", tokens, [1] * len(tokens), merges=merges, **{"normalizer.nfc": nfc}))
        for nfc in (False, True)
    )
    composed, decomposed, kept = "\u00e9\u1e69", "e\u0301s\u0307\u0323", "\ufb01"
    assert normalizing.encode(decomposed) == normalizing.encode(composed) == plain.encode(composed) != plain.encode(decomposed)
    assert normalizing.encode(kept) == plain.encode(kept)


# fmt: off
VARIANTS: dict[str, dict[str, Any]] = {
    "plain":     {},
    "no space":  {"add_space_prefix": False},
    "no bos":    {"add_bos_token": False, "add_eos_token": True},
    "phi-3":     {"name": "A Phi-3 model"},
    "defaults":  {"bos_token_id": None, "eos_token_id": None, "unknown_token_id": None},
}
# fmt: on


@pytest.mark.parametrize("variant", VARIANTS)
def test_sentencepiece(variant: str, tmp_path: Path) -> None:
    pieces = read_model(trained("bpe", user_defined_symbols="<sep>,[INST],<|endoftext|>")).pieces
    types = [{"[INST]": 3, "<|endoftext|>": 1}.get(piece.text, piece.type) for piece in pieces]
    scores = glft.Typed([piece.score for piece in pieces], "array[float32]")
    more = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0} | VARIANTS[variant]
    more = {"scores": scores} | {key: value for key, value in more.items() if value is not None}
    path = tmp_path / "model.gguf"
    metadata = save(path, "llama", [piece.text for piece in pieces], types, **more)
    texts = [*TEXTS, *SPECIAL_TEXTS, "[INST]  a <sep> b</s>  c<|endoftext|> d", *random_texts(200)]
    assert differences(path, texts, metadata) == {}


def test_equal_scores(tmp_path: Path) -> None:
    """Those of llama.cpp's converter for a tokenizer.json."""
    pieces = read_model(trained("bpe")).pieces
    scores = glft.Typed([-1000.0] * len(pieces), "array[float32]")
    tokens, types = [piece.text for piece in pieces], [piece.type for piece in pieces]
    with pytest.warns(glft.errors.MetadataWarning, match="tokens of equal scores, or with characters that are no tokens"):
        tokenizer_of(save(tmp_path / "model.gguf", "llama", tokens, types, scores=scores))


def test_tokens_of_few_characters(tmp_path: Path) -> None:
    metadata = save(tmp_path / "model.gguf", "gpt2", ["a", "b", "ab"], [1] * 3, merges=["a b"])
    with pytest.warns(glft.errors.MetadataWarning, match="the tokenizer loses characters of some texts"):
        tokenizer_of(metadata)


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("model", "rwkv", "model.*expected gpt2, llama, t5 or bert, found 'rwkv'"),
        ("tokens", ["a", "b", "a"], "tokens.*expected 3 tokens and .*, found 2"),
        ("bos_token_id", 3, "bos_token_id.*expected fewer than 3, the number of tokens, found 3"),
    ],
)
def test_what_is_refused(key: str, value: Any, problem: str, tmp_path: Path) -> None:
    metadata = dict(save(tmp_path / "model.gguf", "gpt2", ["a", "b", "ab"], [1] * 3, merges=["a b"]))
    with pytest.raises(glft.FormatError, match=problem):
        tokenizer_of(metadata | {f"tokenizer.ggml.{key}": value})
