"""Each rule of GLFT v1 broken once: the error names field, byte offset and tensor."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch

from glft_schema import Container, FormatError, TruncatedError
from tests.golden import golden

STARTS = """0 header -> magic
4 header -> version
8 header -> n_tensors
12 header -> metadata_len
16 metadata
83 descriptors -> 2 -> offset
91 descriptors -> 3 -> name
96 descriptors -> 3 -> dims
105 descriptors -> 3 -> dtype
106 descriptors -> 3 -> offset
114 data -> 'a' -> weights
118 data -> 'b' -> weights
124 data -> 'fc1' -> scales
128 data -> 'fc1' -> codes
134 data -> 'fc2' -> scales
136 data -> 'fc2' -> nibbles"""


def field_at(cut: int) -> tuple[int, str]:
    """Returns the field that the error names if ``four_types`` ends at `cut`, and its first byte.

    It is the field that the byte is in, or the count of descriptors if they cannot all follow.
    """
    at = 8 if 38 <= cut < 38 + 4 * (2 + 1 + 1 + 8) else cut
    starts = [line.partition(" ") for line in STARTS.splitlines()]
    return [(int(start), field) for start, _, field in starts if int(start) <= at][-1]


@pytest.mark.parametrize("cut", range(len(golden("four_types"))))
def test_every_truncation_names_the_field_cut_off(cut: int) -> None:
    with pytest.raises(TruncatedError) as caught:
        Container.parse(golden("four_types")[:cut])
    start, field = field_at(cut)
    assert caught.value.path == field
    assert start <= caught.value.offset <= cut


def regions(*rows: dict[str, Any], **data: Any) -> dict[str, Any]:
    """Returns rows, complete except for what is given, and payloads."""
    return {"descriptors": [{"name": "w", "dims": [], "dtype": 0, **row} for row in rows], "data": data}


B = Container.parse(golden("four_types")).tensors["b"]
AT_0 = {"name": "b", "offset": 0}
# fmt: off
UNBUILDABLE: list[tuple[Any, str]] = [
    ([], "expected a File or a mapping of regions, found"),
    ({"format": "GGML"}, "expected GLFT, GGUF or safetensors, found 'GGML'"),
    ({"tensors": {}}, "expected the GLFT regions header, metadata, descriptors, data, found 'tensors'"),
    ({"descriptors": [{"name": "w", "dtype": 0}]}, "expected a value for 'dims', found none"),
    ({"descriptors": [["w"]]}, "descriptors -> 0: expected a mapping with the row's fields, found ['w']"),
    ({"descriptors": None}, "descriptors: expected a sequence, found None"),
    ({"header": {"n_tensors": 1}}, "expected 0 (computed from the other fields), found 1"),
    ({"header": {"version": 2}}, "header -> version: expected 1, found 2"),
    ({"metadata": {"a=b": "c"}}, "metadata: expected a non-empty key without '=' or newline, found 'a=b'"),
    ({"metadata": {"a\nb": "c"}}, "metadata: expected a non-empty key without '=' or newline, found 'a\\nb'"),
    ({"data": None}, "data: expected a mapping of names to payloads, found None"),
    ({"data": {"w": b""}}, "data: expected payloads only for tensors in the table, found one for 'w'"),
    (regions({"offset": 0}, {"name": "b"}), "expected an offset in every row or in none, found one in 1 of 2 rows"),
    (regions({}), "data -> 'w': expected a payload, found none"),
    (regions({}, w=b"123"), "data -> 'w': expected 4 bytes, found 3"),
    (regions({"dims": [0]}, w=b"abc"), "data -> 'w': expected 0 bytes, found 3"),
    (regions({}, w={"weights": [1.0]}), "expected a numpy array or torch tensor, found"),
    (regions({"dims": [1 << 32]}), "descriptors -> 0 -> dims: expected an integer in the range of u32, found 4294967296"),
    (regions({"dims": 3}), "descriptors -> 0 -> dims: expected a sequence, found 3"),
    (regions({"dims": [1.0]}), "descriptors -> 0 -> dims: expected integers, found 1.0"),
    (regions({"dtype": True}), "expected a GLFT type"),
    (regions({"dtype": []}), "expected a GLFT type"),
    (regions({"offset": 0}, {**AT_0, "dims": [2], "dtype": 1}, w=bytes(4), b=bytes(4)),
     "descriptors -> 1 -> offset: expected no overlap"),
    (regions({"offset": 0}, {"name": "b", "offset": 2}, w=bytes(4), b=bytes(4)),
     "descriptors -> 1 -> offset: expected no overlap, found bytes shared with tensor 'w'"),
    (regions({"offset": 0}, AT_0, w=b"1111", b=b"2222"), "data -> 'b': expected equal payloads at equal offsets (tensor 'b')"),
    (regions({"dims": [2]}, w={"weights": torch.zeros(2, dtype=torch.float16)}),
     "data -> 'w' -> weights: expected float32 [2], found float16 [2] (tensor 'w')"),
    (regions({"name": "b", "dims": [1]}, b=B), "data -> 'b': expected F32 [1], found F16 [3] (tensor 'b')"),
]
# fmt: on


@pytest.mark.parametrize(("value", "message"), UNBUILDABLE, ids=[message for _, message in UNBUILDABLE])
def test_values_that_are_no_file(value: Any, message: str) -> None:
    with pytest.raises(FormatError) as caught:
        Container.build(value)
    assert message in str(caught.value)


def test_rebuilding_with_another_table_drops_the_gaps() -> None:
    file = Container.parse(golden("loose_layout"))
    rows = [{"name": row.name, "dims": row.dims, "dtype": row.dtype} for row in file.descriptors]
    relaid = Container.parse(Container.build({"descriptors": rows, "data": file.tensors}))
    assert not relaid.tensors.gaps
    payloads = [{name: bytes(tensor.raw) for name, tensor in made.tensors.items()} for made in (file, relaid)]
    assert payloads[0] == payloads[1]
    part = [row for row in file.descriptors if row.name == "y"]
    kept = Container.parse(Container.build({"descriptors": part, "data": {"y": file.tensors["y"]}}))
    assert (kept.tensors["y"].dequantize().tolist(), kept.tensors.size) == ([1, 2], 6)


def test_changing_only_the_metadata_keeps_gaps_and_trailing_bytes() -> None:
    file = Container.parse(golden("loose_layout"))
    changed = Container.parse(Container.build({**file.regions, "metadata": {"other": "text"}}))
    assert [b"".join(changed.tensors.gap_pieces(gap)) for gap in changed.tensors.gaps] == [b"\xaa\xbb", b"\xcc", b"\xdd\xee"]


def test_aliases_build_from_equal_payloads() -> None:
    built = Container.build(regions({"offset": 0}, AT_0, w=b"1234", b=bytearray(b"1234")))
    assert Container.parse(built).tensors.size == 4


def test_a_stream_that_takes_a_little_at_a_time() -> None:
    class Slow(io.BytesIO):
        def write(self, data: bytes) -> int:
            return super().write(bytes(data[:3]))

    stream = Slow()
    Container.build_stream(Container.parse(golden("four_types")), stream)
    assert stream.getvalue() == golden("four_types")
