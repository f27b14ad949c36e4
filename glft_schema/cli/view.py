"""`glft view`: an HTML page about a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from glft_schema.cli.terminal import Exclude, echo, file_errors, progress_bar, refuse_overwriting
from glft_schema.describe.page.render import page
from glft_schema.errors import OptionError
from glft_schema.files.container import Container
from glft_schema.storage.atomic import atomic_write
from glft_schema.weights.checkpoints import open_checkpoint


def view(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Weights file; for a set, its first file.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="PAGE", help="Output page; replaced only on success.")],
    against: Annotated[
        Path | None, typer.Option(metavar="SOURCE", help="Checkpoint that FILE was made from; adds quantization errors.")
    ] = None,
    exclude: Exclude = None,
) -> None:
    """Writes an HTML report about a file.

    The page is self-contained. It shows sizes, metadata, histograms of sampled tensor values, and
    the fields with their bytes.
    """
    with file_errors(file), Container.parse_file(file) as parsed:
        if exclude and against is None:
            raise OptionError("--exclude requires --against")
        refuse_overwriting(out, file)
        source = None
        if against is not None:
            with file_errors(against):
                refuse_overwriting(out, against)
                source = open_checkpoint(against, exclude or [])
        with atomic_write(out) as stream, progress_bar("reading") as bar:
            html = page(parsed, source, against_name=against.name if against else "", progress=bar).encode()
            stream.write(html)
    echo(f"{out}: {len(html):,} bytes")
