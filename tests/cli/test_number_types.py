"""Commands on every number type of safetensors, also those with which torch computes little."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import glft_schema as glft
from glft_schema.formats.safetensors import SAFETENSORS
from tests.formats.safetensors_files import file_of
from tests.tools.command_line import in_this_process
from tests.tools.depth import some_by_default

NAN = {"F8_E4M3": 0x7F, "F8_E5M2": 0x7E, "F8_E8M0": 0xFF, "F8_E4M3FNUZ": 0x80, "F8_E5M2FNUZ": 0x80}  # a code of each
E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]  # OCP Microscaling Formats v1.0, table 5


def write(path: Path, type_: str, payload: bytes) -> None:
    bits = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}.get(type_) or 8 * SAFETENSORS.types[type_].nbytes([1])
    nbytes = 2 * bits  # of 2 x 8 numbers
    header = {"w": {"dtype": type_, "shape": [2, 8], "data_offsets": [0, nbytes]}}
    path.write_bytes(file_of(json.dumps(header), payload[:nbytes]))


@pytest.mark.parametrize("type_", some_by_default([type_.name for type_ in SAFETENSORS.types], 3))
def test_no_command_fails(type_: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    codes = bytes(16) if type_ == "BOOL" else bytes(range(1, 129))
    write(Path("a.safetensors"), type_, bytes(128))
    write(Path("b.safetensors"), type_, codes)
    for code, *command in (
        (0, "verify", "b.safetensors", "--values"),
        (0, "inspect", "b.safetensors"),
        (0, "hash", "b.safetensors"),
        (0, "explain", "b.safetensors", "--tensor", "w"),
        (0, "view", "b.safetensors", "-o", "b.html"),
        (0, "view", "b.safetensors", "--against", "a.safetensors", "-o", "b.html"),
        (int(type_ != "BOOL"), "compare", "a.safetensors", "b.safetensors"),
        (2 if type_.startswith("F6_") else 0, "get-tensor", "b.safetensors", "w", "w.npy"),
    ):
        done = in_this_process(*command)
        assert (done.returncode, done.stderr.count("\n")) == (code, int(code == 2)), (command, done.stdout, done.stderr)


@pytest.mark.parametrize("type_", NAN)
def test_nan_in_float8_is_found(type_: str, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    write(path, type_, bytes([1] * 10 + [NAN[type_]] + [1] * 5))
    with glft.open(path) as file:
        ((_, (found,)),) = glft.check_values(file)
        assert (found.kind, found.count, found.index) == ("NaN", 1, (1, 2))
        assert np.argwhere(np.isnan(np.asarray(file.tensors["w"]))).tolist() == [[1, 2]]


def test_both_numbers_of_a_byte_of_float4(tmp_path: Path) -> None:
    """The first one is in the low bits."""
    path = tmp_path / "m.safetensors"
    write(path, "F4", bytes(low | (15 - low) << 4 for low in range(8)))
    expected = [number for low in range(8) for number in (E2M1[low], E2M1[15 - low])]
    with glft.open(path) as file:
        assert np.asarray(file.tensors["w"]).tolist() == [expected[:8], expected[8:]]
        assert torch.equal(torch.from_numpy(np.asarray(file.tensors["w"])).flatten(), torch.tensor(expected))


def test_float4_is_not_converted_by_torch(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    write(path, "F4", bytes(8))
    problem = r"tensor 'w': expected torch.float4_e2m1fn_x2, found torch.float32; .*: use tensor.numpy\(\)"
    with glft.open(path) as file:
        for read in (
            lambda: glft.load_file(path, dtype=torch.float32),
            lambda: file.tensors["w"].dequantize(torch.float32),
            lambda: file.tensors["w"].dequantize(out=torch.empty(file.tensors["w"].shape)),
        ):
            with pytest.raises(glft.TensorError, match=problem):
                read()
