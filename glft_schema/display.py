"""Tables and charts of files, tensors, metadata and reports, as text and as HTML for notebooks.

An object of a class with the decorator `with_display` has a ``repr`` of one line, a ``str`` of one
screen, and HTML. The HTML sets no colours, so it suits light and dark themes. All text from a file
is escaped.
"""

from __future__ import annotations

import dataclasses
import math
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from textwrap import TextWrapper
from typing import Any, NamedTuple, TypeVar

import numpy as np

from glft_schema.errors import safe, shown, without_controls

ROWS = 20  # shown per table
SCREEN = 30  # rows of all tables of a text
WIDTH, HEIGHT = 720, 24  # of a bar in pixels
NUMBERS = (int, float, type(None))  # types of cells that are aligned to the right
OPACITIES = 0.35, 0.2  # of its parts, by turns
NAME, VALUE = 60, 80  # characters shown of a name and of a value
SHORTEST = 24  # letters of a text that is shortened to fit; before a shorter one, columns are left out
SIZES = ("bytes", "kB", "MB", "GB", "TB")
LEAST = 4  # columns that a table keeps
FILE_TYPE = "general.file_type"
ELEMENTS = 200  # of an array, whose text is longer than any that is shown

# Called with the current item, such as a tensor's name, and the share of work done, from 0 to 1.
Progress = Callable[[str, float], None]
HasTensor = Any  # a `Tensor`, declared above this module
HasFile = Any  # a `File`, likewise


class Listing(NamedTuple):
    """A table of text."""

    title: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]  # those shown
    hidden: int = 0  # number of further rows
    right: int = 0  # number of columns, from the right, that hold numbers

    def html(self) -> str:
        """Returns the table as HTML."""
        lines = ["<table>", f'<caption style="text-align:left">{escaped(self.title)}</caption>']
        if any(self.head):
            lines.append(f"<thead>{self._row(self.head, 'th')}</thead>")
        lines += ["<tbody>", *(self._row(row, "td") for row in self.rows)]
        if self.hidden:
            lines.append(f'<tr><td colspan="{len(self.head)}" style="text-align:left">and {self.hidden:,} more</td></tr>')
        return "\n".join([*lines, "</tbody>", "</table>"])

    def _row(self, row: tuple[str, ...], tag: str) -> str:
        opening = f'{tag} scope="col"' if tag == "th" else tag
        sides = ["left"] * (len(row) - self.right) + ["right"] * self.right
        cells = (f'<{opening} style="text-align:{side}">{escaped(cell)}</{tag}>' for cell, side in zip(row, sides, strict=True))
        return f"<tr>{''.join(cells)}</tr>"

    def text(self, most: int = ROWS) -> str:
        """Returns the table as aligned lines, with at most this number of rows."""
        rows, hidden = self.rows[:most], self.hidden + max(len(self.rows) - most, 0)
        lines = [self.title, *aligned([row for row in (self.head, *rows) if any(row)], self.right)]
        return "\n".join([*lines, f"  ... and {hidden} more"] if hidden else lines)


class Chart(NamedTuple):
    """A picture as SVG, which text may replace."""

    svg: str
    labels: str = ""


