"""The command line as a user runs it: output, streams and exit codes.

Tests that need no process of their own call verbs in this process, which saves a second each.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import glft_schema
from glft_schema import load_file
from glft_schema.cli.commands import COMMANDS
from tests.golden import golden
from tests.tools.command_line import assert_refused, glft, in_this_process, on_a_terminal
from tests.tools.processes import Process

STATE = {"fc.weight": torch.randn(4, 128), "fc.bias": torch.randn(4), "tied": torch.zeros(0)}
MAIN = "from glft_schema.cli import main; main()"


def python(code: str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    safetensors.torch.save_file(STATE, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


@pytest.fixture
def four_types(tmp_path: Path) -> Path:
    (tmp_path / "four.gguf-lite").write_bytes(golden("four_types"))
    return tmp_path / "four.gguf-lite"


def test_convert_inspect_verify(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "model.gguf-lite"
    options = ["--scheme", "q8_per_channel", "--scheme", "fc.*=q4_per_group_64", "--metadata", "arch=a=b", "--alignment", 64]
    done = glft("convert", source, out, *options)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Q4_per_group_64" in done.stdout
    assert "\n\nfallback types:\n  1 as f32 (fc.bias): not q4_per_group_64: expected at least 2 dims" in done.stdout
    assert list(load_file(out)) == ["fc.bias", "fc.weight", "tied"]

    inspected = in_this_process("inspect", out)
    assert inspected.returncode == 0
    for part in (
        "GLFT, 512 bytes, version 1, n_tensors 3, metadata_len 8",
        "arch = a=b",
        "  fc.weight  ",
        "[4, 128]",
        f"{out}: GLFT, 516 parameters, Q4_per_group_64 (mostly), 4.47 bits per weight, 512 bytes\n",
    ):
        assert part in inspected.stdout
    listed = in_this_process("inspect", out, "--all").stdout
    for part in ("Q4_per_group_64        1", "\n    nibbles     ", "at byte"):
        assert part in listed

    verified = in_this_process("verify", out, "--derives-from", source)
    assert (verified.returncode, verified.stderr) == (0, "")
    assert f"derives from {source}: " in verified.stdout


def test_verify_against_a_published_hash(four_types: Path) -> None:
    digest = sha256(four_types.read_bytes()).hexdigest()
    for given in (digest, f"sha256:{digest.upper()}"):
        done = in_this_process("verify", four_types, "--sha256", given)
        assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "1 file matches --sha256")
    done = in_this_process("verify", four_types, "--sha256", "0" * 64)
    assert (done.returncode, f"expected SHA-256 {'0' * 64}, found {digest}" in done.stdout) == (1, True)
    text = "glft: expected 64 hexadecimal digits for --sha256, found '12'\n"
    assert in_this_process("verify", four_types, "--sha256", "12").stderr == text


def test_inspect_as_json(four_types: Path) -> None:
    data = json.loads(in_this_process("inspect", "--json", four_types).stdout)
    assert (data["format"], data["bytes"], data["metadata"]) == ("GLFT", 168, {"arch": "toy", "note": "a=b üß"})
    fc1 = {"name": "fc1", "dims": [2, 3], "type": "Q8_per_channel", "offset": 10, "position": 124, "nbytes": 10}
    assert data["tensors"][2] == fc1 | {"complete": True}
    assert sum(data["byte_counts"].values()) == 168
    assert data["byte_counts"]["Q8_per_channel scales"] == 4


def test_verify_other_sources(source: Path, tmp_path: Path) -> None:
    out, other = tmp_path / "model.gguf-lite", tmp_path / "other.safetensors"
    in_this_process("convert", source, out, "--scheme", "q8_per_channel", "--exclude", "tied")
    changed = {**STATE, "fc.weight": STATE["fc.weight"] + torch.eye(4, 128), "fc.bias": torch.zeros(5)}
    for state, parts in (
        (changed, ("differs", "expected shape [5], found [4]", "not in the file", "is not confirmed to derive")),
        ({"fc.weight": STATE["fc.weight"]}, ("only in the file",)),
    ):
        safetensors.torch.save_file(state, other)
        done = in_this_process("verify", out, "--derives-from", other)
        assert done.returncode == 1
        for part in parts:
            assert part in done.stdout
    in_this_process("convert", source, out)
    safetensors.torch.save_file({name: tensor + 1e-3 for name, tensor in STATE.items()}, other)
    assert in_this_process("verify", out, "--derives-from", other).returncode == 1
    assert in_this_process("verify", out, "--derives-from", other, "--tolerance", 0.01).returncode == 0


def test_bytes_of_no_tensor_are_counted(tmp_path: Path) -> None:
    (tmp_path / "loose").write_bytes(golden("loose_layout"))
    gaps = "5 bytes in gaps between payloads, 2 of them after the last one"
    assert all(gaps in in_this_process(verb, tmp_path / "loose").stdout for verb in ("verify", "inspect"))


def test_bad_files_are_one_line_with_file_field_and_offset(four_types: Path) -> None:
    four_types.write_bytes(golden("four_types")[:150])
    for verb in ("explain", "verify"):
        done = in_this_process(verb, four_types)
        done.stdout = "" if verb == "explain" else done.stdout  # the fields up to the fault
        assert_refused(
            done, str(four_types), "data -> 'fc2' -> nibbles: the file is truncated: 150 of 168 bytes", "at byte 136"
        )


def test_bad_requests_are_one_line(source: Path, four_types: Path, tmp_path: Path) -> None:
    out, nan = tmp_path / "out.glft", tmp_path / "nan.safetensors"
    safetensors.torch.save_file({"w": torch.full((1, 64), float("nan"))}, nan)
    text = tmp_path / "text"
    text.write_text("hello")
    (tmp_path / "cut").write_bytes(golden("four_types")[:60])
    magic = "header -> magic: expected b'TFLG' (GLFT), b'GGUF' (GGUF) or a safetensors file, found"
    no_file = "No such file or directory"
    for command, *parts in (
        (["inspect", tmp_path / "missing"], f"missing: {no_file}"),
        (["inspect", tmp_path], ": expected an index (*.safetensors.index.json) or one safetensors file, found "),
        (["inspect", tmp_path / "a\nglft: forged"], rf"a\nglft: forged: {no_file}"),
        (["inspect", text], f"glft: {text}: {magic}"),
        (["verify", text, "--derives-from", source], magic),
        (["verify", tmp_path / "cut", "--derives-from", source], "cut: header -> n_tensors"),
        (["verify", four_types, "--derives-from", tmp_path / "missing.safetensors"], f"missing.safetensors: {no_file}"),
        (["convert", tmp_path / "missing", out], f"missing: {no_file}"),
        (["convert", source, tmp_path / "no" / "out.glft"], no_file),
        (["convert", source, "/dev/full", "--format", "glft"], "glft: /dev/full: not a regular file; left unchanged"),
        (["convert", source, out, "--scheme", "fc.wieght=f16"], "did you mean 'fc.weight'"),
        (
            ["convert", source, out, "--scheme", "fc.*=q5"],
            "glft: GLFT has no type 'q5': expected f32, f16, q8_per_channel or q4_per_group_64",
        ),
        (["convert", source, out, "--metadata", "novalue"], "glft: expected KEY=VALUE, found 'novalue'"),
        (
            ["convert", source, out, "--metadata", "=v"],
            f"glft: {out}: metadata: expected a non-empty key without '=' or newline, found ''",
        ),
        (["convert", nan, out, "--scheme", "q8_per_channel"], f"glft: {nan}: tensor 'w' at [0, 0]: NaN"),
    ):
        assert_refused(in_this_process(*command), *parts)
    assert not out.exists()


def test_a_warning_is_one_line(tmp_path: Path) -> None:
    safetensors.torch.save_file({"w": torch.full((1, 64), 1e-9)}, tmp_path / "model.safetensors")
    done = glft("convert", tmp_path / "model.safetensors", tmp_path / "out.glft", "--scheme", "q4_per_group_64")
    assert done.returncode == 0
    assert done.stderr.startswith("glft: warning: tensor 'w': 64 non-zero weights are stored as 0")
    assert done.stderr.count("\n") == 1


def test_version() -> None:
    done = subprocess.run([sys.executable, "-m", "glft_schema", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"glft_schema {glft_schema.__version__}\n"


def glft_without(descriptor: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs a verb without standard input (0), output (1) or errors (2)."""
    code = "import os, sys; os.close(int(sys.argv[1])); os.execv(sys.executable, [sys.executable, *sys.argv[2:]])"
    return python(code, descriptor, "-m", "glft_schema", *arguments)


