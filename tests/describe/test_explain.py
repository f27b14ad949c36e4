"""`glft explain`: every byte in hex, once, below its field."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glft_schema import Container, byte_map
from glft_schema.cli.explain import bounds
from glft_schema.describe.hex_view import STYLES, HexView
from tests.golden import golden
from tests.oracles.gguf_reference import File as Written
from tests.oracles.gguf_reference import Info
from tests.tools import gguf_strategies
from tests.tools import glft_strategies as strategies
from tests.tools.command_line import in_this_process, on_a_terminal

HEX = re.compile(r"  0x([0-9a-f]{8})  ((?:[0-9a-f]{2} ){0,15}[0-9a-f]{2}) {2,}(.*)")


def run(*args: object, code: int = 0) -> tuple[list[str], str]:
    """Returns the lines of the command and its error."""
    done = in_this_process("explain", *args)
    assert done.returncode == code
    return done.stdout.splitlines(), done.stderr


def dumped(lines: list[str]) -> dict[int, int]:
    """The bytes that lines of hex have, by offset; none of them may come twice."""
    found: dict[int, int] = {}
    for line in lines:
        if match := HEX.fullmatch(line):
            for i, byte in enumerate(bytes.fromhex(match[2])):
                assert int(match[1], 16) + i not in found
                found[int(match[1], 16) + i] = byte
    return found


def test_a_field_is_its_path_type_value_sentence_and_bytes(four_types: Path) -> None:
    lines, error = run(four_types)
    assert error == ""
    assert lines[0] == f"{four_types}: GLFT, little-endian, 168 bytes"
    assert lines[4:7] == [
        "header -> version: u32 = 1",
        "  1; a file with another number is another format",
        f"  0x00000004  01 00 00 00 {'':35}  ....",
    ]
    assert "descriptors -> 2 -> dtype: u8 (GLFT type) = 2, Q8_per_channel" in lines
    assert "data -> 'fc2' -> nibbles: u8[out, in // 2], 32 bytes" in lines
    assert dumped(lines) == dict(enumerate(golden("four_types")))


def test_what_is_long_is_folded_and_says_how_to_open_it(tmp_path: Path) -> None:
    path = tmp_path / "file.gguf"
    stored = Written([(b"k", 9, (8, [b"%04d" % i for i in range(99)]))], [Info(b"w", [32, 50], 2, bytes(900))]).bytes()
    path.write_bytes(stored)
    lines, _ = run(path)
    folds = [line.split() for line in lines if line.startswith("  ... ")]
    assert len(folds) == 2
    opened = dumped(lines)
    assert sum(int(fold[1].replace(",", "")) for fold in folds) + len(opened) == len(stored)
    for fold in folds:
        opened |= dumped(run(path, "--range", fold[fold.index("--range") + 1])[0])
    assert opened == dict(enumerate(stored))


def test_a_range_is_exactly_those_bytes_opened(four_types: Path) -> None:
    expected = f"""of tensor 'fc1'
data -> 'fc1' -> scales: f16[out], 4 bytes
  one scale per output channel
  0x0000007e  00 c0 {"":41}  ..
    1: -2
