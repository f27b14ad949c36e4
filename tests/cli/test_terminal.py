"""Output on a terminal: width, colours, the lines after a job; sizes as options."""

from __future__ import annotations

import io
import re
import sys
import time
from pathlib import Path

import click
import pytest
import torch

import glft_schema as glft
from glft_schema.cli.commands import Commands
from glft_schema.cli.options import bytes_of
from glft_schema.cli.terminal import RefusedError, rate_text, waiting
from glft_schema.display import align
from glft_schema.errors import OptionError, UnsupportedError
from tests.tools.command_line import in_this_process, on_a_terminal

RED = "\x1b[31m"
NAME = "a_module_with_a_rather_long_name.blk.0.attn_q.weight"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    state = {NAME: torch.ones(2, 32), "b": torch.ones(1)}
    glft.save_file(state, tmp_path / "model.gguf", {"general.architecture": "toy", "general.name": "a"})
    return tmp_path / "model.gguf"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_tables_fit_the_columns_of_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("name", "bytes"), ("a.rather.long.name.weight", "1,000"), ("short", "2")]
    before = align(rows, right=1)
    assert "  a.rather.long.name.weight  1,000" in before
    monkeypatch.setattr(sys, "stdout", Terminal())
    for columns in ("30", "1"):
        monkeypatch.setenv("COLUMNS", columns)
        assert align(rows, right=1)[1] == "  a.rather.l...name.weight  1,000"
    lines = align([("a", "b", "c", "d", "e", "f")], right=2)
    assert (lines[0], " ".join(" ".join(lines[1:]).split())) == ("  a  b  c  d", "left out: e, f; a pipe has all columns")


def test_names_are_whole_if_stdout_is_no_terminal(model: Path) -> None:
    assert NAME in in_this_process("inspect", model).stdout
    done = on_a_terminal("inspect", model, COLUMNS="60")
    assert (done.returncode, NAME in done.stdout) == (0, False)
    assert re.search(r"  a_module_\w*\.\.\.[\w.]*weight  F32 ", done.stdout)


@pytest.mark.parametrize(
    ("environment", "is_red"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)], ids=str
)
def test_errors_are_red_on_a_terminal(environment: dict[str, str], is_red: bool, tmp_path: Path) -> None:
    done = on_a_terminal("inspect", tmp_path / "none", **environment)
    assert (done.returncode, done.stdout.startswith(f"{RED}glft:")) == (2, is_red)
    assert RED not in in_this_process("inspect", tmp_path / "none").stderr


def test_changes_are_coloured_on_a_terminal(model: Path) -> None:
    done = on_a_terminal("edit", model, "--remove", "general.name", "--set", "general.type=x", "--dry-run")
    assert f"{RED}remove 'general.name': string 'a'" in done.stdout
    assert "\x1b[32madd 'general.type': string 'x'" in done.stdout


def test_states_are_coloured_on_a_terminal(model: Path) -> None:
    other = model.with_name("other.gguf")
    glft.save_file({"b": torch.zeros(1), "c": torch.ones(2)}, other, {"general.architecture": "toy", "general.name": "b"})
    done = on_a_terminal("compare", model, other, COLUMNS="200")
    words = re.findall(r"\x1b\[(\d+)m(\w+)\x1b\[0m  ", done.stdout)
    assert words == [("33", "changed"), ("32", "added"), ("31", "removed"), ("33", "changed")]
    assert "\x1b" not in in_this_process("compare", model, other).stdout
    narrow = " ".join(on_a_terminal("compare", model, other, COLUMNS="62").stdout.split())
    assert "left out: relative, SNR, cosine, worst row, its error; a pipe has all columns" in narrow


def test_jobs_end_with_what_was_written_and_the_next_command(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out file.gguf"
    done = on_a_terminal("convert", model, out, COLUMNS="300")
    wrote, following = done.stdout.splitlines()[-2:]
    assert (done.returncode, following) == (0, f"next: glft verify '{out}'")
    assert wrote.startswith(f"wrote {out}: {out.stat().st_size} bytes in ")
    assert "next:" not in in_this_process("convert", model, out).stdout
    parts = on_a_terminal("split", model, tmp_path / "part", "--max-bytes", "1kB", COLUMNS="300").stdout.splitlines()
    assert parts[-1] == f"next: glft verify {tmp_path / 'part'}-00001-of-00001.gguf"


def test_slow_imports_are_shown() -> None:
    stream = io.StringIO()
    with waiting(stream, "loading torch", patience=60):
        pass
    assert not stream.getvalue()
    with waiting(stream, "loading torch", patience=0):
        deadline = time.monotonic() + 10
        while not stream.getvalue() and time.monotonic() < deadline:
            time.sleep(0.001)
    assert stream.getvalue() == "loading torch ...\r\x1b[K"


def test_rates_are_below_all_in_a_second() -> None:
    assert [rate_text(speed) for speed in (None, 0.0, 0.0025, 0.5, 1.0, 14.255)] == ["", "", "0.2%/s", "50.0%/s", "", ""]


@pytest.mark.parametrize(("source", "options"), [("f32", ""), ("q8_0", " --allow-requantize")])
def test_plan_ends_with_the_recipe_and_quantize(source: str, options: str, tmp_path: Path) -> None:
    out, path = tmp_path / "mix.txt", tmp_path / f"{source}.gguf"
    metadata = {"general.architecture": "llama", "llama.block_count": 1}
    glft.save_file({"blk.0.attn_q.weight": torch.ones(2, 256)}, path, metadata, schemes={"*": source})
    done = on_a_terminal("plan", path, "--bpw", "9", *options.split(), "-o", out, COLUMNS="300")
    assert f"wrote {out}: {out.stat().st_size} bytes in " in done.stdout
    assert done.stdout.splitlines()[-1] == f"next: glft quantize {path} {source}-mix.gguf {out}{options}"


@pytest.mark.parametrize(("text", "size"), [("30MB", 30_000_000), ("2GiB", 2 << 30), ("18446744073709551615", (1 << 64) - 1)])
def test_sizes_are_numbers_with_a_unit(text: str, size: int) -> None:
    assert bytes_of(text) == size


@pytest.mark.parametrize("text", ["", "-1", "1.5.", "90 pounds", "MB", "1e3"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match="expected a size in bytes, kB, MB, GB, KiB, MiB or GiB, such as 90MB, found"):
        bytes_of(text)


def test_limits_take_units(model: Path) -> None:
    assert in_this_process("--limit", "text=1kB", "inspect", model).returncode == 0
    assert "limit text" in in_this_process("--limit", "text=0.004kB", "inspect", model).stderr


@pytest.mark.parametrize(
    ("error", "raised"),
    [(NotImplementedError, NotImplementedError), (OptionError, RefusedError), (UnsupportedError, RefusedError)],
)
def test_errors_of_libraries_are_no_options(error: type[Exception], raised: type[Exception]) -> None:
    """Only what this package raises for options and declarations becomes one line."""

    def refuse() -> None:
        raise error("of torch")

    group = Commands("x")
    group.add_command(click.Command("y", callback=refuse))
    with pytest.raises(raised, match=r"^of torch$"):
        group(["y"], standalone_mode=False)
