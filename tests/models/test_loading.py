"""Models and tokenizers that transformers loads."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import glft_schema as glft
from glft_schema.models.loading import load_model
from glft_schema.models.vocabulary import load_vocabulary
from tests.families.tiny_folders import CONFIGS, make_folder, make_gemma2
from tests.models.conftest import tiny_gguf

TOKENS = torch.tensor([[1, 45, 120, 77, 200, 12, 99, 33, 250, 7, 8, 9]])


@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if "moe" in name else pytest.mark.full) for name in CONFIGS])
def test_gguf_computes_what_its_folder_computes(name: str, tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path, name)
    with torch.no_grad():
        folder, file = (load_model(source)(TOKENS)[0] for source in (tmp_path / name, path))
    assert torch.equal(folder, file)
    assert sorted(found.name for found in tmp_path.iterdir()) == [name, path.name]


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
    with pytest.raises(glft.FormatError, match="expected a known architecture"):
        load_model(_other_architecture(tmp_path))
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before


def _other_architecture(folder: Path) -> Path:
    path = folder / "other.gguf"
    glft.save_file({"x": torch.ones(3)}, path, {"general.architecture": "mamba"}, rules=[])
    return path


def test_tokenizer_files_beside_a_gguf_file_are_ignored(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path, "tiny-llama")
    expected = load_vocabulary(path).tokens("the a")
    settings = {"tokenizer_class": "BertTokenizer", "auto_map": {"AutoTokenizer": ["code.Tokenizer", None]}}
    for name, text in {"tokenizer_config.json": json.dumps(settings), "tokenizer.json": "{}", "config.json": "{}"}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "code.py").write_text("raise AssertionError('this must not run')")
    assert load_vocabulary(path).tokens("the a") == expected


def _rename(folder: Path, names: dict[str, str | None], prefix: str = "") -> None:
    """Renames tensors of a folder, or removes them."""
    path = folder / "model.safetensors"
    tensors = {names.get(name, prefix + name): tensor for name, tensor in load_file(path).items()}
    save_file({name: tensor for name, tensor in tensors.items() if name is not None}, path)


def test_missing_weights(tmp_path: Path) -> None:
    """They would be random numbers. Tied weights and bert's pooler are not needed."""
    name = "model.layers.1.mlp.up_proj.weight"
    message = rf"expected values for this tensor, found none \(tensor '{name}'\) in {tmp_path}"
    for folder in (make_folder(tmp_path, "tiny-llama"), make_gemma2(tmp_path)):
        _rename(folder, {name: None})
        with pytest.raises(glft.FormatError, match=message):
            load_model(folder)
    module = make_folder(tmp_path, "tiny-qwen2")
    load_model(module)
    _rename(module, {}, "module.")
    with pytest.raises(glft.FormatError, match=rf"found none \(tensor '.*'\) in {module}"):
        load_model(module)
    path = tmp_path / "lacking.gguf"
    glft.convert(make_folder(tmp_path, "tiny-qwen3"), path, exclude=["blk.1.ffn_up.weight"], schemes={"*": "f32"})
    with pytest.raises(glft.FormatError, match=rf"{name}'\) in {path}"):
        load_model(path)
    words = make_folder(tmp_path, "tiny-bert")
    _rename(words, {f"pooler.dense.{kind}": None for kind in ("weight", "bias")})
    load_model(words)


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
