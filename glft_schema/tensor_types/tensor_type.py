"""Tensor types: decoding of stored fields and encoding of numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from glft_schema.codec.structs import Struct
from glft_schema.errors import FormatError, TensorError, quote
from glft_schema.lazy import outside_graphs
from glft_schema.storage.dtypes import FLOAT32, Array, Dtype, name_of, words
from glft_schema.storage.torch_tensors import array_of, not_dense
from glft_schema.tensor_types.chunks import RowEncoder, TensorPart, encode_chunks, importance_rows
from glft_schema.tensor_types.conversions import convert
from glft_schema.tensor_types.declaration import Declaration
from glft_schema.tensor_types.payload_layout import Fields, matrix


class TensorType(Declaration):
    """How the numbers of a tensor are stored.

    The formulas see a tensor as a matrix [out, in] and work on any number of its rows. They take
    and return each field as [rows, numbers per row].
    """

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
            self._decode_into(out, fields, columns)
        return out

    def _decode_into(self, out: Array, fields: Fields, columns: int) -> None:
        """Runs the formula: in the compiled library, or as operations of numpy. Raises like
        `decode`."""
        if not out.flags.c_contiguous:
            raise ValueError(f"expected a contiguous out, found strides {out.strides}")
        self.check_shapes({name: field.shape for name, field in fields.items()}, out.shape, columns)
        for name, part in self.fields():
            if fields[name].dtype != part.number.dtype:
                raise ValueError(f"expected {name} as {name_of(part.number.dtype)}, found {name_of(fields[name].dtype)}")
        if self.formula is None:
            raise NotImplementedError(f"{self} has no formula")
        from glft_schema.tensor_types import running  # slow to import

        running.decode(self, fields, out)

    @outside_graphs
    def encode(
        self,
        numbers: Any,
        name: str,
        *,
        importance: Any = None,
        watch: Callable[[Array, Fields], None] | None = None,
        lost: Counter[str] | None = None,
        search: bool = False,
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
            search: whether a type with an encoder that searches on request uses it. It minimizes
                the sum of importance * error^2, of all columns alike without an importance.

        Raises:
            FormatError: if the type cannot store numbers of these dims.
            TensorError: if the type has no encoder, `numbers` is not an array of a dtype that it
                accepts, a value cannot be encoded, or the importance is invalid or missing.
        """
        tensor = self._array_to_encode(numbers, name)
        dims, rows = tensor.shape, tensor if tensor.ndim > 1 else tensor.reshape(1, -1)
        if importance is None and self.needs_importance:
            raise TensorError(f"{self} requires an importance matrix", name)
        searches = search and self.searches
        if importance is None and searches:
            importance = np.ones(dims[-1:] or 1, np.float32)
        stacks = [None] if importance is None else importance_rows(importance, dims, name)
        if not (self.takes_importance or searches):
            stacks = [None]
        fields, columns = self.empty(dims), matrix(dims)[1]
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
        if self.exact:
            (encoder,) = self.encoders

            def copy(numbers: Array, out: Fields) -> None:
                (field,) = out.values()
                words(field)[...] = words(encoder(numbers))

            return RowEncoder(copy, self.faults, as_float32=False, at_once=True)
        from glft_schema.tensor_types import running  # slow to import

        encode, at_once = running.encoder(self, importance, columns, name)
        return RowEncoder(encode, self.faults, at_once=at_once)

    def round_trip(self, numbers: Array, name: str) -> Array:
        """Returns numbers after encoding and decoding them. Raises like `encode`."""
        decoded: Array = self.decode(self.encode(numbers, name), matrix(numbers.shape)[1]).reshape(numbers.shape)
        return decoded


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
