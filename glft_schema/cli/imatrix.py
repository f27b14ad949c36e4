"""`glft imatrix`: converts and merges llama.cpp's importance matrices."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from glft_schema.cli.terminal import Out, echo, file_errors, refuse_overwriting
from glft_schema.errors import safe
from glft_schema.weights.importance import TOKENS, ImportanceMatrix


def imatrix(
    files: Annotated[list[Path], typer.Argument(metavar="IN...", help="Importance matrices, GGUF or imatrix.dat.")],
    out: Out,
    chunk_size: Annotated[
        int, typer.Option(metavar="N", min=1, help="Tokens in a chunk of an imatrix.dat, which does not state it.")
    ] = TOKENS,
) -> None:
    """Converts or merges llama.cpp's importance matrices.

    OUT's extension, .gguf or .dat, selects its format. Several matrices are merged as llama-imatrix
    does: sums, counts and chunks are added. A .dat holds one count for all experts, no chunk size,
    only the last dataset, and no matrices without data.
    """
    matrices = []
    for file in files:
        with file_errors(file):
            refuse_overwriting(out, file)
            matrices.append(ImportanceMatrix.open(file, chunk_size=chunk_size))
    with file_errors(out):
        matrix = matrices[0] if len(matrices) == 1 else ImportanceMatrix.merge(matrices)
        unused = matrix.save(out)
    echo(f"{out}: {len(matrix.columns) - len(unused)} matrices, {matrix.chunk_count} chunks, {out.stat().st_size:,} bytes")
    echo(*(f"left out: {safe(name)} has no data" for name in unused))
