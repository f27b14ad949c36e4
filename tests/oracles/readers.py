"""The contents of a GGUF file by this package, llama.cpp's C functions and gguf-py, in one form."""

from __future__ import annotations

import signal
import tempfile
import warnings
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from glft_schema import Container, FormatError
from glft_schema.codec.numbers import Number
from glft_schema.codec.rules import GGML
from glft_schema.codec.typed_values import Typed
from glft_schema.files.parsing import check_rules
from glft_schema.formats.gguf import VALUE_TYPES
from tests.oracles import llama_cpp
from tests.oracles.gguf_reference import ARRAY
from tests.tools.posix import resource
from tests.tools.processes import Process, serve

NEVER = "never comes back"
SECONDS = 0.2  # of processor time for gguf-py to read a file
BYTES = 1 << 30  # of address space for gguf-py, beyond the process's own


class Elements(NamedTuple):
    """An array: the type code of its elements, or None if the reader lacks it, and the elements."""

    code: int | None
    values: list[Any]


class Entry(NamedTuple):
    """A key, its type code, and its value: little-endian bytes, a string, or `Elements`."""

    key: bytes
    code: int
    value: bytes | Elements


class Weights(NamedTuple):
    """A tensor; dims as stored, without trailing ones; the offset is into the data region."""

    name: bytes
    dims: tuple[int, ...]
    code: int
    offset: int
    payload: bytes


class Contents(NamedTuple):
    """The contents of a file."""

    entries: list[Entry]
    tensors: list[Weights]


class Verdict(NamedTuple):
    """A reader's result for a file; the last three attributes are ours only.

    Attributes:
        contents: the contents, or None if the file is refused.
        error: the name of the exception, if any.
        rule: the id of the broken rule, if the error has one.
        path: the field that the error names.
        ggml: the ids of broken `ggml` rules, if the file is read.
    """

    contents: Contents | None
    error: str = ""
    rule: str = ""
    path: str = ""
    ggml: frozenset[str] = frozenset()


class Difference(NamedTuple):
    """A field that differs, with both values."""

    of: str
    ours: Any
    theirs: Any


def differences(ours: Contents, theirs: Contents) -> Iterator[Difference]:
    for name, mine, its in (("keys", ours.entries, theirs.entries), ("tensors", ours.tensors, theirs.tensors)):
        for one, other in zip_longest(mine, its):
            if one is None or other is None:
                yield Difference(f"number of {name}", len(mine), len(its))
                break
            yield from (
                Difference(field, *pair) for field, *pair in zip(one._fields, one, other, strict=True) if not same(*pair)
            )


def same(one: Any, other: Any) -> bool:
    """Tells whether two values are equal; the element type of an empty array may be unknown."""
    if isinstance(one, Elements) and isinstance(other, Elements) and not one.values and None in (one.code, other.code):
        return not other.values
    return bool(one == other)


def dims_without_ones(dims: Any) -> tuple[int, ...]:
    """Returns dims without trailing ones, which C does not distinguish from missing dims."""
    sizes = [int(size) for size in dims]
    while sizes and sizes[-1] == 1:
        sizes.pop()
    return tuple(sizes)


def ours(stored: bytes) -> Verdict:
    try:
        file = Container.parse(stored)
    except FormatError as error:
        return Verdict(None, type(error).__name__, error.rule or "", error.path)
    entries = [
        Entry(as_bytes(row["key"]), row["type"].code, as_stored(file.metadata.stored_value(row["key"])))
        for row in file.metadata.rows()
    ]
    tensors = [
        Weights(as_bytes(tensor.name), dims_without_ones(tensor.dims), tensor.type.code, tensor.offset, bytes(tensor.raw))
        for tensor in file.tensors.values()
    ]
    return Verdict(Contents(entries, tensors), ggml=frozenset(finding.rule for finding in check_rules(file, GGML)))


def as_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def as_stored(entry: Typed) -> bytes | Elements:
    """Returns the bits of one of our values."""
    if entry.is_array:
        return Elements(VALUE_TYPES[entry.element_type].code, [as_stored(element) for element in entry.elements()])
    if isinstance(entry.value, str):
        return as_bytes(entry.value)
    number = VALUE_TYPES[entry.type].field
    assert isinstance(number, Number)
    return np.asarray(entry.value).astype(number.numpy_dtype()).tobytes()


def in_llama_cpp(stored: bytes) -> Verdict:
    found = llama_cpp.contents(stored)
    if found is None:
        return Verdict(None)
    entries = [Entry(key, code, Elements(*value) if isinstance(value, tuple) else value) for key, code, value in found[0]]
    tensors = [Weights(name, dims_without_ones(dims), *rest) for name, dims, *rest in found[1]]
    return Verdict(Contents(entries, tensors))


class GgufPy(Process):
    """gguf-py in its own process, with limits on memory and time."""

    def __init__(self) -> None:
        super().__init__("-c", f"from {__name__} import serve_gguf_py; serve_gguf_py()")


class TooLong(BaseException):
    """The end of the time limit. Not an Exception: a reader that catches those would continue."""


def serve_gguf_py() -> None:
    """Reads files from standard input."""
    import gguf

    def ring(*_: object) -> None:
        raise TooLong

    def read(stored: bytes) -> Verdict:
        path.write_bytes(stored)
        try:
            signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
            try:
                return Verdict(contents_of(gguf.GGUFReader(path)))
            finally:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        except (TooLong, MemoryError):
            return Verdict(None, NEVER)
        except Exception as error:
            return Verdict(None, type(error).__name__)

    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + BYTES, resource.RLIM_INFINITY))
    signal.signal(signal.SIGVTALRM, ring)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "file.gguf")
        serve(read)


def contents_of(reader: Any) -> Contents:
    """Returns gguf-py's contents of a file; it flattens nested arrays."""

    def bits(part: Any) -> bytes:
        return bytes(part.astype(part.dtype.newbyteorder("<")).tobytes() if part.dtype != bool else part.tobytes())

    entries = []
    for key, field in list(reader.fields.items())[3:]:  # the first three are the header's
        kinds = [int(kind) for kind in field.types]
        parts = [bits(field.parts[at]) for at in field.data]
        value = Elements(kinds[1] if len(kinds) > 1 else None, parts) if kinds[0] == ARRAY else parts[0]
        entries.append(Entry(key.encode(), kinds[0], value))
    tensors = [
        Weights(
            tensor.name.encode(),
            dims_without_ones(tensor.shape),
            int(tensor.tensor_type),
            int(tensor.data_offset) - int(reader.data_offset),
            tensor.data.tobytes(),
        )
        for tensor in reader.tensors
    ]
    return Contents(entries, tensors)
