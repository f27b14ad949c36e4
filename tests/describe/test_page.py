"""The content of a page without a browser: samples, errors, modules, fields, escaped text."""

from __future__ import annotations

import base64
import json
import math
import re
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import glft_schema
from glft_schema import Container, File, save_file
from glft_schema.describe.byte_map import byte_map
from glft_schema.describe.page import content, fields
from glft_schema.describe.page.content import page
from glft_schema.describe.page.frame import as_json, content_hash, visible
from glft_schema.describe.page.module_tree import modules
from glft_schema.describe.page.samples import BINS, GRID, RUNS, describe, heat_map, sample, sample_parts, sample_size
from glft_schema.files.parsing import parse_source
from glft_schema.weights import checkpoints
from tests.catalogue.gguf_cases import READ
from tests.describe.test_byte_map import Watched
from tests.formats.safetensors_files import file_of
from tests.golden import golden
from tests.oracles import glft_reference as reference
from tests.oracles.gguf_reference import File as Written
from tests.oracles.gguf_reference import Info
from tests.tools.command_line import in_this_process

HOSTILE = [
    "<script>window.ran = 1</script>",
    "</script><script>window.ran = 1</script>",
    '"><img src=x onerror="window.ran = 1">',
    "<!-- <script>",
    "'; window.ran = 1; //",
    "{{ 7 * 7 }}{% raw %}",
    "\u202egnp.\u2066exe\u2069",
    "nul\x00 tab\t line\n escape\x1b[31m",
    "line\u2028separator &lt;",
    "zero\u200bwidth",
    "__proto__",
    "a -> b -> c",
    "שלום.weight",
    "long" * 2000,
]


def first_in(html: str, pattern: str) -> str:
    """Returns the group of the first match of a pattern."""
    match = re.search(pattern, html, re.DOTALL | re.IGNORECASE)
    assert match
    return match[1]


def data_of(html: str) -> Any:
    """Returns the JSON of a page, as a browser takes it: up to the first end of a script."""
    return json.loads(first_in(html, r'<script type="application/json" id="data">(.*?)</script'))


def outline(html: str) -> list[str]:
    """Returns the names of the fields of a page, indented by their depth."""
    tree, depths = data_of(html)["files"][0]["fields"], list[int]()
    for parent in tree["parent"]:
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
    return [depth * " " + tree["texts"][name] for depth, name in zip(depths, tree["name"], strict=True)]


def in_memory(tensors: dict[str, torch.Tensor], schemes: Any = None, format: str = "glft", metadata: Any = None) -> File:
    """Returns a file with these tensors."""
    with tempfile.TemporaryDirectory() as folder:
        save_file(tensors, f"{folder}/made", metadata, schemes=schemes, format=format)
        return Container.parse(Path(folder, "made").read_bytes())


def hostile_file() -> bytes:
    """Returns a GGUF file whose names, keys and values are all hostile."""
    infos = [Info(name.encode(), [2], 0, bytes(8)) for name in HOSTILE]
    infos.append(Info(b"not utf-8 \xff\xfe", [2], 0, bytes(8)))
    entries = [(name.encode(), 8, name.encode()) for name in HOSTILE]
    entries.append((b"list", 9, (8, [name.encode() for name in HOSTILE])))
    return Written(entries=entries, infos=infos).bytes()


def test_visible() -> None:
    assert visible("a b.weight ñ 名") == "a b.weight ñ 名"
    assert visible("\u202e\x00\n\udcff\U000e0001") == "\\u202e\\x00\\x0a\\udcff\\U000e0001"
    assert visible("a\nb\tc\r", keep="\n\t") == "a\nb\tc\\x0d"
    assert visible("x" * 300, 10) == f"{'x' * 10} … (300 characters)"


@pytest.mark.parametrize("text", HOSTILE)
def test_json_holds_any_text_and_ends_no_element(text: str) -> None:
    stored = as_json([text, {text: text}])
    assert stored.isascii()
    assert not set("<>&").intersection(stored)
    assert json.loads(stored) == [text, {text: text}]


def test_modules() -> None:
    found = modules([("blk.0.q", 1), ("blk.0.k", 2), ("blk.1.q", 4), ("out.weight", 8), ("blk.0", 16), ("", 0), (".", 0)])
    blk = ["blk", 23, [["0", 3, [["q", 1, 0], ["k", 2, 1]]], ["1.q", 4, 2], ["0", 16, 4]]]
    assert found == ["", 31, [blk, ["out.weight", 8, 3], ["", 0, 5], [".", 0, 6]]]
    assert modules([]) == ["", 0, []]


