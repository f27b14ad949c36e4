"""Models and tokenizers that transformers loads."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import glft_schema as glft
from glft_schema.models.from_gguf import load_model
from glft_schema.models.token_chunks import cut
from glft_schema.models.tokenization import load_vocabulary
from tests.families.tiny_folders import edit_json, edit_tensors, make_folder, make_undeclared
from tests.models.conftest import tiny_gguf

WEIGHTS = "model.safetensors"


def test_start_of_texts(tmp_path: Path) -> None:
    """GGUF has a key for it, a folder its tokenizer. The text of a special token is plain."""
    with_start = load_vocabulary(tiny_gguf(tmp_path, "tiny-llama"))
    assert with_start.start == 1 == with_start.tokens("</s>")[0]
    assert 2 not in with_start.tokens("</s>")
    without = load_vocabulary(make_folder(tmp_path, "tiny-qwen3"))
    assert (without.start, without.tokens("the a")) == (None, [261, 105, 36, 101])
    words = load_vocabulary(make_folder(tmp_path, "tiny-bert"))
    assert (words.start, words.tokens("the a")) == (1, [1, 7, 5])


def test_messages_of_transformers_return(tmp_path: Path) -> None:
    logging = pytest.importorskip("transformers").logging
    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    glft.save_file({"x": torch.ones(3)}, tmp_path / "other.gguf", {"general.architecture": "mamba"}, rules=[])
    with pytest.raises(glft.FormatError, match="expected a declared architecture"):
        load_model(tmp_path / "other.gguf")
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before


def test_tokenizer_files_beside_a_gguf_file_are_ignored(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path, "tiny-llama")
    expected = load_vocabulary(path).tokens("the a")
    settings = {"tokenizer_class": "BertTokenizer", "auto_map": {"AutoTokenizer": ["code.Tokenizer", None]}}
    for name, text in {"tokenizer_config.json": json.dumps(settings), "tokenizer.json": "{}", "config.json": "{}"}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "code.py").write_text("raise AssertionError('this must not run')")
    assert load_vocabulary(path).tokens("the a") == expected


def test_missing_weights(tmp_path: Path) -> None:
    """They would be random numbers. Tied weights and bert's pooler are not needed."""
    name = "model.layers.1.mlp.up_proj.weight"
    message = rf"expected values for this tensor, found none \(tensor '{name}'\) in {tmp_path}"
    for folder in (make_folder(tmp_path, "tiny-llama"), make_undeclared(tmp_path)):
        edit_tensors(folder, {name: None})
        with pytest.raises(glft.FormatError, match=message):
            load_model(folder)
    module = make_folder(tmp_path, "tiny-qwen2")
    load_model(module)
    save_file({f"module.{key}": tensor for key, tensor in load_file(module / WEIGHTS).items()}, module / WEIGHTS)
    with pytest.raises(glft.FormatError, match=rf"found none \(tensor '.*'\) in {module}"):
        load_model(module)
    words = make_folder(tmp_path, "tiny-bert")
    edit_tensors(words, {"pooler.dense.weight": None, "pooler.dense.bias": None})
    load_model(words)


@pytest.mark.parametrize(
    ("parts", "number", "most"),
    [
        (["vocab_size"], 10**7, 264),
        (["num_hidden_layers"], 10**9, 25),
        (["text_config", "vocab_size"], 10**12, 264),
        (["thinker_config", "text_config", "num_hidden_layers"], 10**9, 25),
    ],
)
def test_config_beyond_the_weights(parts: list[str], number: int, most: int, tmp_path: Path) -> None:
    """Refused before transformers makes a row or a module of each."""
    folder, changed = make_folder(tmp_path, "tiny-qwen3"), dict[str, Any]()
    inner = changed
    for part in parts[:-1]:
        inner = inner.setdefault(part, {})
    inner[parts[-1]] = number
    edit_json(folder / "config.json", **changed)
    problem = f"{' -> '.join(parts)}: expected at most {most} by the weights, found {number} in {folder}"
    with pytest.raises(glft.FormatError, match=f"^{problem}"):
        load_model(folder)


def test_files_beyond_the_folder(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "tiny-qwen3", shards=2)
    edit_json(folder / "model.safetensors.index.json", weight_map={"a": "../a.safetensors"})
    for load in (load_model, load_vocabulary):
        with pytest.raises(glft.FormatError, match=r"weight_map: expected the name of a file in the directory, found '\.\./a"):
            load(folder)


def test_tokenizers_that_fail(tmp_path: Path) -> None:
    """A panic, and a text that the tokenizer does not take."""
    folder = make_folder(tmp_path, "tiny-qwen3")
    whole = (folder / "tokenizer.json").read_text()
    edit_json(folder / "tokenizer.json", normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"})
    with pytest.raises(glft.FormatError, match=r"expected a tokenizer that transformers loads .*, found PanicException: "):
        load_vocabulary(folder)
    (folder / "tokenizer.json").write_text(whole)
    edit_json(folder / "tokenizer.json", model={"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "?"}, added_tokens=[])
    with pytest.raises(
        glft.FormatError, match=rf"expected a tokenizer for the text, found Exception: WordLevel .* in {folder}"
    ):
        cut("b", folder, None, 1, None)


def test_without_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(glft.OptionError, match="models and tokenizers need transformers: pip install"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    "config", ['{"model_type": "none"}', '{"model_type": "none", "auto_map": {"AutoConfig": "code.Config"}}']
)
def test_folder_that_transformers_refuses(config: str, tmp_path: Path) -> None:
    """An unknown architecture, and one that needs the folder's code."""
    (tmp_path / "config.json").write_text(config)
    (tmp_path / "code.py").write_text("raise AssertionError('this must not run')")
    with pytest.raises(glft.FormatError, match="expected a model that transformers loads, found ValueError: "):
        load_model(tmp_path)
