"""Layouts of the fields that decoders read and encoders write, in a block or in a row."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from glft_schema.scalar.tree import ArrayType


# fmt: off
NUMPY = {"f16": "<f2", "f32": "<f4", "u8": "u1", "i8": "i1", "u16": "<u2", "i16": "<i2", "u32": "<u4", "i32": "<i4"}
# fmt: on


@dataclass(frozen=True)
class ScalarField:
    """A field of a block or of a row.

    Attributes:
        name: as in the layout.
        number: the kind of its numbers, such as u8.
        count: how many numbers; None if the count grows with the row.
        sentence: a description of the field, for a comment.
        weights: per number, if the count is None.
    """

    name: str
    number: str
    count: int | None
    sentence: str = ""
    weights: int = 1

    def size(self, columns: str = "") -> str:
        """Returns the size in bytes in a block, or in a row of `columns` weights, as C."""
        from glft_schema.scalar.tree import STORED  # slow to import, as below

        width = STORED[self.number].size
        if self.count:
            return str(width * self.count)
        return columns + (f" / {self.weights}" if self.weights > 1 else "") + (f" * {width}" if width > 1 else "")


@dataclass(frozen=True)
class ScalarLayout:
    """The fields that a decoder reads and an encoder writes.

    Attributes:
        name: of the type.
        fields: of a block, in order, or of a row. Rows are stored field by field.
        weights: per block; None for rows.
    """

    name: str
    fields: tuple[ScalarField, ...]
    weights: int | None

    @property
    def names(self) -> str:
        """The names of the fields, separated by commas."""
        return ", ".join(field.name for field in self.fields)

    def cell(self, columns: int) -> int:
        """Returns how many weights share their fields: those of a block, a group, or a whole row of
        `columns`."""
        is_per_row = self.weights is None and any(field.count for field in self.fields)
        return columns if is_per_row else self.weights or math.lcm(*(field.weights for field in self.fields))

    def arrays(self, output: str = "f32", columns: int | None = None) -> dict[str, ArrayType]:
        """Returns the arrays that a decoder may use, by name. `columns` is the length of rows, if
        known."""
        from glft_schema.scalar.tree import ArrayType

        counts = {one.name: one.count or (columns // one.weights if columns else None) for one in self.fields}
        fields = {one.name: ArrayType(one.number, counts[one.name]) for one in self.fields}
        return {"w": ArrayType(output, self.weights or columns, "out"), **fields}

    def encoder_arrays(self, columns: int | None = None) -> dict[str, ArrayType]:
        """Returns the arrays that an encoder may use, by name: `w`, the fields, which it writes,
        and for blocks the importance of each weight and the `mean_square` of the row's weights."""
        from glft_schema.scalar.tree import ArrayType

        fields = {name: replace(one, use="out") for name, one in self.arrays(columns=columns).items()}
        weights = replace(fields.pop("w"), use="in")
        extra = {"importance": weights, "mean_square": ArrayType("f32", 1)} if self.weights else {}
        return {"w": weights, **extra, **fields}


class Functions(NamedTuple):
    """The scalar functions of a type.

    Attributes:
        layout: of a block or a row.
        decoder: None if the type has no formula.
        encoders: without and with importance.
    """

    layout: ScalarLayout
    decoder: Callable[..., Any] | None
    encoders: tuple[Callable[..., Any], ...] = ()
