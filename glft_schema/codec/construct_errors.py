"""Converts construct's errors to errors of this package."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import construct

from glft_schema.codec.trace import without_root
from glft_schema.errors import ClosedError, FormatError, LimitError, quote

TOO_DEEP = "nested too deeply for Python's stack"
# Errors that construct replaces with its own.
HIDDEN = (FormatError, ClosedError, OSError, MemoryError, RecursionError)
# Texts of construct, and of this package.
REWORDED = (
    (r"(?:parsing|building) expected (?:None or )?(.*) but (?:parsed|got) (.*)", r"expected \1, found \2"),
    (r"bytes object of wrong length, expected (.*), found (.*)", r"expected \1 bytes, found \2"),
    (r"given non-bytes value, perhaps unicode\? (.*)", r"expected bytes, found \1"),
    (r"struct .* error during building, given value (.*)", r"expected a number that fits the field, found \1"),
)


@contextmanager
def our_errors() -> Iterator[None]:
    """Turns errors of construct, and RecursionError, into a FormatError with the field's path."""
    outside = sys.exc_info()[1]
    try:
        yield
    except (construct.ConstructError, FormatError, RecursionError) as error:
        ours = _ours(error, outside)
        if ours is error:
            raise
        raise ours from None


@contextmanager
def inside(path: str) -> Iterator[None]:
    """Prefixes the paths of errors in a container with the path of the construct around it."""
    try:
        yield
    except FormatError as error:
        error.path = " -> ".join(part for part in (without_root(path), error.path) if part)
        raise


def _ours(error: Exception, outside: BaseException | None) -> BaseException:
    """Returns the error to raise. `outside` was being handled before, so it is not the cause."""
    path, hidden = without_root(getattr(error, "path", "")), error.__context__
    if isinstance(error, construct.ConstructError) and isinstance(hidden, HIDDEN) and hidden is not outside:
        error = hidden
    if isinstance(error, FormatError):
        error.path = without_root(error.path) or path
        return error
    if isinstance(error, RecursionError):
        return LimitError(TOO_DEEP, path)
    return error if isinstance(error, HIDDEN) else FormatError(_problem(error), path)


def _problem(error: Exception) -> str:
    """Returns the error's text, reworded if construct's would not help."""
    text = " ".join(str(error).rpartition("\n")[2].split())
    for pattern, ours in REWORDED:
        if found := re.fullmatch(pattern, text):
            return found.expand(ours)
    if isinstance(error, construct.StringError):
        return "expected UTF-8 text, found bytes or characters that are not UTF-8"
    return text or quote(error)
