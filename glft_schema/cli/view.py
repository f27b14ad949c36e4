"""`glft view FILE -o page.html`: a file as one page to look into, in any browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from glft_schema.cli.terminal import Exclude, blame, progress_bar, refuse_overwriting, say
from glft_schema.describe.page.render import page
from glft_schema.errors import OptionError
from glft_schema.files.container import Container
from glft_schema.storage.atomic import atomic_write
from glft_schema.weights.checkpoints import open_checkpoint


def view(
    file: Annotated[Path, typer.Argument(help="A GLFT or GGUF file, or the first of a set.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="PAGE", help="The page to write.")],
    against: Annotated[
        Path | None, typer.Option(metavar="SOURCE", help="The checkpoint that it was made from: shows quantization errors.")
    ] = None,
    exclude: Exclude = None,
) -> None:
    """Write a page of HTML that shows the file: where its bytes go, its tensors, metadata, and every field with its bytes.

    The page is one file that loads nothing from anywhere. Of the tensors it has samples and the first bytes.
    """
    with blame(file), Container.parse_file(file) as parsed:
        if exclude and against is None:
            raise OptionError("expected --against with --exclude, found none")
        refuse_overwriting(out, file)
        source = None
        if against is not None:
            with blame(against):
                refuse_overwriting(out, against)
                source = open_checkpoint(against, exclude or [])
        with atomic_write(out) as stream, progress_bar("looking into") as bar:  # which refuses before any work is done
            made = page(parsed, source, against_name=against.name if against else "", progress=bar).encode()
            stream.write(made)
    say(f"{out}: {len(made):,} bytes")
