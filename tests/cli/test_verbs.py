"""The command line, run as a user runs it: what it prints, where, and its exit codes.

What a verb finds in files is looked at in this process: a process for each takes a second and more.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch

import glft_schema
from glft_schema import load_file
from tests.golden import golden
from tests.tools.command_line import assert_refused, glft, in_this_process

STATE = {"fc.weight": torch.randn(4, 128), "fc.bias": torch.randn(4), "tied": torch.zeros(0)}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    safetensors.torch.save_file(STATE, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


@pytest.fixture
def four_types(tmp_path: Path) -> Path:
    (tmp_path / "four.gguf-lite").write_bytes(golden("four_types"))
    return tmp_path / "four.gguf-lite"


@pytest.mark.slow
def test_convert_inspect_verify(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "model.gguf-lite"
    options = ["--scheme", "q8_per_channel", "--scheme", "fc.*=q4_per_group_64", "--metadata", "arch=a=b", "--alignment", 64]
    done = glft("convert", source, out, *options)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Q4_per_group_64" in done.stdout
    assert "expected at least 2 dims" in done.stdout
    assert list(load_file(out)) == ["fc.bias", "fc.weight", "tied"]

    inspected = in_this_process("inspect", out)
    assert inspected.returncode == 0
    for part in (
        "GLFT, 512 bytes, version 1, n_tensors 3, metadata_len 8",
        "arch = a=b",
        "  fc.weight  ",
        "[4, 128]",
        "Q4_per_group_64 nibbles",
    ):
        assert part in inspected.stdout

    verified = in_this_process("verify", out, "--against", source)
    assert (verified.returncode, verified.stderr) == (0, "")
    assert "3 tensors are what" in verified.stdout
    assert "max error 0" in verified.stdout


def test_inspect_as_json(four_types: Path) -> None:
    data = json.loads(in_this_process("inspect", "--json", four_types).stdout)
    assert (data["format"], data["bytes"], data["metadata"]) == ("GLFT", 168, {"arch": "toy", "note": "a=b üß"})
    assert data["tensors"][2] == {
        "name": "fc1",
        "dims": [2, 3],
        "dtype": "Q8_per_channel",
        "offset": 10,
        "position": 124,
        "nbytes": 10,
    }
    assert sum(data["byte_counts"].values()) == 168
    assert data["byte_counts"]["Q8_per_channel scales"] == 4


def test_verify_tells_what_is_not_as_it_should_be(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "model.gguf-lite"
    in_this_process("convert", source, out, "--scheme", "q8_per_channel", "--exclude", "tied")
    other = tmp_path / "other.safetensors"
    changed = {**STATE, "fc.weight": STATE["fc.weight"] + torch.eye(4, 128), "fc.bias": torch.zeros(5)}
    safetensors.torch.save_file(changed, other)
    done = in_this_process("verify", out, "--against", other)
    assert done.returncode == 1
    for part in ("differs", "[5] in the source, [4] in the file", "not in the file", "3 of 3 tensors are not what"):
        assert part in done.stdout
    changed = {"fc.weight": STATE["fc.weight"]}
    safetensors.torch.save_file(changed, other)
    done = in_this_process("verify", out, "--against", other)
    assert (done.returncode, "not in the source" in done.stdout) == (1, True)


def test_verify_tolerance(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "model.gguf-lite"
    in_this_process("convert", source, out)
    nearly = {name: tensor + 1e-3 for name, tensor in STATE.items()}
    safetensors.torch.save_file(nearly, source)
    assert in_this_process("verify", out, "--against", source).returncode == 1
    assert in_this_process("verify", out, "--against", source, "--tolerance", 0.01).returncode == 0


def test_verify_reports_bytes_of_no_tensor(tmp_path: Path) -> None:
    (tmp_path / "loose").write_bytes(golden("loose_layout"))
    assert (
        "5 bytes of padding and gaps, 2 of them after the last payload" in in_this_process("verify", tmp_path / "loose").stdout
    )
    assert "2 bytes follow the last payload" in in_this_process("inspect", tmp_path / "loose").stdout


def test_bad_files_are_one_line_with_file_field_and_offset(four_types: Path) -> None:
    four_types.write_bytes(golden("four_types")[:150])
    for verb in ("inspect", "verify"):
        done = in_this_process(verb, four_types)
        assert_refused(done, str(four_types), "data -> 'fc2' -> nibbles: expected 32 bytes, found 14", "at byte 136")


def test_bad_requests_are_one_line(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.glft"
    assert_refused(in_this_process("inspect", tmp_path / "missing"), "missing: No such file or directory")
    assert_refused(in_this_process("inspect", tmp_path), "is not a regular file")
    assert_refused(in_this_process("inspect", tmp_path / "a\nglft: forged"), r"a\nglft: forged: No such file or directory")
    assert_refused(in_this_process("convert", tmp_path / "missing", out), "missing: No such file or directory")
    assert_refused(in_this_process("convert", source, tmp_path / "no" / "out.glft"), "No such file or directory")
    assert_refused(in_this_process("convert", source, out, "--scheme", "fc.wieght=f16"), "did you mean 'fc.weight'")
    assert_refused(in_this_process("convert", source, out, "--scheme", "fc.*=q5"), "glft: expected one of f32, f16")
    assert_refused(in_this_process("convert", source, out, "--metadata", "novalue"), "glft: expected K=V, found 'novalue'")
    assert_refused(in_this_process("convert", source, out, "--metadata", "=v"), f"glft: {out}: metadata: expected a key")
    nan = tmp_path / "nan.safetensors"
    safetensors.torch.save_file({"w": torch.full((1, 64), float("nan"))}, nan)
    assert_refused(
        in_this_process("convert", nan, out, "--scheme", "q8_per_channel"), f"glft: {nan}: tensor 'w' at [0, 0]: NaN"
    )
    assert_refused(
        in_this_process("inspect", nan),
        f"glft: {nan}: header -> magic: expected b'TFLG' (GLFT) or b'GGUF' (GGUF), found",
        "a safetensors file",
    )
    assert_refused(in_this_process("verify", source, "--against", source), "header -> magic: expected")
    assert not out.exists()


@pytest.mark.slow
def test_a_warning_is_one_line(tmp_path: Path) -> None:
    safetensors.torch.save_file({"w": torch.full((1, 64), 1e-9)}, tmp_path / "model.safetensors")
    done = glft("convert", tmp_path / "model.safetensors", tmp_path / "out.glft", "--scheme", "q4_per_group_64")
    assert done.returncode == 0
    assert done.stderr.startswith("glft: warning: tensor 'w': 64 non-zero weights are stored as 0")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_version() -> None:
    done = subprocess.run([sys.executable, "-m", "glft_schema", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"glft_schema {glft_schema.__version__}\n"


def glft_without(descriptor: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs a verb without standard input (0), output (1) or errors (2)."""
    code = "import os, sys; os.close(int(sys.argv[1])); os.execv(sys.executable, [sys.executable, *sys.argv[2:]])"
    command = [sys.executable, "-c", code, str(descriptor), "-m", "glft_schema", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("closed", [1, 2])
def test_closed_output_changes_no_verdict(tmp_path: Path, closed: int) -> None:
    path = tmp_path / "model.glft"
    path.write_bytes(golden("four_types"))
    for expected, name in ((0, path), (2, tmp_path / "missing")):
        done = glft_without(closed, "verify", name)
        assert done.returncode == expected
        assert "Traceback" not in done.stdout + done.stderr
        assert ("missing" in done.stdout + done.stderr) == (expected == 2 and closed == 1)


@pytest.mark.slow
def test_a_manifest_from_closed_input(tmp_path: Path) -> None:
    path = tmp_path / "model.glft"
    path.write_bytes(golden("four_types"))
    done = glft_without(0, "verify", path, "--manifest", "-")
    assert (done.returncode, done.stderr) == (2, "glft: standard input: it is closed\n")


def glft_without_torch(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs a verb in a process that cannot import torch."""
    code = "import sys; sys.modules['torch'] = None; from glft_schema.cli import main; main()"
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["inspect"], ["verify"], ["explain"], ["hash"], ["schema", "--as", "c"]], ids=str)
def test_verbs_that_compute_no_tensor_need_no_torch(four_types: Path, arguments: list[str]) -> None:
    verb, *options = arguments
    done = glft_without_torch(verb, "gguf" if verb == "schema" else four_types, *options)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == in_this_process(verb, "gguf" if verb == "schema" else four_types, *options).stdout


NEEDING_TORCH = ["schema", "view", "get-tensor", "values", "against", "convert", "convert a torch file", "fuzz", "lab"]


@pytest.mark.slow
@pytest.mark.parametrize("verb", NEEDING_TORCH)
def test_without_torch_other_verbs_are_one_line(source: Path, four_types: Path, tmp_path: Path, verb: str) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "model.pt")
    out = tmp_path / "out.npy"
    commands: dict[str, list[object]] = {
        "schema": ["schema", "gguf"],
        "view": ["view", four_types, "-o", out],
        "get-tensor": ["get-tensor", four_types, "fc1", out],
        "values": ["verify", four_types, "--values"],
        "against": ["verify", four_types, "--against", source],
        "convert": ["convert", four_types, out, "--format", "safetensors"],
        "convert a torch file": ["convert", tmp_path / "model.pt", out, "--format", "glft"],
        "fuzz": ["fuzz", four_types, "--examples", 1],
        "lab": ["lab", "--out", tmp_path / "lab"],
    }
    done = glft_without_torch(*commands[verb])
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "glft: this needs the package torch, which is not installed\n"
    assert not out.exists()


@pytest.mark.slow
def test_help_names_the_verbs_without_importing_torch() -> None:
    code = """
import sys
from glft_schema.cli import app
app(["--help"], standalone_mode=False)
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for verb in ("convert", "inspect", "lab", "verify"):
        assert verb in done.stdout


@pytest.mark.slow
def test_lab(tmp_path: Path) -> None:
    done = glft("lab", "--out", tmp_path / "out", "--steps", 1, "--tied")
    assert (done.returncode, done.stderr) == (0, "")
    assert "q4_per_group_64" in done.stdout
    assert (tmp_path / "out" / "minigpt.gguf-lite").exists()
    assert_refused(glft("lab", "--out", "/dev/null/x", "--steps", 1), "Not a directory")


@pytest.mark.slow
def test_a_lab_that_fails_is_exit_code_1(tmp_path: Path) -> None:
    code = """
import sys
from glft_schema.lab import run
run.LEAST_SAVING["q8_per_channel"] = 5.0
from glft_schema.cli import main
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", code, "lab", "--out", tmp_path, "--steps", "1"], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr.startswith("glft: q8_per_channel: expected a file at least 5 times smaller, found 3.")


@pytest.mark.slow
def test_a_bar_where_there_is_a_terminal(source: Path, tmp_path: Path) -> None:
    code = """
import pty, sys
command = [sys.executable, "-c", "from glft_schema.cli import main; main()", *sys.argv[1:]]
sys.exit(pty.spawn(command) >> 8)
"""
    command = [sys.executable, "-c", code, "convert", source, tmp_path / "out.glft"]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=True)
    assert "writing out.glft" in done.stdout


@pytest.mark.slow
def test_names_that_the_terminal_does_not_have(four_types: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-c", "from glft_schema.cli import main; main()", "inspect", four_types]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert r"note = a=b \xfc\xdf" in done.stdout


@pytest.mark.slow
def test_the_source_is_not_written_over(source: Path) -> None:
    before = source.read_bytes()
    assert_refused(glft("convert", source, source), "expected another file to write to")
    assert_refused(glft("convert", source.parent, source), "expected another file to write to")
    assert source.read_bytes() == before


@pytest.mark.slow
def test_the_file_to_blame(source: Path, four_types: Path, tmp_path: Path) -> None:
    assert_refused(
        glft("convert", source, "/dev/full", "--format", "glft"), "glft: /dev/full: is not a regular file; left unchanged"
    )
    (tmp_path / "cut").write_bytes(golden("four_types")[:60])
    assert_refused(glft("verify", tmp_path / "cut", "--against", source), "cut: header -> n_tensors")
    done = glft("verify", four_types, "--against", tmp_path / "missing.safetensors")
    assert (done.returncode, "missing.safetensors: No such file" in done.stderr) == (2, True)


@pytest.mark.slow
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_stops_early(four_types: Path, unbuffered: str) -> None:
    command = f"{sys.executable} -c 'from glft_schema.cli import main; main()' inspect {four_types} | true"
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False, env=environment)
    assert done.stderr == ""


@pytest.mark.slow
def test_entries_of_a_torch_file_that_are_no_tensors(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2), "step": 3}, tmp_path / "model.pt")
    assert_refused(
        in_this_process("convert", tmp_path / "model.pt", tmp_path / "out.glft"),
        "tensor 'step': expected a torch.Tensor, found 3",
    )
    out, without = tmp_path / "out.glft", ("--exclude", "step")
    assert in_this_process("convert", tmp_path / "model.pt", out, *without).returncode == 0
    assert in_this_process("verify", out, "--against", tmp_path / "model.pt", *without).returncode == 0


def test_a_type_in_a_key_is_text_where_nothing_has_types(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.glft"
    assert in_this_process("convert", source, out, "--metadata", "n:uint8=3").returncode == 0
    with glft_schema.open(out) as file:
        assert file.metadata["n:uint8"] == "3"
    typed = tmp_path / "typed.gguf"
    assert in_this_process("convert", source, typed, "--metadata", "n:uint8=3").returncode == 0
    assert in_this_process("convert", typed, out, "--metadata", "m:uint8=4").returncode == 0
    with glft_schema.open(out) as file:
        assert (file.metadata["n"], file.metadata["m"]) == ("uint8 3", "uint8 4")
