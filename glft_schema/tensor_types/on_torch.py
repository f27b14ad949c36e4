"""Decodes torch tensors. On the CPU, they are decoded without a copy by the functions for arrays;
on a GPU, and while torch traces, by torch operations, which torch.compile compiles.

Uncompiled, each operation of a formula is a pass over a GPU's memory. Compiled, the formula is one
pass.

A function compiled for one shape is several times faster than one for any shape. So a matrix is
processed in chunks of a few fixed sizes; the last chunk may overlap the previous one. Formulas are
not compiled for smaller matrices.

Compiling takes seconds, once per process for each formula, dtype and shape of a chunk; block types
have two shapes. The logger ``glft_schema`` reports the time. torch compiles in processes that it
starts, and caches the result in a folder; see torch's documentation. If compilation fails, for
example without Triton, a `RuntimeWarning` is issued once and formulas run uncompiled;
``TORCH_COMPILE_DISABLE=1`` turns compiling off.

Decoded weights are bit for bit the same on a GPU and a CPU: products of codes and scales are exact,
so that a fused multiply-add rounds like two operations.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import lru_cache
from types import FunctionType
from typing import Any

from glft_schema.codec.numbers import Number
from glft_schema.lazy import torch
from glft_schema.scalar.as_torch import decoder
from glft_schema.scalar.checking import check
from glft_schema.scalar.language import ScalarError
from glft_schema.storage.torch_tensors import array_in, array_to_read, as_tensor, dtype_in_torch, has_plain_memory
from glft_schema.tensor_types.chunks import row_chunks
from glft_schema.tensor_types.library.loading import DTYPES
from glft_schema.tensor_types.payload_layout import Fields
from glft_schema.tensor_types.scalar_layout import Formula, ScalarLayout
from glft_schema.tensor_types.tensor_type import TensorType

Tensors = Mapping[str, "torch.Tensor"]
Write = Callable[[Any, Tensors, "torch.Tensor"], None]  # of a formula, its arguments and the weights

SIZES = (1 << 26, 1 << 22)  # numbers in a chunk: large ones amortize the call, small ones serve small tensors
ALIGNED = 16  # a chunk is a multiple of 16 rows, so that vector loads of all its fields are aligned
BACKEND = "inductor"

_COMPILED: dict[Hashable, Write] = {}
_FAILED: dict[str, Exception] = {}  # the error that ended compilation in this process, by device type
_LOCK = threading.RLock()  # torch compiles in one thread at a time


def decode(
    type_: TensorType,
    fields: Tensors,
    columns: int,
    *,
    dtype: torch.dtype | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Returns the numbers [rows, columns] of fields [rows, numbers per row], on their device; see
    `TensorType.decode`.

    Args:
        type_: of the fields.
        fields: by name.
        columns: numbers per row.
        dtype: a float dtype; by default the dtype of `out` or the type's own. Numbers that keep
            their dtype are not copied.
        out: the destination, contiguous, of this shape, dtype and device; new memory by default.

    Raises:
        FormatError: if rows of the type cannot have `columns` numbers.
        ValueError: if a field or `out` of a quantized type has another shape or dtype.
    """
    dtype = dtype or (dtype_in_torch(type_.dtype) if out is None else out.dtype)
    if type_.exact:
        numbers = next(iter(fields.values()))
        return numbers.to(dtype) if out is None else out.copy_(numbers)
    if out is None:
        first = next(iter(fields.values()))
        out = torch.empty((first.shape[0], columns), dtype=dtype, device=first.device)
    if not out.numel():
        return out
    if compiles(out) or not all(map(has_plain_memory, (out, *fields.values()))):
        _by_operations(type_, fields, columns, out)
    else:
        decode_arrays(type_, {name: array_to_read(field) for name, field in fields.items()}, columns, out)
    return out


def decode_arrays(type_: TensorType, fields: Fields, columns: int, out: torch.Tensor) -> None:
    """Writes the numbers of arrays of numpy into a tensor on the CPU. Raises like `decode`."""
    if type_.exact:
        out.copy_(as_tensor(type_.decode(fields, columns)))
    elif not has_plain_memory(out):
        decode(type_, {name: as_tensor(field) for name, field in fields.items()}, columns, out=out)
    elif str(out.dtype).removeprefix("torch.") not in (*DTYPES, "float64"):
        out.copy_(as_tensor(type_.decode(fields, columns)))
    else:
        type_.decode(fields, columns, out=array_in(out))
        if not out.is_inference():
            torch.autograd.graph.increment_version(out)


def unpack(type_: TensorType, packed: torch.Tensor, columns: int) -> dict[str, torch.Tensor]:
    """Returns the fields of packed rows, like `TensorType.unpack`."""
    fields = {}
    for name, span, number in type_.spans_of_row(columns):
        part = packed if span == slice(0, packed.shape[1]) else packed[:, span].contiguous()
        fields[name] = part.view(dtype_in_torch(number.dtype))
    return fields


