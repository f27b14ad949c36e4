"""Compiles decoders and encoders to shared libraries, for this machine or another.

The compiler is this machine's, or the package ziglang, which cross-compiles for all targets.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from hashlib import sha256, shake_128
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from glft_schema.errors import alternatives, one_line, quote
from glft_schema.scalar.as_c import FLAGS
from glft_schema.scalar.kinds import KINDS
from glft_schema.scalar.language import ScalarError, run
from glft_schema.tensor_types.library.loading import DTYPES, MANIFEST, digest, digest_of_sources, this_machine
from glft_schema.tensor_types.library.printing import TypesInC, mean_square_of_row
from glft_schema.tensor_types.scalar_layout import Functions, ScalarField, ScalarLayout

# fmt: off
V3 = ("-mavx2", "-mbmi", "-mbmi2", "-mf16c", "-mfma", "-mlzcnt", "-mmovbe")  # known also to compilers without names of levels
V4 = ("-mavx512f", "-mavx512bw", "-mavx512cd", "-mavx512dq", "-mavx512vl")
LEVELS = {"x86_64": {"1": (), "3": V3, "4": (*V3, *V4)}}
ALONE = ("-std=gnu11", "-Wno-psabi", "-ffreestanding", "-g0", "-shared")
PLAIN = ("q2_0", "q8_0", "q8_1", "tq1_0", "tq2_0")  # types whose encoders are faster in plain C than in lanes
ROWS = 17  # in the self-test of an encoder: more than lanes


class Target(NamedTuple):
    """A machine to compile for.

    Attributes:
        triple: the machine's name for zig.
        tag: the platform in the names of wheels.
    """

    triple: str
    tag: str


TARGETS = {
    "x86_64-linux":   Target("x86_64-linux-gnu.2.17", "manylinux_2_17_x86_64.manylinux2014_x86_64.musllinux_1_1_x86_64"),
    "aarch64-linux":  Target("aarch64-linux-gnu.2.17", "manylinux_2_17_aarch64.manylinux2014_aarch64.musllinux_1_1_aarch64"),
    "x86_64-macos":   Target("x86_64-macos.10.13", "macosx_10_13_x86_64"),
    "aarch64-macos":  Target("aarch64-macos.11.0", "macosx_11_0_arm64"),
    "x86_64-windows": Target("x86_64-windows-gnu", "win_amd64"),
}
# Flags of the linker, and the ending. A library of Linux or Windows refers to no other library.
LINKED = {
    "macos":   (("-fPIC", "-Wl,-install_name,@rpath/types.dylib"), ".dylib"),
    "windows": (("-nostdlib", "-s", "-Wl,-e,DllMain"), ".dll"),
}
ELSEWHERE = ("-fPIC", "-nostdlib", "-s", "-Wl,-Bsymbolic"), ".so"
# fmt: on
OWN = re.compile(r"\w+-\d-[0-9a-f]{32}\.(so|dylib|dll)")  # names of libraries


Test: TypeAlias = dict[str, Any]  # see `loading.Library.function`


class BuildError(Exception):
    """Functions that cannot be compiled; the text says why."""


def compiler(*, portable: bool = False) -> list[str] | None:
    """Returns the command of a C compiler: ``$CC``, a system compiler, or the package ziglang.

    Returns None if there is none.

    Args:
        portable: only ziglang, which compiles for all targets.
    """
    if not portable:
        if given := os.environ.get("CC"):
            return shlex.split(given, posix=os.sep == "/")
        for name in () if this_machine().endswith("windows") else ("clang", "cc", "gcc"):
            if path := shutil.which(name):
                return [path]
    return [sys.executable, "-m", "ziglang", "cc"] if find_spec("ziglang") else None


def build(types: Iterable[Functions], folder: Path, target: str = "") -> None:
    """Compiles functions into a folder, in place of the libraries there. Equal sources and
    compilers give equal bytes.

    Args:
        types: the functions of each type.
        folder: created if it is missing.
        target: a key of TARGETS, compiled for by ziglang; by default this machine.

    Raises:
        BuildError: if there is no compiler, or it fails.
        ScalarError: if a function does not follow the language.
    """
    if target and target not in TARGETS:
        raise BuildError(f"expected a target {alternatives(TARGETS)}, found {quote(target)}")
    machine, command = target or this_machine(), compiler(portable=bool(target))
    if command is None:
        raise BuildError(f"no C compiler: {'' if target else 'install clang or gcc, or '}pip install ziglang")
    _run(command, ["--version"], os.curdir)  # fails before the minute of work that needs the compiler
    if any(Path(word).stem in ("zig", "ziglang") for word in command):  # by default it uses all that this processor has
        command += ["-target", TARGETS[machine].triple] if machine in TARGETS else ["-mcpu=baseline"]
    unit, tests = TypesInC(), []
    for layout, decoder, encoders in types:
        if decoder:
            unit.decoder(layout, decoder)
            tests.append(partial(_test_of_decoder, layout, decoder))
        for encoder in encoders:
            tests.append(partial(_test_of_encoder, layout, encoder, _print_encoder(unit, layout, encoder)))
    architecture, _, system = machine.partition("-")
    linked, ending = LINKED.get(system, ELSEWHERE)
    levels = LEVELS.get(architecture, {"1": ()})
    with tempfile.TemporaryDirectory() as temporary:
        (Path(temporary) / "types.c").write_text(f"{unit}\n{Path(__file__).with_name('machine.c').read_text('utf-8')}", "utf-8")

        def compiled(level: str) -> Path:
            path = Path(temporary) / f"{level}{ending}"
            _run(command, [*ALONE, *FLAGS, *levels[level], *linked, "-o", path.name, "types.c"], temporary)
            return path

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            compiling = pool.map(compiled, levels)
            functions = {name: test for test_of in tests for name, test in test_of().items()}
            paths = dict(zip(levels, compiling, strict=True))
        names = {level: f"{architecture}-{level}-{digest(path)}{ending}" for level, path in paths.items()}
        manifest = {"machine": machine, "sources": digest_of_sources(), "levels": names, "functions": functions}
        (Path(temporary) / MANIFEST).write_text(json.dumps(manifest, indent=1), "utf-8")
        folder.mkdir(parents=True, exist_ok=True)
        for path, name in (*((paths[level], name) for level, name in names.items()), (Path(temporary) / MANIFEST, MANIFEST)):
            if name != MANIFEST and (folder / name).exists() and digest(folder / name) in name:
                continue  # Windows replaces no loaded library
            shutil.copyfile(path, folder / f".{name}")
            os.replace(folder / f".{name}", folder / name)  # other processes find a whole file, and keep the old one
    for path in folder.iterdir():
        if OWN.fullmatch(path.name) and path.name not in names.values():
            with suppress(OSError):  # a loaded library cannot be removed on Windows
                path.unlink()


def _run(command: list[str], arguments: list[str], folder: str) -> None:
    try:
        done = subprocess.run(
            [*command, *arguments],
            cwd=folder,
            env={"ZIG_GLOBAL_CACHE_DIR": folder, **os.environ},  # nothing is left in the user's folder of caches
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise BuildError(f"the compiler {command[0]} cannot run: {error.strerror}") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines() or ["no message"]
        raise BuildError(f"the compiler {shlex.join(command)} failed: {one_line(lines[0])}")


def _print_encoder(unit: TypesInC, layout: ScalarLayout, encoder: Callable[..., Any]) -> str:
    """Adds an encoder in lanes, or in plain C if that is faster or the only form. Returns its
    name."""
    if layout.weights is not None and layout.name not in PLAIN:
        with suppress(ScalarError):
            return unit.encoder(layout, encoder, lanes=True)
    return unit.encoder(layout, encoder)


def _test_of_decoder(layout: ScalarLayout, source: Callable[..., Any]) -> dict[str, Test]:
    """Returns the self-tests of a type's decoders and its product by name: the bytes of a block, or
    of a row's fields, and a digest of the weights in each dtype, computed by plain Python.

    The bytes are pseudorandom. No weight is NaN, because C does not define the bits of NaN. The
    largest weight is a normal float16 if one of 100 trials gives such a block.
    """
    columns, kept = layout.weights or 2 * layout.unit, None
    for trial in range(100):
        w = np.zeros(columns, "<f4")
        fields = {field.name: _random(layout, field, columns, trial) for field in layout.fields}
        _run_plainly(source, w=w, **fields)
        if not np.isnan(w).any():
            kept = w, fields
            if 2**-10 < np.abs(w).max() < 2**15:
                break
    if kept is None:
        raise BuildError(f"{layout.name}: expected a decoder of numbers, found NaN in each of 100 random blocks")
    w, inputs = kept[0], [field.tobytes() for field in kept[1].values()]
    bits = w.view("<u4")
    bfloat16 = (bits + 0x7FFF + (bits >> 16 & 1) >> 16).astype("<u2")
    with np.errstate(over="ignore"):
        expected = {"float32": w, "float16": w.astype("<f2"), "bfloat16": bfloat16}
    inputs, counts = ([b"".join(inputs)], [1]) if layout.weights else (inputs, [1, columns])
    tests = {layout.name + suffix: _test(inputs, counts, [expected[dtype].tobytes()]) for dtype, suffix in DTYPES.items()}
    return {**tests, f"multiply_{layout.name}": _test_of_product(layout, inputs, w)}


def _test_of_product(layout: ScalarLayout, fields: list[bytes], w: np.ndarray[Any, Any]) -> Test:
    """Returns the self-test of a product: two equal rows of weights, and three rows of x."""
    x = _random(layout, ScalarField("x", "f32", 3 * len(w)), len(w), 0).reshape(3, len(w))
    sums = np.zeros((3, 16), "<f4")
    with np.errstate(all="ignore"):
        for column, weight in enumerate(w):
            sums[:, column % 16] += x[:, column] * weight
        while sums.shape[1] > 1:
            sums = sums[:, : sums.shape[1] // 2] + sums[:, sums.shape[1] // 2 :]
    pitch = max(map(len, fields))
    inputs = [field.ljust(pitch, b"\0") * 2 for field in fields]
    return _test([*inputs, x.tobytes()], [2, len(w), 3, pitch, 2], [sums.repeat(2, 1).tobytes()])


def _test_of_encoder(layout: ScalarLayout, source: Callable[..., Any], name: str) -> dict[str, Test]:
    """Returns the self-test of an encoder by name: pseudorandom weights, their importance if it is
    used, and a digest of the bytes that encode `ROWS` equal rows of them."""
    columns = layout.weights or 2 * layout.unit
    w, importance = (_random(layout, ScalarField(part, "f32", columns), columns, 0) for part in ("w", "importance"))
    mean_square = np.zeros(1, "<f4")
    run(mean_square_of_row, w=w, mean_square=mean_square)
    fields = {field.name: np.zeros(field.count_in(columns), KINDS[field.number].numpy) for field in layout.fields}
    _run_plainly(source, w=w, importance=abs(importance), mean_square=mean_square, **fields)
    inputs = [w.tobytes()] + [abs(importance).tobytes()] * name.endswith("_by_importance")
    outputs = [field.tobytes() for field in fields.values()]
    outputs = [b"".join(outputs) * ROWS] if layout.weights else [output * ROWS for output in outputs]
    return {name: {"repeats": ROWS, **_test(inputs, [ROWS, columns], outputs)}}


def _test(inputs: list[bytes], counts: list[int], outputs: list[bytes]) -> Test:
    content = sha256(b"".join(outputs)).hexdigest()
    return {"inputs": [field.hex() for field in inputs], "counts": counts, "outputs": [*map(len, outputs)], "expected": content}


def _run_plainly(source: Callable[..., Any], **arrays: np.ndarray[Any, Any]) -> None:
    """Runs a function as plain Python on those arrays that are its parameters."""
    names = inspect.signature(source).parameters.values()
    run(source, **{one.name: arrays[one.name] for one in names if one.kind is not one.KEYWORD_ONLY})


def _random(layout: ScalarLayout, field: ScalarField, columns: int, trial: int) -> np.ndarray[Any, Any]:
    """Returns random numbers of a field, equal on all machines. Floats are from -2 to 2."""
    numbers, kind = field.count_in(columns), np.dtype(KINDS[field.number].numpy).newbyteorder("<")
    content = shake_128(f"{layout.name} {field.name} {trial}".encode()).digest(numbers * kind.itemsize)
    if kind.kind == "f":
        return (np.frombuffer(content[: 2 * numbers], "<i2") / 2**14).astype(kind)
    return np.frombuffer(content, kind)
