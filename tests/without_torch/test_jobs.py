"""All jobs that need no torch, in processes that cannot import it.

`.ci/run` also runs these tests in an environment that has none.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import glft_schema as glft
import glft_schema.numpy

BLOCKED = "import sys; sys.modules['torch'] = None\n"
COMMAND = f"{BLOCKED}from glft_schema.cli import main; main()"
METADATA = {"general.architecture": "toy", "toy.block_count": 1, "tokenizer.ggml.tokens": ["a", "b"]}
NEEDS_TORCH = "glft: this needs torch, which is not installed: pip install 'glft_schema[torch]'\n"


def run(*arguments: object, code: int = 0, program: str = COMMAND) -> str:
    """Returns what a command prints, or its errors if it fails."""
    done = subprocess.run([sys.executable, "-c", program, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stderr if code > 1 else done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Has the same values as float32 in `model.gguf`, and as float16 in `model.safetensors`."""
    folder = tmp_path_factory.mktemp("files")
    random = np.random.default_rng(0)
    shapes = {"token_embd.weight": (32, 256), "blk.0.attn_q.weight": (256, 256), "blk.0.ffn_down.weight": (256, 512)}
    halves = {name: random.normal(size=shape).astype(np.float16) for name, shape in shapes.items()}
    halves["output_norm.weight"] = np.ones(256, np.float16)
    glft.numpy.save_file(halves, folder / "model.safetensors")
    glft.numpy.save_file({name: half.astype(np.float32) for name, half in halves.items()}, folder / "model.gguf", METADATA)
    glft.convert(folder / "model.gguf", folder / "q4_0.gguf", schemes={"*.weight": "q4_0"})
    (folder / "text").write_text("A text. " * 100)
    return folder


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        ("inspect model.gguf", "blk.0.attn_q.weight"),
        ("inspect model.safetensors --json", '"type": "F16"'),
        ("explain q4_0.gguf --tensor blk.0.attn_q.weight", "f16[1] ="),
        ("verify model.gguf --values", "none with NaN"),
        ("verify q4_0.gguf --values --json", '"values"'),
        ("compare model.gguf model.safetensors", "blk.0"),
        ("hash model.gguf", "model.gguf"),
        ("schema gguf", "Header"),
        ("schema gguf --as kaitai", '"seq":'),
        ("schema glft --as c", "#include"),
        ("schema q4_k", "scales"),
        ("plan model.gguf --bpw 5", "noise"),
        ("quantize model.gguf out.gguf Q4_K_M --dry-run", "dry run"),
        pytest.param("fuzz gguf --examples 2", "no failure in 2 files", marks=pytest.mark.long),
    ],
)
def test_what_is_printed(arguments: str, printed: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert printed in run(*arguments.split(), code=1 if arguments.startswith("compare") else 0)


def test_view(folder: Path, tmp_path: Path) -> None:
    run("view", folder / "q4_0.gguf", "-o", tmp_path / "page.html")
    assert "blk.0.attn_q.weight" in (tmp_path / "page.html").read_text()


def test_values_are_those_of_gguf_py(folder: Path, tmp_path: Path) -> None:
    reader = pytest.importorskip("gguf")
    run("get-tensor", folder / "q4_0.gguf", "blk.0.attn_q.weight", tmp_path / "q.npy")
    stored = next(tensor for tensor in reader.GGUFReader(folder / "q4_0.gguf").tensors if tensor.name == "blk.0.attn_q.weight")
    assert np.array_equal(np.load(tmp_path / "q.npy"), reader.dequantize(stored.data, stored.tensor_type))


def test_files_are_those_of_this_process(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Edited, split, merged, converted and quantized."""
    monkeypatch.chdir(tmp_path)
    run("edit", folder / "model.gguf", "--set", "general.name=x", "-o", "edited.gguf")
    glft.edit(folder / "model.gguf", "edited", set={"general.name": "x"})
    run("split", "edited.gguf", "part", "--max-tensors", 2)
    run("merge", "part-00001-of-00002.gguf", "merged.gguf")
    run("convert", folder / "model.safetensors", "bf16.safetensors", "--scheme", "*=bf16")
    glft.convert(folder / "model.safetensors", "bf16", schemes={"*": "bf16"}, format="safetensors")
    run("quantize", folder / "model.gguf", "q4_k_m.gguf", "Q4_K_M")
    glft.quantize(folder / "model.gguf", "q4_k_m", "Q4_K_M")
    for made, expected in [("edited.gguf", "edited"), ("bf16.safetensors", "bf16"), ("q4_k_m.gguf", "q4_k_m")]:
        assert Path(made).read_bytes() == Path(expected).read_bytes()
    assert Path("merged.gguf").read_bytes() == Path("edited.gguf").read_bytes()


def test_numpy(folder: Path, tmp_path: Path) -> None:
    program = f"""{BLOCKED}import json, numpy as np, glft_schema as glft
folder, out = sys.argv[1:]
arrays = glft.numpy.load_file(folder + "/q4_0.gguf")
glft.numpy.save_file(arrays, out)
with glft.open(folder + "/q4_0.gguf") as file:
    tensor = file.tensors["blk.0.attn_q.weight"]
    assert np.array_equal(tensor.numpy(), arrays[tensor.name])
    assert np.array_equal(np.asarray(tensor), arrays[tensor.name])
    assert np.array_equal(tensor.numpy(np.s_[3:9:2, 100]), arrays[tensor.name][3:9:2, 100])
    assert type(tensor.payload.blocks) is np.ndarray
    assert tensor.fields["d"].dtype == np.float16
print(json.dumps({{name: str(array.dtype) for name, array in arrays.items()}}))
"""
    dtypes = json.loads(run(folder, tmp_path / "x.safetensors", program=program))
    assert set(dtypes.values()) == {"float32"}
    safetensors = pytest.importorskip("safetensors.numpy").load_file(tmp_path / "x.safetensors")
    expected = glft.numpy.load_file(folder / "q4_0.gguf")
    assert {name: array.tolist() for name, array in safetensors.items()} == {n: a.tolist() for n, a in expected.items()}


@pytest.mark.parametrize("arguments", ["lab", "imatrix {folder}/model.gguf {folder}/text -o out.gguf"])
def test_what_needs_torch(arguments: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*arguments.format(folder=folder).split(), code=2).endswith(NEEDS_TORCH)


@pytest.mark.parametrize("call", ["glft.load_file(path)", "glft.open(path).get_tensor('output_norm.weight')", "glft.nn"])
def test_calls_that_need_torch(call: str, folder: Path) -> None:
    program = f"""{BLOCKED}import glft_schema as glft
path = sys.argv[1]
try:
    {call}
except glft.OptionError as error:
    print(error)
"""
    assert run(folder / "model.gguf", program=program) == NEEDS_TORCH.removeprefix("glft: ")