@pytest.mark.parametrize("closed", [1, 2])
def test_closed_output_changes_no_verdict(four_types: Path, tmp_path: Path, closed: int) -> None:
    for expected, name in ((0, four_types), (2, tmp_path / "missing")):
        done = glft_without(closed, "verify", name)
        assert done.returncode == expected
        assert "Traceback" not in done.stdout + done.stderr
        assert ("missing" in done.stdout + done.stderr) == (expected == 2 and closed == 1)


def test_a_manifest_from_closed_input(four_types: Path) -> None:
    done = glft_without(0, "verify", four_types, "--manifest", "-")
    assert (done.returncode, done.stderr) == (2, "glft: standard input: is closed\n")


WITHOUT_TORCH = """
import os, sys, tempfile
from pathlib import Path

sys.modules["torch"] = None
from glft_schema.cli import main
from tests.tools.processes import serve

def answer(request):
    folder, arguments = request
    with tempfile.TemporaryDirectory() as streams:
        child = os.fork()
        if not child:
            os.chdir(folder)
            for number, name in enumerate(("out", "error"), 1):
                os.dup2(os.open(f"{streams}/{name}", os.O_WRONLY | os.O_CREAT), number)
            sys.argv, code = ["glft", *arguments], 1
            try:
                main()
            except SystemExit as ended:
                code = ended.code or 0
            finally:
                sys.stdout.flush()
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return code, *(Path(streams, name).read_text("utf-8") for name in ("out", "error"))

serve(answer)
"""


