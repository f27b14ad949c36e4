"""`Record`, the result of parsing a `Struct`. It is small and fast, because a file has one for
each tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, ClassVar, NoReturn, cast

from glft_schema.display import Part, fields_table, with_display

NO_COUNTS: Mapping[str, Any] = MappingProxyType({})


@with_display
class Record(Mapping[str, Any]):
    """The fields of a parsed `Struct`, in order, by attribute and by key.

    Read-only; equal to any mapping with equal items. A record holds only values: there is a class
    for each set of names.

    Attributes:
        counts: values computed from the fields, such as ``n_tensors``, by name. Also available by
            attribute and by key, but not part of the record's value.
    """

    __slots__ = ()
    _names: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    _count_names: ClassVar[Mapping[str, Any]] = MappingProxyType({})

    def __new__(cls, fields: Mapping[str, Any], counts: Mapping[str, Any] = NO_COUNTS) -> Record:
        kind = record_class(tuple(fields), tuple(counts))
        record = object.__new__(kind)
        for slots, values in ((kind._names, fields), (kind._count_names, counts)):
            for name, slot in slots.items():
                slot.__set__(record, values[name])
        return record

    @property
    def counts(self) -> Mapping[str, Any]:
        """The values computed from the fields, by name."""
        return {name: slot.__get__(self) for name, slot in self._count_names.items()}

    def __getitem__(self, name: str) -> Any:
        slot = self._names.get(name) or self._count_names[name]
        return slot.__get__(self)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"no field {name!r}; the fields are {', '.join(self)}")

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a parsed record is read-only; to change {name!r}, build from a mapping with the new value")

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._names, *self._count_names]

    def _display(self) -> Iterator[Part]:
        table = fields_table("fields", {**self, **self.counts})
        yield ", ".join(f"{name} {value}" for name, value in table.rows)
        yield table

    def __reduce__(self) -> tuple[Any, ...]:
        return Record, (dict(self), self.counts)


@lru_cache(maxsize=1024)
def record_class(names: tuple[str, ...], counts: tuple[str, ...]) -> type[Record]:
    """Returns the class of records with these fields and counts, each a slot and an attribute."""
    slots = [f"_{i}" for i in range(len(names) + len(counts))]
    kind: Any = type("Record", (Record,), {"__slots__": slots, "__doc__": Record.__doc__, "__module__": __name__})
    by_name = {name: vars(kind)[slot] for name, slot in zip((*names, *counts), slots, strict=True)}
    for name, slot in by_name.items():
        if not hasattr(Record, name):  # methods take precedence; the field is available by key
            setattr(kind, name, slot)
    kind._names = {name: by_name[name] for name in names}
    kind._count_names = {name: by_name[name] for name in counts}
    return cast(type[Record], kind)
