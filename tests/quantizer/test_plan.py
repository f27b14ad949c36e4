"""Measured errors, mixes against a search of all mixes, and recipes that `quantize` takes."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import glft_schema
from glft_schema import OptionError, SchemeError, TensorError, Typed, plan, quantize
from glft_schema.cli.options import bytes_of
from glft_schema.formats.registry import WITH_TYPES
from glft_schema.quantizer import Candidate, Mix, Plan, TensorPlan
from glft_schema.quantizer.plan import MOST_UNITS, spread_rows
from glft_schema.quantizer.plan_picture import Point, picture
from glft_schema.quantizer.recipe_files import read_recipe
from glft_schema.quantizer.recipes import RECIPES
from tests.quantizer import models
from tests.quantizer.both import importances
from tests.tools.command_line import assert_refused
from tests.tools.command_line import in_this_process as glft
from tests.tools.depth import some

FEW = ["q4_0", "q5_0", "q8_0", "f16"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A llama of two layers, in F32."""
    return write(tmp_path / "in.gguf", models.tensors())


def write(path: Path, weights: dict[str, torch.Tensor]) -> Path:
    models.write(path, models.keys(), weights)
    return path


def decoded(source: Path, type_: str, importance: dict[str, torch.Tensor] | None = None) -> dict[str, np.ndarray]:
    """Returns the tensors of a file that `quantize` makes with one type."""
    out = source.with_name(f"{type_}.gguf")
    quantize(source, out, glft_schema.quantizer.Recipe(type_, 0, type_), importance=importance)
    with glft_schema.open(out) as file:
        return {name: tensor.dequantize().double().numpy() for name, tensor in file.tensors.items()}


@pytest.mark.parametrize("experts", [0, 4])
@pytest.mark.parametrize("weighted", [False, True])
def test_errors(tmp_path: Path, experts: int, weighted: bool) -> None:
    weights = models.tensors(1, experts=experts, tied=False, fused=True)
    source = write(tmp_path / "in.gguf", weights)
    importance = importances(weights) if weighted else None
    planned = plan(source, importance=importance, types=["q4_0", "q5_1"], rows=100)
    for type_ in ("q4_0", "q5_1"):
        found = decoded(source, type_, importance)
        for tensor in planned.tensors:
            original = weights[tensor.name].double().numpy()
            given = (importance or {}).get(tensor.name)
            columns = np.ones(1) if given is None else given.double().numpy()[..., None, :]
            noise = (columns * (found[tensor.name] - original) ** 2).sum() / (columns * original**2).sum()
            (candidate,) = (one for one in tensor.candidates if one.type.scheme == type_)
            assert candidate.error == pytest.approx(noise, rel=1e-6)
            assert candidate.snr == pytest.approx(-10 * math.log10(noise))
            assert candidate.nbytes == candidate.type.nbytes(original.shape)


def random_plan(seed: int, scale: int = 1) -> Plan:
    """A plan of three tensors with four candidates each, of random sizes and errors."""
    random, types = np.random.default_rng(seed), WITH_TYPES.types
    tensors = []
    for name in "abc":
        sizes = (random.integers(1, 60, 4) * scale + random.integers(0, scale, 4)).tolist()
        errors = random.random(4).tolist()
        candidates = [Candidate(types[kind.upper()], *both) for kind, *both in zip(FEW, sizes, errors, strict=True)]
        weights = int(random.integers(1, 9))
        tensors.append(TensorPlan(name, weights, 1, tuple(sorted(candidates, key=lambda one: one[1:]))))
    return Plan(tuple(tensors), 7, 100, 5)


def all_mixes(planned: Plan) -> list[tuple[int, float]]:
    """Returns bytes and error of each mix of three tensors."""
    weights = [tensor.weights for tensor in planned.tensors]
    return [
        (sum(one.nbytes for one in mix), float(np.average([one.error for one in mix], weights=weights)))
        for mix in itertools.product(*(tensor.candidates for tensor in planned.tensors))
    ]


