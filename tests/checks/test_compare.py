"""Comparison of two checkpoints."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import glft_schema as glft
from glft_schema import SchemeError, TensorError, Typed, compare, convert, save_file
from glft_schema.checks import Comparison
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
    save_file(STATE, tmp_path / "model.gguf", METADATA, rules=())
    return tmp_path / "model.gguf"


def states(comparison: Comparison) -> dict[str, str]:
    return {tensor.name: tensor.state for tensor in comparison.tensors}


def test_the_same_weights_in_every_container(model: Path, tmp_path: Path) -> None:
    safetensors.torch.save_file(STATE, tmp_path / "m.safetensors")
    torch.save(STATE, tmp_path / "m.pt")
    convert(model, tmp_path / "big.gguf", header={"byte_order": "big"}, alignment=64, rules=())
    (tmp_path / "shards").mkdir()
    glft.split(tmp_path / "m.safetensors", tmp_path / "shards" / "m", max_tensors=2)
    (index,) = (tmp_path / "shards").glob("*.json")
    with glft.open(model) as file:
        for other in (tmp_path / "m.safetensors", tmp_path / "m.pt", tmp_path / "big.gguf", index, index.parent, STATE, file):
            comparison = compare(model, other)
            assert set(states(comparison).values()) == {"same"}, other
            assert comparison.summary[:2] == ["A and B hold the same weights", "tensors: 5 same"]
    assert compare(STATE, tmp_path / "m.pt").is_same


def test_metadata_is_compared_with_its_types(model: Path, tmp_path: Path) -> None:
    assert compare(model, model).summary[2] == "metadata: 4 same"
    changed = {"n": Typed(3, "uint8"), "tokens": ["a", "c"], "new": True}
    save_file(STATE, tmp_path / "m.gguf", {"scores": METADATA["scores"], **changed}, rules=())
    comparison = compare(model, tmp_path / "m.gguf")
    assert [(change.state, *change) for change in comparison.metadata] == [
        ("removed", "general.architecture", Typed("toy", "string"), None),
        ("changed", "n", Typed(3, "uint32"), Typed(3, "uint8")),
        ("changed", "tokens", Typed(["a", "b"], "array[string]"), Typed(["a", "c"], "array[string]")),
        ("added", "new", None, Typed(True, "bool")),
    ]
    assert comparison.summary[2] == "metadata: 1 same, 2 changed, 1 added, 1 removed"
    assert not comparison.is_same


def test_metadata_of_formats_with_text(model: Path, tmp_path: Path) -> None:
    """Typed values are stored as marked text, and compared as values."""
    for suffix in (".glft", ".safetensors"):
        convert(model, tmp_path / f"m{suffix}", exclude=["n"])
        assert compare(model, tmp_path / f"m{suffix}").metadata == []
        save_file({}, tmp_path / f"x{suffix}", {"k": suffix, "l": "x"})
    (change,) = compare(tmp_path / "x.glft", tmp_path / "x.safetensors").metadata
    assert change == ("k", ".glft", ".safetensors")


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
    assert [(tensor.state, tensor.before and tensor.before.name, tensor.after) for tensor in comparison.tensors] == [
        ("added", None, ("new", "F32", (2, 2), 16)),
        ("renamed", "old", ("renamed", "F32", (4, 8), 128)),
        ("same", "same", ("same", "F32", (4, 8), 128)),
        ("changed", "changed", ("changed", "F32", (4, 8), 128)),
        ("retyped", "retyped", ("retyped", "F16", (4, 8), 64)),
        ("reshaped", "reshaped", ("reshaped", "F32", (8, 4), 128)),
        ("removed", "gone", None),
    ]
    _, renamed, _, changed, _, reshaped, _ = comparison.tensors
    assert changed.errors is not None
    assert changed.errors.squares == pytest.approx(4)
    assert renamed.has_same_values
    assert reshaped.problem == "values of different shapes are not compared"
    assert {tensor.state for tensor in comparison.differing[:4]} == {"renamed", "added", "removed", "reshaped"}
    assert comparison.summary[0].startswith("1 tensor is only in A, 1 only in B; the tensors in both hold different weights: ")
    assert comparison.summary[1] == (
        "tensors: 1 same, 1 changed, 1 retyped (1 F32 to F16), 1 reshaped, 1 renamed, 1 added, 1 removed"
    )


def without(*names: str, **changed: torch.Tensor) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in (STATE | changed).items() if name not in names}


A = {"a.weight": STATE["a.weight"] * 1.001}
ONES = {"x": torch.ones(3), "y": torch.ones(3), "z": torch.ones(3)}
NAN = {"norm": torch.cat([torch.tensor([torch.nan, torch.inf, torch.inf]), torch.ones(61)])}


@pytest.mark.parametrize(
    ("one", "other", "summary"),
    [
        (STATE, STATE | {"half": STATE["half"].float()}, "A and B hold the same weights in other types"),
        ({"zero": torch.tensor([0.0])}, {"zero": torch.tensor([-0.0])}, "A and B hold the same weights in other bytes"),
        (ONES, {name * 2: tensor for name, tensor in ONES.items()}, "A and B hold the same weights under other names"),
        (STATE, STATE | A, "A and B hold different weights: signal-to-noise ratio 60.0 dB over 1 of 5 tensors"),
        (
            STATE,
            without("norm", "n", **A),
            "2 tensors are only in A; the tensors in both hold different weights: "
            "signal-to-noise ratio 60.0 dB over 1 of 3 tensors",
        ),
        (without("norm", "n"), STATE, "2 tensors are only in B; the tensors in both hold the same weights"),
        (ONES, {"a": torch.zeros(3)}, "A and B have no tensor in common: 3 tensors are only in A, 1 only in B"),
        ({}, {}, "A and B have no tensors"),
        (STATE, STATE | NAN, "A and B hold different weights: 3 NaN or infinities differ"),
        (
            STATE,
            STATE | {"a.weight": STATE["a.weight"].flip(0).half()},
            r"A and B hold different weights: signal-to-noise ratio .* dB over 1 of 5 tensors",
        ),
        (
            STATE,
            STATE | NAN | A,
            "A and B hold different weights: signal-to-noise ratio .* dB over 2 of 5 tensors, 3 NaN or infinities differ",
        ),
    ],
)
def test_the_first_line_of_a_summary(one: Any, other: Any, summary: str) -> None:
    comparison = compare(one, other)
    assert re.fullmatch(summary, comparison.summary[0])
    assert comparison.is_same == (not (one or other))


@pytest.mark.parametrize(
    ("names", "summary"),
    [
        ("", "A and B hold the same weights, quantized differently: signal-to-noise ratio "),
        ("new.", "A and B hold the same weights in other types and under other names"),
    ],
)
def test_quantized_weights_are_the_same_weights(names: str, summary: str, model: Path, tmp_path: Path) -> None:
    convert(model, tmp_path / "q.gguf", schemes={"a.*": "q4_0"}, rules=())
    with glft.open(tmp_path / "q.gguf") as file:
        state = {f"new.{name}": tensor.dequantize() for name, tensor in file.tensors.items()}
    comparison = compare(tmp_path / "q.gguf", state if names else STATE)
    assert comparison.summary[0].startswith(summary)
    assert states(comparison)[f"{names}a.weight"] == ("renamed" if names else "retyped")


def test_renamed_tensors() -> None:
    """Equal bytes come first, then equal values; equal tensors are paired in their order."""
    comparison = compare(ONES, {"p": torch.ones(3).half(), "q": torch.ones(3), "r": torch.ones(3, 1)})
    pairs = {tensor.name: tensor.before and tensor.before.name for tensor in comparison.tensors}
    assert pairs == {"p": "y", "q": "x", "r": None, "z": "z"}


def test_values_of_unknown_types(tmp_path: Path) -> None:
    unknown, path, other = READ["a type of a fork, 200"].stored, tmp_path / "u.gguf", tmp_path / "v.gguf"
    path.write_bytes(unknown)
    other.write_bytes(unknown[:-1] + bytes([unknown[-1] ^ 1]))
    with glft.open(path) as file:
        floats = {tensor.name: torch.ones(tensor.shape) for tensor in file.tensors.values()}
    assert compare(path, path).is_same
    for changed, state in ((other, "changed"), (floats, "retyped")):
        comparison = compare(path, changed)
        (tensor,) = comparison.tensors
        assert (tensor.state, tensor.errors) == (state, None)
        assert tensor.problem.startswith("type 200 is unknown")
        assert comparison.summary[0] == "A and B hold different weights"


def test_complex_values_are_not_compared() -> None:
    waves = {"w": torch.ones(2, dtype=torch.complex64)}
    assert compare(waves, {"w": waves["w"].clone()}).is_same
    (tensor,) = compare(waves, {"w": torch.ones(2)}).tensors
    assert (tensor.problem, tensor.before) == ("complex values are not compared", ("w", "C64", (2,), 16))
    assert states(compare(waves, {"v": torch.ones(2)})) == {"v": "added", "w": "removed"}


def test_tensors_with_nan_differ_most() -> None:
    comparison = compare({"v": torch.ones(4), "w": torch.ones(1)}, {"v": torch.zeros(4), "w": torch.tensor([torch.nan])})
    assert comparison.errors.unlike == 1
    assert [tensor.name for tensor in comparison.differing] == ["w", "v"]


def test_exclusion_and_progress(model: Path, tmp_path: Path) -> None:
    torch.save({**STATE, "step": 3}, tmp_path / "m.pt")
    shares: list[tuple[str, float]] = []
    comparison = compare(model, tmp_path / "m.pt", exclude=["step", "norm"], progress=lambda *share: shares.append(share))
    assert states(comparison) == dict.fromkeys(STATE.keys() - {"norm"}, "same")
    assert [name for name, _ in shares] == [name for name in STATE if name != "norm"]
    assert shares[-1][1] == 1


def test_refusals(model: Path, tmp_path: Path) -> None:
    torch.save({**STATE, "step": 3}, tmp_path / "m.pt")
    with pytest.raises(TensorError, match=r"tensor 'step': expected a tensor of torch or an array of numpy, found 3"):
        compare(model, tmp_path / "m.pt")
    with pytest.raises(SchemeError, match="did you mean 'norm'"):
        compare(model, STATE, exclude=["norn"])
