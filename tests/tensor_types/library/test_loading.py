"""Compiled decoders are found, checked and used, or passed over with one message."""

from __future__ import annotations

import ast
import inspect
import logging
import subprocess
import sys
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glft_schema.errors import OptionError
from glft_schema.scalar import language
from glft_schema.scalar.checking import check
from glft_schema.tensor_types.compiling import DECLARED
from glft_schema.tensor_types.library import loading
from tests.scalar.sources import by_numpy, same_bits
from tests.scalar.test_as_torch import columns
from tests.tensor_types.library.conftest import TYPES
from tests.tensor_types.test_ggml_types import random_blocks

COMMAND = f"`{sys.executable} -m glft_schema.tensor_types.compiling`"
AGAIN = f"types are converted by slower formulas; {COMMAND} compiles them again"
Change = Callable[[Callable[[Any], object]], None]


def messages(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    return [(record.levelno, record.getMessage()) for record in caplog.records if record.name == "glft_schema"]


@pytest.fixture
def passed_over(folder: Path, caplog: pytest.LogCaptureFixture) -> Callable[[str], None]:
    """Asserts that no function is used, and the one message."""

    def check(problem: str) -> None:
        with caplog.at_level(logging.INFO, "glft_schema"):
            for scheme in ("q4_k", "iq2_xxs", "q4_k"):
                assert loading.function_of(scheme, "float32") is None
        assert messages(caplog) == [(logging.WARNING, problem)]

    return check


@pytest.mark.usefixtures("folder")
def test_functions_of_all_dtypes(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "glft_schema"):
        functions = {
            (type_.scheme, dtype): loading.function_of(type_.scheme, dtype) for type_ in TYPES for dtype in loading.DTYPES
        }
        assert all(functions.values())
        assert all(loading.function_of(*key) is function for key, function in functions.items())
        assert loading.function_of("q4_own", "float32") is None
    blocks = random_blocks(TYPES[0])[:100]
    found = np.zeros((100, 256), np.float32)
    functions["q4_k", "float32"](blocks.ctypes.data, found.ctypes.data, 100)
    layout = TYPES[0].functions.layout
    assert same_bits(found, by_numpy(check(TYPES[0].formula, layout.arrays()), columns(layout, blocks)))
    assert loading.encoder_of("q4_k", False)
    assert loading.encoder_of("q4_k", True) is None
    assert loading.encoder_of("iq2_xxs", True) is None
    assert messages(caplog) == []


def test_no_folder(folder: Path, passed_over: Callable[..., None]) -> None:
    folder.rename(folder.with_name("elsewhere"))
    problem = f"no compiled functions: types are converted by slower formulas; {COMMAND} compiles them"
    passed_over(problem)


def test_other_sources(change_manifest: Change, passed_over: Callable[..., None]) -> None:
    change_manifest(lambda manifest: manifest.update(sources="0" * 32))
    passed_over(f"the functions are compiled from other sources: {AGAIN}")


def test_the_digest_follows_every_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pattern finds files, and a changed byte in any file changes the digest."""
    expected, files = loading.digest_of_sources(), []
    for pattern in loading.SOURCES:
        found = list(loading.PACKAGE.glob(pattern))
        assert found, pattern
        files += found
    for path in files:
        copy = tmp_path / path.relative_to(loading.PACKAGE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    monkeypatch.setattr(loading, "PACKAGE", tmp_path)
    assert loading.digest_of_sources() == expected
    for path in [path for path in tmp_path.rglob("*") if path.is_file()]:
        content = path.read_bytes()
        path.write_bytes(content[:-1] + b"?")
        assert loading.digest_of_sources() != expected, path
        path.write_bytes(content)


def test_the_sources_have_all_functions_and_tables() -> None:
    """Every global name of a decoder, encoder or helper is defined in a file of the sources."""
    sources = {path for pattern in loading.SOURCES for path in loading.PACKAGE.glob(pattern)}
    used = [type_.functions for type_ in DECLARED if type_.functions]
    left, seen = [function for functions in used for function in (functions.decoder, *functions.encoders)], set()
    while left:
        function = inspect.unwrap(left.pop())
        if function in seen or function.__module__ == language.__name__:
            continue
        seen.add(function)
        module = sys.modules[function.__module__]
        assert Path(inspect.getsourcefile(module)) in sources, function
        imported = {
            alias.asname or alias.name: node.module
            for node in ast.walk(ast.parse(inspect.getsource(module)))
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        for name in function.__code__.co_names:
            if name in imported:
                assert Path(inspect.getsourcefile(sys.modules[imported[name]])) in sources, (function, name)
            if isinstance(value := vars(module).get(name), types.FunctionType):
                left.append(value)
    assert len(seen) > 100


def test_another_machine(change_manifest: Change, passed_over: Callable[..., None]) -> None:
    change_manifest(lambda manifest: manifest.update(machine="sparc-solaris"))
    passed_over(f"the functions are compiled for 'sparc-solaris', not for {loading.this_machine()}: {AGAIN}")


@pytest.mark.parametrize("changed", [lambda content: content[:-1], lambda content: content[:-1] + bytes([content[-1] ^ 1])])
def test_a_damaged_library(changed: Callable[[bytes], bytes], folder: Path, passed_over: Callable[..., None]) -> None:
    path = next(folder.glob("*-1-*"))
    path.write_bytes(changed(path.read_bytes()))
    passed_over(f"the compiled functions are damaged: {path.name} does not match its digest: {AGAIN}")


def test_a_library_that_the_system_refuses(folder: Path, change_manifest: Change, passed_over: Callable[..., None]) -> None:
    """The system's text depends on the system."""
    (folder / "no.so").write_bytes(b"no library")
    name = f"no-{loading.digest(folder / 'no.so')}.so"
    (folder / "no.so").rename(folder / name)
    change_manifest(lambda manifest: manifest.update(levels={"1": name}))
    with pytest.raises(loading.LibraryError) as raised:
        loading.Library(folder)
    assert str(raised.value).startswith("the compiled functions are damaged: ")
    assert "\n" not in str(raised.value)
    passed_over(f"{raised.value}: {AGAIN}")


def test_a_missing_library(folder: Path, passed_over: Callable[..., None]) -> None:
    path = next(folder.glob("*-1-*"))
    path.unlink()
    passed_over(f"the compiled functions are damaged: [Errno 2] No such file or directory: '{path}': {AGAIN}")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"{", "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        (b"{}", "'machine'"),
        (b"[]", "list indices must be integers or slices, not str"),
        (b"\xff", "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
    ],
)
def test_a_damaged_manifest(content: bytes, problem: str, folder: Path, passed_over: Callable[..., None]) -> None:
    (folder / "manifest.json").write_bytes(content)
    passed_over(f"the compiled functions are damaged: {problem}: {AGAIN}")


