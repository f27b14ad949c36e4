"""Typed values: the types of plain values, refused values, and values parsed back."""

from __future__ import annotations

import numpy as np
import pytest

from glft_schema import Container, FormatError, LimitError
from glft_schema.codec.arrays import StoredStrings
from glft_schema.codec.typed_values import Typed
from glft_schema.formats.gguf import GGUF
from tests.formats.test_gguf import ORDERS, build
from tests.oracles import gguf_reference as reference
from tests.oracles.gguf_reference import ARRAY


@pytest.mark.parametrize("order", ORDERS)
def test_long_arrays_are_views_and_lazy(order: str) -> None:
    numbers, texts = np.arange(2000, dtype=np.int16), [f"token {i}" for i in range(2000)]
    metadata = build(header={"byte_order": order}, metadata={"n": numbers, "t": texts}).metadata
    view, tokens = metadata["n"], metadata["t"]
    assert isinstance(view, np.ndarray)
    assert (view.tolist(), view.flags.writeable, bool(view)) == (numbers.tolist(), False, True)
    assert [view == other for other in (numbers.tolist(), numbers.tolist()[:-1], 1, "n", None, texts)] == [True] + [False] * 5
    assert isinstance(tokens, StoredStrings)
    assert (len(tokens), tokens[0], tokens[-1], tokens[5:7]) == (2000, "token 0", "token 1999", texts[5:7])
    assert [tokens == other for other in (texts, texts[:-1], "token")] == [True, False, False]
    with pytest.raises(IndexError, match="index 2000 is out of range for 2000 strings"):
        tokens[2000]
    assert repr(tokens) == "['token 0', 'token 1', 'token 2', 'token 3', ... 2,000 in all]"
    assert repr(metadata.stored_value("n").value) == "[0, 1, 2, 3, ... 2,000 in all]"
    again = build(metadata={"t": tokens, "u": Typed(tokens, "array[string]"), "f": np.zeros(1500, dtype=bool)}).metadata
    assert [again.type_of(key) for key in again] == ["array[string]", "array[string]", "array[bool]"]
    assert (again["u"], again["f"].dtype) == (texts, bool)


PLAIN = [
    (True, "bool"),
    (7, "uint32"),
    (-7, "int32"),
    (1 << 32, "uint64"),
    (-(1 << 40), "int64"),
    (0.5, "float32"),
    (np.float64(0.5), "float64"),
    (np.uint8(3), "uint8"),
    (np.bool_(True), "bool"),
    ([1, -2], "array[int32]"),
    ([1 << 31], "array[uint32]"),
    ([1, 0.5], "array[float32]"),
    ([True], "array[bool]"),
    (["a", ""], "array[string]"),
    (("a",), "array[string]"),
    (np.str_("x"), "string"),
    ([[1], [2]], "array[array[int32]]"),
    ([[1], ["a"]], "array[array[int32],array[string]]"),
    (np.array([1, 2], dtype=np.uint16), "array[uint16]"),
    (np.array([True, False]), "array[bool]"),
    (np.array(["a", "b"]), "array[string]"),
    (Typed(1, "float64"), "float64"),
    (Typed([], "array[array]"), "array[array]"),
    (Typed([[], [1]], "array[array[uint8]]"), "array[array[uint8]]"),
    (Typed([[1], ["a"]], "array[array]"), "array[array[int32],array[string]]"),
]


@pytest.mark.parametrize(("value", "type_text"), PLAIN, ids=lambda value: str(value)[:30])
def test_types_of_plain_values(value: object, type_text: str) -> None:
    metadata = build(metadata={"k": value}).metadata
    assert metadata.type_of("k") == type_text
    expected = value.value if isinstance(value, Typed) else value
    expected = expected.tolist() if isinstance(expected, (np.ndarray, np.generic)) else expected
    assert metadata["k"] == (list(expected) if isinstance(expected, tuple) else expected)


