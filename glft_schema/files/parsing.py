"""Parsing of a source into a `File`, with a second, traced parse to locate errors and findings."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from glft_schema.codec.construct_errors import our_errors
from glft_schema.codec.context import LITTLE, new_context
from glft_schema.codec.records import Record
from glft_schema.codec.rules import REQUIRED, rule_sets
from glft_schema.codec.trace import FieldSpan, Trace
from glft_schema.errors import Finding, FormatError, TruncatedError
from glft_schema.files.file import File
from glft_schema.formats.format import Format
from glft_schema.formats.registry import format_of
from glft_schema.lazy import outside_graphs, torch
from glft_schema.limits import current
from glft_schema.storage.cursor import Cursor, bytes_left
from glft_schema.storage.source import Source
from glft_schema.tensors.region import no_tensors


@outside_graphs
def parse_source(source: Source, device: str | torch.device = "cpu", *, allow_truncated: bool = False) -> File:
    """Parses a file from any `Source`. Arguments and errors are those of `open`."""
    format = format_of(source)
    try:
        record = _run(format, source, allow_truncated=allow_truncated)
    except FormatError as error:
        unlocated = error
    else:
        return File(format, record, source, device, current(), partial(parse_source, allow_truncated=allow_truncated))
    trace = Trace(*filter(None, [unlocated.path]))  # by now, the first parse's memory is free
    with suppress(FormatError):
        _run(format, source, trace, allow_truncated=allow_truncated)
    raise _locate(unlocated, trace, source, format)


def trace_fields(file: File) -> list[FieldSpan]:
    """Returns the span of each field of `file`, after its parts. Parses the file again."""
    with file.limits:
        spans, error = trace_source(file.format, file.source)
    if error:
        raise error  # the file has changed since it was opened
    return spans


def starts_of(file: File, paths: Iterable[str]) -> dict[str, int]:
    """Returns the offset of each field of `file` at one of `paths`. Parses the file again."""
    trace = Trace(*paths)
    with file.limits, suppress(TruncatedError):  # in the payloads, the last region
        _run(file.format, file.source, trace)
    return {path: span.start for path in trace.wanted if (span := trace.find(path))}


def trace_source(format: Format, source: Source) -> tuple[list[FieldSpan], FormatError | None]:
    """Returns the spans of all fields up to the first error, and the error or None.

    Truncated payloads have their declared spans.
    """
    trace, fault = Trace(), None
    try:
        _run(format, source, trace)
    except FormatError as error:
        fault = _locate(error, trace, source, format)
    if isinstance(fault, TruncatedError):
        trace = Trace()
        with suppress(FormatError):  # before the payloads
            _run(format, source, trace, allow_truncated=True)
    return trace.spans, fault


def parse_partly(source: Source) -> File:
    """Parses a broken file up to its first error: the regions before it, and no tensors.

    Raises:
        FormatError: if the file starts with no format's magic.
    """
    format = format_of(source)
    found = {span.path: span.value for span in trace_source(format, source)[0]}
    regions = {name: found[name] for name in format.regions if name in found}
    order = getattr(regions.get("header"), "byte_order", LITTLE)
    regions["data"] = no_tensors(source, order)
    return File(format, Record(regions), source, "cpu", current(), lambda source, device: parse_partly(source))


def check_rules(file: File, rules: str | Iterable[str]) -> list[Finding]:
    """Returns the rules of some sets that a file breaks, in file order. Parses the file again.

    Args:
        file: an open file, which therefore satisfies `REQUIRED`.
        rules: `spec`, `ggml`, `rust` or `required`, or several of them.

    Raises:
        OptionError: if a rule set is unknown.
    """
    sets = set(rule_sets(rules))
    if not sets - {REQUIRED}:
        return []
    findings: list[Finding] = []
    with file.limits:
        _run(file.format, file.source, Trace(), findings=findings)
    name_rows(file, findings)
    return [finding for finding in findings if sets.intersection(finding.sets)]


def name_rows(file: File, findings: Iterable[Finding]) -> None:
    """Sets each finding's tensor or metadata key, according to the row in its path."""
    keys, tensors = (list(names) if findings else [] for names in (file.metadata, file.shards[0].tensors))
    for finding in findings:
        table, row, *_ = (*finding.path.split(" -> "), "")
        if table == "metadata" and row.isdecimal():
            finding.key = keys[int(row)]
        elif table == file.format.table and row.isdecimal():
            finding.tensor = tensors[int(row)]


def _run(format: Format, source: Source | Cursor, trace: Trace | None = None, **params: Any) -> Record:
    context = new_context(True, trace=trace, limits=current(), **params)
    with our_errors(), gc_paused():
        cursor = source if isinstance(source, Cursor) else Cursor(source)
        record = format.struct._parse(cursor, context, "(parsing)")
    if not format.has_tensors and (left := bytes_left(cursor)):
        raise FormatError(
            f"expected the end of the file, found {left:,} more bytes", "".join(format.regions[-1:]), cursor.tell()
        )
    assert isinstance(record, Record)
    return record


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pauses cyclic garbage collection, which would scan the growing table again and again.

    The setting is process-wide. The previous state is restored even if a thread changes it.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _locate(error: FormatError, trace: Trace, source: Source, format: Format) -> FormatError:
    """Returns the error with field, offset, and tensor or key, from a trace that ends at it."""
    path = error.path or (trace.open[-1].path if trace.open else "")
    span = trace.find(path) or (trace.open[-1] if trace.open else None)
    offset = error.offset if error.offset is not None or span is None else span.start
    tensor = trace.label("name", path) if error.tensor is None and format.has_tensors else error.tensor
    error.problem += "" if source.size else ": the file is empty"
    return error.at(path, offset, tensor, source.name, trace.label("key", path))
