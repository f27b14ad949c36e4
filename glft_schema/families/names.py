"""Names of a family's tensors in Hugging Face and in GGUF."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from glft_schema.errors import FormatError, TensorError
from glft_schema.families.config import Config
from glft_schema.families.converter import ADVICE
from glft_schema.families.libraries import library
from glft_schema.families.page import BLOCK_COUNT, FLOAT32, Family, T

SUFFIXES = (".weight", ".bias")
NUMBER = re.compile(r"\{(\w)\}")


class Place(NamedTuple):
    """The names in Hugging Face of a tensor in GGUF: a row, the number of a block, and a suffix."""

    row: T
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
    check_block_count(blocks, tensors)
    gguf = library("gguf")
    return gguf.get_tensor_name_map(next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == arch), blocks)


def check_block_count(blocks: int, tensors: int) -> None:
    """Raises FormatError if a model has more blocks than tensors."""
    if blocks > tensors:
        raise FormatError(f"expected a block count of at most {tensors}, the number of tensors, found {blocks}")


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
        check_block_count(self._block_count, tensors)
        self._rows = [row for row in family.tensors if row.name]
        self._patterns = [(re.compile(_pattern(row)), row) for row in self._rows]

    def row_of(self, name: str) -> tuple[T, dict[str, str], str]:
        """Returns the row of a tensor in a folder, the numbers in its name, and its suffix.

        Raises TensorError if there is none.
        """
        for pattern, row in self._patterns:
            if match := pattern.fullmatch(name):
                numbers = match.groupdict()
                return row, numbers, numbers.pop("suffix") or SUFFIXES[0]
        raise TensorError(f"the {self._family.arch} family has no such tensor: use {ADVICE}", name)

    def in_gguf(self, row: T, numbers: Mapping[str, str], suffix: str) -> list[str]:
        """Returns the names in GGUF. Raises TensorError if the block is not in the config."""
        if int(numbers.get("i", 0)) >= self._block_count:
            problem = "expected a block of the config's num_hidden_layers, found another"
            raise TensorError(problem, row.name.format_map(numbers) + suffix)
        return [name.format_map(numbers) + suffix for name in row.names]

    def in_hf(self, fused: bool = False) -> dict[str, Place]:
        """Returns the names in Hugging Face of all tensors, by their names in GGUF; those of
        transformers' modules if `fused`."""
        return {
            name: place
            for place in self._places(fused)
            for name in self.in_gguf(place.row, {"i": str(place.block)}, place.suffix)
        }

    def _places(self, fused: bool) -> Iterator[Place]:
        for row in self._rows:
            for block in range(self._block_count if "{i}" in row.name else 1):
                if row.written or fused:
                    yield from (Place(row, block, suffix) for suffix in suffixes(row))


def suffixes(row: T) -> tuple[str, ...]:
    """Returns the endings of a row's names."""
    return SUFFIXES[:1] if row.bias == "none" else SUFFIXES


def _pattern(row: T) -> str:
    """Returns the regular expression of a row's names, with groups for numbers and the suffix."""
    parts = re.split(NUMBER, row.name)
    groups = [f"(?P<{part}>[0-9]+)" if i % 2 else re.escape(part) for i, part in enumerate(parts)]
    return "".join(groups) + f"(?P<suffix>{'|'.join(map(re.escape, ('', *suffixes(row))))})"