REFUSED = [
    (None, "expected a number, bool, text or a list of these, found None"),
    (b"x", "expected a number, bool, text or a list of these, found b'x'"),
    ([], 'expected at least one element, found none: give the type, Typed([], "array[string]")'),
    (1 << 64, "expected an integer of at most 64 bits, found 18446744073709551616"),
    ([-1, 1 << 63], "expected an integer of at most 64 bits, found -1"),
    (["a", 1], "expected elements of one type, found string and uint32"),
    (1e39, "expected a number in the range of f32, found 1e+39"),
    ("\ud800", "expected text that can be encoded as UTF-8, found '\\ud800'"),
    (Typed(1, "int"), "expected one of uint8, int8, uint16"),
    (Typed(1, "array"), "found 'array'"),
    (Typed(256, "uint8"), "expected an integer in the range of u8, found 256"),
    (Typed(1, "bool"), "expected a bool, found 1"),
    (Typed(1, "string"), "expected text, found 1"),
    (Typed(1, "array[int8]"), "expected a list, found 1"),
    (Typed([1], "array[int8"), "expected a type such as array[int32], found 'array[int8'"),
    (Typed([1], "array[int8,int8]"), "expected a single element type, found 'int8, int8'"),
    (Typed([[1]], "array[array[int8],array[int8]]"), "expected 2 elements, found 1"),
    (Typed(np.array([300]), "array[int8]"), "expected an integer in the range of i8, found 300"),
    (Typed(np.zeros((2, 2), np.int8), "array[int8]"), "expected a one-dimensional array of int8, found int8 [2, 2]"),
    (Typed(np.array([1], np.uint8), "array[bool]"), "expected a one-dimensional array of bool, found uint8 [1]"),
    (Typed(np.array([True]), "array[uint8]"), "expected a one-dimensional array of uint8, found bool [1]"),
    (np.zeros(()), "expected a number, bool, text or a list of these, found array(0.)"),
    (Typed(np.zeros(()), "array[float64]"), "expected a list, found array(0.)"),
    (Typed(1, int), "expected the name of a type, found <class 'int'>"),
]


@pytest.mark.parametrize(("value", "message"), REFUSED, ids=lambda value: str(value)[:30])
def test_values_that_cannot_be_stored(value: object, message: str) -> None:
    with pytest.raises(FormatError) as caught:
        build(metadata={"k": value})
    assert message in str(caught.value)
    assert caught.value.path.startswith("metadata")


def test_metadata_with_other_values_keeps_types() -> None:
    metadata = build(metadata={"a": Typed(1, "uint8"), "b": "x", "c": Typed([], "array[int16]")}).metadata
    assert list(metadata.without("a", "c")) == ["b"]
    merged = GGUF.metadata.metadata({"z": 1, "a": Typed(5, "int64")}) | metadata
    assert [(key, merged.type_of(key)) for key in merged][:2] == [("z", "uint32"), ("a", "uint8")]
    nested = GGUF.metadata.metadata({"n": [[1], ["a"]]}) | {"n": [[1], [2], [3]]}
    assert nested.type_of("n") == "array[array[int32]]"
    for ask in (metadata.without, metadata.type_of):
        with pytest.raises(KeyError):
            ask("x")


def test_bool_bytes_and_nan_bits_are_kept_through_another_byte_order() -> None:
    entries = [(b"b", 7, 200), (b"f", 6, bytes.fromhex("7fa00001")), (b"d", 12, bytes.fromhex("7ff4000000000001"))]
    entries += [(b"a", ARRAY, (7, [0, 9])), (b"n", ARRAY, (6, [bytes.fromhex("ffa12345")]))]
    for order, other in (("<", "big"), (">", "little")):
        metadata = Container.parse(reference.File(entries, order=order).bytes()).metadata
        assert (metadata["b"], metadata["a"]) == (True, [False, True])
        built = Container.build({"format": "GGUF", "header": {"byte_order": other}, "metadata": metadata})
        assert built == reference.File(entries, order="<" if other == "little" else ">").bytes()


def test_arrays_too_deep_for_pythons_stack() -> None:
    value: object = [1]
    for _ in range(5000):
        value = [value]
    with pytest.raises(LimitError, match="nested too deeply for Python's stack"):
        build(metadata={"k": value})
