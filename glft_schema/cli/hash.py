"""`glft hash FILE ...`: a manifest of files and their tensors, for `sha256sum -c` and `glft verify --manifest`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from glft_schema.checks.manifests import hash_file, manifest_of
from glft_schema.cli.terminal import blame, progress_bar
from glft_schema.files.container import Container


def hash(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="GLFT or GGUF files; of a set, the first one.")],
) -> None:
    """Print the SHA-256 of files and of each of their tensors, as a manifest.

    Lines about files are those of sha256sum, so that sha256sum -c takes the manifest as it is. Lines about tensors are comments
    to it; glft verify FILE --manifest checks both. The line about the model is the hash of the lines about tensors, sorted:
    equal for files of the same tensors, whatever their order, metadata, version and number of files.
    """
    with progress_bar("hashing") as bar:
        for path in files:
            with blame(path), Container.parse_file(path, mmap=False) as file:
                text = manifest_of(hash_file(file, progress=bar))
            sys.stdout.flush()
            if hasattr(sys.stdout, "buffer"):
                sys.stdout.buffer.write(os.fsencode(text))  # names of files are bytes
            else:
                sys.stdout.write(text)
