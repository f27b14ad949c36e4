"""`Container`: the construct for a whole weights file of any format, told apart by the first four bytes.

It parses into a `File` and builds from one, or from a mapping of the format's regions. Where a file is bad, it
says in which field, at which byte and for which tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import construct

from glft_schema.codec.construct_errors import inside, our_errors
from glft_schema.codec.context import Context, new_context
from glft_schema.codec.rules import rule_sets
from glft_schema.errors import FormatError, OptionError, shown
from glft_schema.files.file import File
from glft_schema.files.layout import with_offsets
from glft_schema.files.parsing import parse_source
from glft_schema.files.shards import open_set
from glft_schema.formats.format import Format
from glft_schema.formats.registry import DEFAULT, format_named, format_of
from glft_schema.lazy import outside_graphs, torch
from glft_schema.limits import current
from glft_schema.storage.atomic import atomic_write
from glft_schema.storage.file_source import open_source
from glft_schema.storage.source import BytesSource, Source, StrPath
from glft_schema.storage.streams import Readable, stream_source
from glft_schema.storage.tensor_bytes import Sink


class ContainerConstruct(construct.Construct):
    """A weights file. Parses into a `File`; builds from one or from a mapping of regions; has no size of its own.

    Inside another Struct it takes all bytes that are left: wrap it in ``Prefixed`` or ``FixedSized`` to bound it.
    """

    @outside_graphs
    def parse(self, data: bytes | bytearray | memoryview, **contextkw: Any) -> File:
        """Parses a file held in memory.

        Raises:
            FormatError: where the bytes are no file of a known format; with field, offset and tensor.
        """
        return parse_source(BytesSource(data))

    @outside_graphs
    def parse_stream(self, stream: Readable, mmap: bool = True, **contextkw: Any) -> File:
        """Parses what is left of `stream`, which need not be seekable.

        A regular file that Python opened stays where it is, as with `parse_file`, and its payloads can be had also after
        `stream` is closed. Any other stream is read into memory, after a look at its first bytes.

        Args:
            stream: a stream of bytes; it stands at its end afterwards.
            mmap: map a regular file.

        Raises:
            FormatError: as `parse`.
            LimitError: where a stream has more bytes than are read into memory.
            TypeError: where it is a stream of text.
            OSError: from the system.
        """
        with _closed_on_failure(stream_source(stream, format_of, mmap)) as source:
            return parse_source(source)

    @outside_graphs
    def parse_file(
        self, filename: StrPath, mmap: bool = True, *, offset: int = 0, size: int | None = None, **contextkw: Any
    ) -> File:
        """Parses the file at `filename`, or a part of it, which stays open for its payloads until the result is closed or gone.

        Args:
            filename: its path.
            mmap: map it; otherwise payloads are read into memory of their own when asked for.
            offset: where in the file the container begins, as `open` takes it.
            size: the container's bytes, as `open` takes it.

        Raises:
            OSError: where it cannot be opened or is not a regular file.
            FormatError: as `parse`.
        """
        return open(filename, mmap=mmap, offset=offset, size=size)

    def compile(self, filename: object = None) -> ContainerConstruct:
        """Returns itself: a format is not made faster by construct's compiler, whose own constructs check less."""
        return self

    def build_file(self, obj: File | Mapping[str, Any], filename: StrPath, **contextkw: Any) -> None:
        """Builds into the file at `filename`, one payload at a time, and replaces it only when all went well.

        Raises:
            OSError: from the system, with what stood at `filename` intact.
            FormatError: where `obj` cannot be built, or breaks a rule of the sets in ``rules``, a keyword.
        """
        with atomic_write(filename) as stream:
            self.build_stream(obj, stream, **contextkw)

    def _parse(self, stream: Any, context: Context, path: str) -> File:
        with inside(path):
            return self.parse_stream(stream)

    def _build(self, obj: File | Mapping[str, Any], stream: Any, context: Context, path: str) -> Any:
        with inside(path), our_errors():
            format, regions = _regions(obj)
            rules = rule_sets(context._params.get("rules", ()))
            limits = obj.limits if isinstance(obj, File) else current()
            context = new_context(False, rules=rules, limits=limits)
            format.struct._build(with_offsets(format, regions), Sink(stream), context, "(building)")
        return obj


Container = ContainerConstruct()


@outside_graphs
def open(
    path: StrPath,
    device: str | torch.device = "cpu",
    *,
    mmap: bool = True,
    whole_set: bool = True,
    offset: int = 0,
    size: int | None = None,
) -> File:
    """Opens a weights file of any format; of a set of GGUF files that the first one begins, all as one.

    Args:
        path: the file.
        device: where its tensors go.
        mmap: map the file; otherwise payloads are read into memory of their own when asked for.
        whole_set: open the other files of the set that it is the first of, too; not of a part of a file.
        offset: where in the file the container begins. All other offsets, and what payloads are aligned to, count from there.
        size: the container's bytes; unless given, all up to the end of the file.

    Raises:
        OSError: with the path, where it cannot be opened or is not a regular file.
        FormatError: where it is no file of a known format; with field, offset and tensor.
        OptionError: for an offset or a size below 0.
    """
    with _closed_on_failure(open_source(path, mmap, offset=offset, size=size)) as source:
        file = parse_source(source, device)
        if not whole_set or offset or size is not None:
            return file
        return open_set(file, lambda shard: open(shard, device, mmap=mmap, whole_set=False))


@contextmanager
def _closed_on_failure(source: Source) -> Iterator[Source]:
    """Gives back what a source holds where whatever is done with it fails."""
    try:
        yield source
    except BaseException:
        source.close()
        raise


def _regions(obj: File | Mapping[str, Any]) -> tuple[Format, Mapping[str, Any]]:
    """Returns the format and the regions to be built from."""
    if isinstance(obj, File):
        if len(obj.shards) > 1:
            raise FormatError(f"expected one file, found a set of {len(obj.shards)}: merge it first")
        return obj.format, obj.regions
    if not isinstance(obj, Mapping):
        raise FormatError(f"expected a File or a mapping of regions, found {shown(obj)}")
    try:
        format = format_named(obj.get("format", DEFAULT.name))
    except OptionError as error:
        raise FormatError(str(error), "format") from None
    return format, {region: value for region, value in obj.items() if region != "format"}