@pytest.mark.parametrize("seed", range(10))
def test_a_mix_beside_all_mixes(seed: int) -> None:
    planned = random_plan(seed)
    every = all_mixes(planned)
    least = min(every)[0]
    for room in range(least, max(every)[0] + 10):
        mix = planned.mix(size=room + 7 + 5)
        assert mix.nbytes <= room + 7
        assert mix.size == mix.nbytes + 5
        assert mix.error == pytest.approx(min(error for nbytes, error in every if nbytes <= room))
        assert (mix.nbytes - 7, pytest.approx(mix.error)) in every
    with pytest.raises(OptionError, match=rf"smallest mix \({least + 12} bytes, .* per weight\), found {least + 11} bytes"):
        planned.mix(size=least + 11)
    assert planned.mix(bpw=8 * (least + 7) / 100).chosen == planned.smallest.chosen


@pytest.mark.parametrize("seed", range(3))
def test_a_mix_of_sizes_without_a_common_divisor(seed: int) -> None:
    planned = random_plan(seed, scale=100_003)
    every = all_mixes(planned)
    for room in range(min(every)[0], max(every)[0] + 100_000, 49_999):
        mix = planned.mix(size=room + 7 + 5)
        unit = (room - min(every)[0]) // MOST_UNITS + 1
        errors = [min((e for nbytes, e in every if nbytes <= most), default=math.inf) for most in (room, room - 4 * unit)]
        assert mix.nbytes <= room + 7
        assert errors[0] - 1e-12 <= mix.error <= errors[1] + 1e-12


def assert_full(planned: Plan, mix: Mix, size: int) -> None:
    """Asserts that no tensor has a better type that would fit."""
    for tensor in planned.tensors:
        for one in tensor.candidates:
            if one.error < mix.chosen[tensor.name].error:
                assert planned.mix_of({**mix.chosen, tensor.name: one}).size > size


@pytest.mark.parametrize("seed", range(10))
def test_a_mix_beside_recipes(seed: int) -> None:
    """Sizes are rounded up to large units, so that the search alone finds worse mixes."""
    planned, random = random_plan(seed, scale=100_003), np.random.default_rng(seed)
    for number in range(20):
        chosen = {tensor.name: tensor.candidates[random.integers(4)] for tensor in planned.tensors}
        recipe = planned.mix_of(chosen)
        limits = {"size": recipe.size} if number % 2 else {"bpw": 8 * recipe.nbytes / planned.weights}
        mix = dataclasses.replace(planned, recipes={"recipe": recipe}).mix(**limits)  # type: ignore[arg-type]
        assert mix.error <= recipe.error
        assert mix.size <= recipe.size
        assert_full(planned, mix, recipe.size)


@pytest.mark.parametrize(("columns", "alignment"), [(256, 32), (64, 32), (256, 64)])
def test_the_size_of_a_mix_is_that_of_its_file(tmp_path: Path, columns: int, alignment: int) -> None:
    """At the size of each file type the mix is no worse, and the file has exactly its size."""
    weights = models.tensors(1, tied=False, width=columns)
    sums = glft_schema.weights.ColumnSums(torch.ones(1, columns), torch.tensor([1]))
    glft_schema.weights.ImportanceMatrix({"blk.0.attn_q.weight": sums}, ("a text",), 3).save(tmp_path / "imatrix.gguf")
    keys = models.keys(layers=1) | {"general.alignment": Typed(alignment, "uint32")}
    models.write(tmp_path / "in.gguf", keys, weights)
    given, out = {"importance": tmp_path / "imatrix.gguf"}, tmp_path / "out.gguf"
    planned = plan(tmp_path / "in.gguf", types=["q4_0", "q4_k", "q5_0", "q6_k", "q8_0", "f16"], **given)
    assert {"Q4_0", "Q8_0", "F16"} <= planned.recipes.keys()
    for name, recipe in planned.recipes.items():
        quantize(tmp_path / "in.gguf", out, name, **given)
        size = out.stat().st_size
        assert recipe.size == size
        mix = planned.mix(size=size)
        quantize(tmp_path / "in.gguf", out, mix.recipe, **given)
        assert out.stat().st_size == mix.size <= size
        assert mix.error <= recipe.error
        assert planned.mix(bpw=recipe.bits_per_weight).error <= recipe.error
        assert_full(planned, mix, size)


