"""Structs, and the fields that are computed from others.

=============  ==================================================================
`Struct`       like construct's, but parses into a `Record` and can trace its fields
`Count`        an integer computed from the counted field, not part of the value
`Derived`      a value computed from earlier fields, without bytes
`Padding`      bytes up to a multiple
=============  ==================================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized
from contextlib import suppress
from dataclasses import dataclass
from operator import index
from types import NoneType
from typing import Any, SupportsIndex

import construct

from glft_schema.codec.construct_errors import our_errors
from glft_schema.codec.context import Context
from glft_schema.codec.expressions import Reference, as_expression, field_path, fields_in, outermost, read, references_in
from glft_schema.codec.records import Record, record_class
from glft_schema.codec.rules import ALL_BITS, Check, Fault
from glft_schema.codec.trace import Trace, without_root
from glft_schema.errors import FormatError, TruncatedError, quote
from glft_schema.storage.cursor import bytes_left
from glft_schema.storage.tensor_bytes import write_all
from glft_schema.words import suggestion


class Interpreted(construct.Construct):
    """A construct that is not compiled: construct's code for its base class would check less."""

    def _emitparse(self, code: Any) -> str:
        raise NotImplementedError

    def _emitbuild(self, code: Any) -> str:
        raise NotImplementedError


@dataclass(frozen=True)
class Raw:
    """An invalid value for tests: a field that is built with `forging` writes it unchanged.

    Attributes:
        stored: the bytes; of typed metadata, the rows.
        seen: the value that other fields see.
    """

    stored: Any
    seen: Any


class Struct(Interpreted, construct.Struct):
    """Consecutive fields, declared as ``"name" / Field * "sentence"``, and the rules on them.

    Each rule is checked right after the last field that it needs.

    Parses into a `Record`, builds from any mapping. Size: that of its fields.

    Attributes:
        title: its name in descriptions; by default the name of its field.
        needed: the fields and required rules, each with its name and its slot in a record.
        record: the class of its records.
    """

    def __init__(self, *fields: construct.Construct, title: str = "") -> None:
        super().__init__(*_in_order_of_checks([_one_name(field) for field in fields]))
        self.title = title
        named = [field for field in self.subcons if field.name]
        for name in (used := [field.name for field in named]):
            if name.startswith("_") or not name.isidentifier():
                raise ValueError(f"expected the name of a field in letters, digits and '_', from a letter on, found {name!r}")
            if used.count(name) > 1:
                raise ValueError(f"expected each name of a field once, found {name!r} twice")
        names = [tuple(field.name for field in named if follows(field) == counted) for counted in (False, True)]
        self.record = record_class(*names)
        slots = {**self.record._names, **self.record._count_names}
        parts = [(field.name, field, slots.get(field.name)) for field in self.subcons]
        self.needed = [part for part in parts if not isinstance(part[1], Check) or part[1].is_required]
        self._steps = [(name, _parse_of(field), slot) for name, field, slot in parts]

    def _parse(self, stream: Any, context: Context, path: str) -> Record:
        trace: Trace | None = context["_params"].get("trace")
        context, record = self.nest(context, stream), object.__new__(self.record)
        for name, parse, slot in self._steps:
            if slot is None:
                parse(stream, context, path)
                continue
            where = f"{path} -> {name}"
            if trace:
                trace.begin(where, stream.tell(), context)
            value = parse(stream, context, where)
            context[name] = value = list(value) if isinstance(value, construct.ListContainer) else value
            slot.__set__(record, value)
            if trace:
                trace.end(value, stream.tell())
        return record

    def _build(self, obj: Any, stream: Any, context: Context, path: str) -> Any:
        context = self.nest(context, stream)
        if not isinstance(obj, (Mapping, NoneType)):
            raise FormatError(f"expected a mapping with {', '.join(self._names())}, found {quote(obj)}", path)
        obj = dict(obj or {})  # without the counts of a Record
        self.check_names(obj, "fields", path)
        context.update({name: value.seen if isinstance(value, Raw) else value for name, value in obj.items()})
        positions = context._params.get("positions")
        for field in self.subcons:
            if field.name and field.name not in obj and not field.flagbuildnone:
                raise FormatError(f"expected a value for {field.name!r}, found none", path)
            value = obj.get(field.name)
            if positions is not None and field.name:
                positions[without_root(f"{path} -> {field.name}")] = stream.tell(), field
            try:
                if isinstance(value, Raw) and isinstance(value.stored, bytes):
                    write_all(stream, value.stored)
                    built = value.seen
                else:
                    built = field._build(value, stream, context, path)
            except construct.ConstructError as error:
                error.path = error.path or f"{path} -> {field.name}"
                raise
            if field.name:
                context[field.name] = built
        return context

    def parse_stream(self, stream: Any, **contextkw: Any) -> Any:
        """Parses a stream, as construct does. Raises FormatError, with the field's path, for bytes
        that are refused."""
        with our_errors():
            return super().parse_stream(stream, **contextkw)

    def build_stream(self, obj: Any, stream: Any, **contextkw: Any) -> Any:
        """Builds to a stream, as construct does. Raises FormatError, with the field's path, for
        values that are refused."""
        with our_errors():
            return super().build_stream(obj, stream, **contextkw)

    def check_names(self, given: Iterable[str], kind: str, path: str = "") -> None:
        """Raises FormatError, with a suggestion, for a name that no field has."""
        if unknown := [name for name in given if name not in self._subcons]:
            names = self._names()
            expected = f"the {kind} {', '.join(names)}" if names else f"no {kind}"
            raise FormatError(f"expected {expected}, found {quote(unknown[0])}{suggestion(unknown[0], names)}", path)

    def nest(self, context: Context, stream: Any) -> Context:
        """Returns a new context for the fields, inside the context of the enclosing Struct."""
        nested = Context(
            _=context,
            _params=context["_params"],
            _io=stream,
            _subcons=self._subcons,
            _parsing=context["_parsing"],
            _building=context["_building"],
            _sizing=context["_sizing"],
        )
        nested["_root"] = context.get("_root", nested)
        return nested

    def _names(self) -> list[str]:
        return [field.name for field in self.subcons if field.name and not follows(field)]


