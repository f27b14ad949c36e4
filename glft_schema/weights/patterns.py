"""Selection of tensors by name or fnmatch pattern."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import TypeVar

from glft_schema.errors import SchemeError, quote
from glft_schema.words import SHOWN, suggestion

T = TypeVar("T")


def names_matching(pattern: object, tensors: Mapping[str, object]) -> list[str]:
    """Returns `pattern` if it is a tensor's name, otherwise the names it matches (fnmatch).

    Raises:
        SchemeError: if nothing matches; suggests the closest name.
    """
    if not isinstance(pattern, str):
        raise SchemeError(f"expected a name or pattern, found {quote(pattern)}")
    if pattern in tensors:
        return [pattern]
    names = [str(name) for name in tensors]  # keys of a torch file may not be strings
    if matched := [name for name, text in zip(tensors, names, strict=True) if fnmatchcase(text, pattern)]:
        return matched
    hint = suggestion(pattern, names)
    if not hint and (containing := [name for name in names if pattern.lower() in name.lower()]):
        hint = f"; names that contain it: {first_names(containing)}"
    raise SchemeError(f"expected a tensor that matches {quote(pattern)}, found none{hint}")


def name_matching(pattern: str, tensors: Mapping[str, object]) -> str:
    """Returns the name that `names_matching` finds. Raises SchemeError if there are several."""
    name, *others = names_matching(pattern, tensors)
    if others:
        found = f"{len(others) + 1}: {first_names([name, *others])}"
        raise SchemeError(f"expected one tensor that matches {quote(pattern)}, found {found}")
    return name


def first_names(names: list[str]) -> str:
    """Returns the first names, for messages."""
    return f"{', '.join(map(quote, names[:SHOWN]))}{', ...' * (len(names) > SHOWN)}"


def all_matching(patterns: Iterable[str], tensors: Mapping[str, object]) -> set[str]:
    """Returns the names that any pattern matches. Raises as `names_matching`."""
    patterns = [patterns] if isinstance(patterns, str) else patterns
    return {name for pattern in patterns for name in names_matching(pattern, tensors)}


def leave_out(tensors: Mapping[str, T], patterns: Iterable[str]) -> dict[str, T]:
    """Returns the tensors that match no pattern. Raises as `names_matching`."""
    excluded = all_matching(patterns, tensors)
    return {name: tensor for name, tensor in tensors.items() if name not in excluded}


def keep(tensors: Mapping[str, T], patterns: Iterable[str]) -> dict[str, T]:
    """Returns the tensors that match a pattern, or all without patterns. Raises as
    `names_matching`."""
    kept = all_matching(patterns, tensors) if patterns else tensors
    return {name: tensor for name, tensor in tensors.items() if name in kept}
