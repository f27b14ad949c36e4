"""Every text that the package makes of a file: none may fail or steer a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice

from glft_schema.cli.inspect import as_data, in_lines
from glft_schema.codec.metadata import TypedMetadata
from glft_schema.codec.typed_text import to_text
from glft_schema.describe.byte_map import ByteMap
from glft_schema.describe.hex_view import STYLES, HexView
from glft_schema.describe.page.content import page
from glft_schema.files.byte_counts import byte_counts
from glft_schema.files.file import File
from glft_schema.files.parsing import check_rules
from glft_schema.tensor_types.tensor_type import OpaqueType

LINES, PRINTED, OTHER = "lines", "printed", "other"  # one line for a terminal; several lines; for programs
OPENED = 1 << 12  # bytes of a file, and of each tensor, that are shown as numbers

View = tuple[str, str, str]  # name, one of the kinds above, text


def views(file: File, with_page: bool = False) -> Iterator[View]:
    """Yields every text about a file.

    Args:
        file: an open file.
        with_page: also make the page, which takes as long as all others together.
    """
    yield "str", PRINTED, str(file)
    yield "repr", LINES, repr(file)
    yield "html", OTHER, file._repr_html_()
    yield from (("inspect", OTHER, line) for line in in_lines(file))  # `say` makes it printable
    yield "inspect --json", OTHER, json.dumps(as_data(file, full=True), allow_nan=False)
    yield "inspect --json, short", OTHER, json.dumps(as_data(file), allow_nan=False)
    yield "byte counts", PRINTED, str(byte_counts(file))
    yield "tensors' html", OTHER, file.tensors._repr_html_()
    for tensor in file.tensors.values():
        yield "tensor's repr", LINES, repr(tensor)
        yield "tensor", PRINTED, str(tensor)
        yield "tensor's html", OTHER, tensor._repr_html_()
        if not isinstance(tensor.type, OpaqueType):
            yield "tensor's fields", PRINTED, str({name: tuple(field.shape) for name, field in tensor.fields.items()})
    yield "metadata's html", OTHER, file.metadata._repr_html_()
    if isinstance(file.metadata, TypedMetadata):
        for key in file.metadata:
            yield "metadata as text", LINES, to_text(file.metadata.stored_value(key))
    for finding in check_rules(file, file.format.rule_sets):
        yield "finding", LINES, f"{finding.path}: {finding.problem} [{finding.rule}]"
    if with_page:
        yield "page", OTHER, page(file)


def views_of_map(found: ByteMap) -> Iterator[View]:
    """Yields every text about a byte map, which may be of a broken file."""
    yield "byte map", LINES, repr(found)
    yield from (("byte map", OTHER, f"{part.path} {part.type} {part.value!r}") for part in found.leaves(0, OPENED))
    for styles in ({}, STYLES):
        kind = OTHER if styles else LINES
        view = HexView(found, 80, styles)
        yield from (("explain", kind, line) for line in view.whole())
        yield from (("explain --range", kind, line) for line in islice(view.part(0, min(found.nbytes, OPENED)), OPENED))
        for name in found.tensors:
            yield from (("explain --tensor", kind, line) for line in view.tensor(name))
