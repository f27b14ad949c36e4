"""Tables of types by code and name, and the field that stores a type's code."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from threading import RLock
from typing import Any, Generic, Protocol, TypeVar

import construct

from glft_schema.codec.context import Context
from glft_schema.codec.rules import ALL_BITS, Fault
from glft_schema.display import Part, format_count, records_table, with_display
from glft_schema.errors import FormatError, quote
from glft_schema.words import MissingKeyError

Code = int | str


class HasCode(Protocol):
    """An entry of a table: its name, and its code on disk unless the table gives another."""

    @property
    def name(self) -> str: ...
    @property
    def code(self) -> Code: ...


T = TypeVar("T", bound=HasCode)

_TABLES: dict[str, TypeTable[Any]] = {}  # the first of each kind, for pickle


@with_display
class TypeTable(Generic[T]):
    """Types in order, found by code, by name (also in lower case) or by the type itself.

    ``TypeTable("toy", F32, {7: F16})`` gives F32 its own code and F16 the code 7. Only the first
    table of each kind can be pickled, as the name of its kind.

    Attributes:
        kind: a noun for errors, such as ``GGUF value``.
        unknown: makes a type for a code that is not in the table; None to refuse these codes.
        more: called for the first code or name that is not in the table; may add types.
    """

    def __init__(
        self,
        kind: str,
        *types: T | Mapping[Any, T],
        unknown: Callable[[int], T] | None = None,
        more: Callable[[], object] | None = None,
    ) -> None:
        self.kind = kind
        self.unknown = unknown
        self.more = more
        self._lock = RLock()
        _TABLES.setdefault(kind, self)
        self._known: dict[object, T] = {}
        self._codes: dict[T, Code] = {}
        for types_ in types:
            for code, type_ in types_.items() if isinstance(types_, Mapping) else [(types_.code, types_)]:
                self.add(type_, code)

    def add(self, type_: T, code: Code | None = None) -> None:
        """Adds a type, by default with its own code. Raises ValueError if its code or name is in
        use."""
        code = type_.code if code is None else code
        keys = (code, type_.name, type_.name.lower(), type_)
        if taken := [key for key in keys if key in self._known]:
            raise ValueError(f"expected an unused code and an unused name, found {taken[0]!r}, used by {self._known[taken[0]]}")
        self._known |= dict.fromkeys(keys, type_)
        self._codes[type_] = code

    def __getitem__(self, key: object) -> T:
        """Returns a type. Raises KeyError if there is none."""
        try:
            if not isinstance(key, bool):
                return self._known[key]
        except (KeyError, TypeError):  # not in the table, or not hashable
            if isinstance(key, (int, str)) and key in self._with_more():
                return self._known[key]
            code = key if isinstance(key, int) else getattr(key, "code", None)
            if self.unknown and isinstance(code, int) and code >= 0 and key in (code, self.unknown(code)):
                return self.unknown(code)
        raise MissingKeyError(key, self._known) from None

    def _with_more(self) -> Mapping[object, T]:
        """Returns the types by key, after `more` has been called once."""
        with self._lock:  # waits for other threads, but not for lookups by `loader` itself
            loader, self.more = self.more, None
            if loader:
                loader()
        return self._known

    def named(self, name: object) -> T | None:
        """Returns the type of a name in any case, or None. Calls `more` for an unknown name."""
        key = name.lower() if isinstance(name, str) else None
        return self._known.get(key) or self._with_more().get(key)

    def of_code(self, code: object) -> T:
        """Returns the type of a code, not of a name. Raises KeyError if there is none."""
        if self.code_of(type_ := self[code]) != code:
            raise KeyError(code)
        return type_

    def __contains__(self, key: object) -> bool:
        try:
            self[key]
        except KeyError:
            return False
        return True

    def __iter__(self) -> Iterator[T]:
        return iter(self._codes)

    def code_of(self, type_: T) -> Code:
        """Returns the code of a type in this table, or the code of an unknown type."""
        return self._codes.get(type_, type_.code)

    def by_code(self) -> list[tuple[Code, T]]:
        """Returns (code, type) in order of the codes; if these are texts, in the table's order."""
        entries = [(self.code_of(type_), type_) for type_ in self]
        return entries if any(isinstance(code, str) for code, _ in entries) else sorted(entries, key=lambda entry: entry[0])

    def __reduce__(self) -> tuple[Any, ...]:
        if _TABLES[self.kind] is not self:
            raise TypeError(f"cannot pickle this table: it is not the first of {self.kind} types")
        return _table, (self.kind,)

    def _display(self) -> Iterator[Part]:
        yield format_count([*self], f"{self.kind} type")
        yield records_table("types", [{"name": type_.name, "code": code, **_sizes(type_)} for code, type_ in self.by_code()])

    def __str__(self) -> str:
        return f"a {self.kind} type ({', '.join(map(self._entry, self))})"

    def _entry(self, type_: T) -> str:
        code = self.code_of(type_)
        return type_.name if code == type_.name else f"{code} {type_.name}"


def _sizes(type_: Any) -> dict[str, Any]:
    """Returns the columns of a type of tensors; none for other types."""
    if not hasattr(type_, "least_row"):
        return {}
    row = type_.least_row << 20  # numbers that are stored for a whole row do not count
    bits = 8 * type_.nbytes((1, row)) / row
    return {"encoder": type_.has_encoder, "rows are multiples of": type_.least_row, "bits per weight": bits}


def _table(kind: str) -> TypeTable[Any]:
    return _TABLES[kind]


def by_table(type_: HasCode) -> tuple[Any, ...]:
    """Returns a type's ``__reduce__``: its code in a table. Raises TypeError if it is in none."""
    for table in _TABLES.values():
        if type_ in table:
            return operator.getitem, (table, table.code_of(type_))
    raise TypeError(f"cannot pickle the type {type_.name}: it is not in any table of types")


class TypeCode(construct.Subconstruct):
    """The code of a type of `table`.

    Parses into the type, builds from the type, its name or its code. Size: that of `code`.

    Args:
        code: the declaration of the number or text.
        table: the `TypeTable`.

    Raises:
        TypeError: if `table` is not a `TypeTable`.
    """

    def __init__(self, code: construct.Construct, table: Any) -> None:
        super().__init__(code)
        if not isinstance(table, TypeTable):
            raise TypeError(f"expected the types as TypeTable('toy', {{1: F32}}), found {quote(table)}")
        self.table = table
        self.refuses = () if table.unknown else (Fault("an unknown type code", ALL_BITS),)

    def _parse(self, stream: Any, context: Context, path: str) -> Any:
        return self._look_up(self.subcon._parsereport(stream, context, path), path, self.table.of_code)

    def _build(self, obj: Any, stream: Any, context: Context, path: str) -> Any:
        type_ = self._look_up(obj, path, self.table.__getitem__)
        self.subcon._build(self.table.code_of(type_), stream, context, path)
        return type_

    def _look_up(self, key: Any, path: str, type_of: Callable[[Any], Any]) -> Any:
        try:
            return type_of(key)
        except KeyError:
            raise FormatError(f"expected {self.table}, found {quote(key)}", path) from None
