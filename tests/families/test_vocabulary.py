"""Vocabularies of folders: llama.cpp splits texts as the tokenizer does, or a note says so."""

from __future__ import annotations

import functools
import io
import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import glft_schema as glft
from glft_schema.families.sentencepiece_model import read_model
from tests.families.tiny_folders import TOKENIZERS, edit_json, edit_tensors, make_folder
from tests.families.tiny_models import TinyModel
from tests.oracles.llama_model import LlamaModel
from tests.oracles.llama_vocabulary import LlamaVocabulary

PAGES = sorted((Path(__file__).parents[2] / "docs" / "guides").glob("*.md"))
OTHER_SCRIPTS = [
    "Übermaß naïve café",
    "漢字かな交じり文の例",
    "你好\uff0c世界\uff01",
    "Привет мир",
    "مرحبا",
    "हिन्दी",
    "12 345",
    "😀🚀",
]
TEXTS = [
    *(line for line in PAGES[0].read_text().splitlines()[::3] if line[:1].strip()),
    *OTHER_SCRIPTS,
    "two  spaces ", "1234567 3.14", "\n\nlines\n", "tab\there",
    "a\u0301e\u0300 \ufb01", "\U0001f468\u200d\U0001f469 \U0001f999", "aaaaaaa",
]  # fmt: skip
SPECIAL_TEXTS = ["<s>", "x<s> a</s>b", "<unk>y", "[INST] a [/INST]b<sep>c", " a", "  b"]
SPACES = [
    {"type": "Prepend", "prepend": "\u2581"},
    {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
]
SIZE = 900


@functools.cache
def trained(model_type: str, **options: Any) -> bytes:
    """Returns a tokenizer.model, trained on pages of the documentation."""
    spm, stored = pytest.importorskip("sentencepiece"), io.BytesIO()
    lines = [line for page in PAGES[:8] for line in page.read_text().splitlines()] + OTHER_SCRIPTS * 20
    options = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "byte_fallback": True} | options
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=stored, vocab_size=SIZE, model_type=model_type, minloglevel=2, **options
    )
    return stored.getvalue()


def folder_of(parent: Path, **files: str | bytes) -> Path:
    """Writes a folder of llama with other tokenizer files, by their names with ``_`` for a dot."""
    folder = make_folder(parent, "tiny-llama")
    (folder / "tokenizer.model").unlink()
    edit_json(folder / "config.json", vocab_size=SIZE)
    edit_tensors(folder, {name: torch.zeros(SIZE, 64) for name in ("model.embed_tokens.weight", "lm_head.weight")})
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": "</s>", "add_prefix_space": null}')
    for name, content in files.items():
        path = folder / f"tokenizer.{name}"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


