"""What the pages say is true: examples run, links lead somewhere, numbers are the schema's."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch

from glft_schema import Container, FormatError
from glft_schema.describe.type_reference import type_reference
from glft_schema.formats.gguf import GGUF, KeyValue, KeyValues, TensorInfo
from glft_schema.formats.glft import GLFT, MAX_DIMS, Descriptor
from glft_schema.rules import Rule
from glft_schema.tensor_types.fp4 import IQ4_VALUES
from glft_schema.tensor_types.ggml import GGML
from tests import reference
from tests.gguf_cases import READ, READS, REFUSED
from tests.reference import F32, Q4, Row
from tests.test_gguf_rules import CHECKS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FORMAT_PAGE = (ROOT / "docs" / "glft-v1.md").read_text("utf-8")


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def test_readme_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for example in blocks(ROOT / "README.md", "python"):
        exec(compile(example, "README.md", "exec"), names)
    assert names["rows"].shape == (2, 128)
    assert names["half"].dtype == torch.bfloat16
    assert set(safetensors.torch.load_file("model.safetensors")) == set(names["tensors"])


def test_recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    parts = {"embedding": torch.nn.Embedding(64, 64), "fc1": torch.nn.Linear(64, 64), "head": torch.nn.Linear(64, 8)}
    model = torch.nn.ModuleDict(parts)
    safetensors.torch.save_file(model.state_dict(), "model.safetensors")
    names: dict[str, object] = {"model": model, "torch": torch, "received": b"GGML"}
    examples = blocks(ROOT / "docs" / "recipes.md", "python")
    export, checkpoint, write, change, rules, into_model, load, check, quantize, build, package = examples
    for example in (
        write,
        change,
        rules,
        export,
        into_model,
        load.replace('"cuda"', '"cpu"'),
        check,
        quantize,
        build,
        package,
        checkpoint,
    ):
        exec(compile(example, "recipes.md", "exec"), names)
    assert not names["missing"].missing_keys
    assert (names["weights"].shape, names["scales"].shape) == ((8, 256), (8, 8))
    assert names["row"].shape == (64,)
    assert names["nibbles"].shape == (64, 32)
    assert Container.parse(names["built"]).tensors["w"].nbytes == 68
    assert Container.parse_file("model2.gguf-lite").metadata["note"] == "checked"
    assert Path("whole.gguf").read_bytes() == Path("model.gguf").read_bytes()
    printed = capsys.readouterr().out
    assert "output_norm.weight F32 copied" in printed
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


def table_rows(page: str) -> dict[str, list[str]]:
    """Returns the cells of each row of a page's tables, by the first cell, without its code quotes."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return {row[0].strip("`"): row[1:] for row in rows}


def test_gguf_page_has_every_type() -> None:
    rows = table_rows("gguf.md")
    for type_ in GGML:
        name, weights, nbytes, bits, encoder = rows[str(type_.code)]
        assert (name, bool(encoder)) == (type_.name, type_.quantize is not None)
        assert type_.refusal([1, int(weights)]) is None
        assert type_.nbytes([1, int(weights)]) == int(nbytes) == float(bits) * int(weights) / 8


def test_page_of_types_is_what_the_declarations_say() -> None:
    """To renew it: put `type_reference(GGML)` after the page's last heading of the second level."""
    intro, _, types = (ROOT / "docs" / "ggml-types.md").read_text("utf-8").partition("## The types\n\n")
    assert types == type_reference(GGML)
    assert " ".join(map(str, IQ4_VALUES)) in intro


def test_gguf_page_has_every_field_and_rule() -> None:
    rows = table_rows("gguf.md")
    for struct in (GGUF.struct.header, KeyValue, TensorInfo):
        for field in struct.subcons:
            if field.name and field.name not in ("byte_order", "shape"):
                assert field.name in rows
    for check in [KeyValues.once, *CHECKS]:
        field, expected, sets = rows[check.id]
        assert expected
        assert field == check.field
        assert sets == ("always" if check.is_always_needed else ", ".join(check.sets))
        if isinstance(check, Rule):
            assert expected == check.expected


def test_page_of_readers_has_every_case() -> None:
    rows = table_rows("gguf-readers.md")
    for name, case in REFUSED.items():
        assert rows[name] == [
            "refused",
            READS if case.c else "refused",
            case.gguf_py if " " in case.gguf_py else f"`{case.gguf_py}`",
        ]
    for name, case in READ.items():
        broken = [", ".join(f"`{rule}`" for rule in rules.split()) for rules in (case.spec, case.ggml)]
        theirs = case.gguf_py if " " in case.gguf_py else f"`{case.gguf_py}`"
        assert rows[name] == [*broken, "refused" if case.ggml else READS, theirs]
    assert f"{len(REFUSED) + len(READ)} unusual files" in (ROOT / "docs" / "index.md").read_text("utf-8")


def test_a_type_is_one_edit(tmp_path: Path) -> None:
    """The program of the page runs, and so does a copy of the package with the page's edit."""
    page = ROOT / "docs" / "adding-a-type.md"
    (program,), (diff,) = blocks(page, "python"), blocks(page, "diff")
    package = tmp_path / "glft_schema"
    shutil.copytree(ROOT / "glft_schema", package, ignore=shutil.ignore_patterns("__pycache__"))
    edited = package / "tensor_types" / "legacy.py"
    added = [line[1:] for line in diff.splitlines() if line.startswith("+") and not line.startswith("+++")]
    built_in = """
import glft_schema as glft
file = glft.open("own.gguf")
assert file.tensors["w"].dtype.name == "Q4_X" and file.get_slice("w")[2].shape == (64,)
"""
    for name, code in (
        ("program", program + 'assert row.shape == (64,) and glft.load_file("own.gguf")["w"].shape == (4, 64)'),
        ("edit", built_in),
    ):
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), name
        edited.write_text(edited.read_text("utf-8") + "\n".join(added) + "\n", "utf-8")


def test_every_field_of_the_schema_has_a_sentence() -> None:
    structs = [GLFT.struct, GLFT.struct.header, Descriptor, *(type_.payload for type_ in GLFT.types)]
    structs += [GGUF.struct, GGUF.struct.header, KeyValue, TensorInfo, *(type_.payload for type_ in GGUF.types)]
    structs += [type_.block for type_ in GGUF.types if type_.block]
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
