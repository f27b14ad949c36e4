"""A parsed file: its regions by name, its tensors, and its source of bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, KeysView
from types import TracebackType
from typing import Any

from glft_schema.codec.metadata import Metadata
from glft_schema.codec.records import Record
from glft_schema.display import Part, with_display
from glft_schema.errors import quote
from glft_schema.files.summary import file_parts
from glft_schema.formats.format import Format
from glft_schema.lazy import outside_graphs, torch
from glft_schema.limits import Limits
from glft_schema.storage.dtypes import CODES
from glft_schema.storage.source import Source
from glft_schema.storage.tensor_bytes import pieces
from glft_schema.tensors.region import TensorMap, Tensors, no_tensors
from glft_schema.tensors.tensor import Tensor
from glft_schema.words import MissingKeyError, missing_attribute

Parse = Callable[[Source, "str | torch.device"], "File"]


@with_display
class File:
    """A parsed weights file. Payloads are read when requested.

    The regions of the format are attributes and keys: ``file.header``, ``file["header"]``.
    Files are equal if their bytes are equal. A file pickles as its path, or as its bytes if it has
    none; so do its tensors, metadata and regions. Unpickling raises OSError if the file has changed
    since it was opened. A file is a context manager. After `close` every access raises ClosedError,
    but existing tensors stay valid.

    Attributes:
        format: the `Format`.
        name: the path, or ``<bytes>``.
        source: the `Source` of its bytes.
        device: default device of tensors.
        limits: the `Limits` it was opened with; building it uses them too.
    """

    def __init__(
        self,
        format: Format,
        record: Record,
        source: Source,
        device: str | torch.device,
        limits: Limits,
        parse: Parse,
    ) -> None:
        self.format = format
        self.name = source.name
        self.source = source
        self._record = record
        self._data: TensorMap = record["data"] if "data" in record else no_tensors(source)
        self._parse = parse
        self._weights: Tensors | None = None
        self.device = device
        self.limits = limits

    def __getattr__(self, region: str) -> Any:
        if region.startswith("_") or not (region in self._record or region in self._record.counts):
            problem = f"no region {region!r}; the regions are {', '.join(self._record)}"
            raise missing_attribute(problem, region, dir(self))
        return getattr(self.regions, region)

    def __getitem__(self, name: str) -> Any:
        """Returns an attribute: ``this.weights.header`` of construct reads the key ``header``."""
        try:
            return getattr(self, name)
        except (AttributeError, TypeError):
            raise MissingKeyError(name, self._record) from None

    __iter__ = None  # ambiguous: iterate over `regions` or `tensors`
    __contains__ = None

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._record]

    @property
    def regions(self) -> Record:
        """The regions by name, in file order. Raises ClosedError after `close`."""
        self.source.check_open()
        return self._record

    @property
    def shards(self) -> tuple[File, ...]:
        """The files of a set, or the file itself."""
        return (self,)

    @property
    def header(self) -> Any:
        """The region ``header``; empty if the format has none."""
        return self.regions.header if "header" in self._record else Record({})

    @property
    def metadata(self) -> Any:
        """The metadata, a read-only mapping; empty if the format has none."""
        return self.regions.metadata if "metadata" in self._record else Metadata({})

    @property
    def tensors(self) -> Tensors:
        """The tensors by name, in table order, and the gaps between payloads."""
        self.source.check_open()
        return self._data

    @property
    def weights(self) -> Tensors:
        """The weights by name: `tensors`, in which a weight stored as several tensors, such as
        codes and scales, is one tensor whose payload is computed; see `composites`."""
        self.source.check_open()
        if self._weights is None:
            self._weights = self.tensors
            if not {type_.exact or type_.name for type_ in self.tensors.types}.isdisjoint(CODES):
                from glft_schema.composites.composed import Weights  # slow to import

                self._weights = Weights(self.tensors, self.name)
        return self._weights

    @property
    def device(self) -> str | torch.device:
        """Default device of tensors."""
        device: str | torch.device = self._data.device
        return device

    @device.setter
    def device(self, device: str | torch.device) -> None:
        self._weights = None
        for shard in self.shards:
            shard._data.device = device

    @property
    def nbytes(self) -> int:
        """Size in bytes of the file, or of all files of a set; the declared size if truncated."""
        return sum(shard._data.start + shard._data.size for shard in self.shards)

    def keys(self) -> KeysView[str]:
        """Returns the names of the weights."""
        return self.weights.keys()

    @outside_graphs
    def get_tensor(self, name: str, dtype: torch.dtype | str | None = None, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """Returns a weight's values, see `Tensor.dequantize`. Raises KeyError."""
        return self.weights[name].dequantize(dtype, out=out)

    @outside_graphs
    def get_slice(self, name: str) -> Tensor:
        """Returns a weight to index, ``get_slice(name)[3:5]``; reads only the bytes needed."""
        return self.weights[name]

    def close(self) -> None:
        """Closes the file. May be called more than once."""
        for shard in self.shards:
            shard.source.close()

    def __enter__(self) -> File:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, File):
            return NotImplemented
        if self.format is not other.format or len(self.shards) != len(other.shards):
            return False
        return all(_same_bytes(mine.source, its.source) for mine, its in zip(self.shards, other.shards, strict=True))

    def __copy__(self) -> File:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> File:
        return self  # immutable

    def __reduce__(self) -> tuple[Any, ...]:
        self.source.check_open()
        return _reparse, (self._parse, self.limits, self.source, self.device)

    def _display(self) -> Iterator[Part]:
        return iter([f"{quote(self.name)}: closed"]) if self.source.closed else file_parts(self)


def _reparse(parse: Parse, limits: Limits, source: Source, device: str | torch.device) -> File:
    with limits:
        return parse(source, device)


def _same_bytes(one: Source, other: Source) -> bool:
    if one.size != other.size:
        return False
    return all(a == b for a, b in zip(pieces(one, 0, one.size), pieces(other, 0, one.size), strict=True))
