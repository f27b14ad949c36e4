"""Models and tokenizers that transformers loads."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import glft_schema as glft
from glft_schema.models.loading import load_model, load_vocabulary
from tests.families.tiny_folders import CONFIGS, make_folder
from tests.models.conftest import tiny_gguf

TOKENS = torch.tensor([[1, 45, 120, 77, 200, 12, 99, 33, 250, 7, 8, 9]])


@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if "moe" in name else pytest.mark.slow) for name in CONFIGS])
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


def test_without_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(glft.OptionError, match="running a model needs transformers: pip install"):
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
