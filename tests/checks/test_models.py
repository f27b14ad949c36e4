"""Rules of llama.cpp's loader of models. The oracle is the loader, see llama_loader."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import glft_schema as glft
from tests.families.tiny_folders import CONFIGS, make_folder
from tests.oracles import gguf_reference
from tests.oracles.gguf_reference import ARRAY, BLOCKS, NUMBERS, STRING, Info, nbytes
from tests.oracles.llama_cpp import Entries, contents
from tests.oracles.llama_loader import Loader

EVERY = 13  # cases of the default run: one of so many
CHANGE_ALL = ("general.architecture", "tokenizer.ggml.model")  # other values need other keys and tensors
F32, F16, Q8_0, I32 = 0, 1, 8, 26
KINDS = {"u32": 4, "i32": 5, "u64": 10, "u16": 2, "u8": 0, "f32": 6, "f64": 12, "bool": 7, "string": STRING}
ARRAYS = ("u32", "i32", "bool", "u8", "f32", "string")


class Case(NamedTuple):
    """A model with a change.

    Attributes:
        change: what was done.
        subject: to which key or tensor.
        entries: of the model.
        infos: of the model.
        named: a text that a finding has if llama.cpp refuses the model.
    """

    change: str
    subject: str
    entries: Entries
    infos: list[Info]
    named: str


class AnyFingerprint(dict[str, str]):
    """Knows the tokenizers of tiny folders."""

    def __contains__(self, key: object) -> bool:
        return True

    def __missing__(self, key: str) -> str:
        return "llama-bpe"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Returns a function that makes a tiny model by name."""
    pytest.importorskip("gguf")
    parent = tmp_path_factory.mktemp("tiny")

    def make(name: str) -> Path:
        path = parent / f"{name}.gguf"
        if not path.exists():
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("glft_schema.families.vocabulary.PRE_TOKENIZERS", AnyFingerprint())
                glft.convert(make_folder(parent, name), path)
        return path

    return make


def changed(stored: bytes) -> Iterator[Case]:
    """Yields a model with one key or tensor removed, renamed, retyped, reshaped or changed."""
    read = contents(stored)
    assert read
    entries = [(key, code, _reversed(code, value)) for key, code, value in read[0]]
    infos = [Info(name, _trimmed(dims), code, payload) for name, dims, code, _, payload in read[1]]
    for i, (key, code, value) in enumerate(entries):
        text = key.decode()
        short = text.rpartition(".")[2]  # findings of dims have the key's last part
        yield Case("removed", text, entries[:i] + entries[i + 1 :], infos, short)
        for change, entry in (
            ("renamed", (key + b"x", code, value)),
            *((f"as {kind}", (key, *typed)) for kind, typed in _retyped(code, value)),
            *((f"= {shown}", (key, code, other)) for shown, other in _others(code, value)),
        ):
            named = "" if text in CHANGE_ALL and change.startswith("=") else short
            yield Case(change, text, [*entries[:i], entry, *entries[i + 1 :]], infos, named)
    for i, info in enumerate(infos):
        text = info.name.decode()
        yield Case("removed", text, entries, infos[:i] + infos[i + 1 :], text)
        for change, name, dims, code in (
            ("renamed", info.name + b"x", info.dims, info.type),
            ("in another block", info.name.replace(b"blk.1.", b"blk.2."), info.dims, info.type),
            ("in no block", info.name.replace(b"blk.1.", b"blk.01."), info.dims, info.type),
            ("longer", info.name, [*info.dims[:-1], info.dims[-1] + 1], info.type),
            ("wider", info.name, [info.dims[0] + 32, *info.dims[1:]], info.type),
            ("transposed", info.name, info.dims[::-1], info.type),
            ("flat", info.name, [math.prod(info.dims)], info.type),
            ("with a dim of 1", info.name, [*info.dims, 1], info.type),
            *((f"as type {code}", info.name, info.dims, code) for code in (F32, F16, Q8_0, I32)),
        ):
            if not dims[0] % BLOCKS[code][0]:
                other = Info(name, dims, code, bytes(nbytes(code, dims)))
                yield Case(change, text, entries, [*infos[:i], other, *infos[i + 1 :]], name.decode())
    extra = Info(b"blk.0.extra.weight", [32], F32, bytes(128))
    yield Case("added", "blk.0.extra.weight", entries, [*infos, extra], "blk.0.extra.weight")


