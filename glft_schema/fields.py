"""Constructs shared by the formats, beside those of the construct library, `numbers`, `rules` and `bulk`.

=============  =====================================================================================================
`Struct`       construct's, whose result is a `Record` and whose fields can be traced to their bytes
`Table`        an array of Structs that numbers its rows in error paths
`Count`        an integer derived from what it counts: read, checked, and never a part of the value
`Derived`      what follows from the fields before it, and takes no bytes
`TypeCode`     an integer that stands for a type
=============  =====================================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NoReturn

import construct
from construct.core import evaluate

from glft_schema.errors import FormatError, TruncatedError, shown
from glft_schema.rules import Check
from glft_schema.source import Cursor
from glft_schema.trace import Trace

NO_COUNTS: Mapping[str, Any] = MappingProxyType({})
SHORT_TABLE = 1 << 16  # bytes left up to which a table that cannot fit is parsed all the same, to name the field cut off


class Record(Mapping[str, Any]):
    """The fields of a parsed `Struct`, in order, by attribute and by key. Read-only; equal to any mapping with equal items.

    Attributes:
        counts: what follows from the fields, such as ``n_tensors``. It can be read as attributes too, but is no part of
            the value.
    """

    __slots__ = ("_fields", "counts")

    def __init__(self, fields: dict[str, Any], counts: dict[str, Any] | None = None) -> None:
        object.__setattr__(self, "_fields", fields)
        object.__setattr__(self, "counts", counts or NO_COUNTS)

    def __getitem__(self, name: str) -> Any:
        return self._fields[name]

    def __getattr__(self, name: str) -> Any:
        for values in (self._fields, self.counts):
            if name in values:
                return values[name]
        raise AttributeError(f"no field {name!r}; the fields are {', '.join(self)}")

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a parsed record is read-only; build from a mapping with another {name!r}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._fields, *self.counts]

    def __repr__(self) -> str:
        return f"Record({', '.join(f'{name}={value!r}' for name, value in self._fields.items())})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Record, (self._fields, dict(self.counts))


class Struct(construct.Struct):
    """Fields one after another, named ``"name" / Field * "sentence"``.

    Parses into a `Record`, builds from any mapping, and has the size of its fields together.
    """

    def __init__(self, *fields: construct.Construct) -> None:
        super().__init__(*(_one_name(field) for field in fields))

    def _parse(self, stream: Any, context: Any, path: str) -> Record:
        trace: Trace | None = context._params.get("trace")
        context = self._nested(context, stream)
        fields: dict[str, Any] = {}
        counts: dict[str, Any] = {}
        value: Any
        for field in self.subcons:
            if trace is None or not field.name:
                value = field._parsereport(stream, context, path)
            else:
                with trace.field(f"{path} -> {field.name}", stream) as span:
                    span.value = value = field._parsereport(stream, context, path)
            if field.name:
                value = list(value) if isinstance(value, construct.ListContainer) else value
                context[field.name] = value
                (counts if follows(field) else fields)[field.name] = value
        return Record(fields, counts)

    def _build(self, obj: Any, stream: Any, context: Any, path: str) -> Any:
        context = self._nested(context, stream)
        obj = {} if obj is None else obj
        if not isinstance(obj, Mapping):
            raise FormatError(f"expected a mapping with {', '.join(self._names())}, found {shown(obj)}", path)
        if unknown := [name for name in obj if name not in self._subcons]:
            raise FormatError(f"expected the fields {', '.join(self._names())}, found {shown(unknown[0])}", path)
        context.update(dict(obj))
        for field in self.subcons:
            if field.name and field.name not in obj and not field.flagbuildnone:
                raise FormatError(f"expected a value for {field.name!r}, found none", path)
            try:
                built = field._build(obj.get(field.name), stream, context, path)
            except construct.ConstructError as error:
                error.path = error.path or f"{path} -> {field.name}"
                raise
            if field.name:
                context[field.name] = built
        return context

    def _nested(self, context: Any, stream: Any) -> Any:
        params = context._params
        nested = construct.Container(_=context, _params=params, _parsing=context._parsing, _building=context._building)
        nested._sizing, nested._subcons, nested._io = context._sizing, self._subcons, stream
        nested._root = context.get("_root", nested)
        return nested

    def _names(self) -> list[str]:
        return [field.name for field in self.subcons if field.name and not follows(field)]


def _one_name(field: construct.Construct) -> construct.Construct:
    """Merges ``("name" / X) * "doc"``, two wrappers that would put the name into error paths twice, into one."""
    if isinstance(field, construct.Renamed) and isinstance(field.subcon, construct.Renamed):
        return construct.Renamed(field.subcon.subcon, field.name, field.docs, field.parsed)
    return field


class Count(construct.Rebuild):
    """An integer that says how much of something follows; `of` computes it from the context when building.

    Parses into the number; builds from the thing counted, and refuses a number that says otherwise; size of `integer`.
    """

    def __init__(self, integer: construct.Construct, of: Callable[[Any], int]) -> None:
        super().__init__(integer, of)

    def _build(self, obj: Any, stream: Any, context: Any, path: str) -> Any:
        counted = evaluate(self.func, context)
        if obj is not None and not (isinstance(obj, int) and obj == counted):
            raise FormatError(f"expected {counted}, which follows from what it counts, found {shown(obj)}", path)
        return self.subcon._build(counted, stream, context, path)


class Derived(construct.Construct):
    """What follows from the fields before it. Takes no bytes, and is never a part of the value: `of` computes it.

    Args:
        of: the context -> the value.
    """

    def __init__(self, of: Callable[[Any], Any]) -> None:
        super().__init__()
        self.of = of
        self.flagbuildnone = True

    def _parse(self, stream: Any, context: Any, path: str) -> Any:
        return self.of(context)

    def _build(self, obj: Any, stream: Any, context: Any, path: str) -> Any:
        return self.of(context)

    def _sizeof(self, context: Any, path: str) -> int:
        return 0


def new_context(parsing: bool, **params: Any) -> Any:
    """Returns the context of a whole container: its parameters, such as the byte order, are seen by every field in it."""
    context = construct.Container(_parsing=parsing, _building=not parsing, _sizing=False, **params)
    context._params = context
    return context


def follows(field: construct.Construct) -> bool:
    """Tells whether the value of `field` follows from others, and so is no part of a record's."""
    return isinstance(field, construct.Renamed) and isinstance(field.subcon, (Count, Derived))


