"""Parses a source into a `File`; and again with a trace, for the positions of fields and for broken rules."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from glft_schema.codec.construct_errors import our_errors
from glft_schema.codec.context import new_context
from glft_schema.codec.records import Record
from glft_schema.codec.rules import REQUIRED, rule_sets
from glft_schema.codec.structs import Struct
from glft_schema.codec.trace import FullTrace, Located, Span, Trace
from glft_schema.errors import Finding, FormatError
from glft_schema.files.file import File
from glft_schema.formats.format import Format
from glft_schema.formats.registry import format_of
from glft_schema.lazy import outside_graphs, torch
from glft_schema.limits import current
from glft_schema.storage.cursor import Cursor
from glft_schema.storage.source import Source


@outside_graphs
def parse_source(source: Source, device: str | torch.device = "cpu") -> File:
    """Parses a file wherever its bytes lie; a `Source` of one's own can fetch them from anywhere. Raises as `open` does."""
    format, starts = format_of(source), dict[str, Any]()
    try:
        record = _run(format.struct, source, starts=starts)
    except FormatError as error:
        known = error
    else:
        return File(format, record, source, device, current(), parse_source)
    raise _located(known, format, source, starts=starts)  # here, where nothing of the first parse is held any more


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


def check_rules(file: File, rules: str | Iterable[str]) -> list[Finding]:
    """Returns the rules of one or more rule sets that a file breaks, in file order: it is parsed again, and values looked into.

    Args:
        file: an open file; it keeps to `REQUIRED`, or it would not be.
        rules: `spec`, `ggml` or `required`, or several of them.

    Raises:
        OptionError: for another rule set.
    """
    wanted = set(rule_sets(rules))
    if not wanted - {REQUIRED}:
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
