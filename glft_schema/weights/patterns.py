"""Selection of tensors by name or fnmatch pattern."""

from __future__ import annotations

import difflib
import heapq
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TypeVar

from glft_schema.errors import SchemeError, shown

T = TypeVar("T")
COMPARED = 100  # names that difflib compares, at 0.3 ms each
SIMILAR = 0.6  # the least ratio of a suggestion, difflib's default


def names_matching(pattern: object, tensors: Mapping[str, object]) -> list[str]:
    """Returns `pattern` if it is a tensor's name, otherwise the names it matches (fnmatch).

    Raises:
        SchemeError: if nothing matches; suggests the closest name.
    """
    if not isinstance(pattern, str):
        raise SchemeError(f"expected a name or pattern, found {shown(pattern)}")
    if pattern in tensors:
        return [pattern]
    names = [str(name) for name in tensors]  # keys of a torch file may not be strings
    if matched := [name for name, text in zip(tensors, names, strict=True) if fnmatchcase(text, pattern)]:
        return matched
    raise SchemeError(f"expected a tensor that matches {shown(pattern)}, found none{suggestion(pattern, names)}")


def suggestion(name: object, names: Iterable[str]) -> str:
    """Returns the end of an error about an unknown name: the closest name, if one is close."""
    close = closest(str(name), list(names))
    return f"; did you mean {shown(close)}?" if close is not None else ""


def closest(text: str, names: Sequence[str]) -> str | None:
    """Returns the name that `text` is probably a slip for, or None.

    difflib compares those `COMPARED` names that have the most pairs of letters of the text.
    """
    pairs = {text[i : i + 2] for i in range(len(text) - 1)}

    def shared(name: str) -> float:
        return sum(name[i : i + 2] in pairs for i in range(len(name) - 1)) / (len(text) + len(name))

    if len(names) > COMPARED:
        fitting = [name for name in names if 2 * min(len(text), len(name)) >= SIMILAR * (len(text) + len(name))]
        names = heapq.nlargest(COMPARED, fitting, key=shared)
    return next(iter(difflib.get_close_matches(text, names, n=1, cutoff=SIMILAR)), None)


def leave_out(tensors: Mapping[str, T], patterns: Iterable[str]) -> dict[str, T]:
    """Returns the tensors that match no pattern. Raises as `names_matching`."""
    patterns = [patterns] if isinstance(patterns, str) else patterns
    excluded = {name for pattern in patterns for name in names_matching(pattern, tensors)}
    return {name: tensor for name, tensor in tensors.items() if name not in excluded}