@functools.cache
def fresh() -> str:
    """Returns the tokenizer.json that transformers saves for a tokenizer.model."""
    import tempfile

    transformers = pytest.importorskip("transformers")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "tokenizer.model").write_bytes(trained("bpe"))
        (Path(folder) / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer"}')
        transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
        return (Path(folder) / "tokenizer.json").read_text()


def prepending(whole: dict[str, Any]) -> None:
    """Gives a tokenizer the normalizer of older versions, and added tokens in its vocabulary."""
    whole["normalizer"], whole["pre_tokenizer"] = {"type": "Sequence", "normalizers": SPACES}, None
    vocab = whole["model"]["vocab"]
    for number, text in ((SIZE - 1, "[INST]"), (SIZE - 2, "<sep>")):
        (old,) = (text for text, i in vocab.items() if i == number)
        del vocab[old]
        vocab[text] = number
        whole["model"]["merges"] = [pair for pair in whole["model"]["merges"] if old not in (*pair, "".join(pair))]
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        whole["added_tokens"].append({"id": number, "content": text, **flags, "special": text == "[INST]"})


def no_prefix(whole: dict[str, Any]) -> None:
    whole["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": False}


def some_merges(whole: dict[str, Any]) -> None:
    prepending(whole)
    formed: set[str] = set()
    merges, whole["model"]["merges"] = whole["model"]["merges"], []
    for pair in merges:
        if "".join(pair) not in formed:
            formed.add("".join(pair))
            whole["model"]["merges"].append(" ".join(pair))  # as older files have them


# fmt: off
CASES: dict[str, tuple[Callable[[dict[str, Any]], None], list[str], list[str]]] = {  # change, more texts, notes
    "fresh":   (lambda whole: None, [], ["no space to a text that begins with one, or follows a special token"]),
    "older":   (prepending, SPECIAL_TEXTS, []),
    "no space": (no_prefix, SPECIAL_TEXTS, []),
    "some merges": (some_merges, SPECIAL_TEXTS, ["joins any two tokens that form a third, here only some are merged"]),
}
# fmt: on


@pytest.mark.parametrize("case", CASES)
def test_scores_are_ranks_of_merges(case: str, tmp_path: Path) -> None:
    """llama.cpp's converter writes -1000 for each token, which splits a third of them otherwise."""
    tokenizers = pytest.importorskip("tokenizers")
    change, more, notes = CASES[case]
    change(whole := json.loads(fresh()))
    folder = folder_of(tmp_path, json=json.dumps(whole))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", glft.errors.MetadataWarning)
        glft.convert(folder, tmp_path / "out.gguf")
    said = [str(warning.message) for warning in caught]
    assert len(said) == 1 + len(notes)
    for note, message in zip(["scores are minus the ranks of the merges", *notes], said, strict=True):
        assert message.startswith(f"{folder}: ")
        assert note in message
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    with LlamaVocabulary(tmp_path / "out.gguf") as vocabulary:
        assert vocabulary.size == SIZE
        texts = TEXTS + more
        differ = [text for text in texts if vocabulary.tokens(text) != tokenizer.encode(text, add_special_tokens=False).ids]
    assert bool(differ) == (case == "some merges"), differ


@pytest.mark.parametrize("normalizer", [{"type": "NFC"}, {"type": "Sequence", "normalizers": [{"type": "NFC"}]}, None])
def test_nfc(normalizer: Any, tmp_path: Path) -> None:
    """The normalizer is kept on the way to GGUF and back."""
    tokenizers, out, back = pytest.importorskip("tokenizers"), tmp_path / "out.gguf", tmp_path / "back"
    pytest.importorskip("transformers")
    folder = make_folder(tmp_path, "tiny-qwen3")
    edit_json(folder / "tokenizer.json", normalizer=normalizer)
    glft.convert(folder, out)
    back.mkdir()
    glft.convert(out, back)
    (back / "metadata.gguf").unlink()
    glft.convert(back, tmp_path / "again.gguf")
    for file in (out, tmp_path / "again.gguf"):
        assert glft.open(file).metadata.get("tokenizer.ggml.normalizer.nfc") == (True if normalizer else None)
    found = []
    for name in (folder, back):
        tokenizer = tokenizers.Tokenizer.from_file(str(name / "tokenizer.json"))
        found.append([tokenizer.encode(text).ids for text in ("e\u0301", "\u00e9")])
    assert found[0] == found[1]
    assert (found[0][0] == found[0][1]) == bool(normalizer)


def test_sentencepiece(tmp_path: Path) -> None:
    """Symbols that the user defined are found, and a space is added as the model states."""
    spm = pytest.importorskip("sentencepiece")
    model = trained("bpe", user_defined_symbols="<sep>,[INST]", add_dummy_prefix=False)
    glft.convert(folder_of(tmp_path, model=model), tmp_path / "out.gguf")
    processor = spm.SentencePieceProcessor(model_proto=model)
    assert glft.open(tmp_path / "out.gguf").metadata["tokenizer.ggml.add_space_prefix"] is False
    with LlamaVocabulary(tmp_path / "out.gguf") as vocabulary:
        for text in TEXTS + SPECIAL_TEXTS:
            assert vocabulary.tokens(text, special=False) == processor.encode(text), text


def test_a_model_that_normalizes(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, model=trained("bpe", normalization_rule_name="nmt_nfkc"))
    with pytest.warns(glft.errors.MetadataWarning, match="this tokenizer replaces characters or spaces of a text; llama.cpp"):
        glft.convert(folder, tmp_path / "out.gguf")


@pytest.mark.parametrize("kind", ["unigram", "char"])
def test_models_that_llama_cpp_does_not_compute(kind: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, model=trained(kind, **{"hard_vocab_limit": False} if kind == "char" else {}))
    problem = rf"expected pieces joined by their scores \(model_type BPE\), .* found model_type {kind.upper()}"
    with pytest.raises(glft.FormatError, match=rf"{problem} in {folder}/tokenizer.model"):
        glft.convert(folder, tmp_path / "out.gguf")


def test_pieces_equal_sentencepiece() -> None:
    model = trained("bpe", user_defined_symbols="<sep>")
    spm = pytest.importorskip("sentencepiece").SentencePieceProcessor(model_proto=model)
    pieces = read_model(model).pieces
    assert [(piece.text, piece.score) for piece in pieces] == [(spm.id_to_piece(i), spm.get_score(i)) for i in range(SIZE)]
    assert [piece.type == 6 for piece in pieces] == [spm.is_byte(i) for i in range(SIZE)]
    with pytest.raises(ValueError, match="expected 11 bytes, found 4"):
        read_model(b"\x0a\x0bab\x15\x00")


ENCODERS = {"roberta": "FacebookAI/roberta-base", "xlm_roberta": "BAAI/bge-m3"}


@pytest.mark.parametrize("stated", [True, False], ids=["special tokens", "no special tokens"])
@pytest.mark.parametrize("name", ENCODERS)
def test_tokenizers_of_encoders(name: str, stated: bool, tmp_path: Path) -> None:
    """They begin and end texts as the folder's own, even if no file but tokenizer.json says how."""
    tokenizers, transformers = pytest.importorskip("tokenizers"), pytest.importorskip("transformers")
    folder, _ = TinyModel(name, ENCODERS[name]).make(tmp_path)
    if not stated:
        (folder / "tokenizer_config.json").write_text('{"model_max_length": 512}')
    glft.convert(folder, tmp_path / "out.gguf")
    glft.convert(tmp_path / "out.gguf", f"{tmp_path}/back/")
    own = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    back = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    with LlamaVocabulary(tmp_path / "out.gguf") as vocabulary:
        for text in [*TEXTS, "", " ", "  b", "<s>a</s> b", "a<mask>b", "a\u00a0b\nc"]:
            expected = own.encode(text).ids
            assert vocabulary.tokens(text, ends=True) == back(text).input_ids == expected, text


def test_bert_with_unigram(tmp_path: Path) -> None:
    """The GGUF file becomes a folder of XLM-RoBERTa, which computes the same."""
    tokenizers = pytest.importorskip("tokenizers")
    folder = make_folder(tmp_path, "tiny-bert")
    shutil.copytree(TOKENIZERS / "unigram", folder, dirs_exist_ok=True)
    glft.convert(folder, tmp_path / "out.gguf")
    glft.convert(tmp_path / "out.gguf", f"{tmp_path}/back/")
    assert json.loads((tmp_path / "back/config.json").read_text())["architectures"] == ["XLMRobertaModel"]
    glft.convert(tmp_path / "back", tmp_path / "again.gguf")
    tokens = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).encode(TEXTS[0]).ids
    found = []
    for name in ("out.gguf", "again.gguf"):
        with LlamaModel(tmp_path / name, exact=True) as model:
            assert model.tokens(TEXTS[0]) == tokens
            found.append(model.embeddings(tokens))
    assert (found[0] == found[1]).all()
