"""The public names, their positional arguments, and the cost of importing them."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections import Counter
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import get_type_hints

import pytest

import glft_schema as glft

ROOT = Path(__file__).parents[1]
IN_CODEC = ("predicates", "rules", "metadata", "metadata_lines", "metadata_rules", "expressions", "context")
FACES = [
    *(glft, *(getattr(glft, part) for part in glft.PARTS)),
    *(import_module(f"glft_schema.codec.{name}") for name in IN_CODEC),
]
MOST = {  # functions with more than two positional arguments
    "save_file": 3,
    "limit": 3,  # a row of a page: key, condition in words, and as a function
    "merge_lora": 3,
    "quantize": 3,
    "write_gguf_lite": 3,  # the lab's signature
    "node_of": 3,  # a singledispatch function for user-defined constructs
    "block_type": 4,  # a row in the table of a family: name, code, weights, block
    "pack": 3,  # codes, width, axis
    "unpack": 3,
}
FUNCTIONS = {
    f"{face.__name__}.{name}": value
    for face in FACES
    for name in face.__all__
    if inspect.isroutine(value := getattr(face, name)) and not inspect.isclass(value)
}


def test_the_face_is_small() -> None:
    assert len(glft.__all__) <= 30
    assert len(glft.codec.__all__) <= 40
    faces = [face for face in FACES if face is not glft.numpy]  # like safetensors.numpy
    routines = [value for face in faces for name in face.__all__ if inspect.isroutine(value := getattr(face, name))]
    assert [each for each, number in Counter(routines).items() if number > 1] == []  # each has one place


def test_dir_has_the_names_that_are_imported_later() -> None:
    code = "import glft_schema as glft; print(*dir(glft)); glft.no_such_name"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert {*glft.__all__, "testing"} <= {*done.stdout.split()}
    assert done.stderr.endswith("AttributeError: module 'glft_schema' has no attribute 'no_such_name'\n")


@pytest.mark.parametrize("name", [name for name in glft.__all__ if inspect.isfunction(getattr(glft, name))])
def test_functions_show_their_options_and_are_called_outside_of_graphs(name: str) -> None:
    function = getattr(glft, name)
    assert not any(each.kind is each.VAR_KEYWORD for each in inspect.signature(function).parameters.values())
    assert "return" in get_type_hints(function)  # also for pydantic, Sphinx and typer
    assert function.__wrapped__.__name__ == name  # by `outside_graphs`


@pytest.mark.parametrize("name", FUNCTIONS)
def test_arguments_after_the_first_two_are_keywords(name: str) -> None:
    parameters = inspect.signature(FUNCTIONS[name]).parameters.values()
    positional = [each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    assert len(positional) <= MOST.get(name.rpartition(".")[2], 2), positional


def test_importing_it_imports_nothing_large() -> None:
    code = "import sys, glft_schema; print({'torch', 'hypothesis', 'jinja2', 'click'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_the_parts_are_attributes() -> None:
    code = "import glft_schema as glft; print(glft.testing.containers.__name__, glft.checks.hash_file.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "containers hash_file\n"
    with pytest.raises(AttributeError, match="module 'glft_schema' has no attribute 'nothing'"):
        glft.nothing  # noqa: B018


PUBLIC = {face.__name__ for face in FACES}


@pytest.mark.parametrize("page", [ROOT / "README.md", *(ROOT / "docs").glob("**/*.md")], ids=lambda page: page.name)
def test_pages_name_only_what_is_public(page: Path) -> None:
    text = page.read_text("utf-8")
    assert {*re.findall(r"^(?:from|import) (glft_schema[\w.]*)", text, re.MULTILINE)} <= PUBLIC
    for path in re.findall(r"`glft\.([\w.]+)", text):
        attrgetter(path)(glft)
