"""Random GGUF files come through parsing and building unchanged, mean what they were made from, and please whom they should."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glft_schema import Container, FormatError, LimitError
from glft_schema.codec.typed_text import from_text, to_text
from glft_schema.codec.typed_values import Typed
from glft_schema.files.parsing import check_rules
from glft_schema.formats.gguf import VALUE_TYPES
from tests.oracles import gguf_reference as reference
from tests.oracles import llama_cpp
from tests.oracles.gguf_reference import ARRAY, File
from tests.oracles.peers import gguf
from tests.tools import gguf_strategies as strategies

ORDERS = {"<": "little", ">": "big"}


def type_text(code: int, value: Any) -> str:
    """Returns a reference value's type as text."""
    if code != ARRAY:
        return str(VALUE_TYPES[code])
    inner, elements = value
    parts = [type_text(inner, element) for element in elements] if inner == ARRAY else [str(VALUE_TYPES[inner])]
    parts = parts or ["array"]
    return f"array[{','.join(parts) if len(set(parts)) > 1 else parts[0]}]"


@pytest.mark.fuzz
@given(strategies.files())
def test_bytes_to_values_to_bytes(file: File) -> None:
    stored = file.bytes()
    parsed = Container.parse(stored)
    assert (parsed.header.version, parsed.header.byte_order) == (file.version, ORDERS[file.order])
    for (key, code, value), found in zip(file.entries, parsed.metadata.items(), strict=True):
        assert found[0] == key.decode()
        assert strategies.same(strategies.plain(code, value), found[1])
        assert parsed.metadata.type_of(found[0]) == type_text(code, value)
    for info, row in zip(file.infos, parsed.tensor_infos, strict=True):
        name = info.name.decode("utf-8", "surrogateescape")
        assert (row.name, row.dims, row.dtype.code, row.offset) == (name, info.dims, info.type, info.offset)
        tensor = parsed.tensors[name]
        assert tensor.raw == info.payload
        assert tensor.dequantize().shape == tuple(reversed(info.dims))
    assert Container.build(parsed) == stored


@pytest.mark.fuzz
@given(strategies.files(), st.sampled_from([1, 2, 3]), st.sampled_from("<>"))
def test_metadata_in_another_version_and_byte_order(file: File, version: int, order: str) -> None:
    metadata = Container.parse(file.bytes()).metadata
    header = {"version": version, "byte_order": ORDERS[order]}
    built = Container.build({"format": "GGUF", "header": header, "metadata": metadata})
    assert built == File(file.entries, [], b"", version, order, alignment=file.alignment).bytes()


@pytest.mark.fuzz
@given(strategies.files())
def test_metadata_as_text(file: File) -> None:
    metadata = Container.parse(file.bytes()).metadata
    texts = {key: to_text(metadata.stored(key)) for key in metadata}
    assert all(text.isascii() and text.isprintable() for text in texts.values())
    again = {key: from_text(text, VALUE_TYPES, key) for key, text in texts.items()}
    header = {"version": file.version, "byte_order": ORDERS[file.order]}
    built = [Container.build({"format": "GGUF", "header": header, "metadata": entries}) for entries in (metadata, again)]
    assert built[0] == built[1]


plain_arrays = st.one_of(
    st.lists(st.integers(-(1 << 31), (1 << 31) - 1), min_size=1),
    st.lists(st.booleans(), min_size=1),
    st.lists(st.text(max_size=4), min_size=1),
    st.lists(st.floats(width=32, allow_nan=False), min_size=1),
)


@pytest.mark.fuzz
@given(st.dictionaries(strategies.keys.map(bytes.decode), st.one_of(st.text(), st.booleans(), plain_arrays), max_size=4))
def test_plain_values_come_back(entries: dict[str, Any]) -> None:
    parsed = Container.parse(Container.build({"format": "gguf", "metadata": entries}))
    assert dict(parsed.metadata) == entries


@pytest.mark.fuzz
@given(strategies.loose_files())
def test_what_is_unusual_and_legal_builds_back(stored: bytes) -> None:
    assert Container.build(Container.parse(stored)) == stored


