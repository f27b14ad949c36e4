"""Where construct's errors become ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import construct

from glft_schema.errors import FormatError, shown
from glft_schema.trace import plain_path


@contextmanager
def building() -> Iterator[None]:
    """Turns whatever building raises into a FormatError with the field's path, but lets the system's errors through."""
    try:
        yield
    except construct.ConstructError as error:
        if isinstance(error.__context__, OSError):  # construct hides a full disk behind an error of its own
            raise error.__context__ from None
        raise as_format_error(error) from error
    except FormatError as error:
        error.path = plain_path(error.path)
        raise


@contextmanager
def inside(path: str) -> Iterator[None]:
    """Puts the path of the construct around a container before that of an error in it."""
    try:
        yield
    except FormatError as error:
        error.path = " -> ".join(part for part in (plain_path(path), error.path) if part)
        raise


def as_format_error(error: Exception) -> FormatError:
    """Returns a FormatError that says what `error` does; the one behind it, where construct hides one of ours."""
    cause = error.__context__ if isinstance(error.__context__, FormatError) else error
    if isinstance(cause, FormatError):
        return cause.at(plain_path(cause.path), cause.offset, cause.tensor, cause.file)
    return FormatError(_problem(error), plain_path(getattr(error, "path", "")))


def _problem(error: Exception) -> str:
    """Returns what `error` says, in a sentence of ours where construct's would not help."""
    if isinstance(error, construct.StringError):
        return "expected UTF-8 text, found bytes or characters that are not"
    if isinstance(error, construct.FormatFieldError):
        return f"expected a number that fits the field, found {str(error).rpartition('given value ')[2]}"
    return " ".join(str(error).rpartition("\n")[2].split()) or shown(error)
