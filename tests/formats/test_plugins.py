"""Formats and tensor types that other packages announce as entry points."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from glft_schema import plugins, save_file
from glft_schema.errors import PluginWarning
from glft_schema.formats import FORMATS, register_format
from glft_schema.tensor_types.ggml import GGML_TYPES, _check_registered
from tests.formats.own_formats import LINES, registered
from tests.tools import forked

ROOT = Path(__file__).parents[2]
TYPE = """
from glft_schema.codec import Struct, f16
from glft_schema.types import register_type

def decode(w, pair):
    for i in range(2):
        w[i] = pair[i]

PLUGGED = register_type("PLUGGED", {code}, weights=2, block=Struct("pair" / f16[2]), dequantize=decode)
"""

Package = Callable[..., Path]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    """Returns a function that installs a package, one module with entry points, on `sys.path`."""

    def install(name: str, source: str, **entries: str) -> Path:
        """Writes a module and announces its values: the group (formats, types) -> the name."""
        folder = tmp_path / "site"
        about = folder / f"{name}-1.0.dist-info"
        about.mkdir(parents=True)
        (folder / f"{name}.py").write_text(source, "utf-8")
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", "utf-8")
        text = "".join(f"[glft_schema.{group}]\n{name} = {name}:{value}\n" for group, value in entries.items())
        (about / "entry_points.txt").write_text(text, "utf-8")
        monkeypatch.syspath_prepend(folder)
        return folder

    return install


def run(site: Path, program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def loaded(group: str) -> list[str]:
    """Loads the plugins of a group, and returns the warnings."""
    register = register_format if group == plugins.FORMATS else _check_registered
    with pytest.warns(PluginWarning) as caught, registered():
        plugins.load(group, register)
    return [str(warning.message) for warning in caught]


def test_a_plugin_that_fails_to_import(package: Package) -> None:
    package("broken", "import nothing_of_this_name", formats="TOY", types="T4")
    problem = "is not available: ModuleNotFoundError: No module named 'nothing_of_this_name'"
    assert loaded(plugins.FORMATS) == [f"broken of broken (glft_schema.formats) {problem}"]
    assert loaded(plugins.TYPES) == [f"broken of broken (glft_schema.types) {problem}"]


def test_a_plugin_that_takes_a_built_in_format(package: Package) -> None:
    source = "from tests.formats.own_formats import LINES\nobject.__setattr__(LINES, 'endings', ('.gguf',))"
    package("taker", source, formats="LINES")
    try:
        (problem,) = loaded(plugins.FORMATS)
    finally:
        object.__setattr__(LINES, "endings", (".lines",))
    assert problem.endswith("ValueError: expected a name, file extensions and magics that no format has, found '.gguf' of GGUF")
    assert LINES not in FORMATS


def test_a_plugin_that_takes_a_used_code(package: Package) -> None:
    package("usurper", TYPE.format(code=12), types="PLUGGED")
    (problem,) = loaded(plugins.TYPES)
    assert problem.endswith("ValueError: expected an unused code and an unused name, found one used by 12 Q4_K")
    assert GGML_TYPES[12].name == "Q4_K"


def test_values_that_are_not_registered(package: Package) -> None:
    package("other", "VALUE = 5", formats="VALUE", types="VALUE")
    (format,), (type_,) = loaded(plugins.FORMATS), loaded(plugins.TYPES)
    assert format.endswith("TypeError: expected a Format, found 5")
    assert type_.endswith("TypeError: expected a type that register_type has returned, found 5")


OPEN = """
import sys
import glft_schema as glft
with glft.open(sys.argv[1]) as file:
    str(file), list(file.tensors.values())
print(sorted({"importlib.metadata", "broken", "torch"} & {*sys.modules}))
"""


def test_known_files_load_no_plugin(package: Package, tmp_path: Path) -> None:
    site = package("broken", "print('loaded')", formats="TOY", types="T4")
    for ending in ("gguf", "glft", "safetensors"):
        save_file({"w": torch.zeros(1, 64)}, tmp_path / f"a.{ending}", rules=[])
        done = run(site, OPEN, tmp_path / f"a.{ending}")
        assert (done.stdout, done.stderr) == ("[]\n", "")


UNKNOWN = """
import sys, warnings
warnings.simplefilter("ignore")
import glft_schema as glft
print(*(tensor.type for tensor in glft.open(sys.argv[1]).tensors.values()))
"""


def test_a_type_is_loaded_for_its_code_or_its_name(package: Package, tmp_path: Path) -> None:
    site = package("plugged", TYPE.format(code=211), types="PLUGGED")
    path = tmp_path / "a.gguf"
    rows = [{"name": "w", "dims": [2], "dtype": 211}]
    code = "import glft_schema as glft, sys; glft.Container.build_file({'format': 'gguf', 'tensor_infos': "
    done = run(site, f"{code}{rows}, 'data': {{'w': bytes(4)}}}}, sys.argv[1])", path)
    assert done.stderr == ""
    assert run(site, UNKNOWN, path).stdout == "PLUGGED\n"
    assert run(tmp_path / "nothing", UNKNOWN, path).stdout == "type 211\n"
    done = forked.run("glft_schema", "schema", "plugged", environment={"PYTHONPATH": str(site)})
    assert (done.returncode, done.stderr) == (0, "")


def test_commands_find_a_type_by_its_scheme(package: Package, tmp_path: Path) -> None:
    """Nothing else has loaded the types of packages: each command begins in a new process."""
    encoder = "def encode(w, pair):\n    for i in range(2):\n        pair[i] = w[i]\n"
    source = TYPE.format(code=212).replace("dequantize=decode", "dequantize=decode, quantize=encode")
    site = package("plugged", f"{encoder}{source}", types="PLUGGED")
    entries = {"general.architecture": "toy", "toy.block_count": 0}
    save_file({"blk.0.ffn_up.weight": torch.ones(4, 64)}, tmp_path / "a.gguf", entries)
    for command, *options in (("convert", "--scheme", "*=Plugged"), ("quantize", "q8_0", "--tensor-type", "ffn_up=plugged")):
        to = tmp_path / f"{command}.gguf"
        arguments = [command, tmp_path / "a.gguf", to, *options, "--rules", "required"]
        done = forked.run("glft_schema", *arguments, environment={"PYTHONPATH": str(site)})
        assert done.returncode == 0, done.stderr
        assert run(site, UNKNOWN, to).stdout == "PLUGGED\n"
    code = "from glft_schema.formats.registry import registered_type; print(registered_type('plugged'))"
    assert run(site, code).stdout == "PLUGGED\n"


def test_the_command_line_warns_once(package: Package, tmp_path: Path) -> None:
    site = package("broken", "raise ImportError('no\\nlibrary')", formats="TOY", types="T4")
    (tmp_path / "a.bin").write_bytes(b"nothing known")
    done = run(site, "from glft_schema.cli import main; main()", "inspect", tmp_path / "a.bin")
    first, second = done.stderr.splitlines()
    assert first == "glft: warning: broken of broken (glft_schema.formats) is not available: ImportError: no library"
    assert (done.returncode, second[:14]) == (2, f"glft: {tmp_path}"[:14])
