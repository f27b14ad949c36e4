"""The lab with a shorter training: its files, its results recomputed, its failure."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shlex
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from glft_schema import Container, load_file
from glft_schema.lab import fake_quantize, run
from glft_schema.lab.minigpt import MiniGPT, MiniGPTConfig
from glft_schema.lab.run import LabError, activations, broken_promises, run_lab
from glft_schema.lab.training import corpus, held_back_loss, train
from tests.tools.command_line import in_this_process
from tests.tools.depth import in_full

pytestmark = pytest.mark.long  # by its fixtures
CONFIG = MiniGPTConfig(layers=2)
STEPS = 40


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lab")


@pytest.fixture(scope="module")
def manifest(out: Path) -> dict[str, Any]:
    return run_lab(out, CONFIG, STEPS, seed=1)


@pytest.fixture(scope="module")
def model() -> MiniGPT:
    """The same model, trained again from the same seed."""
    torch.manual_seed(1)
    model = MiniGPT(CONFIG)
    train(model, STEPS, 1)
    return model


def test_weights_are_not_noise(manifest: dict[str, Any]) -> None:
    torch.manual_seed(1)
    assert manifest["training"]["held_back_loss"] < held_back_loss(MiniGPT(CONFIG)) - 2


def test_files_hold_the_fake_quantized_model(out: Path, manifest: dict[str, Any], model: MiniGPT) -> None:
    names = {"minigpt.gguf-lite", "minigpt.q8.gguf-lite", "manifest.json", "README.md", "bytes.svg"}
    assert {entry.name for entry in out.iterdir()} == names
    assert json.loads((out / "manifest.json").read_text()) == manifest
    for scheme, measured in manifest["files"].items():
        stored = (out / measured["file"]).read_bytes()
        assert measured["nbytes"] == len(stored) == sum(measured["bytes"].values())
        assert measured["sha256"] == hashlib.sha256(stored).hexdigest()
        loaded = load_file(out / measured["file"])
        for name, tensor in model.state_dict().items():
            expected = fake_quantize(tensor, scheme) if tensor.dim() == 2 else tensor
            assert torch.equal(loaded[name], expected)
        assert set(measured["tensor_errors"].values()) == set(measured["layer_errors"].values()) == {0.0}
        assert 0 < max(measured["f32_scale_errors"].values()) < 0.1
        name = "layers.0.mlp.fc1.weight"
        difference = (loaded[name] - model.state_dict()[name]).abs()
        expected = [float(difference.max()), float(difference.mean())]
        assert measured["quantization_errors"][name] == pytest.approx(expected)
        overhead = sum(measured["bytes"][part] for part in ("header", "metadata", "descriptors", "gaps"))
        assert sum(measured["module_bytes"].values()) + overhead == len(stored)
        assert measured["types"][name].lower() == scheme
        fresh = MiniGPT(CONFIG)
        fresh.load_state_dict(loaded)
        assert measured["loss"] == pytest.approx(held_back_loss(fresh), rel=1e-6)
        with Container.parse_file(out / measured["file"]) as file:
            assert file.metadata["arch"] == "minigpt"


def test_savings(manifest: dict[str, Any], model: MiniGPT) -> None:
    saved = io.BytesIO()
    torch.save(model.state_dict(), saved)
    assert manifest["torch_save_bytes"] == saved.tell()
    q8, q4 = manifest["files"].values()
    assert saved.tell() / q8["nbytes"] == q8["saving"] >= 3
    assert saved.tell() / q4["nbytes"] == q4["saving"] >= 6
    assert max(q4["bytes"], key=q4["bytes"].__getitem__) == "Q4_per_group_64 nibbles"
    savings = list(q4["widening"].values())
    assert savings == sorted(savings)
    assert savings[-1] == pytest.approx(q4["saving"], rel=0.02)


def test_report(out: Path, manifest: dict[str, Any]) -> None:
    text = (out / "README.md").read_text()
    q4 = manifest["files"]["q4_per_group_64"]
    for part in (
        f"the q4 file {q4['saving']:.2f} times",
        f" | {q4['bytes']['Q4_per_group_64 nibbles']:,} | ",
        f"{manifest['torch_save_bytes']:,}",
        f"and {q4['loss']:.4f} in q4",
        f"| MLP | {q4['module_bytes']['MLP']:,} |",
        *("## 1. How many bytes are saved?", "## 2. Where does most of the file go?"),
        "## 3. Why is INT4 not a clean 8 times smaller?",
        "The file returns exactly\n  these weights",
        "It is 0 in\nboth files.",
        "- q8_per_channel must be at least 3 times smaller.",
        "This requires that these are quantized: the MLP layers, the attention layers",
        ", the position embedding, the token embedding and the head.",
        "| ... and the attention layers |",
        "![Bytes of the files, to scale](bytes.svg)",
        "| of the container: padding | 0 | 0.00 % | 0 | 0.00 % |",
        "the ending `.gguf-lite`. A file\nbegins with the bytes `TFLG`",
        " tensors with fewer than two dims stay in float32: `layers.N.ln1.weight`",
        "All outputs are bitwise equal in q8 and q4.",
    ):
        assert part in text
    assert "{{" not in text


def test_bytes_of_the_container(out: Path, manifest: dict[str, Any]) -> None:
    """The table's rows add up to the files, and the data begins where the container ends."""
    lines = (out / "README.md").read_text().partition("| bytes of |")[2].splitlines()[2:11]
    cells = [[cell.strip().replace(",", "") for cell in line.split("|")] for line in lines]
    for column, measured in zip((2, 4), manifest["files"].values(), strict=True):
        rows = {row[1]: int(row[column]) for row in cells}
        assert sum(rows[part] for part in ("float32 weights", "codes", "scales", "container")) == rows["the file"]
        with Container.parse_file(out / measured["file"]) as file:
            start = min(tensor.position for tensor in file.tensors.values())
        assert (rows["the file"], rows["container"]) == (measured["nbytes"], start)


