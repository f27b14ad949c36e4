"""Tensor types: the code on disk, the payload's Struct, and the formulas that convert fields to
weights and back."""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import lru_cache
from inspect import signature
from typing import Any, NamedTuple, TypeVar

import numpy as np
from construct import this
from numpy.lib.stride_tricks import as_strided

from glft_schema.codec.context import LITTLE, ByteOrder, new_context
from glft_schema.codec.expressions import as_expression
from glft_schema.codec.numbers import Number, TensorField
from glft_schema.codec.records import Record
from glft_schema.codec.structs import Struct
from glft_schema.codec.type_codes import by_table
from glft_schema.errors import FormatError, TensorError, alternatives, quote
from glft_schema.lazy import outside_graphs
from glft_schema.scalar.block_layout import NUMPY, Functions, ScalarField, ScalarLayout
from glft_schema.storage.cursor import Cursor
from glft_schema.storage.dtypes import FLOAT32, INTEGERS, NAMES, Array, Dtype, dtype_of, is_float, is_integer, name_of, words
from glft_schema.storage.source import Source
from glft_schema.storage.tensor_bytes import array_bytes, array_over
from glft_schema.storage.torch_tensors import array_of, not_dense
from glft_schema.tensor_types.engine.chunks import Fault, RowEncoder, TensorPart, encode_chunks, importance_rows, matrix
from glft_schema.tensor_types.engine.conversions import convert
from glft_schema.tensor_types.engine.functions import Encoder, Fields, Formula

# The names that a payload's fields and rules refer to: the dims in torch's order, and the dims of
# the matrix.
DIMS = this._params.dims
OUT = this._params.out
IN = this._params["in"]

ROW = 1 << 20  # an example length of rows, to compute the weights per number of each field
PACKAGE = f"{__name__.partition('.')[0]}."
_NAMES: set[str] = set()  # used in schemes; unique, because types with equal names are equal


def no_faults(weights: Array, fields: Fields) -> Iterable[Fault]:
    """Returns no faults, for an encoder that keeps every number."""
    return ()


class Reserved(NamedTuple):
    """Reserved bit patterns of a field, which no encoder writes.

    Attributes:
        field: the name of the field.
        numbers: the patterns in words, for errors and documentation.
        found: the field [rows, numbers], an array of numpy -> a mask of the same shape.
    """

    field: str
    numbers: str
    found: Callable[[Array], Array]


# Converts a field of integers to the floats that it encodes: [blocks, numbers] -> [blocks, k],
# arrays of numpy.
Floats = Callable[[Array], Array]


