"""Structs and the fields whose values follow from others.

=============  =====================================================================================================
`Struct`       construct's, whose result is a `Record` and whose fields can be traced to their bytes
`Count`        an integer derived from what it counts: read, checked, and never a part of the value
`Derived`      a value derived from the fields before it, without bytes
`Padding`      bytes up to a multiple
=============  =====================================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass
from functools import partial
from types import NoneType
from typing import Any

import construct
from construct.core import evaluate

from glft_schema.codec.context import Context
from glft_schema.codec.expressions import compiled, field_path
from glft_schema.codec.records import Record, record_class
from glft_schema.codec.rules import Check
from glft_schema.errors import FormatError, TruncatedError, shown
from glft_schema.storage.cursor import bytes_left
from glft_schema.storage.tensor_bytes import write_all


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

    def build(self, stream: Any, context: Context, path: str) -> Any:
        """Writes the value, and returns what other fields see of it."""
        self.start = stream.tell()
        self.construct._build(self.value, stream, context, path)
        return self.seen


class Struct(Interpreted, construct.Struct):
    """Fields one after another, named ``"name" / Field * "sentence"``, and the rules on them.

    A rule is checked right after the last field that it needs, wherever it stands.

    Where ``forging``, a parameter of the container, is set, rules are not looked at while building: so bad files are made.

    Parses into a `Record`, builds from any mapping, and has the size of its fields together.

    Attributes:
        title: what descriptions call it; the field that it is, where it has none.
        needed: what a parse has to look at: name, field, and where its value goes in a record.
        record: the class of its records.
    """

    def __init__(self, *fields: construct.Construct, title: str = "") -> None:
        super().__init__(*_in_order_of_checks([_one_name(field) for field in fields]))
        self.title = title
        named = [field for field in self.subcons if field.name]
        names = [tuple(field.name for field in named if follows(field) == counted) for counted in (False, True)]
        self.record = record_class(*names)
        slots = {**self.record._names, **self.record._count_names}
        self._all = [(field.name, field, slots.get(field.name)) for field in self.subcons]
        self.needed = [field for field in self._all if not isinstance(field[1], Check) or field[1].is_required]
        self._plan = [(name, _parser(field), slot) for name, field, slot in self.needed]

    def _parse(self, stream: Any, context: Context, path: str) -> Record:
        if context["_params"].get("trace") is not None:
            return self._parse_traced(stream, context, path)
        context, record = self._nested(context, stream), object.__new__(self.record)
        for name, parse, slot in self._plan:
            if slot is None:
                parse(stream, context, path)
                continue
            value = parse(stream, context, f"{path} -> {name}")
            context[name] = value = list(value) if isinstance(value, construct.ListContainer) else value
            slot.__set__(record, value)
        return record

    def _parse_traced(self, stream: Any, context: Context, path: str) -> Record:
        params = context._params
        trace = params.trace
        assert trace is not None
        context, record = self._nested(context, stream), object.__new__(self.record)
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

    def _build(self, obj: Any, stream: Any, context: Context, path: str) -> Any:
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

    def _nested(self, context: Context, stream: Any) -> Context:
        given = {name: context[name] for name in ("_params", "_parsing", "_building", "_sizing")}
        nested = Context({"_": context, "_subcons": self._subcons, "_io": stream, **given})
        nested["_root"] = context.get("_root", nested)
        return nested

    def _names(self) -> list[str]:
        return [field.name for field in self.subcons if field.name and not follows(field)]


def _in_order_of_checks(fields: list[construct.Construct]) -> list[construct.Construct]:
    """Returns fields with each check as early as possible: right after the last field that it needs."""
    numbers = {field.name: i for i, field in enumerate(fields) if field.name}

    def after(i: int) -> int:
        """Returns the number of the field after which field `i` comes."""
        if not isinstance(fields[i], Check):
            return i
        before = max((number for number in numbers.values() if number < i), default=-1)
        needed = [numbers[name] for name in fields[i].needs() or () if name in numbers]
        return min(before, max(needed)) if needed else before

    return [fields[i] for i in sorted(range(len(fields)), key=after)]


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
    """An integer that says how much of something follows.

    Parses into the number; builds from the thing counted, and refuses a number that says otherwise; size of `integer`.

    Args:
        integer: how the number is stored.
        of: the context -> what is counted by its length, or the number itself; nothing if a field is not given.
    """

    def __init__(self, integer: construct.Construct, of: Callable[[Any], Any]) -> None:
        super().__init__(integer, of)

    def counted(self, context: Context) -> int:
        """Returns the number that building writes."""
        try:
            counted = evaluate(self.func, context)
        except KeyError:
            return 0
        return counted if isinstance(counted, int) else len(counted) if isinstance(counted, Sized) else 0

    def _build(self, obj: Any, stream: Any, context: Context, path: str) -> Any:
        counted = self.counted(context)
        if obj is not None and not (isinstance(obj, int) and obj == counted):
            raise FormatError(f"expected {counted}, which follows from what it counts, found {shown(obj)}", path)
        return self.subcon._build(counted, stream, context, path)


class Derived(construct.Construct):
    """What follows from the fields before it. Takes no bytes, and is never a part of the value: `of` computes it.

    Args:
        of: the context -> the value.

    Attributes:
        of: as given.
        value: the same, quicker.
    """

    def __init__(self, of: Callable[[Any], Any]) -> None:
        super().__init__()
        self.of = of
        self.value = compiled(of)
        self.flagbuildnone = True

    def _parse(self, stream: Any, context: Context, path: str) -> Any:
        return self.value(context)

    def _build(self, obj: Any, stream: Any, context: Context, path: str) -> Any:
        follows_ = self.of(context)
        if obj is not None and obj != follows_:
            raise FormatError(f"expected {shown(follows_)}, which follows from the other fields, found {shown(obj)}", path)
        return follows_

    def _sizeof(self, context: Context, path: str) -> int:
        return 0


def follows(field: construct.Construct) -> bool:
    """Tells whether the value of `field` follows from others, and so is no part of a record's."""
    return isinstance(field, construct.Renamed) and isinstance(field.subcon, (Count, Derived))


