"""Compiled decoders are found, checked and used, or passed over with one message."""

from __future__ import annotations

import ast
import inspect
import json
import logging
import shutil
import subprocess
import sys
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from glft_schema.errors import OptionError
from glft_schema.scalar import language
from glft_schema.tensor_types.compiling import DECLARED
from glft_schema.tensor_types.library import loading
from tests.tensor_types.library.conftest import TYPES

COMMAND = f"`{sys.executable} -m glft_schema.tensor_types.compiling`"
AGAIN = f"types are converted by slower formulas; {COMMAND} compiles them again"


def messages(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    return [(record.levelno, record.getMessage()) for record in caplog.records if record.name == "glft_schema"]


def change_manifest(folder: Path, change: Callable[[Any], object]) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


def library_in(folder: Path) -> Path:
    return next(folder.glob("*-1-*"))


DAMAGED = "the compiled functions are damaged:"
PASSED_OVER: list[tuple[Callable[[Path], object], str]] = [
    (
        lambda folder: change_manifest(folder, lambda manifest: manifest.update(sources="0" * 32)),
        "the functions are compiled from other sources",
    ),
    (
        lambda folder: change_manifest(folder, lambda manifest: manifest.update(machine="sparc-solaris")),
        f"the functions are compiled for 'sparc-solaris', not for {loading.this_machine()}",
    ),
    (lambda folder: library_in(folder).write_bytes(b"cut"), f"{DAMAGED} {{library.name}} does not match its digest"),
    (lambda folder: library_in(folder).unlink(), f"{DAMAGED} [Errno 2] No such file or directory: '{{library}}'"),
    *(
        (lambda folder, content=content: (folder / "manifest.json").write_bytes(content), f"{DAMAGED} {problem}")
        for content, problem in (
            (b"{", "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
            (b"{}", "'machine'"),
            (b"[]", "list indices must be integers or slices, not str"),
            (b"\xff", "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
        )
    ),
]


def assert_passed_over(problem: str, caplog: pytest.LogCaptureFixture) -> None:
    """Asserts that no function is used, and the one message."""
    with caplog.at_level(logging.INFO, "glft_schema"):
        assert [loading.function_of(scheme, "float32") for scheme in ("q4_k", "iq2_xxs", "q4_k")] == [None] * 3
    assert messages(caplog) == [(logging.WARNING, problem)]


@pytest.mark.parametrize(("change", "problem"), PASSED_OVER)
def test_a_library_that_cannot_be_used(
    change: Callable[[Path], object], problem: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    library = library_in(folder)
    change(folder)
    assert_passed_over(f"{problem.format(library=library)}: {AGAIN}", caplog)


def test_no_folder(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder.rename(folder.with_name("elsewhere"))
    assert_passed_over(f"no compiled functions: types are converted by slower formulas; {COMMAND} compiles them", caplog)


@pytest.mark.usefixtures("folder")
def test_functions_of_all_dtypes(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "glft_schema"):
        for scheme, dtype in product((type_.scheme for type_ in TYPES), loading.DTYPES):
            assert (function := loading.function_of(scheme, dtype))
            assert loading.function_of(scheme, dtype) is function
        assert loading.encoder_of("q4_k", False)
        others = loading.encoder_of("q4_k", True), loading.encoder_of("iq2_xxs", True), loading.function_of("q4_own", "float32")
    assert (others, messages(caplog)) == ((None, None, None), [])


def test_the_digest_follows_every_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pattern finds files, and a changed byte in any file changes the digest."""
    expected = loading.digest_of_sources()
    shutil.copytree(loading.PACKAGE, tmp_path, ignore=shutil.ignore_patterns("compiled"), dirs_exist_ok=True)
    monkeypatch.setattr(loading, "PACKAGE", tmp_path)
    assert loading.digest_of_sources() == expected
    for pattern in loading.SOURCES:
        paths = list(tmp_path.glob(pattern))
        assert paths, pattern
        for path in paths:
            content = path.read_bytes()
            path.write_bytes(content[:-1] + b"?")
            assert loading.digest_of_sources() != expected, path
            path.write_bytes(content)


def test_the_sources_have_all_functions_and_tables() -> None:
    """Every global name of a decoder, encoder or helper is defined in a file of the sources."""
    sources = {path for pattern in loading.SOURCES for path in loading.PACKAGE.glob(pattern)}
    functions = [type_.functions for type_ in DECLARED if type_.functions]
    left, seen = [function for one in functions for function in (one.decoder, *one.encoders)], set()
    while left:
        function = inspect.unwrap(left.pop())
        if function in seen or function.__module__ == language.__name__:
            continue
        seen.add(function)
        module = sys.modules[function.__module__]
        imports = [node for node in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(node, ast.ImportFrom)]
        imported = {alias.asname or alias.name: node.module for node in imports for alias in node.names}
        for name in {module.__name__, *(imported[name] for name in function.__code__.co_names if name in imported)}:
            assert Path(sys.modules[name].__file__) in sources, (function, name)
        values = (vars(module).get(name) for name in function.__code__.co_names)
        left += [value for value in values if isinstance(value, types.FunctionType)]
    assert len(seen) > 100


def test_a_library_that_the_system_refuses(folder: Path) -> None:
    """The system's text depends on the system."""
    (folder / "no.so").write_bytes(b"no library")
    name = f"no-{loading.digest(folder / 'no.so')}.so"
    (folder / "no.so").rename(folder / name)
    change_manifest(folder, lambda manifest: manifest.update(levels={"1": name}))
    with pytest.raises(loading.LibraryError, match=rf"\A{DAMAGED} [^\n]*\Z"):
        loading.Library(folder)


def test_a_function_that_fails_its_self_test(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is not used; the others are."""
    change_manifest(folder, lambda manifest: manifest["functions"]["q4_k_f16"].update(expected="0" * 64))
    with caplog.at_level(logging.INFO, "glft_schema"):
        assert [loading.function_of("q4_k", "float16") for _ in range(2)] == [None] * 2
        assert loading.function_of("q4_k", "float32")
        assert loading.function_of("iq2_xxs", "float16")
    problem = "the compiled function q4_k_f16 fails its self-test: some " + AGAIN
    assert messages(caplog) == [(logging.WARNING, problem)]


def test_a_damaged_self_test(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    change_manifest(folder, lambda manifest: manifest["functions"]["q4_k"].update(inputs=["0"]))
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


def test_threads_that_begin_together(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    change_manifest(folder, lambda manifest: manifest["functions"]["q4_k_f16"].update(expected="0" * 64))
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