def test_the_example_of_a_scale(out: Path, manifest: dict[str, Any], model: MiniGPT) -> None:
    row = model.state_dict()["head.weight"][0].double().numpy()
    text = (out / "README.md").read_text()
    for scheme, largest, group in (("q8_per_channel", 127, 128), ("q4_per_group_64", 7, 64)):
        scale = np.float16(np.abs(row[:group]).max().astype(np.float32) / np.float32(largest))
        code = round(row[0] / float(scale))
        assert manifest["files"][scheme]["example"] == {
            "group": group,
            "peak": np.abs(row[:group]).max(),
            "scale": float(scale),
            "weight": row[0],
            "code": code,
            "stored": code * float(scale),
        }
        assert f"| {code} |" in text


def test_commands_of_the_report_run(out: Path, manifest: dict[str, Any]) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", (out / "README.md").read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("glft ")]
    names = ["lab", "compare", "view", "explain", "lab", "lab"]
    assert [shlex.split(line)[1] for line in lines] == names
    assert lines[-1] == f"glft lab --out {out}-seed-2 --steps {STEPS} --seed 2"
    for line in lines[1:4]:
        done = in_this_process(*shlex.split(line)[1:])
        assert (done.returncode, done.stderr) == (int("compare" in line), "")  # 1: the files differ
    assert (out / "page.html").exists()
    (out / "page.html").unlink()
    script = blocks[-1].replace("python -", f"{sys.executable} -", 1)
    printed = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout.splitlines()
    errors = {int(line.split()[0]): float(line.split()[1]) for line in printed}
    assert 0 < errors[32] < errors[64]


@pytest.mark.parametrize("threads", [1, in_full(2)])
def test_training_does_not_depend_on_threads(threads: int, model: MiniGPT) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        torch.manual_seed(1)
        again = MiniGPT(CONFIG)
        train(again, STEPS, 1)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in model.state_dict().items())