def test_a_function_that_fails_its_self_test(change_manifest: Change, caplog: pytest.LogCaptureFixture) -> None:
    """It is not used; the others are."""
    change_manifest(lambda manifest: manifest["functions"]["q4_k_f16"].update(expected="0" * 64))
    with caplog.at_level(logging.INFO, "glft_schema"):
        assert loading.function_of("q4_k", "float16") is None
        assert loading.function_of("q4_k", "float16") is None
        assert loading.function_of("q4_k", "float32")
        assert loading.function_of("iq2_xxs", "float16")
    problem = "the compiled function q4_k_f16 fails its self-test: some " + AGAIN
    assert messages(caplog) == [(logging.WARNING, problem)]


def test_a_damaged_self_test(change_manifest: Change, caplog: pytest.LogCaptureFixture) -> None:
    change_manifest(lambda manifest: manifest["functions"]["q4_k"].update(inputs=["0"]))
    assert loading.function_of("q4_k", "float32") is None
    [(level, problem)] = messages(caplog)
    assert level == logging.WARNING
    assert problem.startswith("the compiled functions are damaged: ")
    assert problem.endswith(f": some {AGAIN}")


@pytest.mark.usefixtures("folder")
def test_turned_off(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Also after a function was in use, and without a message."""
    used = loading.function_of("q4_k", "float32")
    monkeypatch.setenv("GLFT_LIBRARY", "off")
    with caplog.at_level(logging.INFO, "glft_schema"):
        assert loading.function_of("q4_k", "float32") is None
        assert loading.function_of("iq2_xxs", "float32") is None
    assert messages(caplog) == []
    monkeypatch.setenv("GLFT_LIBRARY", "")
    assert loading.function_of("q4_k", "float32") is used
    monkeypatch.setenv("GLFT_LIBRARY", "on")
    with pytest.raises(OptionError, match=r"^expected GLFT_LIBRARY=off or unset, found 'on'$"):
        loading.function_of("q4_k", "float32")


def test_threads_that_begin_together(change_manifest: Change, caplog: pytest.LogCaptureFixture) -> None:
    change_manifest(lambda manifest: manifest["functions"]["q4_k_f16"].update(expected="0" * 64))
    keys = [(type_.scheme, dtype) for type_ in TYPES for dtype in loading.DTYPES] * 20
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda key: loading.function_of(*key), keys))
    assert [key for key, function in zip(keys, found, strict=True) if function is None] == [("q4_k", "float16")] * 20
    assert len(messages(caplog)) == 1


FORKED = """
import os, sys
from pathlib import Path
import numpy as np
from glft_schema.tensor_types.library import loading
loading.FOLDER = Path(sys.argv[1])
blocks = np.arange(144 * 10, dtype=np.uint32).astype(np.uint8)
def decoded(dtype):
    w = np.zeros(2560, np.float32)
    loading.function_of("q4_k", dtype)(blocks.ctypes.data, w.ctypes.data, 10)
    return w.tobytes()
before = decoded("float32")
child = os.fork()
if not child:
    os._exit(decoded("float32") != before or not decoded("float16"))
print(os.waitpid(child, 0)[1], decoded("float32") == before)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="forks")
def test_a_forked_child(folder: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FORKED, folder], capture_output=True, text=True)
    assert done.stdout == "0 True\n", done.stderr


def test_loading_does_not_import_torch() -> None:
    program = (
        "import sys; from glft_schema.tensor_types.library import loading\n"
        "loading.function_of('q4_k', 'float32'); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr
