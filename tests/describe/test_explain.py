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
from glft_schema.errors import OptionError
from tests.golden import golden
from tests.oracles.gguf_reference import File as Written
from tests.oracles.gguf_reference import Info
from tests.tools import gguf_strategies
from tests.tools import glft_strategies as strategies
from tests.tools.command_line import in_this_process, on_a_terminal

ALONE = [sys.executable, "-c", "from glft_schema.cli.commands import Glft; Glft().get_command(None, 'explain')()"]
HEX = re.compile(r"  0x([0-9a-f]{8})  ((?:[0-9a-f]{2} ){0,15}[0-9a-f]{2}) {2,}(.*)")


def run(*args: object) -> tuple[int, str, str]:
    done = in_this_process("explain", *args)
    return done.returncode, done.stdout, done.stderr


def dumped(lines: list[str]) -> dict[int, int]:
    """The bytes that lines of hex have, by offset; none of them may come twice."""
    found: dict[int, int] = {}
    for line in lines:
        if match := HEX.fullmatch(line):
            for i, byte in enumerate(bytes.fromhex(match[2])):
                assert int(match[1], 16) + i not in found
                found[int(match[1], 16) + i] = byte
    return found


@pytest.fixture
def four_types(tmp_path: Path) -> Path:
    path = tmp_path / "four.glft"
    path.write_bytes(golden("four_types"))
    return path


def test_a_field_is_its_path_type_value_sentence_and_bytes(four_types: Path) -> None:
    code, out, err = run(four_types)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].endswith("four.glft: GLFT, little-endian, 168 bytes")
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
    lines = run(path)[1].splitlines()
    folds = [line for line in lines if line.startswith("  ... ")]
    assert len(folds) == 2
    left = [int(fold.split()[1].replace(",", "")) for fold in folds]
    assert sum(left) + len(dumped(lines)) == len(stored)
    opened = dumped(lines)
    for fold in folds:
        part = re.search(r"--range (\S+) expands them", fold)
        assert part
        opened |= dumped(run(path, "--range", part[1])[1].splitlines())
    assert opened == dict(enumerate(stored))


def test_a_range_is_exactly_those_bytes_opened(four_types: Path) -> None:
    code, out, _ = run(four_types, "--range", "126:0x83")
    assert code == 0
    assert out.splitlines() == [
        "of tensor 'fc1'",
        "data -> 'fc1' -> scales: f16[out], 4 bytes",
        "  one scale per output channel",
        f"  0x0000007e  00 c0 {'':41}  ..",
        "    1: -2",
        "data -> 'fc1' -> codes: i8[out, in], 6 bytes",
        "  signed 8-bit codes; weight = code * scale of its row",
        f"  0x00000080  01 ff 80 {'':38}  ...",
        "    0 -> 0: 1 -1 -128",
    ]
    everything = run(four_types, "--range", ":")[1].splitlines()
    assert dumped(everything) == dict(enumerate(golden("four_types")))
    assert dumped(run(four_types, "--range", ":20")[1].splitlines()) == dict(enumerate(golden("four_types")[:20]))
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
    names = [name for name, tensor in file.tensors.items() if tensor.nbytes]
    for name in names:
        place = file.tensors[name].position
        assert place in dumped(list(view.tensor(name)))


def test_a_tensor_is_its_row_and_its_first_blocks(tmp_path: Path) -> None:
    path = tmp_path / "file.gguf"
    block = b"\x00\x38" + bytes(range(16))
    path.write_bytes(Written([], [Info(b"a", [1], 24, b"x"), Info(b"w", [32, 9], 2, block * 9)]).bytes())
    code, out, _ = run(path, "--tensor", "w")
    assert code == 0
    lines = out.splitlines()
    assert [line for line in lines if not line.startswith(" ")] == [
        "tensor_infos -> 1 -> name: text after u64 = 'w'",
        "tensor_infos -> 1 -> dims: u64[] after u32 = [32, 9]",
        "tensor_infos -> 1 -> dtype: u32 (ggml type) = 2, Q4_0",
        "tensor_infos -> 1 -> offset: u64 = 32",
        "Q4_0 row 0, weights 0..31: d = 0.5, decoded -4 -3.5 -3 -2.5 -2 -1.5 -1 -0.5 ...",
        "data -> 'w' -> blocks -> 0 -> 0 -> d: f16[1] = 0.5",
        "data -> 'w' -> blocks -> 0 -> 0 -> qs: u8[16], 16 bytes",
        "Q4_0 row 1, weights 0..31: d = 0.5, decoded -4 -3.5 -3 -2.5 -2 -1.5 -1 -0.5 ...",
        "data -> 'w' -> blocks -> 1 -> 0 -> d: f16[1] = 0.5",
        "data -> 'w' -> blocks -> 1 -> 0 -> qs: u8[16], 16 bytes",
    ]
    assert "    0: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15" in lines
    assert lines[-1].startswith(f"  ... {7 * 18} more bytes: --range 0x")


