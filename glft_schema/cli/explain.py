"""`glft explain FILE`: every byte of a file, with its field, its value and its meaning."""

from __future__ import annotations

import os
import re
import shutil
import sys
from contextlib import closing
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from glft_schema.cli.terminal import blame, say
from glft_schema.describe.byte_map import byte_map_of
from glft_schema.describe.hex_view import PLAIN_STYLES, STYLES, HexView
from glft_schema.errors import OptionError, shown
from glft_schema.storage.file_source import open_source
from glft_schema.weights.patterns import names_matching

WIDTH = 80  # columns, where there is no terminal
NUMBER = "0x[0-9a-fA-F]+|[0-9]+"
RANGE = re.compile(f"(?P<start>{NUMBER})?:(?P<end>{NUMBER})?")


class Colour(str, Enum):
    """When to colour."""

    auto = "auto"
    always = "always"
    never = "never"


def explain(
    file: Annotated[Path, typer.Argument(help="A GLFT or GGUF file; of a set, one of its files.")],
    tensor: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this tensor: its row, and how its payload begins.")
    ] = None,
    range: Annotated[
        str | None, typer.Option(metavar="A:B", help="Only the bytes from A to before B, all of them, opened. Decimal or 0x.")
    ] = None,
    color: Annotated[Colour, typer.Option(help="Colour: on a terminal (auto), always, or never.")] = Colour.auto,
) -> None:
    """Show every byte of a file in hex, with the field that it belongs to, its value, and what it means.

    Long arrays and payloads are folded: the line that stands for the rest says which --range opens them, down to each text,
    number and block. Either end of a range may be left out. Of a broken file the bytes after the break belong to no field; why
    it is broken is said at the end, with exit code 2.
    """
    with blame(file), closing(open_source(file)) as source:
        if tensor is not None and range is not None:
            raise OptionError("expected --tensor or --range, found both")
        found, error = byte_map_of(source)
        coloured = is_coloured(color)
        view = HexView(found, width(), STYLES if coloured else PLAIN_STYLES)
        if range is not None:
            lines = view.part(*bounds(range, found.nbytes))
        elif tensor is not None:
            names = names_matching(tensor, found.tensors)
            if len(names) > 1:
                raise OptionError(f"expected one tensor that matches {shown(tensor)}, found {len(names)}")
            lines = view.tensor(names[0])
        else:
            broken = ", broken" if error else ""
            say(f"{file}: {found.format.name}, {found.byte_order}-endian, {found.nbytes:,} bytes{broken}")
            lines = view.whole()
        for line in lines:
            say(line, coloured=coloured)
        if error:
            raise error


def bounds(text: str, size: int) -> tuple[int, int]:
    """Returns the first byte and the end of a range ``A:B`` of a file of `size` bytes.

    Raises:
        OptionError: where it is none, or not within the file.
    """
    if not (parts := RANGE.fullmatch(text)):
        raise OptionError(f"expected a range such as 0x40:128, :64 or 100:, found {shown(text)}")
    start, end = (int(number, 0 if number.startswith("0x") else 10) if number else None for number in parts.groups())
    start, end = start or 0, size if end is None else end
    if not start < end <= size:
        raise OptionError(f"expected a range within bytes 0 to {size}, the first end below the second, found {shown(text)}")
    return start, end


def is_coloured(color: Colour) -> bool:
    """Tells whether to colour what is printed: where it was asked for, or on a terminal unless ``NO_COLOR`` is set."""
    if color is not Colour.auto:
        return color is Colour.always
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def width() -> int:
    """Returns how many columns there are."""
    return max(shutil.get_terminal_size((WIDTH, 24)).columns, 40) if sys.stdout.isatty() else WIDTH
