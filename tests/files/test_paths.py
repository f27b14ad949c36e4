"""Functions that take a file take an open one or a path; anything else is an OptionError."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import glft_schema as glft
from glft_schema import OptionError
from glft_schema.describe import byte_counts
from glft_schema.gguf_reader import GGUFReader

OUT = Path("not-written.gguf")
OF_FILES: dict[str, Callable[[Any], Any]] = {
    "byte_map": lambda file: len(glft.byte_map(file)),
    "byte_counts": byte_counts,
    "check_derivation": lambda file: [tensor.verdict for tensor in glft.checks.check_derivation(file, file)],
    "check_rules": lambda file: glft.check_rules(file, ["spec", "ggml"]),
    "check_values": lambda file: [odd for _, odd in glft.check_values(file)],
    "hash_file": lambda file: [shard.sha256 for shard in glft.checks.hash_file(file)],
    "page": lambda file: len(glft.describe.page(file)),
    "compare": lambda file: [tensor.state for tensor in glft.compare(file, file).tensors],
}
REFUSE_FILES: dict[str, Callable[[Any], Any]] = {  # this one, whether it is open or not
    "check_fit": lambda file: glft.checks.check_fit(file, file),
    "merge": lambda file: glft.merge(file, OUT),
    "split": lambda file: glft.split(file, OUT),
}
OF_PATHS: dict[str, Callable[[Any], Any]] = {
    "open": glft.open,
    "load_file": glft.load_file,
    "load_into": lambda path: glft.load_into(torch.nn.Linear(1, 1), path),
    "open_checkpoint": glft.weights.open_checkpoint,
    "open_source": glft.storage.open_source,
    "parse_file": glft.Container.parse_file,
    "convert": lambda path: glft.convert(path, OUT),
    "convert to": lambda path: glft.convert(OUT, path),
    "edit": lambda path: glft.edit(path, set={"a": 1}),
    "quantize": lambda path: glft.quantize(path, OUT, "q8_0"),
    "plan": glft.plan,
    "merge_lora": lambda path: glft.adapters.merge_lora(path, OUT, OUT),
    "read_importance": glft.read_importance,
    "read_gguf_lite": glft.lab.read_gguf_lite,
    "save_file": lambda path: glft.save_file({}, path),
    "build_file": lambda path: glft.Container.build_file({}, path),
    "split to": lambda path: glft.split(OUT, path),
    "GGUFReader": GGUFReader,
}
STORED = b"GGUF\3\0\0\0"
BYTES = ": Container.parse takes the bytes of a file, os.fsdecode converts those of a path"
WRONG = [
    (STORED, f"expected a path, found {STORED!r}{BYTES}"),
    (None, "expected a path, found None"),
    (5, "expected a path, found 5"),
    ("a\0b", "expected a path without NUL, found 'a\\x00b'"),
]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("paths") / "model.gguf"
    glft.save_file({"w": torch.ones(2, 32)}, path, {"general.architecture": "x"}, schemes={"w": "q8_0"})
    return path


@pytest.mark.parametrize("name", OF_FILES)
def test_a_path_is_as_good_as_an_open_file(name: str, path: Path) -> None:
    function = OF_FILES[name]
    with glft.open(path) as file:
        assert function(path) == function(str(path)) == function(file)


@pytest.mark.parametrize("name", REFUSE_FILES)
def test_a_path_is_refused_as_an_open_file_is(name: str, path: Path) -> None:
    found = set()
    for file in (path, glft.open(path)):
        with pytest.raises(OptionError) as caught:
            REFUSE_FILES[name](file)
        found.add(str(caught.value))
    assert len(found) == 1


@pytest.mark.parametrize("wrong", range(len(WRONG)))
def test_what_is_no_path(wrong: int) -> None:
    value, problem = WRONG[wrong]
    for function in (*OF_FILES.values(), *REFUSE_FILES.values(), *OF_PATHS.values()):
        with pytest.raises(OptionError, match=f"^{re.escape(problem)}$"):
            function(value)
    assert not OUT.exists()


def test_sources_bytes_and_streams_are_not_paths(path: Path) -> None:
    found = re.escape(repr(str(path)))
    problem = f"^expected the bytes of a file, found {found}: glft_schema.open takes a path, parse_stream a stream$"
    with pytest.raises(OptionError, match=problem):
        glft.Container.parse(str(path))
    with pytest.raises(OptionError, match=r"^expected the bytes of a file, found array"):
        glft.Container.parse(np.zeros(64, np.uint8)[::2])
    with pytest.raises(TypeError, match=f"^expected a stream of bytes, found {found}$"):
        glft.Container.parse_stream(str(path))