def test_the_candidates(source: Path) -> None:
    columns = {"blk.0.attn_q.weight": torch.arange(1.0, 257)}
    planned = plan(source, importance=columns, rows=1)
    types = {tensor.name: {one.type.scheme for one in tensor.candidates} for tensor in planned.tensors}
    legacy = {"q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl", "f16"}
    k_quants = {"q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_xs"}
    assert types["blk.0.ffn_down.weight"] == legacy  # of 64 columns
    assert types["blk.1.attn_q.weight"] == legacy | k_quants
    of_few_bits = {"iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s"}
    assert types["blk.0.attn_q.weight"] == legacy | k_quants | of_few_bits
    assert "output_norm.weight" not in types
    assert {tensor.rows for tensor in planned.tensors} == {1}


def test_candidates_that_do_not_fit(source: Path) -> None:
    few = {tensor.name: tensor.candidates for tensor in plan(source, types=["q4_k", "iq2_xs"]).tensors}
    assert [one.type.scheme for one in few["blk.0.ffn_down.weight"]] == ["iq4_nl", "q5_0"]  # the fallback types
    assert [one.type.scheme for one in few["blk.0.attn_q.weight"]] == ["q4_k"]  # iq2_xs requires an importance


def test_rows() -> None:
    assert spread_rows(5, 5) == spread_rows(5, 9) == [0, 1, 2, 3, 4]
    rows = spread_rows(4096, 32)
    assert [row // 128 for row in rows] == [*range(32)]
    assert len({row % 64 for row in rows}) > 16


def test_tensors_of_no_energy(source: Path) -> None:
    weights = models.tensors()
    weights["blk.0.attn_q.weight"][:] = 0
    planned = plan(write(source, weights), importance={"blk.0.attn_k.weight": torch.zeros(256)}, types=["q8_0"])
    chosen = planned.smallest.chosen
    assert chosen["blk.0.attn_q.weight"].error == chosen["blk.0.attn_k.weight"].error == 0
    assert chosen["blk.0.attn_q.weight"].snr == math.inf > planned.smallest.snr


@pytest.mark.parametrize(("number", "types"), [(math.nan, ["f16", "q8_0"]), (1e5, ["f16"]), (math.inf, ["bf16"])])
def test_numbers_that_no_type_holds(source: Path, number: float, types: list[str]) -> None:
    weights = models.tensors()
    weights["blk.1.attn_q.weight"][0, 3] = number
    write(source, weights)
    with pytest.raises(TensorError, match=r"tensor 'blk.1.attn_q.weight'.*: none of the types can hold it; "):
        plan(source, types=types)
    if number == 1e5:
        planned = plan(source, types=["f16", "q8_0"])
        assert [len(tensor.candidates) for tensor in planned.tensors if tensor.name == "blk.1.attn_q.weight"] == [1]


def test_a_quantized_source(source: Path, tmp_path: Path) -> None:
    quantized, page = tmp_path / "q8_0.gguf", tmp_path / "page.html"
    quantize(source, quantized, "Q8_0")
    refusal = r"15 tensors \(Q8_0\) are quantized already, such as 'token_embd.weight': requantizing adds error"
    with pytest.raises(SchemeError, match=refusal):
        plan(quantized, types=FEW)
    planned = plan(quantized, types=FEW, allow_requantize=True)
    assert planned.warning == "quantized already: 15 tensors (Q8_0); errors are against these, not the original weights"
    assert repr(planned) == f"<Plan: {planned.warning}; 15 tensors and 4 types to choose from>"
    command = ("plan", quantized, "--allow-requantize", "--types", "q4_0,q8_0", "--bpw", "9")
    assert glft(*command, "--html", page).stdout.splitlines()[0] == planned.warning
    assert f"{planned.warning[1:]}." in page.read_text("utf-8")
    assert json.loads(glft(*command, "--json").stdout)["warning"] == planned.warning


def test_types_that_few_tensors_can_have_are_last(source: Path) -> None:
    planned = plan(source, types=["q2_k", "q4_0", "q8_0"])
    assert planned.warning == ""
    names = [name for name, _ in planned.compare(planned.mix(bpw=9))]
    assert names == ["Q4_0", "mix", "Q8_0", "Q2_K"]  # the rows of ffn_down are not a multiple of 256


def test_file_types_beside_the_mix(source: Path) -> None:
    types = ["f16", "q4_0", "q4_k", "q5_0", "q5_k", "q6_k", "q8_0"]
    planned = plan(source, types=types)
    recipes = planned.recipes
    for limit in (planned.smallest.size, recipes["Q4_K_M"].size, recipes["F16"].size):
        size = planned.mix(size=limit).size
        line = glft("plan", source, "--size", limit, "--types", ",".join(types)).stdout.splitlines()[1]
        found = [recipes[name] for name in re.findall(r"(\S+) would be ", line)]
        fitting = [mix.snr for mix in recipes.values() if mix.size <= size]
        larger = [mix.size for mix in recipes.values() if mix.size > size]
        assert [mix.snr for mix in found if mix.size <= size] == ([max(fitting)] if fitting else [])
        assert [mix.size for mix in found if mix.size > size] == ([min(larger)] if larger else [])


def test_no_rows_to_measure(source: Path) -> None:
    with pytest.raises(OptionError, match="expected at least 1 row to measure, found 0"):
        plan(source, rows=0)


@pytest.mark.parametrize("limits", [{}, {"size": 1, "bpw": 1.0}])
def test_one_limit(limits: dict[str, float]) -> None:
    with pytest.raises(OptionError, match=r"expected exactly one of size and bpw \(--size, --bpw\)"):
        random_plan(0).mix(**limits)  # type: ignore[arg-type]


def test_a_recipe_for_quantize(source: Path, tmp_path: Path) -> None:
    recipe, out, types = tmp_path / "recipe.txt", tmp_path / "out.gguf", [*FEW, "q3_k"]
    least = plan(source, types=types).smallest.size
    for size in some((least, least + 300, least + 900, least + 3000, 30000), 2):
        done = glft("plan", source, "--size", size, "-o", recipe, "--types", ",".join(types))
        assert (done.returncode, done.stderr) == (0, "")
        nbytes = quantize(source, out, recipe).nbytes
        assert done.stdout.startswith(f"mix: {nbytes:,} bytes of tensors, ")
        assert f"a file of {out.stat().st_size:,} bytes" in done.stdout
        assert out.stat().st_size <= size
        with glft_schema.open(out) as file:
            stored = {name: tensor.type.scheme for name, tensor in file.tensors.items()}
        assert read_recipe(recipe).tensors.items() <= stored.items()


def test_the_report(source: Path, tmp_path: Path) -> None:
    options = ("plan", source, "--bpw", "9", "--types", "q4_0,q8_0")
    mix, *_, rows, _, q4_0, chosen, q8_0 = glft(*options).stdout.splitlines()
    assert mix.startswith("mix: ")
    assert rows == "31 rows of 15 tensors measured"
    assert [row.split()[:4] for row in (q4_0, q8_0)] == [["Q4_0", "15", "4,032", "4.50"], ["Q8_0", "15", "7,616", "8.50"]]
    assert chosen.split()[:2] == ["mix", "15"]
    data = json.loads(glft(*options, "--json").stdout)
    assert data["types"]["q4_0"]["bits_per_weight"] == 4.5
    first = data["tensors"][0]
    assert (first["name"], first["weights"], first["rows"]) == ("token_embd.weight", 768, 3)
    assert 15 < first["types"]["q4_0"]["snr"] < first["types"]["q8_0"]["snr"]
    types = data["mix"]["tensors"]
    assert data["mix"]["bytes"] == 3120 + sum(tensor["types"][types[tensor["name"]]]["bytes"] for tensor in data["tensors"])
    assert "mix" not in json.loads(glft("plan", source, "--json", "--types", "q4_0", "--rows", "1").stdout)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--size", "90MB", "--bpw", "4"], "expected --size or --bpw, found both"),
        (["--size", "90 pounds"], "expected --size in bytes, kB, MB, GB, KiB, MiB or GiB, such as 90MB, found '90 pounds'"),
        (["--bpw", "nan"], "expected a finite number of bits per weight, found nan"),
        (["-o", "recipe"], "expected --size or --bpw for the recipe (--out), found neither"),
        (["--bpw", "1", "--types", "q4_0", "-o", "recipe"], "bits per weight), found 1 bits per weight"),
        (["--bpw", "9", "-o", "in.gguf"], "the output would overwrite the input"),
        (["--bpw", "9", "--imatrix", "matrix", "-o", "matrix"], "the output would overwrite the input"),
        (["--bpw", "9", "--like", "matrix", "--html", "matrix"], "the output would overwrite the input"),
    ],
)
def test_refused_on_the_command_line(source: Path, options: list[str], problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(source.parent)
    Path("matrix").write_bytes(b"old")
    assert_refused(glft("plan", source, *options), problem)
    assert sorted(os.listdir()) == ["in.gguf", "matrix"]


@pytest.mark.parametrize("seed", range(3))
def test_the_curve_of_best_mixes(seed: int) -> None:
    planned = random_plan(seed)
    curve = planned.best
    assert curve[0] == (planned.smallest.bits_per_weight, pytest.approx(planned.smallest.error))
    for bits, error in curve:
        assert planned.mix(size=round(bits * planned.weights / 8) + 5).error == pytest.approx(error)
    assert curve[-1][1] == pytest.approx(min(error for _, error in all_mixes(planned)))


def test_recipes_are_those_that_quantize_writes(source: Path, tmp_path: Path) -> None:
    planned = plan(source)
    assert {"Q4_0", "Q8_0", "F16", "Q4_K_M"} <= set(planned.recipes)
    assert planned.left_out["IQ2_XS"] == "requires an importance matrix (--imatrix)"
    assert planned.left_out["BF16"] == "not measured: bf16"
    assert {*planned.recipes, *planned.left_out} == {recipe.name for recipe in RECIPES}
    assert planned.recipes.keys().isdisjoint(planned.left_out)
    for name, mix in planned.recipes.items():
        written = quantize(source, tmp_path / "out.gguf", name, dry_run=True)
        assert mix.nbytes == written.nbytes
        types = {tensor.name: tensor.type.scheme for tensor in written.tensors}
        assert {tensor: one.type.scheme for tensor, one in mix.chosen.items()}.items() <= types.items()
    assert {"F16", "Q4_0"}.isdisjoint(plan(source, types=["q4_0", "q8_0"]).recipes)  # Q4_0 has a tensor in Q6_K


@pytest.mark.parametrize("mixed", [True, False])
def test_the_page(source: Path, tmp_path: Path, mixed: bool) -> None:
    model = source.rename(tmp_path / "<b>&.gguf")
    limit = ["--bpw", "9"] if mixed else []
    glft("plan", model, *limit, "--types", "q4_0,q6_k,q8_0", "--html", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text("utf-8")
    assert page.count("<title>Plan of &lt;b&gt;&amp;.gguf</title>") == 1
    for found in re.findall("<svg.*?</svg>", page, re.DOTALL):
        svg = ElementTree.fromstring(found)
        dots = {dot.findtext("title", "").partition(":")[0]: dot.find("circle") for dot in svg.iter("g")}
        assert ("mix" in dots) is mixed
        (x, y), (other_x, other_y) = ([float(dots[name].get(axis)) for axis in ("cx", "cy")] for name in ("Q4_0", "Q8_0"))  # type: ignore[union-attr, arg-type]
        assert x < other_x  # more bits
        assert y > other_y  # less error is above
        assert any(strip.findtext("title", "").startswith("best mix: ") for strip in svg.iter("rect"))
    assert re.search(r'"note">Not in the table: F32 \(not measured: f32\); .* IQ1_S \(requires an importance matrix', page)
    rows = re.findall(r"<tr><th scope=\"row\"><bdi>[^<]*</bdi></th>(.*)</tr>", page.partition('id="tensors"')[2])
    assert [len(re.findall(r'title="Q[48]_0: [\d.]+ dB', cells)) for cells in rows] == [2] * 15
    assert sum("chosen" in cells for cells in rows) == 15 * mixed


@pytest.mark.parametrize("width", [360, 960])
def test_labels_in_a_picture(width: int) -> None:
    points = [Point(f"Q{i}_K_M", 4 + i % 5 / 10, 20 + i // 5) for i in range(12)]
    labels = [*ElementTree.fromstring(picture([], [*points, Point("exact", 4, math.inf)], width)).findall(".//{*}g/{*}text")]
    boxes = [(float(label.get("x", "")), float(label.get("y", ""))) for label in labels]
    assert len(boxes) == 12
    assert all(0 <= x <= width - 7 * len(label.text or "") for label, (x, _) in zip(labels, boxes, strict=True))
    assert all(abs(y - b) >= 14 or abs(x - a) >= 40 for (x, y), (a, b) in itertools.combinations(boxes, 2))


def test_sizes() -> None:
    texts = ("90MB", "1.5 GiB", "7", "2kb", "3KiB", "90000000B")
    assert [bytes_of(text) for text in texts] == [90_000_000, 3 << 29, 7, 2000, 3072, 90_000_000]
