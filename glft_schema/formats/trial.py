"""A trial of a declaration: builds and parses small files, before the format is registered."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

from glft_schema.codec.construct_errors import our_errors
from glft_schema.codec.context import new_context
from glft_schema.codec.metadata_lines import KeyValueLines
from glft_schema.codec.trace import Trace, without_root
from glft_schema.errors import FormatError, LimitError, one_line
from glft_schema.limits import DEFAULTS, Limits
from glft_schema.storage.cursor import Cursor
from glft_schema.storage.source import BytesSource
from glft_schema.storage.streams import START
from glft_schema.storage.tensor_bytes import Sink

if TYPE_CHECKING:
    from glft_schema.formats.format import Format


class Fault(Exception):  # noqa: N818 - not an error of a caller
    """A failure, as a sentence that begins with the field."""


def first_fault(format: Format) -> str | None:
    """Returns the first field that fails in files without tensors or with one, and how, or None.

    A FormatError while building is not a fault: the format may refuse the values of the trial.
    """
    limits = Limits(**DEFAULTS)
    try:
        if format.sniff:
            with _trying("recognising a file", "sniff"):
                format.sniff(bytes(START))
        for regions in _files(format):
            with _trying("building a file"):
                stored = _build(format, regions, limits, forging=True)
            if stored is None:
                continue
            with _trying("reading a built file"):
                record = _parse(format, stored, limits)
            if record is None:
                continue
            with _trying("checking the rules of a file"):
                _parse(format, stored, limits, trace=Trace(), findings=[])
            with _trying("building a file that was read"):
                _build(format, record, limits)
    except Fault as fault:
        return str(fault)
    return None


def _files(format: Format) -> Iterator[dict[str, Any]]:
    """Yields the regions of files: one without tensors, and one with a tensor of the first type."""
    regions: dict[str, Any] = {name: {} for name in ("header", "metadata") if format.field(name) is not None}
    if isinstance(format.metadata, KeyValueLines):
        regions["metadata"] = {"k": "v"}
    yield {**regions, format.table: [], "data": {}}
    for type_ in [known for known in format.types if known.is_known][:1]:
        shape = [1, type_.least_row]
        row = {"name": "w", "dims": format.dims_of(shape), "dtype": type_, "offset": 0}
        if format.order is not None:
            with _trying("sorting the rows", "order"):
                format.order(row)
        yield {**regions, format.table: [row], "data": {"w": bytes(type_.nbytes(shape))}}


def _build(format: Format, regions: Any, limits: Limits, **params: Any) -> bytes | None:
    """Returns the bytes of a file, or None if the format refuses it."""
    stream = BytesIO()
    try:
        with our_errors():
            format.struct._build(regions, Sink(stream), new_context(False, limits=limits, **params), "(building)")
    except FormatError:
        return None
    return stream.getvalue()


def _parse(format: Format, stored: bytes, limits: Limits, **params: Any) -> Any:
    """Returns the record of a file, or None if a rule refuses it."""
    try:
        with our_errors():
            return format.struct._parse(Cursor(BytesSource(stored)), new_context(True, limits=limits, **params), "(parsing)")
    except FormatError as error:
        if error.rule or isinstance(error, LimitError):
            return None
        raise


@contextmanager
def _trying(work: str, field: str = "") -> Iterator[None]:
    """Turns errors into a Fault with `field`, or the innermost field in the error's traceback."""
    try:
        yield
    except FormatError as error:
        path, problem = error.path or field, f"{work} fails: {error.problem}"
    except Exception as error:  # of the declaration's constructs or functions: any class
        paths = (without_root(str(frame.f_locals.get("path", ""))) for frame, _ in walk_tb(error.__traceback__))
        path, problem = [field, *filter(None, paths)][-1], f"{work} raises {type(error).__name__}: {one_line(str(error))}"
    else:
        return
    raise Fault(f"{path}: {problem}" if path else problem)
