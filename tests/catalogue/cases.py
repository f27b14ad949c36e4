"""The rows of the catalogues of unusual and bad files, `tests/catalogue/gguf_cases.py` and `tests/catalogue/glft_cases.py`.

`Refused` and `Read` are small files, whole; `Large` ones are made when they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from glft_schema import FormatError

# What a file is wrong or unusual in: the classes by which fuzzers of weight files weigh their mutations.
HEADER, METADATA, TENSOR, CONSISTENCY, ALIGNMENT, DATA = "header", "metadata", "tensor", "consistency", "alignment", "data"
KINDS = (HEADER, METADATA, TENSOR, CONSISTENCY, ALIGNMENT, DATA)

READS, NEVER = "reads it", "never comes back"


class Refused(NamedTuple):
    """A file that nobody could say the meaning of, or that goes past a limit: where it is broken, and in which words we say so.

    Attributes:
        kind: one of `KINDS`.
        stored: the file.
        path: the field to blame.
        offset: where the wrong or missing bytes begin.
        message: the end of what is said.
        tensor: the tensor concerned, where one is whose name can be read.
        key: the key of the metadata's entry concerned, where one is that can be read.
        rule: the rule's id without the format, where it has one.
        error: what is raised, exactly.
        shows: known vulnerabilities, and llama.cpp's own test files, that it is an example of.
        gguf_py: what gguf-py does with it.
        c: whether llama.cpp's C functions read it.
    """

    kind: str
    stored: bytes
    path: str
    offset: int
    message: str
    tensor: str | None = None
    key: str | None = None
    rule: str | None = None
    error: type[FormatError] = FormatError
    shows: str = ""
    gguf_py: str = "ValueError"
    c: bool = False


class Read(NamedTuple):
    """A file that we read.

    Attributes:
        kind: one of `KINDS`.
        stored: the file.
        spec: the rules of the specification that it breaks, as ids without the format.
        ggml: those of llama.cpp.
        shows: as in `Refused`.
        gguf_py: what gguf-py does with it.
    """

    kind: str
    stored: bytes
    spec: str = ""
    ggml: str = ""
    shows: str = ""
    gguf_py: str = READS


class Large(NamedTuple):
    """A file that is large, or that asks for much.

    Attributes:
        make: its `size` -> the file.
        size: how much of what its name says there is.
        error: what is raised, or None where it is read.
        message: a part of what is said.
    """

    make: Callable[[int], bytes]
    size: int
    error: type[FormatError] | None = None
    message: str = ""
