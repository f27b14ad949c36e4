"""`Format`: the declaration of a container format, and facts about its files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from io import BytesIO
from typing import Any, NamedTuple

from glft_schema.codec.construct_errors import our_errors
from glft_schema.codec.context import Context, new_context
from glft_schema.codec.expressions import Reversed, ValueOfKey
from glft_schema.codec.metadata import KeyValues
from glft_schema.codec.rules import RULE_SETS, SPEC
from glft_schema.codec.structs import Derived, Struct, follows, member
from glft_schema.codec.type_codes import TypeTable
from glft_schema.codec.typed_values import Typed
from glft_schema.display import format_count, with_display
from glft_schema.errors import alternatives, quote
from glft_schema.tensor_types import TensorType

ENDING = re.compile(r"\.[^.A-Z]+")


def _are(values: Any, kind: type, holds: Callable[[Any], Any] = bool) -> bool:
    """Tells whether a value is a tuple of values of a kind that `holds` accepts."""
    return isinstance(values, tuple) and all(isinstance(value, kind) and holds(value) for value in values)


class ShardKeys(NamedTuple):
    """The metadata keys that place a file in a set of shards.

    Attributes:
        number: of the shard, counted from 0.
        files: the number of shards.
        tensors: the number of tensors in all shards together.
    """

    number: str
    files: str
    tensors: str

    def entries(self, number: int, files: int, tensors: int) -> dict[str, Typed]:
        """Returns the entries of a shard, with the types that llama.cpp gives them."""
        return {
            self.number: Typed(number, "uint16"),
            self.files: Typed(files, "uint16"),
            self.tensors: Typed(tensors, "int32"),
        }


class ShardIndex(NamedTuple):
    """A JSON file beside the files of a set, which maps each tensor to its file name.

    Attributes:
        suffix: of the name of the JSON file.
    """

    suffix: str


@with_display
@dataclass(frozen=True, eq=False)
class Format:
    """A container format.

    Attributes:
        name: as in its specification.
        magics: the first bytes of its files, and of files that are recognised to be refused with a
            reason.
        types: its tensor types, with their codes in its files; none if its files hold no
            tensors.
        struct: the whole file; if it holds tensors, its last region is the `TensorData`, ``data``.
        endings: of file names, the usual one first.
        keeps_to: the rule sets that new files follow.
        keep_vectors: whether the patterns of a scheme skip tensors with fewer than two dims.
        shards: how a sharded model refers to its files: by keys in their metadata or by an index;
            None if the format has no shards.
        unshared_by: the rule sets whose readers do not allow tensors to share a payload.
        sniff: recognises files without a magic: the first 16 bytes of a file -> whether it has this
            format.
        entries: the metadata that `convert` adds to new files.
        order: the key by which new files sort the rows of their table; by default, the caller's
            order.
        meaning: a metadata key and value -> the name of an enumerated value, or None.
        summary: metadata -> a description of the model, such as ``["llama", "30 layers"]``.
    """

    name: str
    magics: tuple[bytes, ...]
    types: TypeTable[TensorType]
    struct: Struct
    _: KW_ONLY
    endings: tuple[str, ...] = ()
    keeps_to: tuple[str, ...] = ()
    keep_vectors: bool = False
    shards: ShardKeys | ShardIndex | None = None
    unshared_by: tuple[str, ...] = ()
    sniff: Callable[[bytes], bool] | None = None
    entries: Mapping[str, str] = field(default_factory=dict)
    order: Callable[[Mapping[str, Any]], Any] | None = None
    meaning: Callable[[str, Any], str | None] = lambda key, value: None
    summary: Callable[[Mapping[str, Any]], list[str]] = lambda metadata: []

    def __post_init__(self) -> None:
        sets, magics = f"a tuple of {alternatives(RULE_SETS)}", _are(self.magics, bytes) and (self.magics or self.sniff)
        for name, expected, holds in (
            ("magics", "a tuple such as (b'TOY1',), or a function sniff", magics),
            ("types", "TypeTable('toy', {0: F32})", isinstance(self.types, TypeTable)),
            ("endings", "a tuple such as ('.toy',), in lower case with one dot", _are(self.endings, str, ENDING.fullmatch)),
            ("keeps_to", sets, _are(self.keeps_to, str, RULE_SETS.__contains__)),
            ("unshared_by", sets, _are(self.unshared_by, str, RULE_SETS.__contains__)),
            ("struct", "Struct(...) of glft_schema.codec", isinstance(self.struct, Struct)),
        ):
            if not holds:
                raise ValueError(f"{self.name}: {name}: expected {expected}, found {quote(getattr(self, name))}")

    def _display(self) -> Iterator[str]:
        yield f"{self.name}, {format_count(len([*self.types]), 'tensor type')}"

    def claims(self, start: bytes) -> bool:
        """Tells whether files that begin with these bytes have this format. A file that ends within
        the magic counts as one of the format."""
        if self.sniff and self.sniff(start):
            return True
        return any(magic.startswith(start[: len(magic)]) for magic in self.magics)

    @property
    def shard_keys(self) -> ShardKeys | None:
        """The metadata keys of a sharded model, if the format has them."""
        return self.shards if isinstance(self.shards, ShardKeys) else None

    @property
    def rule_sets(self) -> tuple[str, ...]:
        """The rule sets that apply to its files, besides `REQUIRED`."""
        return self.keeps_to or (SPEC,)

    @property
    def has_tensors(self) -> bool:
        """Whether its files hold tensors."""
        return self.field("data") is not None

    @cached_property
    def head(self) -> Struct:
        """The regions before the payloads."""
        parts = self.struct.subcons
        return Struct(*parts[: [part.name for part in parts].index("data")]) if self.has_tensors else self.struct

    def build(self, regions: Mapping[str, Any], **parameters: Any) -> tuple[bytes, Context]:
        """Builds regions: of the whole file, or, without ``data``, those before the payloads.

        Args:
            regions: by name.
            parameters: see `Parameters`. With ``spans``, payloads are only planned.

        Returns:
            The bytes, and the context with the built regions.

        Raises:
            FormatError: if a region cannot be built.
        """
        stream, struct = BytesIO(), self.struct if "data" in regions else self.head
        with our_errors():
            built: Context = struct._build(regions, stream, new_context(False, **parameters), "(building)")
        return stream.getvalue(), built

    @property
    def regions(self) -> list[str]:
        """The names of the regions."""
        return [part.name for part in self.struct.subcons if part.name and not follows(part)]

    @property
    def table(self) -> str:
        """The name of the region with a row for each tensor: name, dims, dtype, offset; empty if
        its files hold no tensors."""
        name: str = self.field("data").table if self.has_tensors else ""
        return name

    @property
    def metadata(self) -> Any:
        """The declaration of the metadata, such as `KeyValues` or `KeyValueLines`; None if the
        format has no metadata."""
        return self.field("metadata")

    @property
    def has_typed_metadata(self) -> bool:
        """Whether metadata values have types; otherwise they are text."""
        return isinstance(self.metadata, KeyValues)

    @property
    def alignment_key(self) -> str | None:
        """The metadata key of the alignment; None if the format has none."""
        alignment = self.field("alignment")
        expression = alignment.of if isinstance(alignment, Derived) else None
        return expression.key if isinstance(expression, ValueOfKey) else None

    def dims_of(self, shape: Sequence[int]) -> list[int]:
        """Converts a shape, in torch's order, to dims as stored."""
        return list(shape)[::-1] if self._reverses_dims else list(shape)

    @cached_property
    def _reverses_dims(self) -> bool:
        return isinstance(member(self.row, "shape").of, Reversed)

    @property
    def row(self) -> Struct:
        """The declaration of the rows of `table`."""
        table = self.field(self.table)
        row: Struct = table.row if hasattr(table, "row") else table.subcon
        return row

    def field(self, name: str) -> Any:
        """Returns the declaration of a region or derived field by name; None if there is none."""
        return member(self.struct, name)
