"""`glft split` and `glft merge`: a GGUF file cut into several, and several put together."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from glft_schema.cli.terminal import blame, refuse_overwriting, say
from glft_schema.files.container import open
from glft_schema.files.splitting import merge as merge_files
from glft_schema.files.splitting import split as split_file


def split(
    file: Annotated[Path, typer.Argument(help="A GGUF file.")],
    prefix: Annotated[str, typer.Argument(help="What the new files' names begin with: PREFIX-00001-of-00003.gguf.")],
    max_tensors: Annotated[int | None, typer.Option(min=1, help="Tensors in each file, at most.")] = None,
    max_bytes: Annotated[int | None, typer.Option(min=1, help="Bytes of payloads in each file, at most.")] = None,
) -> None:
    """Cut a GGUF file into several."""
    with blame(file), open(file) as opened:
        for path in split_file(opened, prefix, max_tensors=max_tensors, max_bytes=max_bytes):
            say(f"{path}: {Path(path).stat().st_size:,} bytes")


def merge(
    first: Annotated[Path, typer.Argument(help="The first file of a set.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write; replaced only when all went well.")],
) -> None:
    """Put a set of GGUF files together."""
    with blame(first), open(first) as opened:
        refuse_overwriting(out, first)
        merge_files(opened, out)
        say(f"{out}: {len(opened.tensors)} tensors, {out.stat().st_size:,} bytes")
