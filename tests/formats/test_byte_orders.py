"""A format whose files are always big-endian: numbers, arrays, texts and payloads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from construct import Const, Default, Switch, this

import glft_schema as glft
from glft_schema.codec import (
    ByteOrderOf,
    Count,
    Derived,
    KeyValues,
    NamesOnce,
    Sizes,
    Struct,
    Table,
    Text,
    TypeCode,
    TypeTable,
    ValueType,
    f32,
    f64,
    i32,
    u8,
    u16,
    u32,
)
from glft_schema.codec.context import BIG
from glft_schema.describe import as_data, schema_of, write
from glft_schema.formats import Format, TensorData, TensorFits
from glft_schema.testing import fuzz
from glft_schema.types import GGML_TYPES
from tests.formats.own_formats import registered

F32, F16, Q8_0, Q4_K = (GGML_TYPES[name] for name in ("F32", "F16", "Q8_0", "Q4_K"))
TYPES = TypeTable("network", {1: F32, 2: F16, 8: Q8_0, 12: Q4_K})
VALUES = TypeTable("network value", ValueType("int32", 1, i32), ValueType("float64", 2, f64), ValueType("string", 3, Text(u16)))

# fmt: off
NETWORK = Format("network", (b"NET\0",), TYPES, Struct(
    "header" / Struct(
        "magic"      / Const(b"NET\0")                                            * "'NET', 0",
        "byte_order" / ByteOrderOf(BIG)                                           * "big",
        "version"    / Default(u16, 0x0102)                                       * "0x0102",
        "steps"      / Default(f32[2], torch.tensor([1.0, 2.0]))                  * "two numbers",
        "n_kv"       / Count(u16, this._.metadata)                                * "number of entries",
        "n_tensors"  / Count(u32, this._.tensors)                                 * "number of tensors",
        title="network_header",
    ) * "counts",
    "metadata" / KeyValues(Table(this.header.n_kv, Struct(
        "key"   / Text(u16)                                                       * "the key",
        "type"  / TypeCode(u8, VALUES)                                            * "type of the value",
        "value" / Switch(this.type, {type_: type_.field for type_ in VALUES})     * "the value",
        title="network_entry",
    )), VALUES, once="network-keys") * "values by key",
    "tensors" / Table(this.header.n_tensors, Struct(
        "name"   / Text(u16)                                                      * "name",
        "dims"   / Sizes(u8, u32, "dims")                                         * "sizes in torch's order",
        "shape"  / Derived(this.dims)                                             * "the same",
        "dtype"  / TypeCode(u16, TYPES)                                           * "type",
        "offset" / u32                                                            * "first byte, from the start of data",
        TensorFits("network-dims", "dims"),
        title="network_row",
    )) * "one row per tensor",
    "data" / TensorData("tensors") * "the payloads",
    NamesOnce("network-names", "tensors"),
), endings=(".network",))
# fmt: on

HEADER = "4E455400 0102 3F800000 40000000 0002 00000002"
ENTRIES = "0001 61 01 00000003   0001 62 02 3FE0000000000000"  # a = 3, b = 0.5
ROWS = "0001 77 01 00000003 0001 00000000   0001 71 01 00000020 0008 0000000C"  # w: F32 [3], q: Q8_0 [32]
NUMBERS = "3FC00000 C0000000 00000001"  # 1.5, -2, the least positive number
BLOCK = "3400" + bytes(range(32)).hex()  # d = 0.25, and the codes 0 to 31
STORED = bytes.fromhex(HEADER + ENTRIES + ROWS + NUMBERS + BLOCK)
STATE = {"w": torch.tensor([1.5, -2.0, 2.0**-149]), "q": torch.arange(32) / 4}


@pytest.fixture(autouse=True)
def _network() -> Iterator[None]:
    with registered(NETWORK):
        yield


def test_bytes_that_are_written_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "model.network"
    path.write_bytes(STORED)
    file = glft.open(path)
    assert (file.header.byte_order, file.header.version, file.header.steps.tolist()) == ("big", 0x0102, [1.0, 2.0])
    assert dict(file.metadata) == {"a": 3, "b": 0.5}
    assert [(tensor.type, tensor.position) for tensor in file.tensors.values()] == [(F32, 68), (Q8_0, 80)]
    assert all(torch.equal(file.get_tensor(name), numbers) for name, numbers in STATE.items())
    assert file.tensors["q"].fields["d"].tolist() == [[0.25]]
    assert file.get_slice("w")[1].item() == -2
    assert glft.Container.build(file) == STORED
    regions = {**file.regions, "format": "network", "data": {"w": STORED[68:80], "q": STORED[80:]}}
    assert glft.Container.build(regions) == STORED


def test_saved_and_converted(tmp_path: Path) -> None:
    path = tmp_path / "model.network"
    state = {**STATE, "k": torch.randn(2, 256, generator=torch.manual_seed(0))}
    glft.save_file(state, path, {"a": 3}, schemes={"q": "q8_0", "k": "q4_k"})
    assert path.read_bytes()[:20] == bytes.fromhex("4E455400 0102 3F800000 40000000 0001 00000003")
    glft.convert(path, tmp_path / "there.gguf", metadata={"general.architecture": "x"})
    glft.convert(tmp_path / "there.gguf", tmp_path / "back.network")
    there, back, file = (glft.open(tmp_path / name) for name in ("there.gguf", "back.network", "model.network"))
    for name in state:  # payloads are copied, with their numbers in the other order
        assert there.tensors[name].type == back.tensors[name].type == file.tensors[name].type
        assert torch.equal(there.get_tensor(name), file.get_tensor(name))
        assert back.tensors[name].raw == file.tensors[name].raw
    d = [bytes(opened.tensors["q"].raw)[:2] for opened in (file, there)]
    assert d[0] == d[1][::-1] != d[1]


def test_described(tmp_path: Path) -> None:
    assert as_data(schema_of(NETWORK))["byte_orders"] == ["big"]
    assert "Numbers are big-endian" in write(schema_of(NETWORK), "markdown")
    assert "Numbers are big-endian." in write(schema_of(NETWORK), "c")
    kaitai = write(schema_of(NETWORK), "kaitai")
    assert '"endian": "be"' in kaitai
    assert "is_big_endian" not in kaitai
    values = {byte_range.path: byte_range.value for byte_range in glft.byte_map(glft.Container.parse(STORED))}
    assert (values["header -> version"], values["tensors -> 1 -> offset"], values["header -> n_kv"]) == (0x0102, 12, 2)
    assert fuzz(NETWORK, 20).failure is None
