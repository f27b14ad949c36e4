"""The catalogue of unusual and bad GGUF files: the tables in docs/background/gguf-readers.md.

llama.cpp's gguf.cpp, payloads included, is expected to read exactly the files that this package
reads and that keep the `ggml` rules. Exceptions are marked by `c`. gguf-py (0.19) reads a file,
raises an exception, or never returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glft_schema import FormatError, LimitError, TruncatedError
from tests.catalogue.cases import NEVER, READS, Large, Read, Refused, Truncated, cut
from tests.oracles.gguf_reference import ARRAY, F32, I8, NUMBERS, Q8_0, STRING, File, Info, nbytes

KEY, ALIGNS = b"k", b"general.alignment"
U8, I32, U32, F64, U64, BOOL = 0, 5, 4, 12, 10, 7


def w(name: bytes = b"w", dims: tuple[int, ...] = (1,), type: int = F32, nbytes: int = 4, offset: int = 0) -> Info:
    return Info(name, list(dims), type, bytes(nbytes), offset)


def entries(*made: tuple[bytes, int, Any]) -> bytes:
    return File(list(made)).bytes()


def tensors(*made: Info) -> bytes:
    return File([], list(made)).bytes()


def placed(data: int, *made: Info) -> bytes:
    """Returns a file of tensors at given offsets in `data` bytes."""
    return File([], list(made), bytes(data)).bytes()


def aligned(alignment: Any, type: int = U32) -> bytes:
    multiple = alignment if isinstance(alignment, int) and alignment > 0 else 32
    return File([(ALIGNS, type, alignment)], [w()], alignment=multiple).bytes()


def nested(depth: int) -> tuple[int, Any]:
    value: tuple[int, Any] = (U8, [1])
    for _ in range(depth - 1):
        value = (ARRAY, [value])
    return value


def changed(file: File, old: bytes, new: bytes) -> bytes:
    """Returns a file without padding, with the only occurrence of `old` replaced."""
    file.padding = b""
    stored = file.bytes()
    assert stored.count(old) == 1
    return stored.replace(old, new)


def u64(number: int) -> bytes:
    return number.to_bytes(8, "little")


HOSTILE = (
    "\x1b[2J\x1b]0;owned\x07\r\n\u202e\u2066\x7f\x85\x9b31m<b>\nFORGED: all is well"  # steers a terminal, or forges a line
)
OWN_FORMATS = "; formats of your own: register_format, or an entry point of glft_schema.formats"
PDF, ZIP = b"%PDF-1.7\n", b"PK\x03\x04"


def every_type() -> bytes:
    """Returns a file with a value and an array of every type."""
    floats = {6: bytes.fromhex("3F800000"), F64: bytes.fromhex("3FF0000000000000")}
    scalars = dict.fromkeys(NUMBERS, 1) | floats | {STRING: b"text"}
    made = [(b"k.%d" % code, code, value) for code, value in scalars.items()]
    return entries(*made, *((b"a.%d" % code, ARRAY, (code, [value] * 3)) for code, value in scalars.items()))


def bad_dims(info: Info, message: str, **rest: Any) -> Refused:
    return Refused(tensors(info), "tensor_infos -> 0 -> dims", 33, message, "w", rule="dims-fit-type", **rest)


def overlap(stored: bytes, offset: int = 82) -> Refused:
    """Returns the case of a second tensor, ``v``, that shares bytes with the first, ``w``."""
    message = "expected no overlap, found bytes shared with tensor 'w'"
    return Refused(stored, "tensor_infos -> 1 -> offset", offset, message, "v", gguf_py=READS)


def bad_alignment(stored: bytes, message: str, rule: str = "alignment", **rest: Any) -> Refused:
    return Refused(stored, "metadata -> 0 -> value", 53, message, key="general.alignment", rule=rule, **rest)


BEYOND_LIMIT = {"rule": "limit-alignment", "error": LimitError, "shows": "oss-security-V-01", "gguf_py": READS, "c": True}
DEEPEST = "metadata -> 0 -> value" + " -> elements -> 0" * 16

# fmt: off
REFUSED = {
    # the header
    "another magic": Refused(File(magic=b"FUGG").bytes(), "header -> magic", 0, "b'GGUF' (GGUF) or a safetensors file, found b'FUGG'" + OWN_FORMATS,
        shows="HEADER_BAD_MAGIC"),
    "a PDF before it": Refused(PDF + File().bytes(), "header -> magic", 0, "found b'%PDF'" + OWN_FORMATS),
    "a ZIP before it": Refused(ZIP + File().bytes(), "header -> magic", 0,
        r"found b'PK\x03\x04', the start of a zip archive, such as torch.save makes: open_checkpoint and glft convert read it"),
    "the magic alone": Truncated(b"GGUF", "header -> byte_order", 4, "expected 4 bytes, found 0",
        shows="CVE-2024-39720", gguf_py="IndexError"),
    "a header without its last byte": Truncated(File(padding=b"").bytes()[:23], "header -> n_kv", 16, "expected 8 bytes, found 7", gguf_py="ValueError"),
    "version 0": Refused(File(version=0).bytes(), "header -> version", 4, "expected 1, 2 or 3, found 0", rule="version",
        shows="HEADER_BAD_VERSION_0"),
    "version 4": Refused(File(version=4).bytes(), "header -> version", 4, "expected 1, 2 or 3, found 4", rule="version",
        shows="HEADER_BAD_VERSION_FUTURE"),
    "version 2^31": Refused(File(version=1 << 31).bytes(), "header -> version", 4, "expected 1, 2 or 3, found 128", rule="version"),
    "more tensors than bytes": Truncated(File(n_tensors=2**64 - 1, padding=bytes(1 << 17)).bytes(), "header -> n_tensors", 8,
        "expected at most 6553 (bytes left: 131072, at least 20 each), found 18446744073709551615",
        shows="HEADER_BAD_N_TENSORS CVE-2024-25666 CVE-2024-21836", gguf_py="IndexError"),
    "more key-values than bytes": Truncated(File(n_kv=2**64 - 1, padding=bytes(1 << 17)).bytes(), "header -> n_kv", 16,
        "expected at most 16384 (bytes left: 131072, at least 8 each), found 18446744073709551615",
        shows="HEADER_BAD_N_KV CVE-2024-25664 CVE-2024-23605", gguf_py="KeyError"),
    # the metadata
    "a key twice": Refused(entries((KEY, U8, 1), (KEY, U8, 1)), "metadata -> 1 -> key", 38,
        "expected each key once, found the key of row 0 again", key="k", rule="keys-once", shows="KV_DUPLICATE_KEY", gguf_py="KeyError"),
    "a key longer than the file": Truncated(changed(File([(KEY, U8, 9)]), u64(1) + KEY, u64(2**64 - 1) + KEY),
        "metadata -> 0 -> key", 24, "expected 18446744073709551615 bytes, found 6",
        shows="KV_BAD_KEY_SIZE CVE-2024-25665 CVE-2024-23496 CVE-2025-66959 mlx#4213", gguf_py="IndexError"),
    "a value of type 13": Refused(entries((KEY, 13, 1)), "metadata -> 0 -> type", 33,
        "12 float64, 8 string, 9 array), found 13", key="k", shows="KV_BAD_TYPE type-index"),
    "a value of type 2^32 - 1": Refused(entries((KEY, 2**32 - 1, 1)), "metadata -> 0 -> type", 33, "found 4294967295", key="k",
        shows="type-index"),
    "a value missing": Truncated(entries((KEY, U64, 1))[:40], "metadata -> 0 -> value", 37, "expected 8 bytes, found 3", key="k", gguf_py="ValueError"),
    "a string longer than the file": Truncated(changed(File([(KEY, STRING, b"abcd")]), u64(4), u64(2**40)),
        "metadata -> 0 -> value", 37, "expected 1099511627776 bytes, found 4", key="k",
        shows="CVE-2024-12055 CVE-2025-0315 CVE-2025-66960", gguf_py=READS),
    "a string cut off after a good one": Truncated(entries((KEY, STRING, b"good"), (b"l", STRING, b"cut off"))[:-30],
        "metadata -> 1 -> value", 62, "expected 8 bytes, found 4", key="l", shows="CVE-2024-32878"),
    "an empty array of type 13": Refused(entries((KEY, ARRAY, (13, []))), "metadata -> 0 -> value -> type", 37, "found 13",
        key="k", gguf_py=READS),
    "an array of 2^40 numbers": Truncated(changed(File([(KEY, ARRAY, (U8, [1, 2]))]), u64(2), u64(2**40)),
        "metadata -> 0 -> value -> n", 41, "expected at most 2 (bytes left: 2, at least 1 each), found 1099511627776", key="k", shows="CVE-2024-25667", gguf_py=NEVER),
    "an array of 2^40 strings": Truncated(changed(File([(KEY, ARRAY, (STRING, [b"a"] * 9))]), u64(9), u64(2**40)),
        "metadata -> 0 -> value -> n", 41, "expected at most 10 (bytes left: 81, at least 8 each), found 1099511627776", key="k", shows="CVE-2024-25668", gguf_py="IndexError"),
    "a string in an array longer than the file": Truncated(changed(File([(KEY, ARRAY, (STRING, [b"a", b"abcde"]))]), u64(5), u64(2**40)),
        "metadata -> 0 -> value -> elements", 49, "expected 2 strings, found the end of the file in string 1", key="k", shows="CVE-2024-21825", gguf_py=READS),
    "an array of doubles without its last byte": Truncated(entries((KEY, ARRAY, (F64, [bytes(8)] * 2)))[:64],
        "metadata -> 0 -> value -> n", 41, "expected at most 1 (bytes left: 15, at least 8 each), found 2", key="k"),
    "arrays nested 17 deep": Refused(entries((KEY, ARRAY, nested(17))), DEEPEST, 229,
        "expected at most 16 levels of arrays (a limit of glft_schema), found 17", key="k", error=LimitError, gguf_py=READS),
    # the tensors' infos
    "a name longer than the file": Truncated(changed(File([], [w()], b""), u64(1) + b"w", u64(2**63) + b"w"), "tensor_infos -> 0 -> name",
        24, "expected 9223372036854775808 bytes, found 25", shows="mlx#4213", gguf_py="IndexError"),
    "65 dims": Refused(tensors(w(dims=(1,) * 65)), "tensor_infos -> 0 -> dims", 33,
        "expected at most 64 (a limit of glft_schema), found 65", "w", error=LimitError, shows="openvino#4170"),
    "2^32 - 1 dims": Truncated(changed(File([], [w()], b""), b"w\1\0\0\0", b"w" + b"\xff" * 4), "tensor_infos -> 0 -> dims", 33,
        "expected at most 2 (bytes left: 20, at least 8 each), found 4294967295", "w", shows="CVE-2024-21802 gguf-tools#25"),
    "a dim of 2^64 - 1": bad_dims(w(dims=(1, 2**64 - 1)), "the size in bytes of dims [1, 18446744073709551615] overflows 64 bits", shows="TENSORS_BAD_SHAPE"),
    "dims whose product overflows": bad_dims(w(dims=(2**32, 2**31)), "the size in bytes of dims [4294967296, 2147483648] overflows 64 bits"),
    "dims whose product is 4 modulo 2^64": bad_dims(w(dims=(4 * (2**31 - 1),) * 2), "the size in bytes of dims [8589934588, 8589934588] overflows 64 bits",
        shows="TENSORS_NE_TOO_BIG"),
    "numbers whose bytes overflow": bad_dims(w(dims=(2**30, 2**31), type=27, nbytes=0), "the size in bytes of dims [1073741824, 2147483648] overflows 64 bits",
        shows="TENSORS_NBYTES_TOO_BIG CVE-2026-33298"),
    "bytes that overflow when padded": bad_dims(w(dims=(4, 2**30 - 1, 2**30 + 1), nbytes=0),
        "the size in bytes of dims [4, 1073741823, 1073741825] overflows 64 bits", shows="TENSORS_NBYTES_PAD_WRAP CVE-2026-27940"),
    "64 dims of 2^64 - 1": bad_dims(w(dims=(2**64 - 1,) * 64),
        "the size in bytes of dims [18446744073709551615, 18446744073709551615, 18446744073709551615, 1844674407... overflows 64 bits"),
    "dims of 0 and 2^60": bad_dims(w(dims=(0, 2**60), nbytes=0), "the size in bytes of dims [0, 1152921504606846976] overflows 64 bits", gguf_py=READS, c=True),
    "rows that are no whole blocks": bad_dims(w(dims=(33,), type=Q8_0), "Q8_0: expected a row length that is a multiple of 32, found 33"),
    "no dims, of a block type": bad_dims(w(dims=(), type=Q8_0), "Q8_0: expected a row length that is a multiple of 32, found 1",
        gguf_py="IndexError"),
    "the second of two infos bad": Refused(tensors(w(), w(b"v", (33,), Q8_0)), "tensor_infos -> 1 -> dims", 66, "found 33", "v",
        rule="dims-fit-type", shows="mlx#4179"),
    # parts that contradict each other
    "a name twice": Refused(tensors(w(), w()), "tensor_infos -> 1 -> name", 57,
        "expected each name once, found the name of row 0 again", "w", rule="names-once", shows="TENSORS_DUPLICATE_NAME"),
    "a tensor too many counted": Refused(File([], [w()], bytes(32), n_tensors=2).bytes(), "tensor_infos -> 1 -> offset", 73,
        "expected no overlap, found bytes shared with tensor 'w'", ""),
    "a key-value too few counted": Truncated(File([(KEY, U8, 1)], [w()], n_kv=0).bytes(), "tensor_infos -> 0 -> offset", 41,
        "expected at most 64 (the size of the region), found 412316860416000", "k"),
    "payloads that overlap": overlap(placed(96, w(dims=(16,)), w(b"v", (8,), offset=32))),
    "a payload inside another": overlap(placed(128, w(dims=(32,)), w(b"v", (8,), offset=64))),
    "one place, two shapes": overlap(placed(32, w(dims=(2, 4)), w(b"v", (8,))), 90),
    "one place, two types": overlap(placed(32, w(dims=(8,)), w(b"v", (8,), type=26))),
    "an offset beyond the file": Truncated(placed(32, w(offset=64)), "tensor_infos -> 0 -> offset", 49,
        "expected at most 32 (the size of the region), found 64", "w", shows="mlx#4136"),
    "an offset of 2^64 - 32": Truncated(placed(32, w(offset=2**64 - 32)), "tensor_infos -> 0 -> offset", 49,
        "found 18446744073709551584", "w", shows="CVE-2025-62609", gguf_py=READS),
    "an offset of 2^64 - 1": Truncated(placed(32, w(offset=2**64 - 1)), "tensor_infos -> 0 -> offset", 49,
        "found 18446744073709551615", "w", shows="TENSORS_BAD_OFFSET", gguf_py=READS),
    "sizes whose sum overflows": Truncated(placed(32, w(dims=(2**58,), type=27), w(b"v", (2**58,), 27, offset=2**61)), "data -> 'w' -> weights", 96,
        "expected 2305843009213693952 bytes, found 32", "w", shows="DATA_MEM_SIZE_OVERFLOW CVE-2025-53630"),
    # the alignment
    "alignment 0": bad_alignment(aligned(0), "expected an integer above 0 for general.alignment, found 0", shows="CVE-2025-0317"),
    "alignment -32": bad_alignment(aligned(-32, I32), "for general.alignment, found -32"),
    "alignment in text": bad_alignment(aligned(b"32", STRING), "for general.alignment, found '32'"),
    "alignment of a bool": bad_alignment(aligned(1, BOOL), "for general.alignment, found 1"),
    "alignment in an array": bad_alignment(aligned((U32, [32]), ARRAY), "for general.alignment, found [32]"),
    "alignment 2^21": bad_alignment(entries((ALIGNS, U32, 1 << 21)),
        "expected at most 1048576 for general.alignment (a limit of glft_schema), found 2097152", **BEYOND_LIMIT),
    "alignment 2^31": bad_alignment(entries((ALIGNS, U32, 1 << 31)), "found 2147483648", **BEYOND_LIMIT),
    # the data
    "data a byte short": Truncated(placed(3, w()), "data -> 'w' -> weights", 64, cut(67, 68), "w",
        shows="DATA_NOT_ENOUGH_DATA CVE-2026-7482"),
    "no data": Truncated(placed(0, w()), "data -> 'w' -> weights", 64, cut(64, 68), "w"),
    "a block without its last byte": Truncated(placed(33, w(dims=(32,), type=Q8_0)), "data -> 'w' -> blocks", 64,
        cut(97, 98), "w"),
    "padding cut off": Truncated(changed(File([], [w(dims=(0,), nbytes=0)]), b"w", b"w"), "padding", 57, "expected 7 bytes, found 0", gguf_py=READS),
}

READ = {
    # the header
    "nothing in it": Read(File().bytes(), shows="HEADER_EMPTY CVE-2025-0312"),
    "no tensors, no padding": Read(File(padding=b"").bytes()),
    "version 1": Read(File([(KEY, STRING, b"v")], [w()], version=1).bytes(), "", "version-2", "HEADER_BAD_VERSION_1", "ValueError"),
    "version 2": Read(File([(KEY, STRING, b"v")], [w()], version=2).bytes()),
    "big-endian": Read(File([(KEY, STRING, b"v")], [w()], order=">").bytes(), "", "little-endian"),
    "big-endian, version 2": Read(File([], [w()], order=">", version=2).bytes(), "big-endian", "little-endian"),
    # the metadata
    "a value of every type": Read(every_type(), shows="KV_SUCCESS"),
    "an empty key": Read(entries((b"", U8, 1)), "key key-empty", "key-empty", "KV_EMPTY_KEY"),
    "a key in capitals": Read(entries((b"Key", U8, 1)), "key"),
    "a key of 65536 bytes": Read(entries((b"k" * 65536, U8, 1)), "key-length"),
    "a key that is not UTF-8": Read(entries((b"k\xff", U8, 1)), "key", gguf_py="UnicodeDecodeError"),
    "a key called GGUF.version": Read(entries((b"GGUF.version", U8, 1)), "key", gguf_py="KeyError"),
    "a key and a text for terminals": Read(entries((HOSTILE.encode(), STRING, HOSTILE.encode())), "key"),
    "a block_count of 0": Read(entries((b"llama.block_count", U32, 0)), shows="CVE-2024-8063"),
    "a number for general.name": Read(entries((b"general.name", U32, 3)), "key-type"),
    "text for general.quantization_version": Read(entries((b"general.quantization_version", STRING, b"2")), "key-type"),
    "an integer for llama.rope.freq_base": Read(entries((b"llama.rope.freq_base", U32, 10000)), "key-type"),
    "a string for tokenizer.ggml.tokens": Read(entries((b"tokenizer.ggml.tokens", STRING, b"a b")), "key-type"),
    "an array of arrays for tokenizer.ggml.scores": Read(entries((b"tokenizer.ggml.scores", ARRAY, nested(2))), "key-type", "nested-array"),
    "a chat template with a filter that Jinja lacks": Read(entries((b"tokenizer.chat_template", STRING, b"{{ messages|uper }}")), "chat-template"),
    "counts of other widths, and one for each layer": Read(entries((b"llama.context_length", U64, 4096), (b"llama.block_count", I32, 2),
        (b"llama.attention.head_count", ARRAY, (U32, [8, 4])), (b"llama.rope.freq_base", F64, bytes(8)), (b"split.block_counts", STRING, b"2"))),
    "a NaN that signals, and an infinity": Read(entries((KEY, 6, bytes.fromhex("7F800001")), (b"f", F64, bytes.fromhex("FFF0000000000000")))),
    "a bool of 2": Read(entries((KEY, BOOL, 2)), "bool"),
    "a bool of 2 in an array": Read(entries((KEY, ARRAY, (BOOL, [1, 2]))), "bool"),
    "a string that is not UTF-8": Read(entries((KEY, STRING, b"\xff")), "utf8"),
    "a string in an array that is not UTF-8": Read(entries((KEY, ARRAY, (STRING, [b"a", b"\xff"]))), "utf8"),
    "an empty array": Read(entries((KEY, ARRAY, (5, [])))),
    "an array in an array": Read(entries((KEY, ARRAY, nested(2))), "", "nested-array"),
    "arrays nested 16 deep": Read(entries((KEY, ARRAY, nested(16))), "", "nested-array"),
    # the tensors' infos
    "tensors of five types": Read(tensors(*(w(b"t%d" % code, (256,), code, nbytes(code, [256])) for code in (F32, I8, Q8_0, 2, 12))),
        shows="TENSORS_SUCCESS"),
    "a name of 64 bytes": Read(tensors(w(b"n" * 64)), "", "name-63", "TENSORS_BAD_NAME_SIZE"),
    "a name of 65 bytes": Read(tensors(w(b"n" * 65)), "name-64", "name-63"),
    "a name of 65,535 bytes": Read(tensors(w(b"n" * 65535)), "name-64", "name-63"),
    "an empty name": Read(tensors(w(b""))),
    "a name that is not UTF-8": Read(tensors(w(b"\xff")), "name-utf8", gguf_py="UnicodeDecodeError"),
    "a name that is half a character": Read(tensors(w(b"\xed\xa0\x80")), "name-utf8", gguf_py="UnicodeDecodeError"),
    "a name that is a path": Read(tensors(w(b"../../etc/passwd\0")), shows="CVE-2024-37032 CVE-2024-45436"),
    "a name for terminals": Read(tensors(w(HOSTILE.encode()))),
    "no dims": Read(tensors(w(dims=()))),
    "5 dims": Read(tensors(w(dims=(1,) * 5)), "dims-4", "dims-4", "TENSORS_BAD_N_DIMS"),
    "a dim of 0": Read(tensors(w(dims=(3, 0), nbytes=0)), shows="TENSORS_ZERO_DIM"),
    "a trailing dim of 1": Read(tensors(w(dims=(1, 1)))),
    "a removed type, 4": Read(tensors(w(type=4)), "type", "type", "", "ValueError"),
    "a type of a fork, 200": Read(tensors(w(type=200)), "type", "type", "TENSORS_BAD_TYPE type-index", "ValueError"),
    # parts that refer to each other
    "a tensor info counted as a key-value": Read(File([(KEY, U8, 1)], [w()], n_kv=2).bytes()),
    "a gap": Read(placed(96, w(), w(b"v", offset=64)), "", "contiguous"),
    "a gap that is not zero": Read(File([], [w(), w(b"v", offset=64)], bytes(32) + b"\1" + bytes(63)).bytes(), "gaps",
        "contiguous"),
    "another order": Read(placed(64, w(offset=32), w(b"v")), "", "contiguous"),
    "one payload for two tensors": Read(placed(32, w(), w(b"v")), "", "contiguous"),
    "an empty tensor inside another": Read(placed(64, w(dims=(16,)), w(b"v", (0,), offset=32)), "", "contiguous"),
    # the alignment
    "alignment 1": Read(aligned(1), "alignment-8", "", "TENSORS_CUSTOM_ALIGN DATA_CUSTOM_ALIGN"),
    "alignment 3": Read(aligned(3), "alignment-8", "alignment-power", "", "ValueError"),
    "alignment 13": Read(aligned(13), "alignment-8", "alignment-power", "KV_BAD_ALIGN TENSORS_BAD_ALIGN DATA_BAD_ALIGN", "ValueError"),
    "alignment 24": Read(aligned(24), "", "alignment-power", "", "ValueError"),
    "alignment of type int32": Read(aligned(32, I32), "alignment-u32", "alignment-u32", "KV_WRONG_TYPE_ALIGN", "ValueError"),
    "alignment of type uint64": Read(aligned(32, U64), "alignment-u32", "alignment-u32", "", "ValueError"),
    "alignment 64, payloads at multiples of 32": Read(File([(ALIGNS, U32, 64)], [w(), w(b"v", offset=32)], bytes(64), alignment=64).bytes(), "offset", "contiguous",
        "TENSORS_INCONSISTENT_ALIGN DATA_INCONSISTENT_ALIGN"),
    "an offset that is not aligned": Read(placed(36, w(offset=4)), "offset", "contiguous"),
    # the data
    "payloads of bytes that count up": Read(tensors(Info(b"w", [2, 4], I8, bytes(range(8))), Info(b"v", [3], F32, bytes(range(12)))),
        shows="DATA_SUCCESS"),
    "the last padding missing": Read(placed(4, w()), "", "data-padded"),
    "bytes after the data": Read(placed(40, w())),
    "a ZIP after the data": Read(placed(32, w()) + ZIP + bytes(18), "gaps"),
    "a PDF after the data": Read(placed(32, w()) + PDF, "gaps"),
    "padding that is not zero": Read(File([], [w()], bytes(32), padding=b"\1" * 7).bytes(), "padding"),
}
# fmt: on


def sized(field: str, number: int, version: int) -> bytes:
    """Returns a small file with a false count or length; at most 2^32 - 1 in version 1."""
    number = min(number, 2**32 - 1) if version == 1 else number
    if field in ("n_tensors", "n_kv"):
        return File([(KEY, U8, 1)], version=version, padding=b"", **{field: number}).bytes()
    counted = {
        "key": File([(b"7 bytes", U8, 1)]),
        "string": File([(KEY, STRING, b"7 bytes")]),
        "array": File([(KEY, ARRAY, (U8, [1] * 7))]),
        "strings": File([(KEY, ARRAY, (STRING, [b""] * 7))]),
        "string in strings": File([(KEY, ARRAY, (STRING, [b"7 bytes"]))]),
        "arrays": File([(KEY, ARRAY, (ARRAY, [(U8, [])] * 7))]),
        "name": File([], [w(b"7 bytes")]),
    }[field]
    counted.version = version
    return changed(counted, counted.size(7), counted.size(number))


# A count or length of a small file -> the path of the error if it is far too large.
COUNTS = {
    "n_tensors": "header -> n_tensors",
    "n_kv": "header -> n_kv",
    "key": "metadata -> 0 -> key",
    "string": "metadata -> 0 -> value",
    "array": "metadata -> 0 -> value -> n",
    "strings": "metadata -> 0 -> value -> n",
    "string in strings": "metadata -> 0 -> value -> elements",
    "arrays": "metadata -> 0 -> value -> n",
    "name": "tensor_infos -> 0 -> name",
}


def infos(count: int, step: int, dims: tuple[int, ...] = (1,), data: int = 0) -> bytes:
    """Returns a file of `count` F32 tensors, `step` bytes apart."""
    return placed(data or count * step + 32, *(w(b"%x" % i, dims, offset=i * step) for i in range(count)))


def array(code: int, values: Sequence[Any]) -> bytes:
    return entries((KEY, ARRAY, (code, values)))


# fmt: off
LARGE = {
    "tensors one after another": Large(lambda n: infos(n, 32), 20_000),
    "tensors that overlap": Large(lambda n: infos(n, 32, (9,)), 5_000, FormatError, "expected no overlap, found bytes shared with tensor '0'"),
    "tensors of 64 dims": Large(lambda n: infos(n, 0, (1,) * 64), 2_000),
    "tensors whose last is cut off": Large(lambda n: infos(n, 32, data=32 * n - 30), 5_000, TruncatedError, "4,999 of 5,000 tensors complete"),
    "key-values of a byte": Large(lambda n: entries(*((b"%x" % i, U8, 0) for i in range(n))), 5_000),
    "key-values of an empty array": Large(lambda n: entries(*((b"%x" % i, ARRAY, (U8, [])) for i in range(n))), 5_000),
    "empty arrays in an array": Large(lambda n: array(ARRAY, [(U8, [])] * n), 5_000),
    "arrays of one array in an array": Large(lambda n: array(ARRAY, [nested(15)] * n), 500),
    "empty strings in an array": Large(lambda n: array(STRING, [b""] * n), 1 << 19),
    "bytes in an array": Large(lambda n: array(U8, bytes(n)), 1 << 20),
    "arrays nested deep": Large(lambda _: array(*nested(100)), 1, LimitError, "expected at most 16 levels of arrays (a limit of glft_schema), found 17"),
    "tokens": Large(lambda n: array(STRING, [b"token %d" % i for i in range(n)]), 1 << 19),
    "a long key": Large(lambda n: entries((b"k" * n, U8, 0)), 1 << 22),
    "a long text": Large(lambda n: entries((KEY, STRING, b"x" * n)), 1 << 22),
    "a long name": Large(lambda n: tensors(w(b"n" * n)), 1 << 22),
}
# fmt: on