def unwrapped(field: Any) -> Any:
    """Returns a declaration without the names and sentences around it."""
    while isinstance(field, construct.Renamed):
        field = field.subcon
    return field


def member(struct: construct.Struct, name: str) -> Any:
    """Returns the declaration of a field, without its name and sentence; None if there is no field of this name."""
    return unwrapped(next((field for field in struct.subcons if field.name == name), None))


def is_count(field: construct.Construct) -> bool:
    """Tells whether a field says how much of something there is."""
    return isinstance(field, construct.Renamed) and isinstance(field.subcon, Count)


def check_count(counted: Any, count: int, least: int, left: int, path: str) -> None:
    """Checks that `count` elements can follow, before any of them is read.

    Args:
        counted: the declaration of the count, such as ``this.n``.
        count: its value.
        least: the fewest bytes of an element.
        left: bytes from here to the end.
        path: of the elements.

    Raises:
        TruncatedError: at the count, if the elements do not fit into the bytes left.
    """
    if count * least > left:
        most = f"{left // least} (bytes left: {left}, at least {least} each)"
        raise TruncatedError(f"expected at most {most}, found {count}", field_path(counted, path))


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

    def _parse(self, stream: Any, context: Context, path: str) -> bytes:
        nbytes, left = -stream.tell() % self.to(context), bytes_left(stream)
        if nbytes > left and not self.may_lack(context):
            raise TruncatedError(f"expected {nbytes} bytes, found {left}", path)
        return bytes(construct.stream_read(stream, min(nbytes, left), path))

    def _build(self, obj: Any, stream: Any, context: Context, path: str) -> Any:
        nbytes = -stream.tell() % self.to(context)
        if not isinstance(obj, (bytes, NoneType)):
            raise FormatError(f"expected bytes, found {shown(obj)}", path)
        if obj is None or not (len(obj) == nbytes or (self.may_lack(context) and len(obj) < nbytes)):
            obj = bytes(nbytes)
        write_all(stream, obj)
        return obj
