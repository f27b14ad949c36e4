"""Tables and charts of files, tensors, metadata and reports, as text and as HTML for notebooks.

A class decorated by `with_display` defines its content once, in the method `_display`. Its one-line
``repr``, its ``str`` of one screen, and its HTML follow. The HTML sets no colours, so it suits
light and dark themes. All text from a file is escaped.
"""

from __future__ import annotations

import dataclasses
import math
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from textwrap import TextWrapper
from typing import Any, NamedTuple, TypeVar

import numpy as np

from glft_schema.errors import quote, safe, without_controls
from glft_schema.lazy import outside_graphs

ROWS = 20  # rows of an HTML table that are not folded
MOST = 300  # rows of a table
MAX_LINE = 1000  # characters
SCREEN = 45  # lines of a text
LINE = 300  # characters of a ``repr``
WIDTH, HEIGHT = 720, 24  # of a bar in pixels
NUMBERS = (int, float, type(None))  # types of cells that are aligned to the right
OPACITIES = 0.35, 0.2  # of a bar's parts, alternating
NAME, VALUE = 60, 80  # characters shown of a name and of a value
SHORTEST = 24  # characters: columns are left out rather than shorten a text further
SIZES = ("bytes", "kB", "MB", "GB", "TB")
LEAST = 4  # columns that a table keeps
ELEMENTS = 200  # of an array, whose text is longer than any that is shown

# Called with the current item, such as a tensor's name, and the share of work done, from 0 to 1.
Progress = Callable[[str, float], None]


Row = tuple[str, ...]
Item = TypeVar("Item")


class Listing(NamedTuple):
    """A table of text."""

    title: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]  # at most `MOST`
    hidden: int = 0  # number of further rows
    right: int = 0  # number of columns, from the right, that hold numbers

    @classmethod
    def of(cls, title: str, head: Row, items: Collection[Item], row: Callable[[Item], Row], right: int = 0) -> Listing:
        """Returns a table with a row per item."""
        rows = [row(item) for item in islice(items, MOST)]
        return cls(title, head, rows, len(items) - len(rows), right)

    def html(self) -> str:
        """Returns the table as HTML. Rows after the first `ROWS` are folded."""
        caption = f'<caption style="text-align:left">{escape_html(self.title)}</caption>'
        text = self._table(caption, self.rows[:ROWS])
        if folded := self.rows[ROWS:]:
            summary = f"<details><summary>and {len(folded) + self.hidden:,} more</summary>"
            text += f"\n{summary}\n{self._table('', folded)}\n</details>"
        return f"{text}\n<p>and {self.hidden:,} more</p>" if self.hidden else text

    def _table(self, caption: str, rows: Sequence[Row]) -> str:
        head = f"<thead>{self._row(self.head, 'th')}</thead>" if any(self.head) else ""
        body = ["<tbody>", *(self._row(row, "td") for row in rows), "</tbody>"]
        return "\n".join(filter(None, ["<table>", caption, head, *body, "</table>"]))

    def _row(self, row: Row, tag: str) -> str:
        opening = f'{tag} scope="col"' if tag == "th" else tag
        sides = ["left"] * (len(row) - self.right) + ["right"] * self.right
        texts = (escape_html(cell).replace("  ", "&emsp;") for cell in row)  # browsers collapse leading spaces
        cells = (f'<{opening} style="text-align:{side}">{text}</{tag}>' for text, side in zip(texts, sides, strict=True))
        return f"<tr>{''.join(cells)}</tr>"

    def text(self, most: int) -> str:
        """Returns the table as aligned lines, with at most this number of rows."""
        rows, hidden = self.rows[:most], self.hidden + max(len(self.rows) - most, 0)
        lines = [self.title, *align([row for row in (self.head, *rows) if any(row)], self.right)]
        return "\n".join([*lines, f"  ... and {hidden:,} more"] if hidden else lines)


class Chart(NamedTuple):
    """A picture as SVG, and the text that replaces it in ``str``."""

    svg: str
    labels: str = ""