def test_deep_names_make_no_deep_tree() -> None:
    found = modules([("." * 60_000, 1), ("a." * 30_000, 2)])
    assert json.loads(json.dumps(found))[1] == 3


SHAPES = [(1, 4096), (2, 1280), (3, 2048), (7, 768), (8, 256), (9, 512), (20, 2304), (300, 256)]
ROWS = [(1,), (7,), (100_000,), (3, 5), (5, 3, 7000)]  # of types without blocks


@pytest.mark.parametrize(
    ("type_", "unit", "format"),
    [
        ("f32", 1, "gguf"),
        ("q5_0", 32, "gguf"),
        ("q4_k", 256, "gguf"),
        ("q8_per_channel", 1, "glft"),
        ("q4_per_group_64", 64, "glft"),
    ],
)
def test_samples_are_few_runs_without_overlap(type_: str, unit: int, format: str) -> None:
    for shape in SHAPES + ROWS * (type_ == "f32"):
        with in_memory({"t": torch.randn(shape)}, {"*": type_}, format) as file:
            tensor = file.tensors["t"]
            numbers = torch.atleast_2d(tensor.dequantize()).flatten(1)
            for count in (1, 300, 1024, 5000, 1 << 16):
                found, seen = sample_parts(tensor, count), torch.zeros(numbers.shape)
                assert 1 <= len(found) <= RUNS
                for rows, across in found:
                    assert rows.step == 1
                    assert len(rows) == 1 or len(across) == numbers.shape[1]  # a run of neighbours
                    assert across.start % unit == across.stop % unit == 0
                    seen[rows.start : rows.stop, across.start : across.stop] += 1
                assert seen.max() == 1
                assert seen[0, 0] == seen[-1, -1] == 1 or len(found) == 1
                assert min(count, seen.numel()) / 4 <= seen.sum() <= max(count, RUNS * unit)
                parts = [numbers[rows.start : rows.stop, across.start : across.stop].flatten() for rows, across in found]
                np.testing.assert_allclose(sample(tensor, count), torch.cat(parts), rtol=1e-6)


@pytest.mark.parametrize("shape", [(1 << 13, 1 << 12), (1 << 25,)], ids=str)
@pytest.mark.parametrize(("code", "weights", "size"), [(1, 1, 2), (12, 256, 144)], ids=["F16", "Q4_K"])
def test_of_large_tensors_little_is_read(shape: tuple[int, ...], code: int, weights: int, size: int) -> None:
    nbytes, tensors = math.prod(shape) // weights * size, 2
    infos = [Info(b"blk.%d.w" % i, list(reversed(shape)), code, b"", i * nbytes) for i in range(tensors)]
    source = Watched(Written([], infos, bytes(tensors * nbytes)).bytes())
    file = parse_source(source)
    source.asked.clear()
    assert [found["count"] for found in data_of(page(file))["numbers"]] == [1 << 16] * tensors
    assert tensors << 16 < sum(asked for _, asked in source.asked) < tensors << 20


