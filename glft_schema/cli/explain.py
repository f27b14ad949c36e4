"""`glft explain`: every byte of a file, with its field, value and meaning."""

from __future__ import annotations

import re
import sys
from contextlib import closing
from typing import Annotated

from glft_schema.cli.options import Choice, Input, argument, option
from glft_schema.cli.terminal import echo, file_errors, has_colours, refuse_set
from glft_schema.describe.byte_map import byte_map_of
from glft_schema.describe.hex_view import PLAIN_STYLES, STYLES, HexView
from glft_schema.display import columns
from glft_schema.errors import OptionError, quote
from glft_schema.storage.opening import open_source
from glft_schema.weights.patterns import name_matching

COLORS = ("auto", "always", "never")
WIDTH = 80  # columns, if stdout is not a terminal
NUMBER = "0x[0-9a-fA-F]+|[0-9][0-9,]*"  # as glft inspect prints them
RANGE = re.compile(f"(?P<start>{NUMBER})?:(?P<end>{NUMBER})?")


def explain(
    file: Annotated[Input, argument("FILE", "Weights file; may be any file of a set.")],
    tensor: Annotated[str | None, option("NAME", "Only this tensor: its table entry and the start of its payload.")] = None,
    range: Annotated[
        str | None,
        option("A:B", "Only bytes A to B (B excluded), unabridged; decimal or hex (0x...). A or B may be omitted."),
    ] = None,
    color: Annotated[str, option(None, "When to use color; auto means if stdout is a terminal.", type=Choice(COLORS))] = COLORS[
        0
    ],
) -> None:
    """Shows every byte of a file and what it means.

    For each field, shows its path, type and value, its meaning, and its bytes in hex. Long arrays
    and payloads are abridged; a line in their place gives the --range that shows them in full.

    In a broken file, the fault is marked, and the bytes after it are not assigned to fields, except
    payloads of a truncated file. The error is printed last, too, and the exit code is 2.

    Examples:
        glft explain model.gguf
        glft explain model.gguf --tensor blk.0.attn_q.weight
    """
    with file_errors(file):
        refuse_set(file)
    with file_errors(file), closing(open_source(file)) as source:
        if tensor is not None and range is not None:
            raise OptionError("expected --tensor or --range, found both")
        byte_map, error = byte_map_of(source)
        coloured = has_colours(sys.stdout) if color == "auto" else color == "always"
        view = HexView(byte_map, max(int(columns(WIDTH)), 40), STYLES if coloured else PLAIN_STYLES, error)
        if range is not None:
            lines = view.part(*bounds(range, byte_map.nbytes))
        elif tensor is not None:
            lines = view.tensor(name_matching(tensor, byte_map.tensors))
        else:
            broken = ", broken" if error else ""
            echo(f"{file}: {byte_map.format.name}, {byte_map.byte_order}-endian, {byte_map.nbytes:,} bytes{broken}")
            lines = view.whole()
        for line in lines:
            echo(line, coloured=coloured)
        if error:
            raise error


def bounds(text: str, size: int) -> tuple[int, int]:
    """Returns the start and end of a range ``A:B`` in a file of `size` bytes.

    Raises:
        OptionError: for any other form, and for an empty range or one outside the file.
    """
    if not (parts := RANGE.fullmatch(text)):
        raise OptionError(f"expected a range such as 0x40:128, :64 or 100:, found {quote(text)}")
    start, end = (
        int(number.replace(",", ""), 16 if number.startswith("0x") else 10) if number else None for number in parts.groups()
    )
    start, end = start or 0, size if end is None else end
    if not start < end <= size:
        raise OptionError(f"expected a range A:B with 0 <= A < B <= {size}, found {quote(text)}")
    return start, end
