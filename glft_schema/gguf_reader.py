"""A faster `GGUFReader`, with the attributes of gguf-py's class.

    from glft_schema.gguf_reader import GGUFReader  # instead of: from gguf import GGUFReader

Fields, parts and tensors are those of gguf-py 0.19, with three exceptions. ``parts`` and ``data``
are sequences whose items are created on access. The enumerations `GGUFValueType` and
`GGMLQuantizationType` are generated from the declaration; their members equal gguf-py's as
integers. GGUF v1 is read, too, and the file is checked as `glft_schema.open` checks it.
"""

from __future__ import annotations

import math
import os
import sys
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum
from itertools import accumulate, groupby
from typing import Any, Literal, NamedTuple, overload

import numpy as np

from glft_schema.codec.arrays import StoredStrings
from glft_schema.codec.context import LITTLE
from glft_schema.codec.numbers import Number, u32, u64
from glft_schema.codec.trace import STEP, FieldSpan
from glft_schema.codec.typed_values import ValueType
from glft_schema.files.parsing import trace_source
from glft_schema.formats.registry import WITH_TYPES
from glft_schema.storage.source import BytesSource, path_text
from glft_schema.tensors.tensor import Tensor

__all__ = ["GGMLQuantizationType", "GGUFEndian", "GGUFReader", "GGUFValueType", "ReaderField", "ReaderTensor"]

Array = np.ndarray[Any, np.dtype[Any]]
METADATA, INFOS = "metadata" + STEP, "tensor_infos" + STEP
VALUE, COUNT, ELEMENTS = STEP + "value", STEP + "n", STEP + "elements"
HEADER = {"version": "GGUF.version", "n_tensors": "GGUF.tensor_count", "n_kv": "GGUF.kv_count"}

_VALUES = {type_.name.upper(): code for code, type_ in WITH_TYPES.metadata.types.by_code()}
_TENSORS = {type_.name: code for code, type_ in WITH_TYPES.types.by_code()}
GGUFValueType = IntEnum("GGUFValueType", _VALUES)  # type: ignore[misc]
GGMLQuantizationType = IntEnum("GGMLQuantizationType", _TENSORS)  # type: ignore[misc]


class GGUFEndian(IntEnum):
    """The byte order of a file."""

    LITTLE = 0
    BIG = 1


class _PartRun(NamedTuple):
    """Consecutive parts of a field: numbers, or strings, each after its length."""

    start: int
    dtype: np.dtype[Any]  # of the numbers, or of the strings' lengths
    n: int  # of numbers or strings
    ends: Callable[[], Any] | None = None  # ends of strings, relative to `start`

    @property
    def n_parts(self) -> int:
        return self.n if self.ends is None else 2 * self.n

    def part(self, data: Array, number: int) -> Array:
        """Returns a part as a view of the file's bytes."""
        start, size = self.start, self.dtype.itemsize
        if self.ends is None:
            return data[start + number * size :][:size].view(self.dtype)
        which, is_text = divmod(number, 2)
        ends = self.ends()
        start, end = start + (int(ends[which - 1]) if which else 0), start + int(ends[which])
        return data[start + size : end] if is_text else data[start : start + size].view(self.dtype)


class Parts(Sequence[Any]):
    """The parts of a field in order, as views of the file's bytes."""

    def __init__(self, data: Array, runs: Sequence[_PartRun]) -> None:
        self._data, self._runs = data, runs
        self._ends = list(accumulate(run.n_parts for run in runs))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> Array: ...
    @overload
    def __getitem__(self, index: slice) -> list[Array]: ...
    def __getitem__(self, index: int | slice) -> Array | list[Array]:
        taken = range(len(self))[index]
        if not isinstance(taken, int):
            return [self[number] for number in taken]
        which = bisect_right(self._ends, taken)
        run = self._runs[which]
        return run.part(self._data, taken - self._ends[which] + run.n_parts)


