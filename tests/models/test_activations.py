"""Importance matrices measured in torch. The oracle is llama.cpp, by its evaluation callback."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import glft_schema as glft
from tests.families.tiny_folders import CONFIGS, make_folder, make_undeclared
from tests.models.conftest import tiny_gguf
from tests.oracles.llama_model import LlamaModel
from tests.tools.command_line import assert_refused, in_this_process

TOKENS = [(i * 37 + i * i * 11) % 250 + 4 for i in range(70)]  # two chunks of 32, and a rest
CONTEXT = 32
FAST = ("tiny-llama", "tiny-qwen3moe", "tiny-gpt2")
TEXT = "Water runs down the hill, and the mill turns. " * 40


def by_llama_cpp(path: Path, chunks: list[list[int]]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Returns sums of squares f64[experts, columns] and counts of each matrix."""
    found: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    with LlamaModel(path, exact=True) as model:
        for chunk in chunks:
            model.all_logits(chunk)
        for name, inputs, chosen in model.products:
            if chosen is None:
                rows, numbers = inputs.reshape(-1, inputs.shape[-1]), None
            else:
                numbers = chosen[0, 0]
                rows = np.broadcast_to(inputs[0], (*numbers.shape, inputs.shape[-1]))
            for expert in range(1 if numbers is None else int(numbers.max()) + 1):
                used = rows if numbers is None else rows[numbers == expert]
                sums, counts = found.setdefault(name, (np.zeros((8, rows.shape[-1])), np.zeros(8)))
                sums[expert] += np.square(used, dtype=np.float64).sum(0)
                counts[expert] += len(used)
    return found


def assert_measured(matrix: glft.weights.ImportanceMatrix, expected: dict[str, tuple[np.ndarray, np.ndarray]]) -> None:
    """Asserts sums within a relative 1e-3. llama.cpp computes GELU by a table of float16."""
    assert matrix.columns.keys() == {name for name in expected if name.startswith("blk.")}
    for name, (sums, counts) in matrix.columns.items():
        theirs, number = expected[name]
        assert counts.tolist() == number[: len(counts)].tolist(), name
        np.testing.assert_allclose(sums, theirs[: len(sums)], rtol=1e-3, atol=1e-3 * theirs.mean(), err_msg=name)


@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in FAST else pytest.mark.full) for name in CONFIGS])
def test_sums_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path, name)
    matrix = glft.models.measure_importance(path, TOKENS, context=CONTEXT)
    assert_measured(matrix, by_llama_cpp(path, [TOKENS[:32], TOKENS[32:64]]))
    assert (matrix.chunk_count, matrix.chunk_size, matrix.datasets) == (2, CONTEXT, ())
    assert list(matrix.columns) == sorted(matrix.columns)


def test_output_on_request(tmp_path: Path) -> None:
    """A tied output is the token embedding, which llama-imatrix does not measure either."""
    for name, matrices in (("tiny-llama", {"output.weight"}), ("tiny-qwen2", set())):
        path = tiny_gguf(tmp_path, name)
        found = glft.models.measure_importance(path, TOKENS, context=CONTEXT, chunks=1, process_output=True)
        assert {matrix for matrix in found.columns if not matrix.startswith("blk.")} == matrices
        if matrices:
            sums, counts = by_llama_cpp(path, [TOKENS[:32]])["output.weight"]
            np.testing.assert_allclose(found.columns["output.weight"].sums, sums[:1], rtol=1e-3)
            assert found.columns["output.weight"].counts.tolist() == [32] == counts[:1].tolist()


def test_folder_and_file_measure_the_same(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path, "tiny-llama")
    sources = (tmp_path / "tiny-llama", path)
    folder, file = (glft.models.measure_importance(source, TOKENS, context=CONTEXT) for source in sources)
    for name, columns in file.columns.items():
        np.testing.assert_allclose(folder.columns[name].sums, columns.sums, rtol=1e-5)


def test_model_in_memory() -> None:
    """Any model runs with names. Its mode is restored, and no hook stays."""
    model = torch.nn.Sequential(torch.nn.Embedding(9, 3), torch.nn.Linear(3, 5, bias=False), torch.nn.Dropout())
    seen = list[float]()
    options = {"context": 2, "names": {"1.weight": "x"}, "progress": lambda name, done: seen.append(done)}
    found = glft.models.measure_importance(model, [1, 2, 3, 2, 5], **options).columns["x"]
    inputs = model[0].weight[[1, 2, 3, 2]].detach()
    np.testing.assert_allclose(found.sums, inputs.square().sum(0, keepdim=True), rtol=1e-6)
    assert (found.counts.tolist(), seen, model.training) == ([4], [0.5, 1.0], True)
    assert not model[1]._forward_pre_hooks


def test_from_the_command_line(tmp_path: Path) -> None:
    path, text, out = tiny_gguf(tmp_path, "tiny-llama"), tmp_path / "text.txt", tmp_path / "out.gguf"
    text.write_text(TEXT)
    done = in_this_process("imatrix", path, text, "-o", out, "--context", "64", "--chunks", "3")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{out}: 14 matrices, 3 chunks, {out.stat().st_size:,} bytes\n"
    matrix = glft.weights.ImportanceMatrix.open(out)
    assert (matrix.chunk_count, matrix.chunk_size, matrix.datasets) == (3, 64, (str(text),))
    expected = glft.models.measure_importance(path, TEXT, context=64, chunks=3)
    for name, columns in expected.columns.items():
        assert np.array_equal(matrix.columns[name].sums, columns.sums), name
    glft.quantize(path, tmp_path / "quantized.gguf", "IQ4_NL", importance=out)