def _by_operations(type_: TensorType, fields: Tensors, columns: int, out: torch.Tensor) -> None:
    """Decodes by operations of torch, compiled on a GPU."""
    type_.check_shapes({name: field.shape for name, field in fields.items()}, out.shape, columns)
    assert type_.functions
    layout = type_.functions.layout
    cell, given = layout.cell(columns), dict[str, torch.Tensor]()
    for name, part in type_.fields():
        cells = fields[name].reshape(-1, fields[name].shape[1] * cell // columns)
        for own, span, number in part.parts(name):
            given[own] = _numbers(cells, span, number)
    formula, axes = (_formula.__wrapped__ if in_mode() else _formula)(type_.formula, layout, cell, out.device)
    weights = out.view(-1, *axes)
    chunks = fixed_chunks(len(weights), cell) if compiles(out) else ((rows, False) for rows in row_chunks(len(weights), cell))
    for rows, is_compiled in chunks:
        run = run_compiled if is_compiled else write
        run(formula, {name: field[rows] for name, field in given.items()}, weights[rows])


def _numbers(rows: torch.Tensor, span: slice | None, number: Number) -> torch.Tensor:
    """Returns the numbers of a field: a view if possible. Unsigned words, which few torch
    operations support, become signed words."""
    size = number.itemsize
    is_word = number.is_unsigned and size > 1
    dtype = getattr(torch, f"int{8 * size}") if is_word else dtype_in_torch(number.dtype)
    if span is None or size == 1:
        return (rows if span is None else rows[:, span]).view(dtype)
    ends = (span.start, span.stop, *rows.shape[1:], rows.stride(0), rows.storage_offset())
    if torch.compiler.is_compiling() or any(end % size for end in ends):
        return rows[:, span].clone(memory_format=torch.contiguous_format).view(dtype)  # one row may be unaligned
    return rows.view(dtype)[:, span.start // size : span.stop // size]


@lru_cache(maxsize=1 << 8)
def _formula(formula: Formula, layout: ScalarLayout, weights: int, device: torch.device) -> tuple[Formula, tuple[int, ...]]:
    """Returns a scalar formula as torch operations, and the axes of its result. Raises ScalarError
    if it cannot run on arrays."""
    function = check(formula, layout.arrays(columns=weights))
    try:
        run, axes = decoder(function, device)
    except ScalarError as error:
        raise ScalarError(f"{error}; glft.types.compile compiles it as C") from None
    return lambda w, **fields: run(w=w, **{name: fields[name] for name in function.parameters if name != "w"}), axes


# Compiled for a GPU


def compiles(out: torch.Tensor) -> bool:
    """Tells whether formulas that write into `out` are compiled: on a GPU, but not under modes such
    as FakeTensorMode."""
    return out.is_cuda and not in_mode()


def in_mode() -> bool:
    """Tells whether a mode such as FakeTensorMode is active, whose tensors are of no use outside
    it."""
    return bool(torch._C._len_torch_dispatch_stack())


def fixed_chunks(rows: int, columns: int) -> Iterator[tuple[slice, bool]]:
    """Yields slices of all rows, and whether their size is fixed; the last one may overlap."""
    sizes = (size // columns for size in SIZES)
    steps = [step for size in sizes if 0 < (step := size - size % ALIGNED if size > ALIGNED else size) <= rows]
    if not steps:
        yield slice(0, rows), False
        return
    done = 0
    while done < rows:
        step = next((step for step in steps if step <= rows - done), steps[-1])
        first = min(done, rows - step)
        yield slice(first, first + step), True
        done = first + step


def write(formula: Any, given: Tensors, weights: torch.Tensor) -> None:
    """Writes the weights of a formula, which are one expression."""
    weights.copy_(formula(w=weights, **given))


def run_compiled(formula: Any, given: Tensors, weights: torch.Tensor) -> None:
    """Runs `write`, compiled for tensors of exactly this kind."""
    key = formula, *map(_kind, (*given.values(), weights))
    with torch.no_grad():
        if key not in _COMPILED:
            with _LOCK:
                if key not in _COMPILED:
                    _COMPILED[key] = write if weights.device.type in _FAILED else _compile(formula, given, weights)
        _COMPILED[key](formula, given, weights)


def _kind(tensor: torch.Tensor) -> Hashable:
    """Returns the properties that a compiled function depends on, on a GPU also the alignment."""
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device, not tensor.is_cuda or tensor.data_ptr() % 16 == 0


def _compile(formula: Any, given: Tensors, weights: torch.Tensor) -> Write:
    """Returns `write` compiled, after a first run, or uncompiled if compiling fails."""
    start = time.perf_counter()
    own = FunctionType(write.__code__.replace(), write.__globals__)  # torch's key for compilations is the code object
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings of the code generator
            compiled: Write = torch.compile(own, dynamic=False, backend=BACKEND)
            compiled(formula, given, weights)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # from torch, the code generator, or the compilers that it starts
        _FAILED[weights.device.type] = error
        reason = " ".join(str(error).split("\n")[:2])  # torch's message and the code generator's
        warnings.warn(f"torch.compile failed, so formulas run uncompiled and slower: {reason}", RuntimeWarning, stacklevel=3)
        return write
    shapes = {name: list(tensor.shape) for name, tensor in {**given, "weights": weights}.items()}
    import logging  # slow to import

    logging.getLogger("glft_schema").info("compiled a formula for %s in %.1f s", shapes, time.perf_counter() - start)
    return compiled
