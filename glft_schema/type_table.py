"""The types that a format knows, of tensors or of values: found by code, by name, or by themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar


class HasCode(Protocol):
    """What can be in a table: a name, the number on disk, and how it is called on the command line."""

    @property
    def name(self) -> str: ...
    @property
    def code(self) -> int: ...
    @property
    def scheme(self) -> str: ...


T = TypeVar("T", bound=HasCode)


class TypeTable(Generic[T]):
    """Types by code, name, scheme and themselves, in order."""

    def __init__(self, kind: str, *types: T) -> None:
        self.kind = kind
        self._known: dict[object, T] = {}
        for type_ in types:
            self.add(type_)

    def add(self, type_: T) -> None:
        """Adds a type. Raises ValueError where its code, name or scheme is taken."""
        keys = (type_.code, type_.name, type_.scheme, type_)
        if taken := [key for key in keys if key in self._known]:
            raise ValueError(f"expected a code and a name that are free, found {taken[0]!r} of {self._known[taken[0]]}")
        self._known |= dict.fromkeys(keys, type_)

    def __getitem__(self, key: object) -> T:
        """Raises KeyError where there is no such type."""
        if isinstance(key, bool) or key.__hash__ is None:
            raise KeyError(key)
        return self._known[key]

    def __contains__(self, key: object) -> bool:
        return not isinstance(key, bool) and key.__hash__ is not None and key in self._known

    def __iter__(self) -> Iterator[T]:
        return iter(dict.fromkeys(self._known.values()))

    def __str__(self) -> str:
        return f"a {self.kind} type ({', '.join(f'{t.code} {t.name}' for t in self)})"