def chart(title: str, parts: Sequence[tuple[str, float]], *, columns: bool = False) -> Chart:
    """Draws positive numbers with labels as parts of one bar, or as columns beside each other.

    Labels are shown as tooltips, and within the parts of a bar that are wide enough.
    """
    total, most = sum(number for _, number in parts) or 1, max((number for _, number in parts), default=0) or 1
    height, x = HEIGHT * (3 if columns else 1), 0.0
    lines = [f"<p>{escape_html(title)}</p>"]
    lines += [f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" font-size="12" fill="currentColor" role="img">']
    for i, (label, number) in enumerate(parts):
        width, tall = (WIDTH / len(parts), height * number / most) if columns else (WIDTH * number / total, height)
        box = f'x="{x:.1f}" y="{height - tall:.1f}" width="{width:.1f}" height="{tall:.1f}"'
        lines.append(f'<rect {box} fill-opacity="{OPACITIES[i % 2]}"><title>{escape_html(label)}</title></rect>')
        if not columns and width > 7 * len(label):
            lines.append(f'<text x="{x + 4:.1f}" y="16">{escape_html(label)}</text>')
        x += width
    labels = "" if columns else f"{title}: {', '.join(label for label, _ in parts[:ROWS])}"
    return Chart("\n".join([*lines, "</svg>"]), labels)


Part = str | Listing | Chart
Class = TypeVar("Class", bound=type)


def with_display(cls: Class) -> Class:
    """Makes ``repr``, ``str`` and HTML of a class from the parts that its method `_display` yields.

    The first part is the headline, which is all of the ``repr``. A class may have its own ``str``.
    Dataclasses, named tuples and sequences of rows need no such method.
    """

    def line(self: Any) -> str:
        text: str = next(self._display())
        return f"<{cls.__name__}: {text if len(text) <= LINE else f'{text[: LINE - 3]}...'}>"

    def screen(self: Any) -> str:
        return text_of(self._display())

    kind: Any = cls
    has_rows = issubclass(cls, Sequence) and not issubclass(cls, tuple)
    kind._display = getattr(cls, "_display", _display_rows if has_rows else _display_fields)
    kind.__repr__ = outside_graphs(line)
    kind._repr_html_ = lambda self: html_of(self._display())
    if "__str__" not in vars(cls):
        kind.__str__ = outside_graphs(screen)
    return cls


def _display_fields(record: Any) -> Iterator[Part]:
    """Yields the fields of a record in a line, and a table for each that holds several values."""
    fields = {_title(name): value for name, value in _fields(record).items()}
    yield ", ".join(f"{name} {text}" for name, value in fields.items() if (text := _cell(value)))
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield records_table(name, [{"name": key, **_fields(one)} for key, one in value.items()])
        elif isinstance(value, (list, tuple)) and not _is_short(value) and not hasattr(value, "_fields"):
            yield records_table(name, value)


def _display_rows(rows: Sequence[Any]) -> Iterator[Part]:
    """Yields the number of rows, and a table of them."""
    yield format_count(rows, "row")
    yield records_table("rows", rows)


def text_of(parts: Iterable[Part]) -> str:
    """Returns parts of a display as text of one screen, without empty tables.

    Lines that short tables do not need go to long ones.
    """
    parts = [part for part in parts if not isinstance(part, Listing) or part.rows]
    tables = sorted((part for part in parts if isinstance(part, Listing)), key=lambda table: len(table.rows))
    room, most = SCREEN - 2 * (len(parts) + len(tables)), dict[int, int]()
    for left, table in zip(range(len(tables), 0, -1), tables, strict=False):
        most[id(table)] = min(len(table.rows), max(room // left, 1))
        room -= most[id(table)]
    texts = (
        part.text(most[id(part)]) if isinstance(part, Listing) else part if isinstance(part, str) else part.labels
        for part in parts
    )
    return "\n\n".join(filter(None, texts))


def html_of(parts: Iterable[Part]) -> str:
    """Returns parts of a display as HTML, without empty tables."""
    texts = []
    for part in parts:
        if isinstance(part, Listing):
            texts.append(part.html() if part.rows else "")
        else:
            texts.append(part.svg if isinstance(part, Chart) else f"<p>{escape_html(part)}</p>" if part else "")
    return "\n".join(filter(None, texts))


@with_display
class Results(list[Item]):
    """A list of records, displayed as a table.

    Args:
        records: the records.
        noun: the name of one record, such as ``tensor``.
    """

    def __init__(self, records: Iterable[Item] = (), noun: str = "result") -> None:
        super().__init__(records)
        self.noun = noun

    def _display(self) -> Iterator[Part]:
        records: list[Any] = self
        sizes = [(record.type, record.nbytes) for record in records if hasattr(record, "nbytes")]
        yield f"{format_count(records, self.noun)}{f', {size_text(sum(nbytes for _, nbytes in sizes))}' if sizes else ''}"
        yield bytes_by_type(sizes) if sizes else ""
        yield records_table(f"{self.noun}s", records)


@with_display
class ByName(dict[str, Item]):
    """Tensors by name, displayed as a table."""

    def _display(self) -> Iterator[Part]:
        yield format_count(self, "tensor")
        yield records_table("tensors", [{"name": name, "": tensor} for name, tensor in self.items()])


def format_count(items: Collection[Any] | int, noun: str, plural: str = "") -> str:
    """Returns the number of items: "1 tensor", "1,045 tensors"."""
    count = items if isinstance(items, int) else len(items)
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def bytes_by_type(tensors: Iterable[tuple[Any, int]]) -> Chart:
    """Draws the bytes of each type, largest first, given the type and bytes of each tensor."""
    sizes = Counter[str]()
    for type_, nbytes in tensors:
        sizes[str(type_)] += nbytes
    return chart("bytes by type", [(f"{name} {size_text(nbytes)}", nbytes) for name, nbytes in sizes.most_common() if nbytes])


def records_table(title: str, records: Sequence[Any]) -> Listing:
    """Returns a table with a row per record (a mapping, dataclass or named tuple), texts first,
    then numbers. Fields that are empty in all rows are left out."""
    rows = [_fields(record) for record in records[:MOST]]
    columns = {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}
    used = {name: values for name, values in columns.items() if any(map(_cell, values))}
    numeric = [name for name, values in used.items() if all(isinstance(value, NUMBERS) for value in values)]
    head = (*(name for name in used if name not in numeric), *numeric)
    texts = [tuple(_cell(row[name]) for name in head) for row in rows]
    return Listing(title, tuple(map(_title, head)), texts, len(records) - len(rows), len(numeric))


def fields_table(title: str, fields: Mapping[str, Any]) -> Listing:
    """Returns a table with a row per field of a record."""
    return Listing.of(title, ("field", "value"), fields.items(), lambda item: (safe(item[0], NAME), _value(item[1])))


def _title(name: str) -> str:
    return name.replace("nbytes", "bytes").replace("_", " ")


def _fields(record: Any) -> Mapping[str, Any]:
    if isinstance(record, Mapping):
        return record
    names = [field.name for field in dataclasses.fields(record) if field.repr] if dataclasses.is_dataclass(record) else ()
    return {name: getattr(record, name) for name in getattr(record, "_fields", names)} or {"": record}


def _value(value: Any) -> str:
    is_array = hasattr(value, "shape") and not isinstance(value, np.generic)
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}" if is_array else quote(value, VALUE)


def _is_short(value: Sequence[Any]) -> bool:
    """Returns whether a list is a few integers, such as a shape."""
    return 0 < len(value) <= 8 and all(type(one) is int for one in value)


def _cell(value: Any) -> str:
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, (int, float)):
        return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
    if hasattr(type(value), "_display"):
        text = next(value._display())
    elif isinstance(value, (list, tuple, Mapping)) and not hasattr(value, "_fields"):
        return f"{list(value)}" if not isinstance(value, Mapping) and _is_short(value) else f"{len(value):,}"
    elif hasattr(value, "shape"):
        return _value(value)
    else:
        text = str(value)[:ELEMENTS].removeprefix("torch.")
    return shorten(without_controls(text), NAME)


def columns(default: float) -> float:
    """Returns the width of the terminal, or a default if stdout is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout and sys.stdout.isatty() else default


def align(rows: Sequence[tuple[str, ...]], right: int) -> list[str]:
    """Returns rows as lines with aligned columns; the last `right` columns are numbers.

    If lines are longer than `columns`, the middle of long texts in the widest column is left out.
    If that is not enough, columns at the right are left out, and a last line lists their headers.
    """
    if not rows:
        return []
    widths, most, head = [max(map(len, column)) for column in zip(*rows, strict=True)], columns(math.inf), rows[0]
    while len(widths) > LEAST and sum(widths) - max(widths) + SHORTEST + 2 * len(widths) > most:
        del widths[-1]
        rows, right = [row[:-1] for row in rows], max(right - 1, 0)
    if (excess := sum(widths) + 2 * len(widths) - most) > 0:
        widest = widths.index(max(widths))
        widths[widest] = min(widths[widest], max(widths[widest] - int(excess), SHORTEST))
        rows = [(*row[:widest], shorten(row[widest], widths[widest]), *row[widest + 1 :]) for row in rows]
    sides = ["<"] * (len(widths) - right) + [">"] * right
    line = "".join(f"  {{:{side}{width}}}" for side, width in zip(sides, widths, strict=True))
    lines = [line.format(*row).rstrip() for row in rows]
    if hidden := head[len(widths) :]:
        lines += wrap(f"left out: {', '.join(hidden)}; a pipe has all columns")
    return lines


def wrap(text: str) -> list[str]:
    """Returns a text as indented lines that fit the terminal, if stdout is one."""
    if (width := columns(math.inf)) == math.inf:
        return [f"  {text}"]
    wrapper = TextWrapper(int(width), "  ", " " * 6, break_long_words=False, break_on_hyphens=False)
    wrapper.expand_tabs = wrapper.replace_whitespace = False  # names are printed as they are
    return wrapper.wrap(text)


def first_rows(rows: Sequence[tuple[str, ...]], right: int, most: int, all_by: str) -> list[str]:
    """Returns a header and at most `most` rows as `align` does. If there are more, a last line has
    their number and `all_by`, the option that lists them."""
    hidden = len(rows) - 1 - most
    return [*align(rows[: most + 1], right), *([f"  ... and {hidden:,} more: {all_by}"] if hidden > 0 else [])]


def shorten(text: str, length: int) -> str:
    """Returns text with its middle left out if it is longer than `length`."""
    kept = length - 3
    return text if len(text) <= length else f"{text[: kept // 2]}...{text[-(kept - kept // 2) :]}"


def shortest(value: float) -> float:
    """Returns the number with the fewest digits that is `value` in float32."""
    return float(str(np.float32(value)))


def format_value(value: Any, type_: str) -> Any:
    """Returns a value for display. Numbers of float32 get the fewest digits, such as 1e-05; of an
    array of float32, only the first `ELEMENTS` are returned.

    Args:
        value: a number, or several.
        type_: its type in metadata or in a declaration: ``float32``, ``array[float32]``, ``f32``.
    """
    if not type_.startswith(("float32", "array[float32", "f32")):
        return value
    if isinstance(value, (float, np.floating)):
        return shortest(float(value))
    return [format_value(one, type_) for one in value[:ELEMENTS]] if isinstance(value, (list, tuple, np.ndarray)) else value


def percent(share: float | None) -> str:
    """Returns a share as a percentage with three digits; empty for None."""
    return "" if share is None else f"{100 * share:.3g} %"


def format_rounded(number: float, units: Sequence[str]) -> str:
    """Returns a number with four digits and its unit, each 1,000 times the one before: 98.36 MB."""
    for unit in units:
        if number < 999.95 or unit == units[-1]:
            break
        number /= 1000
    return f"{number:.4g} {unit}"


def size_text(nbytes: int) -> str:
    """Returns a number of bytes in a decimal unit, such as 98.36 MB."""
    return format_rounded(nbytes, SIZES)


def parameters_text(count: int) -> str:
    """Returns a number of parameters, such as 134.5 M; exact below a million."""
    return format_rounded(count / 1e6, ("M", "B")) if count >= 1e6 else f"{count:,}"


def markdown_table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]], align: str = "") -> str:
    """Returns a table in Markdown; `align` may have a letter for each column, ``-`` for numbers."""
    dashes = tuple("---:" if letter == "-" else "---" for letter in align or ":" * len(head))
    lines = (" | ".join(cell.replace("|", chr(92) + "|") for cell in row) for row in (head, dashes, *rows))
    return "\n".join(f"| {line} |" for line in lines) + "\n"


def escape_html(text: str) -> str:
    """Escapes text for HTML."""
    from html import escape  # slow to import

    return escape(text)
