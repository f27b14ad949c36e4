"""What readers of GGUF make of a file, in one form, so that it can be compared: ours, llama.cpp's C functions, and gguf-py."""

from __future__ import annotations

import pickle
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from glft_schema import Container, FormatError
from glft_schema.codec.numbers import Number
from glft_schema.codec.rules import GGML, SPEC
from glft_schema.codec.typed_values import Array, StoredValue
from glft_schema.files.parsing import check_rules
from tests.oracles import llama_cpp
from tests.oracles.gguf_reference import ARRAY

ROOT = Path(__file__).parents[2]
NEVER = "never comes back"
SECONDS = 0.2  # of processor time, for what never comes back
BYTES = 1 << 30  # that gguf-py may take beyond what it has


class Elements(NamedTuple):
    """An array: the code of the type of its elements, None where the reader does not say, and these."""

    code: int | None
    values: list[Any]


class Entry(NamedTuple):
    """A key and its value: the code of its type, and the bytes of a number or string, lowest first, or `Elements`."""

    key: bytes
    code: int
    value: bytes | Elements


class Weights(NamedTuple):
    """A tensor: dims as stored, but for ones at the end; the offset into the region of payloads; the payload."""

    name: bytes
    dims: tuple[int, ...]
    code: int
    offset: int
    payload: bytes


class Contents(NamedTuple):
    """All that a file says."""

    entries: list[Entry]
    tensors: list[Weights]


class Verdict(NamedTuple):
    """What a reader makes of a file.

    Attributes:
        contents: what is in it; None where it is refused.
        error: the name of what is raised, where something is.
        rule: of ours, the rule that is broken, where the error has one.
        path: of ours, the field that is to blame.
        spec: of ours, the ids of the rules of `spec` that a file breaks that is read.
        ggml: of ours, those of `ggml`.
    """

    contents: Contents | None
    error: str = ""
    rule: str = ""
    path: str = ""
    spec: frozenset[str] = frozenset()
    ggml: frozenset[str] = frozenset()


class Difference(NamedTuple):
    """Where the contents differ: what of them, and both values."""

    of: str
    ours: Any
    theirs: Any


def differences(ours: Contents, theirs: Contents) -> Iterator[Difference]:
    """Yields how what two readers found in a file differs."""
    for name, mine, its in (("keys", ours.entries, theirs.entries), ("tensors", ours.tensors, theirs.tensors)):
        for one, other in zip_longest(mine, its):
            if one is None or other is None:
                yield Difference(f"number of {name}", len(mine), len(its))
                break
            yield from (
                Difference(field, *pair) for field, *pair in zip(one._fields, one, other, strict=True) if not same(*pair)
            )


def same(one: Any, other: Any) -> bool:
    """Tells whether two values are equal; of an array without elements a reader need not know the type."""
    if isinstance(one, Elements) and isinstance(other, Elements) and not one.values and None in (one.code, other.code):
        return not other.values
    return bool(one == other)


def dims_without_ones(dims: Any) -> tuple[int, ...]:
    """Returns dims without the ones at their end, which C does not tell from none."""
    sizes = [int(size) for size in dims]
    while sizes and sizes[-1] == 1:
        sizes.pop()
    return tuple(sizes)


# Ours


def ours(stored: bytes) -> Verdict:
    """Reads a file with this package."""
    try:
        file = Container.parse(stored)
    except FormatError as error:
        return Verdict(None, type(error).__name__, error.rule or "", error.path)
    entries = [Entry(as_bytes(key), (entry := file.metadata.stored(key)).type.code, as_stored(entry)) for key in file.metadata]
    tensors = [
        Weights(as_bytes(tensor.name), dims_without_ones(tensor.dims), tensor.dtype.code, tensor.offset, bytes(tensor.raw))
        for tensor in file.tensors.values()
    ]
    spec, ggml = (frozenset(finding.rule for finding in check_rules(file, rules)) for rules in (SPEC, GGML))
    return Verdict(Contents(entries, tensors), spec=spec, ggml=ggml)


def as_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def as_stored(entry: StoredValue) -> bytes | Elements:
    """Returns a value of ours by its bits."""
    if isinstance(entry.value, Array):
        inner = entry.value.type
        return Elements(inner.code, [as_stored(StoredValue(inner, value)) for value in entry.value.values])
    if isinstance(entry.value, str):
        return as_bytes(entry.value)
    assert isinstance(entry.type.field, Number)
    return np.asarray(entry.value).astype(entry.type.field.numpy_dtype()).tobytes()


# llama.cpp


def in_llama_cpp(stored: bytes) -> Verdict:
    """Reads a file with llama.cpp's gguf.cpp."""
    found = llama_cpp.contents(stored)
    if found is None:
        return Verdict(None)
    entries = [Entry(key, code, Elements(*value) if isinstance(value, tuple) else value) for key, code, value in found.entries]
    tensors = [Weights(name, dims_without_ones(dims), *rest) for name, dims, *rest in found.tensors]
    return Verdict(Contents(entries, tensors))


# gguf-py


class GgufPy:
    """gguf-py in a process of its own, which may neither take too much memory nor go on for ever."""

    def __enter__(self) -> GgufPy:
        program = [sys.executable, "-c", f"from {__name__} import serve; serve()"]
        self._process = subprocess.Popen(program, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def __call__(self, stored: bytes) -> Verdict:
        """Reads a file."""
        assert self._process.stdin
        assert self._process.stdout
        send(self._process.stdin, stored)
        verdict = receive(self._process.stdout)
        assert isinstance(verdict, Verdict)
        return verdict


def send(stream: BinaryIO, value: object) -> None:
    pickled = pickle.dumps(value)
    stream.write(struct.pack("<Q", len(pickled)) + pickled)
    stream.flush()


def receive(stream: BinaryIO) -> object:
    size = stream.read(8)
    return pickle.loads(stream.read(*struct.unpack("<Q", size))) if size else None


class TooLong(BaseException):
    """The time is over. No Exception: whoever catches those would go on."""


def serve() -> None:
    """Reads files that come in, until none comes."""
    import gguf

    def ring(*_: object) -> None:
        raise TooLong

    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + BYTES, resource.RLIM_INFINITY))
    signal.signal(signal.SIGVTALRM, ring)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "file.gguf")
        while (stored := receive(sys.stdin.buffer)) is not None:
            assert isinstance(stored, bytes)
            path.write_bytes(stored)
            try:
                signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
                try:
                    verdict = Verdict(contents_of(gguf.GGUFReader(path)))
                finally:
                    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            except (TooLong, MemoryError):
                verdict = Verdict(None, NEVER)
            except Exception as error:
                verdict = Verdict(None, type(error).__name__)
            send(sys.stdout.buffer, verdict)


def contents_of(reader: Any) -> Contents:
    """Returns what gguf-py found. Of nested arrays it has the innermost elements, one after another."""

    def bits(part: Any) -> bytes:
        return bytes(part.astype(part.dtype.newbyteorder("<")).tobytes() if part.dtype != bool else part.tobytes())

    entries = []
    for key, field in list(reader.fields.items())[3:]:  # after its own, version and counts
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
