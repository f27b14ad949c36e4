"""Round trips of random GGUF files: bytes to values to bytes, with the values that were written."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glft_schema import Container
from glft_schema.codec.typed_text import from_text, to_text
from glft_schema.formats.gguf import VALUE_TYPES
from tests.oracles.gguf_reference import ARRAY, File
from tests.tools import gguf_strategies as strategies

ORDERS = {"<": "little", ">": "big"}


def type_text(code: int, value: Any) -> str:
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
def test_metadata_from_text_in_any_version_and_byte_order(file: File, version: int, order: str) -> None:
    metadata = Container.parse(file.bytes()).metadata
    texts = {key: to_text(metadata.stored_value(key)) for key in metadata}
    assert all(text.isascii() and text.isprintable() for text in texts.values())
    from_texts = metadata.replace({key: from_text(text, VALUE_TYPES, key) for key, text in texts.items()})
    header = {"version": version, "byte_order": ORDERS[order]}
    expected = File(file.entries, [], b"", version, order, alignment=file.alignment).bytes()
    for entries in (metadata, from_texts):
        assert Container.build({"format": "GGUF", "header": header, "metadata": entries}) == expected


@pytest.mark.fuzz
@given(strategies.loose_files())
def test_unusual_but_legal_files_build_back(stored: bytes) -> None:
    assert Container.build(Container.parse(stored)) == stored
