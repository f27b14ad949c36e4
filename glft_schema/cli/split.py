"""`glft split` and `glft merge`: splits a file into several files, and merges them again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from glft_schema.cli.options import Input, Out, argument, bytes_of, option
from glft_schema.cli.terminal import echo, echo_written, file_errors, refuse_overwriting
from glft_schema.display import format_count
from glft_schema.errors import OptionError, quote
from glft_schema.files.container import open
from glft_schema.files.splitting import merge as merge_files
from glft_schema.files.splitting import split as split_file
from glft_schema.storage.locations import check_local


def split(
    file: Annotated[Input, argument("FILE", "GGUF or safetensors file.")],
    prefix: Annotated[str, argument("PREFIX", "Prefix of the output files: PREFIX-00001-of-00003.gguf.")],
    max_tensors: Annotated[
        int | None, option("N", "Maximum tensors per file.", "--max-tensors", "--split-max-tensors", min=1)
    ] = None,
    max_bytes: Annotated[
        str | None,
        option("SIZE", "Maximum bytes of padded payloads per file, such as 2GB.", "--max-bytes", "--split-max-size"),
    ] = None,
) -> None:
    """Splits a GGUF or safetensors file into several files.

    --max-tensors or --max-bytes is required. A tensor larger than --max-bytes gets its own file.
    As in llama-gguf-split, --max-bytes counts payloads with their padding; the header, metadata and
    table of tensors come on top. For safetensors, the index PREFIX.safetensors.index.json is also
    written.

    Examples:
        glft split model.gguf parts/model --max-tensors 100
        glft split model.gguf parts/model --max-bytes 2GB
    """
    check_local(prefix)
    with file_errors(file), open(file) as opened:
        if not (folder := Path(prefix).parent).is_dir():
            raise OptionError(f"expected PREFIX in an existing folder, found {quote(str(folder))}: create it first")
        most = None if max_bytes is None else bytes_of(max_bytes, "--max-bytes")
        paths = split_file(opened, prefix, max_tensors=max_tensors, max_bytes=most)
        for path in paths:
            echo(f"{path}: {Path(path).stat().st_size:,} bytes")
    echo_written(paths, "verify", paths[0])


def merge(
    first: Annotated[Input, argument("FIRST", "First file of a GGUF set; index of a safetensors set.")],
    out: Out,
) -> None:
    """Merges a split model into one file.

    Examples:
        glft merge parts/model-00001-of-00003.gguf model.gguf
        glft merge parts/model.safetensors.index.json model.safetensors
    """
    with file_errors(first), open(first) as opened:
        refuse_overwriting(out, first)
        merge_files(opened, out)
        echo(f"{out}: {format_count(opened.tensors, 'tensor')}, {out.stat().st_size:,} bytes")
    echo_written([out], "verify", out)
