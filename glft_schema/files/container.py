"""`Container`: the construct for a weights file of any format. `open`: a file by its path.

The first bytes select the format. Errors name the field, the byte and the tensor.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import construct

from glft_schema.codec.construct_errors import inside, our_errors
from glft_schema.codec.context import Context
from glft_schema.errors import FormatError, OptionError, TruncatedError, quote
from glft_schema.files.file import File
from glft_schema.files.layout import lay_out
from glft_schema.files.parsing import parse_partly, parse_source
from glft_schema.files.shards import open_set
from glft_schema.formats.format import Format
from glft_schema.formats.registry import DEFAULT, format_named, format_of, format_with, indexed_format
from glft_schema.lazy import outside_graphs, torch
from glft_schema.storage.atomic import atomic_write
from glft_schema.storage.locations import is_remote, session
from glft_schema.storage.opening import open_source, open_stream
from glft_schema.storage.source import BytesSource, Source, StrPath, path_text
from glft_schema.storage.streams import Readable, stream_source
from glft_schema.storage.system import MAPS
from glft_schema.storage.torch_tensors import usable_device


class ContainerConstruct(construct.Construct):
    """Parses into a `File`, builds from one or from a mapping of regions. No fixed size.

    As a field of another Struct it takes all bytes left; ``Prefixed`` and ``FixedSized`` bound it.
    Expressions on the field see the attributes of `File`: ``this.weights.header.version``.
    """

    @outside_graphs
    def parse(self, data: bytes | bytearray | memoryview, **contextkw: Any) -> File:
        """Parses a file in memory.

        Raises:
            FormatError: if `data` is not a valid file; with field, offset and tensor.
            OptionError: if `data` is not bytes.
        """
        try:
            view = memoryview(data).cast("B")
        except (TypeError, ValueError):  # not a buffer, or one with gaps
            problem = f"expected the bytes of a file, found {quote(data)}"
            raise OptionError(f"{problem}: glft_schema.open takes a path, parse_stream a stream") from None
        return parse_source(BytesSource(view))

    @outside_graphs
    def parse_stream(self, stream: Readable, mmap: bool = MAPS, **contextkw: Any) -> File:
        """Parses the rest of `stream`, which need not be seekable, and moves the stream to its end.

        A regular file opened by Python stays on disk; its payloads remain available after `stream`
        is closed. Other streams are read into memory, after a check of the first bytes.

        Args:
            stream: a stream of bytes.
            mmap: map a regular file; see `glft_schema.open`.

        Raises:
            FormatError: as `parse`.
            LimitError: if a stream other than a regular file exceeds the limit ``stream``.
            TypeError: if it is a text stream.
            OSError: from the system.
        """
        return _parse(stream_source(stream, format_of, mmap))

    @outside_graphs
    def parse_file(
        self, filename: StrPath, mmap: bool = MAPS, *, offset: int = 0, size: int | None = None, **contextkw: Any
    ) -> File:
        """Parses the file at `filename` or a part of it.

        The file stays open for its payloads until the result is closed or garbage-collected.

        Args:
            filename: the file; see `open`. A part of a file is never opened as a set.
            mmap: as `glft_schema.open`.
            offset: first byte of the container. Other offsets and alignments are relative to it.
            size: bytes of the container; by default up to the end of the file.

        Raises:
            OSError: if it cannot be opened or is not a regular file.
            FormatError: as `parse`.
            OptionError: if offset or size is negative.
        """
        if not offset and size is None:
            return open(filename, mmap=mmap)
        return _parse(open_source(path_text(filename), mmap, offset=offset, size=size))

    def build_file(self, obj: File | Mapping[str, Any], filename: StrPath, **contextkw: Any) -> None:
        """Builds a file, one payload at a time. An existing file is replaced only on success.

        Without a ``format`` in `obj`, the ending of `filename` selects it; by default GLFT.

        Raises:
            OSError: from the system; the old file is unchanged.
            FormatError: if `obj` cannot be built, or breaks a rule of the sets in ``rules``.
        """
        if isinstance(obj, Mapping):
            obj = {"format": (format_with(filename) or DEFAULT).name, **obj}
        with atomic_write(filename) as stream:
            self.build_stream(obj, stream, **contextkw)

    def _parse(self, stream: Any, context: Context, path: str) -> File:
        with inside(path):
            return self.parse_stream(stream)

    def _build(self, obj: File | Mapping[str, Any], stream: Any, context: Context, path: str) -> Any:
        with inside(path), our_errors():
            format, regions = _regions(obj)
            limits = obj.limits if isinstance(obj, File) else None
            layout, built = lay_out(format, regions, rules=context._params.get("rules", ()), limits=limits)
            layout.write(stream)
        return obj if isinstance(obj, File) else built


Container = ContainerConstruct()


@outside_graphs
def open(
    path: StrPath | Source | Readable,
    device: str | torch.device = "cpu",
    *,
    mmap: bool = MAPS,
    whole_set: bool = True,
    allow_truncated: bool = False,
) -> File:
    """Opens a weights file of any format. The first file of a GGUF set opens the whole set.

    Args:
        path: the file; for a model in several safetensors files, the index or the directory. Also
            ``https://HOST/FILE``, ``hf://OWNER/REPO/FILE@REVISION``, an fsspec URL such as
            ``s3://BUCKET/FILE``, or ``-`` for standard input. A file object, or a `Source`, such as
            an instance of your own subclass, is opened as a single file.
        device: device of its tensors.
        mmap: map a local file; otherwise payloads are read into memory when requested. True, except
            on Windows, which commits memory of a file's size for maps that can be changed.
        whole_set: open the other files of the set.
        allow_truncated: also open a file that ends within its payloads. `Tensor.missing` tells
            which tensors are not complete; reading their values raises TruncatedError.

    Raises:
        OSError: with the path, if it cannot be opened or is not a regular file; of a URL, also when
            its bytes are read, if the server fails or the file has changed.
        FormatError: if it is not a valid file of a known format; with field, offset and tensor.
        LimitError: if a server sends the file only as a whole; see the limit ``download``.
        OptionError: if `path` is not a path, or torch cannot use the device.
    """
    if device != "cpu":
        usable_device(device)
    parse = partial(parse_source, device=device, allow_truncated=allow_truncated)
    if isinstance(path, Source):
        return parse(path)
    if not isinstance(path, (str, os.PathLike)) and hasattr(path, "read"):
        return _parse(open_stream(path, mmap), parse)

    def open_one(path: StrPath) -> File:
        return _parse(open_source(path, mmap), parse)

    location = path_text(path)
    with session():
        return open_set(location, open_one) if whole_set else open_one(location)


def open_damaged(path: StrPath, *, mmap: bool = MAPS) -> tuple[File, FormatError | None]:
    """Opens a file, even if only its start can be parsed. Returns it with its error or None.

    A truncated file has all its tensors if their table is complete. Other broken files have none,
    and of a set only the broken file is opened. Raises as `open` if nothing can be parsed.
    """
    try:
        return open(path, mmap=mmap), None
    except FormatError as error:
        fault = error
    if isinstance(fault, TruncatedError):
        with suppress(FormatError):
            return open(path, mmap=mmap, allow_truncated=True), fault
    at = path if is_remote(path) else fault.file
    if at is None or indexed_format(at) or not (is_remote(at) or os.path.isfile(at)):
        raise fault
    return _parse(open_source(at, mmap), parse_partly), fault


def as_file(file: File | StrPath) -> File:
    """Returns an open file unchanged, or the file at a path, opened. Raises as `open`."""
    return file if isinstance(file, File) else open(file)


def _parse(source: Source, parse: Callable[[Source], File] = parse_source) -> File:
    """Parses a source, and closes it if this fails."""
    try:
        return parse(source)
    except BaseException:
        source.close()
        raise


def _regions(obj: File | Mapping[str, Any]) -> tuple[Format, Mapping[str, Any]]:
    """Returns the format and the regions to build."""
    if isinstance(obj, File):
        if len(obj.shards) > 1:
            raise FormatError(f"expected one file, found a set of {len(obj.shards)}: merge it first")
        return obj.format, obj.regions
    if not isinstance(obj, Mapping):
        raise FormatError(f"expected a File or a mapping of regions, found {quote(obj)}")
    try:
        format = format_named(obj.get("format", DEFAULT.name))
    except OptionError as error:
        raise FormatError(str(error), "format") from None
    return format, {region: value for region, value in obj.items() if region != "format"}
