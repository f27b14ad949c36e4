"""``s3://`` by s3fs, against moto's server."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np
import pytest

import glft_schema as glft
from tests.tools.command_line import glft as glft_command

KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
WEIGHTS = {f"blk.{i}.weight": np.full((512, 1024), i, np.float32) for i in range(12)}


@pytest.fixture(scope="module")
def bucket() -> Iterator[Any]:
    s3fs = pytest.importorskip("s3fs")
    pytest.importorskip("moto")
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield from served(s3fs, monkeypatch)


def served(s3fs: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yields a file system whose store is moto's server."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, value in {**KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}.items():
        monkeypatch.setenv(name, value)
    command = [str(Path(sys.executable).with_name("moto_server")), "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        for _ in range(100):
            try:
                urlopen(os.environ["AWS_ENDPOINT_URL"]).close()
                break
            except URLError:
                time.sleep(0.1)
        system = s3fs.S3FileSystem(skip_instance_cache=True)
        system.mkdir("models")
        yield system
        server.terminate()


def test_files_and_sets(bucket: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    glft.save_file(WEIGHTS, path, {"general.architecture": "toy"})
    for part in [path, *glft.split(path, tmp_path / "part", max_tensors=5)]:
        bucket.put(str(part), f"models/dir/{Path(part).name}")
    for name in ("model.gguf", "part-00001-of-00003.gguf"):
        with glft.open(f"s3://models/dir/{name}") as file:
            assert all(np.array_equal(tensor.numpy(), WEIGHTS[name]) for name, tensor in file.tensors.items())
            assert len(file.tensors) == 12
    done = glft_command("convert", "s3://models/dir/model.gguf", tmp_path / "out.gguf")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "out.gguf").read_bytes() == path.read_bytes()
    done = glft_command("inspect", "s3://models/none.gguf")
    assert (done.returncode, done.stderr) == (2, "glft: s3://models/none.gguf: no such file\n")


def test_an_object_that_changes(bucket: Any, tmp_path: Path) -> None:
    glft.save_file(WEIGHTS, tmp_path / "model.gguf", {"general.architecture": "toy"})
    bucket.put(str(tmp_path / "model.gguf"), "models/model.gguf")
    with glft.open("s3://models/model.gguf") as file:
        bucket.pipe("models/model.gguf", bytes((tmp_path / "model.gguf").stat().st_size))
        with pytest.raises(OSError, match="the file has changed since it was opened") as caught:
            file.tensors["blk.11.weight"].numpy()
        assert caught.value.filename == "s3://models/model.gguf"
