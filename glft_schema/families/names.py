"""Names of a family's tensors in Hugging Face and in GGUF."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from glft_schema.errors import FormatError, TensorError
from glft_schema.families.config import Config
from glft_schema.families.converter import ADVICE
from glft_schema.families.declarations import BLOCK_COUNT, FLOAT32, Family, Row
from glft_schema.families.libraries import library

SUFFIXES = (".weight", ".bias")
NUMBER = re.compile(r"\{(\w)\}")


class Place(NamedTuple):
    """The names in Hugging Face of a tensor in GGUF: a row, the number of a block, and a suffix."""

    row: Row
    block: int
    suffix: str

    def names(self, experts: int) -> list[str]:
        """Returns the names, one for each expert if the row has several."""
        numbers = range(experts if self.row.operation.stacks else 1)
        suffix = self.suffix if self.row.written else ""
        return [self.row.name.format(i=self.block, e=number) + suffix for number in numbers]


def name_map(arch: str, blocks: int, tensors: int) -> Any:
    """Returns the `gguf.TensorNameMap` of an architecture.

    Raises FormatError if a model has more blocks than tensors.
    """
    if blocks > tensors:
        raise FormatError(f"expected a block count of at most {tensors}, the number of tensors, found {blocks}")
    gguf = library("gguf")
    return gguf.get_tensor_name_map(next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == arch), blocks)


def is_float32(name: str, shape: tuple[int, ...]) -> bool:
    """Returns whether GGUF holds a tensor in float32 even if others are narrower."""
    return len(shape) < 2 or name.endswith(("_norm.weight", *FLOAT32)) or not name.endswith(".weight")


class Names:
    """The names of a family's tensors.

    Args:
        family: the family.
        config: of the model.
        tensors: the number of its tensors.

    Raises:
        FormatError: if the model has more blocks than tensors.
    """

    def __init__(self, family: Family, config: Config, tensors: int) -> None:
        self._family, self._block_count = family, config[family.field_of(BLOCK_COUNT)]
        self._map = name_map(family.arch, self._block_count, tensors)
        self._patterns = [(re.compile(_pattern(row.name)), row) for row in family.rows]

    def row_of(self, name: str) -> tuple[Row, dict[str, str], str]:
        """Returns the row of a tensor in a folder, the numbers in its name, and its suffix.

        Raises TensorError if there is none.
        """
        for pattern, row in self._patterns:
            if match := pattern.fullmatch(name):
                numbers = match.groupdict()
                return row, numbers, numbers.pop("suffix") or SUFFIXES[0]
        raise TensorError(f"the {self._family.arch} family has no such tensor: use {ADVICE}", name)

    def in_gguf(self, row: Row, numbers: Mapping[str, str], suffix: str) -> list[str]:
        """Returns the names in GGUF. Raises TensorError if the block is not in the config."""
        names = [name.format_map(numbers) + suffix for name in row.mapped or (row.name,)]
        found = [self._map.get_name(name, try_suffixes=SUFFIXES) for name in names]
        if None in found:
            raise TensorError("expected a block of the config's num_hidden_layers, found another", names[0])
        return found

    def in_hf(self, fused: bool = False) -> dict[str, Place]:
        """Returns the names in Hugging Face of all tensors, by their names in GGUF; those of
        transformers' modules if `fused`."""
        return {
            name: place
            for place in self._places(fused)
            for name in self.in_gguf(place.row, {"i": str(place.block)}, place.suffix)
        }

    def _places(self, fused: bool) -> Iterator[Place]:
        for row in self._family.rows:
            for block in range(self._block_count if "{i}" in row.name else 1):
                if row.written or fused:
                    yield from (Place(row, block, suffix) for suffix in SUFFIXES)


def _pattern(name: str) -> str:
    """Returns the regular expression of a row's names, with groups for numbers and the suffix."""
    parts = re.split(NUMBER, name)
    groups = [f"(?P<{part}>[0-9]+)" if i % 2 else re.escape(part) for i, part in enumerate(parts)]
    return "".join(groups) + r"(?P<suffix>\.weight|\.bias|)"
