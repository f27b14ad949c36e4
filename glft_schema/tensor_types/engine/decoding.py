"""Decodes fields into weights by the compiled library."""

from __future__ import annotations

from collections.abc import Sequence

from glft_schema.lazy import torch
from glft_schema.scalar.layout import Layout
from glft_schema.storage.tensor_bytes import has_plain_memory
from glft_schema.tensor_types.engine.workers import in_one_thread, run_parts
from glft_schema.tensor_types.library.loading import DTYPES, function_of

WRITTEN = tuple(DTYPES)  # dtypes that the library writes
LEAST, MOST = 1 << 19, 1 << 20  # weights in a part: fewer are done before another thread has begun
LONGEST = (1 << 31) - 1  # the longest row that a decoder of rows takes


def by_library(layout: Layout, fields: Sequence[torch.Tensor], out: torch.Tensor) -> bool:
    """Writes the weights of fields [rows, numbers per row] into `out` [rows, columns], contiguous,
    by the compiled library. The caller has checked the shapes.

    Returns False if the library lacks the type, or cannot use this memory.
    """
    if not all(map(has_plain_memory, (out, *fields))) or out.data_ptr() % out.itemsize:
        return False
    if layout.weights is None and out.shape[1] > LONGEST:
        return False
    dtype = str(out.dtype).removeprefix("torch.")
    is_written = dtype in WRITTEN
    function = function_of(layout.name, dtype if is_written else WRITTEN[0])
    if function is None:
        return False
    if not out.is_inference():
        torch.autograd.graph.increment_version(out)
    if layout.weights and fields[0].is_contiguous():  # any blocks make up a part
        out = out.view(-1, layout.weights)
        fields = [fields[0].view(len(out), -1)]
    (rows, columns), inference = out.shape, torch.is_inference_mode_enabled()

    def run(first: int, last: int) -> None:
        count, weights = last - first, out[first:last]
        parts = [field[first:last].contiguous() for field in fields]
        target = weights if is_written else torch.empty(count, columns, dtype=torch.float32, device="cpu")
        sizes = [count * columns // layout.weights] if layout.weights else [count, columns]
        function(*(part.data_ptr() for part in parts), target.data_ptr(), *sizes)
        if not is_written:
            with torch.inference_mode(inference):
                weights.copy_(target)

    def run_all() -> None:
        run_parts(run, rows, max(LEAST // columns, 1), max(MOST // columns, 1))

    if is_written and all(field.is_contiguous() for field in fields):
        run_all()
    else:  # torch copies
        in_one_thread(run_all)
    return True