def _reversed(code: int, value: Any) -> Any:
    """Returns a value with the bits of numbers big-endian, as the reference writer takes them."""
    if code == ARRAY:
        return value[0], [_reversed(value[0], element) for element in value[1]]
    return value if code == STRING else value[::-1]


def _trimmed(dims: list[int]) -> list[int]:
    """Returns dims without the last ones of 1."""
    while len(dims) > 1 and dims[-1] == 1:
        dims = dims[:-1]
    return list(dims)


def _retyped(code: int, value: Any) -> Iterator[tuple[str, tuple[int, Any]]]:
    """Yields the values of an entry in other types."""
    inner, elements = value if code == ARRAY else (code, [value, value])
    numbers = [_number(inner, element) for element in elements]
    for kind, other in KINDS.items():
        if other != code and numbers:
            yield kind, (other, _bits(other, numbers[0]))
    for kind in ARRAYS:
        if not (code == ARRAY and KINDS[kind] == inner):
            yield f"array of {kind}", (ARRAY, (KINDS[kind], [_bits(KINDS[kind], number) for number in numbers]))


def _number(code: int, element: bytes) -> float:
    return len(element) if code == STRING else struct.unpack(f">{NUMBERS[code]}", element)[0]


def _bits(code: int, number: float) -> bytes:
    """Returns the bytes of a number that is near, as the reference writer takes them."""
    if code == STRING:
        return str(number).encode()
    letter = NUMBERS[code]
    bits = 8 * struct.calcsize(letter)
    whole = int(number) % 2 ** (bits - letter.islower()) if letter not in "fd" else number
    return struct.pack(f">{letter}", bool(whole) if code == KINDS["bool"] else whole)


def _others(code: int, value: Any) -> Iterator[tuple[str, Any]]:
    """Yields other values of an entry's type."""
    if code == KINDS["u32"]:
        number = struct.unpack(">I", value)[0]
        for other in {0, 1, 3, number + 1, number * 2, 600} - {number}:
            yield str(other), struct.pack(">I", other)
    elif code == STRING:
        for text in (b"", b"x", b"none", b"gpt2", b"llama", b"Phi-3 mini"):
            yield repr(text), text
    elif code == ARRAY and value[1]:
        yield "shorter", (value[0], value[1][:-1])
        yield "longer", (value[0], [*value[1], value[1][0]])
        yield "empty", (value[0], [])


def compare(stored: bytes, path: Path, every: int) -> int:
    """Compares verdicts on changes of a model with the loader's. Returns how many."""
    count = 0
    with Loader() as loader:
        for case in list(changed(stored))[::every]:
            path.write_bytes(gguf_reference.File(entries=case.entries, infos=case.infos).bytes())
            refusal = loader.refusal(path)
            with glft.open(path) as file:
                found = glft.check_rules(file, "llama.cpp")
            assert bool(refusal) == bool(found), (case.change, case.subject, refusal, found)
            if found:
                assert any(case.named in finding.problem for finding in found), (case.change, case.subject, refusal, found)
                assert all("expected" in finding.problem and finding.offset is not None for finding in found)
            count += 1
    return count


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-qwen2", "tiny-gemma3", "tiny-phi3", "tiny-bert"])
def test_agrees_with_the_loader(name: str, tiny: Callable[[str], Path], tmp_path: Path) -> None:
    assert compare(tiny(name).read_bytes(), tmp_path / "model.gguf", EVERY) > 40


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_agrees_with_the_loader_on_all_changes(name: str, tiny: Callable[[str], Path], tmp_path: Path) -> None:
    assert compare(tiny(name).read_bytes(), tmp_path / "model.gguf", 1) > 500
