"""The Hub, stores of fsspec, standard input, file objects, and sets of files by URL."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import glft_schema as glft
from glft_schema.errors import FormatError, OptionError
from glft_schema.storage.locations import RemotePath, beside, is_remote, shown, without_secrets
from glft_schema.storage.opening import open_source
from tests.storage.server import COMMIT, Server, join_workers, serving
from tests.tools.command_line import in_this_process

TENSORS = {f"blk.{i}.weight": np.full((64, 32), i, np.float32) for i in range(4)}
METADATA = {"general.architecture": "toy", "toy.block_count": 4}
LOGIN = "the server requires a login (401): set HF_TOKEN, and accept the repository's conditions on its page if it has some"
LOCAL = ("model.gguf", "/a/b.gguf", "./-", "C:\\models\\a.gguf", "C:/a", "a:b", "a::b", "//host/share/a.gguf", "")
REMOTE = ("https://host/a.gguf", "hf://o/r/f", "s3://b/k", "zip://a.gguf::https://host/a.zip", "simplecache::s3://b/k", "-")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "served"
    folder.mkdir()
    glft.save_file(TENSORS, folder / "model.gguf", METADATA)
    glft.save_file(TENSORS, folder / "model.safetensors")
    glft.split(folder / "model.gguf", folder / "part", max_tensors=2)
    glft.split(folder / "model.safetensors", folder / "whole", max_tensors=2)
    for name in ("model.pt", "pytorch_model-00001-of-00002.bin"):
        torch.save({name: torch.from_numpy(tensor) for name, tensor in TENSORS.items()}, folder / name)
    return folder


@pytest.fixture
def server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in ("HF_TOKEN", "HF_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(folder / "none"))
    with serving(folder) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url("", "hub").rstrip("/"))
        yield server
    join_workers()


def check_file(file: glft.File) -> None:
    with file:
        assert list(file.tensors) == list(TENSORS)
        assert all(np.array_equal(tensor.numpy(), TENSORS[name]) for name, tensor in file.tensors.items())


def test_locations() -> None:
    assert [path for path in (*LOCAL, *REMOTE) if is_remote(path)] == list(REMOTE)
    assert shown("https://me:word@host:8/a%20b.gguf?sig=x@y#z") == "https://host:8/a%20b.gguf"
    assert shown("zip://a.gguf::https://me@host/a.zip?sig=x") == "zip://a.gguf::https://host/a.zip"
    assert shown("a?b#c@d") == "a?b#c@d"
    assert shown("http://me@corp.com:word@host/a") == "http://host/a"
    assert shown("https://host/f?key=a::word") == "https://host/f"
    assert shown("https://me:wo/rd@host/f") == "https://..."
    assert shown("zip://a.gguf::file.zip") == "zip://a.gguf::file.zip"
    assert shown("hf://o/r/a.gguf@refs/pr/1") == "hf://o/r@refs%2Fpr%2F1/a.gguf"
    assert shown("-") == "standard input"
    text = "found 'http://me:word@host/a?key=word' and http:/me:word@host/b#c (no such file)"
    assert without_secrets(text) == "found 'http://host/a' and http:/host/b (no such file)"
    path = RemotePath("https://me:word@host/dir/a.gguf?sig=x")
    assert (str(path), path.name, path.suffix, os.fspath(path)) == ("https://host/dir/a.gguf", "a.gguf", ".gguf", path.url)
    assert repr(path) == "RemotePath('https://host/dir/a.gguf')"
    assert beside("dir/a.json", "b c.gguf") == os.path.join("dir", "b c.gguf")
    assert beside("https://me@host/dir/a.json?sig=x/y", "b c.gguf") == "https://me@host/dir/b%20c.gguf?sig=x/y"
    assert beside("s3://bucket/dir/a.json", "b c.gguf") == "s3://bucket/dir/b c.gguf"
    for name in ("../a", "a%2fb", "a?b", "a#b", "http:a", "a\\b", "/a"):
        with pytest.raises(FormatError, match="expected the name of a file in the directory") as caught:
            beside("https://me@host/dir/a.json?sig=x", name)
        assert caught.value.file == "https://host/dir/a.json"


@pytest.mark.parametrize("url", ["hf://me/toy/model.gguf", "hf://me/toy/model.gguf@v1", "hf://me/toy@v1/model.gguf"])
def test_files_of_the_hub(url: str, server: Server) -> None:
    check_file(glft.open(url))
    first, second, *_ = server.requests
    revision = "v1" if "v1" in url else "main"
    assert (first.path, first.status) == (f"/hub/me/toy/resolve/{revision}/model.gguf", 302)
    assert (second.path, second.status) == ("/ok/model.gguf", 206)


def test_a_token_is_sent_to_the_hub_alone(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.token = "hf_secret"
    result = in_this_process("inspect", "hf://me/toy/model.gguf")
    assert (result.returncode, result.stderr) == (2, f"glft: hf://me/toy/model.gguf: {LOGIN}\n")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    check_file(glft.open("hf://me/toy/model.gguf"))
    monkeypatch.delenv("HF_TOKEN")
    (server.folder / "token").write_text("hf_secret\n")
    monkeypatch.setenv("HF_TOKEN_PATH", str(server.folder / "token"))
    check_file(glft.open("hf://me/toy/model.gguf"))
    sent = {(request.path.split("/")[1], request.headers.get("authorization")) for request in server.requests}
    assert sent == {("hub", None), ("hub", "Bearer hf_secret"), ("ok", None)}


@pytest.mark.parametrize("token", ["hf_a\nhf_secret", "hf_sécret"])
def test_what_cannot_be_a_token(token: str, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    result = in_this_process("inspect", "hf://me/toy/model.gguf")
    problem = "expected a token of the Hub in HF_TOKEN or its file, found text that cannot be one"
    assert (result.returncode, result.stderr) == (2, f"glft: hf://me/toy/model.gguf: {problem}\n")


SECRET = "http://me:word@127.0.0.1:9/x.gguf?key=secret"
WRITES = (
    ("edit", "model.gguf", "--set", "a.b=c", "-o", SECRET),
    ("view", "model.gguf", "-o", SECRET),
    ("get-tensor", "model.gguf", "blk.0.weight", SECRET),
    ("convert", "model.gguf", SECRET),
    ("quantize", "model.gguf", SECRET, "Q8_0"),
    ("merge", "part-00001-of-00002.gguf", SECRET),
    ("split", "model.gguf", SECRET, "--max-tensors", "1"),
    ("plan", "model.gguf", "--size", "1MB", "-o", SECRET),
    ("imatrix", "model.gguf", SECRET),
    ("convert", "model.gguf", "-"),
    ("edit", "-", "--set", "a.b=c"),
)


@pytest.mark.parametrize("arguments", WRITES, ids=lambda arguments: arguments[0])
def test_outputs_are_local(arguments: tuple[str, ...], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    before = sorted(os.listdir())
    result = in_this_process(*arguments)
    assert (result.returncode, result.stdout, sorted(os.listdir())) == (2, "", before)
    assert re.fullmatch(r"glft: (model.gguf: )?expected a local path to write.*\n", result.stderr)
    assert not re.search("word|secret|me:", result.stderr)


@pytest.mark.parametrize(
    "arguments",
    [
        ("fuzz", SECRET),
        ("schema", SECRET),
        ("inspect", "model.gguf", SECRET),
        ("verify", "model.gguf", "--hub", SECRET),
        ("quantize", "model.gguf", "out.gguf", SECRET),
        ("inspect", SECRET.replace("//", "/")),
        ("inspect", SECRET.replace("http", "hf")),
        ("inspect", SECRET.replace("word", "wo/rd")),
        ("merge-lora", SECRET, SECRET, "out.gguf"),
        ("compare", SECRET, "model.gguf", "--json"),
    ],
)
def test_no_message_has_a_secret(arguments: tuple[str, ...], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    result = in_this_process(*arguments)
    assert result.returncode == 2
    assert not re.search("word|secret|me:|wo/", result.stdout + result.stderr)


def test_a_file_may_be_named_like_standard_input(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "-").write_bytes((folder / "model.gguf").read_bytes())
    assert in_this_process("inspect", "./-").stdout.startswith(f"{folder / '-'}: toy, ")
    index = {"weight_map": dict.fromkeys(TENSORS, "-")}
    (folder / "bad.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(FormatError, match="expected the name of a file in the directory, found '-'"):
        glft.open("bad.safetensors.index.json")


def test_all_files_of_a_revision_are_of_one_commit(server: Server) -> None:
    check_file(glft.open("hf://me/toy/part-00001-of-00002.gguf"))
    asked = [request.path.split("/")[5] for request in server.requests if request.path.startswith("/hub")]
    assert asked == ["main", COMMIT]


def test_a_revision_that_moves_is_noticed(server: Server) -> None:
    """A commit is asked for by its hash, so a push is seen only if the Hub answers with another."""
    server.moves = True
    with pytest.raises(OSError, match="the revision has changed since it was opened") as caught:
        glft.open("hf://me/toy/whole.safetensors.index.json")
    assert caught.value.filename == "hf://me/toy/whole-00001-of-00002.safetensors"


@pytest.mark.parametrize(
    "url", ["hf://me", "hf://me/toy", "hf://me/toy/", "hf:///toy/a", "hf://datasets/me/toy@/a", "hf://a b/c/d"]
)
def test_other_urls_of_the_hub(url: str) -> None:
    with pytest.raises(OptionError, match=r"^expected hf://OWNER/REPO/FILE or hf://OWNER/REPO/FILE@REVISION, found 'hf:"):
        glft.open(url)


@pytest.mark.parametrize("name", ["part-00001-of-00002.gguf", "whole.safetensors.index.json"])
@pytest.mark.parametrize("scheme", ["http", "hf", "hf at", "memory"])
def test_sets(name: str, scheme: str, server: Server) -> None:
    check_file(glft.open(url_in(scheme, server, name)))
    revisions = {request.path.split("/")[5] for request in server.requests if request.path.startswith("/hub")}
    assert revisions in (set(), {"v1" if scheme == "hf at" else "main", COMMIT})


def url_in(scheme: str, server: Server, name: str) -> str:
    """Returns the URL of a served file, or copies the folder to a store of fsspec."""
    if scheme == "http":
        return server.url(f"{name}?key=a/b")
    if scheme.startswith("hf"):
        return f"hf://me/toy/{name}{'@v1' if 'at' in scheme else ''}"
    system = pytest.importorskip("fsspec").filesystem("memory")
    for path in server.folder.iterdir():
        system.pipe(f"/store/{path.name}", path.read_bytes())
    return f"memory://store/{name}"


def test_a_part_of_a_set_is_not_a_model(server: Server, tmp_path: Path) -> None:
    for name, whole in (
        ("part-00002-of-00002.gguf", "file 2 of 2: open part-00001-of-00002.gguf"),
        ("whole-00001-of-00002.safetensors", "file 00001 of 00002: open whole.safetensors.index.json"),
        ("pytorch_model-00001-of-00002.bin", "file 00001 of 00002: open pytorch_model.bin.index.json"),
    ):
        with pytest.raises(FormatError, match=f"expected a whole model, found {whole}"):
            glft.convert(server.url(name), tmp_path / "out.gguf")
    (server.folder / "part-00002-of-00002.gguf").unlink()
    with pytest.raises(FileNotFoundError, match="file 2 of 2 is missing") as caught:
        glft.open(server.url("part-00001-of-00002.gguf"))
    assert caught.value.filename == server.url("part-00002-of-00002.gguf")


@pytest.mark.parametrize("name", ["../model.safetensors", "%2e%2e/a", "a?b", "//host/a", "http://host/a.safetensors", "a%2fb"])
def test_an_index_names_files_beside_it_only(name: str, server: Server) -> None:
    index = {"weight_map": dict.fromkeys(TENSORS, name)}
    (server.folder / "bad.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(FormatError, match="expected the name of a file in the directory, found "):
        glft.open(server.url("bad.safetensors.index.json"))
    assert len(server.requests) == 1


@pytest.mark.parametrize("name", ["model.pt", "model.safetensors", "model.gguf", "whole.safetensors.index.json"])
def test_commands_give_the_same_bytes(name: str, server: Server, tmp_path: Path) -> None:
    options = ("--scheme", "q8_0", "--metadata", "general.architecture=toy")
    results = [
        in_this_process("convert", source, tmp_path / out, *options)
        for source, out in ((server.folder / name, "local.gguf"), (server.url(name), "remote.gguf"))
    ]
    assert [(result.returncode, result.stderr) for result in results] == [(0, "")] * 2
    assert (tmp_path / "local.gguf").read_bytes() == (tmp_path / "remote.gguf").read_bytes()
    compared = in_this_process("compare", server.url(name), server.folder / name)
    assert (compared.returncode, compared.stderr) == (0, "")


def test_an_imatrix_and_a_donor_by_url(server: Server, tmp_path: Path) -> None:
    matrix = glft.weights.ImportanceMatrix({name: (np.ones((1, 32), np.float32), np.ones(1, np.int64)) for name in TENSORS})
    quantized = tmp_path / "quantized.gguf"
    for ending in ("dat", "gguf"):
        matrix.save(server.folder / f"imatrix.{ending}")
        options = ("--imatrix", server.url(f"imatrix.{ending}"), "--like", server.url("model.gguf"))
        result = in_this_process("convert", server.url("model.safetensors"), tmp_path / "a.gguf", "--scheme", "q4_0", *options)
        assert (result.returncode, result.stderr) == (0, "")
        assert in_this_process("inspect", server.url(f"imatrix.{ending}")).returncode == 0
        signed = server.url(f"imatrix.{ending}").replace("//", "//me:word@") + "?key=secret"
        assert in_this_process("quantize", server.url("model.gguf"), quantized, "Q8_0", "--imatrix", signed).returncode == 0
        assert server.url(f"imatrix.{ending}").encode() in quantized.read_bytes()
        assert not re.search(b"word|secret", quantized.read_bytes())


READERS: dict[str, Callable[[Path], Any]] = {
    "bytes": lambda path: io.BytesIO(path.read_bytes()),
    "file": lambda path: path.open("rb"),
    "unbuffered": lambda path: path.open("rb", buffering=0),
    "spooled": lambda path: _after(io.BufferedReader(io.BytesIO(b"before" + path.read_bytes())), 6),
}


def _after(stream: Any, nbytes: int) -> Any:
    stream.read(nbytes)
    return stream


@pytest.mark.parametrize("reader", READERS)
def test_file_objects(reader: str, folder: Path) -> None:
    with READERS[reader](folder / "model.gguf") as stream:
        check_file(glft.open(stream))
        assert not stream.closed


def test_members_of_zips(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(folder / "model.gguf", "dir/model.gguf")
    with zipfile.ZipFile(tmp_path / "a.zip") as archive, archive.open("dir/model.gguf") as member:
        check_file(glft.open(member))
    url = f"zip://dir/model.gguf::{tmp_path}/a.zip"
    check_file(glft.open(url))
    assert in_this_process("convert", url, tmp_path / "out.gguf").returncode == 0
    with pytest.raises(FileNotFoundError, match="no such file"):
        glft.open(f"zip://none::{tmp_path}/a.zip")


@pytest.mark.parametrize("how", ["pipe", "file"])
def test_standard_input(how: str, folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "glft_schema", "convert", "-", str(tmp_path / "out.gguf")]
    with (folder / "model.gguf").open("rb") as stream:
        stdin: dict[str, Any] = {"stdin": stream} if how == "file" else {"input": stream.read()}
        subprocess.run(command, check=True, capture_output=True, **stdin)
    assert (tmp_path / "out.gguf").read_bytes() == (folder / "model.gguf").read_bytes()
    result = subprocess.run([*command[:3], "inspect", "-"], input=b"no model", capture_output=True)
    assert result.stderr.startswith(b"glft: standard input: header -> magic: expected")


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("nothing://host/a.gguf", "nothing://host/a.gguf: Protocol not known: nothing"),
        ("memory://none/a.gguf?key=SECRET", "memory://none/a.gguf: no such file"),
    ],
)
def test_stores_that_cannot_be_read(url: str, problem: str) -> None:
    pytest.importorskip("fsspec")
    result = in_this_process("inspect", url)
    assert (result.returncode, result.stderr) == (2, f"glft: {problem}\n")


def test_fsspec_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    problem = "s3://b/k: requires fsspec: pip install 'glft_schema[remote]'"
    with pytest.raises(OptionError, match=re.escape(problem)):
        open_source("s3://b/k")


def test_an_object_that_changes(folder: Path) -> None:
    """fsspec does not say of which version a range is."""
    fsspec = pytest.importorskip("fsspec")
    from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper

    from glft_schema.storage.ranges import Pages, RangeSource
    from glft_schema.storage.remote import _Bucket

    memory = fsspec.filesystem("memory")
    memory.pipe("/bucket/model.gguf", (folder / "model.gguf").read_bytes() + bytes(1 << 20))
    bucket = _Bucket(AsyncFileSystemWrapper(memory), "/bucket/model.gguf", "x://model.gguf")
    with closing(RangeSource(Pages(bucket))) as source:
        assert bytes(source.view(0, 4)) == b"GGUF"
        memory.pipe("/bucket/model.gguf", bytes(source.size))
        with pytest.raises(OSError, match="the file has changed since it was opened") as caught:
            source.view(1 << 20, 4)
        assert caught.value.filename == "x://model.gguf"


def test_the_hub_states_what_a_file_should_be(server: Server, tmp_path: Path) -> None:
    (server.folder / "small.gguf").write_bytes(b"")
    glft.save_file({"w": np.ones(3, np.float32)}, server.folder / "small.gguf", METADATA)
    at = f"at commit {COMMIT}"
    for name in ("model.gguf", "small.gguf", "part-00001-of-00002.gguf"):
        server.requests.clear()
        path = server.folder / name
        result = in_this_process("verify", path, "--hub", "me/toy")
        assert result.returncode == 0
        assert f": the same bytes as hf://me/toy/{name} {at}\n" in result.stdout
        assert [request.method for request in server.requests] == ["HEAD"] * (2 if "part" in name else 1)
    for name, edited in (("model.gguf", "SHA-256 "), ("small.gguf", "SHA-1 of the git blob ")):
        other = tmp_path / "other.gguf"
        stored = bytearray((server.folder / name).read_bytes())
        stored[-1] ^= 1
        other.write_bytes(stored)
        result = in_this_process("verify", other, "--hub", f"me/toy/{name}@v1")
        assert result.returncode == 1
        line = rf"{re.escape(str(other))}: {edited}[0-9a-f]+, not the {edited}[0-9a-f]+ of hf://me/toy/{name}@v1 {at}"
        assert re.fullmatch(line, result.stdout.splitlines()[-1])
    glft.edit(server.folder / "model.gguf", tmp_path / "longer.gguf", set={"general.name": "another"})
    result = in_this_process("verify", tmp_path / "longer.gguf", "--hub", "me/toy/model.gguf", "--json")
    (compared,) = json.loads(result.stdout)["hub"]["files"]
    sizes = [f"{path.stat().st_size:,} bytes" for path in (tmp_path / "longer.gguf", server.folder / "model.gguf")]
    assert (result.returncode, [compared["found"], compared["expected"]]) == (1, sizes)
    for place, problem in (("me", "expected OWNER/REPO, OWNER/REPO/FILE or OWNER/REPO@REVISION for --hub, found 'me'"),):
        assert in_this_process("verify", other, "--hub", place).stderr == f"glft: {problem}\n"
    result = in_this_process("verify", other, "--hub", "me/toy")
    assert (result.returncode, result.stderr) == (
        2,
        "glft: hf://me/toy/other.gguf: the server has no such file (404), revision or repository\n",
    )
