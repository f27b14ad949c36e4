"""What users are shown: files, tensors and metadata as tables, in HTML for notebooks and as text; and how far work has come.

The HTML has no colours of its own, so that it can be read in light and dark themes; all that comes from a file is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from glft_schema.errors import safe, shown

ROWS = 20  # of each table that are shown
NAME = 60  # characters of a name that are shown
VALUE = 80  # and of a value
LEFT, RIGHT = "left", "right"

# What is told how far work has come: what is being done, such as a tensor's name, and the share that is done, from 0 to 1.
Progress = Callable[[str, float], None]


class HasTensor(Protocol):
    """What is shown of a tensor in a file."""

    name: str
    dims: tuple[int, ...]
    nbytes: int
    dtype: Any
    shape: tuple[int, ...]
    position: int

    @property
    def file(self) -> str: ...
    @property
    def identity(self) -> Hashable: ...


class HasFile(Protocol):
    """What is shown of a file."""

    name: str
    format: Any
    source: Any

    @property
    def header(self) -> Any: ...
    @property
    def metadata(self) -> Mapping[str, Any]: ...
    @property
    def tensors(self) -> Mapping[str, HasTensor]: ...
    @property
    def shards(self) -> Sequence[Any]: ...
    @property
    def nbytes(self) -> int: ...


@dataclass(frozen=True)
class Listing:
    """Rows of text.

    Attributes:
        title: what they are, and how many.
        head: a word for each column.
        rows: those that are shown.
        hidden: how many more there are.
        right: how many of the last columns are numbers.
    """

    title: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    hidden: int = 0
    right: int = 0

    def html(self) -> str:
        """Returns the table in HTML."""
        lines = ["<table>", f'<caption style="text-align:left">{escape(self.title)}</caption>']
        if any(self.head):
            lines.append(f"<thead>{self._row(self.head, 'th')}</thead>")
        lines += ["<tbody>", *(self._row(row, "td") for row in self.rows)]
        if self.hidden:
            lines.append(f'<tr><td colspan="{len(self.head)}" style="text-align:left">and {self.hidden:,} more</td></tr>')
        return "\n".join([*lines, "</tbody>", "</table>"])

    def _row(self, row: tuple[str, ...], tag: str) -> str:
        opening = f'{tag} scope="col"' if tag == "th" else tag
        cells = (f'<{opening} style="text-align:{side}">{escape(cell)}</{tag}>' for cell, side in self._cells(row))
        return f"<tr>{''.join(cells)}</tr>"

    def text(self) -> str:
        """Returns the table as aligned lines."""
        lines = [self.title, *aligned([row for row in (self.head, *self.rows) if any(row)], self.right)]
        return "\n".join([*lines, f"  ... and {self.hidden} more"] if self.hidden else lines)

    def _cells(self, row: tuple[str, ...]) -> Iterable[tuple[str, str]]:
        sides = [LEFT] * (len(self.head) - self.right) + [RIGHT] * self.right
        return zip(row, sides, strict=True)


def aligned(rows: Sequence[tuple[str, ...]], right: int) -> list[str]:
    """Returns a line for each row, its cells in columns; the last `right` columns are numbers."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if i >= len(row) - right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  " + "  ".join(cells).rstrip())
    return lines


def tensors_table(tensors: Mapping[str, HasTensor]) -> Listing:
    """Returns a row for each tensor: its name, type, shape, bytes, and where its payload is."""
    shown_ones = [tensors[name] for name in islice(tensors, ROWS)]
    of_set = len({tensor.file for tensor in shown_ones}) > 1
    rows = []
    for tensor in shown_ones:
        file = (safe(Path(tensor.file).name, NAME),) if of_set else ()
        shape, at = str(list(tensor.shape)), f"{tensor.position:,}"
        rows.append((*file, safe(tensor.name, NAME), str(tensor.dtype), shape, f"{tensor.nbytes:,}", at))
    head = (*(("file",) if of_set else ()), "name", "type", "shape", "bytes", "at byte")
    return Listing(f"{len(tensors):,} tensors", head, rows, len(tensors) - len(rows), 2)