@dataclass(frozen=True, eq=False, repr=False)
class TensorType:
    """How the numbers of a tensor are stored.

    The formulas see a tensor as a matrix [out, in] and work on any number of its rows. They take
    and return each field as [rows, numbers per row].

    Attributes:
        name: as in the format's specification.
        code: the type number on disk, or the type's name in formats that store names. The type
            table of a format may give another code.
        payload: a Struct of `TensorField`s on OUT and IN, and of rules on DIMS.
        formula: a scalar function of one block or row, see `formula_of`; None for an exact type.
        quantize: the encoder, a scalar function of one block or row, or two, the second of which
            reads the importance; for an exact type, a function from numbers to the stored numbers,
            both arrays. None if the type has no encoder.
        faults: (numbers, the fields that encode them) -> each loss, see `Fault`.
        exact: the name of the dtype that the payload stores unchanged; None for quantized types.
        block: the fields of a block, if the payload is a sequence of blocks.
        scales: for each field of integers that encodes floats, the conversion to them.
        reserved: bit patterns that no encoder writes.
        takes_importance: whether the encoder uses an importance.
        needs_importance: whether the encoder requires an importance.
    """

    name: str
    code: int | str
    payload: Struct
    formula: Formula | None = None
    quantize: Encoder | tuple[Encoder, ...] | None = None
    faults: Callable[[Array, Fields], Iterable[Fault]] = no_faults
    _: KW_ONLY
    exact: str | None = None
    block: Struct | None = None
    scales: Mapping[str, Floats] | None = None
    reserved: tuple[Reserved, ...] = ()
    takes_importance: bool = field(init=False, default=False)
    needs_importance: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        if self.scheme in _NAMES:
            raise ValueError(f"expected an unused type name, found {self.name!r}")
        if self.encoders:
            by_importance = ["importance" in signature(encoder).parameters for encoder in self.encoders]
            object.__setattr__(self, "takes_importance", any(by_importance))
            object.__setattr__(self, "needs_importance", all(by_importance))
            _check_encoders(self, by_importance)
        _check_formula(self)
        _NAMES.add(self.scheme)

    def __repr__(self) -> str:
        return self.name

    def __str__(self) -> str:  # torch.compile would fold an inherited one into a constant
        return self.name

    def __eq__(self, other: object) -> bool:  # by name, which torch.compile guards: names are unique
        return isinstance(other, TensorType) and self.name == other.name

    __hash__ = object.__hash__

    def __reduce__(self) -> tuple[Any, ...]:
        return by_table(self)

    def __copy__(self) -> TensorType:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> TensorType:
        return self

    @property
    def scheme(self) -> str:
        """The type's name in schemes and on the command line."""
        return self.name.lower()

    @property
    def dtype(self) -> Dtype:
        """The default dtype of `decode`, see `storage.dtypes`; uint8 if there are no values."""
        return dtype_of(self.exact or "float32") if self.exact in (None, *NAMES) else dtype_of("uint8")

    @property
    def is_known(self) -> bool:
        """Whether the type is declared; otherwise, only its code is known."""
        return True

    @property
    def is_quantized(self) -> bool:
        """Whether values are computed by a formula, from codes and scales."""
        return self.exact is None and self.is_known

    @property
    def bytes_only(self) -> str | None:
        """The reason why tensors of the type have bytes but no values; None if they have values."""
        if self.exact in (None, *NAMES):
            return None
        return f"neither numpy nor torch has {self.exact}: {self} can be copied and hashed only"

    @property
    def is_integer(self) -> bool:
        """Whether the type stores integers."""
        return self.exact in INTEGERS

    @property
    def encoders(self) -> tuple[Encoder, ...]:
        """The encoders; if one takes an importance, it is the last."""
        return self.quantize if isinstance(self.quantize, tuple) else (self.quantize,) if self.quantize else ()

    @property
    def has_encoder(self) -> bool:
        """Whether the type has an encoder, which may require an importance."""
        return bool(self.encoders)

    def takes(self, dtype: Dtype) -> bool:
        """Tells whether `encode` accepts numbers of `dtype`."""
        return is_integer(dtype) if self.is_integer else is_float(dtype)

    def dtype_refusal(self, dtype: Dtype) -> str:
        """Returns why `encode` does not accept numbers of `dtype`."""
        kind = "a signed integer dtype, uint8 or bool" if self.is_integer else "a float dtype"
        return f"expected {kind}, found {name_of(dtype)}: exclude or convert the tensor"

    @property
    def least_row(self) -> int:
        """The length of the shortest row: a block, a group, or one number."""
        return next(length for length in range(1, 1 << 16) if self.refusal([1, length]) is None)

    def nbytes(self, dims: Sequence[int]) -> int:
        """Returns the size in bytes of a tensor of `dims`, in torch's order.

        Raises:
            FormatError: if the type cannot store such dims; the text says why.
        """
        return _nbytes(self, tuple(dims))

    def refusal(self, dims: Sequence[int]) -> str | None:
        """Returns why the type cannot store a tensor of `dims`, or None if it can."""
        try:
            self.nbytes(dims)
        except FormatError as error:
            return error.problem
        return None

    def parse(self, cursor: Cursor, dims: Sequence[int], order: ByteOrder = LITTLE) -> Record:
        """Returns the payload that begins at `cursor`, its fields as arrays."""
        record = self.payload._parse(cursor, _context(dims, order), "(parsing)")
        assert isinstance(record, Record)
        return record

    def build(self, fields: Fields, dims: Sequence[int]) -> bytes:
        """Returns the payload's bytes. Raises FormatError if a field has another type or shape."""
        stream = io.BytesIO()
        self.write(fields, stream, dims)
        return stream.getvalue()

    def write(
        self,
        fields: Fields,
        stream: Any,
        dims: Sequence[int],
        path: str = "(building)",
        order: ByteOrder = LITTLE,
    ) -> None:
        """Writes the payload field by field. Raises FormatError like `build`."""
        self.payload._build(fields, stream, _context(dims, order), path)

    def pieces(self, fields: Fields, order: ByteOrder = LITTLE) -> Iterator[memoryview]:
        """Yields the bytes of fields that `encode` returned, in the payload's order."""
        for name, part in self.fields():
            yield array_bytes(fields[name] if order == LITTLE else part.swap(fields[name]))

    @outside_graphs
    def encode(
        self,
        numbers: Any,
        name: str,
        *,
        importance: Any = None,
        watch: Callable[[Array, Fields], None] | None = None,
        lost: Counter[str] | None = None,
    ) -> dict[str, Array]:
        """Returns the payload's fields, [out, numbers per row].

        Args:
            numbers: an array of numpy or torch, of any strides.
            name: the tensor's name in errors and warnings.
            importance: the weight of an error in each column: one number per index of the last dim,
                or this many for each matrix of a stack; see `glft_schema.read_importance`. Ignored
                by types that do not use it.
            watch: called with each chunk of rows [rows, in], as given, and the fields that encode
                them; several threads may call it.
            lost: gets the count of weights for each kind of loss, such as scales that round to
                zero; by default, each kind is a QuantizationWarning.

        Raises:
            FormatError: if the type cannot store numbers of these dims.
            TensorError: if the type has no encoder, `numbers` is not an array of a dtype that it
                accepts, a value cannot be encoded, or the importance is invalid or missing.
        """
        tensor = self._array_to_encode(numbers, name)
        dims, rows = tensor.shape, tensor if tensor.ndim > 1 else tensor.reshape(1, -1)
        if importance is None and self.needs_importance:
            raise TensorError(f"{self} requires an importance matrix", name)
        stacks = [None] if importance is None else importance_rows(importance, dims, name)
        out, columns = matrix(dims)
        fields = {key: np.empty((out, pitch), part.number.dtype) for key, part, _, pitch in _layout(self, dims)}
        if not self.takes_importance:
            stacks = [None]
        if self.block is not None:  # the rows of all matrices are encoded alike
            columns = dims[-1] if dims else 1
        for number, row in enumerate(stacks):
            part, target = rows, fields
            if len(stacks) > 1 and tensor.size:
                part = rows[number]
                target = {key: field[number].reshape(len(part), -1) for key, field in fields.items()}
            if self.block is not None and part.flags.c_contiguous and part.size:
                part = part.reshape(-1, columns)
                target = {key: field.reshape(len(part), -1) for key, field in target.items()}
            encoder = self._encoder_of_rows(row, columns, name)
            encode_chunks(encoder, part, target, TensorPart(name, number * part.size, dims), watch=watch, lost=lost)
        return fields

    def _array_to_encode(self, numbers: Any, name: str) -> Array:
        """Returns numbers as an array. Raises like `encode` if the type cannot encode them."""
        if problem := not_dense(numbers):
            raise TensorError(problem, name)
        array = array_of(numbers)
        if not isinstance(array, np.ndarray):
            raise TensorError(f"expected a tensor or an array, found {quote(numbers)}", name)
        if not self.takes(array.dtype):
            raise TensorError(self.dtype_refusal(array.dtype), name)
        self.nbytes(array.shape)
        if not self.encoders:
            raise TensorError(f"{self} can only be read: it has no encoder", name)
        return array

    def _encoder_of_rows(self, importance: Array | None, columns: int, name: str) -> RowEncoder:
        """Returns this type's encoder for matrices with `columns` columns.

        Args:
            importance: float32 [columns], or None.
            columns: numbers per row.
            name: the tensor's name in errors.
        """
        encoder = self.encoders[-1 if importance is not None else 0]
        if self.exact:

            def copy(numbers: Array, out: Fields) -> None:
                (field,) = out.values()
                words(field)[...] = words(encoder(numbers))

            return RowEncoder(copy, self.faults, as_float32=False, at_once=True)
        from glft_schema.tensor_types.engine.encoding import by_arrays, by_library  # slow to import

        compiled = by_library(self.layout, importance, columns)
        encode = compiled or by_arrays(encoder, self.layout, importance, columns, name)
        return RowEncoder(encode, self.faults, at_once=compiled is not None)

    def decode(self, fields: Fields, columns: int, *, dtype: Dtype | None = None, out: Array | None = None) -> Array:
        """Returns the numbers [rows, columns] of fields [rows, numbers per row].

        Args:
            fields: as `cut` and `encode` return them.
            columns: numbers per row.
            dtype: float16, bfloat16, float32 or float64; the type's own by default. Numbers that
                keep their dtype are not copied.
            out: the destination, contiguous, of this shape and such a dtype; new memory by default.

        Raises:
            FormatError: if rows of the type cannot have `columns` numbers.
            ValueError: if a field or `out` of a quantized type has another shape or dtype.
        """
        if self.exact:
            (numbers,) = fields.values()
            if out is None:
                return convert(numbers, dtype or self.dtype)
            words(out)[...] = words(convert(numbers, out.dtype))
            return out
        if out is None:
            out = np.empty((len(next(iter(fields.values()))), columns), dtype or FLOAT32)
        if out.size:
            from glft_schema.tensor_types.engine import decoding  # slow to import

            if not out.flags.c_contiguous:
                raise ValueError(f"expected a contiguous out, found strides {out.strides}")
            self.check_shapes({name: field.shape for name, field in fields.items()}, out.shape, columns)
            for name, part in self.fields():
                if fields[name].dtype != part.number.dtype:
                    raise ValueError(f"expected {name} as {name_of(part.number.dtype)}, found {name_of(fields[name].dtype)}")
            if decoding.by_library(self.layout, [fields[name] for name, _ in self.fields()], out):
                return out
            if self.formula is None:
                raise NotImplementedError(f"{self} has no formula")
            cell = self.cell(columns)
            cells = self.columns({key: field.reshape(-1, field.shape[1] * cell // columns) for key, field in fields.items()})
            decoding.by_arrays(self.formula, self.layout, cells, out.reshape(-1, cell))
        return out

    def check_shapes(self, fields: Mapping[str, Sequence[int]], out: Sequence[int], columns: int) -> None:
        """Checks that fields and weights have the shapes of rows of `columns` numbers. Raises
        ValueError if not, and FormatError if the type has no rows of this length."""
        self.nbytes([1, columns])
        rows = out[0]
        if tuple(out) != (rows, columns):
            raise ValueError(f"expected weights [{rows}, {columns}], found {list(out)}")
        for name, _, _, pitch in _layout(self, (1, columns)):
            if fields[name][0] != rows or math.prod(fields[name]) != rows * pitch:
                raise ValueError(f"expected {name} as [{rows}, {pitch}], found {list(fields[name])}")

    @property
    def layout(self) -> ScalarLayout:
        """The fields of a block or of a row that the formula reads and the encoders write."""
        return _scalar_layout(self)

    @property
    def functions(self) -> Functions | None:
        """The scalar functions of the type, None if it has none."""
        has_functions = not self.exact and (self.formula or self.encoders)
        return Functions(self.layout, self.formula, self.encoders) if has_functions else None

    def cell(self, columns: int) -> int:
        """Returns how many numbers are decoded together: those of a block, a group, or a whole row
        of `columns`."""
        return columns if any(_per_row(part) for _, part in self.fields()) else self.unit([1, columns])

    def columns(self, fields: Fields) -> dict[str, Array]:
        """Returns the formula's arguments: the payload's fields, or the fields of a block, each
        [blocks, numbers]."""
        columns: dict[str, Array] = {}
        for name, part in self.fields():
            columns |= part.columns(name, fields[name])
        return columns

    def round_trip(self, numbers: Array, name: str) -> Array:
        """Returns numbers after encoding and decoding them. Raises like `encode`."""
        decoded: Array = self.decode(self.encode(numbers, name), matrix(numbers.shape)[1]).reshape(numbers.shape)
        return decoded

    def field_spans(self, dims: Sequence[int]) -> dict[str, tuple[int, int]]:
        """Returns the offset of each field from the payload's first byte, and its size in bytes."""
        context, start, spans = _context(dims), 0, {}
        for name, part in self.fields():
            spans[name] = (start, part._sizeof(context, ""))
            start += spans[name][1]
        return spans

    def unit(self, dims: Sequence[int]) -> int:
        """Returns how many neighbours share a stored number. Slices begin at multiples of it."""
        return _unit(self, tuple(dims))

    def cut(
        self, source: Source, start: int, dims: Sequence[int], rows: range, columns: range, order: ByteOrder = LITTLE
    ) -> dict[str, Array]:
        """Returns the payload's fields [rows, numbers per row] for a part of the matrix.

        Reads, of each requested row, the bytes from the first requested number to the last. The
        fields of a mapped little-endian file are views.

        Args:
            source: the file.
            start: the first byte of the payload.
            dims: of the whole tensor.
            rows: with any positive step.
            columns: with step 1; both ends are multiples of `unit`.
            order: the byte order of the stored numbers.
        """
        width, fields = matrix(dims)[1], {}
        for name, part, first, pitch in _layout(self, tuple(dims)):
            span = range(pitch)
            if not _per_row(part) and width:
                span = range(columns.start * pitch // width, columns.stop * pitch // width)
            numbers = _read_rows(source, start + first, part, rows, pitch, span)
            fields[name] = numbers if order == LITTLE else part.swap(numbers)
        return fields

    def pack(self, fields: Fields) -> Array:
        """Returns fields [rows, numbers per row] as u8 [rows, bytes of a row]: a payload's bytes,
        row by row. A single field is not copied if its rows are contiguous."""
        parts = [_as_bytes(fields[name]) for name, _ in self.fields()]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, 1)

    def unpack(self, packed: Array, columns: int) -> dict[str, Array]:
        """Returns the fields of packed rows of `columns` numbers. The inverse of `pack`."""
        return {
            name: np.ascontiguousarray(packed[:, span]).view(number.dtype) for name, span, number in self.spans_of_row(columns)
        }

    def spans_of_row(self, columns: int) -> Iterator[tuple[str, slice, Number]]:
        """Yields each field of a packed row of `columns` numbers: name, byte span and `Number`."""
        start = 0
        for name, part, _, pitch in _layout(self, (1, columns)):
            size = pitch * part.number.itemsize
            yield name, slice(start, start + size), part.number
            start += size

    def fields(self) -> Iterator[tuple[str, TensorField]]:
        """Yields the payload's fields by name, in its order."""
        return ((part.name, part.subcon) for part in self.payload.subcons if part.name)


Declared = TypeVar("Declared", bound=Formula)


def formula_of(type_: TensorType) -> Callable[[Declared], Declared]:
    """Adds the decorated formula to a type declared without one. A page can then show the formula
    below the block.

    A formula is a scalar function of one block or row: it writes `w`, and reads fields by their
    names; see docs/scalar-functions.md.

    Raises:
        ValueError: if the type has a formula, or if the function does not follow the language; the
            text names the function and the line.
    """

    def add(formula: Declared) -> Declared:
        if type_.formula is not None:
            raise ValueError(f"expected a type without a formula, found {type_}")
        object.__setattr__(type_, "formula", formula)
        _check_formula(type_)
        return formula

    return add


def _check_formula(type_: TensorType) -> None:
    """Raises ValueError if the formula does not follow the language. Those of this package are
    checked when the library is built."""
    formula = type_.formula
    if formula and not formula.__module__.startswith(PACKAGE):
        if "w" not in (declared := signature(formula)).parameters:
            names = ", ".join(field.name for field in type_.layout.fields)
            raise ValueError(f"expected a formula of (w, {names}), which writes w, found {declared}")
        _check(type_, formula, type_.layout.arrays)


def _check_encoders(type_: TensorType, by_importance: Sequence[bool]) -> None:
    """Raises ValueError unless there is one encoder, or two, the second of them with importance.
    Checks the functions like `_check_formula`.

    Args:
        type_: with encoders.
        by_importance: whether each encoder has a parameter importance.
    """
    if isinstance(type_.quantize, tuple) and by_importance != [False, True]:
        expected = "one encoder, or two, of which the second has a parameter importance"
        raise ValueError(f"expected {expected}, found {' and '.join(str(signature(one)) for one in type_.encoders)}")
    for encoder in () if type_.exact else type_.encoders:
        if not encoder.__module__.startswith(PACKAGE):
            declared, names = signature(encoder), [field.name for field in type_.layout.fields]
            if (given := declared.parameters.get("importance")) and given.default is not given.empty:
                raise ValueError(f"expected two encoders, or importance without a default, found {declared}")
            if not {"w", *names} <= {*declared.parameters}:
                raise ValueError(f"expected an encoder of (w, {', '.join(names)}), which writes all fields, found {declared}")
            _check(type_, encoder, type_.layout.encoder_arrays)


def _check(type_: TensorType, function: Any, arrays: Callable[..., Mapping[str, Any]]) -> None:
    """Raises ValueError unless a scalar function follows the language and writes every number.

    Functions of rows are checked for rows of any length, then for rows of 1, 2 and 3 units.
    """
    layout = type_.layout
    if other := next((field for field in layout.fields if field.number not in NUMPY), None):
        raise ValueError(f"{other.name}: expected numbers {alternatives(NUMPY)} for scalar functions, found {other.number}")
    from glft_schema.scalar.checking import check  # slow to import, as below
    from glft_schema.scalar.writes import check_writes

    checked, unit = [check(function, arrays())], type_.unit([1, ROW])
    if not layout.weights:
        checked = [check(function, arrays(columns=units * unit)) for units in (1, 2, 3)]
    for one in checked:
        check_writes(one)


@lru_cache(maxsize=1 << 8)
def _scalar_layout(type_: TensorType) -> ScalarLayout:
    if type_.block is not None:
        parts = [(field, field.subcon.number) for field in type_.block.subcons]
        fields = [
            ScalarField(field.name, str(number), field.sizeof() // number.itemsize, field.docs) for field, number in parts
        ]
    else:
        fields, spans = [], type_.field_spans([1, ROW])
        for name, part in type_.fields():
            count = spans[name][1] // part.number.itemsize
            fields.append(ScalarField(name, str(part.number), 1 if count == 1 else None, weights=ROW // count))
    return ScalarLayout(type_.scheme, tuple(fields), type_.unit([1, ROW]) if type_.block else None)


@lru_cache(maxsize=1 << 12)  # a model has many tensors of few shapes
def _nbytes(type_: TensorType, dims: tuple[int, ...]) -> int:
    return int(type_.payload.sizeof(**_params(dims)))


@lru_cache(maxsize=1 << 12)
def _unit(type_: TensorType, dims: tuple[int, ...]) -> int:
    columns, context = matrix(dims)[1], _context(dims)
    across = [part.shape(context)[1] for _, part in type_.fields() if len(part.dims) > 1]
    return math.lcm(*(columns // parts for parts in across if parts)) or 1


@lru_cache(maxsize=1 << 12)
def _layout(type_: TensorType, dims: tuple[int, ...]) -> list[tuple[str, TensorField, int, int]]:
    """Returns the fields of a payload: name, field, first byte, and numbers per row."""
    context, spans = _context(dims), type_.field_spans(dims)
    rows = max(int(context["out"]), 1)
    return [(name, part, spans[name][0], math.prod(part.shape(context)) // rows) for name, part in type_.fields()]


def _per_row(part: TensorField) -> bool:
    """Tells whether the field has one number per row, which all slices of the row share."""
    return part.dims == (as_expression(OUT),)


def _as_bytes(field: Array) -> Array:
    """Returns [rows, numbers] as u8 [rows, bytes], a view if each row is contiguous."""
    return field.view(np.uint8) if field.strides[1] == field.itemsize else np.ascontiguousarray(field).view(np.uint8)


def _read_rows(source: Source, start: int, part: TensorField, rows: range, pitch: int, span: range) -> Array:
    """Returns the numbers `span` of rows of a field that begins at `start`, `pitch` per row."""
    dtype, size = part.number.dtype, part.number.itemsize

    def numbers(first: int, last: int) -> Array:
        return array_over(source.private(start + first * size, (last - first) * size), dtype, [last - first])

    if not rows or not span:
        return np.empty((len(rows), len(span)), dtype)
    if source.mapped or len(rows) == 1 or (rows.step == 1 and len(span) == pitch):
        whole = numbers(rows[0] * pitch + span.start, rows[-1] * pitch + span.stop)
        return as_strided(whole, (len(rows), len(span)), (rows.step * pitch * size, size))
    return np.stack([numbers(row * pitch + span.start, row * pitch + span.stop) for row in rows])


def _params(dims: Sequence[int]) -> dict[str, Any]:
    out, columns = matrix(dims)
    return {"dims": list(dims), "out": out, "in": columns}


def _context(dims: Sequence[int], order: ByteOrder = LITTLE) -> Any:
    return new_context(True, **_params(dims), byte_order=order)


@dataclass(frozen=True, eq=False, repr=False)
class OpaqueType(TensorType):
    """An undeclared type, known only by its code. Its payload ends where the next one begins."""

    @classmethod
    def of(cls, code: int) -> OpaqueType:
        """Returns the type for `code`."""
        return cls(f"type {code}", code, Struct())

    @property
    def is_known(self) -> bool:
        return False

    @property
    def bytes_only(self) -> str | None:
        return f"type {self.code} is unknown; add it with glft_schema.types.register_type"

    def __post_init__(self) -> None:
        """Reserves no name: the type is identified by its code."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OpaqueType) and self.code == other.code

    def __hash__(self) -> int:
        return hash((OpaqueType, self.code))

    def refusal(self, dims: Sequence[int]) -> str | None:
        return None

    def nbytes(self, dims: Sequence[int]) -> int:
        raise FormatError(f"expected a type of known size, found {self}")

    def __reduce__(self) -> tuple[Any, ...]:
        return OpaqueType.of, (self.code,)
