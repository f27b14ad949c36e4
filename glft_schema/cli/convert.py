"""`glft convert IN OUT`: a checkpoint or weights file in another format, or with other types."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from glft_schema.cli.terminal import Exclude, blame, progress_bar, refuse_overwriting, say
from glft_schema.cli.writing_options import (
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
)
from glft_schema.formats.registry import target_format
from glft_schema.weights.checkpoints import open_with_metadata
from glft_schema.weights.convert import convert as convert_file
from glft_schema.weights.convert import has_types


def convert(
    source: Annotated[
        Path, typer.Argument(metavar="IN", help="A GGUF, GLFT, .safetensors or torch .pt file, or a folder of shards.")
    ],
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
    """Write a checkpoint or a weights file in another format, or in the same one with other types.

    FORMAT follows from the ending of OUT unless given. Payloads are copied if OUT has their type and no scheme asks for
    another; otherwise they are dequantized, and quantized if a scheme says so. The report says what happened to each tensor.
    TYPE is f32, f16, q8_per_channel or q4_per_group_64 in GLFT, and f32, f16, bf16, q8_0, q4_0 and so on in GGUF. PATTERN is a
    name or has wildcards; a name wins over patterns, and later patterns over earlier ones. In GGUF a well-known key such as
    general.quantization_version gets a value of its own type.
    """
    with blame(out, tensors=source):
        refuse_overwriting(out, source)
        target = target_format(out, format)
        with blame(source):
            checkpoint = open_with_metadata(source, exclude or [])
        importance = importance_in(imatrix, checkpoint.tensors)
        with progress_bar(f"writing {out.name}") as bar:
            written = convert_file(
                checkpoint,
                out,
                schemes=schemes_in(scheme),
                metadata=entries(
                    metadata, typed=(target is not None and target.has_typed_metadata) or has_types(checkpoint.metadata)
                ),
                format=format,
                header=header_of(gguf_version, big_endian),
                alignment=alignment,
                rules=rules,
                progress=bar,
                importance=importance,
            )
    say(*report(written, out))
