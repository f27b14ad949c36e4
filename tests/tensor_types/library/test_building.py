"""Libraries of decoders: the bits of all levels, and the compilers that make them."""

from __future__ import annotations

import ctypes
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch

from glft_schema.codec import Struct, f16, f32, u8
from glft_schema.scalar.language import float32, floats
from glft_schema.tensor_types.blocks import block_type
from glft_schema.tensor_types.compiling import DECLARED
from glft_schema.tensor_types.library import building, loading
from tests.scalar.sources import pointer, same_bits
from tests.tensor_types.library.conftest import FUNCTIONS, TYPES
from tests.tensor_types.test_ggml_types import random_blocks
from tests.tensor_types.test_scalar_decoders import by_llama_cpp, by_plain_python

X86_64 = loading.this_machine().startswith("x86_64-")
FLAGS = {  # of Linux, by level; abm is LZCNT
    3: "avx avx2 bmi1 bmi2 f16c fma abm movbe cx16 lahf_lm popcnt pni ssse3 sse4_1 sse4_2",
    4: "avx512f avx512bw avx512cd avx512dq avx512vl",
}


def level_of_linux() -> int:
    """Returns the level of this processor by the kernel's list of its features."""
    flags = set(Path("/proc/cpuinfo").read_text().partition("\nflags")[2].partition("\n")[0].split())
    has = {level: flags.issuperset(names.split()) for level, names in FLAGS.items()}
    return 4 if has[3] and has[4] else 3 if has[3] else 1


def opened(folder: Path, level: str) -> ctypes.CDLL:
    return ctypes.CDLL(str(next(folder.glob(f"*-{level}-*"))))


@pytest.mark.skipif(sys.platform != "linux" or not X86_64, reason="reads /proc/cpuinfo of x86-64")
def test_the_level_of_this_processor(compiled_once: Path) -> None:
    assert opened(compiled_once, "1").x86_64_level() == level_of_linux()


@pytest.mark.parametrize("level", ["1", "3", "4"])
def test_all_levels_of_this_processor_have_the_bits_of_llama_cpp(level: str, compiled_once: Path) -> None:
    if level != "1" and (not X86_64 or opened(compiled_once, "1").x86_64_level() < int(level)):
        pytest.skip("this processor cannot run it")
    library = opened(compiled_once, level)
    for type_ in TYPES[:2]:
        blocks = random_blocks(type_)[:2000]
        expected = torch.from_numpy(by_llama_cpp(type_, blocks))
        for dtype, suffix in loading.DTYPES.items():
            found = torch.zeros(expected.shape, dtype=getattr(torch, dtype))
            library[type_.scheme + suffix](pointer(blocks), ctypes.c_void_p(found.data_ptr()), ctypes.c_int64(len(blocks)))
            assert same_bits(found.float().numpy(), expected.to(found.dtype).float().numpy())


def test_equal_sources_compile_to_equal_bytes_in_place_of_older_libraries(compiled_once: Path, tmp_path: Path) -> None:
    (tmp_path / f"x86_64-1-{'0' * 32}.so").write_bytes(b"of other sources")
    (tmp_path / "libother.so").write_bytes(b"another library")
    building.build(FUNCTIONS, tmp_path)
    (tmp_path / "libother.so").unlink()
    files = {path.name: path.read_bytes() for path in compiled_once.iterdir()}
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == files
    assert len(files) == (4 if X86_64 else 2)


@pytest.mark.skipif(sys.platform != "linux" or not shutil.which("readelf"), reason="reads ELF by readelf")
def test_libraries_of_linux_refer_to_no_other(compiled_once: Path) -> None:
    for path in compiled_once.glob("*.so"):
        shown = subprocess.run(["readelf", "-dW", "--dyn-syms", path], capture_output=True, text=True).stdout
        assert "(NEEDED)" not in shown
        assert [line.split()[7:] for line in shown.splitlines() if " UND" in line] == [[]]  # the first entry of all tables


