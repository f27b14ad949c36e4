"""Libraries of decoders: the bits of all levels, and the compilers that make them."""

from __future__ import annotations

import ctypes
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from glft_schema.codec import Struct, f16, f32, u8
from glft_schema.scalar.checking import check
from glft_schema.scalar.language import float32, floats, run
from glft_schema.tensor_types.blocks import block_type
from glft_schema.tensor_types.compiling import DECLARED
from glft_schema.tensor_types.library import building, loading
from glft_schema.tensor_types.symmetric import Q4_PER_GROUP_64
from tests.scalar.sources import by_numpy, pointer, same_bits
from tests.scalar.test_as_torch import columns
from tests.tensor_types.library.conftest import FUNCTIONS, TYPES
from tests.tensor_types.test_ggml_types import random_blocks

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
def test_all_levels_of_this_processor_have_the_bits_of_the_arrays(level: str, compiled_once: Path) -> None:
    if level != "1" and (not X86_64 or opened(compiled_once, "1").x86_64_level() < int(level)):
        pytest.skip("this processor cannot run it")
    library = opened(compiled_once, level)
    for type_ in TYPES[:2]:
        blocks = random_blocks(type_)[:2000]
        layout = type_.functions.layout
        expected = torch.from_numpy(by_numpy(check(type_.formula, layout.arrays()), columns(layout, blocks)))
        for dtype, suffix in loading.DTYPES.items():
            found = torch.zeros(expected.shape, dtype=getattr(torch, dtype))
            library[type_.scheme + suffix](pointer(blocks), ctypes.c_void_p(found.data_ptr()), ctypes.c_int64(len(blocks)))
            assert same_bits(found.float().numpy(), expected.to(found.dtype).float().numpy())


def test_a_type_of_rows_decodes_as_by_its_formula(compiled_once: Path) -> None:
    random = np.random.default_rng(0)
    scales, nibbles = random.random((50, 3)).astype(np.float16), random.integers(0, 256, (50, 96), np.uint8)
    found = np.zeros((50, 192), np.float32)
    function = opened(compiled_once, "1").q4_per_group_64
    function(pointer(scales), pointer(nibbles), pointer(found), ctypes.c_int64(50), ctypes.c_int64(192))
    expected = Q4_PER_GROUP_64.decode({"scales": scales, "nibbles": nibbles}, 192)
    assert same_bits(found, expected)


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
    blocks, found = np.random.default_rng(1).integers(0, 256, (1, 256), np.uint8), np.zeros(256, np.float32)
    library.function("large_own")(blocks.ctypes.data, found.ctypes.data, 1)
    expected = np.zeros(256, np.float32)
    run(decode_large, w=expected, qs=blocks[0])
    assert same_bits(found, expected)
    assert library.function("tiny_own")


def test_a_decoder_of_nan_is_refused(tmp_path: Path) -> None:
    with pytest.raises(building.BuildError) as raised:
        building.build([NAN.functions], tmp_path)
    assert str(raised.value) == "nan_own: expected a decoder of numbers, found NaN in each of 100 random blocks"


@pytest.fixture
def no_ziglang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ziglang", None)


@pytest.mark.usefixtures("no_ziglang")
def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(building.BuildError) as raised:
        building.build(FUNCTIONS, tmp_path / "compiled")
    assert str(raised.value) == "no C compiler: install clang or gcc, or pip install ziglang"
    with pytest.raises(building.BuildError) as raised:
        building.build(FUNCTIONS, tmp_path / "compiled", "x86_64-windows")
    assert str(raised.value) == "no C compiler: pip install ziglang"
    assert not (tmp_path / "compiled").exists()


def test_an_unknown_target(tmp_path: Path) -> None:
    with pytest.raises(building.BuildError) as raised:
        building.build(FUNCTIONS, tmp_path, "x86-linux")
    assert str(raised.value) == (
        "expected a target x86_64-linux, aarch64-linux, x86_64-macos, aarch64-macos or x86_64-windows, found 'x86-linux'"
    )


@pytest.mark.skipif(sys.platform == "win32", reason="a script is the compiler")
def test_zig_compiles_for_no_certain_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise level 1 would need this one."""
    path = tmp_path / "zig"
    path.write_text("#!/bin/sh\n[ $2 = --version ] && exit\necho error: $1 $2 $3 >&2; exit 1\n")
    path.chmod(0o755)
    monkeypatch.setenv("CC", f"{path} cc")
    for machine, option in (("x86_64-linux", "-target x86_64-linux-gnu.2.17"), ("riscv64-linux", "-mcpu=baseline -std=gnu11")):
        monkeypatch.setattr(building, "this_machine", lambda machine=machine: machine)
        with pytest.raises(building.BuildError) as raised:
            building.build(FUNCTIONS, tmp_path / "compiled")
        assert str(raised.value).endswith(f"failed: error: cc {option}")


@pytest.mark.skipif(sys.platform == "win32", reason="a script is the compiler")
@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("echo types.c: warning: w >&2; echo types.c:3: error: boom >&2; exit 1", "failed: types.c:3: error: boom"),
        ("echo killed >&2; exit 137", "failed: killed"),
        ("exit 1", "failed: no message"),
    ],
)
def test_a_compiler_that_fails(script: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cc"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("CC", f"{path} -pipe")
    with pytest.raises(building.BuildError) as raised:
        building.build(FUNCTIONS, tmp_path / "compiled")
    assert str(raised.value) == f"the compiler {path} -pipe {problem}"
    assert not (tmp_path / "compiled").exists()


def test_a_compiler_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(building.BuildError) as raised:
        building.build(FUNCTIONS, tmp_path)
    assert str(raised.value) == "the compiler no-such-compiler cannot run: No such file or directory"


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


def test_machines_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the names of targets, whatever Python calls them."""
    for machine, system, expected in (
        ("AMD64", "win32", "x86_64-windows"),
        ("arm64", "darwin", "aarch64-macos"),
        ("aarch64", "linux", "aarch64-linux"),
        ("riscv64", "freebsd14", "riscv64-freebsd14"),
    ):
        monkeypatch.setattr(platform, "machine", lambda machine=machine: machine)
        monkeypatch.setattr(sys, "platform", system)
        found = loading.this_machine()
        monkeypatch.undo()
        assert found == expected
