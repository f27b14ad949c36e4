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

from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from types import MappingProxyType, NoneType
from typing import Any, ClassVar, NoReturn, cast

import construct
from construct.core import evaluate

from glft_schema.describe.tables import fields_table
from glft_schema.errors import FormatError, LimitError, TruncatedError, shown
from glft_schema.expressions import compiled
from glft_schema.limits import A_LIMIT, DEFAULTS, limits_of
from glft_schema.numbers import Number, byte_order
from glft_schema.rules import Check
from glft_schema.source import Cursor, read_exactly
from glft_schema.tensor_bytes import write_all
from glft_schema.trace import Located, Trace, plain_path

NO_COUNTS: Mapping[str, Any] = MappingProxyType({})
SHORT_TABLE = 1 << 16  # bytes left up to which a table that cannot fit is parsed all the same, to name the field cut off


class Record(Mapping[str, Any]):
    """The fields of a parsed `Struct`, in order, by attribute and by key. Read-only; equal to any mapping with equal items.

    A file has as many as it has tensors, so each is no more than its values: a class for each set of names knows these.

    Attributes:
        counts: what follows from the fields, such as ``n_tensors``. It can be read by attribute and by key too, but is no part
            of the value.
    """

    __slots__ = ()
    _names: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    _count_names: ClassVar[Mapping[str, Any]] = MappingProxyType({})

    def __new__(cls, fields: Mapping[str, Any], counts: Mapping[str, Any] = NO_COUNTS) -> Record:
        """Returns a record of `fields`."""
        made = record_class(tuple(fields), tuple(counts))
        record = object.__new__(made)
        for slots, values in ((made._names, fields), (made._count_names, counts)):
            for name, slot in slots.items():
                slot.__set__(record, values[name])
        return record

    @property
    def counts(self) -> Mapping[str, Any]:
        """What follows from the fields, by name."""
        return {name: slot.__get__(self) for name, slot in self._count_names.items()}

    def __getitem__(self, name: str) -> Any:
        slot = self._names.get(name) or self._count_names[name]
        return slot.__get__(self)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"no field {name!r}; the fields are {', '.join(self)}")

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a parsed record is read-only; build from a mapping with another {name!r}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._names, *self._count_names]

    def __repr__(self) -> str:
        return f"Record({', '.join(f'{name}={value!r}' for name, value in self.items())})"

    def _repr_html_(self) -> str:
        return fields_table("record", {**self, **self.counts}).html()

    def __reduce__(self) -> tuple[Any, ...]:
        return Record, (dict(self), self.counts)


@lru_cache(maxsize=1024)
def record_class(names: tuple[str, ...], counts: tuple[str, ...]) -> type[Record]:
    """Returns the class of records with these fields and counts: a slot for each, which is an attribute of its name, too."""
    slots = [f"_{i}" for i in range(len(names) + len(counts))]
    made: Any = type("Record", (Record,), {"__slots__": slots, "__doc__": Record.__doc__})
    by_name = {name: vars(made)[slot] for name, slot in zip((*names, *counts), slots, strict=True)}
    for name, slot in by_name.items():
        if not hasattr(Record, name):  # a method wins; the field is still there by its key
            setattr(made, name, slot)
    made._names = {name: by_name[name] for name in names}
    made._count_names = {name: by_name[name] for name in counts}
    return cast(type[Record], made)


class Interpreted(construct.Construct):
    """A construct that construct's compiler leaves as it is: its own code for the classes behind ours would check less."""

    def _emitparse(self, code: Any) -> str:
        raise NotImplementedError

    def _emitbuild(self, code: Any) -> str:
        raise NotImplementedError


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


