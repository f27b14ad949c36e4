"""`glft view`: an HTML page about a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from glft_schema.cli.options import Exclude, Input, argument, option
from glft_schema.cli.terminal import echo, echo_written, file_errors, progress_bar, refuse_overwriting
from glft_schema.describe.page.content import page
from glft_schema.errors import OptionError
from glft_schema.files.container import open_damaged
from glft_schema.storage.atomic import atomic_write
from glft_schema.weights.checkpoints import open_checkpoint


def view(
    file: Annotated[Input, argument("FILE", "Weights file; for a set, its first file.")],
    out: Annotated[Path, option("PAGE", "Output page; replaced only on success.", "-o")],
    against: Annotated[Input | None, option("SOURCE", "Checkpoint that FILE was made from; adds quantization errors.")] = None,
    exclude: Exclude = (),
) -> None:
    """Writes an HTML report about a file.

    The page is self-contained. It shows sizes, metadata, histograms of sampled tensor values, and
    the fields with their bytes. For a broken FILE, it shows the fault and the fields before it; for
    a truncated FILE, all tensors, with values of the complete ones. In both cases, the exit code is
    2.

    Examples:
        glft view model.gguf -o page.html
        glft view q4_k_m.gguf -o page.html --against f16.gguf
    """
    with file_errors(file):
        parsed, fault = open_damaged(file)
    with file_errors(file), parsed:
        if exclude and against is None:
            raise OptionError("--exclude requires --against")
        refuse_overwriting(out, file)
        source = None
        if against is not None:
            with file_errors(against):
                refuse_overwriting(out, against)
                source = open_checkpoint(against, exclude)
        with atomic_write(out) as stream, progress_bar("reading") as bar:
            html = page(parsed, source, against_name=against.name if against else "", progress=bar, fault=fault).encode()
            stream.write(html)
        echo(f"{out}: {len(html):,} bytes")
        if fault:
            raise fault
    echo_written([out], "explain", file)
