"""Rows of the catalogues of unusual and bad files, `gguf_cases` and `glft_cases`.

`Refused` and `Read` hold the bytes of small files. `Large` makes its file on demand.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from glft_schema import FormatError, TruncatedError

READS, NEVER = "reads it", "never comes back"


class Refused(NamedTuple):
    """A file without a meaning, or past a limit, and the error that reports it.

    Attributes:
        stored: the file.
        path: the field that the error names.
        offset: the start of the wrong or missing bytes.
        message: the end of the error text.
        tensor: the name of the tensor concerned, if it can be read.
        key: the metadata key concerned, if it can be read.
        rule: the id of the broken rule without the format, if any.
        error: the exact class of the error.
        shows: known vulnerabilities and test files of llama.cpp with the same fault.
        gguf_py: gguf-py's result.
        c: whether llama.cpp's C functions read the file.
    """

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


Truncated = partial(Refused, error=TruncatedError)


def cut(found: int, expected: int, tensors: str = "0 of 1 tensor") -> str:
    """Returns the error of a file that lacks its last bytes."""
    part = f"{found} of {expected} bytes ({100 * found / expected:.1f} %)"
    return f"the file is truncated: {part}, {tensors} complete; download the rest"


class Read(NamedTuple):
    """An unusual file that this package reads.

    Attributes:
        stored: the file.
        spec: ids, without the format, of the broken `spec` rules.
        ggml: the same for `ggml`.
        shows: see `Refused`.
        gguf_py: gguf-py's result.
    """

    stored: bytes
    spec: str = ""
    ggml: str = ""
    shows: str = ""
    gguf_py: str = READS


class Large(NamedTuple):
    """A file that is large or declares much.

    Attributes:
        make: size -> the file.
        size: the number of tensors, keys, elements or bytes, see the case's name.
        error: the class of the error, or None if the file is read.
        message: a part of the error text.
    """

    make: Callable[[int], bytes]
    size: int
    error: type[FormatError] | None = None
    message: str = ""