def test_a_heat_map_has_the_mean_magnitude_of_each_span() -> None:
    numbers = torch.randn(100, 50)
    numbers[99], numbers[0, 0] = 7.0, float("nan")  # the last row, the first cell
    with in_memory({"t": numbers, "row": torch.ones(9), "long": torch.ones(2, 40_000)}) as file:
        found, *others = (heat_map(tensor) for tensor in file.tensors.values())
    assert found
    assert others == [None, None]
    assert (found["step"] * (GRID[0] - 1), found["count"], found["columns"]) == (99, GRID[0], 50)
    cells = np.array(list(found["cells"])).reshape(GRID)
    assert cells[0, 0] == "-"
    assert set(cells[-1]) == {"z"}
    mean = numbers[found["step"], 50 * 3 // GRID[1] : 50 * 4 // GRID[1]].abs().mean()
    assert int(cells[1, 3], 36) == round(35 * (mean.item() - found["least"]) / (found["most"] - found["least"]))


def test_sample_size() -> None:
    assert sample_size(1) == sample_size(256) == 1 << 16
    assert sample_size(1 << 20) == 1 << 10


def test_description_of_numbers() -> None:
    numbers = np.random.default_rng(1).normal(size=5000)
    found = describe(np.append(numbers, [np.nan, np.nan, np.inf]))
    expected = {key: getattr(numbers, key)() for key in ("min", "max", "mean", "std")} | {"count": 5003, "nan": 2, "inf": 1}
    assert {key: found[key] for key in expected} == pytest.approx(expected, rel=1e-5)
    assert found["histogram"] == np.histogram(numbers, BINS)[0].tolist()


@pytest.mark.parametrize(
    "numbers",
    [
        *([0.0], [-0.0, 0.0], [1.0, 1.0], [5e-324, 0.0], [1.7e308, -1.7e308], [1.0, 1.0 + 2**-52]),
        *([3e-310, 4e-310, 5e-310], [1e300, 1e-300]),
    ],
)
def test_description_of_extreme_numbers(numbers: list[float]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = describe(np.array(numbers))
    assert sum(found["histogram"]) == len(numbers)
    assert min(found["histogram"][0], found["histogram"][-1]) >= 1
    as_json(found)


def test_no_numbers() -> None:
    assert describe(np.empty(0)) == {"count": 0}
    assert describe(np.array([np.nan])) == {"count": 1, "nan": 1}


def test_errors_against_the_source() -> None:
    inf, nan = float("inf"), float("nan")
    weights = {"w": torch.randn(40, 640), "same": torch.randn(3), "odd": torch.tensor([1.0, nan, inf])}
    with in_memory(weights | {"unlike": torch.tensor([1.0, inf, 3.0])}, {"w": "q4_per_group_64"}) as file:
        stored = np.array(reference.numbers(reference.Q4, [40, 640], bytes(file.tensors["w"].raw)))
        source = checkpoints.in_memory(weights | {"unlike": torch.tensor([1.5, 2.0, 3.0])})
        found = dict(zip(file.tensors, data_of(page(file, source))["errors"], strict=True))
        other = data_of(page(file, checkpoints.in_memory({"w": weights["w"][:, :64], "more": torch.ones(1)})))["errors"]
    numbers = weights["w"].double().numpy().reshape(-1)
    error = stored - numbers
    expected = {
        "max": np.abs(error).max(),
        "rms": np.sqrt(np.mean(error**2)),
        "relative": np.linalg.norm(error) / np.linalg.norm(numbers),
    }
    assert {key: found["w"][key] for key in expected} == pytest.approx(expected, rel=1e-5)
    cosine = stored @ numbers / np.linalg.norm(stored) / np.linalg.norm(numbers)
    assert (found["w"]["count"], found["w"]["cosine"]) == (error.size, pytest.approx(cosine, rel=1e-8))
    assert found["w"]["sample"]["histogram"] == np.histogram(error, BINS)[0].tolist()
    assert [(found[name]["max"], found[name]["rms"]) for name in ("same", "odd")] == [(0, 0)] * 2
    unlike = found["unlike"]
    assert (unlike["unlike"], unlike["max"], unlike["rms"]) == (1, 0.5, pytest.approx(0.5 / 2**0.5, rel=1e-5))
    problems = ["shape [40, 64] in the source, [40, 640] in the file", *["not in the source"] * 3]
    assert [error["problem"] for error in other] == problems


@pytest.mark.parametrize("name", ["four_types", "loose_layout", "gguf_little", "gguf_big"])
def test_fields_of_golden_files_are_in_order_and_whole(name: str) -> None:
    stored = golden(name)
    tree = data_of(page(Container.parse(stored)))["files"][0]["fields"]
    starts, sizes, parents = tree["start"], tree["size"], tree["parent"]
    assert starts == sorted(starts)
    for i, parent in enumerate(parents):
        assert parent < i
        assert parent < 0 or starts[parent] <= starts[i] <= starts[parent] + sizes[parent] - sizes[i]
    assert sum(size for size, parent in zip(sizes, parents, strict=True) if parent < 0) == len(stored)


def test_rows_and_payloads_of_tensors() -> None:
    with in_memory({"a": torch.ones(2, 64), "b": torch.ones(3), "c": torch.empty(0)}, {"a": "q4_per_group_64"}) as file:
        html = page(file)
        found, names = data_of(html), outline(html)
        tensors, starts = found["tensors"], found["files"][0]["fields"]["start"]
        row, (payload, other, none) = tensors["rows"][0], tensors["payloads"]
        assert names[row : row + 5] == [" 0", "  name", "   length", "   text", "  dims"]
        assert names[row + 8 : row + 10] == ["  dtype", "  offset"]
        assert names[payload : payload + 6] == [" 'a'", "  scales", "   0", "   0", "  nibbles", "   0"]
        assert (starts[other], none) == (file.tensors["b"].position, -1)  # the last one has no bytes


def test_the_punctuation_of_json_does_not_split_rows() -> None:
    text = '{"a": {"dtype":"U8","x":{"y":1},"shape":[1],"data_offsets":[0,1]},"__metadata__":{"k":"v","l":"w"}} '
    expected = """tensor_infos
 rest
 0
  name
  rest
  dtype
  rest
  'x'
  rest
  dims
  rest
  offset
  rest
  end
 rest
metadata
 0
  key
  rest
  value
 rest
 1
  key
  rest
  value
tensor_infos
tensor_infos"""
    assert outline(page(Container.parse(file_of(text, b"\1"))))[2:-4] == expected.splitlines()


@pytest.mark.parametrize("stored", [hostile_file(), golden("gguf_big"), READ["a type of a fork, 200"].stored])
def test_the_bytes_on_a_page_are_those_of_the_file(stored: bytes) -> None:
    end = -1
    for start, text in fields.segments(byte_map(Container.parse(stored))):
        assert start > end
        end = start + len(base64.b64decode(text))
        assert stored[start:end] == base64.b64decode(text)


def test_budgets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fields, "MAX_RANGES", 40)
    monkeypatch.setattr(content, "FINDINGS", 3)
    monkeypatch.setattr(content, "STATIC_ROWS", 5)
    with in_memory({f"t.{i}": torch.ones(4) for i in range(50)}) as file:
        html = page(file)
    found, names = data_of(html), outline(html)
    sizes, rows = found["files"][0]["fields"]["size"], found["tensors"]["rows"]
    assert (len(found["tensors"]["names"]), rows[0] >= 0, rows[-1]) == (50, True, -1)
    assert "fields omitted from this page because there are too many" in found["files"][0]["fields"]["texts"]
    assert sum(size for size, name in zip(sizes, names, strict=True) if name[0] != " ") == file.source.size
    assert "5 of 50 tensors, in the order of the file" in html


def test_three_hundred_tensors_stay_under_two_megabytes() -> None:
    tokens = [f"token {i}" for i in range(49_152)]
    metadata = {"general.architecture": "toy", "tokens": tokens, "scores": np.zeros(49_152, np.float32)}
    tensors = {f"blk.{i // 9}.attention_{i % 9}.weight": torch.randn(64, 64) for i in range(300)}
    with in_memory(tensors, {"*": "q8_0"}, "gguf", metadata) as file:
        assert len(page(file, checkpoints.in_memory(tensors))) < 2_000_000


def test_hostile_text_is_escaped() -> None:
    with Container.parse(hostile_file()) as file:
        html = page(file)
    assert len(re.findall(r"<script[ >]", html)) == 2
    assert "<img" not in html
    for letter in "\u202e\u2066\u2028\u200b\x00\x1b":
        assert letter not in html
    names = data_of(html)["tensors"]["names"]
    assert (names[0], names[6], names[-1]) == (HOSTILE[0], "\\u202egnp.\\u2066exe\\u2069", "not utf-8 \\udcff\\udcfe")
    assert names[-2].endswith("(8,000 characters)")


def test_the_policy_lets_only_this_script_run() -> None:
    with in_memory({"t": torch.ones(2)}) as file:
        html = page(file)
    policy = first_in(html, r'Content-Security-Policy" content="([^"]*)"')
    assert policy.startswith("default-src 'none'; ")
    for part in ("script", "style"):
        assert f"{part}-src '{content_hash(first_in(html, f'<{part}>(.*?)</{part}>'))}'" in policy
    assert not re.findall(r"<(?:link|iframe|img|object|embed)\b|\bsrc=|https?:(?!//www\.w3\.org/2000/svg)|url\(", html)
    assert not re.findall(r"\binnerHTML|\binsertAdjacentHTML|\bdocument\.write|\beval\(|\sstyle=|\son[a-z]+=\"", html)


def test_findings_and_unclaimed_bytes() -> None:
    assert "gguf-utf8" in page(Container.parse(READ["a string that is not UTF-8"].stored))
    loose = Container.parse(golden("loose_layout"))
    assert "5 bytes in gaps between payloads, or after the last one." in page(loose)


def viewed(path: Path, stored: bytes, *options: object) -> tuple[str, str]:
    """Returns the page of a broken file, and the error."""
    path.write_bytes(stored)
    out = path.with_suffix(".html")
    done = in_this_process("view", path, "-o", out, *options)
    html = out.read_text("utf-8")
    assert (done.returncode, done.stdout) == (2, f"{out}: {out.stat().st_size:,} bytes\n")
    return html, done.stderr


def test_a_truncated_file_is_a_page_of_its_complete_tensors(tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    infos = [Info(b"a", [8], 0, np.arange(8, dtype="<f4").tobytes()), Info(b"b", [8], 0, bytes(32))]
    stored = Written([(b"k", 8, b"v")], infos).bytes()
    html, error = viewed(path, stored[:-10])
    assert error.startswith(f"glft: {path}: data -> 'b' -> weights: the file is truncated: ")
    assert "The file is broken: no reader can read all of it." in html
    assert f"Show byte {len(stored) - 32:,}" in html
    found = data_of(html)
    assert (found["tensors"]["names"], found["metadata"]) == (["a", "b"], [["k", "string", "v"]])
    assert found["numbers"][0]["count"] == 8
    assert found["numbers"][1] == {"problem": "10 bytes are missing"}


def test_a_broken_file_is_a_page_of_what_precedes_the_fault(tmp_path: Path) -> None:
    stored = Written([(b"k", 8, b"v")], [Info(b"w", [8], 0, bytes(32)), Info(b"w", [8], 0, bytes(32))]).bytes()
    html, error = viewed(tmp_path / "broken.gguf", stored)
    assert error.endswith("[gguf-names-once]\n")
    assert "<code>gguf-names-once</code> <small>required</small>" in html
    found = data_of(html)
    assert (found["tensors"]["names"], found["metadata"]) == ([], [["k", "string", "v"]])
    assert outline(html).count("  name") == 2  # the rule is broken after both are parsed
    assert "w" in found["files"][0]["fields"]["value"]
    html, error = viewed(tmp_path / "empty.gguf", b"")
    assert "found 0: the file is empty (at byte 0)" in error
    assert data_of(html)["metadata"] == []


def test_an_unknown_type() -> None:
    found = data_of(page(Container.parse(READ["a type of a fork, 200"].stored)))
    assert "type 200" in [type_["name"] for type_ in found["types"]]
    assert {"problem": "type 200 is unknown; add it with glft_schema.types.register_type"} in found["numbers"]


def test_a_file_without_tensors_or_metadata() -> None:
    found = data_of(page(Container.parse(Container.build({"format": "GLFT"}))))
    assert (found["tensors"]["names"], found["metadata"]) == ([], [])


def test_names_of_folders_are_not_on_the_page(tmp_path: Path) -> None:
    path = tmp_path / "secret-folder" / "model.glft"
    path.parent.mkdir()
    save_file({"t": torch.ones(2)}, path)
    with glft_schema.open(path) as file:
        assert "secret-folder" not in page(file)


def test_the_command(tmp_path: Path) -> None:
    weights = {"w": torch.randn(2, 64)}
    torch.save(weights, tmp_path / "model.pt")
    path, out = tmp_path / "model.glft", tmp_path / "page.html"
    save_file(weights, path, None, schemes={"*": "q4_per_group_64"})
    done = in_this_process("view", path, "-o", out, "--against", tmp_path / "model.pt")
    assert (done.returncode, done.stdout) == (0, f"{out}: {out.stat().st_size:,} bytes\n")
    assert "1 of 1 tensors compared" in out.read_text()
    out.unlink()
    for arguments, problem in (
        ((path, "-o", path), "the output would overwrite the input\n"),
        ((path, "-o", out, "--against", tmp_path / "none"), f"{tmp_path / 'none'}: No such file or directory\n"),
        ((tmp_path / "model.pt", "-o", out), f"{tmp_path / 'model.pt'}: header -> magic: expected"),
    ):
        done = in_this_process("view", *arguments)
        assert (done.returncode, done.stderr[: 6 + len(problem)]) == (2, f"glft: {problem}")
        assert not out.exists()
