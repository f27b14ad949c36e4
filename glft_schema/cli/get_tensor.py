"""`glft get-tensor`: writes one tensor to a .npy file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np

from glft_schema.cli.options import Input, argument, option
from glft_schema.cli.terminal import echo, file_errors, refuse_overwriting
from glft_schema.errors import OptionError, TruncatedError, quote
from glft_schema.files.container import open
from glft_schema.storage.atomic import atomic_write
from glft_schema.weights.patterns import name_matching
from glft_schema.words import suggestion

ENDING = ".npy"
DTYPES = ("float16", "float32", "float64")


def get_tensor(
    file: Annotated[Input, argument("FILE", "Weights file.")],
    name: Annotated[str, argument("NAME", "Tensor name, or a wildcard pattern that matches exactly one tensor.")],
    out: Annotated[Path, argument("OUT.npy", "Output file; replaced only on success.")],
    dtype: Annotated[
        str | None, option("DTYPE", f"{', '.join(DTYPES)}. Default: as stored, or float32 if numpy lacks the type.")
    ] = None,
) -> None:
    """Writes one tensor to a .npy file.

    Quantized tensors are dequantized. From a truncated file, only complete tensors can be written.

    Examples:
        glft get-tensor model.gguf output_norm.weight norm.npy
        glft get-tensor model.gguf token_embd.weight table.npy --dtype float16
    """
    with file_errors(file), open(file, allow_truncated=True) as opened:
        refuse_overwriting(out, file)
        if out.suffix.lower() != ENDING:
            raise OptionError(f"expected OUT to end in {ENDING}, found {str(out)!r}")
        tensor = opened.weights[name_matching(name, opened.weights)]
        if dtype not in (None, *DTYPES):
            raise OptionError(f"expected one of {', '.join(DTYPES)}, found {quote(dtype)}{suggestion(dtype, DTYPES)}")
        with atomic_write(out) as stream:  # fails before any work if OUT cannot be written
            if tensor.missing:
                problem = f"the file is truncated: {tensor.missing:,} of {tensor.nbytes:,} bytes are missing"
                raise TruncatedError(f"{problem}; download the rest", tensor=tensor.name)
            weights = tensor.numpy(dtype=dtype)
            np.save(stream, weights)
        echo(f"{out}: {weights.dtype} {list(weights.shape)}")
