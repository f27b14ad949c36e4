"""Manifests, against hashlib, gguf-py, gguf-hash and sha256sum; invalid manifests."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import glft_schema
from glft_schema import Container, FormatError, TruncatedError, save_file
from glft_schema.checks import manifests as module
from glft_schema.checks.manifests import (
    FileHash,
    TensorHash,
    Verdict,
    compare_hashes,
    hash_file,
    manifest_of,
    model_hash,
    read_manifest,
)
from tests.checks.memory import result_and_growth, sparse_file
from tests.oracles import glft_reference as reference
from tests.oracles.glft_reference import F32, Row
from tests.oracles.peers import gguf
from tests.tools.command_line import in_this_process as glft

STATE = {
    "blk.0.weight": torch.arange(256.0).reshape(4, 64),
    "norm": torch.ones(64),
    "empty": torch.zeros(0, 3),
    'odd \n\x1b[2J\x7f\\ "name" ü': torch.arange(3.0),
}
METADATA = {"general.architecture": "toy"}
HEX = hashlib.sha256(b"").hexdigest()
needs_sha256sum = pytest.mark.skipif(not shutil.which("sha256sum"), reason="sha256sum is not installed")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    save_file(STATE, tmp_path / "model.gguf", METADATA, schemes={"blk.*": "q8_0"}, rules=["spec"])
    return tmp_path / "model.gguf"


def hashes(path: Path) -> list[FileHash]:
    with Container.parse_file(path, mmap=False) as file:
        return hash_file(file)


def sha256(stored: bytes) -> str:
    return hashlib.sha256(stored).hexdigest()


def test_hashes_are_those_of_the_stored_bytes(model: Path) -> None:
    """Of tensors, also as gguf-py's gguf-hash computes them."""
    (found,) = hashes(model)
    assert (found.sha256, found.path) == (sha256(model.read_bytes()), str(model))
    theirs = {tensor.name: sha256(tensor.data.tobytes()) for tensor in gguf.GGUFReader(model).tensors}
    assert {tensor.name: tensor.sha256 for tensor in found.tensors} == theirs
    done = subprocess.run([sys.executable, "-m", "gguf.scripts.gguf_hash", model], capture_output=True, text=True, check=True)
    lines = [line.split()[1] for line in done.stdout.split("\n") if line.startswith("sha256 ") and f"{model}:" in line]
    assert lines == list(theirs.values())
    assert [tensor.what for tensor in found.tensors] == ["Q8_0 [4, 64]", "F32 [64]", "F32 [0, 3]", "F32 [3]"]


def test_big_endian_payloads_are_hashed_as_stored(tmp_path: Path) -> None:
    for order in ("little", "big"):
        save_file(STATE, tmp_path / f"{order}.gguf", METADATA, header={"byte_order": order}, rules=[])
    little, big = (hashes(tmp_path / f"{order}.gguf")[0].tensors[1] for order in ("little", "big"))
    assert little.sha256 == sha256(b"\0\0\x80\x3f" * 64)
    assert big == little._replace(sha256=sha256(b"\x3f\x80\0\0" * 64))


