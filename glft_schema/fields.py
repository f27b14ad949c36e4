"""Constructs shared by the formats, beside those of the construct library.

=============  =====================================================================================================
`Struct`       construct's, whose result is a `Record` and whose fields can be traced to their bytes
`Table`        an array of Structs that numbers its rows in error paths
`Count`        an integer derived from what it counts: read, checked, and never a part of the value
`Rule`         a sentence that the fields around it must satisfy, parsing and building; a kind of `Check`
`TypeCode`     an integer that stands for a tensor type
`f16[a, b]`    an array of numbers as a torch tensor, in C order, little-endian; also `f32`, `i16`, `i8`, `u8`
=============  =====================================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NoReturn

import construct
from construct.core import evaluate

from glft_schema.errors import FormatError, TruncatedError, shown
from glft_schema.lazy import torch
from glft_schema.source import Cursor
from glft_schema.tensor_bytes import tensor_bytes, tensor_over, write_all
from glft_schema.trace import Trace

NO_COUNTS: Mapping[str, int] = MappingProxyType({})
SHORT_TABLE = 1 << 16  # bytes left up to which a table that cannot fit is parsed all the same, to name the field cut off


class Record(Mapping[str, Any]):
    """The fields of a parsed `Struct`, in order, by attribute and by key. Read-only; equal to any mapping with equal items.

    Attributes:
        counts: what follows from the fields, such as ``n_tensors``. Counts can be read as attributes too, but are no part of
            the value.
    """

    __slots__ = ("_fields", "counts")

    def __init__(self, fields: dict[str, Any], counts: dict[str, int] | None = None) -> None:
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
        counts: dict[str, int] = {}
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
                (counts if _is_count(field) else fields)[field.name] = value
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
        return [field.name for field in self.subcons if field.name and not _is_count(field)]


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


def _is_count(field: construct.Construct) -> bool:
    return isinstance(field, construct.Renamed) and isinstance(field.subcon, Count)


class Check(construct.Construct):
    """Something that must hold where it stands in a `Struct`: parsing, building and computing sizes. Takes no bytes.

    Attributes:
        id: its stable name.
        field: the field that it guards.
    """

    def __init__(self, id: str, field: str) -> None:
        super().__init__()
        self.id = id
        self.field = field
        self.flagbuildnone = True

    def check(self, context: Any, path: str) -> None:
        """Raises FormatError where it does not hold in `context`."""
        raise NotImplementedError

    def _parse(self, stream: Any, context: Any, path: str) -> None:
        self.check(context, path)

    def _build(self, obj: Any, stream: Any, context: Any, path: str) -> None:
        self.check(context, path)

    def _sizeof(self, context: Any, path: str) -> int:
        self.check(context, path)
        return 0


class Rule(Check):
    """A `Check` that is one sentence.

    Attributes:
        holds: tells whether it does, from the fields parsed so far.
        expected: the sentence's end: what the field is expected to be.
        error: what is raised where it is not.
        show: how what was found is shown.
    """

    def __init__(
        self,
        id: str,
        field: str,
        holds: Callable[[Any], object],
        expected: str,
        error: type[FormatError] = FormatError,
        show: Callable[[Any], str] = shown,
    ) -> None:
        super().__init__(id, field)
        self.show = show
        self.holds = holds
        self.expected = expected
        self.error = error

    def check(self, context: Any, path: str) -> None:
        if not self.holds(context):
            found = context[self.field] if self.field in context else context._params[self.field]
            raise self.error(f"expected {self.expected}, found {self.show(found)}", f"{path} -> {self.field}")


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

    Parses into the `TensorType`; builds from it, from its name or from its code; size of `integer`.
    """

    def __init__(self, integer: construct.Construct, table: Any) -> None:
        super().__init__(integer)
        self.table = table

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


class TensorField(construct.Construct):
    """An array of numbers, ``f16[OUT, IN // 64]``: dims are integers or expressions on the tensor's dims.

    Parses into a torch tensor (a view where the source allows it, never one that reaches the file or the caller's bytes),
    builds from a tensor of exactly this type and shape, size of its elements.
    """

    def __init__(self, number: Number, dims: tuple[Any, ...]) -> None:
        super().__init__()
        self.number = number
        self.dims = dims

    def __repr__(self) -> str:
        return f"{self.number.name}[{', '.join(str(dim) for dim in self.dims)}]"

    def shape(self, context: Any) -> list[int]:
        """Returns the dims as integers; one that stands for several is spread."""
        sizes: list[int] = []
        for dim in self.dims:
            size = evaluate(dim, context)
            sizes.extend(size) if isinstance(size, list) else sizes.append(size)
        return sizes

    def _parse(self, stream: Any, context: Any, path: str) -> torch.Tensor:
        nbytes = self._sizeof(context, path)
        if isinstance(stream, Cursor):
            view = stream.private(nbytes)
        else:
            view = memoryview(bytearray(construct.stream_read(stream, nbytes, path)))
        return tensor_over(view, self.number.dtype, self.shape(context))

    def _build(self, obj: Any, stream: Any, context: Any, path: str) -> Any:
        dtype, shape = self.number.dtype, self.shape(context)
        if not isinstance(obj, torch.Tensor):
            raise FormatError(f"expected a torch.Tensor, found {shown(obj)}", path)
        if obj.dtype != dtype or list(obj.shape) != shape:
            raise FormatError(f"expected {dtype} {shape}, found {obj.dtype} {list(obj.shape)}", path)
        write_all(stream, tensor_bytes(obj))
        return obj

    def _sizeof(self, context: Any, path: str) -> int:
        return math.prod(self.shape(context)) * self.number.itemsize


class Number:
    """A type of number as stored, which ``[dims]`` makes an array: ``f16[4, 8]``.

    Attributes:
        name: as written in a schema.
        itemsize: bytes.
    """

    def __init__(self, name: str, torch_name: str, itemsize: int) -> None:
        self.name = name
        self.itemsize = itemsize
        self._torch_name = torch_name

    @property
    def dtype(self) -> torch.dtype:
        dtype = getattr(torch, self._torch_name)
        assert isinstance(dtype, torch.dtype)
        return dtype

    def __getitem__(self, dims: Any) -> TensorField:
        return TensorField(self, dims if isinstance(dims, tuple) else (dims,))


f32 = Number("f32", "float32", 4)
f16 = Number("f16", "float16", 2)
i16 = Number("i16", "int16", 2)
i8 = Number("i8", "int8", 1)
u8 = Number("u8", "uint8", 1)
