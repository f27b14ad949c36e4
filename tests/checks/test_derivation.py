"""Provenance of quantized files. Payloads are made by llama.cpp, and then tampered with."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import glft_schema as glft
from glft_schema import Container, OptionError, SchemeError, TensorError, convert, save_file
from glft_schema.checks import Derivation, NumberErrors, check_derivation
from glft_schema.tensor_types.ggml import GGML_TYPES
from tests.catalogue.gguf_cases import READ
from tests.oracles import llama_cpp

generator = torch.Generator().manual_seed(0)
BASE = {name: torch.randn(8, 512, generator=generator) for name in ("a", "b", "c", "d")} | {"norm": torch.ones(512)}
TYPES = {"a": "Q8_0", "b": "Q4_K", "c": "Q4_0", "d": "F16", "norm": "F32"}
IMPORTANCE = {name: torch.rand(512, generator=generator) + 0.1 for name in ("a", "b", "c", "d")}


def by_llama_cpp(path: Path, importance: dict[str, torch.Tensor], types: dict[str, str] = TYPES) -> Path:
    """Writes a file whose quantized payloads llama.cpp has made."""
    data: dict[str, Any] = {}
    for name, type_name in types.items():
        type_ = GGML_TYPES[type_name]
        if type_.exact:
            data[name] = {"weights": BASE[name].numpy().astype(type_.dtype)}
        else:
            columns = importance.get(name)
            size = type_.nbytes([1, 512])
            made = llama_cpp.quantize(type_.code, BASE[name].numpy(), size, None if columns is None else columns.numpy())
            data[name] = {"blocks": made.reshape(8, -1, type_.nbytes([1, type_.least_row]))}
    infos = [{"name": name, "dims": list(BASE[name].shape)[::-1], "dtype": type_name} for name, type_name in types.items()]
    Container.build_file({"format": "GGUF", "metadata": {}, "tensor_infos": infos, "data": data}, path)
    return path


def verdicts(path: Path, base: Any = BASE, **options: Any) -> dict[str, str]:
    return {name: derivation.verdict for name, derivation in derivations(path, base, **options).items()}


def derivations(path: Path, base: Any = BASE, **options: Any) -> dict[str, Derivation]:
    with glft.open(path) as file:
        return {derivation.name: derivation for derivation in check_derivation(file, base, **options)}


def errors_of(derivation: Derivation) -> list[NumberErrors]:
    """Returns the errors from the encoding, from the base, and of the encoding."""
    return [errors for errors in derivation[-3:] if isinstance(errors, NumberErrors)]


def test_files_made_by_llama_cpp(tmp_path: Path) -> None:
    exact = {"a": "exact", "b": "exact", "c": "exact", "d": "exact", "norm": "exact"}
    plain = by_llama_cpp(tmp_path / "plain.gguf", {})
    assert verdicts(plain) == exact
    save_file(BASE, tmp_path / "base.gguf", format="gguf")
    assert verdicts(plain, tmp_path / "base.gguf") == {**exact, "norm": "copied"}
    with glft.open(tmp_path / "base.gguf") as base:
        assert verdicts(plain, base) == {**exact, "norm": "copied"}
    weighted = by_llama_cpp(tmp_path / "weighted.gguf", IMPORTANCE)
    assert verdicts(weighted, BASE, importance=IMPORTANCE) == exact
    assert verdicts(weighted) == {**exact, "b": "unknown", "c": "unknown"}
    assert verdicts(plain, BASE, importance=IMPORTANCE) == {**exact, "b": "differs", "c": "differs"}
    assert verdicts(weighted, BASE, importance={"b": IMPORTANCE["b"]}) == {**exact, "c": "differs"}
    unknown = derivations(weighted)["b"]
    assert unknown.problem == "the encoder may have used an importance matrix"
    _, from_base, encoding = errors_of(unknown)
    assert from_base.relative == pytest.approx(encoding.relative, rel=0.1)


def test_types_that_need_an_importance(tmp_path: Path) -> None:
    base = {name: BASE[name][:1, :256] for name in ("a", "b")}
    importance = {name: IMPORTANCE[name][:256] for name in base}
    save_file(base, tmp_path / "f.gguf", schemes={"*": "iq2_xxs"}, importance=importance)
    assert verdicts(tmp_path / "f.gguf", base, importance=importance) == {"a": "exact", "b": "exact"}
    del importance["b"]
    for given, verdict in ((importance, "exact"), (None, "unknown")):
        found = derivations(tmp_path / "f.gguf", base, importance=given)
        assert found["a"].verdict == verdict
        assert (found["b"].verdict, found["b"].problem) == ("unknown", "IQ2_XXS requires an importance matrix")
        assert not found["b"].is_confirmed


def test_tampered_files(tmp_path: Path) -> None:
    path = by_llama_cpp(tmp_path / "f.gguf", {})
    with glft.open(path) as file:
        positions = {name: tensor.position for name, tensor in file.tensors.items()}
    honest = path.read_bytes()
    stored = bytearray(honest)
    stored[positions["a"] + 2] ^= 1  # the first code of the first block
    path.write_bytes(stored)
    found = derivations(path)
    assert {name for name, derivation in found.items() if not derivation.is_confirmed} == {"a"}
    weight = found["a"]
    assert (weight.verdict, weight.problem, weight.differing) == ("differs", "other bytes", 1 / (8 * 16 * 34))
    from_encoding, from_base, encoding = errors_of(weight)
    (scale,) = np.frombuffer(stored[positions["a"] :][:2], np.float16)
    assert (from_encoding.largest, from_encoding.worst_row) == (pytest.approx(float(scale)), (0,))
    assert encoding.squares < from_base.squares < 1.1 * encoding.squares

    other = {**BASE, "b": BASE["c"], "c": BASE["b"]}
    path.write_bytes(honest)
    assert verdicts(path, other, importance=IMPORTANCE)["b"] == "differs"
    swapped = derivations(path, other)["b"]
    assert swapped.verdict == "unknown"
    _, from_base, encoding = errors_of(swapped)
    assert from_base.snr < 0 < 20 < encoding.snr

    quantized = {name: GGML_TYPES["Q4_0"].round_trip(tensor.numpy(), name) for name, tensor in BASE.items()}
    save_file(quantized, path, format="gguf", schemes={"a": "q8_0", "c": "q4_0"})
    found = derivations(path, exclude=["b"])
    assert [found[name].verdict for name in ("a", "c", "d")] == ["differs", "exact", "differs"]
    _, from_base, encoding = errors_of(found["a"])
    assert from_base.relative > 10 * encoding.relative


def test_missing_extra_and_other_shapes(tmp_path: Path) -> None:
    path = by_llama_cpp(tmp_path / "f.gguf", {})
    base = {**BASE, "a": torch.ones(4, 512), "b": torch.full((8, 512), math.nan), "more": torch.ones(2)}
    del base["c"]
    found = {name: (derivation.verdict, derivation.problem) for name, derivation in derivations(path, base).items()}
    assert found == {
        "a": ("differs", "expected shape [4, 512], found [8, 512]"),
        "b": ("unknown", "NaN and infinities cannot be quantized"),
        "c": ("extra", "only in the file"),
        "d": ("exact", ""),
        "norm": ("exact", ""),
        "more": ("missing", "not in the file"),
    }
    assert derivations(path, base)["more"].type is None
    assert verdicts(path, {**base, "d": torch.ones(8, 512).long()}, exclude=["a", "[bc]", "more"])["d"] == "differs"


def test_byte_order_and_unknown_types(tmp_path: Path) -> None:
    save_file(BASE, tmp_path / "base.gguf", format="gguf")
    schemes = {name: type_.lower() for name, type_ in TYPES.items()}
    convert(tmp_path / "base.gguf", tmp_path / "big.gguf", schemes=schemes, header={"byte_order": "big"})
    assert verdicts(tmp_path / "big.gguf", tmp_path / "base.gguf") == dict.fromkeys("abcd", "exact") | {"norm": "copied"}

    unknown = READ["a type of a fork, 200"].stored
    (tmp_path / "u.gguf").write_bytes(unknown)
    (tmp_path / "v.gguf").write_bytes(unknown[:-1] + bytes([unknown[-1] ^ 1]))
    (tmp_path / "w.gguf").write_bytes(unknown + bytes(32))
    with glft.open(tmp_path / "u.gguf") as file:
        (tensor,) = file.tensors.values()
    for base, verdict, problem in (
        (tmp_path / "u.gguf", "copied", ""),
        (tmp_path / "v.gguf", "differs", "other bytes"),
        (tmp_path / "w.gguf", "differs", f"expected {tensor.nbytes + 32} bytes, found {tensor.nbytes}"),
        (
            {tensor.name: torch.ones(tensor.shape)},
            "unknown",
            "type 200 is unknown; add it with glft_schema.types.register_type",
        ),
    ):
        (found,) = derivations(tmp_path / "u.gguf", base).values()
        assert (found.verdict, found.problem) == (verdict, problem)


def test_refusals(tmp_path: Path) -> None:
    path = by_llama_cpp(tmp_path / "f.gguf", {})
    with pytest.raises(OptionError, match=r"the importance matrix covers none of these tensors \(it has 1 other tensor"):
        verdicts(path, BASE, importance={"x": IMPORTANCE["a"]})
    with pytest.raises(TensorError, match="expected 512 importance values, one per column, found 3"):
        verdicts(path, BASE, importance={"b": torch.ones(3)})
    with pytest.raises(SchemeError, match="expected a tensor that matches 'x'"):
        verdicts(path, exclude=["x"])
    with pytest.raises(TensorError, match="tensor 'a': expected a tensor of torch or an array of numpy, found 3"):
        verdicts(path, {"a": 3})
    assert verdicts(path, {**BASE, "e": 3}, exclude=["e"])["a"] == "exact"
