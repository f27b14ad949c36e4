"""`Container`: the construct for a whole weights file of any format, told apart by the first four bytes.

It parses into a `File` and builds from one, or from a mapping of the format's regions. Where a file is bad, it
says in which field, at which byte and for which tensor.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import construct

from glft_schema.atomic import atomic_write
from glft_schema.construct_errors import inside, our_errors
from glft_schema.errors import FormatError, SchemeError, shown
from glft_schema.fields import Struct, new_context
from glft_schema.file import File
from glft_schema.formats.format import Format
from glft_schema.formats.gguf import GGUF
from glft_schema.formats.glft import GLFT
from glft_schema.layout import place
from glft_schema.lazy import outside_graphs, torch
from glft_schema.limits import current
from glft_schema.records import Record
from glft_schema.rules import LENIENT, Finding, rule_sets
from glft_schema.shards import open_set
from glft_schema.source import BytesSource, Cursor, Source, StrPath, open_source
from glft_schema.streams import Readable, stream_source
from glft_schema.tensor_bytes import Sink
from glft_schema.trace import FullTrace, Located, Span, Trace

FORMATS = (GLFT, GGUF)
ENDINGS = {".gguf": GGUF, ".glft": GLFT, ".gguf-lite": GLFT}
OTHER_FILES = {
    b"PK\x03\x04": "a zip archive, such as torch.save makes: open_checkpoint and glft convert read it",
    b"{": "a safetensors file: open_checkpoint and glft convert read it",  # after eight bytes of length
    b"vers": "a pointer of Git LFS: the file itself is still to be fetched",
    b"<!DO": "a web page",
    b"<htm": "a web page",
}


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
        self, filename: StrPath, mmap: bool = True, offset: int = 0, size: int | None = None, **contextkw: Any
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

    def _parse(self, stream: Any, context: Any, path: str) -> File:
        with inside(path):
            return self.parse_stream(stream)

    def _build(self, obj: File | Mapping[str, Any], stream: Any, context: Any, path: str) -> Any:
        with inside(path), our_errors():
            format, regions = _regions(obj)
            rules = rule_sets(context._params.get("rules", ()))
            limits = obj.limits if isinstance(obj, File) else current()
            context = new_context(False, rules=rules, limits=limits)
            format.struct._build(place(format, regions), Sink(stream), context, "(building)")
        return obj


Container = ContainerConstruct()


@outside_graphs
def open(
    path: StrPath,
    device: str | torch.device = "cpu",
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
        SchemeError: for an offset or a size below 0.
    """
    with _closed_on_failure(open_source(path, mmap, offset, size)) as source:
        file = parse_source(source, device)
        if not whole_set or offset or size is not None:
            return file
        return open_set(file, lambda shard: open(shard, device, mmap, whole_set=False))


@contextmanager
def _closed_on_failure(source: Source) -> Iterator[Source]:
    """Gives back what a source holds where whatever is done with it fails."""
    try:
        yield source
    except BaseException:
        source.close()
        raise


@outside_graphs
def parse_source(source: Source, device: str | torch.device = "cpu") -> File:
    """Parses a file wherever its bytes lie; a `Source` of one's own can fetch them from anywhere. Raises as `open` does."""
    format, starts = format_of(source), dict[str, Any]()
    try:
        record = _run(format.struct, source, starts=starts)
    except FormatError as error:
        known = error
    else:
        return File(format, record, source, device, current())
    raise _located(known, format, source, starts=starts)  # here, where nothing of the first parse is held any more


def format_of(source: Source) -> Format:
    """Returns the format that the first bytes are those of. Raises FormatError where there is none."""
    magic = bytes(source.read(0, min(4, source.size)))
    candidates = [format for format in FORMATS if any(known.startswith(magic) for known in format.magics)]
    if not candidates:
        expected = " or ".join(f"{format.magics[0]!r} ({format.name})" for format in FORMATS)
        start = bytes(source.read(0, min(9, source.size)))
        other = next((f", the start of {kind}" for known, kind in OTHER_FILES.items() if known in (magic, start[8:])), "")
        raise FormatError(f"expected {expected}, found {magic!r}{other}", "header -> magic", 0, file=source.name)
    return candidates[0]


def trace_fields(file: File) -> list[Span]:
    """Returns the place of each field of `file`, those that a field is made of before it: the file is parsed again."""
    with file.limits:
        spans, error = trace_source(file.format, file.source)
    if error:
        raise error  # it has changed since it was opened
    return spans


