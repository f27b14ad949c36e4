"""`glft export IN OUT`: a checkpoint into a weights file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from glft_schema.checkpoints import open_checkpoint
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
from glft_schema.container import format_for
from glft_schema.errors import SchemeError
from glft_schema.export import save_file


def export(
    source: Annotated[
        Path, typer.Argument(metavar="IN", help="A .safetensors file, a folder of them with its index, or a torch .pt file.")
    ],
    out: Out,
    scheme: Schemes = None,
    metadata: Entries = None,
    exclude: Exclude = None,
    alignment: Alignment = None,
    format: Annotated[str | None, typer.Option(metavar="FORMAT", help="glft or gguf.")] = None,
    gguf_version: GgufVersion = None,
    big_endian: BigEndian = False,
    rules: Rules = None,
    imatrix: Imatrix = None,
) -> None:
    """Write a checkpoint to a GLFT or GGUF file.

    FORMAT is glft or gguf; unless given, gguf where OUT ends in .gguf. TYPE is f32, f16, q8_per_channel or q4_per_group_64 of
    GLFT, and f32, f16, bf16, q8_0, q4_0 and so on of GGUF. PATTERN is a name or has wildcards; a name wins over patterns, and
    later patterns over earlier ones. In GGUF a well-known key such as general.quantization_version gets a value of its own
    type.
    """
    with blame(source):
        refuse_overwriting(out, source)
        target = format_for(out, format).name
        stored = open_checkpoint(source, exclude or [])
        if any(tensor.packed for tensor in stored.values()):
            raise SchemeError("expected a checkpoint, found a GLFT or GGUF file: glft convert takes those, with their metadata")
    with blame(out, tensors=source):
        schemes, texts = schemes_in(scheme), entries(metadata, typed=target == "GGUF")
        header, importance = header_of(gguf_version, big_endian), importance_in(imatrix, stored)
        with writing(out, stored) as step:
            written = save_file(
                stored,
                out,
                texts,
                schemes,
                alignment,
                format=target,
                header=header,
                rules=rules,
                progress=step,
                importance=importance,
            )
    say(*report(written, out))
