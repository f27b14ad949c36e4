"""Provenance of quantized files. Payloads are made by llama.cpp, and then tampered with."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import glft_schema as glft
from glft_schema import OptionError, SchemeError, TensorError, convert, save_file
from glft_schema.checks import Derivation, NumberErrors, check_derivation
from glft_schema.tensor_types.ggml import GGML_TYPES
from tests.catalogue.gguf_cases import READ
from tests.oracles import llama_cpp

generator = torch.Generator().manual_seed(0)
BASE = {name: torch.randn(8, 512, generator=generator) for name in ("a", "b", "c", "d")} | {"norm": torch.ones(512)}
TYPES = {"a": "Q8_0", "b": "Q4_K", "c": "Q4_0", "d": "F16", "norm": "F32"}
IMPORTANCE = {name: torch.rand(512, generator=generator) + 0.1 for name in ("a", "b", "c", "d")}


def by_llama_cpp(path: Path, importance: dict[str, torch.Tensor]) -> Path:
    """Writes a file whose quantized payloads llama.cpp has made."""
    save_file(BASE, path, format="gguf", schemes={name: type_.lower() for name, type_ in TYPES.items()})
    with glft.open(path) as file, path.open("r+b") as stream:
        for name, tensor in file.tensors.items():
            if not tensor.type.exact:
                columns, size = importance.get(name), tensor.type.nbytes([1, 512])
                stream.seek(tensor.position)
                stream.write(
                    llama_cpp.quantize(tensor.type.code, BASE[name].numpy(), size, None if columns is None else columns.numpy())
                )
    return path


def derivations(path: Path, base: Any = BASE, **options: Any) -> dict[str, Derivation]:
    return {derivation.name: derivation for derivation in check_derivation(path, base, **options)}


def verdicts(path: Path, base: Any = BASE, **options: Any) -> dict[str, str]:
    return {name: derivation.verdict for name, derivation in derivations(path, base, **options).items()}


def errors_of(derivation: Derivation) -> list[NumberErrors]:
    """Returns the errors from the encoding, from the base, and of the encoding."""
    return [errors for errors in derivation[-3:] if isinstance(errors, NumberErrors)]


EXACT = {"a": "exact", "b": "exact", "c": "exact", "d": "exact", "norm": "exact"}


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return by_llama_cpp(tmp_path / "plain.gguf", {})


def test_files_made_by_llama_cpp(plain: Path, tmp_path: Path) -> None:
    assert verdicts(plain) == EXACT
    save_file(BASE, tmp_path / "base.gguf", format="gguf")
    assert verdicts(plain, tmp_path / "base.gguf") == {**EXACT, "norm": "copied"}
    with glft.open(tmp_path / "base.gguf") as base:
        assert verdicts(plain, base) == {**EXACT, "norm": "copied"}


def test_files_made_with_importance(plain: Path, tmp_path: Path) -> None:
    weighted = by_llama_cpp(tmp_path / "weighted.gguf", IMPORTANCE)
    assert verdicts(weighted, BASE, importance=IMPORTANCE) == EXACT
    assert verdicts(weighted) == {**EXACT, "b": "unknown", "c": "unknown"}
    assert verdicts(plain, BASE, importance=IMPORTANCE) == {**EXACT, "b": "differs", "c": "differs"}
    assert verdicts(weighted, BASE, importance={"b": IMPORTANCE["b"]}) == {**EXACT, "c": "differs"}
    unknown = derivations(weighted)["b"]
    assert unknown.problem == "the encoder may have used an importance matrix"
    _, from_base, encoding = errors_of(unknown)
    assert from_base.relative == pytest.approx(encoding.relative, rel=0.1)


def test_types_that_need_an_importance(tmp_path: Path) -> None:
    base = {name: BASE[name][:1, :256] for name in ("a", "b")}
    importance = {name: IMPORTANCE[name][:256] for name in base}
    save_file(base, tmp_path / "f.gguf", schemes={"*": "iq2_xxs"}, importance=importance)
    assert verdicts(tmp_path / "f.gguf", base, importance=importance) == {"a": "exact", "b": "exact"}
    for given, verdict in (({"a": importance["a"]}, "exact"), (None, "unknown")):
        found = derivations(tmp_path / "f.gguf", base, importance=given)
        assert [found[name].verdict for name in "ab"] == [verdict, "unknown"]
        assert found["b"].problem == "IQ2_XXS requires an importance matrix"
        assert not found["b"].is_confirmed


def test_a_changed_code(plain: Path) -> None:
    with glft.open(plain) as file:
        position = file.tensors["a"].position
    stored = bytearray(plain.read_bytes())
    stored[position + 2] ^= 1  # the first code of the first block
    plain.write_bytes(stored)
    found = derivations(plain)
    assert [name for name, derivation in found.items() if not derivation.is_confirmed] == ["a"]
    weight = found["a"]
    assert (weight.verdict, weight.problem, weight.differing) == ("differs", "other bytes", 1 / (8 * 16 * 34))
    from_encoding, from_base, encoding = errors_of(weight)
    (scale,) = np.frombuffer(stored[position:][:2], np.float16)
    assert (from_encoding.largest, from_encoding.worst_row) == (pytest.approx(float(scale)), (0,))
    assert encoding.squares < from_base.squares < 1.1 * encoding.squares


def test_tensors_of_other_weights(plain: Path) -> None:
    other = {**BASE, "b": BASE["c"], "c": BASE["b"]}
    assert verdicts(plain, other, importance=IMPORTANCE)["b"] == "differs"
    swapped = derivations(plain, other)["b"]
    assert swapped.verdict == "unknown"
    _, from_base, encoding = errors_of(swapped)
    assert from_base.snr < 0 < 20 < encoding.snr


def test_tensors_that_were_quantized_twice(tmp_path: Path) -> None:
    quantized = {name: GGML_TYPES["Q4_0"].round_trip(tensor.numpy(), name) for name, tensor in BASE.items()}
    save_file(quantized, tmp_path / "f.gguf", schemes={"a": "q8_0", "c": "q4_0"})
    found = derivations(tmp_path / "f.gguf", exclude=["b"])
    assert [found[name].verdict for name in ("a", "c", "d")] == ["differs", "exact", "differs"]
    _, from_base, encoding = errors_of(found["a"])
    assert from_base.relative > 10 * encoding.relative


def test_missing_extra_and_other_shapes(plain: Path) -> None:
    base = {**BASE, "a": torch.ones(4, 512), "b": torch.full((8, 512), math.nan), "more": torch.ones(2)}
    del base["c"]
    found = {name: (derivation.verdict, derivation.problem) for name, derivation in derivations(plain, base).items()}
    assert found == {
        "a": ("differs", "expected shape [4, 512], found [8, 512]"),
        "b": ("unknown", "NaN and infinities cannot be quantized"),
        "c": ("extra", "only in the file"),
        "d": ("exact", ""),
        "norm": ("exact", ""),
        "more": ("missing", "not in the file"),
    }
    assert derivations(plain, base)["more"].type is None
    assert verdicts(plain, {**base, "d": torch.ones(8, 512).long()}, exclude=["a", "[bc]", "more"])["d"] == "differs"


def test_byte_orders(tmp_path: Path) -> None:
    save_file(BASE, tmp_path / "base.gguf", format="gguf")
    schemes = {name: type_.lower() for name, type_ in TYPES.items()}
    convert(tmp_path / "base.gguf", tmp_path / "big.gguf", schemes=schemes, header={"byte_order": "big"})
    assert verdicts(tmp_path / "big.gguf", tmp_path / "base.gguf") == {**EXACT, "norm": "copied"}


def test_unknown_types(tmp_path: Path) -> None:
    unknown = READ["a type of a fork, 200"].stored
    for name, stored in (("u", unknown), ("v", unknown[:-1] + bytes([unknown[-1] ^ 1])), ("w", unknown + bytes(32))):
        (tmp_path / f"{name}.gguf").write_bytes(stored)
    with glft.open(tmp_path / "u.gguf") as file:
        (tensor,) = file.tensors.values()
    hint = "type 200 is unknown; add it with glft_schema.types.register_type"
    for base, *expected in (
        (tmp_path / "u.gguf", "copied", ""),
        (tmp_path / "v.gguf", "differs", "other bytes"),
        (tmp_path / "w.gguf", "differs", f"expected {tensor.nbytes + 32} bytes, found {tensor.nbytes}"),
        ({tensor.name: torch.ones(tensor.shape)}, "unknown", hint),
    ):
        (found,) = derivations(tmp_path / "u.gguf", base).values()
        assert [found.verdict, found.problem] == expected


@pytest.mark.parametrize(
    ("base", "options", "error", "problem"),
    [
        (BASE, {"importance": {"x": IMPORTANCE["a"]}}, OptionError, r"covers none of these tensors \(it has 1 other tensor"),
        (BASE, {"importance": {"b": torch.ones(3)}}, TensorError, "expected 512 importance values, one per column, found 3"),
        (BASE, {"exclude": ["x"]}, SchemeError, "expected a tensor that matches 'x'"),
        ({"a": 3}, {}, TensorError, "tensor 'a': expected a tensor of torch or an array of numpy, found 3"),
    ],
)
def test_refusals(base: Any, options: dict[str, Any], error: type[Exception], problem: str, plain: Path) -> None:
    with pytest.raises(error, match=problem):
        verdicts(plain, base, **options)


def test_excluded_entries_may_be_anything(plain: Path) -> None:
    assert verdicts(plain, {**BASE, "e": 3}, exclude=["e"]) == EXACT
