"""The catalogue of unusual and bad GLFT files."""

from __future__ import annotations

import struct

from glft_schema import FormatError, LimitError, TruncatedError
from glft_schema.limits import DEFAULTS
from tests.catalogue.cases import CONSISTENCY, DATA, HEADER, METADATA, TENSOR, Large, Read, Refused, cut
from tests.catalogue.gguf_cases import HOSTILE, OWN_FORMATS, PDF, ZIP
from tests.oracles.glft_reference import F16, F32, MAGIC, Q4, Q8, Row, back_to_back, write

ONE = Row("w", [1], F32, bytes(4))
NAN = bytes.fromhex("0100807F")  # a signalling NaN


def lines(metadata: bytes) -> bytes:
    return write(metadata, [], b"")


def one(dims: list[int], dtype: int, data: int, offset: int = 0) -> bytes:
    """Returns a file of one tensor, ``w``, with `data` bytes of payloads."""
    return write(b"", [Row("w", dims, dtype, b"", offset)], bytes(data))


def two(
    first_offset: int, second_offset: int, data: int, dims: tuple[int, int] = (1, 1), dtypes: tuple[int, int] = (F32, F32)
) -> bytes:
    """Returns a file of two tensors, ``a`` and ``b``, with `data` bytes of payloads."""
    rows = [Row("a", [dims[0]], dtypes[0], b"", first_offset), Row("b", [dims[1]], dtypes[1], b"", second_offset)]
    return write(b"", rows, bytes(data))


def header(n_tensors: int, metadata_len: int, rest: bytes = b"") -> bytes:
    return struct.pack("<IIII", MAGIC, 1, n_tensors, metadata_len) + rest


