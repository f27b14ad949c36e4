"""`glft get-tensor FILE NAME OUT.npy`: the numbers of one tensor, for numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from glft_schema.cli.terminal import blame, refuse_overwriting, say
from glft_schema.errors import OptionError, shown
from glft_schema.files.container import open
from glft_schema.storage.atomic import atomic_write
from glft_schema.weights.patterns import names_matching

ENDING = ".npy"
DTYPES = ("float16", "float32", "float64")


def get_tensor(
    file: Annotated[Path, typer.Argument(help="A weights file.")],
    name: Annotated[str, typer.Argument(help="The tensor's name, or a pattern that matches it alone.")],
    out: Annotated[Path, typer.Argument(metavar="OUT.npy", help="The file to write; replaced only when all went well.")],
    dtype: Annotated[str | None, typer.Option(help=f"One of {', '.join(DTYPES)}; unless given, as stored or float32.")] = None,
) -> None:
    """Write one tensor, dequantized, to a .npy file. Other endings are refused."""
    with blame(file), open(file) as opened:
        refuse_overwriting(out, file)
        if out.suffix.lower() != ENDING:
            raise OptionError(f"expected OUT to end in {ENDING}, found {str(out)!r}")
        names = names_matching(name, opened.tensors)
        if len(names) > 1:
            raise OptionError(f"expected one tensor that matches {shown(name)}, found {len(names)}")
        if dtype not in (None, *DTYPES):
            raise OptionError(f"expected one of {', '.join(DTYPES)}, found {shown(dtype)}")
        import torch

        with atomic_write(out) as stream:  # which refuses before any work is done
            numbers = opened.tensors[names[0]].dequantize(getattr(torch, dtype) if dtype else None)
            numbers = numbers.float() if numbers.dtype == torch.bfloat16 else numbers  # which numpy does not have
            np.save(stream, numbers.numpy())
        say(f"{out}: {numbers.dtype} {list(numbers.shape)}")
