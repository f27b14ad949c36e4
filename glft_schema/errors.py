"""The errors of this package, and how they are worded.

ValueError
 ├── FormatError            bytes, or a value to be written, that break a rule of the format
 │    ├── TruncatedError    fewer bytes than the file declares: the rest may still arrive
 │    └── LimitError        a limit of this reader, not a rule of the format
 ├── TensorError            a tensor that the asked type cannot hold: choose another type
 ├── OptionError            an argument or option that cannot be followed: change the request
 │    └── SchemeError       a scheme or pattern that cannot be followed: it names no type or no tensor, or lacks an importance
 └── ClosedError            a file that was closed before this access

UserWarning
 ├── QuantizationWarning    weights that a scale rounded to zero has lost
 └── TiedWarning            tensors that are one, stored as two of different types

Every text reads ``where: expected X, found Y``. Whatever comes from a file is shown through `shown`, so that a name in a
hostile file can neither fill a log nor steer a terminal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


def shown(value: object, limit: int = 80) -> str:
    """Returns the repr of `value`, cut to about `limit` characters; control and direction characters come out escaped."""
    if isinstance(value, (str, bytes)) and len(value) > limit:
        return f"{value[: limit - 12]!r}... ({len(value)} in all)"
    text = " ".join(repr(value).split())
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def safe(text: str, limit: int = 100) -> str:
    """Returns text from a file as it can be printed: as it is, or its repr where it is long or has control characters."""
    return text if text.isprintable() and len(text) <= limit else shown(text, limit)


def printable(line: str, limit: int) -> str:
    """Returns a line as it can be printed: what steers terminals or ends lines escaped, and cut to `limit` characters."""
    text = without_controls(line[: limit + 1])
    return text if len(text) <= limit else f"{text[:limit]}... ({len(line)} characters in all)"


def without_controls(text: str, code: Callable[[str], str] = lambda letter: repr(letter)[1:-1], keep: str = "") -> str:
    """Returns text in which each character that cannot be printed, control and direction characters above all, is its code.

    Args:
        text: from a file.
        code: the character -> what stands for it; Python's escape unless given.
        keep: characters that stay as they are, such as newlines.
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter in keep else code(letter) for letter in text)


def one_line(text: str, limit: int = 200) -> str:
    """Returns text of another library as it can be printed: in one line, without control characters, cut short."""
    return repr(" ".join(text.split())[:limit])[1:-1]


class FormatError(ValueError):
    """Bytes that break a rule of the format, or a value that would.

    Attributes:
        problem: what was expected and what was found.
        path: the field, such as ``descriptors -> 3 -> dims``; empty where no field is to blame.
        offset: where the wrong or missing bytes begin, counted from the start of the container; None while building.
        tensor: the name of the tensor concerned, or None.
        file: where the bytes came from, or None.
        rule: the id of the rule that is broken, where it has one.
        key: the key of the metadata's entry concerned, or None.
        limit: the name of the limit that is exceeded, where it is one of `glft_schema.Limits`.
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
        """Returns the same error at another place."""
        moved = type(self)(self.problem, path, offset, tensor, file, self.key if key is None else key)
        moved.rule, moved.limit = self.rule, self.limit
        return moved

    @property
    def text(self) -> str:
        """What it says, without the file."""
        where = []
        if self.tensor is not None:
            where.append(f"tensor {shown(self.tensor)}")
        if self.key is not None:
            where.append(f"key {shown(self.key)}")
        if self.limit is not None:
            where.append(f"limit {self.limit}")
        if self.offset is not None:
            where.append(f"at byte {self.offset}")
        text = f"{self.path}: {self.problem}" if self.path else self.problem
        return f"{text} ({', '.join(where)})" if where else text


class TruncatedError(FormatError):
    """The file ends before the bytes that it declares."""


class LimitError(FormatError):
    """The file may be right, but goes past a limit of this reader; the caller may raise those of `glft_schema.Limits`."""


class TensorError(ValueError):
    """A tensor that cannot be stored as asked.

    Attributes:
        tensor: its name.
        index: the first element concerned, or None where the whole tensor is.
    """

    def __init__(self, problem: str, tensor: str, index: tuple[int, ...] | None = None) -> None:
        super().__init__(problem, tensor, index)
        self.problem = problem
        self.tensor = tensor
        self.index = index

    def __str__(self) -> str:
        place = f" at {list(self.index)}" if self.index is not None else ""
        return f"tensor {shown(self.tensor)}{place}: {self.problem}"


class OptionError(ValueError):
    """An argument or option that cannot be followed."""


class SchemeError(OptionError):
    """A scheme or pattern that cannot be followed: it names no type or no tensor, or needs an importance matrix."""


class ClosedError(ValueError):
    """An access to a file after it was closed."""


class QuantizationWarning(UserWarning):
    """Weights so small that their scale rounds to zero: they are stored as zeros."""


class TiedWarning(UserWarning):
    """Tensors that are one and the same, but get different types: loaded into a tied model, the later one wins."""


@dataclass
class Finding:
    """A rule that a file breaks.

    Attributes:
        rule: its id.
        sets: the rule sets that hold it.
        path: the field.
        problem: what was expected and what was found.
        offset: where the field begins, in bytes from the start of the container.
        building: whether building keeps to the rule, where one of its sets is asked for.
    """

    rule: str
    sets: tuple[str, ...]
    path: str
    problem: str
    offset: int | None = None
    building: bool = True