def chart(title: str, parts: Sequence[tuple[str, float]], *, columns: bool = False) -> Chart:
    """Draws positive numbers with labels as parts of one bar, or as columns beside each other.

    Labels are tooltips, and texts in parts that are wide enough.
    """
    total, most = sum(number for _, number in parts) or 1, max((number for _, number in parts), default=0) or 1
    height, x = HEIGHT * (3 if columns else 1), 0.0
    lines = [f"<p>{escaped(title)}</p>"]
    lines += [f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" font-size="12" fill="currentColor" role="img">']
    for i, (label, number) in enumerate(parts):
        width, tall = (WIDTH / len(parts), height * number / most) if columns else (WIDTH * number / total, height)
        box = f'x="{x:.1f}" y="{height - tall:.1f}" width="{width:.1f}" height="{tall:.1f}"'
        lines.append(f'<rect {box} fill-opacity="{OPACITIES[i % 2]}"><title>{escaped(label)}</title></rect>')
        if not columns and width > 7 * len(label):
            lines.append(f'<text x="{x + 4:.1f}" y="16">{escaped(label)}</text>')
        x += width
    labels = "" if columns else f"{title}: {', '.join(label for label, _ in parts[:ROWS])}"
    return Chart("\n".join([*lines, "</svg>"]), labels)


Part = str | Listing | Chart
Class = TypeVar("Class", bound=type)
Item = TypeVar("Item")


def with_display(cls: Class) -> Class:
    """Makes ``repr``, ``str`` and HTML of a class from the parts that its method `_display` yields.

    The first part is the headline, which is all of the ``repr``. A class may have its own ``str``.
    Dataclasses and named tuples need no such method.
    """
    kind: Any = cls
    kind._display = getattr(cls, "_display", _display_fields)
    kind.__repr__ = lambda self: f"<{cls.__name__}: {next(self._display())}>"
    kind._repr_html_ = lambda self: html_of(self._display())
    if "__str__" not in vars(cls):
        kind.__str__ = lambda self: text_of(self._display())
    return cls


def _display_fields(record: Any) -> Iterator[Part]:
    """Yields the fields of a record in a line, and a table for each that holds several values."""
    fields = {name.replace("_", " "): value for name, value in _fields(record).items()}
    yield ", ".join(f"{name} {text}" for name, value in fields.items() if (text := _cell(value)))
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield records_table(name, [{"name": key} | _fields(one) for key, one in value.items()])
        elif isinstance(value, (list, tuple)):
            yield records_table(name, value)


def text_of(parts: Iterable[Part]) -> str:
    """Returns parts of a display as text of one screen, without empty tables."""
    parts = [part for part in parts if not isinstance(part, Listing) or part.rows]
    most = min(SCREEN // max(sum(isinstance(part, Listing) for part in parts), 1), ROWS)
    texts = (part.text(most) if isinstance(part, Listing) else part if isinstance(part, str) else part.labels for part in parts)
    return "\n\n".join(filter(None, texts))


def html_of(parts: Iterable[Part]) -> str:
    """Returns parts of a display as HTML, without empty tables."""
    texts = []
    for part in parts:
        if isinstance(part, Listing):
            texts.append(part.html() if part.rows else "")
        else:
            texts.append(part.svg if isinstance(part, Chart) else f"<p>{escaped(part)}</p>" if part else "")
    return "\n".join(filter(None, texts))


@with_display
class Results(list[Item]):
    """A list of records, displayed as a table."""

    def _display(self) -> Iterator[Part]:
        records: list[Any] = self
        sizes = [(record.type, record.nbytes) for record in records if hasattr(record, "nbytes")]
        kind = type(records[0]).__name__ if records else "results"
        yield f"{len(self):,} {kind}{f', {size_text(sum(nbytes for _, nbytes in sizes))}' if sizes else ''}"
        yield bytes_by_type(sizes) if sizes else ""
        yield records_table(kind, records)


def counted(items: Collection[Any] | int, noun: str, plural: str = "") -> str:
    """Returns the number of items: "1 tensor", "1,045 tensors"."""
    count = items if isinstance(items, int) else len(items)
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def bytes_by_type(tensors: Iterable[tuple[Any, int]]) -> Chart:
    """Draws the bytes of types, most first, given the type and bytes of each tensor."""
    sizes = Counter[str]()
    for type_, nbytes in tensors:
        sizes[str(type_)] += nbytes
    return chart("bytes by type", [(f"{name} {size_text(nbytes)}", nbytes) for name, nbytes in sizes.most_common() if nbytes])


def records_table(title: str, records: Sequence[Any]) -> Listing:
    """Returns a row per record, a mapping, dataclass or named tuple: texts first, then numbers.
    Fields that are empty in all rows are left out."""
    rows = [_fields(record) for record in records[:ROWS]]
    columns = {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}
    used = {name: values for name, values in columns.items() if any(map(_cell, values))}
    numeric = [name for name, values in used.items() if all(isinstance(value, NUMBERS) for value in values)]
    head = (*(name for name in used if name not in numeric), *numeric)
    texts = [tuple(_cell(row[name]) for name in head) for row in rows]
    titles = tuple(name.replace("_", " ") for name in head)
    return Listing(title, titles, texts, len(records) - len(rows), len(numeric))


def _fields(record: Any) -> dict[str, Any]:
    if isinstance(record, dict):
        return record
    names = [field.name for field in dataclasses.fields(record)] if dataclasses.is_dataclass(record) else ()
    return {name: getattr(record, name) for name in getattr(record, "_fields", names)} or {"": record}


def _cell(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, (int, float)):
        return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
    if isinstance(value, (list, tuple, Mapping)) and not hasattr(value, "_fields"):
        return f"{len(value):,}"
    if hasattr(value, "shape"):
        return f"{list(value.shape)}"
    text = f"{value.snr:.1f} dB" if hasattr(value, "snr") else str(value)[:ELEMENTS].removeprefix("torch.")
    return shortened(without_controls(text), NAME)


def columns(default: float) -> float:
    """Returns the columns of the terminal, or a default if stdout is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout and sys.stdout.isatty() else default


def aligned(rows: Sequence[tuple[str, ...]], right: int) -> list[str]:
    """Returns rows as lines with aligned columns; the last `right` columns are numbers.

    If lines are longer than `columns`, the middle of long texts in the widest column is left out,
    and if that is not enough, columns at the right.
    """
    if not rows:
        return []
    widths, most = [max(map(len, column)) for column in zip(*rows, strict=True)], columns(math.inf)
    while len(widths) > LEAST and sum(widths) - max(widths) + SHORTEST + 2 * len(widths) > most:
        del widths[-1]
        rows, right = [row[:-1] for row in rows], max(right - 1, 0)
    if (excess := sum(widths) + 2 * len(widths) - most) > 0:
        widest = widths.index(max(widths))
        widths[widest] = min(widths[widest], max(widths[widest] - int(excess), SHORTEST))
        rows = [(*row[:widest], shortened(row[widest], widths[widest]), *row[widest + 1 :]) for row in rows]
    sides = ["<"] * (len(widths) - right) + [">"] * right
    line = "".join(f"  {{:{side}{width}}}" for side, width in zip(sides, widths, strict=True))
    return [line.format(*row).rstrip() for row in rows]


def wrapped(text: str) -> list[str]:
    """Returns a text as indented lines that fit the terminal, if stdout is one."""
    if (width := columns(math.inf)) == math.inf:
        return [f"  {text}"]
    wrapper = TextWrapper(int(width), "  ", " " * 6, break_long_words=False, break_on_hyphens=False)
    wrapper.expand_tabs = wrapper.replace_whitespace = False  # names are printed as they are
    return wrapper.wrap(text)


def first_rows(rows: Sequence[tuple[str, ...]], right: int, most: int, all_by: str) -> list[str]:
    """Returns a head and at most `most` rows as lines like `aligned`, and a line that counts the
    others and names the option that lists them, `all_by`."""
    hidden = len(rows) - 1 - most
    return [*aligned(rows[: most + 1], right), *([f"  ... and {hidden:,} more: {all_by}"] if hidden > 0 else [])]


def shortened(text: str, length: int) -> str:
    """Returns text with its middle left out if it is longer than `length`."""
    kept = length - 3
    return text if len(text) <= length else f"{text[: kept // 2]}...{text[-(kept - kept // 2) :]}"


def tensors_table(tensors: Mapping[str, HasTensor]) -> Listing:
    """Returns a row per tensor: name, type, shape, bytes and position."""
    first = [tensors[name] for name in islice(tensors, ROWS)]
    is_set = len({tensor.file for tensor in first}) > 1
    rows = []
    for tensor in first:
        file = (safe(Path(tensor.file).name, NAME),) if is_set else ()
        shape, at = str(list(tensor.shape)), f"{tensor.position:,}"
        rows.append((*file, safe(tensor.name, NAME), str(tensor.dtype), shape, f"{tensor.nbytes:,}", at))
    head = (*(("file",) if is_set else ()), "name", "type", "shape", "bytes", "at byte")
    return Listing(f"{len(tensors):,} tensors", head, rows, len(tensors) - len(rows), 2)


def metadata_table(metadata: Mapping[str, Any]) -> Listing:
    """Returns a row per entry: key, type if metadata is typed, and value."""
    type_of, rows = getattr(metadata, "type_of", None), list[tuple[str, ...]]()
    for key in islice(metadata, ROWS):
        type_ = type_of(key) if type_of else ""
        types = (safe(type_, NAME),) if type_of else ()
        rows.append((safe(key, NAME), *types, shown(displayed(metadata[key], type_), VALUE)))
    head = ("key", "type", "value") if type_of else ("key", "value")
    return Listing(f"{len(metadata):,} entries of metadata", head, rows, len(metadata) - len(rows))


def shortest(value: float) -> float:
    """Returns the number with the fewest digits that is `value` in float32."""
    return float(str(np.float32(value)))


def displayed(value: Any, type_: str) -> Any:
    """Returns a value to be shown: numbers of float32 have the fewest digits, such as 1e-05. Only
    the first `ELEMENTS` of an array of them are returned.

    Args:
        value: a number, or several.
        type_: its type in metadata or in a declaration: ``float32``, ``array[float32]``, ``f32``.
    """
    if not type_.startswith(("float32", "array[float32", "f32")):
        return value
    if isinstance(value, (float, np.floating)):
        return shortest(float(value))
    return [displayed(one, type_) for one in value[:ELEMENTS]] if isinstance(value, (list, tuple, np.ndarray)) else value


class Totals(NamedTuple):
    """Totals of the tensors of a type. Weights and bytes of a shared payload count once."""

    tensors: int
    weights: int
    nbytes: int


def totals_by_type(tensors: Iterable[HasTensor]) -> dict[Any, Totals]:
    """Returns the totals of each tensor type, in order of first tensors."""
    totals, kept = dict[Any, Totals](), set[Hashable]()
    for tensor in tensors:
        count, weights, nbytes = totals.get(tensor.dtype, Totals(0, 0, 0))
        if tensor.identity not in kept:
            kept.add(tensor.identity)
            weights, nbytes = weights + math.prod(tensor.shape), nbytes + tensor.nbytes
        totals[tensor.dtype] = Totals(count + 1, weights, nbytes)
    return totals


def largest_first(totals: Mapping[Any, Totals]) -> list[tuple[Any, Totals]]:
    """Returns types and their totals by bytes, the largest first."""
    return sorted(totals.items(), key=lambda item: -item[1].nbytes)


def types_table(file: HasFile) -> Listing:
    """Returns a row per tensor type, largest first."""
    ordered = largest_first(totals_by_type(file.tensors.values()))
    rows = [
        (str(type_), f"{count:,}", f"{weights:,}", f"{nbytes:,}", f"{100 * nbytes / file.nbytes:.1f} %")
        for type_, (count, weights, nbytes) in ordered[:ROWS]
    ]
    return Listing("types", ("type", "tensors", "numbers", "bytes", "of the file"), rows, len(ordered) - len(rows), 4)


def fields_table(title: str, fields: Mapping[str, Any]) -> Listing:
    """Returns a row per field of a record."""
    items = list(islice(fields.items(), ROWS))
    rows = [(safe(name, NAME), shown(value, VALUE)) for name, value in items]
    return Listing(title, ("field", "value"), rows, len(fields) - len(items))


def tensor_table(tensor: HasTensor) -> Listing:
    """Returns the properties of a tensor, and the span of each field of its payload."""
    numbers = math.prod(tensor.shape)
    bits = f", {8 * tensor.nbytes / numbers:g} bits per weight" if numbers else ""
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


def percent(share: float | None) -> str:
    """Returns a share as a percentage with three digits; empty for None."""
    return "" if share is None else f"{100 * share:.3g} %"


def rounded(number: float, units: Sequence[str]) -> str:
    """Returns a number with four digits and its unit, each 1,000 times the one before: 98.36 MB."""
    for unit in units:
        if number < 999.95 or unit == units[-1]:
            break
        number /= 1000
    return f"{number:.4g} {unit}"


def size_text(nbytes: int) -> str:
    """Returns a number of bytes in a decimal unit, such as 98.36 MB."""
    return rounded(nbytes, SIZES)


def parameters_text(count: int) -> str:
    """Returns a number of parameters, such as 134.5 M; exact below a million."""
    return rounded(count / 1e6, ("M", "B")) if count >= 1e6 else f"{count:,}"


def headline(file: HasFile) -> str:
    """Returns what a file holds: "llama, 134.5 M parameters, 30 layers, 8,192 context, 49,152
    tokens, Q4_1 (mostly), 5.74 bits per weight, 98.36 MB"."""
    kind, *counts = file.format.summary(file.metadata) or [file.format.name]
    totals = totals_by_type(file.tensors.values())
    total, nbytes = sum(one.weights for one in totals.values()), sum(one.nbytes for one in totals.values())
    named = file.format.meaning(FILE_TYPE, file.metadata.get(FILE_TYPE))
    most = max(totals, key=lambda type_: totals[type_].weights, default=None)
    types = [f"{named or most}{' (mostly)' * (len(totals) > 1)}"] if totals else []
    if total:
        types += [f"{8 * nbytes / total:.2f} bits per weight"]
    parts = [kind, f"{parameters_text(total)} parameters", *counts, *types, size_text(file.nbytes)]
    return ", ".join(safe(part) for part in parts)


def title(file: HasFile) -> str:
    """Returns a file's format, version and size in one line."""
    header = {**file.header, **file.header.counts}
    version = f" version {header['version']}" if "version" in header else ""
    order = f", {header['byte_order']}-endian" if "byte_order" in header else ""
    files = f" in {len(file.shards)} files" if len(file.shards) > 1 else ""
    return f"{safe(file.name)}: {file.format.name}{version}{order}, {file.nbytes:,} bytes{files}"


def file_parts(file: HasFile) -> Iterator[Part]:
    """Yields an open file's headline, title, bytes by type, and the tables that have rows."""
    yield headline(file)
    yield title(file)
    if totals := totals_by_type(file.tensors.values()):
        yield bytes_by_type((type_, total.nbytes) for type_, total in totals.items())._replace(labels="")
    yield from (metadata_table(file.metadata), types_table(file), tensors_table(file.tensors))


def markdown_table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]], align: str = "") -> str:
    """Returns a table in Markdown; `align` may have a letter for each column, ``-`` for numbers."""
    dashes = tuple("---:" if letter == "-" else "---" for letter in align or ":" * len(head))
    lines = (" | ".join(cell.replace("|", chr(92) + "|") for cell in row) for row in (head, dashes, *rows))
    return "\n".join(f"| {line} |" for line in lines) + "\n"


def escaped(text: str) -> str:
    """Returns a text as HTML."""
    from html import escape  # slow to import

    return escape(text)
