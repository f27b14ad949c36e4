"""Selection of tensors by name or fnmatch pattern."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import TypeVar

from glft_schema.errors import SchemeError, shown
from glft_schema.words import SHOWN, suggestion

T = TypeVar("T")


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


def name_matching(pattern: str, tensors: Mapping[str, object]) -> str:
    """Returns the name that `names_matching` finds. Raises SchemeError if there are several."""
    name, *others = names_matching(pattern, tensors)
    if others:
        found = f"{len(others) + 1}: {', '.join(map(shown, [name, *others][:SHOWN]))}{', ...' * (len(others) >= SHOWN)}"
        raise SchemeError(f"expected one tensor that matches {shown(pattern)}, found {found}")
    return name


def leave_out(tensors: Mapping[str, T], patterns: Iterable[str]) -> dict[str, T]:
    """Returns the tensors that match no pattern. Raises as `names_matching`."""
    patterns = [patterns] if isinstance(patterns, str) else patterns
    excluded = {name for pattern in patterns for name in names_matching(pattern, tensors)}
    return {name: tensor for name, tensor in tensors.items() if name not in excluded}