def _in_order_of_checks(fields: list[construct.Construct]) -> list[construct.Construct]:
    """Moves each check up to the last field that it needs, but not over checks of these fields."""
    numbers = {field.name: i for i, field in enumerate(fields) if field.name}
    positions, checked = [], dict[str, int]()
    for i, field in enumerate(fields):
        position = i
        if isinstance(field, Check):
            needed = [name for name in field.needs() or () if name in numbers]
            if needed:
                position = min(i, max(max(numbers[name], checked.get(name, -1)) for name in needed))
            checked[field.field] = max(position, checked.get(field.field, -1))
        positions.append(position)
    return [fields[i] for i in sorted(range(len(fields)), key=positions.__getitem__)]


def _parse_of(field: construct.Construct) -> Any:
    """Returns the parse function of a field, for paths that already include its name."""
    if not isinstance(field, construct.Renamed):
        return field._parsereport
    if field.parsed is None:
        return field.subcon._parse
    return lambda stream, context, path: field._parsereport(stream, context, path.rpartition(" -> ")[0])


def _one_name(field: construct.Construct) -> construct.Construct:
    """Merges the two wrappers of ``("name" / X) * "doc"``, which would repeat the name in paths."""
    if isinstance(field, construct.Renamed) and isinstance(field.subcon, construct.Renamed):
        return construct.Renamed(field.subcon.subcon, field.name, field.docs, field.parsed)
    return field


class Count(Interpreted, construct.Rebuild):
    """An integer that counts a later field.

    Parses into the number. Builds the count of the counted field, and refuses any other number.
    Size: the size of `integer`.

    Args:
        integer: the declaration of the number.
        of: the expression of the counted field, or of the number. A field that is not given, or has
            no length, counts as 0; that field's own error is more specific.
    """

    def __init__(self, integer: construct.Construct, of: Any) -> None:
        if not callable(of):
            raise TypeError(f"expected the counted field as an expression, such as this._.tensors, found {quote(of)}")
        super().__init__(integer, as_expression(of))
        if isinstance(self.func, Reference):
            self.refuses = (Fault("a count beyond the file", ALL_BITS, TruncatedError),)

    def count_of(self, context: Context) -> int:
        """Returns the number to build."""
        try:
            counted = self.func(context)
        except KeyError:
            return 0
        return len(counted) if isinstance(counted, Sized) else index(counted) if isinstance(counted, SupportsIndex) else 0

    def _build(self, obj: Any, stream: Any, context: Context, path: str) -> Any:
        is_given = obj is not None and context._params.get("forging", False)
        counted = obj if is_given else self.count_of(context)
        if obj is not None and not (isinstance(obj, SupportsIndex) and obj == counted):
            raise FormatError(f"expected {counted} (computed from the other fields), found {quote(obj)}", path)
        return self.subcon._build(counted, stream, context, path)