def test_picture_is_to_scale(out: Path, manifest: dict[str, Any]) -> None:
    picture = ET.parse(out / "bytes.svg").getroot()
    space = "{http://www.w3.org/2000/svg}"
    rects = [(rect.find(f"{space}title"), rect) for rect in picture.iter(f"{space}rect")]
    parts = {title.text: float(rect.get("width")) for title, rect in rects if title is not None}
    scales = manifest["files"]["q4_per_group_64"]["bytes"]["Q4_per_group_64 scales"]
    weights = 4 * manifest["parameters"]
    drawn = parts[f"scales: {scales:,} bytes"] / parts[f"float32 weights: {weights:,} bytes"]
    assert drawn == pytest.approx(scales / weights, abs=1e-4)
    assert f"container: {manifest['torch_save_bytes'] - weights:,} bytes" in parts


def test_results_outside_their_limits(manifest: dict[str, Any]) -> None:
    assert broken_promises(manifest) == []
    broken = json.loads(json.dumps(manifest))
    q8, q4 = broken["files"].values()
    q8["tensor_errors"]["head.weight"] = 2e-6
    q4["layer_errors"]["layers.1"] = float("nan")
    q4["saving"] = 5.99
    assert broken_promises(broken) == [
        "q8_per_channel: expected an error of at most 1e-06 in tensor head.weight, found 2e-06",
        "q4_per_group_64: expected an error of at most 0.001 in layer layers.1, found nan",
        "q4_per_group_64: expected a file at least 6 times smaller than the checkpoint, found 5.99 times",
    ]


def test_the_lab_fails_if_the_reader_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def shifted(path: Path) -> dict[str, torch.Tensor]:
        return {name: tensor + 0.01 for name, tensor in load_file(path).items()}

    monkeypatch.setattr(run, "read_gguf_lite", shifted)
    with pytest.raises(LabError, match=r"expected an error of at most 1e-06 in tensor \S+, found 0.01"):
        run_lab(tmp_path, MiniGPTConfig(width=64, layers=1), steps=1, seed=0)
    assert (tmp_path / "README.md").exists()


def test_activations_of_every_module() -> None:
    model = MiniGPT(CONFIG).eval()
    seen = activations(model, corpus()[1][:8].unsqueeze(0))
    assert set(seen) == {name or "model" for name, _ in model.named_modules()} - {"layers"}
    assert seen["model"].shape == (1, 8, 256)


def test_command(tmp_path: Path) -> None:
    done = in_this_process("lab", "--out", tmp_path, "--steps", 1, "--tied")
    assert (done.returncode, done.stderr) == (0, "")
    first, second, *others = done.stdout.splitlines()
    report = tmp_path / "README.md"
    assert first == f"lab: training a GPT of 4 blocks for 1 steps, then q8 and q4; the report will be {report}"
    assert re.fullmatch(r"    0%  training, step 1 of 1, loss \d\.\d\d", second)
    files = ("minigpt.q8.gguf-lite", "minigpt.gguf-lite")
    stages = [*(f"writing and verifying {name}" for name in files), "README.md written"]
    assert [line.split("  ")[-1] for line in others[:3]] == stages
    assert "q4_per_group_64" in others[-2]
    with Container.parse_file(tmp_path / files[1]) as file:  # the tied head is stored once
        assert file.tensors["head.weight"].position == file.tensors["token_embedding.weight"].position


@pytest.mark.full
def test_a_failure_is_exit_code_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(run.LEAST_SAVING, "q8_per_channel", 5.0)
    done = in_this_process("lab", "--out", tmp_path, "--steps", 1)
    assert done.returncode == 1
    problem = "q8_per_channel: expected a file at least 5 times smaller than the checkpoint, found 3."
    assert done.stderr.splitlines()[0].startswith(f"glft: {problem}")
