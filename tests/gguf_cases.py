"""Unusual and bad GGUF files, with the verdict of every reader: the table behind the one in docs/formats/gguf-readers.md.

llama.cpp's gguf.cpp, payloads included, is expected to take exactly the files that we read and find to keep to `ggml`; where it
does not, the case says so. gguf-py (0.19) reads a file, raises an exception, or never comes back.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.gguf_reference import ARRAY, F32, Q8_0, STRING, File, Info

KEY, ALIGNMENT = b"k", b"general.alignment"
U8, U32, U64, BOOL = 0, 4, 10, 7
READS, NEVER = "reads it", "never comes back"


class Refused(NamedTuple):
    """A file that nobody could say the meaning of: where it is broken, and in which words we say so."""

    stored: bytes
    path: str
    offset: int
    message: str
    gguf_py: str = "ValueError"
    c: bool = False


class Read(NamedTuple):
    """A file that we read: the rules that it breaks, as ids without ``gguf-``."""

    stored: bytes
    spec: str = ""
    ggml: str = ""
    gguf_py: str = READS


def w(name: bytes = b"w", dims: tuple[int, ...] = (1,), type: int = F32, nbytes: int = 4, offset: int = 0) -> Info:
    return Info(name, list(dims), type, bytes(nbytes), offset)


def entries(*made: tuple[bytes, int, Any]) -> bytes:
    return File(list(made)).bytes()


def tensors(*made: Info) -> bytes:
    return File([], list(made)).bytes()


def placed(data: int, *made: Info) -> bytes:
    """Returns a file of tensors at their own offsets in `data` bytes."""
    return File([], list(made), bytes(data)).bytes()


def aligned(alignment: Any, type: int = U32) -> bytes:
    multiple = alignment if isinstance(alignment, int) and alignment else 32
    return File([(ALIGNMENT, type, alignment)], [w()], alignment=multiple).bytes()


def nested(depth: int) -> tuple[int, Any]:
    value: tuple[int, Any] = (U8, [1])
    for _ in range(depth - 1):
        value = (ARRAY, [value])
    return value


def changed(file: File, old: bytes, new: bytes) -> bytes:
    """Returns a file without padding, in which `old`, which is there once, is `new`."""
    file.padding = b""
    stored = file.bytes()
    assert stored.count(old) == 1
    return stored.replace(old, new)


def u64(number: int) -> bytes:
    return number.to_bytes(8, "little")


OVERFLOW = "expected bytes that 64 bits can count, found"

# fmt: off
REFUSED = {
    "another magic": Refused(File(magic=b"FUGG").bytes(), "header -> magic", 0, "or b'GGUF' (GGUF), found b'FUGG'"),
    "version 0": Refused(File(version=0).bytes(), "header -> version", 4, "expected 1, 2 or 3, found 0"),
    "version 4": Refused(File(version=4).bytes(), "header -> version", 4, "expected 1, 2 or 3, found 4"),
    "more tensors than bytes": Refused(File(n_tensors=2**64 - 1, padding=bytes(1 << 17)).bytes(), "tensor_infos", 24,
        "expected 18446744073709551615 rows of at least 20 bytes, found 131072 bytes", "IndexError"),
    "more key-values than bytes": Refused(File(n_kv=2**64 - 1, padding=bytes(1 << 17)).bytes(), "metadata", 24,
        "expected 18446744073709551615 rows of at least 8 bytes, found 131072 bytes", "KeyError"),
    "a key twice": Refused(entries((KEY, U8, 1), (KEY, U8, 1)), "metadata -> 1 -> key", 38,
        "expected each key once, found that of row 0 again", "KeyError"),
    "a key longer than the file": Refused(changed(File([(KEY, U8, 9)]), u64(1) + KEY, u64(2**64 - 1) + KEY), "metadata -> 0 -> key",
        24, "expected 18446744073709551615 bytes, found 6", "IndexError"),
    "a value of type 13": Refused(entries((KEY, 13, 1)), "metadata -> 0 -> type", 33, "12 float64, 8 string, 9 array), found 13"),
    "a string longer than the file": Refused(changed(File([(KEY, STRING, b"abcd")]), u64(4), u64(2**40)), "metadata -> 0 -> value",
        37, "expected 1099511627776 bytes, found 4", READS),
    "an empty array of type 13": Refused(entries((KEY, ARRAY, (13, []))), "metadata -> 0 -> value -> type", 37, "found 13", READS),
    "an array of 2^40 numbers": Refused(changed(File([(KEY, ARRAY, (U8, [1, 2]))]), u64(2), u64(2**40)),
        "metadata -> 0 -> value -> elements", 49, "expected 1099511627776 elements of at least 1 bytes, found 2 bytes", NEVER),
    "an array of 2^40 strings": Refused(changed(File([(KEY, ARRAY, (STRING, [b"a"] * 9))]), u64(9), u64(2**40)),
        "metadata -> 0 -> value -> elements", 49, "expected 1099511627776 elements of at least 8 bytes, found 81 bytes", "IndexError"),
    "a string in an array longer than the file": Refused(
        changed(File([(KEY, ARRAY, (STRING, [b"a", b"abcde"]))]), u64(5), u64(2**40)),
        "metadata -> 0 -> value -> elements", 49, "expected 2 strings, found the end of the file in string 1", READS),
    "arrays nested 17 deep": Refused(entries((KEY, ARRAY, nested(17))), "metadata -> 0 -> value" + " -> elements -> 0" * 16, 229,
        "expected at most 16 levels, a limit of this reader, found 17", READS),
    "alignment 0": Refused(aligned(0), "metadata -> 0 -> value", 53, "expected an integer above 0 for general.alignment, found 0"),
    "alignment in text": Refused(aligned(b"32", STRING), "metadata -> 0 -> value", 53, "for general.alignment, found '32'"),
    "alignment of a bool": Refused(aligned(1, BOOL), "metadata -> 0 -> value", 53, "for general.alignment, found 1"),
    "alignment 2^21": Refused(entries((ALIGNMENT, U32, 1 << 21)), "metadata -> 0 -> value", 53,
        "expected at most 1048576 for general.alignment, a limit of this reader, found 2097152", READS, c=True),
    "a name twice": Refused(tensors(w(), w()), "tensor_infos -> 1 -> name", 57, "expected each name once, found that of row 0 again"),
    "65 dims": Refused(tensors(w(dims=(1,) * 65)), "tensor_infos -> 0 -> dims", 33, "expected at most 64, a limit of this reader, found 65"),
    "2^32 - 1 dims": Refused(changed(File([], [w()], b""), b"w\1\0\0\0", b"w" + b"\xff" * 4), "tensor_infos -> 0 -> dims", 33,
        "expected at most 64, a limit of this reader, found 4294967295"),
    "dims whose product overflows": Refused(tensors(w(dims=(2**32, 2**31))), "tensor_infos -> 0 -> dims", 33, OVERFLOW),
    "dims of 0 and 2^60": Refused(tensors(w(dims=(0, 2**60), nbytes=0)), "tensor_infos -> 0 -> dims", 33, OVERFLOW, READS, c=True),
    "rows that are no whole blocks": Refused(tensors(w(dims=(33,), type=Q8_0)), "tensor_infos -> 0 -> dims", 33,
        "Q8_0: expected rows that are a multiple of 32 long, found 33"),
    "no dims, of a block type": Refused(tensors(w(dims=(), type=Q8_0)), "tensor_infos -> 0 -> dims", 33,
        "Q8_0: expected rows that are a multiple of 32 long, found 1", "IndexError"),
    "payloads that overlap": Refused(placed(96, w(dims=(16,)), w(b"v", (8,), offset=32)), "tensor_infos -> 1 -> offset", 82,
        "expected no overlap, found bytes shared with tensor 'w'", READS),
    "an offset beyond the file": Refused(placed(32, w(offset=64)), "tensor_infos -> 0 -> offset", 49,
        "expected at most 32, the bytes of the region, found 64"),
    "an offset of 2^64 - 32": Refused(placed(32, w(offset=2**64 - 32)), "tensor_infos -> 0 -> offset", 49, "found 18446744073709551584",
        READS),
    "data a byte short": Refused(placed(3, w()), "data -> 'w' -> weights", 64, "expected 4 bytes, found 3"),
    "padding cut off": Refused(changed(File([], [w(dims=(0,), nbytes=0)]), b"w", b"w"), "padding", 57, "expected 7 bytes, found 0", READS),
}

READ = {
    "nothing in it": Read(File().bytes()),
    "no tensors, no padding": Read(File(padding=b"").bytes()),
    "version 1": Read(File([(KEY, STRING, b"v")], [w()], version=1).bytes(), "", "version-2", "ValueError"),
    "version 2": Read(File([(KEY, STRING, b"v")], [w()], version=2).bytes()),
    "big-endian": Read(File([(KEY, STRING, b"v")], [w()], order=">").bytes(), "", "little-endian"),
    "big-endian, version 2": Read(File([], [w()], order=">", version=2).bytes(), "big-endian", "little-endian"),
    "an empty key": Read(entries((b"", U8, 1)), "key key-empty", "key-empty"),
    "a key in capitals": Read(entries((b"Key", U8, 1)), "key"),
    "a key of 65536 bytes": Read(entries((b"k" * 65536, U8, 1)), "key-length"),
    "a key that is not UTF-8": Read(entries((b"k\xff", U8, 1)), "key", "", "UnicodeDecodeError"),
    "a key called GGUF.version": Read(entries((b"GGUF.version", U8, 1)), "key", "", "KeyError"),
    "a bool of 2": Read(entries((KEY, BOOL, 2)), "bool"),
    "a bool of 2 in an array": Read(entries((KEY, ARRAY, (BOOL, [1, 2]))), "bool"),
    "a string that is not UTF-8": Read(entries((KEY, STRING, b"\xff")), "utf8"),
    "a string in an array that is not UTF-8": Read(entries((KEY, ARRAY, (STRING, [b"a", b"\xff"]))), "utf8"),
    "an empty array": Read(entries((KEY, ARRAY, (5, [])))),
    "an array in an array": Read(entries((KEY, ARRAY, nested(2))), "", "nested-array"),
    "arrays nested 16 deep": Read(entries((KEY, ARRAY, nested(16))), "", "nested-array"),
    "alignment 3": Read(aligned(3), "alignment-8", "alignment-power", "ValueError"),
    "alignment 24": Read(aligned(24), "", "alignment-power", "ValueError"),
    "alignment 1": Read(aligned(1), "alignment-8"),
    "alignment of type uint64": Read(aligned(32, U64), "alignment-u32", "alignment-u32", "ValueError"),
    "a name of 64 bytes": Read(tensors(w(b"n" * 64)), "", "name-63"),
    "a name of 65 bytes": Read(tensors(w(b"n" * 65)), "name-64", "name-63"),
    "an empty name": Read(tensors(w(b""))),
    "a name that is not UTF-8": Read(tensors(w(b"\xff")), "name-utf8", "", "UnicodeDecodeError"),
    "no dims": Read(tensors(w(dims=()))),
    "5 dims": Read(tensors(w(dims=(1,) * 5)), "dims-4", "dims-4"),
    "a dim of 0": Read(tensors(w(dims=(3, 0), nbytes=0))),
    "a trailing dim of 1": Read(tensors(w(dims=(1, 1)))),
    "a removed type, 4": Read(tensors(w(type=4)), "type", "type", "ValueError"),
    "a type of a fork, 200": Read(tensors(w(type=200)), "type", "type", "ValueError"),
    "an offset that is not aligned": Read(placed(36, w(offset=4)), "offset", "contiguous"),
    "a gap": Read(placed(96, w(), w(b"v", offset=64)), "", "contiguous"),
    "a gap that is not zero": Read(File([], [w(), w(b"v", offset=64)], bytes(32) + b"\1" + bytes(63)).bytes(), "gaps", "contiguous"),
    "another order": Read(placed(64, w(offset=32), w(b"v")), "", "contiguous"),
    "one payload for two tensors": Read(placed(32, w(), w(b"v")), "", "contiguous"),
    "the last padding missing": Read(placed(4, w()), "", "data-padded"),
    "bytes after the data": Read(placed(40, w())),
    "padding that is not zero": Read(File([], [w()], bytes(32), padding=b"\1" * 7).bytes(), "padding"),
}
# fmt: on
