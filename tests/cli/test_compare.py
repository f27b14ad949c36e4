"""`glft compare`; what is compared is tested in checks/test_compare.py."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path

import pytest
import torch

from glft_schema import Typed, save_file
from tests.tools.command_line import in_this_process as glft

generator = torch.Generator().manual_seed(0)
STATE = {name: torch.randn(4, 256, generator=generator) for name in ("a.weight", "b.weight")} | {"norm": torch.ones(5)}
METADATA = {"general.architecture": "toy", "n": 3, "tokens": [f"token {i}" for i in range(2000)], "x": [1.0, float("nan"), 2.0]}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    save_file(STATE, tmp_path / "base.gguf", METADATA, rules=())
    return tmp_path / "base.gguf"


def test_equal_weights(base: Path, tmp_path: Path) -> None:
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
    assert (done.returncode, done.stderr) == (1, "")
    rows = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert rows[3:5] == [
        "tensors: 2 retyped (1 F32 to Q4_K, 1 F32 to Q8_0), 1 reshaped, 1 added",
        "metadata: 0 same, 3 changed, 1 added, 1 removed",
    ]
    first = "array[string] of 2,000, from 1,500: ['{}', 'token 1501', 'token 1502', 'tok{}..."
    assert rows[7:12] == [
        "general.architecture removed string 'toy'",
        "n changed uint32 3 uint8 3",
        f"tokens changed {first.format('token 1500', '')} {first.format('other', 'en 15')}",
        "x changed array[float32] of 3, from 2: [2.0] array[float32] of 3, from 2: [3.0]",
        r"new added string 'a\x1bb'",
    ]
    assert rows[14:16] == ["norm reshaped F32, [5] to [4], values of different shapes are not compared", "extra added F32 [2]"]
    assert [row[:33] for row in rows[16:]] == [  # the largest errors first
        "a.weight retyped F32 to Q4_K 0.07",
        "b.weight retyped F32 to Q8_0 0.00",
    ]


def test_json_of_equal_files(base: Path) -> None:
    found = json.loads(glft("compare", base, base, "--json").stdout)
    about = {"file": str(base), "format": "GGUF", "tensors": 3, "metadata": 4}
    expected = {"same": True, "a": about, "tensors": [], "metadata": [], "same_tensors": 3, "same_metadata": 4}
    assert {name: found[name] for name in expected} == expected
    assert found["errors"]["snr"] is None


def test_json(base: Path, tmp_path: Path) -> None:
    state = {"a.weight": STATE["a.weight"] * 2, "b.weight": torch.full((4, 256), torch.nan), "norm": torch.ones(5).half()}
    save_file(state, tmp_path / "o.gguf", {**METADATA, "tokens": ["a"]}, rules=())
    done = glft("compare", base, tmp_path / "o.gguf", "--json")
    found = json.loads(done.stdout, parse_constant=pytest.fail)
    assert (done.returncode, found["same"], found["same_metadata"]) == (1, False, 3)
    before = {"type": "array[string]", "length": 2000, "first": [f"token {i}" for i in range(8)]}
    after = {"type": "array[string]", "value": ["a"]}
    assert found["metadata"] == [{"key": "tokens", "state": "changed", "a": before, "b": after}]
    tensors = {tensor["name"]: tensor for tensor in found["tensors"]}
    assert {name: tensor["state"] for name, tensor in tensors.items()} == {
        "a.weight": "changed",
        "b.weight": "changed",
        "norm": "retyped",
    }
    errors = {"snr": 0, "relative": 1, "cosine": 1, "count": 1024, "worst_row_error": 1}
    assert {name: tensors["a.weight"]["errors"][name] for name in errors} == pytest.approx(errors)
    assert tensors["b.weight"]["errors"]["unlike"] == 1024
    assert tensors["norm"]["b"] == {"name": "norm", "type": "F16", "shape": [5], "bytes": 10}
    assert "F32, 1024 NaN or infinities" in glft("compare", base, tmp_path / "o.gguf").stdout


def test_a_page(base: Path, tmp_path: Path) -> None:
    """Texts that changed are shown by lines; a template, by the tags of Jinja."""
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
    assert "tensor-search" not in html
    lines, tags = (
        [(tag, unescape(text)) for tag, text in re.findall(r"<(\w+)[^>]*>([^<]*)</", found)[1:]]
        for found in re.findall(r'<pre class="diff".*?</pre>', html, re.DOTALL)
    )
    assert lines[2:4] == [
        ("del", f"-{template[:70]}"),
        ("ins", f"+{template.replace('content', '<script>text</script>')[:70]}"),
    ]
    assert tags == [
        ("span", " {% for message in messages %}"),
        ("del", "-{{ message['content'] }}"),
        ("ins", "+{{ message['<script>text</script>'] }}"),
        ("span", " {% endfor %}"),
        *[("span", " {{ '<|im_start|>' }}")] * 2,
    ]
    assert glft("compare", one, one, "--html", page).returncode == 0
    assert "that differ" not in page.read_text()


def test_the_worst_tensors_are_listed(tmp_path: Path) -> None:
    one, other = tmp_path / "one.gguf", tmp_path / "other.gguf"
    tensors = {f"t{i}": torch.full((4,), 1.0) for i in reversed(range(23))}  # the least error first
    save_file(tensors, one, METADATA, rules=())
    save_file({name: values * (1 + 2.0 ** -int(name[1:])) for name, values in tensors.items()}, other, METADATA, rules=())
    shown, everything = (glft("compare", one, other, *more).stdout.splitlines() for more in ((), ["--all"]))
    assert [line.split()[0] for line in everything[-23:]] == [f"t{i}" for i in range(23)]
    assert shown == [*everything[:-3], "  ... and 3 more: --all"]
