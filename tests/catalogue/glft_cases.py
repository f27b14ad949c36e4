"""The catalogue of unusual and bad GLFT files."""

from __future__ import annotations

import struct

from glft_schema import FormatError, LimitError
from tests.catalogue.cases import Large, Read, Refused, Truncated, cut
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
    "an empty file": Truncated(b"", "header -> magic", 0, "expected 4 bytes, found 0: the file is empty"),
    "the magic alone": Truncated(b"TFLG", "header -> version", 4, "expected 4 bytes, found 0"),
    "a header without its last byte": Truncated(lines(b"")[:15], "header -> metadata_len", 12, "expected 4 bytes, found 3"),
    "another magic": Refused(b"GGML" + bytes(12), "header -> magic", 0, "found b'GGML'" + OWN_FORMATS),
    "byte-swapped": Refused(b"GLFT" + bytes(12), "header -> magic", 0, "expected a little-endian magic, not byte-swapped, found 0x54464C47",
        rule="byte-order"),
    "a PDF before it": Refused(PDF + lines(b""), "header -> magic", 0, "found b'%PDF'" + OWN_FORMATS),
    "a ZIP before it": Refused(ZIP + lines(b""), "header -> magic", 0,
        r"found b'PK\x03\x04', the start of a zip archive, such as torch.save makes: open_checkpoint and glft convert read it"),
    "version 0": Refused(write(b"", [], b"", version=0), "header -> version", 4, "expected 1, found 0", rule="version"),
    "version 2": Refused(write(b"", [], b"", version=2), "header -> version", 4, "expected 1, found 2", rule="version"),
    "more tensors than bytes": Truncated(header(2**32 - 1, 0, bytes(1 << 17)), "header -> n_tensors", 8,
        "expected at most 10922 (bytes left: 131072, at least 12 each), found 4294967295"),
    "metadata longer than the file": Truncated(header(0, 2**32 - 1), "metadata", 16, "expected 4294967295 bytes, found 0"),
    # the metadata
    "metadata without =": Refused(lines(b"a=1\nb"), "metadata -> line 2", 20, "expected key=value, found b'b'"),
    "an empty line of metadata": Refused(lines(b"a=1\n\nb=2"), "metadata -> line 2", 20, "expected key=value, found b''"),
    "metadata of one newline": Refused(lines(b"\n"), "metadata -> line 1", 16, "expected key=value, found b''"),
    "a line for terminals without =": Refused(lines(b"\x1b[31m\r"), "metadata -> line 1", 16,
        r"expected key=value, found b'\x1b[31m\r'"),
    # the descriptors
    "a name longer than the file": Truncated(header(1, 0, b"\xff\xff" + b"w" * 10), "descriptors -> 0 -> name", 18,
        "expected 65535 bytes, found 10"),
    "an empty name": Refused(back_to_back(b"", [Row("", [1], F32, bytes(4))]), "descriptors -> 0 -> name", 16,
        "expected at least 1 character, found ''", "", rule="name"),
    "a name that is not UTF-8": Refused(back_to_back(b"", [ONE]).replace(b"w", b"\xff"), "descriptors -> 0 -> name", 16,
        "expected UTF-8 text, found bytes or characters that are not UTF-8"),
    "65 dims": Refused(back_to_back(b"", [Row("w", [1] * 65, F32, bytes(4))]), "descriptors -> 0 -> dims", 19,
        "expected at most 64 (a limit of glft_schema), found 65", "w", error=LimitError),
    "255 dims, cut off": Truncated(header(1, 0, b"\1\0w\xff" + bytes(9)), "descriptors -> 0 -> dims", 19,
        "expected at most 2 (bytes left: 9, at least 4 each), found 255", "w"),
    "dims of 2^32 - 1": Refused(one([2**32 - 1] * 2, F32, 0), "descriptors -> 0 -> dims", 19, "the size in bytes of dims [4294967295, 4294967295] overflows 64 bits", "w",
        rule="dims-fit-type"),
    "2^59 numbers and their scales": Truncated(one([2**28, 2**31 - 1, 1], Q8, 0), "data -> 'w' -> scales", 41,
        "expected 536870912 bytes, found 0", "w"),
    "sizes beyond 64 bits, and none": Refused(one([2**32 - 1, 2**32 - 1, 0], F16, 0), "descriptors -> 0 -> dims", 19,
        "the size in bytes of dims [4294967295, 4294967295, 0] overflows 64 bits", "w", rule="dims-fit-type"),
    "a type that is none": Refused(one([1], 4, 4), "descriptors -> 0 -> dtype", 24,
        "expected a GLFT type (0 F32, 1 F16, 2 Q8_per_channel, 3 Q4_per_group_64), found 4", "w"),
    "Q8 of one dim": Refused(one([64], Q8, 99), "descriptors -> 0 -> dims", 19,
        "Q8_per_channel: expected at least 2 dims [out, in], none of them 0, found [64]", "w", rule="dims-fit-type"),
    "Q8 without columns": Refused(one([2, 0], Q8, 99), "descriptors -> 0 -> dims", 19, "none of them 0, found [2, 0]", "w",
        rule="dims-fit-type"),
    "Q4 of 100 columns": Refused(one([3, 100], Q4, 999), "descriptors -> 0 -> dims", 19,
        "Q4_per_group_64: expected `in` to be a multiple of 64, found [3, 100]", "w", rule="dims-fit-type"),
    # parts that contradict each other
    "a name twice": Refused(two(0, 4, 8).replace(b"b", b"a"), "descriptors -> 1 -> name", 33,
        "expected each name once, found the name of row 0 again", "a", rule="names-once"),
    "metadata_len one too many": Truncated(header(1, 4, b"a=1" + back_to_back(b"", [ONE])[16:]),
        "descriptors -> 0 -> name", 22, "expected 30464 bytes, found 18"),
    "an offset beyond the file": Truncated(one([1], F32, 4, 5), "descriptors -> 0 -> offset", 25,
        "expected at most 4 (the size of the region), found 5", "w"),
    "an offset of 2^64 - 4": Truncated(one([1], F32, 4, 2**64 - 4), "descriptors -> 0 -> offset", 25,
        "expected at most 4 (the size of the region), found 18446744073709551612", "w"),
    "an empty tensor beyond the file": Truncated(one([0], F32, 0, 1), "descriptors -> 0 -> offset", 25,
        "expected at most 0 (the size of the region), found 1", "w"),
    "payloads that overlap": Refused(two(0, 3, 8), "descriptors -> 1 -> offset", 42,
        "expected no overlap, found bytes shared with tensor 'a'", "b"),
    "one place, two types": Refused(two(0, 0, 8, (1, 2), (F32, F16)), "descriptors -> 1 -> offset", 42,
        "expected no overlap, found bytes shared with tensor 'a'", "b"),
    # the data
    "a payload cut off": Truncated(one([2, 2], Q8, 7), "data -> 'w' -> codes", 41, cut(44, 45), "w"),
    "a payload cut off after a whole one": Truncated(two(0, 4, 7), "data -> 'b' -> weights", 54, cut(57, 58, "1 of 2 tensors"), "b"),
}

