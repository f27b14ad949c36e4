"""Input files of a run, which must be the same on all ranks and not change."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch

import glft_schema as glft
from glft_schema.distributed import together
from glft_schema.distributed.fingerprints import Inputs
from tests.distributed.test_together import model


def test_fingerprints(tmp_path: Path) -> None:
    """Files of any kind: their names, sizes and times, but not their folders."""
    texts = []
    for number in range(3):  # the first two are equal
        folder = tmp_path / str(number)
        folder.mkdir()
        glft.save_file({"w": torch.zeros(5)}, folder / "m.safetensors")
        torch.save({}, folder / "m.pt")
        for path in folder.iterdir():
            os.utime(path, ns=(1, 1 + number // 2))
        texts.append(Inputs([folder]).fingerprint)
    assert texts[0] == texts[1] != texts[2]
    assert texts[0].startswith("m.pt of ")
    assert texts[0].endswith(" bytes, changed at 1 ns")


def test_many_inputs(tmp_path: Path) -> None:
    """The text names the first ones, and differs if any file does."""
    texts = []
    for content in (b"1", b"22"):
        for i in range(5):
            (tmp_path / f"{i}.json").write_bytes(content if i == 4 else b"0")
            os.utime(tmp_path / f"{i}.json", ns=(1, 1))
        texts.append(Inputs([tmp_path]).fingerprint)
    assert texts[0] != texts[1]
    assert " and 2 more, " in texts[0]


@pytest.mark.parametrize("how", ["written", "replaced", "touched"])
def test_an_input_that_changes(how: str, tmp_path: Path) -> None:
    """Also with the old size and time: inode and time of the status tell it."""
    path, other, out = model(tmp_path, 1), tmp_path / "other", tmp_path / "out.gguf"
    shutil.copyfile(path, other)
    before = os.stat(path)

    def change(name: str, share: float) -> None:
        if how == "replaced":
            os.replace(other, path) if other.exists() else None
        elif how == "written":
            with path.open("r+b") as file:
                file.seek(5000)
                file.write(b"\1")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    with (
        pytest.raises(glft.OptionError, match=r"^input in\.safetensors has changed from .* to .*inode \d+$"),
        together([path]) as ranks,
    ):
        glft.convert(path, out, schemes={"*": "q8_0"}, progress=change, ranks=ranks)
    assert not out.exists()


def test_an_input_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), together([tmp_path / "none.json"]) as ranks:
        glft.save_file({"a": torch.ones(1)}, tmp_path / "out.gguf", ranks=ranks)
