"""A format whose files are always big-endian: numbers, arrays, texts and payloads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import glft_schema as glft
from glft_schema.describe import as_data, schema_of, write
from tests.formats.own_formats import F32, Q8_0, TYPED, registered

HEAD = "B7 0001 0002 0003 0002"
ENTRIES = "00000001 61 01 00000003   00000001 62 02 3F000000   00000001 63 03 00000001 64"  # a = 3, b = 0.5, c = "d"
ROWS = "00000001 77 01 0000000000000003 0007 0000000000000000"  # w: F32 [3]
ROWS += "00000001 71 01 0000000000000020 0009 0000000000000040"  # q: Q8_0 [32]
NUMBERS = "3FC00000 C0000000 00000001"  # 1.5, -2, the least positive number
BLOCK = "3400" + bytes(range(32)).hex()  # d = 0.25, and the codes 0 to 31
STORED = bytes.fromhex(HEAD + ENTRIES + ROWS).ljust(128, b"\0") + bytes.fromhex(NUMBERS).ljust(64, b"\0")
STORED += bytes.fromhex(BLOCK).ljust(64, b"\0")
STATE = {"w": torch.tensor([1.5, -2.0, 2.0**-149]), "q": torch.arange(32) / 4}


@pytest.fixture(autouse=True)
def _own_format() -> Iterator[None]:
    with registered(TYPED):
        yield


def test_bytes_that_are_written_by_hand() -> None:
    file = glft.Container.parse(STORED)
    assert (file.head.byte_order, file.head.steps.tolist()) == ("big", [1, 2])
    assert dict(file.metadata) == {"a": 3, "b": 0.5, "c": "d"}
    assert [(tensor.type, tensor.position) for tensor in file.tensors.values()] == [(F32, 128), (Q8_0, 192)]
    assert all(torch.equal(file.get_tensor(name), numbers) for name, numbers in STATE.items())
    assert (file.tensors["q"].fields["d"].tolist(), file.get_slice("w")[1].item()) == ([[0.25]], -2)
    for data in (file.tensors, {"w": STORED[128:140], "q": STORED[192:226]}):
        assert glft.Container.build({**file.regions, "format": "typed", "data": data}) == STORED


def test_saved_and_converted(tmp_path: Path) -> None:
    path, there, back = tmp_path / "model.typed", tmp_path / "there.gguf", tmp_path / "back.typed"
    glft.save_file(STATE, path, {"a": 3}, schemes={"q": "q8_0"})
    assert path.read_bytes()[:9] == bytes.fromhex("B7 0001 0002 0001 0002")
    glft.convert(path, there, metadata={"general.architecture": "x"})
    glft.convert(there, back)
    little = glft.open(there)
    for name, tensor in glft.open(path).tensors.items():  # payloads are copied, with their numbers in the other order
        assert little.tensors[name].type == tensor.type
        assert torch.equal(little.get_tensor(name), tensor.dequantize())
        assert glft.open(back).tensors[name].raw == tensor.raw
    d, other = bytes(tensor.raw)[:2], bytes(little.tensors["q"].raw)[:2]
    assert d == other[::-1] != other


def test_described() -> None:
    schema = schema_of(TYPED)
    assert as_data(schema)["byte_orders"] == ["big"]
    assert "Numbers are big-endian" in write(schema, "markdown")
    assert "Numbers are big-endian." in write(schema, "c")
    kaitai = write(schema, "kaitai")
    assert ('"endian": "be"' in kaitai, "is_big_endian" in kaitai) == (True, False)
    values = {byte_range.path: byte_range.value for byte_range in glft.byte_map(glft.Container.parse(STORED))}
    assert (values["infos -> 1 -> offset"], values["head -> n_kv"], values["metadata -> 1 -> value"]) == (64, 3, 0.5)
