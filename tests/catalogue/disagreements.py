"""Known disagreements between readers of GGUF: the table in docs/background/gguf-readers.md.

llama.cpp is compared with this package under the `ggml` rules, gguf-py with reading alone. Two
readers agree about a file if both refuse it, with any error, or if both read it and find the same
keys, types, values, names, dims, offsets and payloads. A disagreement belongs to the first row that
explains it. Each row has an example that no earlier row explains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tests.catalogue.gguf_cases import READ, REFUSED, entries, tensors, w
from tests.oracles.gguf_reference import ARRAY, STRING
from tests.oracles.readers import NEVER, Difference, Elements, Verdict, Weights, differences

LLAMA_CPP, GGUF_PY = "llama.cpp", "gguf-py"
NUMPY = (0, 1, 24, 25, 26, 27, 28)  # codes of types that numpy has: F32, F16, integers, F64
COUNTABLE = 1 << 59  # numbers of 16 bytes, counted in 63 bits


class Disagreement(NamedTuple):
    """A file that one of two readers refuses, or that both read with a `difference`."""

    ours: Verdict
    theirs: Verdict
    difference: Difference | None = None


class Row(NamedTuple):
    """A class of files about which a reader disagrees with this package.

    Attributes:
        files: the property that the files share.
        we: what this package does.
        they: what the reader does.
        why: the cause.
        explains: tells whether a disagreement belongs to the class.
        example: a file of the class.
    """

    files: str
    we: str
    they: str
    why: str
    explains: Callable[[Disagreement], bool]
    example: bytes


def refused(error: str = "", rule: str = "", start: str = "", end: str = "") -> Callable[[Disagreement], bool]:
    """Returns a test for files that we refuse with this error, and the other reader reads."""

    def explains(found: Disagreement) -> bool:
        ours = found.ours
        if ours.contents is not None or found.theirs.contents is None:
            return False
        return error in ("", ours.error) and rule in ("", ours.rule) and ours.path.startswith(start) and ours.path.endswith(end)

    return explains


def read(error: str, holds: Callable[[Verdict], bool]) -> Callable[[Disagreement], bool]:
    """Returns a test for files that we read and the other reader refuses with `error`."""
    return lambda found: found.ours.contents is not None and found.theirs.error == error and holds(found.ours)


def differs(of: tuple[str, ...], holds: Callable[[Difference], bool]) -> Callable[[Disagreement], bool]:
    """Returns a test for files that both read, but with another value of one of these fields."""
    return lambda found: found.difference is not None and found.difference.of in of and holds(found.difference)


def is_cut_at_nul(found: Difference) -> bool:
    """Tells whether their text is ours, cut at its first NUL."""
    if isinstance(found.ours, Elements):
        return [value.partition(b"\0")[0] for value in found.ours.values] == found.theirs.values
    return bool(found.ours.partition(b"\0")[0] == found.theirs)


def is_bool_as_1(found: Difference) -> bool:
    """Tells whether their values are ours, with bools above 1 read as 1."""
    ours, theirs = ((v.values if isinstance(v, Elements) else [v]) for v in (found.ours, found.theirs))
    if len(ours) != len(theirs):
        return False
    return all(mine == its or mine > b"\1" == its for mine, its in zip(ours, theirs, strict=True))


def flattened(value: Elements) -> list[object]:
    return [inner for element in value.values for inner in (flattened(element) if isinstance(element, Elements) else [element])]


def is_flattened(found: Difference) -> bool:
    """Tells whether their array is ours, flattened."""
    return isinstance(found.ours, Elements) and found.ours.code == ARRAY and flattened(found.ours) == found.theirs.values


def has_large_shape_without_numbers(found: Disagreement) -> bool:
    """Tells whether we refuse a tensor with a dim of 0 for the product of its other dims."""
    dims = [tensor.dims for tensor in tensors_of(found.theirs)]
    large = any(0 in sizes and math.prod(max(size, 1) for size in sizes) >= COUNTABLE for sizes in dims)
    return large and refused(rule="gguf-dims-fit-type")(found)


def tensors_of(ours: Verdict) -> list[Weights]:
    return ours.contents.tensors if ours.contents else []


def has(names: Callable[[bytes], bool]) -> Callable[[Verdict], bool]:
    """Returns a test for files with a key or tensor name that meets a condition."""

    def holds(ours: Verdict) -> bool:
        keys = [entry.key for entry in ours.contents.entries] if ours.contents else []
        return any(names(name) for name in (*keys, *(tensor.name for tensor in tensors_of(ours))))

    return holds


def is_not_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return True
    return False


def has_type(*codes: int) -> Callable[[Verdict], bool]:
    return lambda ours: any(tensor.code in codes for tensor in tensors_of(ours))


def breaks(*rules: str) -> Callable[[Verdict], bool]:
    return lambda ours: bool(ours.ggml.intersection(rules))


def is_longer(found: Difference) -> bool:
    """Tells whether their payload is ours and more, in blocks of 40 bytes instead of 36."""
    return found.theirs[: len(found.ours)] == found.ours and len(found.theirs) * 36 == len(found.ours) * 40


def is_false_count(ours: Verdict) -> bool:
    """Tells whether we refuse a count of rows or elements, or a field in them."""
    return ours.contents is None and ours.path.startswith(("header -> n_", "metadata", "tensor_infos"))


def is_outside_numpy(tensor: Weights) -> bool:
    """Tells whether a tensor has no dims and a type that numpy lacks."""
    return not tensor.dims and tensor.code not in NUMPY


# fmt: off
OUR_LIMITS = (
    Row("an alignment above 2^20", "refuse it, as a limit", "reads it",
        "padding would make a file of a few bytes one of gigabytes when it is written again",
        refused(rule="gguf-limit-alignment"), REFUSED["alignment 2^21"].stored),
    Row("a tensor without numbers, whose other dims have a product of 2^59 or more", "refuse it", "reads it",
        "torch and numpy hold only some of these shapes, and ggml ends the process for others such as [2^40, 0, 2^40]",
        has_large_shape_without_numbers, REFUSED["dims of 0 and 2^60"].stored),
)

ROWS: dict[str, tuple[Row, ...]] = {
    LLAMA_CPP: (
        *OUR_LIMITS,
        Row("a NUL in a key, name or string", "keep it", "ends the text before it", "its functions hand out texts of C",
            differs(("key", "name", "value"), is_cut_at_nul), entries((b"a\0b", STRING, b"c\0d"))),
        Row("a bool that is neither 0 nor 1", "keep the byte; `gguf-bool` of `spec`", "takes it for 1",
            "C++ makes a bool of it", differs(("value",), is_bool_as_1), READ["a bool of 2"].stored),
    ),
    GGUF_PY: (
        Row("version 1", "read it", "`ValueError`", "it knows versions 2 and 3",
            read("ValueError", breaks("gguf-version-2")), READ["version 1"].stored),
        Row("a key or the name of a tensor that is not UTF-8", "keep the bytes", "`UnicodeDecodeError`",
            "it decodes them as it reads",
            read("UnicodeDecodeError", has(is_not_utf8)), READ["a key that is not UTF-8"].stored),
        Row("a key that is called `GGUF.version`, `GGUF.tensor_count` or `GGUF.kv_count`", "read it", "`KeyError`",
            "it keeps these fields among the keys",
            read("KeyError", has({b"GGUF.version", b"GGUF.tensor_count", b"GGUF.kv_count"}.__contains__)),
            READ["a key called GGUF.version"].stored),
        Row("an alignment that is no power of two, or not of type uint32", "read it; rules of `spec` and `ggml`",
            "`ValueError`", "it refuses what llama.cpp refuses",
            read("ValueError", breaks("gguf-alignment-power", "gguf-alignment-u32")), READ["alignment 24"].stored),
        Row("a tensor of a type that is not known", "copy it as bytes; `gguf-type`", "`ValueError`",
            "it has to know how long a payload is",
            read("ValueError", breaks("gguf-type")), READ["a type of a fork, 200"].stored),
        Row("a tensor of type Q2_0", "read it", "`ValueError`", "the type is newer than gguf-py 0.19",
            read("ValueError", has_type(42)), tensors(w(type=42, dims=(64,), nbytes=18))),
        Row("a tensor of type Q8_1", "read it", "`ValueError`, or other bytes", "it takes a block for 40 bytes; they are 36",
            lambda found: read("ValueError", has_type(9))(found) or differs(("payload",), is_longer)(found),
            tensors(w(type=9, dims=(32,), nbytes=36))),
        Row("a tensor without dims, of a type that numpy has not", "read it", "`IndexError`", "it looks for the last dim",
            read("IndexError", lambda ours: any(map(is_outside_numpy, tensors_of(ours)))),
            tensors(w(type=30, dims=(), nbytes=2))),
        Row("an array of arrays", "keep it", "the innermost elements in a row", "it flattens nested arrays",
            differs(("value",), is_flattened), READ["an array in an array"].stored),
        Row("a count that claims more elements than there are bytes", "refuse it", "never comes back",
            "it makes a view for each element, an empty one where the file has ended",
            lambda found: found.theirs.error == NEVER and is_false_count(found.ours),
            REFUSED["an array of 2^40 numbers"].stored),
        Row("a string in the metadata that goes beyond the file", "refuse it", "reads what is there",
            "it does not look at lengths",
            refused("TruncatedError", start="metadata -> "), REFUSED["a string longer than the file"].stored),
        Row("an empty array of a type that there is not", "refuse it", "reads it", "it looks at the type of elements only",
            refused(start="metadata -> ", end=" -> type"), REFUSED["an empty array of type 13"].stored),
        Row("arrays nested 17 deep or deeper", "refuse it, as a limit", "reads it", "it goes as deep as Python does",
            refused("LimitError", start="metadata -> ", end="elements -> 0"), REFUSED["arrays nested 17 deep"].stored),
        *(row._replace(why="as of llama.cpp") for row in OUR_LIMITS),
        Row("payloads that overlap, or begin outside of the file", "refuse it", "reads it",
            "it does not compare payloads; the sum that is their place wraps around at 2^64",
            refused(start="tensor_infos -> ", end=" -> offset"), REFUSED["payloads that overlap"].stored),
        Row("the end of the file in the padding before the payloads", "refuse it", "reads it", "no tensor has bytes there",
            refused("TruncatedError", start="padding"), REFUSED["padding cut off"].stored),
    ),
}
# fmt: on


def disagreements(reader: str, ours: Verdict, theirs: Verdict) -> Iterator[Disagreement]:
    we_read = ours.contents is not None and not (reader == LLAMA_CPP and ours.ggml)
    if theirs.error == NEVER or we_read != (theirs.contents is not None):
        yield Disagreement(ours, theirs)
    elif we_read:
        assert ours.contents is not None
        assert theirs.contents is not None
        yield from (Disagreement(ours, theirs, difference) for difference in differences(ours.contents, theirs.contents))


def row_of(reader: str, found: Disagreement) -> Row | None:
    return next((row for row in ROWS[reader] if row.explains(found)), None)
