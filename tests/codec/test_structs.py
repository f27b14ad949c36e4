"""Structs, and the shared constructs over plain streams."""

from __future__ import annotations

import io
import runpy
import sys
from typing import Any
from unittest.mock import Mock

import construct
import pytest
import torch
from construct import Int8ul, PascalString, len_, this

from glft_schema import Container, FormatError
from glft_schema.codec.numbers import f16, u8, u16
from glft_schema.codec.predicates import at_most
from glft_schema.codec.rules import Check, Rule
from glft_schema.codec.structs import Count, Derived, Struct
from glft_schema.codec.tables import Table
from glft_schema.codec.trace import Trace
from glft_schema.formats.glft import GLFT
from glft_schema.storage import tensor_bytes
from glft_schema.tensor_types.ggml.unquantized import F32
from glft_schema.tensor_types.symmetric import Q4_PER_GROUP_64
from tests.golden import golden

Row = Struct("name" / PascalString(Int8ul, "utf8") * "a name", "rank" / Int8ul * "a number")
Sheet = Struct(
    "count" / Count(Int8ul, len_(this.rows)),
    "rows" / Table(lambda sheet: sheet["count"], Row),
    Rule("few-rows", len_(this.rows), at_most(2, "rows")),
)


def test_a_struct_of_ones_own() -> None:
    value = {"rows": [{"name": "a", "rank": 1}, {"name": "bc", "rank": 2}]}
    built = Sheet.build(value)
    assert built == b"\x02\x01a\x01\x02bc\x02"
    parsed = Sheet.parse(built)
    assert parsed == value
    assert parsed.count == 2
    with pytest.raises(FormatError, match="rows: expected at most 2 rows, found"):
        Sheet.build({"rows": value["rows"] * 2})
    for row, problem in (
        (3, "expected a mapping with name, rank, found 3"),
        ({"name": "a", "rank": 1, "more": 2}, "expected the fields name, rank, found 'more'"),
    ):
        with pytest.raises(FormatError, match=f"rows -> 1: {problem}"):
            Sheet.build({"rows": [value["rows"][0], row]})


def test_fields_with_a_hook_have_one_name_in_paths() -> None:
    seen: list[int] = []
    hooked, trace = Struct("n" / Struct("a" / u8 * (lambda value, context: seen.append(value))) * (lambda *_: None)), Trace()
    for given in (None, trace):
        assert hooked.parse(b"\5", trace=given).n.a == 5
    with pytest.raises(FormatError) as caught:
        hooked.parse(b"")
    assert (caught.value.path, [span.path for span in trace.spans], seen) == ("n -> a", ["n -> a", "n"], [5, 5])


@pytest.mark.parametrize("struct", [Struct, construct.Struct])
def test_fields_see_each_other_and_the_parameters(struct: Any) -> None:
    seen = Derived(lambda at: [at._.a, at._root.a, at.b, at["b"], at._params.given])
    outer = struct("a" / u16, "inner" / Struct("b" / u8, "seen" / seen))
    parsed = outer.parse(b"\0\1\2", byte_order="big", given=9)
    assert (parsed.a, parsed.inner, parsed.inner.seen) == (1, {"b": 2}, [1, 1, 2, 2, 9])
    assert outer.build({"a": 1, "inner": {"b": 2}}, given=9) == b"\1\0\2"


def test_tensors_in_a_plain_stream() -> None:
    both = Struct("scales" / f16[2], "codes" / u8[this._params.rows, 2])
    stored = bytes.fromhex("003C 0040 01020304")
    parsed = both.parse(stored, rows=2)
    assert parsed.scales.tolist() == [1, 2]
    parsed.codes[...] = 0
    assert both.build(parsed, rows=2) == stored[:4] + bytes(4)
    assert both.sizeof(rows=3) == 10
    assert repr(f16[2, 3]) == "f16[2, 3]"


def test_a_whole_format_over_a_plain_stream() -> None:
    record = GLFT.struct.parse(golden("four_types"))
    assert record.data["fc1"].dequantize().shape == (2, 3)
    shown = ["<Tensors: 4 tensors>", "<Tensor: 'a', F32 [], 4 bytes at 0>", "<Metadata: 2 entries, arch 'toy', note 'a=b üß'>"]
    assert [repr(part) for part in (record.data, record.data["a"], record.metadata)] == shown


def test_payloads_build_by_themselves() -> None:
    assert F32.payload.build({"weights": torch.tensor([1.0])}, dims=[1]) == bytes.fromhex("0000803F")
    bad = {"scales": torch.ones(1, 1, dtype=torch.float16), "nibbles": torch.ones(1, 32, dtype=torch.int8)}
    with pytest.raises(FormatError, match=r"nibbles: expected uint8 \[1, 32\], found int8 \[1, 32\]"):
        Q4_PER_GROUP_64.payload.build(bad, dims=[1, 64], out=1, **{"in": 64})


def test_a_check_has_to_say_what_it_checks() -> None:
    with pytest.raises(NotImplementedError):
        Struct(Check("nothing", "x")).parse(b"")


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (Mock(side_effect=OSError(28, "No space left on device")), "No space left on device"),
        (Mock(return_value=0), "the stream accepts no more bytes"),
    ],
)
def test_a_stream_that_cannot_be_written(write: Mock, message: str) -> None:
    with pytest.raises(OSError, match=message):
        Container.build_stream({}, Mock(wraps=io.BytesIO(), write=write))


def test_a_machine_of_the_other_byte_order_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "byteorder", "big")
    with pytest.raises(ImportError, match="requires a little-endian machine"):
        runpy.run_path(tensor_bytes.__file__)
