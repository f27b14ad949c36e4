"""`glft split` and `glft merge`: splits a file into several files, and merges them again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from glft_schema.cli.terminal import Out, echo, file_errors, refuse_overwriting
from glft_schema.files.container import open
from glft_schema.files.splitting import merge as merge_files
from glft_schema.files.splitting import split as split_file


def split(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="GGUF or safetensors file.")],
    prefix: Annotated[str, typer.Argument(metavar="PREFIX", help="Prefix of the output files: PREFIX-00001-of-00003.gguf.")],
    max_tensors: Annotated[int | None, typer.Option(metavar="N", min=1, help="Maximum tensors per file.")] = None,
    max_bytes: Annotated[int | None, typer.Option(metavar="N", min=1, help="Maximum payload bytes per file.")] = None,
) -> None:
    """Splits a GGUF or safetensors file into several files.

    --max-tensors or --max-bytes is required. A tensor larger than --max-bytes gets its own file.
    For safetensors, the index PREFIX.safetensors.index.json is written, too.
    """
    with file_errors(file), open(file) as opened:
        for path in split_file(opened, prefix, max_tensors=max_tensors, max_bytes=max_bytes):
            echo(f"{path}: {Path(path).stat().st_size:,} bytes")


def merge(
    first: Annotated[Path, typer.Argument(metavar="FIRST", help="First file of a GGUF set; index of a safetensors set.")],
    out: Out,
) -> None:
    """Merges a split model into one file."""
    with file_errors(first), open(first) as opened:
        refuse_overwriting(out, first)
        merge_files(opened, out)
        echo(f"{out}: {len(opened.tensors)} tensors, {out.stat().st_size:,} bytes")