# fmt: off
REFUSED = {
    # the header
    "an empty file": Refused(HEADER, b"", "header -> magic", 0, "expected 4 bytes, found 0: the file is empty", error=TruncatedError),
    "the magic alone": Refused(HEADER, b"TFLG", "header -> version", 4, "expected 4 bytes, found 0", error=TruncatedError,
        shows="CVE-2024-39720"),
    "a header without its last byte": Refused(HEADER, lines(b"")[:15], "header -> metadata_len", 12, "expected 4 bytes, found 3",
        error=TruncatedError),
    "another magic": Refused(HEADER, b"GGML" + bytes(12), "header -> magic", 0, "found b'GGML'" + OWN_FORMATS, shows="HEADER_BAD_MAGIC"),
    "another magic by one bit": Refused(HEADER, b"TFLF" + bytes(12), "header -> magic", 0, "found b'TFLF'" + OWN_FORMATS, shows="HEADER_BAD_MAGIC"),
    "byte-swapped": Refused(HEADER, b"GLFT" + bytes(12), "header -> magic", 0, "expected a little-endian magic, not byte-swapped, found 0x54464C47",
        rule="byte-order"),
    "a PDF before it": Refused(HEADER, PDF + lines(b""), "header -> magic", 0, "found b'%PDF'" + OWN_FORMATS),
    "a ZIP before it": Refused(HEADER, ZIP + lines(b""), "header -> magic", 0,
        r"found b'PK\x03\x04', the start of a zip archive, such as torch.save makes: open_checkpoint and glft convert read it"),
    "version 0": Refused(HEADER, write(b"", [], b"", version=0), "header -> version", 4, "expected 1, found 0", rule="version",
        shows="HEADER_BAD_VERSION_0"),
    "version 2": Refused(HEADER, write(b"", [], b"", version=2), "header -> version", 4, "expected 1, found 2", rule="version",
        shows="HEADER_BAD_VERSION_FUTURE"),
    "version 2^32 - 1": Refused(HEADER, write(b"", [], b"", version=2**32 - 1), "header -> version", 4, "expected 1, found 4294967295",
        rule="version"),
    "more tensors than bytes": Refused(HEADER, header(2**32 - 1, 0, bytes(1 << 17)), "header -> n_tensors", 8,
        "expected at most 10922 (bytes left: 131072, at least 12 each), found 4294967295", error=TruncatedError,
        shows="HEADER_BAD_N_TENSORS CVE-2024-25666 CVE-2024-21836"),
    "more tensors than there are": Refused(HEADER, header(2**32 - 1, 0), "header -> n_tensors", 8,
        "expected at most 0 (bytes left: 0, at least 12 each), found 4294967295", error=TruncatedError),
    "metadata longer than the file": Refused(HEADER, header(0, 2**32 - 1), "metadata", 16, "expected 4294967295 bytes, found 0",
        error=TruncatedError, shows="HEADER_BAD_N_KV CVE-2024-25664 CVE-2024-23605 CVE-2025-0315"),
    # the metadata
    "metadata without =": Refused(METADATA, lines(b"a=1\nb"), "metadata -> line 2", 20, "expected key=value, found b'b'"),
    "metadata without key": Refused(METADATA, lines(b"=1"), "metadata -> line 1", 16, "expected key=value, found b'=1'",
        shows="KV_EMPTY_KEY"),
    "an empty line of metadata": Refused(METADATA, lines(b"a=1\n\nb=2"), "metadata -> line 2", 20, "expected key=value, found b''"),
    "metadata of one newline": Refused(METADATA, lines(b"\n"), "metadata -> line 1", 16, "expected key=value, found b''"),
    "two newlines at the end": Refused(METADATA, lines(b"a=1\n\n"), "metadata -> line 2", 20, "expected key=value, found b''"),
    "a key twice": Refused(METADATA, lines(b"a=1\na=2"), "metadata -> line 2", 20, "expected unique keys, found 'a' again", key="a",
        shows="KV_DUPLICATE_KEY"),
    "a key for terminals twice": Refused(METADATA, lines(b"\x1b[2J=1\n\x1b[2J=2"), "metadata -> line 2", 23,
        r"expected unique keys, found '\x1b[2J' again", key="\x1b[2J"),
    "a value that is not UTF-8": Refused(METADATA, lines(b"a=\xff"), "metadata -> line 1", 18, r"expected UTF-8, found b'\xff'", key="a"),
    "a key that is not UTF-8": Refused(METADATA, lines(b"\xed\xa0\x80=1"), "metadata -> line 1", 16,
        r"expected UTF-8, found b'\xed\xa0\x80=1'"),
    "a line for terminals without =": Refused(METADATA, lines(b"\x1b[31m\r"), "metadata -> line 1", 16,
        r"expected key=value, found b'\x1b[31m\r'"),
    # the descriptors
    "a name longer than the file": Refused(TENSOR, header(1, 0, b"\xff\xff" + b"w" * 10), "descriptors -> 0 -> name", 18,
        "expected 65535 bytes, found 10", error=TruncatedError, shows="CVE-2024-23496 CVE-2024-12055 CVE-2025-66960 mlx#4213"),
    "an empty name": Refused(TENSOR, back_to_back(b"", [Row("", [1], F32, bytes(4))]), "descriptors -> 0 -> name", 16,
        "expected at least 1 character, found ''", "", rule="name"),
    "a name that is not UTF-8": Refused(TENSOR, back_to_back(b"", [ONE]).replace(b"w", b"\xff"), "descriptors -> 0 -> name", 16,
        "expected UTF-8 text, found bytes or characters that are not UTF-8"),
    "65 dims": Refused(TENSOR, back_to_back(b"", [Row("w", [1] * 65, F32, bytes(4))]), "descriptors -> 0 -> dims", 19,
        "expected at most 64 (a limit of glft_schema), found 65", "w", error=LimitError,
        shows="TENSORS_BAD_N_DIMS CVE-2024-21802 gguf-tools#25 openvino#4170"),
    "255 dims, cut off": Refused(TENSOR, header(1, 0, b"\1\0w\xff" + bytes(9)), "descriptors -> 0 -> dims", 19,
        "expected at most 2 (bytes left: 9, at least 4 each), found 255", "w", error=TruncatedError),
    "dims of 2^32 - 1": Refused(TENSOR, one([2**32 - 1] * 2, F32, 0), "descriptors -> 0 -> dims", 19, "the size in bytes of dims [4294967295, 4294967295] overflows 64 bits", "w",
        rule="dims-fit-type", shows="TENSORS_BAD_SHAPE TENSORS_NE_TOO_BIG"),
    "numbers whose bytes overflow": Refused(TENSOR, one([2**31, 2**31], F32, 0), "descriptors -> 0 -> dims", 19,
        "the size in bytes of dims [2147483648, 2147483648] overflows 64 bits", "w", rule="dims-fit-type", shows="TENSORS_NBYTES_TOO_BIG CVE-2026-33298"),
    "2^59 numbers and their scales": Refused(TENSOR, one([2**28, 2**31 - 1, 1], Q8, 0), "data -> 'w' -> scales", 41,
        "expected 536870912 bytes, found 0", "w",
        error=TruncatedError, shows="TENSORS_NBYTES_PAD_WRAP CVE-2026-27940"),
    "sizes beyond 64 bits, and none": Refused(TENSOR, one([2**32 - 1, 2**32 - 1, 0], F16, 0), "descriptors -> 0 -> dims", 19,
        "the size in bytes of dims [4294967295, 4294967295, 0] overflows 64 bits", "w", rule="dims-fit-type"),
    "64 dims of 2^32 - 1": Refused(TENSOR, one([2**32 - 1] * 64, F32, 0), "descriptors -> 0 -> dims", 19,
        "the size in bytes of dims [4294967295, 4294967295, 4294967295, 4294967295, 4294967295, 4294967295, 4294... overflows 64 bits", "w", rule="dims-fit-type"),
    "a type that is none": Refused(TENSOR, one([1], 4, 4), "descriptors -> 0 -> dtype", 24,
        "expected a GLFT type (0 F32, 1 F16, 2 Q8_per_channel, 3 Q4_per_group_64), found 4", "w", shows="TENSORS_BAD_TYPE type-index"),
    "Q8 of one dim": Refused(TENSOR, one([64], Q8, 99), "descriptors -> 0 -> dims", 19,
        "Q8_per_channel: expected at least 2 dims [out, in], none of them 0, found [64]", "w", rule="dims-fit-type"),
    "Q8 without columns": Refused(TENSOR, one([2, 0], Q8, 99), "descriptors -> 0 -> dims", 19, "none of them 0, found [2, 0]", "w",
        rule="dims-fit-type", shows="CVE-2024-8063"),
    "Q4 of 100 columns": Refused(TENSOR, one([3, 100], Q4, 999), "descriptors -> 0 -> dims", 19,
        "Q4_per_group_64: expected `in` to be a multiple of 64, found [3, 100]", "w", rule="dims-fit-type"),
    "the second of two descriptors bad": Refused(TENSOR, two(0, 4, 8, dtypes=(F32, 9)), "descriptors -> 1 -> dtype", 41, "found 9", "b",
        shows="mlx#4179"),
    # parts that contradict each other
    "a name twice": Refused(CONSISTENCY, two(0, 4, 8).replace(b"b", b"a"), "descriptors -> 1 -> name", 33,
        "expected each name once, found the name of row 0 again", "a", rule="names-once", shows="TENSORS_DUPLICATE_NAME"),
    "metadata_len one too many": Refused(CONSISTENCY, header(1, 4, b"a=1" + back_to_back(b"", [ONE])[16:]),
        "descriptors -> 0 -> name", 22, "expected 30464 bytes, found 18", error=TruncatedError),
    "metadata_len one too few": Refused(CONSISTENCY, header(1, 2, b"a=1" + back_to_back(b"", [ONE])[16:]),
        "descriptors -> 0 -> name", 20, "expected 305 bytes, found 20", error=TruncatedError),
    "a tensor too many counted": Refused(CONSISTENCY, header(2, 0, back_to_back(b"", [ONE])[16:] + bytes(8)), "descriptors -> 1 -> name", 33,
        "expected at least 1 character, found ''", "", rule="name"),
    "an offset beyond the file": Refused(CONSISTENCY, one([1], F32, 4, 5), "descriptors -> 0 -> offset", 25,
        "expected at most 4 (the size of the region), found 5", "w", error=TruncatedError, shows="mlx#4136"),
    "an offset of 2^64 - 4": Refused(CONSISTENCY, one([1], F32, 4, 2**64 - 4), "descriptors -> 0 -> offset", 25,
        "expected at most 4 (the size of the region), found 18446744073709551612", "w", error=TruncatedError, shows="CVE-2025-62609"),
    "an offset of 2^64 - 1": Refused(CONSISTENCY, one([1], F32, 4, 2**64 - 1), "descriptors -> 0 -> offset", 25,
        "expected at most 4 (the size of the region), found 18446744073709551615", "w", error=TruncatedError, shows="TENSORS_BAD_OFFSET"),
    "an empty tensor beyond the file": Refused(CONSISTENCY, one([0], F32, 0, 1), "descriptors -> 0 -> offset", 25,
        "expected at most 0 (the size of the region), found 1", "w", error=TruncatedError),
    "payloads that overlap": Refused(CONSISTENCY, two(0, 3, 8), "descriptors -> 1 -> offset", 42,
        "expected no overlap, found bytes shared with tensor 'a'", "b"),
    "a payload inside another": Refused(CONSISTENCY, two(0, 4, 8, (2, 1)), "descriptors -> 1 -> offset", 42,
        "expected no overlap, found bytes shared with tensor 'a'", "b"),
    "one place, two shapes": Refused(CONSISTENCY, two(0, 0, 8, (2, 1)), "descriptors -> 0 -> offset", 25,
        "expected no overlap, found bytes shared with tensor 'b'", "a"),
    "one place, two types": Refused(CONSISTENCY, two(0, 0, 8, (1, 2), (F32, F16)), "descriptors -> 1 -> offset", 42,
        "expected no overlap, found bytes shared with tensor 'a'", "b"),
    "sizes whose sum overflows": Refused(CONSISTENCY, write(b"", [Row(n, [2**29, 2**29], F32, b"", o) for n, o in (("a", 0), ("b", 2**60))], b""),
        "data -> 'a' -> weights", 58, "expected 1152921504606846976 bytes, found 0", "a", error=TruncatedError, shows="DATA_MEM_SIZE_OVERFLOW CVE-2025-53630"),
    # the data
    "no data": Refused(DATA, one([1], F32, 0), "data -> 'w' -> weights", 33, cut(33, 37), "w", error=TruncatedError),
    "a payload cut off": Refused(DATA, one([2, 2], Q8, 7), "data -> 'w' -> codes", 41, cut(44, 45), "w", error=TruncatedError,
        shows="DATA_NOT_ENOUGH_DATA CVE-2026-7482"),
    "a payload cut off after a whole one": Refused(DATA, two(0, 4, 7), "data -> 'b' -> weights", 54, cut(57, 58, "1 of 2 tensors"), "b",
        error=TruncatedError, shows="CVE-2024-32878"),
}