def test_summary_of_one_matrix_and_chunk(tmp_path: Path) -> None:
    sums = glft.weights.ColumnSums(np.ones((1, 4), np.float32), np.ones(1, np.int64))
    glft.weights.ImportanceMatrix({"x": sums}, ("text",), 1, 64).save(tmp_path / "in.gguf")
    done = in_this_process("imatrix", tmp_path / "in.gguf", tmp_path / "out.gguf")
    assert "out.gguf: 1 matrix, 1 chunk, " in done.stdout


# fmt: off
FAULTS = {
    "one":     (("m.gguf", "-o", "o.gguf"), "expected IN and OUT, or MODEL, TEXT and -o OUT, found one argument"),
    "no -o":   (("m.gguf", "o.gguf", "--chunks", "3"), "--chunks, --tokenizer and --process-output measure a model: give"),
    "ending":  (("m.gguf", "t.txt", "-o", "o.bin"), "expected a file that ends in .gguf or .dat, found"),
    "text":    (("m.gguf", "none", "-o", "o.gguf"), "none: No such file or directory"),
    "short":   (("m.gguf", "t.txt", "-o", "o.gguf"), "found 51: use a longer text or a smaller context (--context)"),
    "model":   (("m.glft", "t.txt", "-o", "o.gguf"), "expected a GGUF file or a Hugging Face folder, found '"),
}
# fmt: on


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_the_command_line(fault: str, tmp_path: Path) -> None:
    arguments, message = FAULTS[fault]
    if "m.gguf" in arguments:
        tiny_gguf(tmp_path, "tiny-llama").rename(tmp_path / "m.gguf")
    glft.save_file({"x": torch.ones(3)}, tmp_path / "m.glft")
    (tmp_path / "t.txt").write_text("the a " * (5 if fault == "short" else 600))
    options = ["--tokenizer", make_folder(tmp_path, "tiny-qwen3")] if fault == "model" else []
    paths = [text if text.startswith("-") or text.isdigit() else tmp_path / text for text in arguments]
    assert_refused(in_this_process("imatrix", *paths, *options), message)
    assert not (tmp_path / "o.gguf").exists()


def test_undeclared_architecture(tmp_path: Path) -> None:
    """The gguf library names the matrices of MiniCPM 3."""
    matrix = glft.models.measure_importance(make_undeclared(tmp_path), TOKENS, context=CONTEXT, process_output=True)
    kinds = ("attn_q_a", "attn_q_b", "attn_kv_a_mqa", "attn_kv_b", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    assert matrix.columns.keys() == {f"blk.{i}.{kind}.weight" for i in range(2) for kind in kinds}
    assert {columns.sums.shape for columns in matrix.columns.values()} == {(1, 32), (1, 64), (1, 96)}


@pytest.mark.parametrize(("name", "positions"), [("tiny-gpt2", 64), ("tiny-bert", 256)])
def test_model_that_is_too_small(name: str, positions: int, tmp_path: Path) -> None:
    folder = make_folder(tmp_path, name)
    message = f"at most {positions} tokens, the model's positions, found {positions + 1}; --context sets it"
    with pytest.raises(glft.OptionError, match=message):
        glft.models.measure_importance(folder, [1] * (positions + 1), context=positions + 1)
    glft.models.measure_importance(folder, [1] * positions, context=positions)


@pytest.mark.parametrize("token", [-1, 264])
def test_tokens_beyond_the_vocabulary(token: int, tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "tiny-bert")
    with pytest.raises(glft.OptionError, match=f"of 0 to 263, the model's vocabulary, found {token}: the tokenizer has"):
        glft.models.measure_importance(folder, [1, token], context=2)


# fmt: off
REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {  # text, options
    "names":    ([1, 2], {"context": 2}, "expected a model of a declared class, or with names in the gguf library, found "),
    "in names": ([1, 2], {"context": 2, "names": {"nope.weight": "x"}},
                 "expected names of the model's parameters, found 'nope.weight'"),
    "text":     ("text", {}, "a model in memory has no tokenizer: pass tokenizer="),
    "context":  ([1, 2], {"context": 0}, "expected at least 1, found context=0, chunks=None"),
    "chunks":   ([1, 2], {"context": 2, "chunks": 0}, "expected at least 1, found context=2, chunks=0"),
}
# fmt: on


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    text, options, message = REFUSED[case]
    model = torch.nn.Sequential(torch.nn.Embedding(9, 3), torch.nn.Linear(3, 5))
    with pytest.raises(glft.OptionError, match=re.escape(message)):
        glft.models.measure_importance(model, text, **options)


def test_infinite_inputs() -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(9, 3), torch.nn.Linear(3, 5))
    torch.nn.init.constant_(model[0].weight, torch.inf)
    with pytest.raises(glft.TensorError, match="tensor 'x': expected finite inputs, found NaN or infinities"):
        glft.models.measure_importance(model, [1, 2], context=2, names={"1.weight": "x"})
