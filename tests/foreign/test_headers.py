"""Headers in every version, byte order and alignment: each client reads the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import glft_schema
from glft_schema import Container
from glft_schema.codec.context import BIG
from glft_schema.files.splitting import split
from glft_schema.tensor_types.ggml import GGML_TYPES
from glft_schema.tensor_types.tensor_type import TensorType
from tests.catalogue.disagreements import is_not_utf8
from tests.foreign import npm
from tests.foreign.clients import (
    DIFFUSERS,
    HUGGINGFACE,
    LAYOUTS,
    MLX,
    NODE_LLAMA_CPP,
    NOT_READ,
    SAME,
    TINYGRAD,
    TRANSFORMERS,
    expected,
)
from tests.foreign.files import KINDS, NESTED, TYPES, Kind, metadata, write
from tests.foreign.our_reading import ours
from tests.foreign.readings import Reading, same_bits
from tests.oracles.gguf_reference import STRING, File
from tests.tools.gguf_strategies import BOOL, files

NPM = (HUGGINGFACE, NODE_LLAMA_CPP)
PLAIN = ("F32", "F16", "I8", "Q8_0")
GIVEN = {  # by each client
    HUGGINGFACE: ("metadata", "types", "infos", "version", "order"),
    NODE_LLAMA_CPP: ("metadata", "infos", "version"),
    TINYGRAD: ("metadata",),
    MLX: ("metadata", "types"),
    DIFFUSERS: (),
    TRANSFORMERS: ("metadata",),
}
Read = Callable[[str, Path], Reading]


def types(client: str) -> list[TensorType]:
    return [type_ for type_ in TYPES if client in NPM or (type_.name in PLAIN and expected(client, type_.name) == SAME)]


def entries(client: str) -> dict[str, object]:
    return {key: value for key, value in (metadata() | NESTED).items() if not key.startswith(NOT_READ[client])}


def assert_same_header(theirs: Reading, mine: Reading, client: str) -> None:
    """Compares everything but the tensors' numbers."""
    given = GIVEN[client]
    assert theirs.error == ""
    assert {name: getattr(theirs, name) for name in given} == {name: getattr(mine, name) for name in given}


def assert_same_tensors(theirs: Reading, mine: Reading) -> None:
    assert theirs.tensors.keys() == mine.tensors.keys()
    for name, tensor in mine.tensors.items():
        assert same_bits(theirs.tensors[name].values, tensor.values), name


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("client", LAYOUTS)
def test_files_of_each_kind(read: Read, tmp_path: Path, client: str, kind: Kind) -> None:
    path = write(tmp_path / "file.gguf", types=types(client), entries=entries(client), **kind._asdict())
    theirs, mine = read(client, path), ours(path)
    failure = LAYOUTS[client].get((kind.version, kind.order))
    if failure:
        assert theirs.error.startswith(failure.errors)
        return
    assert_same_header(theirs, mine, client)
    assert list(theirs.metadata) == list(mine.metadata) or client != HUGGINGFACE
    if client not in NPM:
        assert_same_tensors(theirs, mine)


def is_for_javascript(file: File) -> bool:
    """Tells whether a random file has none of `FAULTS`: UTF-8, bools, alignment."""

    def is_plain(code: int, value: object) -> bool:
        if isinstance(value, tuple):
            inner, elements = value
            return all(is_plain(inner, element) for element in elements)
        if code == BOOL:
            return value in (0, 1)
        return code != STRING or is_utf8(value)

    texts = [key for key, _, _ in file.entries] + [info.name for info in file.infos]
    is_power = file.alignment & (file.alignment - 1) == 0
    return is_power and all(map(is_utf8, texts)) and all(is_plain(code, value) for _, code, value in file.entries)


def is_utf8(text: bytes) -> bool:
    """Tells whether bytes are UTF-8 without a byte order mark."""
    return not (is_not_utf8(text) or text.startswith("\ufeff".encode()))


@pytest.mark.parametrize("client", NPM)
def test_headers_of_random_files(packages: Path, tmp_path: Path, client: str) -> None:
    """Random metadata, nested arrays and tensors, written by this package."""
    read = [(kind.version, kind.order) for kind in KINDS if (kind.version, kind.order) not in LAYOUTS[client]]
    layouts = sorted({(version, ">" if order == BIG else "<") for version, order in read})
    paths: list[Path] = []

    @settings(max_examples=250, database=None)
    @given(files().filter(is_for_javascript), st.sampled_from(layouts))
    def collect(file: File, layout: tuple[int, str]) -> None:
        file.version, file.order = layout
        paths.append(tmp_path / f"{len(paths)}.gguf")
        Container.build_file(Container.parse(file.bytes()), paths[-1])

    collect()
    assert len(paths) >= 250
    for path, theirs in zip(paths, npm.readings(packages, client, paths), strict=True):
        assert_same_header(theirs, ours(path), client)


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    """The files of a set of three."""
    types = [GGML_TYPES[name] for name in ("F32", "Q8_0", "F16", "I8", "I16")]
    whole = write(tmp_path / "whole.gguf", types=types, entries=entries(TINYGRAD))
    with glft_schema.open(whole) as file:
        return split(file, tmp_path / "part", max_tensors=2)


def test_a_set_in_huggingface(packages: Path, parts: list[Path]) -> None:
    """``ggufAllShards`` returns each file's header; together they have the set's tensors."""
    found = npm.run(packages, "headers.mjs", HUGGINGFACE, "set", given=[str(parts[0])])[0]
    assert len(found) == 3
    readings = [npm.reading(part) for part in found]
    mine = ours(parts[0])
    assert readings[0].metadata == mine.metadata
    assert {name: info for reading in readings for name, info in reading.infos.items()} == mine.infos


def test_a_set_in_node_llama_cpp(packages: Path, parts: list[Path]) -> None:
    mine = ours(parts[0])
    for theirs in npm.readings(packages, NODE_LLAMA_CPP, parts):  # any part loads the set
        assert (theirs.metadata, theirs.infos) == (mine.metadata, mine.infos)
    whole = npm.run(packages, "headers.mjs", NODE_LLAMA_CPP, given=[str(parts[0])])[0]
    assert [number for *_, number in whole["tensors"]] == [1, 1, 2, 2, 3]


def test_a_set_in_tinygrad(read: Read, parts: list[Path]) -> None:
    theirs, mine = read(TINYGRAD, parts[0]), ours(parts[0])
    assert theirs.metadata == mine.metadata
    assert_same_tensors(theirs, mine)