def metadata_table(metadata: Mapping[str, Any]) -> Listing:
    """Returns a row for each entry: key, type where there are types, and value."""
    keys = list(islice(metadata, ROWS))
    type_of = getattr(metadata, "type_of", None)
    rows = [(safe(key, NAME), *((safe(type_of(key), NAME),) if type_of else ()), shown(metadata[key], VALUE)) for key in keys]
    head = ("key", "type", "value") if type_of else ("key", "value")
    return Listing(f"{len(metadata):,} entries of metadata", head, rows, len(metadata) - len(rows))


def types_table(file: HasFile) -> Listing:
    """Returns a row for each tensor type of a file, those with the most bytes first. Shared payloads count once."""
    totals: dict[str, list[int]] = {}
    counted = set()
    for tensor in file.tensors.values():
        total = totals.setdefault(str(tensor.dtype), [0, 0, 0])
        total[0] += 1
        if tensor.identity not in counted:
            counted.add(tensor.identity)
            total[1] += math.prod(tensor.shape)
            total[2] += tensor.nbytes
    ordered = sorted(totals.items(), key=lambda item: -item[1][2])
    rows = [
        (name, f"{count:,}", f"{numbers:,}", f"{nbytes:,}", f"{100 * nbytes / file.nbytes:.1f} %")
        for name, (count, numbers, nbytes) in ordered[:ROWS]
    ]
    return Listing("types", ("type", "tensors", "numbers", "bytes", "of the file"), rows, len(ordered) - len(rows), 4)


def fields_table(title: str, fields: Mapping[str, Any]) -> Listing:
    """Returns a row for each field of a record."""
    items = list(islice(fields.items(), ROWS))
    rows = [(safe(name, NAME), shown(value, VALUE)) for name, value in items]
    return Listing(title, ("field", "value"), rows, len(fields) - len(items))


def tensor_table(tensor: HasTensor) -> Listing:
    """Returns a row for each thing to know of a tensor; of its payload, where each field lies."""
    numbers = math.prod(tensor.shape)
    bits = f", {8 * tensor.nbytes / numbers:g} bits a number" if numbers else ""
    rows = [
        ("type", str(tensor.dtype)),
        ("shape", f"{list(tensor.shape)}, {numbers:,} numbers"),
        ("dims", f"{list(tensor.dims)}, as stored"),
        ("bytes", f"{tensor.nbytes:,}{bits}"),
        ("at byte", f"{tensor.position:,}"),
    ]
    for name, (start, nbytes) in tensor.dtype.field_spans(tensor.shape).items():
        rows.append((name, f"{nbytes:,} bytes at {tensor.position + start:,}"))
    return Listing(f"tensor {safe(tensor.name, NAME)}", ("", ""), rows)


def title(file: HasFile) -> str:
    """Returns what a file is, in a line."""
    header = {**file.header, **file.header.counts}
    version = f" version {header['version']}" if "version" in header else ""
    order = f", {header['byte_order']}-endian" if "byte_order" in header else ""
    files = f" in {len(file.shards)} files" if len(file.shards) > 1 else ""
    return f"{safe(file.name)}: {file.format.name}{version}{order}, {file.nbytes:,} bytes{files}"


def file_tables(file: HasFile) -> list[Listing]:
    """Returns what is worth knowing of an open file: its metadata, its types, its tensors; those that have rows."""
    return [table for table in (metadata_table(file.metadata), types_table(file), tensors_table(file.tensors)) if table.rows]


def file_text(file: HasFile) -> str:
    """Returns an open file for `print`."""
    return "\n\n".join([title(file), *(table.text() for table in file_tables(file))])


def file_html(file: HasFile) -> str:
    """Returns a file for a notebook."""
    if file.source.closed:
        return f"<pre>{escape(repr(file))}</pre>"
    return "\n".join([f"<p>{escape(title(file))}</p>", *(table.html() for table in file_tables(file))])