READ = {
    # the header
    "nothing in it": Read(HEADER, lines(b""), shows="HEADER_EMPTY CVE-2025-0312"),
    # the metadata
    "metadata": Read(METADATA, lines(b"a=1\nb=2"), shows="KV_SUCCESS"),
    "metadata that ends with a newline": Read(METADATA, lines(b"a=1\n")),
    "a value with = and a carriage return": Read(METADATA, lines(b"a==\r")),
    "an empty value": Read(METADATA, lines(b"a=")),
    "a key and a text for terminals": Read(METADATA, lines(b"\x1b[2J\x07\r=\x1b]0;owned\x07 \xe2\x80\xae\x85".replace(b"\x85", b"\xc2\x85"))),
    # the descriptors
    "no dims": Read(TENSOR, back_to_back(b"", [Row("w", [], F16, bytes(2))])),
    "a dim of 0, at the end": Read(TENSOR, one([3, 0], F32, 2, 2), shows="TENSORS_ZERO_DIM"),
    "64 dims": Read(TENSOR, back_to_back(b"", [Row("w", [1] * 64, F32, bytes(4))])),
    "the longest name": Read(TENSOR, back_to_back(b"", [Row("n" * 65535, [1], F32, bytes(4))]), shows="CVE-2025-66959"),
    "a name for terminals": Read(TENSOR, back_to_back(b"", [Row(HOSTILE, [1], F32, bytes(4))])),
    "a name that is a path": Read(TENSOR, back_to_back(b"", [Row("../../etc/passwd\0", [1], F32, bytes(4))]),
        shows="CVE-2024-37032 CVE-2024-45436"),
    "tensors of every type": Read(TENSOR, back_to_back(b"", [Row(n, [2, 64], t, b"\x3c" * size) for n, t, size in
        (("a", F32, 512), ("b", F16, 256), ("c", Q8, 132), ("d", Q4, 68))]), shows="TENSORS_SUCCESS"),
    "Q4 of three dims": Read(TENSOR, back_to_back(b"", [Row("w", [2, 2, 32], Q4, bytes(68))])),
    # parts that refer to each other
    "one payload for two tensors": Read(CONSISTENCY, two(0, 0, 4)),
    "another order": Read(CONSISTENCY, two(4, 0, 8)),
    "a gap": Read(CONSISTENCY, two(0, 7, 11)),
    "an empty tensor inside another": Read(CONSISTENCY, two(0, 1, 4, (1, 0))),
    # the data
    "payloads of bytes that count up": Read(DATA, back_to_back(b"", [Row("w", [4], F32, bytes(range(16)))]), shows="DATA_SUCCESS"),
    "only trailing bytes": Read(DATA, write(b"", [], b"\1\2")),
    "a ZIP after the data": Read(DATA, back_to_back(b"", [ONE]) + ZIP + bytes(18)),
    "a PDF after the data": Read(DATA, back_to_back(b"", [ONE]) + PDF),
    "a NaN that signals": Read(DATA, back_to_back(b"", [Row("w", [1], F32, NAN)])),
}