def decode_large(w, qs):
    """Sums, in an array that compilers clear by memset."""
    sums = floats(256)
    for i in range(256):
        sums[i % 16 * 16 + i // 16] += float32(qs[i])
    for i in range(256):
        w[i] = sums[i]


def decode_tiny(w, d):
    for i in range(2):
        w[i] = d[i] * 1e-20


def decode_nan(w, d):
    w[0] = (d[0] - d[0]) / (d[0] - d[0])


LARGE = block_type("LARGE_OWN", 4300, 256, Struct("qs" / u8[256]), dequantize=decode_large)
TINY = block_type("TINY_OWN", 4301, 2, Struct("d" / f32[2]), dequantize=decode_tiny)
NAN = block_type("NAN_OWN", 4302, 1, Struct("d" / f16[1]), dequantize=decode_nan)


def test_decoders_with_a_large_array_or_tiny_weights(tmp_path: Path) -> None:
    """An array may need memset, which is found in the process; no block has large weights."""
    if building.compiler() is None:
        pytest.skip("no C compiler")
    building.build([LARGE.functions, TINY.functions], tmp_path)
    library = loading.Library(tmp_path)
    blocks, found = np.random.default_rng(1).integers(0, 256, (1, 256), np.uint8), np.zeros((1, 256), np.float32)
    library.function("large_own")(blocks.ctypes.data, found.ctypes.data, 1)
    assert same_bits(found, by_plain_python(LARGE, blocks))
    assert library.function("tiny_own")


@pytest.mark.skipif(building.compiler() is None, reason="no C compiler")
def test_a_decoder_of_nan_is_refused(tmp_path: Path) -> None:
    problem = "nan_own: expected a decoder of numbers, found NaN in each of 100 random blocks"
    with pytest.raises(building.BuildError, match=f"^{problem}$"):
        building.build([NAN.functions], tmp_path)


TWO_ERRORS = "echo types.c: warning: w >&2; echo types.c:3: error: boom >&2; exit 1"
OF_ZIG = "[ $2 = --version ] && exit; echo error: $1 $2 $3 >&2; exit 1"  # tells its arguments


@pytest.mark.skipif(sys.platform == "win32", reason="scripts are compilers")
@pytest.mark.parametrize(
    ("script", "command", "target", "problem"),
    [
        ("", "", "", "no C compiler: install clang or gcc, or pip install ziglang"),
        ("", "", "x86_64-windows", "no C compiler: pip install ziglang"),
        ("", "", "x86-linux", "expected a target x86_64-linux, .* or x86_64-windows, found 'x86-linux'"),
        ("", "no-such-compiler", "", "the compiler no-such-compiler cannot run: No such file or directory"),
        (TWO_ERRORS, "{} -pipe", "", "the compiler {} -pipe failed: types.c:3: error: boom"),
        ("echo killed >&2; exit 137", "{} -pipe", "", "the compiler {} -pipe failed: killed"),
        ("exit 1", "{}", "", "the compiler {} failed: no message"),
        # no certain processor, otherwise level 1 would need this one
        (OF_ZIG, "{} cc", "x86_64-linux", ".* failed: error: cc -target x86_64-linux-gnu.2.17"),
        (OF_ZIG, "{} cc", "riscv64-linux", ".* failed: error: cc -mcpu=baseline -std=gnu11"),
    ],
)
def test_compilers_that_fail(
    script: str, command: str, target: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ziglang", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CC", command.format(tmp_path / "zig"))
    if script:
        (tmp_path / "zig").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "zig").chmod(0o755)
        monkeypatch.setattr(building, "this_machine", lambda: target or "x86_64-linux")
    with pytest.raises(building.BuildError, match=f"^{problem.format(tmp_path / 'zig')}$"):
        building.build(FUNCTIONS, tmp_path / "compiled", "" if script else target)
    assert not (tmp_path / "compiled").exists()


@pytest.mark.full
def test_all_types_compile_to_small_libraries(tmp_path: Path) -> None:
    """Less than 8 MB in all levels, of which the candidates of grids are 5."""
    if building.compiler() is None:
        pytest.skip("no C compiler")
    functions = [type_.functions for type_ in DECLARED if type_.functions]
    building.build(functions, tmp_path)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 8_000_000
    library = loading.Library(tmp_path)
    assert len(functions) == 29
    assert len(library.names) == 3 * 29 + sum(len(one.encoders) for one in functions)
    assert all(map(library.function, library.names))


@pytest.mark.parametrize(
    ("machine", "system", "expected"),
    [
        ("AMD64", "Windows", "x86_64-windows"),
        ("arm64", "Darwin", "aarch64-macos"),
        ("aarch64", "Linux", "aarch64-linux"),
        ("riscv64", "FreeBSD", "riscv64-freebsd"),
    ],
)
def test_machines_by_name(machine: str, system: str, expected: str) -> None:
    """As in the names of targets, whatever Python calls them."""
    with patch.object(platform, "machine", lambda: machine), patch.object(platform, "system", lambda: system):
        assert loading.this_machine() == expected
