"""What a tensor type is: a code on disk, a payload Struct, and the formulas between its fields and numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import construct
from construct import this

from glft_schema.errors import FormatError
from glft_schema.fields import Record, Struct, TensorField
from glft_schema.lazy import torch
from glft_schema.source import Cursor, Source
from glft_schema.tensor_types.chunks import dequantize_chunks, quantize_chunks, report_faults

# What a payload's fields and rules may refer to: the dims as stored, and the tensor seen as a matrix.
DIMS = this._params.dims
OUT = this._params.out
IN = this._params["in"]

# What a formula may find wrong with its input: fatal or only to be warned of, in words, and which elements [rows, in].
Fault = tuple[bool, str, "torch.Tensor"]


def matrix(dims: Sequence[int]) -> tuple[int, int]:
    """Returns `dims` as [out, in]: the first dim and the product of the rest. A tensor without dims is 1 x 1."""
    return (dims[0] if dims else 1), math.prod(dims[1:])


_NAMED: dict[str, TensorType] = {}  # for pickle and copy, which hand on the name


def no_faults(weights: torch.Tensor, fields: Mapping[str, torch.Tensor]) -> Iterable[Fault]:
    """For formulas that keep every number."""
    return ()


@dataclass(frozen=True, eq=False, repr=False)
class TensorType:
    """How the numbers of a tensor are stored.

    The formulas see a tensor as a matrix [out, in] and work on any number of its rows: they take and give each field with
    one row per row, as [rows, numbers per row].

    Attributes:
        name: as in the format's specification.
        code: the number on disk.
        payload: a Struct of `TensorField`s on OUT and IN, and of rules on DIMS.
        dequantize: the payload's fields as keywords -> numbers [rows, in].
        quantize: numbers [rows, in] (float32, where the type is quantized) -> the payload's fields by name.
        faults: (numbers, the fields made of them) -> what was lost.
        exact: the torch dtype, by name, that the payload holds unchanged; None for quantized types.
    """

    name: str
    code: int
    payload: Struct
    dequantize: Callable[..., torch.Tensor]
    quantize: Callable[[torch.Tensor], dict[str, torch.Tensor]]
    faults: Callable[[torch.Tensor, Mapping[str, torch.Tensor]], Iterable[Fault]] = no_faults
    exact: str | None = None

    def __post_init__(self) -> None:
        _NAMED[self.name] = self

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return _named, (self.name,)

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

    def nbytes(self, dims: Sequence[int]) -> int:
        """Returns the bytes that a tensor of `dims` takes.

        Raises:
            FormatError: where the type cannot hold such dims; the text says why.
        """
        return int(self.payload.sizeof(**_params(dims)))

    def refusal(self, dims: Sequence[int]) -> str | None:
        """Returns why the type cannot hold a tensor of `dims`, or None where it can."""
        try:
            self.nbytes(dims)
        except FormatError as error:
            return error.problem
        return None

    def parse(self, cursor: Cursor, dims: Sequence[int], path: str = "(parsing)") -> Record:
        """Returns the payload that begins at `cursor`, its fields as tensors."""
        record = self.payload._parse(cursor, _context(dims), path)
        assert isinstance(record, Record)
        return record

    def build(self, fields: Mapping[str, torch.Tensor], dims: Sequence[int]) -> bytes:
        """Returns the payload's bytes. Raises FormatError where a field is not of its declared type and shape."""
        return bytes(self.payload.build(fields, **_params(dims)))

    def encode(self, tensor: torch.Tensor, name: str) -> dict[str, torch.Tensor]:
        """Returns the payload's fields, [out, numbers per row], for a tensor of any strides, on its device.

        Args:
            tensor: the numbers.
            name: how errors and warnings call it.

        Raises:
            FormatError: where the type cannot hold a tensor of its dims.
            TensorError: where its numbers would lose their meaning.
        """
        self.nbytes(tensor.shape)
        rows, context = tensor.detach() if tensor.dim() else tensor.detach().reshape(1), _context(tensor.shape)
        fields = {}
        for key, field in self._fields():
            shape = field.shape(context)
            fields[key] = torch.empty(shape[0], math.prod(shape[1:]), dtype=field.number.dtype, device=tensor.device)
        quantize_chunks(self.quantize, rows, fields, None if self.exact else torch.float32)
        report_faults(self.faults(rows.reshape(matrix(tensor.shape)), fields), name, tensor.shape)
        return fields

    def decode(self, fields: Mapping[str, torch.Tensor], columns: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Returns the numbers [rows, columns] of fields [rows, numbers per row], on their device.

        Args:
            fields: as `cut` and `encode` give them.
            columns: numbers in a row.
            dtype: a float dtype; the type's own unless given. Floats that keep their dtype are the stored ones, not a copy.
        """
        if self.exact:
            return self.dequantize(**fields).to(dtype or self.dtype)
        first = next(iter(fields.values()))
        out = torch.empty(first.shape[0], columns, dtype=dtype or self.dtype, device=first.device)
        dequantize_chunks(self.dequantize, fields, out)
        return out

    def places(self, dims: Sequence[int]) -> dict[str, tuple[int, int]]:
        """Returns where each field of a payload lies: its first byte, counted from the payload's, and its bytes."""
        context, start, places = _context(dims), 0, {}
        for name, field in self._fields():
            places[name] = (start, field._sizeof(context, ""))
            start += places[name][1]
        return places

    def unit(self, dims: Sequence[int]) -> int:
        """Returns how many neighbours in a row share a stored number: a cut may begin only at a multiple of it."""
        _, columns = matrix(dims)
        pitches = [math.prod(field.shape(_context(dims))[1:]) for _, field in self._fields() if len(field.dims) > 1]
        return math.lcm(*(columns // (math.gcd(columns, pitch) or 1) for pitch in pitches)) or 1

    def cut(self, source: Source, start: int, dims: Sequence[int], rows: range, columns: range) -> dict[str, torch.Tensor]:
        """Returns the payload's fields [rows, numbers per row] for a part of the matrix, and touches no byte of the rest.

        Args:
            source: where the payload lies.
            start: its first byte.
            dims: of the whole tensor.
            rows: in steps of 1.
            columns: in steps of 1, from a multiple of `unit` to one.
        """
        context, width, fields = _context(dims), matrix(dims)[1], {}
        places = self.places(dims)
        for name, field in self._fields():
            pitch = math.prod(field.shape(context)[1:])
            low, high = 0, pitch
            if len(field.dims) > 1 and width:
                low, high = columns.start * pitch // width, columns.stop * pitch // width
            first, last = rows.start * pitch + low, (rows.stop - 1) * pitch + high
            numbers = field.numbers(source, start + places[name][0], first, max(first, last))
            fields[name] = numbers.as_strided((len(rows), high - low), (pitch, 1))
        return fields

    def _fields(self) -> Iterator[tuple[str, TensorField]]:
        return ((field.name, field.subcon) for field in self.payload.subcons if field.name)


def _named(name: str) -> TensorType:
    return _NAMED[name]


def _params(dims: Sequence[int]) -> dict[str, Any]:
    out, columns = matrix(dims)
    return {"dims": list(dims), "out": out, "in": columns}


def _context(dims: Sequence[int]) -> Any:
    context = construct.Container(**_params(dims), _parsing=True, _building=False, _sizing=False)
    context._params = context
    return context


class TypeTable:
    """The types of one format, found by code, by name, by scheme, or by themselves."""

    def __init__(self, format_name: str, *types: TensorType) -> None:
        self.format_name = format_name
        self.types = types
        self._known: dict[object, TensorType] = {}
        for type_ in types:
            self._known |= {type_.code: type_, type_.name: type_, type_.scheme: type_, type_: type_}

    def __getitem__(self, key: object) -> TensorType:
        return self._known[key]

    def __iter__(self) -> Iterator[TensorType]:
        return iter(self.types)

    def __str__(self) -> str:
        return f"a {self.format_name} type ({', '.join(f'{t.code} {t.name}' for t in self.types)})"
