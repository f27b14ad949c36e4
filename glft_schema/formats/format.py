"""What a format is to the rest of the package."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from glft_schema.fields import Struct, follows
from glft_schema.tensor_types import TensorType
from glft_schema.type_table import TypeTable


@dataclass(frozen=True)
class Format:
    """A container format.

    Attributes:
        name: as in its specification.
        magics: the four bytes that its files start with, and those that are recognised only to be refused with a reason.
        types: its tensor types.
        struct: the whole file; its last field is the `TensorData` region.
        table: the name of the region with a row for each tensor: name, dims, dtype, offset.
        dims_of: a tensor's shape in torch's order -> its dims as they are stored; and the other way round.
    """

    name: str
    magics: tuple[bytes, ...]
    types: TypeTable[TensorType]
    struct: Struct
    table: str
    dims_of: Callable[[Sequence[int]], Sequence[int]]

    @property
    def regions(self) -> list[str]:
        """The names of the regions."""
        return [field.name for field in self.struct.subcons if field.name and not follows(field)]
