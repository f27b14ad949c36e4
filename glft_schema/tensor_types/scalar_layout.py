"""Layouts of the fields that scalar functions read and write, in a block or in a row."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from glft_schema.scalar.kinds import KINDS

if TYPE_CHECKING:
    from glft_schema.scalar.tree import ArrayType

# Scalar functions of one block or row, see docs/concepts/scalar-functions.md. A formula writes
# `w`, an encoder reads `w` and writes the fields.
Formula = Callable[..., Any]
Encoder = Callable[..., Any]
MOST_ROWS = 16  # of x in a product of the compiled library


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

    def count_in(self, columns: int) -> int:
        """Returns how many numbers a block has, or a row of `columns` weights."""
        return self.count or columns // self.weights


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

    @property
    def unit(self) -> int:
        """The weights of a block, or those of a row that share numbers."""
        return self.weights or math.lcm(*(field.weights for field in self.fields if not field.count))

    def cell(self, columns: int) -> int:
        """Returns how many weights share their fields: those of a block, a group, or a whole row of
        `columns`."""
        return columns if self.weights is None and any(field.count for field in self.fields) else self.unit

    @property
    def offsets(self) -> list[int]:
        """The first byte of each field in a block, and the size of the block."""
        offsets = [0]
        for field in self.fields:
            offsets.append(offsets[-1] + KINDS[field.number].size * (field.count or 0))
        return offsets

    def arrays(self, output: str = "f32", columns: int | None = None) -> dict[str, ArrayType]:
        """Returns the arrays that a decoder may use, by name. `columns` is the length of rows, if
        known."""
        from glft_schema.scalar.tree import ArrayType  # slow to import

        counts = {one.name: one.count_in(columns) if columns else one.count for one in self.fields}
        fields = {one.name: ArrayType(one.number, counts[one.name]) for one in self.fields}
        return {"w": ArrayType(output, self.weights or columns, "out"), **fields}

    def encoder_arrays(self, columns: int | None = None) -> dict[str, ArrayType]:
        """Returns the arrays that an encoder may use, by name: `w`, the fields, which it writes,
        and for blocks the importance of each weight and the `mean_square` of the row's weights."""
        fields = {name: replace(one, use="out") for name, one in self.arrays(columns=columns).items()}
        weights = replace(fields.pop("w"), use="in")
        extra = {"importance": weights, "mean_square": replace(weights, length=1)} if self.weights else {}
        return {"w": weights, **extra, **fields}


class Functions(NamedTuple):
    """The scalar functions of a type.

    Attributes:
        layout: of a block or a row.
        decoder: None if the type has no formula.
        encoders: without and with importance.
    """

    layout: ScalarLayout
    decoder: Formula | None
    encoders: tuple[Encoder, ...] = ()
