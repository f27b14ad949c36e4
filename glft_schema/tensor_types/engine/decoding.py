"""Decodes fields into weights by the compiled library."""

from __future__ import annotations

from collections.abc import Sequence

from glft_schema.lazy import torch
from glft_schema.scalar.layout import Layout
from glft_schema.tensor_types.engine.workers import run_parts
from glft_schema.tensor_types.library.loading import function_of

WRITTEN = ("float32", "float16", "bfloat16")  # dtypes that the library writes
LEAST, MOST = 1 << 19, 1 << 20  # weights in a part: fewer are done before another thread has begun


def by_library(layout: Layout, fields: Sequence[torch.Tensor], out: torch.Tensor) -> bool:
    """Writes the weights of fields [rows, numbers per row] into `out` [rows, columns], contiguous,
    by the compiled library.

    Returns False if the library lacks the type, or cannot use this memory.
    """
    if not all(map(_is_plain, (out, *fields))) or out.data_ptr() % out.itemsize:
        return False
    dtype = str(out.dtype).removeprefix("torch.")
    is_written = dtype in WRITTEN
    function = function_of(layout.name, dtype if is_written else WRITTEN[0])
    if function is None:
        return False
    if layout.weights and fields[0].is_contiguous():  # any blocks make up a part
        out = out.view(-1, layout.weights)
        fields = [fields[0].view(len(out), -1)]
    (rows, columns), inference = out.shape, torch.is_inference_mode_enabled()

    def run(first: int, last: int) -> None:
        count, weights = last - first, out[first:last]
        parts = [field[first:last].contiguous() for field in fields]
        target = weights if is_written else torch.empty(count, columns)
        sizes = [count * columns // layout.weights] if layout.weights else [count, columns]
        function(*(part.data_ptr() for part in parts), target.data_ptr(), *sizes)
        if not is_written:
            with torch.inference_mode(inference):
                weights.copy_(target)

    run_parts(run, rows, max(LEAST // columns, 1), max(MOST // columns, 1))
    return True


def _is_plain(tensor: torch.Tensor) -> bool:
    """Tells whether the library can use the memory of a tensor."""
    return (
        type(tensor) is torch.Tensor
        and tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and not (tensor.requires_grad or tensor.is_neg())
    )
