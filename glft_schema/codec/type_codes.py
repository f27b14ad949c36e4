"""Tables of types by code and name, and the field that stores a type's code."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar

import construct

from glft_schema.codec.context import Context
from glft_schema.codec.fast_rows import Reader, fast_reader
from glft_schema.errors import FormatError, shown


class HasCode(Protocol):
    """An entry of a table: its name, and its number on disk."""

    @property
    def name(self) -> str: ...
    @property
    def code(self) -> int: ...


T = TypeVar("T", bound=HasCode)

_TABLES: dict[str, TypeTable[Any]] = {}  # the first of each kind, for pickle


class TypeTable(Generic[T]):
    """Types in order, by code, by name (also in lower case) and by themselves.

    The first table of each kind can be pickled, by its kind.

    Attributes:
        kind: a noun for errors, such as ``GGUF value``.
        unknown: makes a type for a code that is not in the table; None to refuse these codes.
    """

    def __init__(self, kind: str, *types: T, unknown: Callable[[int], T] | None = None) -> None:
        self.kind = kind
        self.unknown = unknown
        _TABLES.setdefault(kind, self)
        self._known: dict[object, T] = {}
        for type_ in types:
            self.add(type_)

    def add(self, type_: T) -> None:
        """Adds a type. Raises ValueError if its code or name is in use."""
        keys = (type_.code, type_.name, type_.name.lower(), type_)
        if taken := [key for key in keys if key in self._known]:
            raise ValueError(f"expected an unused code and an unused name, found {taken[0]!r}, used by {self._known[taken[0]]}")
        self._known |= dict.fromkeys(keys, type_)

    def __getitem__(self, key: object) -> T:
        """Returns a type. Raises KeyError if there is none."""
        try:
            if not isinstance(key, bool):
                return self._known[key]
        except (KeyError, TypeError):  # not in the table, or not hashable
            code = key if isinstance(key, int) else getattr(key, "code", None)
            if self.unknown and isinstance(code, int) and code >= 0 and key in (code, self.unknown(code)):
                return self.unknown(code)
        raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        try:
            self[key]
        except KeyError:
            return False
        return True

    def __iter__(self) -> Iterator[T]:
        return iter(dict.fromkeys(self._known.values()))

    def __reduce__(self) -> tuple[Any, ...]:
        if _TABLES[self.kind] is not self:
            raise TypeError(f"cannot pickle this table: it is not the first of {self.kind} types")
        return _table, (self.kind,)

    def __str__(self) -> str:
        return f"a {self.kind} type ({', '.join(f'{t.code} {t.name}' for t in self)})"


def _table(kind: str) -> TypeTable[Any]:
    return _TABLES[kind]


def by_table(type_: HasCode) -> tuple[Any, ...]:
    """Returns a type's ``__reduce__``: its code in its table. Raises TypeError if it is in none."""
    for table in _TABLES.values():
        if type_ in table:
            return operator.getitem, (table, type_.code)
    raise TypeError(f"cannot pickle the type {type_.name}: it is not in any table of types")


class TypeCode(construct.Adapter):
    """The code of a type of `table`.

    Parses into the type, builds from the type, its name or its code. Size: that of `integer`.
    """

    def __init__(self, integer: construct.Construct, table: Any) -> None:
        super().__init__(integer)
        self.table = table
        self.refuses = () if table.unknown else ("an unknown type code",)

    def _decode(self, code: int, context: Context, path: str) -> Any:
        return self._known(code, path)

    def _fast_reader(self, context: Context) -> Reader:
        code_reader, types = fast_reader(self.subcon, context), self.table

        def read(stored: bytes, at: int, context: Context) -> tuple[Any, int]:
            code, end = code_reader(stored, at, context)
            return types[code], end

        return read

    def _build(self, obj: Any, stream: Any, context: Context, path: str) -> Any:
        type_ = self._known(obj, path)
        self.subcon._build(type_.code, stream, context, path)
        return type_

    def _known(self, key: Any, path: str) -> Any:
        try:
            return self.table[key]
        except KeyError:
            raise FormatError(f"expected {self.table}, found {shown(key)}", path) from None
