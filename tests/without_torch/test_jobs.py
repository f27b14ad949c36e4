"""All jobs that need no torch, in processes that cannot import it.

`.ci/run` also runs these tests in an environment that has none.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import glft_schema as glft
import glft_schema.numpy
from tests.tools.command_line import glft as glft_with_torch

BLOCKED = "import sys; sys.modules['torch'] = None\n"
COMMAND = f"{BLOCKED}from glft_schema.cli import main; main()"
METADATA = {"general.architecture": "toy", "toy.block_count": 1, "tokenizer.ggml.tokens": ["a", "b"]}
NEEDS_TORCH = "this needs torch, which is not installed: pip install 'glft_schema[torch]'\n"
ADVICE = "; without torch: tensor.numpy(index=...), tensor.arrays(), glft_schema.numpy"


def run(*arguments: object, program: str = COMMAND) -> tuple[int, str, str]:
    """Returns the exit code, output and errors of a program, by default the command."""
    done = subprocess.run([sys.executable, "-c", program, *map(str, arguments)], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


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
    glft.split(folder / "model.gguf", folder / "set", max_tensors=2)
    (folder / "text").write_text("A text. " * 100)
    if find_spec("torch"):
        import torch

        torch.save({"w": torch.ones(2)}, folder / "model.pt")
    return folder


@pytest.mark.parametrize(
    "line",
    [
        "inspect model.gguf",
        "inspect model.safetensors --json",
        "explain q4_0.gguf --tensor blk.0.attn_q.weight",
        "verify q4_0.gguf --values --derives-from model.gguf",
        "compare model.gguf model.safetensors",
        "hash model.gguf",
        "schema gguf",
        "schema gguf --as kaitai",
        "schema glft --as c",
        "schema q4_k",
        "plan model.gguf --bpw 5",
        "view q4_0.gguf -o out",
        "get-tensor q4_0.gguf blk.0.attn_q.weight out.npy",
        "edit model.gguf --set general.name=x -o out",
        "split model.gguf out --max-tensors 2",
        "merge set-00001-of-00002.gguf out",
        "convert model.safetensors out --scheme *=bf16 --format safetensors",
        "quantize model.gguf out Q4_K_M",
        "quantize model.gguf out Q4_K_M --dry-run",
        pytest.param("convert model.pt out.glft", marks=pytest.mark.skipif(not find_spec("torch"), reason="no torch")),
    ],
)
def test_the_command_prints_and_writes_the_same_as_with_torch(line: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def written() -> dict[str, bytes]:
        files = {path.name: path.read_bytes() for path in folder.glob("out*")}
        for name in files:
            (folder / name).unlink()
        return files

    monkeypatch.chdir(folder)
    done, files = run(*line.split()), written()
    expected = glft_with_torch(*line.split())
    assert done == (expected.returncode, expected.stdout, expected.stderr)
    assert done[0] == line.startswith("compare")  # the files differ
    assert files == written()


@pytest.mark.long
def test_fuzz() -> None:
    code, out, error = run("fuzz", "gguf", "--examples", 2)
    assert (code, "no failure in 2 files" in out, error) == (0, True, "")


def test_numpy(folder: Path, tmp_path: Path) -> None:
    program = f"""{BLOCKED}import json, numpy as np, glft_schema as glft
folder, out = sys.argv[1:]
arrays = glft.numpy.load_file(folder + "/q4_0.gguf")
glft.numpy.save_file(arrays, out)
with glft.open(folder + "/q4_0.gguf") as file:
    tensor = file.tensors["blk.0.attn_q.weight"]
    assert np.array_equal(tensor.numpy(), arrays[tensor.name])
    assert np.array_equal(np.asarray(tensor), arrays[tensor.name])
    assert np.array_equal(tensor.numpy(index=np.s_[3:9:2, 100]), arrays[tensor.name][3:9:2, 100])
    assert type(tensor.payload.blocks) is np.ndarray
    assert tensor.fields["d"].dtype == np.float16
"""
    assert run(folder, tmp_path / "x.safetensors", program=program) == (0, "", "")
    stored = pytest.importorskip("safetensors.numpy").load_file(tmp_path / "x.safetensors")
    expected = glft.numpy.load_file(folder / "q4_0.gguf")
    assert stored.keys() == expected.keys()
    for name, array in expected.items():
        assert stored[name].dtype == array.dtype == np.float32
        assert np.array_equal(stored[name], array)


@pytest.mark.parametrize("line", ["lab", "imatrix model.gguf text -o out.gguf"])
def test_commands_that_need_torch(line: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    code, _, error = run(*line.split())
    assert (code, error.splitlines(keepends=True)[-1]) == (2, f"glft: {NEEDS_TORCH}")


@pytest.mark.parametrize(
    ("call", "advice"),
    {
        "glft.nn": "",
        "glft.load_file(path)": ADVICE,
        "glft.open(path).get_tensor('output_norm.weight')": ADVICE,
        "glft.open(path).tensors['output_norm.weight'][0]": ADVICE,
        "glft.open(path).get_slice('output_norm.weight')[:2]": ADVICE,
        "glft.open(path).tensors['output_norm.weight'].dequantize()": ADVICE,
    }.items(),
)
def test_calls_that_need_torch(call: str, advice: str, folder: Path) -> None:
    program = f"""{BLOCKED}import glft_schema as glft
path = sys.argv[1]
try:
    {call}
except glft.OptionError as error:
    print(error)
"""
    assert run(folder / "model.gguf", program=program) == (0, NEEDS_TORCH.replace("\n", f"{advice}\n"), "")
