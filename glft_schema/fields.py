"""Constructs shared by the formats, beside those of the construct library, `numbers`, `rules` and `bulk`.

=============  =====================================================================================================
`Struct`       construct's, whose result is a `Record` and whose fields can be traced to their bytes
`Table`        an array of Structs that numbers its rows in error paths
`Count`        an integer derived from what it counts: read, checked, and never a part of the value
`Derived`      what follows from the fields before it, and takes no bytes
`Picked`       one of two numbers, as the context decides
`Sizes`        how many, then so many integers
`Padding`      bytes up to a multiple
`TypeCode`     an integer that stands for a type
=============  =====================================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType, NoneType
from typing import Any, NoReturn

import construct
from construct.core import evaluate

from glft_schema.describe.tables import fields_table
from glft_schema.errors import FormatError, LimitError, TruncatedError, shown
from glft_schema.numbers import Number, byte_order
from glft_schema.rules import Check
from glft_schema.source import Cursor
from glft_schema.tensor_bytes import write_all
from glft_schema.trace import Trace

NO_COUNTS: Mapping[str, Any] = MappingProxyType({})
SHORT_TABLE = 1 << 16  # bytes left up to which a table that cannot fit is parsed all the same, to name the field cut off


class Record(Mapping[str, Any]):
    """The fields of a parsed `Struct`, in order, by attribute and by key. Read-only; equal to any mapping with equal items.

    Attributes:
        counts: what follows from the fields, such as ``n_tensors``. It can be read by attribute and by key too, but is no part
            of the value.
    """

    __slots__ = ("_fields", "counts")

    def __init__(self, fields: dict[str, Any], counts: dict[str, Any] | None = None) -> None:
        object.__setattr__(self, "_fields", fields)
        object.__setattr__(self, "counts", counts or NO_COUNTS)

    def __getitem__(self, name: str) -> Any:
        return self._fields[name] if name in self._fields else self.counts[name]

    def __contains__(self, name: object) -> bool:
        return name in self._fields

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

    def _repr_html_(self) -> str:
        return fields_table("record", {**self._fields, **self.counts}).html()

    def __reduce__(self) -> tuple[Any, ...]:
        return Record, (self._fields, dict(self.counts))


@dataclass
class Forged:
    """A value to be built by another construct than its field's own, into bytes that the field would never give.

    Attributes:
        construct: what builds it.
        value: what is built.
        seen: what other fields see of it.
        start: where it begins in the stream, once it is built.
    """

    construct: construct.Construct
    value: Any
    seen: Any
    start: int | None = None

    def build(self, stream: Any, context: Any, path: str) -> Any:
        """Writes the value, and returns what other fields see of it."""
        self.start = stream.tell()
        self.construct._build(self.value, stream, context, path)
        return self.seen


class Struct(construct.Struct):
    """Fields one after another, named ``"name" / Field * "sentence"``.

    Where ``forging``, a parameter of the container, is set, rules are not looked at while building: so bad files are made.

    Parses into a `Record`, builds from any mapping, and has the size of its fields together.

    Attributes:
        title: what descriptions call it; the field that it is, where it has none.
    """

    def __init__(self, *fields: construct.Construct, title: str = "") -> None:
        super().__init__(*(_one_name(field) for field in fields))
        self.title = title
        self._all = [(field.name, field, follows(field)) for field in self.subcons]
        self._needed = [row for row in self._all if not isinstance(row[1], Check) or row[1].is_always_needed]

    def _parse(self, stream: Any, context: Any, path: str) -> Record:
        params = context._params
        trace: Trace | None = params.get("trace")
        context = self._nested(context, stream)
        fields: dict[str, Any] = {}
        counts: dict[str, Any] = {}
        value: Any
        for name, field, is_count in self._all if "findings" in params else self._needed:
            if trace is None or not name:
                value = field._parsereport(stream, context, path)
            else:
                with trace.field(f"{path} -> {name}", stream) as span:
                    span.value = value = field._parsereport(stream, context, path)
            if name:
                value = list(value) if isinstance(value, construct.ListContainer) else value
                context[name] = value
                (counts if is_count else fields)[name] = value
        return Record(fields, counts)

    def _build(self, obj: Any, stream: Any, context: Any, path: str) -> Any:
        context = self._nested(context, stream)
        if not isinstance(obj, (Mapping, NoneType)):
            raise FormatError(f"expected a mapping with {', '.join(self._names())}, found {shown(obj)}", path)
        obj = dict(obj or {})  # of a Record its fields, not its counts
        if unknown := [name for name in obj if name not in self._subcons]:
            raise FormatError(f"expected the fields {', '.join(self._names())}, found {shown(unknown[0])}", path)
        context.update({name: value.seen if isinstance(value, Forged) else value for name, value in obj.items()})
        forging = context._params.get("forging", False)
        for field in self.subcons:
            if forging and isinstance(field, Check):
                continue
            if field.name and field.name not in obj and not field.flagbuildnone:
                raise FormatError(f"expected a value for {field.name!r}, found none", path)
            value = obj.get(field.name)
            try:
                build = value.build if isinstance(value, Forged) else partial(field._build, value)
                built = build(stream, context, path)
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
        follows_ = self.of(context)
        if obj is not None and obj != follows_:
            raise FormatError(f"expected {shown(follows_)}, which follows from the other fields, found {shown(obj)}", path)
        return follows_

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


def is_count(field: construct.Construct) -> bool:
    """Tells whether a field says how much of something there is."""
    return isinstance(field, construct.Renamed) and isinstance(field.subcon, Count)


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
    if least := getattr(field, "least", None):
        return least_size(least)
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
    """

    def __init__(self, integer: construct.Construct, table: Any) -> None:
        super().__init__(integer)
        self.table = table
        self.refuses = () if table.unknown else ("a code that stands for no type",)

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
            raise FormatError(f"expected {self.table}, found {shown(key)}", path) from None


