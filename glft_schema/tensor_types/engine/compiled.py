"""Compiles formulas with torch.compile on a GPU. On a CPU, the compiled `library` has them.

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
from types import FunctionType
from typing import Any

from glft_schema.lazy import torch

Fields = Mapping[str, "torch.Tensor"]
Write = Callable[[Any, Fields, "torch.Tensor"], None]  # of a formula, its arguments and the weights

SIZES = (1 << 26, 1 << 22)  # numbers in a chunk: large ones amortize the call, small ones serve small tensors
ALIGNED = 16  # a chunk is a multiple of 16 rows, so that vector loads of all its fields are aligned
BACKEND = "inductor"

_COMPILED: dict[Hashable, Write] = {}
_FAILED: dict[str, Exception] = {}  # the error that ended compilation in this process, by device type
_LOCK = threading.RLock()  # torch compiles in one thread at a time


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


def write(formula: Any, given: Fields, weights: torch.Tensor) -> None:
    """Writes the weights of a formula, which are one expression."""
    weights.copy_(formula(w=weights, **given))


def run_compiled(formula: Any, given: Fields, weights: torch.Tensor) -> None:
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


def _compile(formula: Any, given: Fields, weights: torch.Tensor) -> Write:
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