@pytest.fixture(scope="module")
def without_torch() -> Iterator[Callable[..., tuple[int, str, str]]]:
    """Runs the command in a folder, without torch. Returns the exit code, output and errors."""
    with closing(Process("-c", WITHOUT_TORCH)) as process:
        yield lambda folder, *arguments: process((str(folder), [*map(str, arguments)]))


@pytest.mark.parametrize(
    "command",
    [
        "inspect four.gguf-lite",
        "verify four.gguf-lite",
        "verify four.gguf-lite --values",
        "verify four.gguf-lite --derives-from model.safetensors",
        "explain four.gguf-lite",
        "hash four.gguf-lite",
        "schema gguf",
        "schema gguf --as c",
        "edit four.gguf-lite --set arch=toy",
        "view four.gguf-lite -o out",
        "get-tensor four.gguf-lite fc1 out",
        "convert four.gguf-lite out --format safetensors",
        "convert model.pt out --format glft",
    ],
)
def test_verbs_that_need_no_torch(
    without_torch: Any, source: Path, four_types: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """They print and write the same as with torch."""
    monkeypatch.chdir(tmp_path)
    torch.save({"w": torch.ones(2)}, "model.pt")
    done, out = without_torch(tmp_path, *command.split()), Path("out")
    written = out.exists() and out.read_bytes()
    out.unlink(missing_ok=True)
    expected = in_this_process(*command.split())
    assert done == (expected.returncode, expected.stdout, expected.stderr)
    assert written == (out.exists() and out.read_bytes())


def test_of_a_missing_package_one_line_tells(four_types: Path) -> None:
    done = python(f"import sys; sys.modules['jinja2'] = None; {MAIN}", "view", four_types, "-o", four_types.parent / "out")
    assert (done.returncode, done.stderr) == (2, "glft: the package jinja2 is required but not installed\n")


def test_help_imports_no_torch(without_torch: Any, tmp_path: Path) -> None:
    code, out, error = without_torch(tmp_path, "--help")
    assert (code, error, "verify" in out) == (0, "", True)


@pytest.mark.parametrize("verb", COMMANDS)
def test_help_fits_a_terminal(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain text in 80 columns; the list of verbs has each one's first sentence uncut."""
    monkeypatch.setenv("COLUMNS", "80")
    listed, shown = in_this_process("--help").stdout, in_this_process(verb, "--help").stdout
    summary = shown.split("\n\n")[1].strip()
    assert f"  {verb:<10}  {summary}\n" in listed
    assert all(len(line) <= 80 and line.isascii() for line in shown.splitlines())


def test_lab(tmp_path: Path) -> None:
    done = glft("lab", "--out", tmp_path / "out", "--steps", 1, "--tied")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    report = tmp_path / "out" / "README.md"
    assert lines[0] == f"lab: training a GPT of 4 blocks for 1 steps, then q8 and q4; the report will be {report}"
    assert [line.split("  ")[-1] for line in lines[1:5]] == [
        lines[1].split("  ")[-1],
        "writing and verifying minigpt.q8.gguf-lite",
        "writing and verifying minigpt.gguf-lite",
        "README.md written",
    ]
    assert re.fullmatch(r"    0%  training, step 1 of 1, loss \d\.\d\d", lines[1])
    assert "q4_per_group_64" in lines[-2]
    assert (tmp_path / "out" / "minigpt.gguf-lite").exists()
    assert_refused(in_this_process("lab", "--out", "/dev/null/x", "--steps", 1), "Not a directory")


@pytest.mark.full
def test_a_lab_that_fails_is_exit_code_1(tmp_path: Path) -> None:
    code = f"from glft_schema.lab import run; run.LEAST_SAVING['q8_per_channel'] = 5.0; {MAIN}"
    done = python(code, "lab", "--out", tmp_path, "--steps", "1")
    assert done.returncode == 1
    assert done.stderr.startswith(
        "glft: q8_per_channel: expected a file at least 5 times smaller than the checkpoint, found 3."
    )
    assert done.stderr.endswith(" times\n")


def test_a_terminal_gets_a_progress_bar(source: Path, tmp_path: Path) -> None:
    done = on_a_terminal("convert", source, tmp_path / "out.glft")
    assert (done.returncode, "writing out.glft" in done.stdout) == (0, True)


def test_names_outside_the_terminals_encoding(four_types: Path) -> None:
    done = python(MAIN, "inspect", four_types, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (done.returncode, r"note = a=b \xfc\xdf" in done.stdout) == (0, True)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_stops_early(four_types: Path, unbuffered: str) -> None:
    command = f"{sys.executable} -c '{MAIN}' inspect {four_types} | true"
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False, env=environment)
    assert done.stderr == ""


def test_entries_of_a_torch_file_that_are_not_tensors(tmp_path: Path) -> None:
    source, out, without = tmp_path / "model.pt", tmp_path / "out.glft", ("--exclude", "step")
    torch.save({"w": torch.ones(2), "step": 3}, source)
    assert_refused(
        in_this_process("convert", source, out), "tensor 'step': expected a tensor of torch or an array of numpy, found 3"
    )
    assert in_this_process("convert", source, out, *without).returncode == 0
    assert in_this_process("verify", out, "--derives-from", source, *without).returncode == 0


def test_a_type_in_a_key_is_text_without_typed_metadata(source: Path, tmp_path: Path) -> None:
    """Metadata that came from GGUF is typed: see the conversions of GGUF files."""
    assert in_this_process("convert", source, tmp_path / "out.glft", "--metadata", "n:uint8=3").returncode == 0
    with glft_schema.open(tmp_path / "out.glft") as file:
        assert file.metadata["n:uint8"] == "3"