def region_starts(file: File) -> dict[str, int]:
    """Returns where each region of `file` begins, in file order: the file is parsed again."""
    starts: dict[str, int | None] = {field.name: None for field in file.format.struct.subcons if field.name}
    with file.limits:
        _run(file.format.struct, file.source, Trace(starts=starts))
    return {name: start for name, start in starts.items() if start is not None}


def trace_source(format: Format, source: Source) -> tuple[list[Span], FormatError | None]:
    """Returns the place of each field as far as `source` can be parsed, and why it cannot any further."""
    trace = FullTrace()
    try:
        _run(format.struct, source, trace)
    except FormatError as error:
        return trace.spans, _located(error, format, source)
    return trace.spans, None


def findings(file: File, rules: str | Iterable[str]) -> list[Finding]:
    """Returns the rules of one or more rule sets that a file breaks, in file order: it is parsed again, and values looked into.

    Args:
        file: an open file; it keeps to `LENIENT`, or it would not be.
        rules: `spec`, `ggml` or `lenient`, or several of them.

    Raises:
        SchemeError: for another rule set.
    """
    wanted = set(rule_sets(rules))
    if not wanted - {LENIENT}:
        return []
    found: list[Finding] = []
    with file.limits:
        _run(file.format.struct, file.source, Trace(), findings=found)
        starts: dict[str, int | None] = {finding.path: None for finding in found if finding.offset is None}
        if starts:  # of rows that were parsed before the rule was looked at
            _run(file.format.struct, file.source, Trace(starts=starts))
    for finding in found:
        finding.offset = starts.get(finding.path) if finding.offset is None else finding.offset
    return [finding for finding in found if wanted.intersection(finding.sets)]


def _run(struct: Struct, source: Source, trace: Trace | None = None, **params: Any) -> Record:
    context = new_context(True, trace=trace, limits=current(), **params)
    with our_errors(), _without_collecting():
        record = struct._parse(Cursor(source), context, "(parsing)")
    assert isinstance(record, Record)
    return record


@contextmanager
def _without_collecting() -> Iterator[None]:
    """Keeps Python's collector of cycles from looking through ever more rows again and again: they are in no cycle.

    It is the process's: where another thread switches it meanwhile, what this one found is put back at the end.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _located(known: FormatError, format: Format, source: Source, **params: Any) -> FormatError:
    """Returns `known` with field, offset, and tensor or key, found by parsing once more with a trace.

    Where `params` have the `starts` of rows of a parse before, only the row to blame is parsed again.
    """
    trace = Trace(known.path)
    with suppress(FormatError, Located):
        _run(format.struct, source, trace, **params)
    path = known.path or (trace.open[-1].path if trace.open else "")
    place = trace.find(path) or (trace.open[-1] if trace.open else None)
    offset = known.offset if known.offset is not None or place is None else place.start
    tensor = trace.label("name", path) if known.tensor is None else known.tensor
    return known.at(path, offset, tensor, source.name, trace.label("key", path))


def _regions(obj: File | Mapping[str, Any]) -> tuple[Format, Mapping[str, Any]]:
    """Returns the format and the regions to be built from."""
    if isinstance(obj, File):
        if len(obj.shards) > 1:
            raise FormatError(f"expected one file, found a set of {len(obj.shards)}: merge it first")
        return obj.format, obj.regions
    if not isinstance(obj, Mapping):
        raise FormatError(f"expected a File or a mapping of regions, found {shown(obj)}")
    try:
        format = format_named(obj.get("format", GLFT.name))
    except SchemeError as error:
        raise FormatError(str(error), "format") from None
    return format, {region: value for region, value in obj.items() if region != "format"}


def format_for(path: StrPath, name: str | None) -> Format:
    """Returns the format that a file at `path` gets: that of this name, or that of its ending, or else GLFT.

    Raises:
        SchemeError: for another name, and where the ending is that of a safetensors file.
    """
    ending = os.path.splitext(path)[1].lower()
    if name is None and ending == ".safetensors":
        raise SchemeError("expected a GLFT or GGUF file to write, found a safetensors file: glft_schema.convert writes those")
    return format_named(name) if name is not None else ENDINGS.get(ending, GLFT)


def format_named(name: object) -> Format:
    """Returns a format by its name, in letters of either case. Raises SchemeError where there is none."""
    for format in FORMATS:
        if isinstance(name, str) and format.name.lower() == name.lower():
            return format
    raise SchemeError(f"expected {' or '.join(format.name for format in FORMATS)}, found {shown(name)}")
