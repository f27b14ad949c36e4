"""What a tensor type is: a code on disk, a payload Struct, and the formulas between its fields and numbers."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from construct import this

from glft_schema.codec.context import LITTLE, ByteOrder, Context, new_context
from glft_schema.codec.numbers import TensorField
from glft_schema.codec.records import Record
from glft_schema.codec.structs import Struct
from glft_schema.codec.type_codes import by_table
from glft_schema.errors import FormatError, TensorError
from glft_schema.lazy import outside_graphs, torch
from glft_schema.storage.cursor import Cursor
from glft_schema.storage.source import Source
from glft_schema.storage.tensor_bytes import tensor_bytes, tensor_over
from glft_schema.tensor_types.engine.chunks import Fault, Rows, dequantize_chunks, matrix, quantize_chunks, spread_importance
from glft_schema.tensor_types.engine.scaled import Encoder, Formula

# What a payload's fields and rules may refer to: the sizes in torch's order, and the tensor seen as a matrix.
DIMS = this._params.dims
OUT = this._params.out
IN = this._params["in"]


# The torch dtypes that hold one number an element, and float32 or float64 holds exactly.
FLOATS = (
    *("float64", "float32", "float16", "bfloat16"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
)


_NAMES: set[str] = set()  # of all types: equal names are equal types
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "bool")


def is_float(dtype: torch.dtype) -> bool:
    """Tells whether tensors of `dtype` hold floats that can be stored."""
    return str(dtype).removeprefix("torch.") in FLOATS


def is_integer(dtype: torch.dtype) -> bool:
    """Tells whether tensors of `dtype` hold integers that can be stored."""
    return str(dtype).removeprefix("torch.") in INTEGERS


def no_faults(weights: torch.Tensor, fields: Mapping[str, torch.Tensor]) -> Iterable[Fault]:
    """For formulas that keep every number."""
    return ()


class Reserved(NamedTuple):
    """Stored numbers that stand for nothing, so that no encoder gives them.

    Attributes:
        field: where they are stored.
        numbers: what they are, as a sentence's end.
        found: the field [rows, numbers], of words their bytes -> a mask of the same shape.
    """

    field: str
    numbers: str
    found: Callable[[torch.Tensor], torch.Tensor]


# The floats that a field of integers stands for: the field [blocks, numbers], of words their bytes -> floats [blocks, k].
Floats = Callable[["torch.Tensor"], "torch.Tensor"]


@dataclass(frozen=True, eq=False, repr=False)
class TensorType:
    """How the numbers of a tensor are stored.

    The formulas see a tensor as a matrix [out, in] and work on any number of its rows: they take and give each field with
    one row per row, as [rows, numbers per row].

    Attributes:
        name: as in the format's specification.
        code: the number on disk.
        payload: a Struct of `TensorField`s on OUT and IN, and of rules on DIMS.
        formula: the payload's fields as keywords -> numbers [rows, in], or codes and what scales them.
        quantize: numbers [rows, in] (float32, where the type is quantized) -> the payload's fields by name; None where there is
            no encoder, or none that does without an importance.
        faults: (numbers, the fields made of them) -> what was lost.
        exact: the torch dtype, float or integer, by name, that the payload holds unchanged; None for quantized types.
        block: the fields of a block, where the payload is one block after another.
        scales: the fields of integers that are scales in a float format of their own, or hold one, and what they stand for.
        reserved: stored numbers that stand for nothing.
        searches: whether `quantize` searches, as `weighted` always does: then it is thousands of operations, which are not
            compiled.
        weighted: as `quantize`, of numbers and how much each of them matters, both float32 [rows, in]; None where that makes no
            difference.
    """

    name: str
    code: int
    payload: Struct
    formula: Formula
    quantize: Encoder | None
    faults: Callable[[torch.Tensor, Mapping[str, torch.Tensor]], Iterable[Fault]] = no_faults
    _: KW_ONLY
    exact: str | None = None
    block: Struct | None = None
    scales: Mapping[str, Floats] | None = None
    reserved: tuple[Reserved, ...] = ()
    searches: bool = False
    weighted: Encoder | None = None

    def __post_init__(self) -> None:
        if self.name in _NAMES:
            raise ValueError(f"expected a name that no other type has, found {self.name!r}")
        _NAMES.add(self.name)

    def __repr__(self) -> str:
        return self.name

    def __str__(self) -> str:  # which torch.compile would fold into a constant if it was not defined
        return self.name

    def __eq__(self, other: object) -> bool:  # by name, which torch.compile guards: names are unique
        return isinstance(other, TensorType) and self.name == other.name

    __hash__ = object.__hash__

    def __reduce__(self) -> tuple[Any, ...]:
        return by_table(self)

    def __copy__(self) -> TensorType:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> TensorType:
        return self  # nothing in it changes

    @property
    def scheme(self) -> str:
        """Its name in schemes and on the command line."""
        return self.name.lower()

    @property
    def dtype(self) -> torch.dtype:
        """The torch dtype that it dequantizes to unless asked otherwise."""
        dtype = getattr(torch, self.exact or "float32")
        assert isinstance(dtype, torch.dtype)
        return dtype

    @property
    def is_known(self) -> bool:
        """Whether it is declared: of another one only the code is known."""
        return True

    @property
    def is_integer(self) -> bool:
        """Whether it holds integers."""
        return self.exact in INTEGERS

    @property
    def has_encoder(self) -> bool:
        """Whether it can be made, if need be with an importance."""
        return bool(self.quantize or self.weighted)

    @property
    def needs_importance(self) -> bool:
        """Whether it can be made only where it is known how much each column matters."""
        return self.quantize is None and self.weighted is not None

    def takes(self, dtype: torch.dtype) -> bool:
        """Tells whether `encode` takes tensors of `dtype`."""
        return is_integer(dtype) if self.is_integer else is_float(dtype)

    def dtype_refusal(self, dtype: torch.dtype) -> str:
        """Returns why `encode` does not take tensors of `dtype`."""
        kind = "a signed integer dtype, uint8 or bool" if self.is_integer else "a float dtype"
        return f"expected {kind}, found {dtype}: exclude or convert it"

    @property
    def least_row(self) -> int:
        """The fewest numbers that a row can have: those of a block or group, or one."""
        return next(length for length in range(1, 1 << 16) if self.refusal([1, length]) is None)

    def nbytes(self, dims: Sequence[int]) -> int:
        """Returns the bytes that a tensor of `dims`, sizes in torch's order, takes.

        Raises:
            FormatError: where the type cannot hold such dims; the text says why.
        """
        return _nbytes(self, tuple(dims))

    def refusal(self, dims: Sequence[int]) -> str | None:
        """Returns why the type cannot hold a tensor of `dims`, or None where it can."""
        try:
            self.nbytes(dims)
        except FormatError as error:
            return error.problem
        return None

    def parse(self, cursor: Cursor, dims: Sequence[int], order: ByteOrder = LITTLE) -> Record:
        """Returns the payload that begins at `cursor`, its fields as tensors."""
        record = self.payload._parse(cursor, _context(dims, order), "(parsing)")
        assert isinstance(record, Record)
        return record

    def build(self, fields: Mapping[str, torch.Tensor], dims: Sequence[int]) -> bytes:
        """Returns the payload's bytes. Raises FormatError where a field is not of its declared type and shape."""
        stream = io.BytesIO()
        self.write(fields, stream, dims)
        return stream.getvalue()

    def write(
        self,
        fields: Mapping[str, torch.Tensor],
        stream: Any,
        dims: Sequence[int],
        path: str = "(building)",
        order: ByteOrder = LITTLE,
    ) -> None:
        """Writes the payload field by field. Raises FormatError as `build`."""
        self.payload._build(fields, stream, _context(dims, order), path)

    def pieces(self, fields: Mapping[str, torch.Tensor], order: ByteOrder = LITTLE) -> Iterator[memoryview]:
        """Yields the bytes of fields as `encode` gives them, in the payload's order."""
        for name, field in self.fields():
            yield tensor_bytes(fields[name] if order == LITTLE else field.swapped(fields[name]))

    @outside_graphs
    def encode(
        self,
        tensor: torch.Tensor | Rows,
        name: str,
        *,
        importance: torch.Tensor | None = None,
        watch: Callable[[torch.Tensor, Mapping[str, torch.Tensor]], None] | None = None,
    ) -> dict[str, torch.Tensor]:
        """Returns the payload's fields, [out, numbers per row], for a tensor of any strides, on its device.

        Args:
            tensor: the numbers; or what gives its rows, some at a time.
            name: how errors and warnings call it.
            importance: how much an error in each column matters: as many numbers as the last dim has, or for a stack of
                matrices as many for each; see `glft_schema.read_importance`. Types that make no use of it pass it over.
            watch: called with some rows [rows, in] at a time, as they came, and the fields made of them.

        Raises:
            FormatError: where the type cannot hold a tensor of its dims.
            TensorError: where its numbers would lose their meaning, and where the importance is none or is missing.
        """
        if not self.takes(tensor.dtype):
            raise TensorError(self.dtype_refusal(tensor.dtype), name)
        dims, device, rows = tensor.dims if isinstance(tensor, Rows) else tuple(tensor.shape), torch.device("cpu"), tensor
        if isinstance(tensor, torch.Tensor):
            device, rows = tensor.device, tensor if tensor.dim() > 1 else tensor.reshape(1, -1)
        self.nbytes(dims)
        encoder = self.quantize if importance is None else self.weighted or self.quantize
        if encoder is None:
            missing = f"{self} needs the importance of its columns" if self.weighted else f"there is no encoder for {self}"
            raise TensorError(missing, name)
        spread = None if importance is None else spread_importance(importance, dims, name).to(device)
        spread = spread if encoder is self.weighted else None  # others have no use for it
        fields = {
            key: torch.empty(matrix(dims)[0], pitch, dtype=field.number.dtype, device=device)
            for key, field, _, pitch in _layout(self, dims)
        }
        done = quantize_chunks(encoder, rows, fields, not self.exact, self.faults, name, dims, spread, self.searches)
        for chunk, made in done:
            if watch:
                watch(chunk, made)
        return fields

    def decode(
        self,
        fields: Mapping[str, torch.Tensor],
        columns: int,
        *,
        dtype: torch.dtype | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Returns the numbers [rows, columns] of fields [rows, numbers per row], on their device.

        Args:
            fields: as `cut` and `encode` give them.
            columns: numbers in a row.
            dtype: a float dtype; the type's own unless given. Numbers that keep their dtype are the stored ones, not a copy.
            out: where to write them, contiguous, of this shape, dtype and device; new memory unless given.
        """
        if self.exact and out is None:
            made, wanted = self.dequantize(**fields), dtype or self.dtype
            return made if made.dtype == wanted else made.to(wanted)
        if out is None:
            first = next(iter(fields.values()))
            out = torch.empty(first.shape[0], columns, dtype=dtype or self.dtype, device=first.device)
        if self.exact:
            out.copy_(self.dequantize(**fields))
        elif out.numel():
            cell = columns if any(_per_row(field) for _, field in self.fields()) else self.unit([1, columns])
            cells = {name: field.reshape(-1, field.shape[1] * cell // columns) for name, field in fields.items()}
            dequantize_chunks(self.formula, self.columns(cells), out.view(-1, cell))
        return out

    def dequantize(self, **fields: torch.Tensor) -> torch.Tensor:
        """Returns the numbers [rows, in] of fields [rows, numbers per row], all at once: plain torch, on any device."""
        made = self.formula(**self.columns(fields))
        weights, rows = made if isinstance(made, torch.Tensor) else made.weights(), len(next(iter(fields.values())))
        return weights.flatten(1) if len(weights) == rows else weights.reshape(rows, -1)  # which has an answer for no rows, too

    def columns(self, fields: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Returns what the formula takes: the payload's fields, and for one of blocks each field of these, [blocks, numbers].

        Unsigned words of blocks come as their bytes, the lowest first: torch computes with neither u16 nor u32.
        """
        columns: dict[str, torch.Tensor] = {}
        for name, field in self.fields():
            columns.update(field.columns(name, fields[name]))  # torch 2.6 does not trace |=
        return columns

    def round_trip(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        """Returns what a file gives back of `tensor`: its numbers after encoding and decoding. Raises as `encode` does."""
        return self.decode(self.encode(tensor, name), matrix(tensor.shape)[1]).reshape(tensor.shape)

    def field_spans(self, dims: Sequence[int]) -> dict[str, tuple[int, int]]:
        """Returns where each field of a payload lies: its first byte, counted from the payload's, and its bytes."""
        context, start, places = _context(dims), 0, {}
        for name, field in self.fields():
            places[name] = (start, field._sizeof(context, ""))
            start += places[name][1]
        return places

    def unit(self, dims: Sequence[int]) -> int:
        """Returns how many neighbours in a row share a stored number: a cut may begin only at a multiple of it."""
        return _unit(self, tuple(dims))

    def cut(
        self, source: Source, start: int, dims: Sequence[int], rows: range, columns: range, order: ByteOrder = LITTLE
    ) -> dict[str, torch.Tensor]:
        """Returns the payload's fields [rows, numbers per row] for a part of the matrix.

        Reads, of each row that is asked for, the bytes from the first number to the last. Of a mapped little-endian file they
        are views.

        Args:
            source: where the payload lies.
            start: its first byte.
            dims: of the whole tensor.
            rows: in any steps.
            columns: in steps of 1, from a multiple of `unit` to one.
            order: the byte order of the numbers there.
        """
        width, fields = matrix(dims)[1], {}
        for name, field, first, pitch in _layout(self, tuple(dims)):
            part = range(pitch)
            if not _per_row(field) and width:
                part = range(columns.start * pitch // width, columns.stop * pitch // width)
            read = _read_rows(source, start + first, field, rows, pitch, part)
            fields[name] = read if order == LITTLE else field.swapped(read)
        return fields

    def fields(self) -> Iterator[tuple[str, TensorField]]:
        """Yields the payload's fields by name, in its order."""
        return ((field.name, field.subcon) for field in self.payload.subcons if field.name)


@lru_cache(maxsize=1 << 12)  # a model has many tensors of few shapes
def _nbytes(type_: TensorType, dims: tuple[int, ...]) -> int:
    return int(type_.payload.sizeof(**_params(dims)))


@lru_cache(maxsize=1 << 12)
def _unit(type_: TensorType, dims: tuple[int, ...]) -> int:
    columns, context = matrix(dims)[1], _context(dims)
    across = [field.shape(context)[1] for _, field in type_.fields() if len(field.dims) > 1]
    return math.lcm(*(columns // parts for parts in across if parts)) or 1


@lru_cache(maxsize=1 << 12)
def _layout(type_: TensorType, dims: tuple[int, ...]) -> list[tuple[str, TensorField, int, int]]:
    """Returns the fields of a payload: name, field, first byte, and how many numbers of it belong to each row."""
    context, places = _context(dims), type_.field_spans(dims)
    return [(name, field, places[name][0], _pitch(field, context)) for name, field in type_.fields()]


def _per_row(field: TensorField) -> bool:
    """Tells whether the field has numbers for a row as a whole, so that no cut within the row divides them."""
    return len(field.dims) == 1 and field.dims[0] is OUT


def _pitch(field: TensorField, context: Context) -> int:
    """Returns how many numbers of the field belong to each row."""
    return math.prod(field.shape(context)) // max(int(context["out"]), 1)


def _read_rows(source: Source, start: int, field: TensorField, rows: range, pitch: int, part: range) -> torch.Tensor:
    """Returns the numbers `part` of each of `rows`, of a field that begins at byte `start` and has `pitch` numbers a row."""
    dtype, size = field.number.dtype, field.number.itemsize

    def numbers(first: int, last: int) -> torch.Tensor:
        return tensor_over(source.private(start + first * size, (last - first) * size), dtype, [last - first])

    if not rows or not part:
        return torch.empty(len(rows), len(part), dtype=dtype)
    if source.mapped or len(rows) == 1 or (rows.step == 1 and len(part) == pitch):
        span = numbers(rows[0] * pitch + part.start, rows[-1] * pitch + part.stop)
        return span.as_strided((len(rows), len(part)), (rows.step * pitch, 1))
    return torch.stack([numbers(row * pitch + part.start, row * pitch + part.stop) for row in rows])


def _params(dims: Sequence[int]) -> dict[str, Any]:
    out, columns = matrix(dims)
    return {"dims": list(dims), "out": out, "in": columns}


def _context(dims: Sequence[int], order: ByteOrder = LITTLE) -> Any:
    return new_context(True, **_params(dims), byte_order=order)


@dataclass(frozen=True, eq=False, repr=False)
class OpaqueType(TensorType):
    """A type of which nothing is known but its code: its payload is bytes, up to the next payload."""

    @classmethod
    def of(cls, code: int) -> OpaqueType:
        """Returns the one for `code`."""
        return cls(f"type {code}", code, Struct(), _no_formula, None)

    @property
    def is_known(self) -> bool:
        return False

    def __post_init__(self) -> None:
        """Is in no table of names: it is handed on by its code."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OpaqueType) and self.code == other.code

    def __hash__(self) -> int:
        return hash((OpaqueType, self.code))

    def refusal(self, dims: Sequence[int]) -> str | None:
        return None

    def nbytes(self, dims: Sequence[int]) -> int:
        raise FormatError(f"expected a type whose bytes can be counted, found {self}")

    def __reduce__(self) -> tuple[Any, ...]:
        return OpaqueType.of, (self.code,)


def _no_formula() -> torch.Tensor:
    raise NotImplementedError
