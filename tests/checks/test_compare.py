"""Comparison of two checkpoints."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import glft_schema as glft
from glft_schema import Container, FormatError, SchemeError, TensorError, Typed, compare, convert, save_file
from glft_schema.checks import Comparison
from glft_schema.checks.compare import STATES
from glft_schema.files.splitting import split
from tests.catalogue.gguf_cases import READ

METADATA = {"general.architecture": "toy", "n": 3, "tokens": ["a", "b"], "scores": [1.0, float("nan")]}
STATE = {
    "a.weight": torch.randn(8, 64),
    "b.weight": torch.randn(4, 32),
    "norm": torch.ones(64),
    "half": torch.randn(6).to(torch.bfloat16),
    "n": torch.tensor([1, 2], dtype=torch.int32),
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    save_file(STATE, tmp_path / "model.gguf", METADATA, format="gguf", rules=())
    return tmp_path / "model.gguf"


def states(comparison: Comparison) -> dict[str, str]:
    return {tensor.name: tensor.state for tensor in comparison.tensors}


def test_the_same_weights_in_every_container(model: Path, tmp_path: Path) -> None:
    safetensors.torch.save_file(STATE, tmp_path / "m.safetensors")
    torch.save(STATE, tmp_path / "m.pt")
    convert(model, tmp_path / "big.gguf", header={"byte_order": "big"}, alignment=64, rules=())
    (tmp_path / "shards").mkdir()
    with glft.open(tmp_path / "m.safetensors") as file:
        split(file, tmp_path / "shards" / "m", max_tensors=2)
    (index,) = (tmp_path / "shards").glob("*.json")
    with glft.open(model) as file:
        for other in (tmp_path / "m.safetensors", tmp_path / "m.pt", tmp_path / "big.gguf", index, index.parent, STATE, file):
            comparison = compare(model, other)
            assert set(states(comparison).values()) == {"same"}, other
            assert comparison.summary[:2] == ["A and B hold the same weights", "tensors: 5 same"]
    assert compare(STATE, tmp_path / "m.pt").is_same


def test_metadata_is_compared_with_its_types(model: Path, tmp_path: Path) -> None:
    assert compare(model, model).is_same
    assert compare(model, model).summary == ["A and B hold the same weights", "tensors: 5 same", "metadata: 4 same"]
    for suffix in (".glft", ".safetensors"):  # typed values as marked text
        assert compare(model, convert_to(model, tmp_path / f"m{suffix}", exclude=["n"])).metadata == []
    changed = {"n": Typed(3, "uint8"), "tokens": ["a", "c"], "new": True}
    save_file(STATE, tmp_path / "m.gguf", {"scores": METADATA["scores"], **changed}, format="gguf", rules=())
    comparison = compare(model, tmp_path / "m.gguf")
    found = {change.key: (change.state, change.before, change.after) for change in comparison.metadata}
    assert found == {
        "general.architecture": ("removed", Typed("toy", "string"), None),
        "n": ("changed", Typed(3, "uint32"), Typed(3, "uint8")),
        "tokens": ("changed", Typed(["a", "b"], "array[string]"), Typed(["a", "c"], "array[string]")),
        "new": ("added", None, Typed(True, "bool")),
    }
    assert comparison.summary[2] == "metadata: 1 same, 2 changed, 1 added, 1 removed"
    assert not comparison.is_same
    for out, entries in (("x.glft", {"k": "1", "l": "x"}), ("y.safetensors", {"k": "2", "l": "x"})):
        save_file({}, tmp_path / out, entries)
    (change,) = compare(tmp_path / "x.glft", tmp_path / "y.safetensors").metadata
    assert (change.key, change.before, change.after) == ("k", "1", "2")


def convert_to(source: Path, out: Path, **options: Any) -> Path:
    convert(source, out, **options)
    return out


def test_each_state_of_a_tensor() -> None:
    one = torch.randn(4, 8)
    first = {"same": one, "changed": one, "retyped": one, "reshaped": one, "old": one * 2, "gone": torch.zeros(3)}
    second = {
        "new": torch.zeros(2, 2),
        "renamed": one * 2,
        "same": one.clone(),
        "changed": one + torch.eye(4, 8),
        "retyped": one.half(),
        "reshaped": one.reshape(8, 4),
    }
    comparison = compare(first, second)
    assert states(comparison) == {**{name: name for name in second}, "new": "added", "gone": "removed"}
    assert {tensor.state for tensor in comparison.tensors} == set(STATES)
    by_name = {tensor.name: tensor for tensor in comparison.tensors}
    changed, retyped, renamed = (by_name[name] for name in ("changed", "retyped", "renamed"))
    assert changed.errors is not None
    assert changed.errors.squares == pytest.approx(4)
    assert (retyped.before, retyped.after) == (("retyped", "F32", (4, 8)), ("retyped", "F16", (4, 8)))
    assert {tensor.state for tensor in comparison.differing[:4]} == {"renamed", "added", "removed", "reshaped"}
    assert (renamed.before, renamed.after) == (("old", "F32", (4, 8)), ("renamed", "F32", (4, 8)))
    assert renamed.has_same_values
    assert by_name["reshaped"].problem == "values of different shapes are not compared"
    missing = "1 tensor is only in A, 1 only in B; the tensors in both hold different weights: signal-to-noise ratio "
    assert comparison.summary[0].startswith(missing)
    assert comparison.summary[0].endswith(" dB over 2 of 5 tensors")
    tensors = "tensors: 1 same, 1 changed, 1 retyped (1 F32 to F16), 1 reshaped, 1 renamed, 1 added, 1 removed"
    assert comparison.summary[1:] == [tensors, "metadata: 0 same"]


def test_quantized_weights_are_the_same_weights(model: Path, tmp_path: Path) -> None:
    for types, line in (
        ({"a.*": "q8_0", "b.*": "q4_0"}, "A and B hold the same weights, quantized differently: signal-to-noise ratio "),
        ({"half": "f32"}, "A and B hold the same weights in other types"),
    ):
        out = convert_to(model, tmp_path / "out.gguf", schemes=types, rules=())
        comparison = compare(model, out)
        assert comparison.summary[0].startswith(line)
        retyped = [name for name in STATE if any(name.startswith(pattern[0]) for pattern in types)]
        assert states(comparison) == {**dict.fromkeys(STATE, "same"), **dict.fromkeys(retyped, "retyped")}
    shuffled = {**STATE, "a.weight": STATE["a.weight"].flip(0).half()}
    assert compare(STATE, shuffled).summary[0].startswith("A and B hold different weights: ")
    unlike = {**STATE, "norm": torch.full((64,), torch.nan).half()}
    assert compare(STATE, unlike).summary[0].startswith("A and B hold different weights: ")
    tuned = {**STATE, "a.weight": STATE["a.weight"] * 1.001}
    ratio = "signal-to-noise ratio 60.0 dB over 1 of 5 tensors"
    assert compare(STATE, tuned).summary[0] == f"A and B hold different weights: {ratio}"
    del tuned["norm"], tuned["n"]
    missing = "2 tensors are only in A; the tensors in both hold different weights: "
    assert compare(STATE, tuned).summary[0] == missing + ratio.replace("5", "3")
    del tuned["a.weight"]
    assert compare(tuned, STATE).summary[0] == "3 tensors are only in B; the tensors in both hold the same weights"
    negative = {"zero": torch.tensor([0.0])}, {"zero": torch.tensor([-0.0])}
    assert compare(*negative).summary[0] == "A and B hold the same weights in other bytes"
    assert not compare(*negative).is_same


def test_renamed_tensors(model: Path, tmp_path: Path) -> None:
    """Equal bytes come first, then equal values; equal tensors are paired in their order."""
    ones = {"x": torch.ones(3), "y": torch.ones(3), "z": torch.ones(3)}
    comparison = compare(ones, {"p": torch.ones(3).half(), "q": torch.ones(3), "r": torch.ones(3, 1)})
    pairs = {tensor.name: tensor.before and tensor.before.name for tensor in comparison.tensors}
    assert pairs == {"p": "y", "q": "x", "r": None, "z": "z"}
    names = "A and B hold the same weights under other names"
    assert compare(ones, {name * 2: tensor for name, tensor in ones.items()}).summary[0] == names
    none = "A and B have no tensor in common: 3 tensors are only in A, 1 only in B"
    assert compare(ones, {"a": torch.zeros(3)}).summary[0] == none
    assert compare({}, {}).summary == ["A and B have no tensors", "metadata: 0 same"]
    q4 = convert_to(model, tmp_path / "q4.gguf", schemes={"a.*": "q4_0"}, exclude=["b.weight"], rules=())
    with glft.open(q4) as file:
        state = {f"new.{name}": tensor.dequantize() for name, tensor in file.tensors.items()}
    assert compare(q4, state).summary[0] == "A and B hold the same weights in other types and under other names"


def test_values_that_cannot_be_compared(tmp_path: Path) -> None:
    unknown = READ["a type of a fork, 200"].stored
    (tmp_path / "u.gguf").write_bytes(unknown)
    with Container.parse_file(tmp_path / "u.gguf") as file:
        (name,) = file.tensors
        shape = file.tensors[name].shape
    assert compare(tmp_path / "u.gguf", tmp_path / "u.gguf").is_same
    changed = bytearray(unknown)
    changed[-1] ^= 1
    (tmp_path / "v.gguf").write_bytes(changed)
    for other, state in ((tmp_path / "v.gguf", "changed"), ({name: torch.ones(shape)}, "retyped")):
        comparison = compare(tmp_path / "u.gguf", other)
        (tensor,) = comparison.tensors
        assert (tensor.state, tensor.errors) == (state, None)
        assert tensor.problem.startswith("type 200 is unknown")
        assert comparison.summary[0] == "A and B hold different weights"
    waves = {"w": torch.ones(2, dtype=torch.complex64)}
    assert compare(waves, {"w": waves["w"].clone()}).is_same
    (tensor,) = compare(waves, {"w": torch.ones(2)}).tensors
    assert tensor.problem == "complex values are not compared"
    assert tensor.before == ("w", "C64", (2,))
    assert states(compare(waves, {"v": torch.ones(2)})) == {"v": "added", "w": "removed"}


def test_numbers_that_became_nan() -> None:
    before = {"w": torch.randn(4, 64), "v": torch.randn(4, 64)}
    after = {name: tensor.clone() for name, tensor in before.items()}
    after["w"][0, 0] = float("nan")
    comparison = compare(before, after)
    assert comparison.summary[0] == "A and B hold different weights: 1 NaN or infinity differs"
    assert comparison.errors.snr == -torch.inf
    after["w"][1, :2] = float("inf")
    after["v"] *= 1.01
    comparison = compare(before, after)
    ratio = r"signal-to-noise ratio 4\d\.\d dB over 2 of 2 tensors"
    assert re.fullmatch(f"A and B hold different weights: {ratio}, 3 NaN or infinities differ", comparison.summary[0])
    assert [tensor.name for tensor in comparison.differing] == ["w", "v"]


def test_exclusion_progress_and_refusals(model: Path, tmp_path: Path) -> None:
    torch.save({**STATE, "step": 3}, tmp_path / "m.pt")
    shares: list[tuple[str, float]] = []
    comparison = compare(model, tmp_path / "m.pt", exclude=["step", "norm"], progress=lambda *share: shares.append(share))
    assert states(comparison) == dict.fromkeys(STATE.keys() - {"norm"}, "same")
    assert [name for name, _ in shares] == [name for name in STATE if name != "norm"]
    assert shares[-1][1] == 1
    with pytest.raises(TensorError, match=r"tensor 'step': expected a tensor of torch or an array of numpy, found 3"):
        compare(model, tmp_path / "m.pt")
    with pytest.raises(SchemeError, match="did you mean 'norm'"):
        compare(model, STATE, exclude=["norn"])
    (tmp_path / "text").write_text("hello")
    with pytest.raises(FormatError, match="magic"):
        compare(model, tmp_path / "text")
