"""What a format is to the rest of the package."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from glft_schema.fields import Struct, follows
from glft_schema.rules import SPEC
from glft_schema.tensor_types import TensorType
from glft_schema.type_table import TypeTable


@dataclass(frozen=True)
class Format:
    """A container format.

    Attributes:
        name: as in its specification.
        magics: the four bytes that its files start with, and those that are recognised only to be refused with a reason.
        types: its tensor types.
        struct: the whole file; its last region is the `TensorData`, ``data``.
        table: the name of the region with a row for each tensor: name, dims, dtype, offset.
        dims_of: a tensor's shape in torch's order -> its dims as they are stored; and the other way round.
        keeps_to: the rule sets that new files keep to.
        vectors_stay: whether patterns in schemes leave tensors of fewer than two dims as they are.
        with_alignment: (metadata, alignment) -> metadata that states it; None where files do not.
    """

    name: str
    magics: tuple[bytes, ...]
    types: TypeTable[TensorType]
    struct: Struct
    table: str
    dims_of: Callable[[Sequence[int]], Sequence[int]]
    keeps_to: tuple[str, ...] = ()
    vectors_stay: bool = False
    with_alignment: Callable[[Mapping[str, Any], int], Mapping[str, Any]] | None = None

    @property
    def rule_sets(self) -> tuple[str, ...]:
        """The rule sets that are about its files, beside what no reader can do without."""
        return self.keeps_to or (SPEC,)

    @property
    def head(self) -> Struct:
        """What comes before the payloads."""
        fields = self.struct.subcons
        return Struct(*fields[: [field.name for field in fields].index("data")])

    @property
    def regions(self) -> list[str]:
        """The names of the regions."""
        return [field.name for field in self.struct.subcons if field.name and not follows(field)]
