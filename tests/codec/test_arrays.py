"""Long arrays: the ends of strings compared with a loop, and access to numbers."""

from __future__ import annotations

import struct
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glft_schema import TruncatedError
from glft_schema.codec import arrays
from glft_schema.codec.arrays import StoredNumbers, StoredStrings
from glft_schema.codec.context import ByteOrder
from glft_schema.codec.numbers import Number, u32, u64
from glft_schema.storage.source import BytesSource

LETTERS = {(4, "little"): "<I", (8, "little"): "<Q", (4, "big"): ">I", (8, "big"): ">Q"}
strings = st.one_of(
    st.binary(max_size=4),
    st.sampled_from([b"", b"\0", b"\0" * 9, b"a" * 255, b"a" * 256, b"\0" * 300, b"\1\0\0\0\0\0\0\0x", b"\0\0\0\0\0\0\0\1x"]),
)
vocabularies = st.lists(st.one_of(strings, st.just(b"token")), min_size=1, max_size=8).flatmap(
    lambda some: st.integers(1, 60).map(lambda times: some * times)
)


def stored(texts: list[bytes], size: int, order: str) -> bytes:
    return b"".join(struct.pack(LETTERS[size, order], len(text)) + text for text in texts)


@pytest.mark.parametrize("window", [16, 64, 1 << 17])
@settings(max_examples=max(settings.default.max_examples, 100))
@given(vocabularies, st.sampled_from([u32, u64]), st.sampled_from(["little", "big"]), st.binary(max_size=9))
def test_strings_end_where_a_loop_does(
    window: int, texts: list[bytes], number: Number, order: ByteOrder, before: bytes
) -> None:
    file = before + stored(texts, number.itemsize, order)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "WINDOW", window)
        found = StoredStrings(BytesSource(file + b"after"), len(before), len(texts), number, order)
        assert found.find_end() == len(file)
        ends = [*accumulate((number.itemsize + len(text) for text in texts), initial=len(before))][1:]
        for cut in {len(file) - 1, len(before) + (len(file) - len(before)) // 2} - {len(file)}:
            problem = f"expected {len(texts)} strings, found the end of the file in string {sum(end <= cut for end in ends)}$"
            with pytest.raises(TruncatedError, match=problem):
                StoredStrings(BytesSource(file[:cut]), len(before), len(texts), number, order).find_end()
    assert [text.encode("utf-8", "surrogateescape") for text in found] == texts
    assert found[-1].encode("utf-8", "surrogateescape") == texts[-1]


halves = st.sampled_from([b"", b"\xc3", b"\xa9", b"\xc3\xa9", b"a" * 0xA9, b"\xf0\x9f", b"token", b"\xed\xa0\x80"])


@given(st.lists(halves, max_size=4), st.sampled_from([u32, u64]), st.sampled_from(["little", "big"]))
def test_all_strings_are_utf8_if_each_is(texts: list[bytes], number: Number, order: ByteOrder) -> None:
    """A sequence of UTF-8 may seem to go on in the length of the next string."""
    file = stored(texts, number.itemsize, order)
    found = StoredStrings(BytesSource(file), 0, len(texts), number, order)
    assert found.lengths().tolist() == [len(text) for text in texts]
    assert found.are_utf8() == all(text.decode("utf-8", "replace").encode() == text for text in texts)


@pytest.mark.parametrize("order", ["little", "big"])
def test_numbers_by_index_and_slice(order: ByteOrder) -> None:
    """The numbers are those of numpy, and only the bytes between the outermost two are read."""
    asked: list[int] = []

    class Watched(BytesSource):
        def _view(self, start: int, nbytes: int) -> memoryview:
            asked.append(nbytes)
            return super()._view(start, nbytes)

    expected = (np.arange(200_000) * 7).astype(u32.numpy_dtype(order))
    numbers = StoredNumbers(Watched(b"before" + expected.tobytes() + b"after"), 6, len(expected), u32, order)
    assert (numbers[3], numbers[-1], asked) == (21, 199_999 * 7, [4, 4])
    for part in (slice(5, 9), slice(None, None, -1), slice(90, 10, -7), slice(5, 5), slice(-3, None)):
        assert (numbers[part].tobytes(), numbers[part].dtype) == (expected[part].tobytes(), expected.dtype)
    for index in (200_000, -200_001):
        with pytest.raises(IndexError):
            numbers[index]
