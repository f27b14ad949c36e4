"""What a format is to the rest of the package."""

from __future__ import annotations

from dataclasses import dataclass

from glft_schema.fields import Struct
from glft_schema.tensor_types import TypeTable


@dataclass(frozen=True)
class Format:
    """A container format.

    Attributes:
        name: as in its specification.
        magics: the four bytes that its files start with, and those that are recognised only to be refused with a reason.
        types: its tensor types.
        struct: the whole file; its last field is the `TensorData` region, the one before it the table of tensors.
    """

    name: str
    magics: tuple[bytes, ...]
    types: TypeTable
    struct: Struct

    @property
    def table(self) -> str:
        """The name of the table of tensors."""
        return str([field.name for field in self.struct.subcons if field.name][-2])
