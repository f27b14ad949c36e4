"""`CompositeWeight`: a weight stored as several tensors, and what the schemes have in common."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np
from construct import this

from glft_schema.codec.context import new_context
from glft_schema.codec.expressions import as_expression
from glft_schema.codec.numbers import Number, TensorField
from glft_schema.codec.structs import Struct
from glft_schema.errors import TensorError
from glft_schema.storage.dtypes import Array, is_float, name_of
from glft_schema.tensor_types import TensorType
from glft_schema.tensor_types.composite import UNIT, composite_type
from glft_schema.tensor_types.conversions import float32_of
from glft_schema.tensors.stored_tensor import Slices, StoredTensor, of_packed

# What the dims of parts refer to: the weight [rows, columns], bits of a code, columns of a group.
# The grid is the scales, down and across; `outer` are the dims before the columns.
ROWS, COLUMNS, BITS, GROUP = this._params.rows, this._params.columns, this._params.bits, this._params.group
GRID, OUTER = this._params.grid, this._params.outer
NUMBER, LENGTH = this._params.number, this._params.length  # a single number, with or without a dim; any length
E4M3, E5M2, E8M0 = (Number(name, "u1", f"float8_{name}") for name in ("e4m3fn", "e5m2", "e8m0fnu"))
CHECKED_BY_SOLVE = {*map(as_expression, (GRID, NUMBER, LENGTH))}
BLOCK = (128, 128)  # rows and columns that share a scale, if no config says so


class Facts(NamedTuple):
    """Facts about a weight from a config. None and empty texts mean unknown.

    Attributes:
        bits: of a code.
        group: columns that share a scale; -1 for all.
        block: rows and columns that share a scale.
        version: of the layout.
        mode: of MLX.
        transforms: whether weights are also rotated.
    """

    bits: int | None = None
    group: int | None = None
    block: tuple[int, int] | None = None
    version: str = ""
    mode: str = "affine"
    transforms: bool = False


class CompositeWeight:
    """A weight stored as several tensors. Each scheme is a subclass.

    A scheme declares its `parts`, finds the sizes in `solve`, and has a method for each field of
    its type, which takes a range of rows and returns the field's [rows, numbers].

    Attributes:
        library: the library that writes the scheme.
        parts: the tensors, the codes first. Float parts may have any float dtype.
        optional: names of parts that may be missing.
        marks: parts of which one must exist, if other tensors are named like the codes.
        joint: between the name of a module and those of the parts.
        stored_names: of parts that are stored by another name.
        ending: of the weight's name.
        name: of the weight.
        shape: its sizes in torch's order.
        bits: of a code.
        block: rows and columns that share a scale.
        type_name: the name of its composite type.
    """

    library: ClassVar[str]
    parts: ClassVar[Struct]
    optional: ClassVar[tuple[str, ...]] = ()
    marks: ClassVar[tuple[str, ...]] = ()
    joint: ClassVar[str] = "."
    stored_names: ClassVar[Mapping[str, str]] = {}
    ending: ClassVar[str] = ".weight"
    extra: Mapping[str, int] = {}  # sizes that dims of parts refer to
    order: Array | None = None  # the group of each column, if these are not neighbours
    type_name: str
    bits = 4
    block: tuple[int, int]
    shape: tuple[int, ...]

    def __init__(self, name: str, tensors: Mapping[str, StoredTensor], facts: Facts) -> None:
        self.name, self.tensors, self.facts = name, tensors, facts
        codes, *others = self.declared()
        if facts.transforms:
            raise self.refusal("expected no transform_config, found one: weights that are also rotated are not supported")
        for part in others:
            if part not in tensors and part not in self.optional:
                raise self.refusal(f"expected {part} beside {codes}, found none")
        for part, tensor in tensors.items():
            self._check_dtype(part, tensor)
        least = len(self.declared()[codes].dims)
        if len(tensors[codes].shape) < least or 0 in tensors[codes].shape:
            raise self.expect(codes, f"codes in {least} dims")
        self.solve()
        self._check_shapes()

    def solve(self) -> None:
        """Sets the shape, bits, block and type. Raises TensorError if parts do not fit."""
        raise NotImplementedError

    @classmethod
    def declared(cls) -> dict[str, TensorField]:
        """Returns the declarations of the parts by name."""
        return {part.name: part.subcon for part in cls.parts.subcons}

    @classmethod
    def stored_parts(cls) -> dict[str, str]:
        """Returns the parts by the end of their tensors' names, the codes first."""
        return {cls.stored_names.get(part, part): part for part in cls.declared()}

    @classmethod
    def fits(cls, tensors: Mapping[str, StoredTensor]) -> bool:
        """Tells whether tensors, by the names of parts, follow this scheme rather than another."""
        (codes, field), *_ = cls.declared().items()
        return name_of(tensors[codes].dtype) == name_of(field.number.dtype) and (
            not cls.marks or any(mark in tensors for mark in cls.marks)
        )

    @property
    def columns(self) -> int:
        """The number of columns, which share scales in groups."""
        return self.shape[-1]

    @property
    def rows(self) -> int:
        """The number of rows of the matrix."""
        return math.prod(self.shape[:-1])

    @property
    def unit(self) -> int:
        """The columns for which the type has one scale."""
        return math.gcd(UNIT, self.columns, self.block[1]) if self.order is None else 1

    @property
    def type(self) -> TensorType:
        """The type that has the formula."""
        return composite_type(self.type_name, self.unit)

    @property
    def text(self) -> str:
        """The scheme in words, such as ``compressed-tensors W4A16, 4 bits, groups of 32``."""
        down, across = min(self.block[0], self.rows), min(self.block[1], self.columns)
        blocks = f"blocks of {down} x {across}" if down > 1 else f"groups of {across}"
        if across == self.columns:
            blocks = {self.rows: "one scale", 1: "a scale per row"}.get(down, blocks)
        return f"{self.title}, {self.bits} bits, {blocks}"

    @property
    def title(self) -> str:
        """The library, and its name of the scheme."""
        return self.library

    @cached_property
    def stored(self) -> StoredTensor:
        """The weight, whose bytes are computed from the parts when they are read."""
        type_, inner = self.type, math.prod(self.shape[1:])
        per, nbytes = inner // self.columns, type_.nbytes((1, inner))

        def read(index: Slices) -> Array:
            outer, wanted, found = range(self.shape[0])[index[0]], range(nbytes)[index[1]], []
            for name, span, _ in type_.spans_of_row(inner):
                if span.start < wanted.stop and wanted.start < span.stop:
                    field = np.asarray(getattr(self, name)(range(outer.start * per, outer.stop * per)), order="C")
                    field = field.reshape(len(outer), -1).view(np.uint8)
                    found.append(field[:, max(wanted.start - span.start, 0) : min(wanted.stop, span.stop) - span.start])
            return found[0] if len(found) == 1 else np.concatenate(found, 1)

        missing = sum(part.file_tensor.missing for part in self.tensors.values() if part.file_tensor)
        stored = replace(of_packed(self.name, self.shape, type_, read, missing), quantized=None, origin=self.text)
        codes = next(iter(self.tensors.values())).file_tensor
        if stored.file_tensor and codes:
            stored.file_tensor.device = codes.device
        return stored

    def refusal(self, problem: str) -> TensorError:
        """Returns the error for parts that do not fit."""
        return TensorError(f"{self.library}: {problem}", self.name)

    def expect(self, part: str, expected: str) -> TensorError:
        """Returns the error for a part of an unexpected shape or dtype."""
        tensor = self.tensors[part]
        return self.refusal(f"expected {part} as {expected}, found {name_of(tensor.dtype)} {list(tensor.shape)}")

    def array(self, part: str, *index: slice) -> Array:
        """Returns a part, or slices of its first dims; integers of four bytes as unsigned."""
        tensor = self.tensors[part]
        whole = (*index, *(slice(0, size) for size in tensor.shape[len(index) :]))
        array = np.ascontiguousarray(tensor.part(whole))
        return array.view(np.uint32) if array.dtype == np.int32 else array

    def of_rows(self, part: str, rows: range) -> Array:
        """Returns the numbers of some rows of a part that has a slice for each: [rows, numbers]."""
        per = self.rows // self.shape[0]
        first, last = rows.start // per, -(-rows.stop // per)
        numbers = self.array(part, slice(first, last)).reshape((last - first) * per, -1)
        return numbers[rows.start - first * per : rows.stop - first * per]

    # Scales

    def solve_block(self, part: str) -> tuple[int, int]:
        """Returns the rows and columns that share a number of a part: one number for all, one per
        row, per group of a row, or per block. Raises TensorError if it has another shape."""
        rows, columns, given = self.rows, self.columns, self.facts.block
        shape = self.tensors[part].shape
        if math.prod(shape) == 1:
            return rows, columns
        down, across = (*shape, 1)[:2]
        group = self.facts.group or 0
        by_group = (1, group if group > 0 else columns) if group else (1, max(columns // max(across, 1), 1))
        for block in [given] if given else [by_group, (1, columns)] if group else [BLOCK, by_group]:
            if (down, across) == grid_of(rows, columns, block) and math.prod(shape) == down * across:
                return block
        grid = list(grid_of(rows, columns, given or (1, group if group > 0 else columns)))
        raise self.expect(part, f"one number, {[rows]} or {grid} for a weight {[rows, columns]}")

    def spread(self, part: str, rows: range) -> Array:
        """Returns a part's numbers of rows, repeated for each unit: [rows, columns // unit]."""
        down = self.block[0]
        first, last = rows.start // down, -(-rows.stop // down)
        shape = grid_of(self.rows, self.columns, self.block)
        whole = self.tensors[part].shape == shape and shape[0] > 1
        numbers = self.array(part, slice(first, last)) if whole else self.array(part).reshape(shape)[first:last]
        return self.by_unit(numbers[np.arange(rows.start, rows.stop) // down - first])

    def scales(self, rows: range) -> Array:
        """Returns the scales of rows, float32 [rows, columns // unit]."""
        return float32_of(self.spread(self.scale, rows))

    @property
    def scale(self) -> str:
        """The name of the part with the scales."""
        return [*self.declared()][1]

    def by_unit(self, numbers: Array) -> Array:
        """Returns numbers [rows, groups] repeated for each unit: [rows, columns // unit]."""
        at = np.arange(0, self.columns, self.unit) // self.block[1] if self.order is None else self.order
        return np.asarray(numbers[:, at])

    def matrix(self, part: str) -> tuple[int, ...]:
        """Returns the two sizes of a part. Raises TensorError if it has another number."""
        if len(self.tensors[part].shape) != 2:
            raise self.expect(part, "two dims")
        return self.tensors[part].shape

    # Checks

    def _check_dtype(self, part: str, tensor: StoredTensor) -> None:
        number = self.declared()[part].number
        if tensor.packed:
            return
        holds = is_float(tensor.dtype) if number.is_float else name_of(tensor.dtype) == name_of(number.dtype)
        if not holds:
            raise self.expect(part, "floats" if number.is_float else name_of(number.dtype))
        if as_expression(NUMBER) in self.declared()[part].dims and math.prod(tensor.shape) != 1:
            raise self.expect(part, "one number")

    def _check_shapes(self) -> None:
        """Raises TensorError unless each part has its declared dims."""
        grid = self.shape and grid_of(self.rows, self.columns, self.block)
        sizes = {"rows": self.rows, "columns": self.columns, "bits": self.bits, "group": min(self.block[1], self.columns)}
        context = new_context(True, **sizes, **self.extra, grid=list(grid), outer=list(self.shape[:-1]))
        for part, field in self.declared().items():
            in_grid = as_expression(GRID) in field.dims
            if part in self.tensors and (in_grid or not {*field.dims} & CHECKED_BY_SOLVE):
                shape = list(self.tensors[self.scale].shape) if in_grid else field.shape(context)
                if list(self.tensors[part].shape) != shape:
                    raise self.expect(part, f"{shape} for a weight {list(self.shape)} in groups of {sizes['group']}")


def grid_of(rows: int, columns: int, block: tuple[int, int]) -> tuple[int, int]:
    """Returns the number of blocks of a matrix, down and across."""
    return -(-rows // block[0]), -(-columns // block[1])


def unpack(words: Array, bits: int, count: int, per_word: int = 0) -> Array:
    """Returns codes of 1 to 8 bits, u8 [..., count], from words u32 [..., words].

    Args:
        words: a stream of bits per row, the lowest first.
        bits: of a code.
        count: of codes.
        per_word: codes in each word, if none crosses from a word to the next.
    """
    mask, numbers = (1 << bits) - 1, np.arange(count)
    if per_word:
        return np.asarray(words[..., numbers // per_word] >> (numbers % per_word * bits).astype(np.uint32) & mask, np.uint8)
    if 8 % bits == 0:
        codes = np.ascontiguousarray(words).view(np.uint8)[..., None] >> np.arange(0, 8, bits, dtype=np.uint8) & np.uint8(mask)
        return np.asarray(codes.reshape(*words.shape[:-1], -1)[..., :count])
    pairs = words.astype(np.uint64)
    pairs[..., :-1] |= pairs[..., 1:] << np.uint64(32)
    return np.asarray(pairs[..., numbers * bits >> 5] >> (numbers * bits & 31).astype(np.uint64) & np.uint64(mask), np.uint8)


def words_of(count: int, bits: int, per_word: int = 0) -> int:
    """Returns the number of words of codes, see `unpack`."""
    return -(-count // per_word) if per_word else -(-count * bits // 32)