data -> 'fc1' -> codes: i8[out, in], 6 bytes
  signed 8-bit codes; weight = code * scale of its row
  0x00000080  01 ff 80 {"":38}  ...
    0 -> 0: 1 -1 -128"""
    assert run(four_types, "--range", "126:0x83")[0] == expected.splitlines()
    everything, _ = run(four_types, "--range", ":")
    assert dumped(everything) == dict(enumerate(golden("four_types")))
    assert dumped(run(four_types, "--range", ":20")[0]) == dict(enumerate(golden("four_types")[:20]))
    assert "metadata -> line 1: line key=value = 'arch=toy\\n'" in everything


@settings(max_examples=max(settings.default.max_examples // 3, 25))
@given(st.one_of(gguf_strategies.loose_files(), strategies.files().map(lambda made: made[0])), st.data())
def test_any_range_of_any_file(stored: bytes, data: st.DataObject) -> None:
    file = Container.parse(stored)
    view = HexView(byte_map(file))
    start = data.draw(st.integers(0, len(stored) - 1))
    end = data.draw(st.integers(start + 1, len(stored)))
    lines = list(view.part(start, end))
    assert dumped(lines) == {at: stored[at] for at in range(start, end)}
    assert all(line.isprintable() for line in lines)
    whole = dumped(list(view.whole()))
    assert all(stored[at] == byte for at, byte in whole.items())
    for name, tensor in file.tensors.items():
        assert not tensor.nbytes or tensor.position in dumped(list(view.tensor(name)))


def test_a_tensor_is_its_row_and_its_first_blocks(tmp_path: Path) -> None:
    path = tmp_path / "file.gguf"
    block = b"\x00\x38" + bytes(range(16))
    path.write_bytes(Written([], [Info(b"a", [1], 24, b"x"), Info(b"w", [32, 9], 2, block * 9)]).bytes())
    lines, _ = run(path, "--tensor", "w")
    expected = """tensor_infos -> 1 -> name: text after u64 = 'w'
tensor_infos -> 1 -> dims: u64[] after u32 = [32, 9]
tensor_infos -> 1 -> dtype: u32 (ggml type) = 2, Q4_0
tensor_infos -> 1 -> offset: u64 = 32
Q4_0 row 0, weights 0..31: d = 0.5, decoded -4 -3.5 -3 -2.5 -2 -1.5 -1 -0.5 ...
data -> 'w' -> blocks -> 0 -> 0 -> d: f16[1] = 0.5
data -> 'w' -> blocks -> 0 -> 0 -> qs: u8[16], 16 bytes
Q4_0 row 1, weights 0..31: d = 0.5, decoded -4 -3.5 -3 -2.5 -2 -1.5 -1 -0.5 ...
data -> 'w' -> blocks -> 1 -> 0 -> d: f16[1] = 0.5
data -> 'w' -> blocks -> 1 -> 0 -> qs: u8[16], 16 bytes"""
    assert [line for line in lines if not line.startswith(" ")] == expected.splitlines()
    assert "    0: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15" in lines
    assert lines[-1].startswith(f"  ... {7 * 18} more bytes: --range 0x")


def test_tied_tensors_say_so(tmp_path: Path) -> None:
    path = tmp_path / "loose.glft"
    path.write_bytes(golden("loose_layout"))
    assert "shared by tensors 'x', 'z'" in run(path, "--tensor", "z")[0]
    assert "data (gap): bytes, 2 bytes" in run(path)[0]


A_RANGE, WITHIN = "a range such as 0x40:128, :64 or 100:", "a range A:B with 0 <= A < B <= 168"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        *((["--range", text], f"{A_RANGE}, found {text!r}") for text in ("12", "-5:", "1_0:", "٣:")),
        *((["--range", text], f"{WITHIN}, found {text!r}") for text in ("5:5", "0:169", "200:")),
        (["--range", ":", "--tensor", "a"], "--tensor or --range, found both"),
        (["--tensor", "fc"], "a tensor that matches 'fc', found none; did you mean 'fc1' or 'fc2'?"),
        (["--tensor", "fc*"], "one tensor that matches 'fc*', found 2: 'fc1', 'fc2'"),
    ],
)
def test_a_bad_request_is_one_line(four_types: Path, options: list[str], problem: str) -> None:
    assert run(four_types, *options, code=2) == ([], f"glft: expected {problem}\n")


def test_bounds_in_every_way_of_writing() -> None:
    assert [bounds(text, 100) for text in ("0x10:32", ":", "007:0x9")] == [(16, 32), (0, 100), (7, 9)]


def test_lines_fit_eighty_columns_but_for_paths(tmp_path: Path) -> None:
    path = tmp_path / "file.gguf"
    entries = [(b"k" * 30, 8, b"v" * 300), (b"n", 9, (5, list(range(10**9, 10**9 + 40))))]
    path.write_bytes(Written(entries, [Info(b"w" * 60, [32, 2], 2, bytes(36))]).bytes())
    lines = run(path)[0] + run(path, "--range", ":")[0]
    assert len(lines) > 80
    assert all(len(line) <= 80 or line.startswith("data -> '") or str(path) in line for line in lines)


def test_colour_only_where_it_was_asked_for(four_types: Path) -> None:
    plain, coloured = ("\n".join(run(four_types, "--color", when)[0]) for when in ("auto", "always"))
    assert ("\x1b" in plain, "\x1b[" in coloured) == (False, True)
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain
    assert set(re.findall(r"\x1b\[([0-9;]+)m", coloured)) <= {*STYLES.values(), "0"}


def test_on_a_terminal(four_types: Path) -> None:
    assert "\x1b[" in on_a_terminal("explain", four_types, NO_COLOR="").stdout
    for options, no_color in (([], "1"), (["--color", "never"], "")):
        done = on_a_terminal("explain", four_types, *options, NO_COLOR=no_color)
        assert (done.returncode, "magic" in done.stdout, "\x1b[" in done.stdout) == (0, True, False)


def test_torch_is_not_needed(four_types: Path) -> None:
    script = f"""
