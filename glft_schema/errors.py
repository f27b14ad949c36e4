"""The exceptions of this package, and the form of their messages.

    ValueError
     ├── FormatError            bytes, or a value to write, that break a rule of the format
     │    ├── TruncatedError    fewer bytes than the file declares, as in an incomplete download
     │    └── LimitError        a limit of glft_schema, not a rule of the format
     ├── TensorError            a tensor that the requested type cannot hold
     ├── OptionError            an invalid argument or option
     │    └── SchemeError       an invalid scheme or pattern, or a missing importance matrix
     └── ClosedError            access to a closed file

    NotImplementedError
     └── UnsupportedError       a declaration that a language, map or strategy cannot express

    UserWarning
     ├── QuantizationWarning    weights lost because their scale rounds to zero
     ├── MetadataWarning        metadata left out, because the target format has none
     ├── PluginWarning          a format or type of another package that cannot be used
     ├── TiedWarning            tied tensors that get different types
     └── SimilarKeyWarning      a new metadata key that resembles a well-known one

Messages read ``path: expected X, found Y``. All text from a file passes through `quote`, so that a
name in a hostile file can neither flood a log nor control a terminal.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from numbers import Number
from typing import Any

__all__ = [
    "ClosedError",
    "FormatError",
    "LimitError",
    "MetadataWarning",
    "OptionError",
    "PluginWarning",
    "QuantizationWarning",
    "SchemeError",
    "SimilarKeyWarning",
    "TensorError",
    "TiedWarning",
    "TruncatedError",
    "UnsupportedError",
]

CALLED = (__name__.partition(".")[0], "contextlib", "torch")  # packages whose lines a warning does not name
MOST_BITS = 1024  # of an integer that is shown; Python refuses to print more than 4300 digits
BRACKETS: dict[type, tuple[str, str]] = {list: ("[", "]"), tuple: ("(", ")"), set: ("{", "}"), frozenset: ("frozenset({", "})")}
PLAIN = (bool, int, float, complex, str, bytes, bytearray, type(None), range, type, type(...), *BRACKETS, dict)
MODULES = (
    "construct.core",
    "construct.expr",
    "numpy",
    "numpy.dtypes",
    "torch",
    "torch.nn.parameter",
    "pathlib",
    "pathlib._local",
)


def quote(value: object, limit: int = 80) -> str:
    """Returns the repr of `value`, escaped and shortened to about `limit` characters.

    Only the items that are shown are visited, since a list, tuple, set or dict may be large, deeply
    nested, or contain itself. Objects of unknown libraries are shown by their type only.
    """
    if isinstance(value, (str, bytes)) and len(value) > limit:
        return f"{value[: limit - 12]!r}... ({len(value)} in all)"
    text = ""
    for piece in _pieces(value, limit):
        text += piece
        if len(text) > limit:
            return f"{text[: limit - 3]}..."
    return text


def _pieces(value: object, limit: int) -> Iterator[str]:
    """Yields the repr of `value` in pieces, none of them empty."""
    brackets = BRACKETS.get(type(value))
    if isinstance(value, dict) and value:
        for i, (key, item) in enumerate(value.items()):
            yield ", " if i else "{"
            yield from _pieces(key, limit)
            yield ": "
            yield from _pieces(item, limit)
        yield "}"
    elif brackets and isinstance(value, Collection) and value:
        for i, item in enumerate(value):
            yield ", " if i else brackets[0]
            yield from _pieces(item, limit)
        yield ",)" if isinstance(value, tuple) and len(value) == 1 else brackets[1]
    elif isinstance(value, tuple) and not _has_own_repr(value) and (fields := getattr(type(value), "_fields", None)):
        yield f"{type(value).__name__}("
        for i, (field, item) in enumerate(zip(fields, value, strict=False)):
            yield f"{', ' if i else ''}{field}="
            yield from _pieces(item, limit)
        yield ")"
    elif isinstance(value, slice):
        yield "slice"
        yield from _pieces((value.start, value.stop, value.step), limit)
    elif isinstance(value, int) and value.bit_length() > MOST_BITS:
        yield f"an integer of {value.bit_length()} bits"
    else:
        yield _leaf(value[: limit + 1] if isinstance(value, (str, bytes, bytearray)) else value)


def _leaf(value: object) -> str:
    """Returns the repr of a value of a known type, otherwise the name of its type. Of numpy's
    numbers, returns the digits."""
    module = type(value).__module__
    is_known = type(value) in PLAIN if module == "builtins" else module in MODULES or module.startswith("glft_schema.")
    if is_known and not getattr(getattr(value, "dtype", None), "hasobject", False):
        try:
            return " ".join((str if module == "numpy" and isinstance(value, Number) else repr)(value).split())
        except Exception:  # an error in another library's repr would hide the error that is reported
            pass
    return f"an object of {type(value).__name__}"


def _has_own_repr(value: object) -> bool:
    """Returns whether this package wrote the repr of a value's type."""
    return getattr(type(value).__repr__, "__module__", "").startswith("glft_schema.")


def safe(text: str, limit: int = 100) -> str:
    """Returns text unchanged if it is printable and short, otherwise its shortened repr."""
    return text if text.isprintable() and len(text) <= limit else quote(text, limit)


def alternatives(texts: Iterable[str]) -> str:
    """Returns texts as a list in a sentence: ``A, B or C``."""
    *others, last = texts
    return f"{', '.join(others)} or {last}" if others else last


def printable(line: str, limit: int) -> str:
    """Returns a line with unprintable characters escaped, cut to `limit` characters."""
    text = without_controls(line[: limit + 1])
    return text if len(text) <= limit else f"{text[:limit]}... ({len(line)} characters in all)"


