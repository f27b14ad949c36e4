"""Names of a family's tensors in Hugging Face and in GGUF."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import reduce
from typing import Any, NamedTuple

from glft_schema.errors import FormatError, TensorError
from glft_schema.families.config import NEXTN, Config
from glft_schema.families.converter import ADVICE
from glft_schema.families.libraries import library
from glft_schema.families.page import BLOCK_COUNT, FLOAT32, Family, T
from glft_schema.tensor_types import TensorType
from glft_schema.tensors.stored_tensor import StoredTensor

SUFFIXES = (".weight", ".bias")
TEXT_MODEL = re.compile(r"(model\.)?(language_model|text_model)\.")  # prefix in multimodal models
NEXTN_TENSOR = "eh_proj.weight"  # of blocks that predict further tokens
OTHER_PARTS = re.compile(r"(model\.)?(visual|vision_\w+|audio_\w+|multi_modal_projector|mm_\w+)\.")  # of these models
KINDS = {"none": SUFFIXES[:1], "only": SUFFIXES[1:], "bare": ("",)}  # by `T.bias`
OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}  # in the first release of BERT


class NameParts(NamedTuple):
    """The names of a tensor: a row, the number of a block, and an ending in GGUF."""

    row: T
    block: int
    suffix: str

    def in_hf(self, config: Config) -> Iterator[str]:
        """Yields the names in Hugging Face: several if these tensors become one."""
        ending = endings(self.row)[self.suffix]
        for part in self.row.operation.parts(config):
            yield self.row.name.format(i=self.block, part=part) + ending

    @property
    def in_gguf(self) -> list[str]:
        """The names in GGUF: several if the operation splits the tensor."""
        return [name.format(i=self.block) + self.suffix for name in self.row.names]


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


def names_on_page(stored: Iterable[str], family: Family) -> dict[str, str]:
    """Returns the names of a folder's tensors on the family's page, by their names in the folder.

    Tensors that GGUF does not have are left out, such as those of a multimodal model's other parts.
    The names may have other prefixes than those on the page, or none.
    """
    prefixes = {"model", "language_model", "text_model", family.body[:-1], family.prefix[:-1]} - {""}
    prefix = re.compile(rf"(?:(?:{'|'.join(prefixes)})\.)*")
    outside = tuple(row.name for row in family.tensors if row.name and not row.name.startswith(family.body))
    names = {name: reduce(lambda text, old: text.replace(*old), OLD_NAMES.items(), name) for name in stored}
    texts = {name: prefix.sub("", text, count=1) for name, text in names.items() if not OTHER_PARTS.match(text)}
    if any(map(TEXT_MODEL.match, names)):
        texts = {name: text for name, text in texts.items() if TEXT_MODEL.match(name) or text.startswith(outside)}
    texts = {name: text for name, text in texts.items() if not family.drops(text)}
    texts = {name: text if text.startswith(outside) else family.body + text for name, text in texts.items()}
    nextn = [text.removesuffix(NEXTN_TENSOR) for text in texts.values() if text.endswith(NEXTN_TENSOR)]
    dropped = () if family.writes_nextn else tuple(nextn)
    return {name: text for name, text in texts.items() if not (family.drops(text) or text.startswith(dropped))}


def family_with_names(stored: Collection[str], families: Iterable[Family]) -> Family | None:
    """Returns the first family whose page has all names of a folder's tensors, and no others that
    are required, or None."""
    for family in families:
        names = Names(family, {family.field_of(BLOCK_COUNT): len(stored)}, len(stored))
        with suppress(TensorError):
            used = {names.place_of(name).row for name in names_on_page(stored, family).values()}
            if used >= {row for row in family.tensors if row.name and row.required and row.written and not row.when}:
                return family
    return None


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
        self._block_count += config.get(NEXTN) or 0 if family.writes_nextn else 0
        check_block_count(self._block_count, tensors)
        self._rows = [row for row in family.tensors if row.name]
        self._patterns = [(re.compile(_pattern(row)), row) for row in self._rows]

    def place_of(self, name: str) -> NameParts:
        """Returns the name parts of a tensor in a folder.

        Raises TensorError if the family has no such tensor, or the config no such block.
        """
        for pattern, row in self._patterns:
            if match := pattern.fullmatch(name):
                groups = match.groupdict()
                if (block := int(groups.get("i", 0))) >= self._block_count:
                    raise TensorError("the config has no such block", name)
                return NameParts(row, block, next(s for s, ending in endings(row).items() if ending == groups["ending"]))
        raise self.no_such_tensor(name)

    def no_such_tensor(self, name: str) -> TensorError:
        """Returns the error for a name that the family does not have."""
        return TensorError(f"the {self._family.arch} family has no such tensor: use {ADVICE}", name)

    def places(self, tensors: Mapping[str, StoredTensor], fused: bool = False) -> dict[str, NameParts]:
        """Returns the name parts of all tensors, by their names in GGUF.

        Args:
            tensors: of GGUF, whose types choose between rows.
            fused: use the names of the parameters of transformers' modules.
        """
        return {name: place for place in self._places(tensors, fused) for name in place.in_gguf}

    def _places(self, tensors: Mapping[str, StoredTensor], fused: bool) -> Iterator[NameParts]:
        for row in self._rows:
            for block in range(self._block_count if "{i}" in row.name else 1):
                for suffix in endings(row) if row.written or (fused and row.written is not None) else ():
                    place, type_ = NameParts(row, block, suffix), row.operation.type
                    if not _is_there(row, block, tensors):
                        continue
                    if type_ is None or (not fused and all(is_of(type_, tensors.get(name)) for name in place.in_gguf)):
                        yield place


def _is_there(row: T, block: int, tensors: Mapping[str, StoredTensor]) -> bool:
    """Returns whether a block has the tensors that a row requires or excludes."""
    conditions = [text for text in row.when.split(", ") if text.endswith(".weight")]
    return all((f"blk.{block}.{text.removeprefix('no ')}" in tensors) is not text.startswith("no ") for text in conditions)


def is_of(type_: TensorType, tensor: StoredTensor | None) -> bool:
    """Returns whether a tensor has the bytes of a quantized type."""
    return tensor is not None and tensor.packed is not None and tensor.packed.type == type_


def endings(row: T) -> dict[str, str]:
    """Returns the endings of a row's names in a folder, by those in GGUF."""
    pairs = {"": row.endings[0], **dict(zip(SUFFIXES, row.endings, strict=True))}
    return {suffix: pairs[suffix] for suffix in KINDS.get(row.bias, SUFFIXES)}


def _pattern(row: T) -> str:
    """Returns the regular expression of a row's names, with groups for the block and the ending."""
    name = re.escape(row.name).replace(r"\{i\}", "(?P<i>0|[1-9][0-9]{0,8})").replace(r"\{part\}", r"\w+")
    return f"{name}(?P<ending>{'|'.join(map(re.escape, endings(row).values()))})"
