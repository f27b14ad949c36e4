"""`glft hash`: a manifest of files and tensors, for `sha256sum -c` and `glft verify --manifest`."""

from __future__ import annotations

import os
import sys
from typing import Annotated

from glft_schema.checks.manifests import hash_file, manifest_of
from glft_schema.cli.options import Input, argument
from glft_schema.cli.terminal import file_errors, progress_bar
from glft_schema.files.container import Container


def hash(
    files: Annotated[tuple[Input, ...], argument("FILE", "Weights files; for a split model, only its first file.")],
) -> None:
    """Prints SHA-256 hashes of files and tensors.

    The output is a manifest. "sha256sum -c" checks the files, and skips tensor lines as comments.
    "glft verify FILE --manifest MANIFEST" checks files and tensors.

    The model line is a hash of the sorted tensor lines. It does not depend on the order of tensors,
    the metadata, the format version or the number of files.

    Examples:
        glft hash model.gguf > model.sha256
        glft hash model-00001-of-00003.gguf
    """
    with progress_bar("hashing") as bar:
        for path in files:
            with file_errors(path), Container.parse_file(path, mmap=False) as file:
                text = manifest_of(hash_file(file, progress=bar))
            sys.stdout.flush()
            if hasattr(sys.stdout, "buffer"):
                sys.stdout.buffer.write(os.fsencode(text))  # file names may not be valid text
            else:
                sys.stdout.write(text)
