"""What the pages say is true: examples run, links lead somewhere, numbers are the schema's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import safetensors.torch
import torch

from glft_schema import Container, FormatError
from glft_schema.formats.glft import GLFT, MAX_DIMS, Descriptor
from tests import reference
from tests.reference import F32, Q4, Row

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FORMAT_PAGE = (ROOT / "docs" / "glft-v1.md").read_text("utf-8")


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def test_readme_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (example,) = blocks(ROOT / "README.md", "python")
    names: dict[str, object] = {}
    exec(compile(example, "README.md", "exec"), names)
    assert names["rows"].shape == (2, 128)


def test_recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    parts = {"embedding": torch.nn.Embedding(64, 64), "fc1": torch.nn.Linear(64, 64), "head": torch.nn.Linear(64, 8)}
    model = torch.nn.ModuleDict(parts)
    safetensors.torch.save_file(model.state_dict(), "model.safetensors")
    names: dict[str, object] = {"model": model, "torch": torch, "received": b"GGML"}
    export, checkpoint, into_model, load, check, quantize, build, package = blocks(ROOT / "docs" / "recipes.md", "python")
    for example in (export, into_model, load.replace('"cuda"', '"cpu"'), check, quantize, build, package, checkpoint):
        exec(compile(example, "recipes.md", "exec"), names)
    assert not names["missing"].missing_keys
    assert (names["weights"].shape, names["scales"].shape) == ((8, 256), (8, 8))
    assert names["row"].shape == (64,)
    assert names["nibbles"].shape == (64, 32)
    assert Container.parse(names["built"]).tensors["w"].nbytes == 68
    assert Container.parse_file("model2.gguf-lite").metadata["note"] == "checked"
    printed = capsys.readouterr().out
    assert "fc1.bias F32 256 not q4_per_group_64: expected at least 2 dims" in printed
    assert "header -> magic 0 None header -> magic: expected" in printed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text("utf-8")):
        if target != "bytes.svg":
            assert (page.parent / target).exists(), target


def test_format_page_has_every_field_type_and_code() -> None:
    for field in ("magic", "version", "n_tensors", "metadata_len", "name", "dims", "dtype", "offset"):
        assert re.search(rf"^\|[^\n]* {field} \|", FORMAT_PAGE, re.MULTILINE), field
    for type_ in GLFT.types:
        (row,) = re.findall(rf"^\| {type_.code} {type_.name} \|.*$", FORMAT_PAGE, re.MULTILINE)
        for field in type_.places([64, 64]):
            assert f"`{field}`" in row
    assert f"stop at {MAX_DIMS}" in FORMAT_PAGE


def test_every_field_of_the_schema_has_a_sentence() -> None:
    structs = [GLFT.struct, GLFT.struct.header, Descriptor, *(type_.payload for type_ in GLFT.types)]
    for struct in structs:
        for field in struct.subcons:
            if field.name:
                assert field.docs, field.name


def test_the_pages_example_of_an_error_is_what_is_said() -> None:
    (line,) = re.findall(r"^    (descriptors -> 3 -> dims: .*)$", FORMAT_PAGE, re.MULTILINE)
    rows = [Row(f"t{i}", [1], F32, bytes(4)) for i in range(3)]
    rows.append(Row("fc1.weight", [3, 100], Q4, b""))
    metadata = b"k=" + b"v" * 31
    with pytest.raises(FormatError) as caught:
        Container.parse(reference.back_to_back(metadata, rows))
    said = re.sub(r"at byte \d+", "at byte N", str(caught.value))
    assert said == re.sub(r"at byte \d+", "at byte N", line)