def without_controls(text: str, code: Callable[[str], str] = lambda letter: repr(letter)[1:-1], keep: str = "") -> str:
    """Returns text with every unprintable character, such as control characters, replaced.

    Args:
        text: from a file.
        code: returns the replacement of a character; by default Python's escape.
        keep: characters to leave unchanged, such as newlines.
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter in keep else code(letter) for letter in text)


def one_line(text: str, limit: int = 200) -> str:
    """Returns another library's message as one printable line, cut to `limit` characters."""
    return repr(" ".join(text.split())[:limit])[1:-1]


def install(extra: str) -> str:
    """Returns the command that adds the libraries of an extra to an installed glft_schema."""
    return f"pip install 'glft_schema[{extra}]'"


class FormatError(ValueError):
    """Bytes that break a rule of the format, or a value that would.

    Attributes:
        problem: what was expected and what was found.
        path: the field, such as ``descriptors -> 3 -> dims``; empty if no field is at fault.
        offset: first wrong or missing byte, from the start of the container; None while building.
        tensor: name of the tensor, or None.
        file: path of the file, or None.
        rule: id of the broken rule, or None.
        key: metadata key, or None.
        limit: name of the exceeded limit in `glft_schema.Limits`, or None.
    """

    rule: str | None = None
    limit: str | None = None

    def __init__(
        self,
        problem: str,
        path: str = "",
        offset: int | None = None,
        tensor: str | None = None,
        file: str | None = None,
        key: str | None = None,
    ) -> None:
        super().__init__(problem, path, offset, tensor, file, key)
        self.problem = problem
        self.path = path
        self.offset = offset
        self.tensor = tensor
        self.file = file
        self.key = key

    def __str__(self) -> str:
        return self.text if self.file in (None, "<bytes>") else f"{self.text} in {safe(str(self.file), 1000)}"

    def at(self, path: str, offset: int | None, tensor: str | None, file: str | None, key: str | None = None) -> FormatError:
        """Returns the same error with another location."""
        moved = type(self)(self.problem, path, offset, tensor, file, self.key if key is None else key)
        moved.rule, moved.limit = self.rule, self.limit
        return moved

    @property
    def text(self) -> str:
        """The message without the file."""
        names = {"tensor": self.tensor, "key": self.key}
        location = [f"{kind} {quote(name)}" for kind, name in names.items() if name is not None]
        location += [f"limit {self.limit}"] if self.limit is not None else []
        location += [f"at byte {self.offset}"] if self.offset is not None else []
        text = f"{self.path}: {self.problem}" if self.path else self.problem
        return f"{text} ({', '.join(location)})" if location else text


class TruncatedError(FormatError):
    """The file has fewer bytes than it declares."""


class LimitError(FormatError):
    """The file exceeds a limit of glft_schema. It may be valid; see `glft_schema.Limits`."""


class TensorError(ValueError):
    """A tensor that cannot be stored as requested.

    Attributes:
        tensor: its name.
        index: the first element at fault, or None for the whole tensor.
    """

    def __init__(self, problem: str, tensor: str, index: tuple[int, ...] | None = None) -> None:
        super().__init__(problem, tensor, index)
        self.problem = problem
        self.tensor = tensor
        self.index = index

    def __str__(self) -> str:
        place = f" at {list(self.index)}" if self.index is not None else ""
        return f"tensor {quote(self.tensor)}{place}: {self.problem}"


class OptionError(ValueError):
    """An invalid argument or option."""


class SchemeError(OptionError):
    """A scheme or pattern that names no type or tensor, or lacks an importance matrix."""


class ClosedError(ValueError):
    """Access to a closed file."""


class UnsupportedError(NotImplementedError):
    """A declaration that a language, map or strategy cannot express."""


def warn(message: str, category: type[Warning]) -> None:
    """Issues a warning that names the line which called the package."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in CALLED:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


class QuantizationWarning(UserWarning):
    """Weights so small that their scale rounds to zero; they are stored as zeros."""


class MetadataWarning(UserWarning):
    """Metadata that is left out, because the target format has none."""


class PluginWarning(UserWarning):
    """A format or tensor type of another package that cannot be loaded."""


class TiedWarning(UserWarning):
    """Tied tensors that get different types. In a tied model the last one loaded wins."""


class SimilarKeyWarning(UserWarning):
    """A new metadata key that differs from a well-known one by one letter, or only in case."""


Repair = tuple[str, str, Any]


@dataclass
class Finding:
    """A rule that a file breaks.

    Attributes:
        rule: its id.
        sets: the rule sets that contain it.
        path: the field.
        problem: what was expected and what was found.
        offset: first byte of the field, from the start of the container.
        building: whether building enforces the rule, if one of its sets is requested.
        file: name of the file, if a set of files was checked as a whole.
        name: the tensor or metadata key, if the rule is about one that the file may lack.
        repair: the change that repairs it, if one is known: ``("set", key, value)``, or
            ``("rename", tensor, new name)``.
        tensor: name of the tensor whose row has the field, or None.
        key: the metadata key whose entry has the field, or None.
    """

    rule: str
    sets: tuple[str, ...]
    path: str
    problem: str
    offset: int | None = None
    building: bool = True
    file: str | None = None
    name: str = ""
    repair: Repair | None = None
    tensor: str | None = None
    key: str | None = None

    @property
    def text(self) -> str:
        """The problem and its location, as in an error message. It states each name once."""
        name = self.tensor or self.key or ""
        is_stated = bool(name) and (quote(name) in self.problem or f" {name}" in self.problem)
        tensor, key = (None, None) if is_stated else (self.tensor, self.key)
        return FormatError(self.problem, self.path, self.offset, tensor, key=key).text
