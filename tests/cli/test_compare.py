"""`glft compare`, and `glft verify --derives-from`."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import torch

from glft_schema import Typed, read_importance, save_file
from glft_schema.weights import ColumnSums, ImportanceMatrix
from tests.tools.command_line import assert_refused
from tests.tools.command_line import in_this_process as glft

generator = torch.Generator().manual_seed(0)
STATE = {name: torch.randn(4, 256, generator=generator) for name in ("a.weight", "b.weight")} | {"norm": torch.ones(5)}
METADATA = {"general.architecture": "toy", "n": 3, "tokens": [f"token {i}" for i in range(2000)], "x": [1.0, float("nan"), 2.0]}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    save_file(STATE, tmp_path / "base.gguf", METADATA, format="gguf", rules=())
    return tmp_path / "base.gguf"


def quantized(out: Path, **options: Any) -> Path:
    save_file(STATE, out, METADATA, schemes={"*": "q4_k", "b.*": "q8_0"}, rules=(), **options)
    return out


def test_equal_files(base: Path, tmp_path: Path) -> None:
    torch.save({**STATE, "step": 1}, tmp_path / "m.pt")
    done = glft("compare", base, base)
    assert (done.returncode, done.stderr) == (0, "")
    about = f"{base}: GGUF, 3 tensors, 4 metadata entries"
    same = "A and B hold the same weights"
    assert done.stdout.splitlines() == [f"A {about}", f"B {about}", same, "tensors: 3 same", "metadata: 4 same"]
    done = glft("compare", base, tmp_path / "m.pt", "--exclude", "step")
    assert (done.returncode, done.stdout.splitlines()[1:3]) == (
        1,
        [f"B {tmp_path / 'm.pt'}: torch, 4 tensors, 0 metadata entries", same],
    )


def test_other_types_and_metadata(base: Path, tmp_path: Path) -> None:
    tokens, x = [*METADATA["tokens"]], [1.0, float("nan"), 3.0]  # type: ignore[misc]
    tokens[1500] = "other"
    changed = {**METADATA, "n": Typed(3, "uint8"), "tokens": tokens, "x": x, "new": "a\x1bb"}
    del changed["general.architecture"]
    other = {**STATE, "norm": torch.zeros(4), "extra": torch.zeros(2)}
    save_file(other, tmp_path / "q.gguf", changed, schemes={"a.weight": "q4_k", "b.weight": "q8_0"}, rules=())
    done = glft("compare", base, tmp_path / "q.gguf")
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (1, "")
    assert lines[2].startswith("1 tensor is only in B; the tensors in both hold different weights: signal-to-noise ratio 2")
    assert lines[3] == "tensors: 2 retyped (1 F32 to Q4_K, 1 F32 to Q8_0), 1 reshaped, 1 added"
    assert lines[4] == "metadata: 0 same, 3 changed, 1 added, 1 removed"
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in lines[6:] if line}
    first = "array[string] of 2,000, from 1,500: ['{}', 'token 1501', 'token 1502', 'tok"
    assert rows["tokens"].startswith(f"changed {first.format('token 1500')}... {first.format('other')}")
    assert rows["x"] == "changed array[float32] of 3, from 2: [2.0] array[float32] of 3, from 2: [3.0]"
    assert rows["n"] == "changed uint32 3 uint8 3"
    assert rows["new"] == r"added string 'a\x1bb'"
    assert rows["general.architecture"] == "removed string 'toy'"
    assert rows["norm"] == "reshaped F32, [5] to [4], values of different shapes are not compared"
    assert rows["extra"] == "added F32 [2]"
    assert rows["a.weight"].startswith("retyped F32 to Q4_K 0.0")
    names = [line.split()[0] for line in lines[lines.index("") + 7 :] if line]
    assert names.index("norm") < names.index("a.weight") < names.index("b.weight")  # the largest errors first


def test_as_json(base: Path, tmp_path: Path) -> None:
    same = json.loads(glft("compare", base, base, "--json").stdout)
    assert (same["same"], same["tensors"], same["same_tensors"], same["metadata"]) == (True, [], 3, [])
    assert (same["a"], same["errors"]["snr"]) == ({"file": str(base), "format": "GGUF", "tensors": 3, "metadata": 4}, None)
    state = {"a.weight": STATE["a.weight"] * 2, "b.weight": torch.full((4, 256), torch.nan), "norm": torch.ones(5).half()}
    save_file(state, tmp_path / "o.gguf", {**METADATA, "n": 4, "tokens": ["a"]}, format="gguf", rules=())
    done = glft("compare", base, tmp_path / "o.gguf", "--json")
    found = json.loads(done.stdout, parse_constant=pytest.fail)
    assert (done.returncode, found["same"], found["same_metadata"]) == (1, False, 2)
    assert found["metadata"] == [
        {"key": "n", "state": "changed", "a": {"type": "uint32", "value": 3}, "b": {"type": "uint32", "value": 4}},
        {
            "key": "tokens",
            "state": "changed",
            "a": {"type": "array[string]", "length": 2000, "first": [f"token {i}" for i in range(8)]},
            "b": {"type": "array[string]", "value": ["a"]},
        },
    ]
    tensors = {tensor.pop("name"): tensor for tensor in found["tensors"]}
    assert {name: tensor["state"] for name, tensor in tensors.items()} == {
        "a.weight": "changed",
        "b.weight": "changed",
        "norm": "retyped",
    }
    a = tensors["a.weight"]["errors"]
    assert (a["snr"], a["relative"], a["cosine"]) == (pytest.approx(0), pytest.approx(1), pytest.approx(1))
    assert (a["count"], a["worst_row_error"]) == (1024, pytest.approx(1))
    assert tensors["b.weight"]["errors"]["unlike"] == 1024
    assert tensors["norm"]["b"] == {"name": "norm", "type": "F16", "shape": [5]}
    text = glft("compare", base, tmp_path / "o.gguf").stdout
    assert "F32, 1024 NaN or infinities" in text


def test_as_a_page(base: Path, tmp_path: Path) -> None:
    one, other, page = tmp_path / "one.gguf", tmp_path / "other.gguf", tmp_path / "page.html"
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}" + "{{ '<|im_start|>' }}" * 5
    for path, text in ((one, template), (other, template.replace("content", "<script>text</script>"))):
        short = {"general.name": "x", "lines": f"a\nb\n{text[:70]}\nc"}
        save_file(STATE, path, {**METADATA, **short, "tokenizer.chat_template": text}, schemes={"a.*": "q8_0"}, rules=())
    done = glft("compare", base, other, "--html", page)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, f"{page}: {page.stat().st_size:,} bytes")
    assert "Texts that changed" not in page.read_text()  # they were added
    done = glft("compare", one, other, "--html", page, "--json")
    assert (done.returncode, json.loads(done.stdout)["same_tensors"], done.stderr) == (1, 3, "")
    html = page.read_text()
    assert re.search(r"<h1.*<bdi>one\.gguf</bdi> and <bdi>other\.gguf</bdi></h1>", html)
    assert "<p>A and B hold the same weights</p><p>tensors: 3 same</p><p>metadata: 5 same, 2 changed</p>" in html
    assert "toy, " in html
    diffs = [
        re.findall(r"<(\w+)[^>]*>([^<]*)</", found) for found in re.findall(r'<pre class="diff".*?</pre>', html, re.DOTALL)
    ]
    old, new = (unescape(text) for text in ("{{ message['content'] }}", "{{ message['<script>text</script>'] }}"))
    parts = [("span", f" {part}") for part in ("{{ '<|im_start|>' }}",)]
    lines, tags = ([(tag, unescape(text)) for tag, text in diff[1:]] for diff in diffs)
    assert lines[2:4] == [
        ("del", f"-{template[:70]}"),
        ("ins", f"+{template.replace('content', '<script>text</script>')[:70]}"),
    ]
    loop, end = ("span", " {% for message in messages %}"), ("span", " {% endfor %}")
    assert tags == [loop, ("del", f"-{old}"), ("ins", f"+{new}"), end, *parts * 2]
    assert "tensor-search" not in html
    assert glft("compare", one, one, "--html", page).returncode == 0
    assert "that differ" not in page.read_text()
    assert_refused(glft("compare", one, other, "--html", other), "the output would overwrite the input")


def test_files_that_cannot_be_compared(base: Path, tmp_path: Path) -> None:
    assert_refused(glft("compare", base, tmp_path / "missing"), f"{tmp_path / 'missing'}: No such file or directory")
    (tmp_path / "text").write_text("hello")
    assert_refused(glft("compare", tmp_path / "text", base), "text: header -> magic: ")
    assert_refused(glft("compare", base, base, "--exclude", "x"), "expected a tensor that matches 'x', found none")


def test_derivation(base: Path, tmp_path: Path) -> None:
    path = quantized(tmp_path / "q.gguf")
    done = glft("verify", path, "--derives-from", base)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == f"{path} derives from {base}: 1 copied, 2 exact"
    found = json.loads(glft("verify", path, "--derives-from", base, "--json").stdout)["derives_from"]
    assert (found["base"], found["imatrix"], found["counts"]) == (str(base), None, {"exact": 2, "copied": 1})
    assert found["tensors"][0] == {"name": "a.weight", "type": "Q4_K", "verdict": "exact", "problem": ""}

    sums = {"a.weight": ColumnSums(torch.rand(1, 256, generator=generator), torch.tensor([7]))}
    ImportanceMatrix(sums, ("text",), 1).save(tmp_path / "i.gguf")
    weighted = quantized(tmp_path / "w.gguf", importance=read_importance(tmp_path / "i.gguf"))
    done = glft("verify", weighted, "--derives-from", base)
    lines = done.stdout.splitlines()
    assert done.returncode == 1
    assert lines[-4] == f"{weighted} is not confirmed to derive from {base}: 1 copied, 1 exact, 1 unknown"
    assert lines[-2].split()[:4] == ["a.weight", "Q4_K", "unknown", "the"]
    assert lines[-1] == "give the importance matrix with --imatrix to check tensors that may have used one"
    assert glft("verify", weighted, "--derives-from", base, "--imatrix", tmp_path / "i.gguf").returncode == 0
    done = glft("verify", path, "--derives-from", base, "--imatrix", tmp_path / "i.gguf", "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["holds"], found["derives_from"]["counts"]) == (
        1,
        False,
        {"differs": 1, "exact": 1, "copied": 1},
    )
    differing = found["derives_from"]["tensors"][0]
    assert (differing["verdict"], differing["problem"]) == ("differs", "other bytes")
    assert 0 < differing["encoding"]["relative"] < 0.1
    assert 0 < differing["from_encoding"]["relative"] < differing["from_base"]["relative"] + differing["encoding"]["relative"]
    assert 0 < differing["differing"] < 1
    assert glft("verify", weighted, "--derives-from", base, "--exclude", "a.*").returncode == 0

    assert_refused(glft("verify", path, "--imatrix", base), "glft: --imatrix requires --derives-from\n")
    assert_refused(glft("verify", path, "--tolerance", 1), "glft: --tolerance requires --derives-from\n")
    assert_refused(glft("verify", path, "--derives-from", tmp_path / "no"), f"{tmp_path / 'no'}: No such file")
    refused = glft("verify", path, "--derives-from", base, "--imatrix", base)
    assert_refused(refused, f"{base}: metadata -> general.type: expected 'imatrix', found None")


def test_the_worst_tensors_are_listed(tmp_path: Path) -> None:
    one, other = tmp_path / "one.gguf", tmp_path / "other.gguf"
    tensors = {f"t{i}": torch.full((4,), 1.0) for i in reversed(range(23))}  # the least error first
    save_file(tensors, one, METADATA, rules=())
    save_file({name: values * (1 + 2.0 ** -int(name[1:])) for name, values in tensors.items()}, other, METADATA, rules=())
    lines = glft("compare", one, other).stdout.splitlines()
    assert [line.split()[0] for line in lines[-21:-1]] == [f"t{i}" for i in range(20)]
    found = json.loads(glft("compare", other, one, "--json").stdout)["tensors"]
    assert [tensor["name"] for tensor in found] == [f"t{i}" for i in range(23)]
    assert lines[-1] == "  ... and 3 more: --all"
    assert glft("compare", one, other, "--all").stdout.splitlines()[-1].split()[0] == "t22"
