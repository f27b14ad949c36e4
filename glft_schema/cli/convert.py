"""`glft convert IN OUT`: a weights file of one format into one of another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from glft_schema.checkpoints import open_with_metadata
from glft_schema.cli.terminal import Exclude, blame, refuse_overwriting, say
from glft_schema.cli.written import (
    Alignment,
    BigEndian,
    Entries,
    GgufVersion,
    Imatrix,
    Out,
    Rules,
    Schemes,
    entries,
    header_of,
    importance_in,
    report,
    schemes_in,
    writing,
)
from glft_schema.convert import convert as convert_file
from glft_schema.convert import target_format


def convert(
    source: Annotated[Path, typer.Argument(metavar="IN", help="A GGUF, GLFT, .safetensors or torch .pt file, or a folder.")],
    out: Out,
    scheme: Schemes = None,
    metadata: Entries = None,
    exclude: Exclude = None,
    alignment: Alignment = None,
    format: Annotated[str | None, typer.Option(metavar="FORMAT", help="glft, gguf or safetensors.")] = None,
    gguf_version: GgufVersion = None,
    big_endian: BigEndian = False,
    rules: Rules = None,
    imatrix: Imatrix = None,
) -> None:
    """Write a weights file in another format, or the same one with other types.

    FORMAT follows from the ending of OUT unless given. Payloads are copied where OUT has their type and no scheme asks for
    another; else they are dequantized, and quantized where a scheme says so. The report says what happened to each tensor.
    In GGUF a well-known key such as general.quantization_version gets a value of its own type.
    """
    with blame(out, tensors=source):
        refuse_overwriting(out, source)
        target = target_format(out, format)
        with blame(source):
            checkpoint = open_with_metadata(source, exclude or [])
        importance = importance_in(imatrix, checkpoint.tensors)
        with writing(out, checkpoint.tensors) as step:
            written = convert_file(
                checkpoint,
                out,
                schemes_in(scheme),
                entries(metadata, typed=True),
                format=target,
                header=header_of(gguf_version, big_endian),
                alignment=alignment,
                rules=rules,
                progress=step,
                importance=importance,
            )
    say(*report(written, out, errors=True))