class Table(construct.Array):
    """`count` rows of one Struct, whose paths read ``table -> 3 -> field``.

    Parses into a list, builds from any sequence. A count that the bytes left cannot hold is refused before a row is parsed.
    """

    def _parse(self, stream: Any, context: Any, path: str) -> list[Any]:
        count = evaluate(self.count, context)
        left = bytes_left(stream)
        if left > SHORT_TABLE and count * (least := least_size(self.subcon)) > left:
            raise TruncatedError(f"expected {count} rows of at least {least} bytes, found {left} bytes", path)
        return [self.subcon._parsereport(stream, context, f"{path} -> {i}") for i in range(count)]

    def _build(self, obj: Any, stream: Any, context: Any, path: str) -> list[Any]:
        return [self.subcon._build(row, stream, context, f"{path} -> {i}") for i, row in enumerate(obj)]


def bytes_left(stream: Any) -> int:
    """Returns the bytes between here and the end of any seekable stream."""
    return stream.left if isinstance(stream, Cursor) else int(construct.stream_size(stream)) - int(stream.tell())


def least_size(field: construct.Construct) -> int:
    """Returns the fewest bytes that `field` can take, from its declaration alone."""
    if isinstance(field, (construct.Struct, construct.FocusedSeq)):
        return sum(least_size(part) for part in field.subcons)
    if isinstance(field, construct.Prefixed):
        return least_size(field.lengthfield)
    if isinstance(field, (construct.Array, Check)):
        return 0
    if isinstance(field, construct.Subconstruct):
        return least_size(field.subcon)
    try:
        return int(field.sizeof())
    except construct.SizeofError:
        return 0


class TypeCode(construct.Adapter):
    """An integer that stands for a type of `table`.

    Parses into the type; builds from it, from its name or from its code; size of `integer`.

    Args:
        integer: how the code is stored.
        table: the types by code, name and themselves.
        unknown: makes a type of a code that is not in the table; unless given, such a code is refused.
    """

    def __init__(self, integer: construct.Construct, table: Any, unknown: Callable[[int], Any] | None = None) -> None:
        super().__init__(integer)
        self.table = table
        self.unknown = unknown

    def _decode(self, code: int, context: Any, path: str) -> Any:
        return self._known(code, path)

    def _build(self, obj: Any, stream: Any, context: Any, path: str) -> Any:
        type_ = self._known(obj, path)
        self.subcon._build(type_.code, stream, context, path)
        return type_

    def _known(self, key: Any, path: str) -> Any:
        try:
            return self.table[key]
        except KeyError:
            code = getattr(key, "code", key)
            if self.unknown and isinstance(code, int) and not isinstance(code, bool):
                return self.unknown(code)
            raise FormatError(f"expected {self.table}, found {shown(key)}", path) from None