class Derived(construct.Construct):
    """A value computed from earlier fields, not part of the Struct's value. Size: 0.

    Attributes:
        of: the expression of the value.
    """

    def __init__(self, of: Any) -> None:
        super().__init__()
        self.of = as_expression(of)
        self.flagbuildnone = True

    def needs(self) -> set[str] | None:
        """Returns the fields that it is computed from, or None if a function computes it."""
        return fields_in(self.of)

    def _parse(self, stream: Any, context: Context, path: str) -> Any:
        return self.of(context)

    def _build(self, obj: Any, stream: Any, context: Context, path: str) -> Any:
        value = self.of(context)
        if obj is not None and obj != value:
            raise FormatError(f"expected {quote(value)} (computed from the other fields), found {quote(obj)}", path)
        return value

    def _sizeof(self, context: Context, path: str) -> int:
        return 0


def follows(field: construct.Construct) -> bool:
    """Tells whether a field is computed from others, and so is not part of a record's value."""
    return isinstance(field, construct.Renamed) and isinstance(field.subcon, (Count, Derived))


def unwrap(field: Any) -> Any:
    """Returns a declaration without its name and sentence."""
    while isinstance(field, construct.Renamed):
        field = field.subcon
    return field


def member(struct: construct.Struct, name: str) -> Any:
    """Returns the declaration of a field, without name and sentence, or None."""
    return unwrap(next((field for field in struct.subcons if field.name == name), None))


def is_count(field: construct.Construct) -> bool:
    """Tells whether a field is a `Count`."""
    return isinstance(field, construct.Renamed) and isinstance(field.subcon, Count)


def check_count(counted: Any, count: int, least: int, left: int, path: str) -> None:
    """Checks that `count` elements of at least `least` bytes fit into `left` bytes, before reading.

    Raises:
        TruncatedError: at the field that `counted` refers to, if the elements at `path` do not fit.
    """
    if count * least > left:
        most = f"{left // least} (bytes left: {left}, at least {least} each)"
        raise TruncatedError(f"expected at most {most}, found {count}", field_path(counted, path))


def check_list(values: Any, unit: str, path: str) -> None:
    """Raises FormatError if `values` is not a list or another sequence of elements."""
    if not isinstance(values, Sized) or isinstance(values, (str, Mapping)):
        raise FormatError(f"expected a list of {unit}, found {quote(values)}", path)


def check_length(counted: Any, values: Any, unit: str, context: Context, path: str) -> None:
    """Checks that as many elements are built as were counted, if their count is known.

    Raises:
        FormatError: if they differ, unless the file is forged, or if `values` is not a list.
    """
    check_list(values, unit, path)
    with suppress(KeyError, AttributeError):
        if len(values) != (count := counted(context)) and not context._params.get("forging", False):
            by = f", the value of {outermost(counted)}" if references_in(counted) and read(counted) else ""
            raise FormatError(f"expected {count} {unit}{by}, found {len(values)}", path)


class Padding(construct.Construct):
    """Bytes up to a multiple of `to`, counted from the start of the container.

    Parses into the bytes. Builds bytes of the right length unchanged, otherwise zeros.

    Args:
        to: the expression of the multiple.
        may_lack: the condition under which the file may end before the end of the padding.
    """

    def __init__(self, to: Any, may_lack: Any = lambda context: False) -> None:
        super().__init__()
        self.to = as_expression(to)
        self.may_lack = as_expression(may_lack)
        self.flagbuildnone = True

    def _parse(self, stream: Any, context: Context, path: str) -> bytes:
        nbytes, left = -stream.tell() % self.to(context), bytes_left(stream)
        if nbytes > left and not self.may_lack(context):
            raise TruncatedError(f"expected {nbytes} bytes, found {left}", path)
        return bytes(construct.stream_read(stream, min(nbytes, left), path))

    def _build(self, obj: Any, stream: Any, context: Context, path: str) -> Any:
        nbytes = -stream.tell() % self.to(context)
        if not isinstance(obj, (bytes, NoneType)):
            raise FormatError(f"expected bytes, found {quote(obj)}", path)
        if obj is None or not (len(obj) == nbytes or (self.may_lack(context) and len(obj) < nbytes)):
            obj = bytes(nbytes)
        write_all(stream, obj)
        return obj