class Struct(Interpreted, construct.Struct):
    """Fields one after another, named ``"name" / Field * "sentence"``.

    Where ``forging``, a parameter of the container, is set, rules are not looked at while building: so bad files are made.

    Parses into a `Record`, builds from any mapping, and has the size of its fields together.

    Attributes:
        title: what descriptions call it; the field that it is, where it has none.
    """

    def __init__(self, *fields: construct.Construct, title: str = "") -> None:
        super().__init__(*(_one_name(field) for field in fields))
        self.title = title
        named = [field for field in self.subcons if field.name]
        names = [tuple(field.name for field in named if follows(field) == counted) for counted in (False, True)]
        self._record = record_class(*names)
        slots = {**self._record._names, **self._record._count_names}
        self._all = [(field.name, field, slots.get(field.name)) for field in self.subcons]
        needed = [field for field in self.subcons if not isinstance(field, Check) or field.is_always_needed]
        self._plan = [(field.name, _parser(field), slots.get(field.name)) for field in needed]

    def _parse(self, stream: Any, context: Any, path: str) -> Record:
        if context["_params"].get("trace") is not None:
            return self._parse_traced(stream, context, path)
        context, record = self._nested(context, stream), object.__new__(self._record)
        for name, parse, slot in self._plan:
            if slot is None:
                parse(stream, context, path)
                continue
            value = parse(stream, context, f"{path} -> {name}")
            context[name] = value = list(value) if isinstance(value, construct.ListContainer) else value
            slot.__set__(record, value)
        return record

    def _parse_traced(self, stream: Any, context: Any, path: str) -> Record:
        params = context._params
        trace: Trace = params.trace
        context, record = self._nested(context, stream), object.__new__(self._record)
        for name, field, slot in self._all:
            if slot is None:
                field._parsereport(stream, context, path)
                continue
            with trace.field(f"{path} -> {name}", stream) as span:
                value = field._parsereport(stream, context, path)
                span.value = value = list(value) if isinstance(value, construct.ListContainer) else value
            context[name] = value
            slot.__set__(record, value)
        return record

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
        given = {name: context[name] for name in ("_params", "_parsing", "_building", "_sizing")}
        nested = construct.Container({"_": context, "_subcons": self._subcons, "_io": stream, **given})
        nested["_root"] = context.get("_root", nested)
        return nested

    def _names(self) -> list[str]:
        return [field.name for field in self.subcons if field.name and not follows(field)]


def _parser(field: construct.Construct) -> Callable[[Any, Any, str], Any]:
    """Returns what parses a field at the path that has its name already, without the wrappers that would add it."""
    is_named = isinstance(field, construct.Renamed) and field.parsed is None
    parse: Callable[[Any, Any, str], Any] = field.subcon._parse if is_named else field._parsereport
    return parse


def _one_name(field: construct.Construct) -> construct.Construct:
    """Merges ``("name" / X) * "doc"``, two wrappers that would put the name into error paths twice, into one."""
    if isinstance(field, construct.Renamed) and isinstance(field.subcon, construct.Renamed):
        return construct.Renamed(field.subcon.subcon, field.name, field.docs, field.parsed)
    return field


class Count(Interpreted, construct.Rebuild):
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
        self._value = compiled(of)
        self.flagbuildnone = True

    def _parse(self, stream: Any, context: Any, path: str) -> Any:
        return self._value(context)

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


class Table(Interpreted, construct.Array):
    """`count` rows of one Struct, whose paths read ``table -> 3 -> field``.

    Parses into a list, builds from any sequence. A count that the bytes left cannot hold is refused before a row is parsed, and
    so is one that is above the limit on objects, with all rows of tables before.
    """

    def _parse(self, stream: Any, context: Any, path: str) -> list[Any]:
        count, params = evaluate(self.count, context), context["_params"]
        needed, left = count * self._least, bytes_left(stream)
        if needed > left > SHORT_TABLE:
            raise TruncatedError(f"expected {count} rows of at least {self._least} bytes, found {left} bytes", path)
        if needed <= left:
            count_objects(context, count, path)
        trace: Trace | None = params.get("trace")
        starts = params["starts"].setdefault(path, array("Q")) if "starts" in params and path.count(" -> ") == 1 else None
        if trace is not None:
            return self._parse_traced(stream, context, path, count, trace, starts)
        rows, parse = [], self.subcon._parse
        for i in range(count):
            if starts is not None:
                starts.append(stream.tell())
            rows.append(parse(stream, context, f"{path} -> {i}"))
        return rows

    def _parse_traced(self, stream: Any, context: Any, path: str, count: int, trace: Trace, starts: Any) -> list[Any]:
        """Parses the rows, with the trace only where it looks for something in them.

        Raises:
            Located: after the one row that it looks for, where that one's start is known from a parse before.
        """
        params, wanted = context["_params"], trace.row_in(plain_path(path))
        if starts and wanted is not None and wanted < len(starts):
            stream.seek(starts[wanted])
            self.subcon._parse(stream, context, f"{path} -> {wanted}")
            raise Located
        rows = []
        for i in range(count):
            params["trace"] = trace if trace.looks_into(plain_path(f"{path} -> {i}")) else None
            try:
                rows.append(self.subcon._parse(stream, context, f"{path} -> {i}"))
            finally:
                params["trace"] = trace
        return rows

    def _build(self, obj: Any, stream: Any, context: Any, path: str) -> list[Any]:
        count_objects(context, len(obj), path)
        return [self.subcon._build(row, stream, context, f"{path} -> {i}") for i, row in enumerate(obj)]

    @cached_property
    def _least(self) -> int:
        return least_size(self.subcon)