import sys, runpy
from click.testing import CliRunner
from glft_schema.cli.explain import explain
from glft_schema.cli.options import command
for args in ([], ["--range", ":"], ["--tensor", "fc2"]):
    assert CliRunner().invoke(command(explain), [{str(four_types)!r}, *args]).exit_code == 0
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_truncated_payload_is_explained_up_to_the_cut(four_types: Path) -> None:
    stored = golden("four_types")[:-5]
    four_types.write_bytes(stored)
    lines, error = run(four_types, code=2)
    assert dumped(lines) == dict(enumerate(stored))
    assert not any("not covered" in line for line in lines)
    fault = "fault: " + error.removeprefix(f"glft: {four_types}: ").rstrip("\n")
    assert lines[lines.index(fault) + 1].startswith("data -> 'fc2' -> ")
    counts = [run(four_types, *options, code=2)[0].count(fault) for options in ([], ["--range", ":114"], ["--tensor", "fc2"])]
    assert counts == [1, 0, 1]


def test_a_cut_block_has_no_fields(tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    stored = Written([], [Info(b"w", [32, 50], 2, bytes(900))]).bytes()
    start = len(stored) - (-900 % 32) - 900
    path.write_bytes(stored[: start + 18 + 7])
    lines, _ = run(path, "--range", f"{start + 17}:", code=2)
    assert lines[-3:-1] == ["data -> 'w' -> blocks -> 1 -> 0: q4_0, 7 bytes", "  truncated"]
    assert dumped(lines) == dict.fromkeys(range(start + 17, start + 25), 0)


def test_a_broken_file_is_explained_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "cut.glft"
    path.write_bytes(golden("four_types")[:100])
    lines, error = run(path, code=2)
    assert lines[0] == f"{path}: GLFT, little-endian, 100 bytes, broken"
    assert "header -> version: u32 = 1" in lines
    assert any("bytes are not covered by any declared field" in line for line in lines)
    fault = error.removeprefix(f"glft: {path}: ").partition("; the file may be truncated, or")[0]
    assert lines[lines.index(f"fault: {fault}") + 1].startswith("unclaimed: bytes, ")
    assert fault.startswith("descriptors -> 3 -> ")
    path.write_bytes(b"what is this?")
    lines, error = run(path, code=2)
    assert lines == []
    assert "expected b'TFLG' (GLFT), b'GGUF' (GGUF) or a safetensors file, found b'what'" in error
