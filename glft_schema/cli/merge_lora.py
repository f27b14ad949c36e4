"""`glft merge-lora`: merges a LoRA adapter into a quantized model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from glft_schema.adapters.merging import MergedTensor
from glft_schema.adapters.merging import merge_lora as merge
from glft_schema.cli.options import Input, Verbose, argument, option
from glft_schema.cli.terminal import echo, echo_written, file_errors, progress_bar, refuse_overwriting
from glft_schema.display import align, format_count
from glft_schema.errors import safe

LOST = 0.99  # error relative to the update; about 1 if the update changes no code


def merge_lora(
    model: Annotated[Input, argument("MODEL", "GGUF model, or a file of a set.")],
    adapter: Annotated[Input, argument("ADAPTER", "LoRA adapter: a PEFT folder or a GGUF file.")],
    out: Annotated[Path, argument("OUT", "GGUF file; replaced only on success.")],
    scale: Annotated[float, option("X", "Factor of the adapter's update.")] = 1.0,
    imatrix: Annotated[Input | None, option("FILE", "llama.cpp importance matrix for encoding.")] = None,
    verbose: Verbose = False,
) -> None:
    """Merges a LoRA adapter into a GGUF model.

    Only tensors that the adapter changes are decoded. They are merged in float32 and encoded again
    in their own types; all others are copied. With --verbose, the report lists, for each changed
    tensor, the size of the update relative to the weights, and the error of the stored weights
    relative to the merged ones.

    Examples:
        glft merge-lora model.gguf adapter/ merged.gguf
        glft merge-lora model.gguf adapter.gguf merged.gguf --scale 0.5
    """
    with file_errors(model):
        refuse_overwriting(out, model, adapter, imatrix)
        with progress_bar(f"writing {out.name}") as bar:
            merged = merge(model, adapter, out, scale=scale, importance=imatrix, progress=bar)
    echo(*report(merged, out, verbose))
    if lost := [tensor.name for tensor in merged if tensor.errors.relative > LOST * tensor.update]:
        problem = f"in {len(lost)} of {len(merged)} tensors the error of their type is as large as the adapter's update"
        echo(f"glft: warning: {problem}, e.g. {safe(lost[0])}: merge into a model of larger types", error=True)
    echo_written([out], "compare", model, out)


def report(merged: list[MergedTensor], out: Path, verbose: bool) -> list[str]:
    """Returns the lines of the report."""
    rows = [(safe(t.name), t.type.name, f"{t.update:.3%}", f"{t.errors.relative:.3%}", f"{t.errors.largest:g}") for t in merged]
    lines = [f"{out}: {format_count(merged, 'tensor')} changed, all others copied"]
    table = align([("tensor", "type", "update", "error", "max error"), *rows], right=3)
    return [*lines, "", *table] if verbose else lines
