"""Devices that torch cannot use, and Python without torch, are one OptionError everywhere."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import glft_schema as glft
from glft_schema import OptionError
from glft_schema.lazy import import_module

USES: dict[str, Callable[[Path, Any], Any]] = {
    "open": glft.open,
    "load_file": glft.load_file,
    "load_into": lambda path, device: glft.load_into(torch.nn.Linear(32, 2), path, device=device),
    "dequantize": lambda path, device: glft.open(path).tensors["weight"].dequantize(device=device),
    "get_tensor": lambda path, device: on(device, path).get_tensor("weight"),
    "slice": lambda path, device: on(device, path).get_slice("weight")[1],
    "out": lambda path, device: glft.open(path).tensors["weight"].dequantize(None, device, out=torch.empty(2, 32)),
}
DEVICES = {
    "nonsense": ": Expected one of cpu, ",
    "pt": ", which is a framework of safetensors' safe_open: leave it out$",
    "privateuseone": ": ",
    "cuda:x": ": Invalid device string: 'cuda:x'",
    7.5: "$",
}
ABSENT = {"cuda": torch.cuda.is_available(), "cuda:7": torch.cuda.device_count() > 7, "mps": torch.backends.mps.is_available()}
DEVICES |= {name: ": " for name, is_there in ABSENT.items() if not is_there}


def on(device: Any, path: Path) -> glft.File:
    """Returns a file of a device, which the setter of the attribute does not check."""
    file = glft.open(path)
    file.device = device
    return file


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("devices") / "model.gguf"
    state = {"weight": torch.ones(2, 32), "bias": torch.ones(2)}
    glft.save_file(state, path, {"general.architecture": "x"}, schemes={"weight": "q8_0"})
    return path


@pytest.mark.parametrize("name", USES)
def test_a_device_that_torch_cannot_use(name: str, path: Path) -> None:
    for device, reason in DEVICES.items():
        expected = f"^expected a device that torch can use here, such as 'cpu', found {device!r}{reason}"
        with pytest.raises(OptionError, match=expected):
            USES[name](path, device)


@pytest.mark.parametrize("device", ["cpu", "cpu:0", "meta", torch.device("cpu")])
def test_devices_that_are_always_there(device: Any, path: Path) -> None:
    assert glft.load_file(path, device)["weight"].device.type == torch.device(device).type


WITHOUT_TORCH = r"""
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name="torch")

sys.meta_path.insert(0, NoTorch())
import glft_schema as glft

path = sys.argv[1]
file = glft.open(path)
print(len(str(file)) > 0, file.metadata["general.architecture"], file.tensors["weight"].shape, len(glft.byte_map(path)) > 9)
assert glft.Container.build(file) == open(path, "rb").read()
assert file.tensors["weight"].numpy().shape == (2, 32)
found = set()
for use in (
    lambda: file.get_tensor("weight"), lambda: file.get_slice("weight")[0], lambda: glft.load_file(path),
    lambda: next(file.tensors["weight"].chunks()), lambda: file.tensors["weight"].read(0, out=1),
    lambda: glft.nn, lambda: glft.load_into, lambda: glft.distributed.StorageReader, lambda: glft.open(path, "meta"),
):
    try:
        use()
    except glft.OptionError as error:
        found.add(str(error))
print(*sorted(found), sep="\n")
"""


def test_without_torch(path: Path, tmp_path: Path) -> None:
    """Reading, describing and rebuilding need none; values do."""
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, path], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "True x (2, 32) True",
        "this needs torch, which is not installed: pip install 'glft_schema[torch]'",
        "this needs torch, which is not installed: pip install 'glft_schema[torch]'; "
        "without torch: tensor.numpy(index=...), tensor.arrays(), glft_schema.numpy",
    ]


def test_another_missing_module_is_named_as_python_does() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'glft_schema.no_such_module'$"):
        import_module("glft_schema.no_such_module")