def changed(draw: Any, stored: bytes) -> bytes:
    """Returns a file with up to three bytes changed, and perhaps cut short."""
    changed = bytearray(stored)
    for _ in range(draw(st.integers(0, 3))):
        changed[draw(st.integers(0, len(changed) - 1))] = draw(st.integers(0, 255))
    return bytes(changed[: draw(st.one_of(st.none(), st.integers(0, len(changed))))])


@pytest.mark.fuzz
@given(strategies.files(), st.data())
def test_llama_cpp_reads_what_keeps_to_its_rules_and_nothing_else(file: File, data: st.DataObject) -> None:
    stored = changed(data.draw, file.bytes())
    try:
        parsed = Container.parse(stored)
    except FormatError as error:
        assert error.path
        assert error.offset is not None
        assert 0 <= error.offset <= len(stored)
        if not isinstance(error, LimitError) and "overflow 64 bits" not in str(error):
            assert not llama_cpp.reads_gguf(stored)
        return
    assert Container.build(parsed) == stored
    assert llama_cpp.reads_gguf(stored) == (not check_rules(parsed, "ggml"))


def gguf_py_value(field: gguf.ReaderField) -> Any:
    """Returns what gguf-py makes of a value, as plain Python."""
    is_text = field.types[-1] == gguf.GGUFValueType.STRING
    stored = [field.parts[at] for at in field.data]
    parts = [bytes(part).decode("utf-8", "surrogateescape") if is_text else part[0].item() for part in stored]
    return parts if field.types[0] == gguf.GGUFValueType.ARRAY else parts[0]


@pytest.mark.slow
@settings(max_examples=150)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of NaN
@given(strategies.files())
def test_gguf_py_reads_the_same(file: File) -> None:
    """Where it can: v2 and v3, no nested arrays, no names that are not UTF-8, blocks of little-endian files only."""
    file.version = max(file.version, 2)
    file.entries = [(k, code, value) for k, code, value in file.entries if code != ARRAY or value[0] != ARRAY]
    file.infos = [info for info in file.infos if info.name and info.name.isascii() and 0 not in info.dims]
    file.infos = [info for info in file.infos if info.type not in (9, 42)]  # a wrong size, and a type that it does not know
    for info in file.infos:
        info.dims = info.dims or [1]
    file.alignment = file.alignment if file.alignment in (8, 32, 64) else 32
    file.entries = [entry for entry in file.entries if entry[0] != b"general.alignment"]
    file.entries.append((b"general.alignment", 4, file.alignment))
    stored = file.place().bytes()
    parsed = Container.parse(stored)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "file.gguf")
        path.write_bytes(stored)
        reader = gguf.GGUFReader(path)
        for key, code, value in file.entries:
            if code == ARRAY and not value[1]:
                continue  # it forgets the type of empty arrays
            expected = strategies.plain(code, value)
            assert strategies.same(expected, gguf_py_value(reader.fields[key.decode()]))
        for tensor in reader.tensors:
            ours = parsed.tensors[tensor.name]
            assert ours.raw == tensor.data.tobytes()
            if (
                file.order == "<"
                and not ours.dtype.is_integer
                and ours.dtype.name not in ("F64", "Q8_1", "Q8_K", "Q1_0", "Q2_0")
            ):
                theirs = gguf.dequantize(tensor.data, tensor.tensor_type)
                assert np.array_equal(ours.dequantize().float().numpy(), theirs.reshape(ours.shape), equal_nan=True)


def test_a_whole_format_over_a_plain_stream() -> None:
    file = File(
        [(b"k", ARRAY, (reference.STRING, [b"a", b"bc"])), (b"n", ARRAY, (4, [1, 2]))], [reference.Info(b"w", [1], 24, b"x")]
    )
    record = Container.parse(file.bytes()).format.struct.parse(file.bytes())
    assert dict(record.metadata) == {"k": ["a", "bc"], "n": [1, 2]}
    assert record.data["w"].dequantize().tolist() == [120]


def test_a_typed_value_in_a_plain_mapping() -> None:
    built = Container.build(
        {"format": "GGUF", "metadata": {"a": Typed([1, 2], "array[uint8]"), "b": Typed([], "array[string]")}}
    )
    assert built == File([(b"a", ARRAY, (0, [1, 2])), (b"b", ARRAY, (8, []))]).bytes()
