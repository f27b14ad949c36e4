"""Each rule of GLFT v1 broken once: the error names field, byte offset and tensor."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import pytest
import torch

from glft_schema import Container, FormatError, LimitError, TruncatedError
from tests.golden import golden
from tests.oracles import glft_reference as reference
from tests.oracles.glft_reference import F32, Row


def field_at(cut: int) -> tuple[int, str]:
    """Returns the field that the error names if ``four_types`` ends at `cut`, and its first byte.

    It is the field that the byte is in, or the count of descriptors if they cannot all follow.
    """
    starts = [(0, "header -> magic"), (4, "header -> version"), (8, "header -> n_tensors"), (12, "header -> metadata_len")]
    starts += [(16, "metadata")]
    if 38 <= cut < 38 + 4 * (2 + 1 + 1 + 8):
        return starts[2]
    at = 38
    for i, (name, dims) in enumerate((("a", 0), ("b", 1), ("fc1", 2), ("fc2", 2))):
        sizes = {"name": 2 + len(name), "dims": 1 + 4 * dims, "dtype": 1, "offset": 8}
        for field, size in sizes.items():
            starts.append((at, f"descriptors -> {i} -> {field}"))
            at += size
    for payload, size in (("'a' -> weights", 4), ("'b' -> weights", 6), ("'fc1' -> scales", 4), ("'fc1' -> codes", 6)):
        starts.append((at, f"data -> {payload}"))
        at += size
    starts += [(at, "data -> 'fc2' -> scales"), (at + 2, "data -> 'fc2' -> nibbles")]
    return [place for place in starts if place[0] <= cut][-1]


@pytest.mark.parametrize("cut", range(len(golden("four_types"))))
def test_every_truncation_names_the_field_cut_off(cut: int) -> None:
    with pytest.raises(TruncatedError) as caught:
        Container.parse(golden("four_types")[:cut])
    start, field = field_at(cut)
    assert caught.value.path == field
    assert start <= caught.value.offset <= cut


UNWRITABLE = {
    "key with =": ({"a=b": "c"}, "expected a non-empty key without '=' or newline, found 'a=b'"),
    "key with newline": ({"a\nb": "c"}, "expected a non-empty key without '=' or newline, found 'a\\\\nb'"),
    "empty key": ({"": "c"}, "expected a non-empty key without '=' or newline, found ''"),
    "value that forges a key": ({"a": "1\nadmin=true"}, "expected a value without newlines for 'a', found '1\\\\nadmin=true'"),
    "value that is no text": ({"a": 1}, "expected text for key and value, found 'a': 1"),
    "lone surrogate": ({"a": "\ud800"}, "expected text that can be encoded as UTF-8"),
}


@pytest.mark.parametrize("case", UNWRITABLE)
def test_metadata_that_would_not_read_back(case: str) -> None:
    entries, message = UNWRITABLE[case]
    with pytest.raises(FormatError, match=message) as caught:
        Container.build({"metadata": entries})
    assert caught.value.path == "metadata"


UNBUILDABLE = {
    "no mapping": ([], "expected a File or a mapping of regions, found"),
    "unknown format": ({"format": "GGML"}, "expected GLFT, GGUF or safetensors, found 'GGML'"),
    "unknown region": ({"tensors": {}}, "expected only the regions header, metadata, descriptors, data, found 'tensors'"),
    "row without dims": ({"descriptors": [{"name": "w", "dtype": 0}]}, "expected a value for 'dims', found none"),
    "row of no mapping": ({"descriptors": [["w"]]}, "descriptors -> 0: expected a mapping with the row's fields, found ['w']"),
    "wrong count": ({"header": {"n_tensors": 1}}, "expected 0 (computed from the other fields), found 1"),
    "other version": ({"header": {"version": 2}}, "header -> version: expected 1, found 2"),
    "a dim of 33 bits": (
        {"descriptors": [{"name": "w", "dims": [1 << 32], "dtype": 0}]},
        "descriptors -> 0 -> dims: expected a number in the range of u32, found 4294967296",
    ),
    "a name of 65536 bytes": (
        {"descriptors": [{"name": "n" * 65536, "dims": [], "dtype": 0}]},
        "name: expected a number in the range of u16, found 65536",
    ),
    "a name that UTF-8 cannot hold": (
        {"descriptors": [{"name": "\ud800", "dims": [], "dtype": 0}]},
        "expected text that can be encoded as UTF-8",
    ),
    "some offsets": (
        {"descriptors": [{"name": "a", "dims": [], "dtype": 0, "offset": 0}, {"name": "b", "dims": [], "dtype": 0}]},
        "expected an offset in every row or in none, found one in 1 of 2 rows",
    ),
    "no payload": (
        {"descriptors": [{"name": "w", "dims": [], "dtype": 0}]},
        "data -> 'w': expected a payload, found none",
    ),
    "short payload": (
        {"descriptors": [{"name": "w", "dims": [], "dtype": 0}], "data": {"w": b"123"}},
        "data -> 'w': expected 4 bytes, found 3",
    ),
    "bytes for a tensor without numbers": (
        {"descriptors": [{"name": "z", "dims": [0], "dtype": 0}], "data": {"z": b"abc"}},
        "data -> 'z': expected 0 bytes, found 3",
    ),
    "payload of no tensor": (
        {"descriptors": [{"name": "w", "dims": [], "dtype": 0}], "data": {"w": {"weights": [1.0]}}},
        "expected a numpy array or torch tensor, found",
    ),
    "rows that are no sequence": ({"descriptors": None}, "descriptors: expected a sequence, found None"),
    "dims that are no sequence": (
        {"descriptors": [{"name": "w", "dims": 3, "dtype": 0}]},
        "descriptors -> 0 -> dims: expected a sequence, found 3",
    ),
    "dims that are no integers": (
        {"descriptors": [{"name": "w", "dims": [1.0], "dtype": 0}]},
        "descriptors -> 0 -> dims: expected integers, found 1.0",
    ),
    "a name that is no text": ({"descriptors": [{"name": 3, "dims": [], "dtype": 0}]}, "descriptors -> 0 -> name: expected"),
    "a type that is no type": ({"descriptors": [{"name": "w", "dims": [], "dtype": True}]}, "expected a GLFT type"),
    "a type that cannot be looked up": ({"descriptors": [{"name": "w", "dims": [], "dtype": []}]}, "expected a GLFT type"),
    "metadata that is no mapping": ({"metadata": "a=1"}, "metadata: expected a mapping of text to text, found 'a=1'"),
    "payloads that are no mapping": ({"data": None}, "data: expected a mapping of names to payloads, found None"),
    "a payload of no row": ({"data": {"w": b""}}, "data: expected payloads only for tensors in the table, found one for 'w'"),
    "one place, two types": (
        {
            "descriptors": [{"name": n, "dims": [d], "dtype": t, "offset": 0} for n, d, t in (("a", 1, 0), ("b", 2, 1))],
            "data": {"a": bytes(4), "b": bytes(4)},
        },
        "descriptors -> 1 -> offset: expected no overlap",
    ),
    "one place, two payloads": (
        {
            "descriptors": [{"name": n, "dims": [], "dtype": 0, "offset": 0} for n in "ab"],
            "data": {"a": b"1111", "b": b"2222"},
        },
        "data -> 'b': expected equal payloads at equal offsets (tensor 'b')",
    ),
    "fields of the wrong type": (
        {
            "descriptors": [{"name": "w", "dims": [2], "dtype": 0}],
            "data": {"w": {"weights": torch.zeros(2, dtype=torch.float16)}},
        },
        "data -> 'w' -> weights: expected float32 [2], found float16 [2] (tensor 'w')",
    ),
    "a tensor of another type": (
        {
            "descriptors": [{"name": "b", "dims": [1], "dtype": 0}],
            "data": {"b": Container.parse(golden("four_types")).tensors["b"]},
        },
        "data -> 'b': expected F32 [1], found F16 [3] (tensor 'b')",
    ),
    "overlap": (
        {
            "descriptors": [{"name": n, "dims": [], "dtype": 0, "offset": o} for n, o in (("a", 0), ("b", 2))],
            "data": {"a": bytes(4), "b": bytes(4)},
        },
        "descriptors -> 1 -> offset: expected no overlap, found bytes shared with tensor 'a'",
    ),
}


@pytest.mark.parametrize("case", UNBUILDABLE)
def test_values_that_are_no_file(case: str) -> None:
    value, message = UNBUILDABLE[case]
    with pytest.raises(FormatError) as caught:
        Container.build(value)
    assert message in str(caught.value)


def test_rebuilding_with_another_table_drops_the_gaps() -> None:
    file = Container.parse(golden("loose_layout"))
    rows = [{"name": row.name, "dims": row.dims, "dtype": row.dtype} for row in file.descriptors]
    relaid = Container.parse(Container.build({"descriptors": rows, "data": file.tensors}))
    assert not relaid.tensors.gaps
    assert {name: bytes(tensor.raw) for name, tensor in relaid.tensors.items()} == {
        name: bytes(tensor.raw) for name, tensor in file.tensors.items()
    }
    part = [row for row in file.descriptors if row.name == "y"]
    kept = Container.parse(Container.build({"descriptors": part, "data": {"y": file.tensors["y"]}}))
    assert kept.tensors["y"].dequantize().tolist() == [1, 2]
    assert kept.tensors.size == 6


def test_changing_only_the_metadata_keeps_gaps_and_trailing_bytes() -> None:
    file = Container.parse(golden("loose_layout"))
    changed = Container.parse(Container.build({**file.regions, "metadata": {"other": "text"}}))
    assert [b"".join(changed.tensors.gap_pieces(gap)) for gap in changed.tensors.gaps] == [b"\xaa\xbb", b"\xcc", b"\xdd\xee"]


def test_aliases_build_from_equal_payloads() -> None:
    rows = [{"name": name, "dims": [], "dtype": 0, "offset": 0} for name in "ab"]
    built = Container.build({"descriptors": rows, "data": {"a": b"1234", "b": bytearray(b"1234")}})
    assert Container.parse(built).tensors.size == 4


def test_a_stream_that_takes_a_little_at_a_time() -> None:
    class Slow(io.BytesIO):
        def write(self, data: bytes) -> int:
            return super().write(bytes(data[:3]))

    stream = Slow()
    Container.build_stream(Container.parse(golden("four_types")), stream)
    assert stream.getvalue() == golden("four_types")


def test_metadata_beyond_the_limit_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    size = (1 << 28) + 1
    with path.open("wb") as stream:
        stream.write(struct.pack("<IIII", 0x474C4654, 1, 0, size))
        stream.truncate(16 + size)
    problem = r"metadata: expected at most 268435456 bytes \(a limit of glft_schema\), found 268435457"
    with pytest.raises(LimitError, match=problem):
        Container.parse_file(path)


def test_hostile_names_are_shown_escaped_and_short() -> None:
    stored = reference.back_to_back(b"", [Row("\x1b[31m\u202e" + "x" * 9999, [1], F32, bytes(3))])
    with pytest.raises(TruncatedError) as caught:
        Container.parse(stored)
    text = str(caught.value)
    assert text.isprintable()
    assert len(text) < 350
