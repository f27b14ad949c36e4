"""Formulas as kernels: what a kernel computes, and how it is called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import get_ident

from glft_schema.lazy import torch
from glft_schema.tensor_types.engine.decoding import decode, dims_of
from glft_schema.tensor_types.engine.memory import keep_freed_memory
from glft_schema.tensor_types.engine.scaled import Fields, Formula
from glft_schema.tensor_types.kernels.in_use import Function, Identity, Kernel, find
from glft_schema.tensor_types.kernels.workers import part_size, run_parts

Reader = Callable[[int, int], "torch.Tensor"]  # from the first and the last cell to their weights
CONVERTED = ("float16", "bfloat16")  # dtypes that kernels convert float32 weights to

# Numbers in a part of a kernel's work. Fewer are not worth a thread. Those of a part that is then
# converted stay in the cache.
LEAST, MOST, MOST_CONVERTED = 1 << 16, 1 << 20, 1 << 19


def decoder(type_: str, formula: Formula, cell: int) -> Identity:
    """Returns what identifies the kernel that writes a formula's weights as float32, `cell` per
    row."""
    return Identity(type_, (decode, formula), f"{cell} weights per row")


def converter(dtype: str) -> Identity:
    """Returns what identifies the kernel that converts float32 to another dtype."""
    return Identity(dtype, (convert,))


def convert(arguments: Sequence[torch.Tensor]) -> None:
    """Converts the numbers of the first argument into the second."""
    numbers, out = arguments
    out.copy_(numbers)


def decoding(formula: Formula, fields: Fields, out: torch.Tensor) -> tuple[Function, torch.Tensor]:
    """Returns the function to compile for `fields` and float32 `out` [rows, cell], and `out` as its
    last argument: in the dims of the formula, each of which becomes a loop, or as pairs."""
    dims, is_paired = dims_of(formula, fields)
    names = list(fields)

    def function(arguments: Sequence[torch.Tensor]) -> None:
        *given, weights = arguments
        decode(formula, dict(zip(names, given, strict=True)), {"weights": weights})

    return function, out.view(torch.int64).view(len(out), *dims[:-1]) if is_paired else out.view(len(out), *dims)


def decode_by_kernel(kernel: Kernel, fields: Fields, out: torch.Tensor) -> bool:
    """Writes weights into `out` [rows, cell] by a kernel; returns False if it takes other tensors.

    The kernel writes float32. Another kernel converts parts of it to other dtypes.
    """
    (rows, cell), given = out.shape, fields.values()
    keep_freed_memory()
    if out.dtype == torch.float32:
        if run := kernel.bound([*given, out]):
            run_parts(run, rows, *_part_sizes(cell, MOST))
        return run is not None
    name = str(out.dtype).removeprefix("torch.")
    to_dtype = find(converter(name)) if name in CONVERTED and rows > 1 else None
    if to_dtype is None:
        return False
    sizes = _part_sizes(cell, MOST_CONVERTED)
    most = part_size(rows, *sizes)

    def of_thread() -> Callable[[int, int], None] | None:
        weights = torch.empty(most, cell)
        decode_some = kernel.bound([*given, weights], {len(given)})
        convert_some = to_dtype.bound([weights.view(-1), out.view(-1)], {0})
        if decode_some is None or convert_some is None:
            return None

        def run(first: int, last: int) -> None:
            decode_some(first, last)
            convert_some(first * cell, last * cell)

        return run

    runs = {get_ident(): of_thread()}
    if runs[get_ident()] is None:
        return False

    def run_in_thread(first: int, last: int) -> None:
        thread = get_ident()
        if thread not in runs:
            runs[thread] = of_thread()
        if run := runs[thread]:
            run(first, last)

    run_parts(run_in_thread, rows, *sizes)
    return True


def reader(kernel: Kernel, given: Sequence[torch.Tensor], memory: torch.Tensor) -> Reader | None:
    """Returns a function that decodes the cells from one index to another into memory, for one
    thread.

    It returns weights [cells, cell], which the next call overwrites. Returns None if the kernel
    takes other tensors.

    Args:
        kernel: that decodes.
        given: the arguments of the formula for all cells.
        memory: float32 [cells, cell], two or more, for as many as a call decodes; at least two.
    """
    decode_some = kernel.bound([*given, memory], {len(given)})
    if decode_some is None:
        return None

    def read(first: int, last: int) -> torch.Tensor:
        decode_some(first, last)
        return memory[: last - first]

    return read


def _part_sizes(cell: int, most: int) -> tuple[int, int]:
    """Returns the rows of the smallest and of the largest part; kernels take two rows or more."""
    return max(LEAST // cell, 2), max(most // cell, 2)
