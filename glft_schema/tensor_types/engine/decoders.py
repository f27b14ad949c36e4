"""Formulas as kernels: what a kernel computes, and how it is called."""

from __future__ import annotations

from collections.abc import Sequence

from glft_schema.lazy import torch
from glft_schema.tensor_types.engine.decoding import decode, dims_of
from glft_schema.tensor_types.engine.memory import keep_freed_memory
from glft_schema.tensor_types.engine.scaled import Fields, Formula
from glft_schema.tensor_types.kernels.in_use import Function, Identity, Kernel, find
from glft_schema.tensor_types.kernels.workers import run_parts

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
    dtype = str(out.dtype).removeprefix("torch.")
    to_dtype = find(converter(dtype)) if dtype in CONVERTED and rows > 1 else None
    some = torch.empty(2, cell)
    if not to_dtype or not to_dtype.bound([some.view(-1), out[:2].view(-1)]):
        return False
    if not kernel.bound([*(field[:2] for field in given), some]):
        return False

    def run_and_convert(first: int, last: int) -> None:
        count = last - first
        part = torch.empty(count, cell)
        decode_part = kernel.bound([*(field[first:last] for field in given), part])
        convert_part = to_dtype.bound([part.view(-1), out[first:last].view(-1)])
        assert decode_part
        assert convert_part
        decode_part(0, count)
        convert_part(0, count * cell)

    run_parts(run_and_convert, rows, *_part_sizes(cell, MOST_CONVERTED))
    return True


def _part_sizes(cell: int, most: int) -> tuple[int, int]:
    """Returns the rows of the smallest and of the largest part; kernels take two rows or more."""
    return max(LEAST // cell, 2), max(most // cell, 2)
