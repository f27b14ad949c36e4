"""Folders with code, or with paths that leave them."""

from __future__ import annotations

from pathlib import Path

import pytest

import glft_schema as glft
from glft_schema.families.untrusted_folders import check_links, check_loadable, check_no_code


def put(folder: Path, name: str, text: str) -> None:
    """Writes a file of a folder, or a link to what follows an arrow."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    if text.startswith("-> "):
        path.symlink_to(text[3:])
    else:
        path.write_text(text)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder beside another one with code."""
    put(tmp_path, "code/x.py", "")
    folder = tmp_path / "model"
    put(folder, "deep/config.json", '{"model_type": "llama"}')
    put(folder, "config.json", '{"model_type": "llama"}')
    put(folder, "tokenizer.json", '{"model": {"vocab": {"a--b.c": 1, "auto_map": 2}, "merges": ["a -- b.c"]}}')
    put(folder, "broken.json", "{")
    return folder


@pytest.fixture
def cached(folder: Path, tmp_path: Path) -> Path:
    """The folder as a snapshot of Hugging Face's cache, whose files are links to blobs."""
    put(tmp_path, "blobs/5678", "{}")
    (tmp_path / "snapshots").mkdir()
    snapshot = folder.rename(tmp_path / "snapshots" / "1234")
    put(snapshot, "1.json", "-> ../../blobs/5678")
    return snapshot


# fmt: off
CODE = {
    "file":       ("deep/x.py", "", "deep/x.py: expected a folder without code, found Python files"),
    "map":        ("config.json", '{"auto_map": {}}', "config.json: expected a folder without code, found auto_map"),
    "any file":   ("video_processor.json", '{"a": [{"auto_map": {}}]}',
                   "video_processor.json: expected a folder without code, found auto_map"),
    "below":      ("a/b/c.json", '{"auto_map": {}}', "a/b/c.json: expected a folder without code, found auto_map"),
    "files":      ("config.json", '{"configuration_files": ["config.4.0.0.json"]}', "found configuration_files"),
    "reference":  ("config.json", '{"custom_pipelines": {"x": {"impl": "code--x.C"}}}',
                   "config.json: expected a folder without code, found 'code--x.C': --trust-remote-code accepts it"),
    "link":       ("deep/more", "-> ../../code", "deep/more: expected a folder without links to other folders, found one"),
    "file link":  ("x.txt", "-> /etc/hostname", "x.txt: expected a folder without links to other folders, found one"),
    "no target":  ("x", "-> ../absent", "x: expected a folder without links to other folders, found one"),
}
# fmt: on


@pytest.mark.parametrize("name", CODE)
def test_code(name: str, folder: Path) -> None:
    file, text, message = CODE[name]
    put(folder, file, text)
    with pytest.raises(glft.OptionError, match="--trust-remote-code accepts it") as caught:
        check_no_code(folder)
    assert str(caught.value).startswith(str(folder))
    assert message in str(caught.value)


def test_no_code(folder: Path) -> None:
    """Links inside are accepted."""
    for name, text in (("deep/config.json", "-> ../config.json"), ("same", "-> deep"), ("vocab", "{'auto_map'}")):
        put(folder, name, text)
    check_no_code(folder)


def test_blobs_of_a_snapshot(cached: Path, tmp_path: Path) -> None:
    put(cached, "circle", "-> circle")
    check_no_code(cached)
    put(tmp_path, "blobs/deep/config.json", '{"auto_map": {}}')
    for target in ("../../code", "../../blobs/deep", "../../blobs/deep/config.json", "../../blobs"):
        put(cached, "other", f"-> {target}")
        with pytest.raises(glft.OptionError, match="other: expected a folder without links to other folders, found one"):
            check_no_code(cached)


def test_links_of_files_that_are_read(cached: Path) -> None:
    """A file may lead to another one of the folder, and one of a snapshot to a blob."""
    for name, target in (("README.md", "config.json"), ("circle", "circle"), ("pp", "/etc"), ("out", "../../code/x.py")):
        put(cached, name, f"-> {target}")
    check_links(cached, [cached / name for name in ("README.md", "absent", "circle", "1.json")])
    for name in ("pp/hostname", "out"):
        with pytest.raises(glft.FormatError, match=rf"a file in the folder, found a link that leaves it in .*/{name}$"):
            check_links(cached, [cached / name])


def test_nested_json(folder: Path) -> None:
    put(folder, "deep.json", "[" * 100_000 + "]" * 100_000)
    with pytest.raises(glft.FormatError, match=r"expected JSON with fewer nested values in .*deep\.json"):
        check_no_code(folder)


# fmt: off
FAULTS = {
    "index":      ("model.safetensors.index.json", '{"weight_map": {"a": "../a.safetensors"}}',
                   "weight_map: expected the name of a file in the directory, found '../a.safetensors' in {}/model.safet"),
    "torch":      ("pytorch_model.bin.index.json", '{"weight_map": {"a": "/a.bin"}}', "found '/a.bin'"),
    "tokenizer":  ("tokenizer_config.json", '{"fast_tokenizer_files": ["../tokenizer.4.0.json"]}',
                   "fast_tokenizer_files: expected the name of a file in the directory, found '../tokenizer.4.0.json'"),
    "config":     ("config.json", '{"configuration_files": ["a/../config.4.json"]}',
                   "configuration_files: expected the name of a file in the directory"),
    "tokens":     ("config.json", '{"vocab_size": 1000000000000}',
                   "vocab_size: expected at most 16777216 tokens (a limit of glft_schema), found 1000000000000"),
    "size":       ("chat_template.jinja", "x" * 1001,
                   "expected at most 1000 bytes (a limit of glft_schema), found 1001 (limit whole_file) in {}/chat_template.j"),
}
# fmt: on


@pytest.mark.parametrize("name", FAULTS)
def test_loadable(name: str, folder: Path) -> None:
    file, text, message = FAULTS[name]
    check_loadable(folder)
    put(folder, file, text)
    with glft.Limits(whole_file=1000), pytest.raises(glft.FormatError) as caught:
        check_loadable(folder)
    assert message.format(folder) in str(caught.value)
    assert isinstance(caught.value, glft.LimitError) == ("a limit of" in message)
