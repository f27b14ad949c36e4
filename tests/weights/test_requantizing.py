"""Quantized tensors are quantized again only on request, and the report says so."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import glft_schema as glft
from tests.tools.command_line import assert_refused, in_this_process

REFUSAL = (
    "2 tensors (Q4_0, Q8_0) are quantized already, such as 'a.weight': requantizing adds error; "
    "allow_requantize (--allow-requantize) permits it"
)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.gguf"
    tensors = {f"{name}.weight": torch.randn(4, 64) for name in "abc"} | {"norm.weight": torch.ones(64)}
    schemes = {"a.weight": "q4_0", "b.weight": "q8_0", "c.weight": "f16"}
    glft.save_file(tensors, path, {"general.architecture": "toy"}, schemes=schemes)
    return path


def test_refused_without_the_option(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    with pytest.raises(glft.SchemeError) as caught:
        glft.convert(source, out, schemes=[("*.weight", "q5_0")])
    assert str(caught.value) == REFUSAL
    refusal = r"^1 tensor \(Q4_0\) is quantized already, such as 'a.weight': requantizing adds error"
    with pytest.raises(glft.SchemeError, match=refusal):
        glft.save_file(glft.weights.open_checkpoint(source), out, schemes={"*": "q8_0"})
    assert_refused(in_this_process("convert", source, out, "--scheme", "q5_0"), REFUSAL)
    assert [path.name for path in tmp_path.iterdir()] == [source.name]


def test_other_types_need_no_option(source: Path, tmp_path: Path) -> None:
    """The types they have, and floats: the error of these is chosen, or none."""
    same = glft.convert(source, tmp_path / "out.gguf", schemes={"a.weight": "q4_0", "b.weight": "q8_0", "c.weight": "q5_0"})
    assert {tensor.name for tensor in same if not tensor.copied} == {"c.weight"}
    for type_ in ("f32", "f16", "bf16"):
        floats = glft.convert(source, tmp_path / "out.gguf", schemes={"*": type_})
        assert all(tensor.quantized_from is None for tensor in floats)


def test_the_report_begins_with_it(source: Path, tmp_path: Path) -> None:
    model, out = tmp_path / "model.gguf", tmp_path / "out.gguf"
    written = glft.convert(source, model, metadata={"general.architecture": "llama", "llama.block_count": 1})
    assert {tensor.quantized_from for tensor in written} == {None}
    again = glft.convert(source, out, schemes={"*": "q5_0"}, allow_requantize=True)
    before = {tensor.name: str(tensor.quantized_from) for tensor in again if tensor.quantized_from}
    assert before == {"a.weight": "Q4_0", "b.weight": "Q8_0"}
    for command in (
        ("convert", source, out, "--scheme", "q5_0", "--allow-requantize"),
        ("quantize", model, out, "Q4_K_M", "--allow-requantize", "--pure", "--dry-run"),
    ):
        done = in_this_process(*command)
        line = "quantized already: 2 tensors (Q4_0, Q8_0); the new type adds its own error"
        assert (done.returncode, done.stderr, done.stdout.splitlines()[0]) == (0, "", line)