def count_objects(context: Any, number: int, path: str) -> None:
    """Counts objects of the container being parsed or built; raises LimitError where they are more than their limit."""
    params = context["_params"]
    params["objects"] = total = params.get("objects", 0) + number
    limits_of(context).check("objects", total, path, " tensors, entries and arrays")


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
        self._holds = compiled(condition)
        self.then = self.least = then
        self.otherwise = otherwise

    def pick(self, context: Any) -> Number:
        """Returns the number that it is in `context`."""
        return self.then if self._holds(context) else self.otherwise

    def _parse(self, stream: Any, context: Any, path: str) -> Any:
        return self.pick(context)._parse(stream, context, path)

    def _build(self, obj: Any, stream: Any, context: Any, path: str) -> Any:
        return self.pick(context)._build(obj, stream, context, path)


class Sizes(construct.Construct):
    """How many, then so many integers. Parses into a list of ints, builds from a sequence of them.

    Args:
        count: how their number is stored.
        size: how each is.
        limit: the name of the limit that says how many there may be.
    """

    def __init__(self, count: Number, size: Number | Picked, limit: str) -> None:
        super().__init__()
        self.count = self.least = count
        self.size = size
        self.limit = limit
        self.refuses = (f"more than {DEFAULTS[limit]}, {A_LIMIT}",)

    def _parse(self, stream: Any, context: Any, path: str) -> list[int]:
        count, order = self.count._parse(stream, context, path), byte_order(context)
        width = self.size.pick(context).itemsize
        if count * width <= bytes_left(stream):
            limits_of(context).check(self.limit, count, path)
        stored = read_exactly(stream, count * width, path)
        return [int.from_bytes(stored[at : at + width], order) for at in range(0, count * width, width)]

    def _build(self, obj: Any, stream: Any, context: Any, path: str) -> Any:
        limits_of(context).check(self.limit, len(obj), path)
        self.count._build(len(obj), stream, context, path)
        for size in obj:
            self.size._build(size, stream, context, path)
        return obj


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


class Nested(construct.Construct):
    """What may hold more of its kind, such as arrays in arrays, as deep as the limit on nesting allows.

    Parses into and builds from what its declaration does.

    Args:
        declare: what may be one level below -> the declaration.
        level: its own.
    """

    def __init__(self, declare: Callable[[Nested], construct.Construct], level: int = 1) -> None:
        super().__init__()
        self.declare = declare
        self.level = level

    @cached_property
    def subcon(self) -> construct.Construct:
        """The declaration at its level."""
        return self.declare(Nested(self.declare, self.level + 1))

    @property
    def least(self) -> construct.Construct:
        """What takes as many bytes as it does at least."""
        return self.subcon

    def _parse(self, stream: Any, context: Any, path: str) -> Any:
        self._check(context, path)
        return self.subcon._parse(stream, context, path)

    def _build(self, obj: Any, stream: Any, context: Any, path: str) -> Any:
        self._check(context, path)
        return self.subcon._build(obj, stream, context, path)

    def _check(self, context: Any, path: str) -> None:
        try:
            limits_of(context).check("nesting", self.level, path, " levels of arrays")
        except LimitError as error:
            error.offset = context["_io"].tell() if context["_parsing"] else None  # it has no field of its own to be found by
            raise
