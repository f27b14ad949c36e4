"""Tensors chosen by name or by pattern."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import TypeVar

from glft_schema.errors import SchemeError, shown

T = TypeVar("T")


def names_matching(pattern: object, tensors: Mapping[str, object]) -> list[str]:
    """Returns the names that `pattern` stands for: the tensor of that name alone, or else those that it matches (fnmatch).

    Raises:
        SchemeError: where there is none; the text suggests the closest name.
    """
    if not isinstance(pattern, str):
        raise SchemeError(f"expected a name or pattern, found {shown(pattern)}")
    if pattern in tensors:
        return [pattern]
    names = [str(name) for name in tensors]  # a torch file may have keys that are none
    if matched := [name for name, text in zip(tensors, names, strict=True) if fnmatchcase(text, pattern)]:
        return matched
    close = difflib.get_close_matches(pattern, names, n=1)
    hint = f"; did you mean {shown(close[0])}?" if close else ""
    raise SchemeError(f"expected a tensor that matches {shown(pattern)}, found none{hint}")


def leave_out(tensors: Mapping[str, T], patterns: Iterable[str]) -> dict[str, T]:
    """Returns the tensors that no pattern stands for. Raises SchemeError for a pattern that stands for none."""
    patterns = [patterns] if isinstance(patterns, str) else patterns
    left_out = {name for pattern in patterns for name in names_matching(pattern, tensors)}
    return {name: tensor for name, tensor in tensors.items() if name not in left_out}