def test_tied_tensors_say_so(tmp_path: Path) -> None:
    path = tmp_path / "loose.glft"
    path.write_bytes(golden("loose_layout"))
    assert "shared by tensors 'x', 'z'" in run(path, "--tensor", "z")[1].splitlines()
    assert "data (gap): bytes, 2 bytes" in run(path)[1].splitlines()


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (["--range", "12"], "expected a range such as 0x40:128, :64 or 100:, found '12'"),
        (["--range", "-5:"], "expected a range such as 0x40:128, :64 or 100:, found '-5:'"),
        (["--range", "1_0:"], "expected a range such as 0x40:128, :64 or 100:, found '1_0:'"),
        (["--range", "5:5"], "expected a range A:B with 0 <= A < B <= 168, found '5:5'"),
        (["--range", "0:169"], "expected a range A:B with 0 <= A < B <= 168, found '0:169'"),
        (["--range", "200:"], "expected a range A:B with 0 <= A < B <= 168, found '200:'"),
        (["--range", ":", "--tensor", "a"], "expected --tensor or --range, found both"),
        (["--tensor", "fc"], "expected a tensor that matches 'fc', found none; did you mean 'fc1' or 'fc2'?"),
        (["--tensor", "fc*"], "expected one tensor that matches 'fc*', found 2: 'fc1', 'fc2'"),
    ],
)
def test_a_bad_request_is_one_line(four_types: Path, args: list[str], problem: str) -> None:
    assert run(four_types, *args) == (2, "", f"glft: {problem}\n")


def test_bounds_in_every_way_of_writing() -> None:
    assert bounds("0x10:32", 100) == (16, 32)
    assert bounds(":", 100) == (0, 100)
    assert bounds("007:0X9".lower(), 100) == (7, 9)
    with pytest.raises(OptionError):
        bounds("٣:", 100)


def test_lines_fit_eighty_columns_but_for_paths(tmp_path: Path) -> None:
    path = tmp_path / "file.gguf"
    entries = [(b"k" * 30, 8, b"v" * 300), (b"n", 9, (5, list(range(10**9, 10**9 + 40))))]
    path.write_bytes(Written(entries, [Info(b"w" * 60, [32, 2], 2, bytes(36))]).bytes())
    for args in ([], ["--range", ":"]):
        lines = run(path, *args)[1].splitlines()
        assert len(lines) > 40
        assert all(len(line) <= 80 or line.startswith("data -> '") or str(path) in line for line in lines)


def test_colour_only_where_it_was_asked_for(four_types: Path) -> None:
    plain = run(four_types)[1]
    assert "\x1b" not in plain
    coloured = run(four_types, "--color", "always")[1]
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain
    assert set(re.findall(r"\x1b\[([0-9;]+)m", coloured)) <= {*STYLES.values(), "0"}


def test_on_a_terminal(four_types: Path) -> None:
    assert "\x1b[" in on_a_terminal("explain", four_types, NO_COLOR="").stdout
    for options, no_color in (([], "1"), (["--color", "never"], "")):
        done = on_a_terminal("explain", four_types, *options, NO_COLOR=no_color)
        assert (done.returncode, "magic" in done.stdout, "\x1b[" in done.stdout) == (0, True, False)


def test_whoever_has_read_enough_may_leave(tmp_path: Path) -> None:
    path = tmp_path / "file.gguf"
    path.write_bytes(Written([], [Info(b"t%d" % i, [1], 24, b"x") for i in range(3000)]).bytes())
    with subprocess.Popen([*ALONE, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stderr
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""


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
    with Container.parse_file(four_types) as file:
        last = max(file.tensors.values(), key=lambda tensor: tensor.position)
        payloads = min(tensor.position for tensor in file.tensors.values())
    stored = golden("four_types")[:-5]
    four_types.write_bytes(stored)
    code, out, err = run(four_types)
    lines = out.splitlines()
    assert code == 2
    assert dumped(lines) == dict(enumerate(stored))
    assert "not covered" not in out
    fault = err.removeprefix(f"glft: {four_types}: ").rstrip("\n")
    assert lines[lines.index(f"fault: {fault}") + 1].startswith(f"data -> '{last.name}' -> ")
    assert "fault: " not in run(four_types, "--range", f":{payloads}")[1]
    assert (
        lines.count(f"fault: {fault}") == run(four_types, "--tensor", last.name)[1].splitlines().count(f"fault: {fault}") == 1
    )


def test_a_cut_block_has_no_fields(tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    stored = Written([], [Info(b"w", [32, 50], 2, bytes(900))]).bytes()
    end = len(stored) - stored[::-1].index(b"w") + 4 + 8 + 8 + 4 + 8
    start = end + -end % 32
    path.write_bytes(stored[: start + 18 + 7])
    code, out, _ = run(path, "--range", f"{start + 17}:")
    lines = out.splitlines()
    assert code == 2
    assert lines[-3:-1] == ["data -> 'w' -> blocks -> 1 -> 0: q4_0, 7 bytes", "  truncated"]
    assert dumped(lines) == dict.fromkeys(range(start + 17, start + 25), 0)


def test_a_broken_file_is_explained_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "cut.glft"
    path.write_bytes(golden("four_types")[:100])
    code, out, err = run(path)
    assert code == 2
    assert out.splitlines()[0] == f"{path}: GLFT, little-endian, 100 bytes, broken"
    assert "header -> version: u32 = 1" in out
    assert "bytes are not covered by any declared field" in out
    fault = err.removeprefix(f"glft: {path}: ").partition("; the file may be truncated, or")[0]
    lines = out.splitlines()
    assert lines[lines.index(f"fault: {fault}") + 1].startswith("unclaimed: bytes, ")
    assert err.startswith(f"glft: {path}: descriptors -> 3 -> ")
    assert err.count("\n") == 1
    path.write_bytes(b"what is this?")
    code, out, err = run(path)
    assert (code, out) == (2, "")
    assert "expected b'TFLG' (GLFT), b'GGUF' (GGUF) or a safetensors file, found b'what'" in err