class ReaderField(NamedTuple):
    """A field of the header, a key-value, or the description of a tensor.

    Attributes:
        offset: its first byte in the file.
        name: the key or the name of the tensor.
        parts: its parts.
        data: the indices of the parts that are the value.
        types: the type of the value; for an array, followed by the type of its elements.
    """

    offset: int
    name: str
    parts: Sequence[Array] = ()
    data: Sequence[int] = (-1,)
    types: Sequence[Any] = ()

    def contents(self, index_or_slice: int | slice = slice(None)) -> Any:
        """Returns the value as plain Python, or the elements of an array at an index or slice."""
        if not self.types:
            return None
        is_text = self.types[-1] == GGUFValueType["STRING"]
        values = self.data[index_or_slice if self.types[0] == GGUFValueType["ARRAY"] else 0]
        if isinstance(values, int):
            return self._plain(values, is_text)
        return [self._plain(index, is_text) for index in values]

    def _plain(self, index: int, is_text: bool) -> Any:
        part = self.parts[index]
        return str(part.tobytes(), encoding="utf-8") if is_text else part.tolist()[0]


class ReaderTensor(NamedTuple):
    """A tensor.

    Attributes:
        name: as in the file.
        tensor_type: a `GGMLQuantizationType`, or the number of an unknown type.
        shape: sizes as stored, the columns first.
        n_elements: their product.
        n_bytes: size of the payload.
        data_offset: first byte of the payload in the file.
        data: the payload with dims in torch's order, as numbers if numpy has the type, otherwise as
            u8 with the last dim in bytes.
        field: its description in the file.
    """

    name: str
    tensor_type: Any
    shape: Array
    n_elements: int
    n_bytes: int
    data_offset: int
    data: Array
    field: ReaderField