class Picked(construct.Construct):
    """One of two numbers, such as ``u32`` in one version and ``u64`` in another.

    Attributes:
        condition: an expression that decides.
        then: where it holds; the shorter one.
        otherwise: where it does not.
    """

    def __init__(self, condition: Any, then: Number, otherwise: Number) -> None:
        super().__init__()
        self.condition = condition
        self.then = self.least = then
        self.otherwise = otherwise

    def pick(self, context: Any) -> Number:
        """Returns the number that it is in `context`."""
        return self.then if self.condition(context) else self.otherwise

    def _parse(self, stream: Any, context: Any, path: str) -> Any:
        return self.pick(context)._parse(stream, context, path)

    def _build(self, obj: Any, stream: Any, context: Any, path: str) -> Any:
        return self.pick(context)._build(obj, stream, context, path)


class Sizes(construct.Construct):
    """How many, then so many integers. Parses into a list of ints, builds from a sequence of them.

    Args:
        count: how their number is stored.
        size: how each is.
        limit: how many there may be: a limit of this reader.
    """

    def __init__(self, count: Number, size: Picked, limit: int) -> None:
        super().__init__()
        self.count = self.least = count
        self.size = size
        self.limit = limit
        self.refuses = (f"more than {limit}, a limit of this reader",)

    def _parse(self, stream: Any, context: Any, path: str) -> list[int]:
        count, order = self._within_limit(self.count._parse(stream, context, path), path), byte_order(context)
        width = self.size.pick(context).itemsize
        stored = construct.stream_read(stream, count * width, path)
        return [int.from_bytes(stored[at : at + width], order) for at in range(0, count * width, width)]

    def _build(self, obj: Any, stream: Any, context: Any, path: str) -> Any:
        self.count._build(self._within_limit(len(obj), path), stream, context, path)
        for size in obj:
            self.size._build(size, stream, context, path)
        return obj

    def _within_limit(self, count: int, path: str) -> int:
        if count > self.limit:
            raise LimitError(f"expected at most {self.limit}, a limit of this reader, found {count}", path)
        return count


class Padding(construct.Construct):
    """Bytes up to a multiple of `to`, counted from the start of the container. Parses into the bytes, builds zeros.

    Bytes that are given are written instead where they are as many as it takes.

    Args:
        to: the context -> the multiple.
        may_lack: the context -> whether the file may end before.
    """

    def __init__(self, to: Callable[[Any], int], may_lack: Callable[[Any], bool]) -> None:
        super().__init__()
        self.to = to
        self.may_lack = may_lack
        self.flagbuildnone = True

    def _parse(self, stream: Any, context: Any, path: str) -> bytes:
        nbytes, left = -stream.tell() % self.to(context), bytes_left(stream)
        if nbytes > left and not self.may_lack(context):
            raise TruncatedError(f"expected {nbytes} bytes, found {left}", path)
        return bytes(construct.stream_read(stream, min(nbytes, left), path))

    def _build(self, obj: Any, stream: Any, context: Any, path: str) -> Any:
        nbytes = -stream.tell() % self.to(context)
        if not isinstance(obj, (bytes, NoneType)):
            raise FormatError(f"expected bytes, found {shown(obj)}", path)
        if obj is None or not (len(obj) == nbytes or (self.may_lack(context) and len(obj) < nbytes)):
            obj = bytes(nbytes)
        write_all(stream, obj)
        return obj


class Refused(construct.Construct):
    """What is never read nor written. Raises `error`."""

    def __init__(self, problem: str, error: type[FormatError] = FormatError) -> None:
        super().__init__()
        self.problem = problem
        self.error = error

    def _parse(self, stream: Any, context: Any, path: str) -> Any:
        raise self.error(self.problem, path)

    def _build(self, obj: Any, stream: Any, context: Any, path: str) -> Any:
        raise self.error(self.problem, path)