READ = {
    # the header
    "nothing in it": Read(lines(b"")),
    # the metadata
    "metadata that ends with a newline": Read(lines(b"a=1\n")),
    "a value with = and a carriage return": Read(lines(b"a==\r")),
    "a key and a text for terminals": Read(lines(b"\x1b[2J\x07\r=\x1b]0;owned\x07 \xe2\x80\xae\x85".replace(b"\x85", b"\xc2\x85"))),
    # the descriptors
    "no dims": Read(back_to_back(b"", [Row("w", [], F16, bytes(2))])),
    "a dim of 0, at the end": Read(one([3, 0], F32, 2, 2)),
    "64 dims": Read(back_to_back(b"", [Row("w", [1] * 64, F32, bytes(4))])),
    "the longest name": Read(back_to_back(b"", [Row("n" * 65535, [1], F32, bytes(4))])),
    "a name for terminals": Read(back_to_back(b"", [Row(HOSTILE, [1], F32, bytes(4))])),
    "a name that is a path": Read(back_to_back(b"", [Row("../../etc/passwd\0", [1], F32, bytes(4))])),
    "tensors of every type": Read(back_to_back(b"", [Row(n, [2, 64], t, b"\x3c" * size) for n, t, size in
        (("a", F32, 512), ("b", F16, 256), ("c", Q8, 132), ("d", Q4, 68))])),
    "Q4 of three dims": Read(back_to_back(b"", [Row("w", [2, 2, 32], Q4, bytes(68))])),
    # parts that refer to each other
    "one payload for two tensors": Read(two(0, 0, 4)),
    "another order": Read(two(4, 0, 8)),
    "a gap": Read(two(0, 7, 11)),
    "an empty tensor inside another": Read(two(0, 1, 4, (1, 0))),
    # the data
    "payloads of bytes that count up": Read(back_to_back(b"", [Row("w", [4], F32, bytes(range(16)))])),
    "only trailing bytes": Read(write(b"", [], b"\1\2")),
    "a NaN that signals": Read(back_to_back(b"", [Row("w", [1], F32, NAN)])),
}


def descriptors(count: int, step: int) -> bytes:
    """Returns a file of `count` F32 tensors, `step` bytes apart."""
    rows = (struct.pack("<H", 5) + b"%05x" % i + struct.pack("<BIBQ", 1, 1, F32, i * step) for i in range(count))
    return header(count, 0, b"".join(rows) + bytes(count * step + 4))


LARGE = {
    "tensors one after another": Large(lambda n: descriptors(n, 4), 20_000),
    "tensors that overlap": Large(lambda n: descriptors(n, 3), 5_000, FormatError, "expected no overlap, found bytes shared with tensor '00000'"),
    "keys without values": Large(lambda n: lines(b"".join(b"%x=\n" % i for i in range(n))), 1 << 17),
    "a key twice after many": Large(lambda n: lines(b"".join(b"%x=\n" % i for i in range(n)) + b"0=\n"), 1 << 16, FormatError, "expected unique keys"),
    "millions of keys": Large(lambda n: lines(b"\n" * n), 1 << 22, LimitError, "metadata: expected at most 200000 tensors"),
    "a long key": Large(lambda n: lines(b"k" * n + b"="), 1 << 22),
    "a long line without =": Large(lambda n: lines(b"k" * n), 1 << 22, FormatError, "expected key=value, found b'kkk"),
}
# fmt: on