class GGUFReader:
    """A GGUF file with the interface of gguf-py's class.

    Args:
        path: the file. A file of a set is opened alone.
        mode: the mode of the mapping: ``r`` to read, ``r+`` to change the file through parts and
            data, ``c`` to change only the arrays.

    Attributes:
        fields: the fields of the header and the metadata, by name.
        tensors: the tensors in file order.
        byte_order: ``I`` for this machine's byte order, ``S`` for the other one.
        endianess: a `GGUFEndian`.
        alignment: the alignment of payloads.
        data_offset: the offset of the first payload; without tensors, the aligned end of the head.
        data: the file's bytes.

    Raises:
        OSError: if the file cannot be opened.
        FormatError: if it is not a valid GGUF file.
    """

    gguf_scalar_to_np: Mapping[Any, Any] = {
        GGUFValueType(code): np.bool_ if type_.name == "bool" else np.dtype(type_.name).type
        for code, type_ in WITH_TYPES.metadata.types.by_code()
        if isinstance(type_.field, Number)
    }

    def __init__(self, path: os.PathLike[str] | str, mode: Literal["r", "r+", "c"] = "r") -> None:
        path = path_text(path)
        self.data = np.memmap(path, mode=mode) if os.path.getsize(path) else np.empty(0, np.uint8)
        self._bytes = self.data.view(np.ndarray)
        source = BytesSource(self._bytes.data, path)
        spans, error = trace_source(WITH_TYPES, source)
        if error:
            raise error
        regions = {span.path: span.value for span in spans if STEP not in span.path}
        header, tensors = regions["header"], regions["data"]
        order = header.byte_order
        self.byte_order = "I" if order == sys.byteorder else "S"
        self.endianess = GGUFEndian.LITTLE if order == LITTLE else GGUFEndian.BIG
        self.alignment = int(regions["alignment"])
        self.data_offset = tensors.start + -tensors.start % self.alignment  # even if the file ends before
        self._u32, self._u64 = u32.numpy_dtype(order), u64.numpy_dtype(order)
        self._size = self._u32 if header.version == 1 else self._u64
        rows = {path: list(row) for path, row in groupby((span for span in spans if not span.has_parts), _row_of)}
        self.fields: OrderedDict[str, ReaderField] = OrderedDict(self._header(rows["header"]))
        self.fields.update(self._key_value(row) for path, row in rows.items() if path.startswith(METADATA))
        described = [self._description(row) for path, row in rows.items() if path.startswith(INFOS)]
        self.tensors = [self._tensor(tensors[field.name], field) for field in described]

    def get_field(self, key: str) -> ReaderField | None:
        """Returns a field, or None."""
        return self.fields.get(key)

    def get_tensor(self, idx: int) -> ReaderTensor:
        """Returns a tensor. Raises IndexError if there is none."""
        return self.tensors[idx]

    def _header(self, spans: Sequence[FieldSpan]) -> Iterator[tuple[str, ReaderField]]:
        """Yields the numbers of the header, by name."""
        for step, name in HEADER.items():
            span = next(span for span in spans if span.path.endswith(STEP + step))
            run = self._run(span)
            type_ = GGUFValueType[np.dtype(run.dtype.type).name.upper()]
            yield name, ReaderField(span.start, name, Parts(self._bytes, [run]), [0], [type_])

    def _key_value(self, spans: Sequence[FieldSpan]) -> tuple[str, ReaderField]:
        """Returns the key and the field of a row: key, type, and the parts of the value."""
        runs, data, types = list[_PartRun](), list[range](), list[ValueType]()
        first, type_ = 0, None
        for span in spans:
            if isinstance(span.value, ValueType):
                type_ = span.value
            runs.append(run := self._run(span, type_))
            if span.path.endswith((VALUE, ELEMENTS)):
                data.append(range(first, first + run.n_parts) if run.ends is None else range(first + 1, first + run.n_parts, 2))
            is_first = all(step in ("0", step.strip("0123456789")) for step in span.path.split(STEP)[2:])
            if type_ and (not types or (is_first and span.path.endswith(COUNT) and span.value)):
                types.append(type_)  # those of an array, and of its first element; of none if it is empty
            first += run.n_parts
        indices = data[0] if len(data) == 1 else [index for part in data for index in part]
        codes = [GGUFValueType[type_.name.upper()] for type_ in types]
        return spans[0].value, ReaderField(spans[0].start, spans[0].value, Parts(self._bytes, runs), indices, codes)

    def _run(self, span: FieldSpan, type_: ValueType | None = None) -> _PartRun:
        """Returns the parts of a field of a row.

        Args:
            span: the field.
            type_: the last value type before a field of a key-value.
        """
        value, nbytes = span.value, (span.end or 0) - span.start
        if isinstance(value, StoredStrings):
            return _PartRun(span.start, self._size, len(value), lambda: value.ends)
        if isinstance(value, str):
            return _PartRun(span.start, self._size, 1, lambda: [nbytes])
        if type_ is None or not span.path.endswith((VALUE, ELEMENTS)):
            return _PartRun(span.start, self._u32 if nbytes == self._u32.itemsize else self._u64, 1)
        dtype = np.dtype(self.gguf_scalar_to_np[GGUFValueType[type_.name.upper()]]).newbyteorder(self._u32.byteorder)
        return _PartRun(span.start, dtype, len(value) if isinstance(value, Sequence) else 1)

    def _description(self, spans: Sequence[FieldSpan]) -> ReaderField:
        """Returns the field of a tensor: name, dims, type and offset."""
        name, dims = spans[0], spans[1]
        count, after = len(dims.value), dims.start + self._u32.itemsize
        runs = [self._run(name), _PartRun(dims.start, self._u32, 1)]
        parts = [*Parts(self._bytes, runs), self._bytes[after : dims.end].view(self._size)[:count]]
        numbers = Parts(self._bytes, [self._run(span) for span in spans[-2:]])
        return ReaderField(name.start, name.value, [*parts, *numbers], [1, 3, 4, 5])

    def _tensor(self, tensor: Tensor, field: ReaderField) -> ReaderTensor:
        """Returns a tensor and its payload."""
        type_, data = tensor.type, self._bytes[tensor.position : tensor.position + tensor.nbytes]
        shape = tuple(tensor.shape)
        if type_.exact and not type_.dtype.names:
            data = data.view(np.dtype(type_.exact).newbyteorder(self._u32.byteorder)).reshape(shape)
        else:
            data = data.reshape(*shape[:-1], -1 if tensor.nbytes else type_.nbytes(shape[-1:]))
        code = GGMLQuantizationType.__members__.get(type_.name, WITH_TYPES.types.code_of(type_))  # unknown: a number
        return ReaderTensor(tensor.name, code, field.parts[3], math.prod(shape), tensor.nbytes, tensor.position, data, field)


def _row_of(span: FieldSpan) -> str:
    """Returns the path of the table row that contains a field, or of its region."""
    table, _, rest = span.path.partition(STEP)
    row = rest.partition(STEP)[0]
    return table + STEP + row if row.isdecimal() else table