def descriptors(count: int, step: int, dims: tuple[int, ...] = (1,), data: int = 0) -> bytes:
    """Returns a file of `count` F32 tensors, `step` bytes apart."""
    shape, rows = struct.pack(f"<B{len(dims)}IB", len(dims), *dims, F32), []
    for i in range(count):
        name = b"%x" % i
        rows.append(struct.pack("<H", len(name)) + name + shape + struct.pack("<Q", i * step))
    return header(count, 0, b"".join(rows) + bytes(data or count * step + 4))


def named(count: int, name: bytes) -> bytes:
    """Returns a file of `count` tensors with long names."""
    rows = (struct.pack("<H", len(name) + 8) + b"%08x" % i + name + struct.pack("<BBQ", 0, F32, 0) for i in range(count))
    return header(count, 0, b"".join(rows) + bytes(4))


LARGE = {
    "tensors one after another": Large(lambda n: descriptors(n, 4), 20_000),
    "tensors on one range": Large(lambda n: descriptors(n, 0), 5_000),
    "tensors that overlap": Large(lambda n: descriptors(n, 3), 5_000, FormatError, "expected no overlap, found bytes shared with tensor '0'"),
    "tensors without numbers": Large(lambda n: descriptors(n, 0, (0,)), 5_000),
    "tensors of 64 dims": Large(lambda n: descriptors(n, 0, (1,) * 64), 2_000),
    "tensors whose last is cut off": Large(lambda n: descriptors(n, 4, data=4 * n - 1), 5_000, TruncatedError, "4,999 of 5,000 tensors complete"),
    "tensors with the longest names": Large(lambda n: named(n, b"n" * 65527), 64),
    "keys without values": Large(lambda n: lines(b"".join(b"%x=\n" % i for i in range(n))), 1 << 17),
    "a key twice after many": Large(lambda n: lines(b"".join(b"%x=\n" % i for i in range(n)) + b"0=\n"), 1 << 16, FormatError, "expected unique keys"),
    "empty lines": Large(lambda n: lines(b"\n" * n), 1 << 17, FormatError, "line 1: expected key=value, found b''"),
    "one tensor too many": Large(lambda n: descriptors(n, 0, (0,)), DEFAULTS["objects"] + 1, LimitError, "descriptors: expected at most 200000 tensors"),
    "one key too many": Large(lambda n: lines(b"k=\n" * n), DEFAULTS["objects"] + 1, LimitError, "metadata: expected at most 200000 tensors"),
    "millions of keys": Large(lambda n: lines(b"\n" * n), 1 << 22, LimitError, "metadata: expected at most 200000 tensors"),
    "a long value": Large(lambda n: lines(b"k=" + b"v" * n), 1 << 22),
    "a long key": Large(lambda n: lines(b"k" * n + b"="), 1 << 22),
    "a long line without =": Large(lambda n: lines(b"k" * n), 1 << 22, FormatError, "expected key=value, found b'kkk"),
}
# fmt: on
