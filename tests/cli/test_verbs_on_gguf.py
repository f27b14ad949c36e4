"""The verbs of the command line on GGUF files, called in this process to save time."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

import glft_schema
from glft_schema import Container, Typed, load_file, save_file
from tests.catalogue.gguf_cases import READ, REFUSED, placed, w
from tests.golden import golden
from tests.tools.command_line import assert_refused
from tests.tools.command_line import in_this_process as glft

METADATA = {"general.architecture": "toy", "t.tokens": [f"token {i}" for i in range(30)], "t.scores": np.zeros(5000)}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    tensors = {"w.weight": torch.randn(4, 64), "n.weight": torch.ones(64)}
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors", {"from": "tests"})
    return tmp_path / "model.safetensors"


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    tensors = {"w.weight": torch.arange(256.0).reshape(4, 64), "n.weight": torch.ones(64), "i": torch.arange(3)}
    save_file(tensors, tmp_path / "model.gguf", METADATA, schemes={"w.weight": "bf16"}, format="gguf")
    return tmp_path / "model.gguf"


def test_convert_a_checkpoint(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    options = ["--scheme", "q5_1", "--metadata", "general.architecture=toy", "--metadata", "toy.n:uint16=3", "--alignment", 64]
    done = glft("convert", source, out, *options, "--metadata", 'toy.l:array[string]=["a=b"]')
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 as f32 (n.weight): not q5_1: it has fewer than two dims, and no scheme selects it by its full name" in done.stdout
    with glft_schema.open(out) as file:
        added = {"general.architecture": "toy", "toy.n": 3, "toy.l": ["a=b"], "general.alignment": 64}
        assert file.metadata == {"from": "tests", **added}
        assert file.metadata.type_of("toy.n") == "uint16"
        assert {name: tensor.type.name for name, tensor in file.tensors.items()} == {"n.weight": "F32", "w.weight": "Q5_1"}
    assert glft("verify", out, "--derives-from", source, "--rules", "ggml").returncode == 0
    options = ("--format", "gguf", "--gguf-version", 2, "--big-endian")
    assert glft("convert", source, tmp_path / "out.bin", *options).returncode == 0
    with glft_schema.open(tmp_path / "out.bin") as file:
        assert (file.header.version, file.header.byte_order) == (2, "big")
    for option, value, *parts in (
        ("--metadata", "toy.n:uint16=x", "expected a value in JSON for 'toy.n:uint16', found 'x'"),
        ("--metadata", "No=x", "[gguf-key]", "expected lower_snake_case segments"),
        ("--rules", "spce", "glft: expected one of spec, ggml, rust, required, found 'spce'"),
        ("--format", "onnx", "glft: expected GLFT, GGUF or safetensors, found 'onnx'"),
    ):
        assert_refused(glft("convert", source, out, option, value), *parts)
    assert glft("convert", source, tmp_path / "CAPITALS.GGUF").returncode == 0
    assert (tmp_path / "CAPITALS.GGUF").read_bytes()[:4] == b"GGUF"
    assert glft("convert", source, out, "--metadata", "No=x", "--rules", "ggml").returncode == 0


@pytest.mark.parametrize("key", ["general.architecture", "general.type", "tokenizer.ggml.model", "split.count"])
def test_a_long_array_in_the_place_of_one_value(gguf: Path, tmp_path: Path, key: str) -> None:
    """Each verb refuses it, or does without it, as it does a short one."""
    for name, count in (("short", 2), ("long", 1025)):
        with glft_schema.open(gguf) as file:
            metadata = file.metadata | {key: Typed([1] * count, "array[int32]")}
            Container.build_file({**file.regions, "metadata": metadata}, tmp_path / f"{name}.gguf")
    verbs = [("inspect",), ("verify", "--rules", "llama.cpp"), ("compare", gguf), ("quantize", tmp_path / "out.gguf", "Q8_0")]
    for verb, *rest in verbs:
        short, long = (glft(verb, tmp_path / f"{name}.gguf", *rest) for name in ("short", "long"))
        assert long.returncode == short.returncode
        assert "Traceback" not in long.stderr
        assert "truth value" not in long.stderr


def test_inspect(gguf: Path) -> None:
    done = glft("inspect", gguf)
    assert (done.returncode, done.stderr) == (0, "")
    for part in (
        "GGUF, ",
        "byte_order little, version 3, n_tensors 3, n_kv 3",
        "general.architecture  string          toy",
        "t.tokens              array[string]   30: ['token 0', 'token 1', 'token 2', 'token 3', 'token 4',",
        "'token 7', ...]",
        "t.scores              array[float64]  5,000: [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, ...]",
        "BF16  [64, 4]",
    ):
        assert part in done.stdout
    found = json.loads(glft("inspect", gguf, "--json").stdout)
    assert found["header"] == {"magic": "GGUF", "byte_order": "little", "version": 3, "n_tensors": 3, "n_kv": 3}
    assert found["metadata"]["general.architecture"] == {"type": "string", "value": "toy"}
    assert found["metadata"]["t.scores"] == {"type": "array[float64]", "length": 5000, "first": [0.0] * 8}
    assert found["tensors"][0]["dims"] == [64, 4]
    full = json.loads(glft("inspect", gguf, "--json", "--full").stdout)
    assert full["metadata"]["t.tokens"]["value"] == METADATA["t.tokens"]
    assert sum(found["byte_counts"].values()) == found["bytes"] == gguf.stat().st_size


def model_of(blocks: int, path: Path) -> Path:
    """Writes a model of blocks, each with two matrices of experts and a norm."""
    tensors = {"token_embd.weight": torch.ones(64, 32)}
    for i in range(blocks):
        tensors |= {f"blk.{i}.ffn.{e}.weight": torch.ones(4, 32) for e in range(2)} | {f"blk.{i}.norm.weight": torch.ones(32)}
    entries = {"general.architecture": "toy", "toy.block_count": blocks, "toy.context_length": 2048, "general.file_type": 2}
    text = "{{ a\x1b }}\nsecond line"
    entries |= {"tokenizer.ggml.tokens": ["<s>", "b"], "tokenizer.chat_template": text, "toy.pooling_type": 1}
    save_file(tensors, path, entries, schemes={"blk.0.ffn.*": "q4_0", "token*": "q8_0"}, rules=[])
    return path


def test_inspect_says_what_a_model_is_and_lists_blocks_once(tmp_path: Path) -> None:
    path = model_of(3, tmp_path / "m.gguf")
    lines = glft("inspect", path).stdout.splitlines()
    assert lines[0] == (
        f"{path}: toy, 2,912 parameters, 3 layers, 2,048 context, 2 tokens, Q4_0 (mostly), 13.05 bits per weight, "
        f"{path.stat().st_size / 1000:.4g} kB"
    )
    rows = [line.split() for line in lines]
    assert ["general.file_type", "uint32", "2", "(Q4_0)"] in rows
    assert ["toy.pooling_type", "uint32", "1", "(mean)"] in rows
    assert ["blk.0", "...", "blk.2:", "3", "tensors", "each", f"{2 * 4 * 18 + 4 * 4 * 128 + 3 * 128:,}"] in rows
    assert ["ffn.N.weight", "F32", "(4),", "Q4_0", "(2)", "[32,", "4]", f"{2 * 4 * 18 + 4 * 4 * 128:,}"] in rows
    assert ["Q8_0", "1", "8.5", "2,176"] in [row[:4] for row in rows]
    assert not any("blk.1.norm.weight" in line for line in lines)
    assert sum("blk." in line for line in glft("inspect", path, "--all").stdout.splitlines()) == 9
    listed = glft("inspect", path, "--tensors", "*.norm.*").stdout.splitlines()
    assert [line.split()[0] for line in listed[1:]] == [f"blk.{i}.norm.weight" for i in range(3)]
    assert_refused(glft("inspect", path, "--tensors", "blk.1.norm.weigh"), "did you mean 'blk.1.norm.weight'?")


def test_inspect_prints_a_value(tmp_path: Path) -> None:
    path = model_of(1, tmp_path / "m.gguf")
    assert glft("inspect", path, "--key", "tokenizer.chat_template").stdout == "{{ a\x1b }}\nsecond line"
    assert glft("inspect", path, "--key", "tokenizer.ggml.tokens").stdout == "<s>\nb\n"
    assert glft("inspect", path, "--key", "general.file_type").stdout == "2\n"
    done = glft("inspect", path, "--key", "general.file_typ")
    assert_refused(done, "expected a metadata key of the file, found 'general.file_typ'; did you mean 'general.file_type'?")


def test_inspect_lists_keys_that_match(tmp_path: Path) -> None:
    path = model_of(1, tmp_path / "m.gguf")
    lines = glft("inspect", path, "--key", "tokenizer.*").stdout.splitlines()
    assert [line.split() for line in lines] == [
        ["key", "type", "value"],
        ["tokenizer.ggml.tokens", "array[string]", "['<s>',", "'b']"],
        ["tokenizer.chat_template", "string", r"'{{", r"a\x1b", r"}}\nsecond", "line'"],
    ]
    tokens = {"tokenizer.ggml.tokens": {"type": "array[string]", "value": ["<s>", "b"]}}
    assert json.loads(glft("inspect", path, "--key", "tokenizer.g*", "--json").stdout) == tokens
    assert json.loads(glft("inspect", path, "--key", "tokenizer.ggml.tokens", "--json").stdout) == tokens
    assert_refused(glft("inspect", path, "--key", "x.*"), "expected a metadata key of the file, found 'x.*'")
    save_file({}, tmp_path / "m.glft", {"b": "1", "a.x": "2"})
    assert glft("inspect", tmp_path / "m.glft", "--key", "a*").stdout == "metadata\n  a.x = 2\n"
    assert json.loads(glft("inspect", tmp_path / "m.glft", "--key", "b", "--json").stdout) == {"b": "1"}


def test_inspect_shows_what_is_left_of_a_truncated_file(tmp_path: Path) -> None:
    path = model_of(2, tmp_path / "m.gguf")
    with Container.parse_file(path) as file:
        last, size = list(file.tensors.values())[-1], file.nbytes
    end = last.position + 5
    path.write_bytes(path.read_bytes()[:end])
    done = glft("inspect", path)
    assert done.returncode == 2
    problem = f"the file is truncated: {end:,} of {size:,} bytes ({100 * end / size:.1f} %), 6 of 7 tensors complete"
    assert done.stdout.splitlines()[0].endswith(
        f" bits per weight, {size / 1000:.4g} kB, of which {end / 1000:.4g} kB are there"
    )
    assert done.stdout.splitlines()[2] == f"{problem}; download the rest"
    assert done.stderr == (
        f"glft: {path}: data -> '{last.name}' -> weights: {problem}; download the rest "
        f"(tensor '{last.name}', at byte {last.position})\n"
    )
    assert [line.split()[-1] for line in done.stdout.splitlines()[-5:]] == ["2,176", "123", "0", "1,168", "123"]
    assert done.stdout.splitlines()[-3] == "    complete: 0"
    for options in (("--all",), ("--tensors", "*")):
        rows = glft("inspect", path, *options).stdout.splitlines()[-2:]
        assert [row.split()[-1] for row in rows] == ["3,744", "123"]
    listed = json.loads(glft("inspect", path, "--json").stdout)["tensors"]
    assert [tensor["complete"] for tensor in listed] == [True] * 6 + [False]
    first, out = listed[0]["name"], tmp_path / "out.npy"
    assert glft("get-tensor", path, first, out).returncode == 0
    with glft_schema.open(path, allow_truncated=True) as file:
        assert np.array_equal(np.load(out), file.get_tensor(first))
    assert_refused(
        glft("get-tensor", path, last.name, out),
        f"the file is truncated: 123 of 128 bytes are missing; download the rest (tensor '{last.name}')",
    )
    path.write_bytes(path.read_bytes()[:100])
    assert_refused(
        glft("inspect", path), "metadata", "; the file may be truncated, or a count, length or offset before it is wrong\n"
    )


def test_inspect_as_json_is_json(tmp_path: Path) -> None:
    metadata = {"f": [float("nan"), 1.0], "n": [["a"] * 2000, [1] * 2000], "i": float("inf")}
    Container.build_file({"format": "GGUF", "metadata": metadata}, tmp_path / "file.gguf")
    found = json.loads(glft("inspect", tmp_path / "file.gguf", "--json").stdout, parse_constant=pytest.fail)["metadata"]
    assert (found["f"]["value"], found["i"]["value"]) == (["nan", 1.0], "inf")
    assert found["n"]["value"] == metadata["n"]


def test_verify_as_json(gguf: Path, tmp_path: Path) -> None:
    found = json.loads(glft("verify", gguf, "--derives-from", gguf, "--json").stdout)
    about = {"file": str(gguf), "format": "GGUF", "tensors": 3, "bytes": gguf.stat().st_size, "holds": True}
    reason = {"llama.cpp": "no rules for the architecture 'toy'"}
    rules = {"checked": ["spec", "ggml"], "enforced": ["ggml"], "not_checked": reason, "failures": 0}
    rules |= {"repair": None, "broken": []}
    rule, field = "gguf-quantization-version", "metadata"
    assert found["derives_from"].pop("tensors")[0] == {"name": "w.weight", "type": "BF16", "verdict": "copied", "problem": ""}
    derives = {"base": str(gguf), "imatrix": None, "tolerance": None, "counts": {"copied": 3}}
    assert found == {**about, "rules": rules, "derives_from": derives}
    other = tmp_path / "other.gguf"
    save_file({"w.weight": torch.full((4, 64), 0.1), "n.weight": torch.ones(63)}, other, METADATA)
    done = glft("verify", gguf, "--derives-from", other, "--json")
    found = json.loads(done.stdout, parse_constant=pytest.fail)
    assert (done.returncode, found["holds"], found["derives_from"]["counts"]["extra"]) == (1, False, 1)
    save_file({"w.weight": torch.ones(4, 64)}, gguf, METADATA, schemes={"w.weight": "q8_0"}, rules=[])
    done = glft("verify", gguf, "--rules", "spec", "--json")
    found = json.loads(done.stdout)
    problem = "expected the key general.quantization_version, found 3 other keys"
    broken = {"file": gguf.name, "rule": rule, "field": field, "name": None, "problem": problem, "byte": 24}
    enforced = {"checked": ["spec"], "enforced": ["spec"], "not_checked": {}, "failures": 1, "repair": None}
    assert (done.returncode, found["rules"]) == (1, {**enforced, "broken": [broken]})


def test_inspect_shows_unusual_values(tmp_path: Path) -> None:
    path = tmp_path / "file.gguf"
    for stored, part in (
        (golden("gguf_big"), "[[1, 2], ['x']]"),
        (READ["a type of a fork, 200"].stored, "\n  type 200            1 "),
        (READ["a string that is not UTF-8"].stored, "string  '\\udcff'"),
    ):
        path.write_bytes(stored)
        done = glft("inspect", path)
        assert (done.returncode, done.stderr) == (0, "")
        assert part in done.stdout


def test_verify_lists_findings(gguf: Path, tmp_path: Path) -> None:
    assert "all rules hold (spec, ggml)" in glft("verify", gguf).stdout
    assert "all rules hold (required)" in glft("verify", gguf, "--rules", "required").stdout
    path = tmp_path / "file.gguf"
    path.write_bytes(READ["an offset that is not aligned"].stored)
    done = glft("verify", path, "--rules", "ggml")
    assert (done.returncode, done.stderr) == (1, "")
    assert "1 tensor, 100 bytes, 1 rule violation (ggml)" in done.stdout
    text = "  tensor_infos -> 0 -> offset: expected 0, found 4 (tensor 'w', at byte 49) [gguf-contiguous]"
    assert done.stdout.splitlines()[1] == text
    assert "gguf-offset" in glft("verify", path, "--rules", "spec").stdout
    for options in ((), ("--rules", "spec", "--rules", "ggml")):
        done = glft("verify", path, *options)
        assert (done.returncode, "3 rule violations (spec, ggml)" in done.stdout) == (1, True)
        assert ("gguf-offset" in done.stdout, "gguf-contiguous" in done.stdout) == (True, True)
    assert_refused(
        glft("verify", path, "--rules", "strict"), "expected one of spec, ggml, ", "imatrix, llama.cpp, found 'strict'"
    )
    path.write_bytes(REFUSED["a name twice"].stored)
    assert_refused(
        glft("verify", path, "--rules", "ggml"), "tensor_infos -> 1 -> name: expected each name once", "[gguf-names-once]"
    )


def test_padding_is_no_gap(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    save_file({"w": torch.ones(4), "v": torch.ones(12)}, path, METADATA)
    gaps = "32 bytes in gaps between payloads (padding to multiples of 32), 16 of them after the last one"
    assert all(gaps in glft(verb, path).stdout for verb in ("verify", "inspect"))


def test_a_payload_that_ends_after_the_file(tmp_path: Path) -> None:
    """Its offset is at fault if it is not aligned; a byte that is missing is not rounded away."""
    path = tmp_path / "m.gguf"
    path.write_bytes(placed(32, w(dims=(8,), offset=4)))
    assert_refused(
        glft("verify", path),
        "tensor_infos -> 0 -> offset: expected a multiple of the alignment, 32, found 4; "
        "from there, 32 bytes extend past the end of the file (tensor 'w', at byte 49)\n",
    )
    save_file({"w": torch.ones(999, 8)}, path, METADATA)
    path.write_bytes(path.read_bytes()[:-1])
    size = path.stat().st_size
    assert_refused(
        glft("verify", path), f"the file is truncated: {size:,} of {size + 1:,} bytes (99.9 %), 0 of 1 tensor complete"
    )


def test_rule_sets_are_a_formats_own(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf-lite"
    save_file({"w": torch.ones(2, 64)}, path)
    assert "all rules hold (spec)" in glft("verify", path).stdout
    assert_refused(glft("verify", path, "--rules", "ggml"), "expected a rule set of GLFT, found 'ggml'")
    assert_refused(glft("verify", path, "--exclude", "w"), "glft: --exclude requires --derives-from or --values\n")
    assert_refused(glft("view", path, "-o", tmp_path / "page.html", "--exclude", "w"), "glft: --exclude requires --against\n")


def test_convert(gguf: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    done = glft("convert", gguf, out, "--scheme", "w.*=f16", "--verbose")
    assert (done.returncode, done.stderr) == (0, "")
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if line.startswith("  ")}
    assert rows["w.weight"] == ["F16", "converted", "0"]
    assert rows["i"] == ["I64", "copied"]
    again, typed = tmp_path / "again.gguf", tmp_path / "typed.glft"
    assert glft("convert", out, again, "--scheme", "w.weight=bf16", "--metadata", "t.more=x").returncode == 0
    with glft_schema.open(again) as file, glft_schema.open(gguf) as original:
        assert file.metadata.without("t.more", "general.file_type") == original.metadata
        assert (file.metadata["general.file_type"], file.metadata.type_of("general.file_type")) == (32, "uint32")
        assert file.metadata.type_of("t.scores") == "array[float64]"
        assert {name: bytes(tensor.raw) for name, tensor in file.tensors.items()} == {
            name: bytes(tensor.raw) for name, tensor in original.tensors.items()
        }
    assert_refused(glft("convert", gguf, tmp_path / "out"), "an output file that ends in .glft, .gguf-lite")
    assert glft("convert", gguf, typed, "--exclude", "i", "--metadata", "t.more:uint8=7").returncode == 0
    assert Container.parse_file(typed).metadata["t.more"] == "uint8 7"
    refused = glft("convert", gguf, tmp_path / "out.safetensors", "--gguf-version", 3)
    assert_refused(refused, "header: expected no fields, found 'version'")
    assert_refused(glft("convert", gguf, tmp_path / "out.glft"), f"glft: {gguf}: tensor 'i': GLFT has no type for int64:")


def test_split_and_merge(gguf: Path, tmp_path: Path) -> None:
    done = glft("split", gguf, tmp_path / "part", "--max-tensors", 2)
    assert (done.returncode, done.stderr) == (0, "")
    first, second = (tmp_path / f"part-0000{number}-of-00002.gguf" for number in (1, 2))
    assert done.stdout.splitlines()[0] == f"{first}: {first.stat().st_size:,} bytes"
    shown = glft("inspect", first).stdout
    assert "the first of 2 files" in shown
    assert "part-00002-of-00002.gguf  i " in glft("inspect", first, "--all").stdout
    files = [tensor["file"] for tensor in json.loads(glft("inspect", first, "--json").stdout)["tensors"]]
    assert files == [str(first)] * 2 + [str(second)]
    assert "2 files" not in glft("inspect", second).stdout
    assert glft("verify", first, "--derives-from", gguf).returncode == 0
    stored = Container.parse(second.read_bytes())
    regions = {"format": "GGUF", **stored.regions, "metadata": stored.metadata | {"Not lower": 1}}
    Container.build_file(regions, second)
    done = glft("verify", first, "--rules", "spec")
    assert (done.returncode, done.stdout.splitlines()[1].split()[0]) == (1, f"{second.name}:")
    assert done.stdout.splitlines()[1].endswith(" [gguf-key]")
    Container.build_file(stored, second)
    done = glft("merge", first, tmp_path / "merged.gguf")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "merged.gguf").read_bytes() == gguf.read_bytes()
    limits = "expected max_tensors or max_bytes (--max-tensors or --max-bytes), found neither"
    assert_refused(glft("split", gguf, tmp_path / "part"), limits)
    assert_refused(glft("merge", gguf, tmp_path / "x"), "expected the first file or the index of a split model, found")
    second.unlink()
    assert_refused(glft("inspect", first), "part-00002-of-00002.gguf: file 2 of 2 is missing")


def test_the_input_is_not_overwritten(source: Path, gguf: Path, tmp_path: Path) -> None:
    """A file, a directory of shards, a set, links to a set as in caches, the shards of an index."""
    glft("split", gguf, tmp_path / "part", "--max-tensors", 2)
    first, second = (tmp_path / f"part-0000{number}-of-00002.gguf" for number in (1, 2))
    (tmp_path / "links").mkdir()
    link, other_link = (tmp_path / "links" / f"v-0000{number}-of-00002.gguf" for number in (1, 2))
    link.symlink_to(first)
    other_link.symlink_to(second)
    (tmp_path / "shards").mkdir()
    shard, index = tmp_path / "shards" / "1.safetensors", tmp_path / "shards" / "model.safetensors.index.json"
    safetensors.torch.save_file({"w": torch.ones(1)}, shard)
    index.write_text(json.dumps({"weight_map": {"w": shard.name}}))
    stored = {path: path.read_bytes() for path in (source, first, second, shard)}
    for command in (
        *(["convert", source, source], ["convert", source.parent, source]),
        *(["merge", first, first], ["convert", first, second], ["get-tensor", first, "i", second]),
        *(["convert", link, other_link], ["convert", link, second]),
        *(["convert", index, shard], ["convert", index, shard, "--format", "gguf"]),
    ):
        assert_refused(glft(*command), "glft: the output would overwrite the input\n")
    assert {path: path.read_bytes() for path in stored} == stored


def test_get_tensor(gguf: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.npy"
    done = glft("get-tensor", gguf, "w.weight", out)
    assert (done.returncode, done.stdout) == (0, f"{out}: float32 [4, 64]\n")
    assert np.array_equal(np.load(out), load_file(gguf)["w.weight"].float().numpy())
    assert glft("get-tensor", gguf, "n.*", out, "--dtype", "float16").returncode == 0
    assert np.load(out).dtype == np.float16
    assert glft("get-tensor", gguf, "i", out).returncode == 0
    assert np.load(out).tolist() == [0, 1, 2]
    assert_refused(glft("get-tensor", gguf, "*.weight", out), "expected one tensor that matches '*.weight', found 2")
    assert_refused(glft("get-tensor", gguf, "w.wieght", out), "did you mean 'w.weight'?")
    dtypes = "expected one of float16, float32, float64, found 'int8'"
    assert_refused(glft("get-tensor", gguf, "i", out, "--dtype", "int8"), dtypes)
    (tmp_path / "four.glft").write_bytes(golden("four_types"))
    assert glft("get-tensor", tmp_path / "four.glft", "fc1", out).returncode == 0
    assert np.load(out).tolist() == [[0.5, -0.5, -64.0], [-254.0, 0.0, -4.0]]
    for other in (tmp_path / "w.safetensors", tmp_path / "w"):
        problem = f"glft: expected OUT to end in .npy, found {str(other)!r}\n"
        assert_refused(glft("get-tensor", gguf, "w.weight", other), problem)
        assert not other.exists()


@pytest.mark.parametrize(
    ("option", "values", "problem"),
    [
        ("--metadata", ("a=1", "a=2"), "each key once, found 'a' twice: '1' and '2'"),
        ("--metadata", ("a:uint8=1", "a=x"), "each key once, found 'a' twice: '1' and 'x'"),
    ],
)
def test_a_repeated_option(source: Path, tmp_path: Path, option: str, values: tuple[str, ...], problem: str) -> None:
    options = [part for value in values for part in (option, value)]
    done = glft("convert", source, tmp_path / "out.gguf", *options)
    assert_refused(done, f"glft: {option}: expected {problem}\n")
    assert not (tmp_path / "out.gguf").exists()


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "uint64"])
def test_unsigned_integers_have_no_type(tmp_path: Path, dtype: str) -> None:
    source = tmp_path / "model.safetensors"
    safetensors.torch.save_file({"w": torch.ones(2, 32).to(getattr(torch, dtype))}, source)
    exact = "float32, float16, int8, int16, int32, int64, float64, bfloat16"
    for out, kind, dtypes in (("out.gguf", "ggml", exact), ("out.glft", "GLFT", "float32, float16")):
        problem = f"{kind} has no type for {dtype}: exclude the tensor, or convert it to one of {dtypes}"
        assert_refused(glft("convert", source, tmp_path / out), f"glft: {source}: tensor 'w': {problem}\n")
    expected = "expected a signed integer dtype, uint8 or bool"
    problem = f"cannot be stored as i32: {expected}, found {dtype}: exclude or convert the tensor"
    done = glft("convert", source, tmp_path / "out.gguf", "--scheme", "w=i32")
    assert_refused(done, f"glft: {source}: tensor 'w': {problem}\n")
    assert glft("convert", source, tmp_path / "out.safetensors").returncode == 0


def test_a_large_vocabulary_is_abbreviated(tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.gguf"
    tokens, scores = [f"token {i}" for i in range(500_000)], np.zeros(500_000, "f4")
    metadata = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.scores": scores}
    Container.build_file({"format": "GGUF", "metadata": metadata}, path)
    done = glft("inspect", path)
    assert "500,000: ['token 0'" in done.stdout
    assert len(done.stdout) < 2000
