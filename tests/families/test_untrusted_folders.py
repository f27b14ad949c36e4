"""Folders with code, or with paths that leave them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import glft_schema as glft
from glft_schema.families.untrusted_folders import check_links, check_loadable, check_no_code


def write(name: str, content: Any = None, text: str | None = None) -> Callable[[Path], Any]:
    """Returns a function that writes a file of a folder."""

    def writing(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(content) if text is None else text)

    return writing


def link(name: str, target: str) -> Callable[[Path], Any]:
    """Returns a function that makes a link."""
    return lambda folder: (folder / name).symlink_to(target)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder beside another one with code."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "x.py").touch()
    (tmp_path / "model" / "deep").mkdir(parents=True)
    write("config.json", {"model_type": "llama"})(tmp_path / "model")
    write("tokenizer.json", {"model": {"vocab": {"a--b.c": 1, "auto_map": 2}, "merges": ["a -- b.c"]}})(tmp_path / "model")
    write("broken.json", text="{")(tmp_path / "model")
    return tmp_path / "model"


# fmt: off
CODE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "file":       (write("deep/x.py", text=""), "deep/x.py: expected a folder without code, found Python files"),
    "map":        (write("config.json", {"auto_map": {}}), "config.json: expected a folder without code, found auto_map"),
    "any file":   (write("video_processor.json", {"a": [{"auto_map": {}}]}),
                   "video_processor.json: expected a folder without code, found auto_map"),
    "below":      (write("a/b/c.json", {"auto_map": {}}), "a/b/c.json: expected a folder without code, found auto_map"),
    "files":      (write("config.json", {"configuration_files": ["config.4.0.0.json"]}), "found configuration_files"),
    "reference":  (write("config.json", {"custom_pipelines": {"x": {"impl": "code--x.C"}}}),
                   "config.json: expected a folder without code, found 'code--x.C': --trust-remote-code accepts it"),
    "link":       (link("deep/more", "../../code"), "deep/more: expected a folder without links to other folders, found one"),
    "file link":  (link("x.txt", "/etc/hostname"), "x.txt: expected a folder without links to other folders, found one"),
    "no target":  (link("x", "../absent"), "x: expected a folder without links to other folders, found one"),
}
# fmt: on


@pytest.mark.parametrize("name", CODE)
def test_code(name: str, folder: Path) -> None:
    make, message = CODE[name]
    make(folder)
    with pytest.raises(glft.OptionError, match="--trust-remote-code accepts it") as caught:
        check_no_code(folder)
    assert str(caught.value).startswith(str(folder))
    assert message in str(caught.value)


def test_no_code(folder: Path, tmp_path: Path) -> None:
    """Links inside, and a snapshot in Hugging Face's cache, whose files are links to blobs."""
    link("deep/config.json", "../config.json")(folder)
    link("same", "deep")(folder)
    (folder / "vocab").write_text("{'auto_map'}")
    check_no_code(folder)
    (tmp_path / "snapshots").mkdir()
    (tmp_path / "blobs").mkdir()
    cached = folder.rename(tmp_path / "snapshots" / "1234")
    (tmp_path / "blobs" / "5678").touch()
    link("model.safetensors", "../../blobs/5678")(cached)
    link("circle", "circle")(cached)
    check_no_code(cached)
    write("blobs/deep/config.json", {"auto_map": {}})(tmp_path)
    write("blobs/deep/modeling.py", text="")(tmp_path)
    for target in ("../../code", "../../blobs/deep", "../../blobs/deep/config.json", "../../blobs"):
        link("other", target)(cached)
        with pytest.raises(glft.OptionError, match="other: expected a folder without links to other folders, found one"):
            check_no_code(cached)
        (cached / "other").unlink()


def test_links_of_files_that_are_read(folder: Path, tmp_path: Path) -> None:
    """A file may lead to another one of the folder, and one of a snapshot to a blob."""
    link("README.md", "config.json")(folder)
    link("circle", "circle")(folder)
    check_links(folder, [folder / name for name in ("README.md", "absent", "circle")])
    link("pp", "/etc")(folder)
    link("tokenizer.model", "../code/x.py")(folder)
    for name in ("pp/hostname", "tokenizer.model"):
        with pytest.raises(glft.FormatError, match=rf"a file in the folder, found a link that leaves it in .*/{name}$"):
            check_links(folder, [folder / name])
    write("blobs/5678", {})(tmp_path)
    (tmp_path / "snapshots").mkdir()
    cached = folder.rename(tmp_path / "snapshots" / "1234")
    link("1.json", "../../blobs/5678")(cached)
    check_links(cached, [cached / "1.json"])


def test_nested_json(folder: Path) -> None:
    write("deep.json", text="[" * 100_000 + "]" * 100_000)(folder)
    with pytest.raises(glft.FormatError, match=r"expected JSON with fewer nested values in .*deep\.json"):
        check_no_code(folder)


# fmt: off
FAULTS: dict[str, tuple[Callable[[Path], Any], type[Exception], str]] = {
    "index":      (write("model.safetensors.index.json", {"weight_map": {"a": "../a.safetensors"}}), glft.FormatError,
                   "weight_map: expected the name of a file in the directory, found '../a.safetensors' in {}/model.safet"),
    "torch":      (write("pytorch_model.bin.index.json", {"weight_map": {"a": "/a.bin"}}), glft.FormatError, "found '/a.bin'"),
    "tokenizer":  (write("tokenizer_config.json", {"fast_tokenizer_files": ["../tokenizer.4.0.json"]}), glft.FormatError,
                   "fast_tokenizer_files: expected the name of a file in the directory, found '../tokenizer.4.0.json'"),
    "config":     (write("config.json", {"configuration_files": ["a/../config.4.json"]}), glft.FormatError,
                   "configuration_files: expected the name of a file in the directory"),
    "tokens":     (write("config.json", {"vocab_size": 10**12}), glft.LimitError,
                   "vocab_size: expected at most 16777216 tokens (a limit of glft_schema), found 1000000000000"),
    "size":       (write("chat_template.jinja", text="x" * 1001), glft.LimitError,
                   "expected at most 1000 bytes (a limit of glft_schema), found 1001 (limit whole_file) in {}/chat_template.j"),
}
# fmt: on


@pytest.mark.parametrize("name", FAULTS)
def test_loadable(name: str, folder: Path) -> None:
    make, kind, message = FAULTS[name]
    check_loadable(folder)
    make(folder)
    with glft.Limits(whole_file=1000), pytest.raises(kind) as caught:
        check_loadable(folder)
    assert message.format(folder) in str(caught.value)