@pytest.mark.parametrize("piece", [1, 7, 16, 1 << 20])
def test_gaps_other_orders_and_shared_payloads(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE", piece)
    data, done = bytes(range(64)), list[float]()
    spans = {"last": (50, 58), "first": (3, 23), "next": (23, 27), "shared": (3, 23), "empty": (10, 10)}
    rows = [Row(name, [(end - start) // 4], F32, b"", start) for name, (start, end) in spans.items()]
    stored = reference.write(b"", rows, data)
    (found,) = hash_file(Container.parse(stored), progress=lambda path, part: done.append(part))
    assert found.sha256 == sha256(stored)
    expected = {name: sha256(data[start:end]) for name, (start, end) in spans.items()}
    assert {tensor.name: tensor.sha256 for tensor in found.tensors} == expected
    assert done == sorted(done)
    assert done[-1] == 1


@needs_sha256sum
def test_sha256sum_takes_manifests(tmp_path: Path) -> None:
    names = ["plain.gguf", "two words", "a\\b", "new\nline", "return\r", "#comment", "*star", os.fsdecode(b"not\xffutf8"), "ü"]
    for number, name in enumerate(names):
        save_file({f"w{number}": torch.full((2,), float(number))}, tmp_path / name, format="glft")

    def run(*command: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(command, cwd=tmp_path, input=stdin, capture_output=True)

    manifest = run(sys.executable, "-m", "glft_schema", "hash", *names).stdout
    lines = [line for line in manifest.split(b"\n") if line and not line.startswith(b"#")]
    assert lines == run("sha256sum", *names).stdout.removesuffix(b"\n").split(b"\n")
    done = run("sha256sum", "--check", "--strict", stdin=manifest)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.count(b": OK\n") == len(names)
    read = read_manifest(manifest)
    assert [file.path for file in read] == names
    assert [[tensor.name for tensor in file.tensors] for file in read] == [[f"w{i}"] for i in range(len(names))]
    for form in ([], ["--tag"], ["--binary"]):
        assert read_manifest(run("sha256sum", *form, *names).stdout) == [file._replace(tensors=None) for file in read]
    (tmp_path / "two words").write_bytes(b"changed")
    done = run("sha256sum", "--check", "--quiet", stdin=manifest)
    assert (done.returncode, done.stdout) == (1, b"two words: FAILED\n")


@needs_sha256sum
def test_the_models_hash_is_that_of_its_sorted_lines(model: Path) -> None:
    manifest, command = manifest_of(hashes(model)), ["sh", "-c", "grep '^# tensor ' | LC_ALL=C sort | sha256sum"]
    done = subprocess.run(command, input=manifest, capture_output=True, text=True)
    assert manifest.endswith(f"\n# model {done.stdout.split()[0]}\n")


def test_the_models_hash_knows_no_layout(model: Path, tmp_path: Path) -> None:
    backwards = {name: STATE[name] for name in reversed(STATE)}
    options = {"metadata": METADATA | {"general.name": "other"}, "schemes": {"blk.*": "q8_0"}, "alignment": 64, "rules": []}
    save_file(backwards, tmp_path / "backwards.gguf", header={"version": 2}, **options)
    first = Path(glft_schema.split(model, tmp_path / "part", max_tensors=1)[0])
    assert len({model_hash(hashes(path)) for path in (model, tmp_path / "backwards.gguf", first)}) == 1


def test_the_models_hash_knows_no_format_but_names_and_shapes(tmp_path: Path) -> None:
    found = []
    for out, name, shape in (("a.gguf", "b", (2, 2)), ("a.glft", "b", (2, 2)), ("b.glft", "c", (2, 2)), ("c.glft", "b", (4,))):
        save_file({"a": torch.ones(3), name: torch.zeros(shape)}, tmp_path / out)
        found.append(model_hash(hashes(tmp_path / out)))
    assert found[0] == found[1]
    assert len({*found}) == 3


@given(st.text(st.characters(), max_size=20), st.lists(st.integers(0, 2**64), max_size=4), st.sampled_from(["F32", "type 200"]))
def test_any_name_is_read_back(name: str, shape: list[int], type_: str) -> None:
    tensor = TensorHash(HEX, type_, tuple(shape), name)
    assert str(tensor).isascii()
    assert str(tensor).isprintable()
    files = [FileHash(HEX, "f", (tensor,))]
    assert read_manifest(manifest_of(files).encode()) == files


def test_forms_that_are_read() -> None:
    upper = HEX.upper()
    ours = manifest_of([FileHash(HEX, "ours", (TensorHash(HEX, "F32", (), "w"),))])
    plain = f"\ufeff# other\r\n\r\n{HEX}  a\r\n {upper} *b c\n# tensor x\nSHA256 (d) = {HEX}\nSHA2-256(e)= {HEX}"
    found = read_manifest(f"{plain}\n{ours}# more\n{ours.replace('ours', 'too')}{HEX}  last".encode())
    assert [(file.path, file.tensors and len(file.tensors)) for file in found] == [
        *(("a", None), ("b c", None), ("d", None), ("e", None)),
        *(("ours", 1), ("too", 1), ("last", None)),
    ]
    assert {file.sha256 for file in found} == {HEX}


W = TensorHash(HEX, "F32", (2,), "w")
OURS = manifest_of([FileHash(HEX, "f", (W,))])
MODEL = OURS[-65:-1]
CUT, _, _ = OURS.partition("# model")
REFUSED = {
    "": "expected lines of the form 'HASH  FILE', found none",
    "# nothing": "expected lines of the form 'HASH  FILE', found none",
    f'# glft manifest 1: x\n{HEX}  a\n# tensor {HEX} \udcff [1] "w"': "line 3: expected # tensor HASH TYPE [SHAPE]",
    f"{HEX}  a\0{HEX}  b": "line 1: expected a line of the form 'HASH  FILE', found a NUL byte, which sha256sum --zero writes",
    "hello": "line 1: expected a line of the form 'HASH  FILE', found 'hello'",
    f"{HEX}  a\n{HEX[1:]}  b": "line 2: expected a SHA-256 hash of 64 hex digits, found 63 digits",
    f"{'0' * 32}  a": "line 1: expected a SHA-256 hash of 64 hex digits, found 32 digits of MD5",
    f"{'0' * 40}  a": "line 1: expected a SHA-256 hash of 64 hex digits, found 40 digits of SHA-1",
    f"{'0' * 128}  a": "line 1: expected a SHA-256 hash of 64 hex digits, found 128 digits of SHA-512",
    f"SHA512 (a) = {'0' * 128}": "line 1: expected a SHA-256 hash of 64 hex digits, found 128 digits of SHA512",
    f"SHA3-256 (a) = {HEX}": "line 1: expected a SHA-256 hash of 64 hex digits, found 64 digits of SHA3-256",
    f"sha256    {HEX}  model.gguf:w": (
        "line 1: expected a line 'HASH  FILE', found output of gguf-hash, which does not hash whole files"
    ),
    f"\\{HEX}  a\\tb": r"line 1: expected one of the escapes \\, \n, \r in a file name, found '\\t'",
    f"\\{HEX}  a\\": r"line 1: expected one of the escapes \\, \n, \r in a file name, found '\\'",
    OURS.replace("manifest 1", "manifest 2"): "line 1: expected manifest version 1, found '2'",
    OURS.replace("[2]", "[3]"): f"line 4: expected {model_hash([FileHash(HEX, 'f', (W._replace(shape=(3,)),))])}, the hash",
    OURS.replace("[2]", "[]]"): 'line 3: expected # tensor HASH TYPE [SHAPE] "NAME", found \'# tensor e3b0',
    OURS.replace("[2]", f"[{'2' * 5000}]"): 'line 3: expected # tensor HASH TYPE [SHAPE] "NAME", found',
    OURS.replace('"w"', "w"): "line 3: expected # tensor HASH TYPE [SHAPE]",
    OURS.replace('"w"', '"w'): "line 3: expected # tensor HASH TYPE [SHAPE]",
    OURS.replace(f"{HEX}  f\n", ""): "line 2: expected a file line before the first tensor line, found none",
    CUT: "line 4: expected a line '# model' at the end, found none: the manifest is truncated",
    CUT + OURS: "line 4: expected a line '# model' at the end, found none: the manifest is truncated",
    manifest_of([FileHash(HEX, "f", (W, W))]): "line 5: expected unique tensor names, found 'w' again",
}


@pytest.mark.parametrize("text", REFUSED, ids=REFUSED.values())
def test_invalid_manifests(text: str) -> None:
    with pytest.raises(FormatError) as caught:
        read_manifest(os.fsencode(text))
    assert str(caught.value).startswith(REFUSED[text])


def test_a_manifest_too_long() -> None:
    message = r"^expected at most 10 bytes \(a limit of glft_schema\), found 11 \(limit manifest\)$"
    with glft_schema.Limits(manifest=10), pytest.raises(glft_schema.LimitError, match=message):
        read_manifest(b"x" * 11)


HOSTILE = r"""
import sys
from contextlib import suppress
from glft_schema.errors import FormatError
from glft_schema.checks.manifests import read_manifest
sha256 = sys.argv[1]
for line in (' [1] "' * 100_000, ") = aaaa" * 100_000, "[" * 500_000, "\\" * 500_001, "a" * 500_000, "a (" * 200_000):
    for start in (f"# glft manifest 1\n{sha256}  f\n# tensor {sha256} ", "", f"\\{sha256}  ", "SHA256 (", "sha256 "):
        with suppress(FormatError):
            read_manifest((start + line).encode())
"""


def test_hostile_lines_are_read_in_one_go() -> None:
    subprocess.run([sys.executable, "-c", HOSTILE, HEX], check=True, timeout=60)


HERE = FileHash(HEX, "here/f", (W,))


@pytest.mark.parametrize(
    ("expected", "verdict"),
    [
        (HERE, Verdict([], [], 1)),
        (FileHash(HEX, "elsewhere/f"), Verdict([], [], None)),
        (HERE._replace(path="any name"), Verdict([], [], 1)),
        (HERE._replace(sha256=MODEL), Verdict([("here/f", f"expected SHA-256 {MODEL}, found {HEX}")], [], 1)),
    ],
)
def test_files_are_compared(expected: FileHash, verdict: Verdict) -> None:
    compared = compare_hashes([HERE], [expected])
    assert (compared, compared.holds) == (verdict, not verdict.files)


def test_tensors_are_compared() -> None:
    more, shape, lost = (W._replace(name=name) for name in ("more", "shape", "lost"))
    published = HERE._replace(tensors=(W._replace(sha256=MODEL), shape._replace(shape=(2, 1)), lost))
    found = compare_hashes([HERE._replace(tensors=(W, more, shape))], [published])
    assert (dict(found.tensors), found.compared, found.holds) == (
        {
            "w": "payload differs",
            "shape": "F32 [2, 1] in the manifest, F32 [2] in the file",
            "lost": "not in the file",
            "more": "not in the manifest",
        },
        4,
        False,
    )


@pytest.mark.parametrize(
    ("path", "verdict"),
    [
        ("a/f", True),
        ("./a/../a/f", True),
        ("c/g", False),
        ("c/f", "expected one hash for 'f', found 2 lines that disagree"),
        ("h", r"expected a line for 'h', found only lines for other files \(3\): 'a/f', 'b/f', 'g'"),
    ],
)
def test_which_line_is_about_a_file(path: str, verdict: bool | str) -> None:
    lines = [FileHash(HEX, "a/f", ()), FileHash(MODEL, "b/f", ()), FileHash(MODEL, "g", ())]
    if isinstance(verdict, bool):
        assert compare_hashes([FileHash(HEX, path, ())], lines).holds is verdict
    else:
        with pytest.raises(FormatError, match=verdict):
            compare_hashes([FileHash(HEX, path, ())], lines)


def test_of_two_lines_that_agree_one_has_tensors() -> None:
    assert compare_hashes([FileHash(HEX, "b/f", ())], [FileHash(HEX, "a/f"), FileHash(HEX, "f", ())]).compared == 0


@pytest.fixture
def listed(model: Path, tmp_path: Path) -> Path:
    """The output of `glft hash` for the model."""
    (tmp_path / "SHA256SUMS").write_text(glft("hash", model).stdout)
    return tmp_path / "SHA256SUMS"


def test_verify(model: Path, listed: Path) -> None:
    done = glft("verify", model.rename(model.with_name("renamed.gguf")), "--manifest", listed)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(f"\n4 tensors match {listed}\n1 file matches {listed}\n")


def test_verify_of_equal_tensors_in_another_file(model: Path, listed: Path) -> None:
    glft_schema.edit(model, set={"general.name": "x"})
    done = glft("verify", model, "--manifest", listed)
    assert (done.returncode, f"4 tensors match {listed}" in done.stdout) == (1, True)
    assert "all tensors match: the header, metadata, offsets or padding differ" in done.stdout


def flip(path: Path, name: str) -> None:
    """Changes a bit of a tensor's payload."""
    with glft_schema.open(path) as file:
        position = file.tensors[name].position
    stored = bytearray(path.read_bytes())
    stored[position] ^= 1
    path.write_bytes(stored)


def test_verify_of_a_changed_tensor(model: Path, listed: Path) -> None:
    before = sha256(model.read_bytes())
    flip(model, "norm")
    after = sha256(model.read_bytes())
    done = glft("verify", model, "--manifest", listed)
    assert done.returncode == 1
    assert f"  tensor  problem\n  norm    payload differs\n1 of 4 tensors differ from {listed}\n" in done.stdout
    found = json.loads(glft("verify", model, "--manifest", listed, "--json").stdout)
    files = {str(model): f"expected SHA-256 {before}, found {after}"}
    assert found["manifest"] == {"compared": 4, "files": files, "tensors": {"norm": "payload differs"}}
    listed.write_text(f"{after.upper()} *model.gguf\r\n")  # as of other tools, without tensors
    done = glft("verify", model, "--manifest", listed)
    assert (done.returncode, "tensors match" in done.stdout, "1 file matches" in done.stdout) == (0, False, True)


def test_verify_without_a_line(model: Path, listed: Path) -> None:
    listed.write_text(f"{HEX}  a\n{HEX}  b\n")
    problem = "expected a line for 'model.gguf', found only lines for other files (2): 'a', 'b'"
    assert glft("verify", model, "--manifest", listed).stderr == f"glft: {listed}: {problem}\n"


def test_sets_and_standard_input(tmp_path: Path) -> None:
    save_file({f"w{i}": torch.full((8,), float(i)) for i in range(3)}, tmp_path / "whole.gguf", METADATA)
    first, second, _ = map(Path, glft_schema.split(tmp_path / "whole.gguf", tmp_path / "part", max_tensors=1))
    listed = glft("hash", first).stdout
    assert [Path(file.path).name[5:10] for file in read_manifest(listed.encode())] == ["00001", "00002", "00003"]
    command = [sys.executable, "-m", "glft_schema", "verify", first, "--manifest", "-"]
    done = subprocess.run(command, input=listed, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("\n3 tensors match standard input\n3 files match standard input\n")
    flip(second, "w1")
    done = subprocess.run(command, input=listed, capture_output=True, text=True)
    assert done.returncode == 1
    assert f"\n{second}: expected SHA-256 " in done.stdout
    assert "  w1      payload differs\n1 of 3 tensors" in done.stdout


def test_a_file_that_is_cut_short_while_it_is_hashed(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE", 64)
    with Container.parse_file(model, mmap=False) as file, pytest.raises(TruncatedError, match="expected 64 bytes, found"):
        hash_file(file, progress=lambda path, done: os.truncate(model, 200))
    done = glft("hash", model)
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.linux("measures a process's memory in KiB")
def test_memory_is_that_of_a_piece(tmp_path: Path) -> None:
    """64 MiB of a sparse file."""
    start = reference.write(b"", [Row("w", [1 << 24], F32, b"", 0)], b"")
    found, grown = result_and_growth("hash_file(file)[0].sha256", sparse_file(tmp_path / "large.glft", start, 1 << 26))
    whole = hashlib.sha256(start)
    for _ in range(1 << 6):
        whole.update(bytes(1 << 20))
    assert found == whole.hexdigest()
    assert grown < 24 << 10  # KiB
