"""Quantizations ranked by their distance from the model. The oracle is gguf-py with numpy."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import safetensors.torch
import torch

import glft_schema as glft
from glft_schema.checks import Ranking
from tests.models.conftest import tiny_gguf
from tests.tools.command_line import assert_refused, in_this_process

STATE = {name: torch.randn(8, 256, generator=torch.Generator().manual_seed(i)) for i, name in enumerate(("a", "b", "c"))}
SCHEMES = {"q8.gguf": {"[ab]": "q8_0"}, "q4.gguf": {"[ab]": "q4_0"}, "one.gguf": {"a": "q4_0"}, "same.gguf": {}}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, schemes in {"model.gguf": {}, **SCHEMES}.items():
        glft.save_file(STATE, name, {"general.architecture": "toy"}, schemes=schemes, rules=())
    return tmp_path


def weights(path: Path) -> dict[str, np.ndarray]:
    return {
        one.name: gguf.quants.dequantize(one.data, one.tensor_type).reshape(8, 256) for one in gguf.GGUFReader(path).tensors
    }


def test_ratios_are_over_the_tensors_that_any_file_changes(folder: Path) -> None:
    """So a file that changes one tensor is nearer than one that changes two as much."""
    ranking = Ranking({name: glft.compare("model.gguf", name) for name in SCHEMES})
    assert list(ranking) == ["same.gguf", "q8.gguf", "one.gguf", "q4.gguf"]
    model = weights(folder / "model.gguf")
    for name in SCHEMES:
        found = weights(folder / name)
        noise, signal = (
            sum(float((part[key].astype(float) ** 2).sum()) for key in "ab")
            for part in ({key: found[key] - model[key] for key in "ab"}, model)
        )
        assert ranking.snr(name) == pytest.approx(10 * np.log10(signal / noise) if noise else np.inf)
    assert ranking.rows()[:2] == [
        ("file", "weights", "bits per weight", "SNR", "remark"),
        ("same.gguf", "24.58 kB", "32.00", "inf dB", "the original's values"),
    ]
    assert repr(ranking) == "<Ranking: 4 quantizations, the best first>"
    assert [line.split()[:3] for line in str(ranking).splitlines()[4:]] == [
        ["same.gguf", "24.58", "kB"],
        ["q8.gguf", "12.54", "kB"],
        ["one.gguf", "17.54", "kB"],
        ["q4.gguf", "10.5", "kB"],
    ]


def test_files_without_some_tensors_come_last(folder: Path) -> None:
    nan = torch.full((8, 256), torch.nan)
    glft.save_file({"a": STATE["a"], "b": nan}, "part.gguf", {"general.architecture": "toy"}, rules=())
    done = in_this_process("compare", "model.gguf", "part.gguf", "q4.gguf", "same.gguf")
    assert (done.returncode, done.stderr) == (1, "")
    about, covered, _, *rows = done.stdout.splitlines()
    snr = f"{glft.compare('model.gguf', 'q4.gguf').errors.snr:.1f}"
    assert about == "model.gguf: GGUF, 3 tensors, 1 metadata entry, 24.58 kB, 32.00 bits per weight"
    assert covered == "signal-to-noise ratios over the 2 tensors that differ in some file"
    assert [row.split() for row in rows][1:] == [
        ["same.gguf", "24.58", "kB", "32.00", "inf", "dB", "the", "original's", "values"],
        ["q4.gguf", "10.5", "kB", "13.67", snr, "dB"],
        ["part.gguf", "16.38", "kB", "32.00", "-inf", "dB", "2", "tensors", "not", "compared"],
    ]


def test_as_json(folder: Path) -> None:
    done = in_this_process("compare", "model.gguf", "q4.gguf", "q8.gguf", "same.gguf", "--json")
    found = json.loads(done.stdout)["ranking"]
    assert [one["b"]["file"] for one in found] == ["same.gguf", "q8.gguf", "q4.gguf"]
    assert [(one["bytes"], one["snr"] is None, one["same_tensors"]) for one in found] == [
        (24576, True, 3),
        (12544, False, 1),
        (10496, False, 1),
    ]


@pytest.mark.parametrize(
    ("tensors", "snr", "remark"),
    [
        ({"x": torch.ones(8, 256)}, "", "another model"),
        ({name: one[:4] for name, one in STATE.items()}, "", "another model"),
        (STATE, "inf dB", "the original's values"),
        ({name: one.flip(0) for name, one in STATE.items()}, "-3.", "different weights"),
        ({name: one.double() + 1e-9 for name, one in STATE.items()}, "1", "more bits per weight than the original"),
    ],
)
def test_files_that_are_no_quantizations_have_a_remark(
    tensors: dict[str, torch.Tensor], snr: str, remark: str, folder: Path
) -> None:
    safetensors.torch.save_file(tensors, "other.safetensors")
    ranking = Ranking({name: glft.compare("model.gguf", name) for name in ("q8.gguf", "other.safetensors")})
    rows = {row[0]: row for row in ranking.rows()}
    assert rows["other.safetensors"][3].startswith(snr)
    assert rows["other.safetensors"][4] == ranking.measures("other.safetensors")["remark"] == remark
    assert rows["q8.gguf"][4] == ""


def test_errors_of_a_quantized_original_are_not_counted(folder: Path) -> None:
    lines = in_this_process("compare", "q8.gguf", "q4.gguf", "model.gguf").stdout.splitlines()
    assert lines[1] == "quantized already: 2 tensors (Q8_0); errors are against these, not the original weights"


def test_another_model_does_not_run(tmp_path: Path) -> None:
    """So it does not keep those after it from running."""
    model = tiny_gguf(tmp_path, "tiny-llama")
    glft.quantize(model, tmp_path / "q8.gguf", "Q8_0")
    glft.save_file({"x": torch.ones(3)}, tmp_path / "other.gguf", {"general.architecture": "mamba"}, rules=())
    done = in_this_process("compare", model, tmp_path / "other.gguf", tmp_path / "q8.gguf", "--run", "--chunks", "1")
    assert (done.returncode, done.stderr) == (1, "")
    assert [(len(row.split()), row.split()[-1]) for row in done.stdout.splitlines()[4:]] == [(11, "%"), (6, "model")]


def test_the_same_file_twice_has_one_row(folder: Path) -> None:
    assert len(in_this_process("compare", "model.gguf", "q8.gguf", "q8.gguf").stdout.splitlines()) == 5


def test_a_page_is_of_one_comparison(folder: Path) -> None:
    done = in_this_process("compare", "model.gguf", "q4.gguf", "q8.gguf", "--html", "page.html")
    assert_refused(done, "--html and --all show one comparison: give one file to compare with model.gguf")


def test_models_that_run_are_ranked_by_divergence(tmp_path: Path) -> None:
    model = tiny_gguf(tmp_path, "tiny-llama")
    (tmp_path / "text.txt").write_text("the a b " * 100)
    paths = [tmp_path / f"{name}.gguf" for name in ("Q4_0", "Q8_0")]
    for path in paths:
        glft.quantize(model, path, path.stem)
    options = ["--text", tmp_path / "text.txt", "--chunks", "2", "--context", "32"]
    expected = {
        path: glft.models.compare_predictions(model, path, text="the a b " * 100, chunks=2, context=32) for path in paths
    }
    done = in_this_process("compare", model, *paths, *options)
    about, _, _, head, *rows = done.stdout.splitlines()
    assert about.endswith(f", perplexity {expected[paths[0]].perplexity_a:.4f} over 30 tokens")
    assert head.split()[-6:] == ["perplexity", "divergence", "largest", "same", "top", "token"]
    assert [row.split()[0] for row in rows] == [str(path) for path in reversed(paths)]
    for path, row in zip(reversed(paths), rows, strict=True):
        found = expected[path]
        assert row.split()[6:9] == [f"{found.perplexity_b:.4f}", f"{found.mean_divergence:.5f}", f"{found.max_divergence:.3f}"]


def test_a_model_that_does_not_run_is_ranked_by_its_weights(tmp_path: Path) -> None:
    model, other = tiny_gguf(tmp_path, "tiny-llama"), tmp_path / "other.gguf"
    glft.quantize(model, tmp_path / "q8.gguf", "Q8_0")
    glft.save_file(glft.load_file(model), other, {"general.architecture": "mamba"}, rules=())
    done = in_this_process("compare", model, tmp_path / "q8.gguf", other, "--run", "--chunks", "1")
    problem = f"glft: {other}: metadata -> general.architecture: expected a declared architecture, found 'mamba'"
    assert (done.returncode, done.stderr.startswith(problem), done.stderr.count("\n")) == (2, True, 1)
    assert [len(row.split()) for row in done.stdout.splitlines()[4:]] == [11, 9]
    done = in_this_process("compare", model, tmp_path / "q8.gguf", other, "--run", "--chunks", "1", "--json")
    assert [next(iter(one["predictions"])) for one in json.loads(done.stdout)["ranking"]] == ["perplexity_a", "problem"]
