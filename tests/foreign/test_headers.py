"""Headers in every version, byte order and alignment: each client reads the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import glft_schema
from glft_schema import Container
from glft_schema.codec.context import BIG
from glft_schema.files.splitting import split
from glft_schema.tensor_types.ggml import GGML_TYPES
from tests.foreign import npm
from tests.foreign.clients import DIFFUSERS, HUGGINGFACE, LAYOUTS, MLX, NODE_LLAMA_CPP, NOT_READ, expected
from tests.foreign.files import KINDS, NESTED, TYPES, Kind, metadata, write
from tests.foreign.our_reading import ours
from tests.foreign.readings import Info, Reading, same_bits
from tests.oracles.gguf_reference import STRING, File
from tests.tools.gguf_strategies import BOOL, files

NPM = (HUGGINGFACE, NODE_LLAMA_CPP)
PYTHON = tuple(client for client in LAYOUTS if client not in NPM)
Read = Callable[[str, Path], Reading]


def plain_types(client: str) -> list[str]:
    """Returns types of small tensors that a client reads bit for bit."""
    return [name for name in ("F32", "F16", "I8", "Q8_0") if client in NPM or expected(client, name) == "same bits"]


def entries(client: str) -> dict[str, object]:
    """Returns keys of all types and nested arrays that a client reads."""
    return {key: value for key, value in (metadata() | NESTED).items() if not key.startswith(NOT_READ[client])}


def assert_same_header(theirs: Reading, mine: Reading, client: str) -> None:
    """Compares everything but the tensors' numbers."""
    assert theirs.error == ""
    if client == DIFFUSERS:
        return  # it gives no metadata
    assert theirs.metadata == mine.metadata
    if theirs.types:
        assert theirs.types == mine.types
    if theirs.infos:
        assert (theirs.infos, theirs.version) == (mine.infos, mine.version)
    if theirs.order:
        assert theirs.order == mine.order
    if client == HUGGINGFACE:
        assert list(theirs.metadata) == list(mine.metadata)
    assert bool(theirs.types) == (client in (HUGGINGFACE, MLX))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of every kind, with every type of tensor and metadata."""
    made = tmp_path_factory.mktemp("kinds")
    for kind in KINDS:
        write(made / f"{kind}.gguf", entries=metadata() | NESTED, **kind._asdict())
    return made


@pytest.mark.parametrize("client", NPM)
def test_headers_of_all_types(packages: Path, folder: Path, client: str) -> None:
    paths = [folder / f"{kind}.gguf" for kind in KINDS]
    for kind, path, theirs in zip(KINDS, paths, npm.readings(packages, client, paths), strict=True):
        failure = LAYOUTS[client].get((kind.version, kind.order))
        if failure:
            assert theirs.error.startswith(failure.errors), kind
        else:
            mine = ours(path)
            assert len(mine.infos) == len(TYPES)
            assert_same_header(theirs, mine, client)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("client", PYTHON)
def test_files_of_each_kind(read: Read, tmp_path: Path, client: str, kind: Kind) -> None:
    types = [GGML_TYPES[name] for name in plain_types(client)]
    path = write(tmp_path / "file.gguf", types=types, entries=entries(client), **kind._asdict())
    theirs, mine = read(client, path), ours(path)
    failure = LAYOUTS[client].get((kind.version, kind.order))
    if failure:
        assert theirs.error.startswith(failure.errors)
        return
    assert_same_header(theirs, mine, client)
    assert theirs.tensors.keys() == mine.tensors.keys()
    for name, tensor in mine.tensors.items():
        assert theirs.tensors[name].shape == tensor.shape
        assert same_bits(theirs.tensors[name].values, tensor.values), name


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
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return not text.startswith("\ufeff".encode())


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
        mine = ours(path)
        assert theirs.error == ""
        assert (theirs.metadata, theirs.infos, theirs.version) == (mine.metadata, mine.infos, mine.version)
        if client == HUGGINGFACE:
            assert (theirs.types, theirs.order) == (mine.types, mine.order)


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    """The files of a set of three."""
    whole = write(tmp_path / "whole.gguf", types=[GGML_TYPES[name] for name in ("F32", "Q8_0", "F16", "I8", "I16")])
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


def test_a_set_in_tinygrad(read: Read, tmp_path: Path) -> None:
    whole = write(tmp_path / "whole.gguf", types=[GGML_TYPES[name] for name in ("F32", "Q8_0", "F16")], entries={"t.key": 1})
    with glft_schema.open(whole) as file:
        first, *_ = split(file, tmp_path / "part", max_tensors=1)
    theirs, mine = read("tinygrad", first), ours(first)
    assert theirs.metadata == mine.metadata
    assert list(theirs.tensors) == list(mine.tensors)
    assert all(same_bits(theirs.tensors[name].values, mine.tensors[name].values) for name in mine.tensors)


def test_infos_are_compared() -> None:
    """Another position, type, value or version and a missing key are detected."""
    mine = Reading(metadata={"a": "n:1"}, types={"a": "uint8"}, infos={"w": Info((1,), 0, 0, 32)}, version=3)
    assert_same_header(mine, mine, HUGGINGFACE)
    others = {"infos": {"w": Info((1,), 0, 0, 64)}, "types": {"a": "int8"}, "metadata": {"a": "n:2"}, "version": 2}
    changed = [replace(mine, **{field: value}) for field, value in others.items()]
    for theirs in (*changed, replace(mine, metadata={}), Reading("Error: no")):
        with pytest.raises(AssertionError):
            assert_same_header(theirs, mine, HUGGINGFACE)
