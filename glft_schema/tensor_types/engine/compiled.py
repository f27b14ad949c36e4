"""Formulas made one pass by torch.compile: on a GPU always, on a processor where `compile_formulas` asks for it.

Uncompiled, each operation of a formula is a pass of its own: over a GPU's memory, or over a processor's cache.

A function compiled for one shape is several times faster than one for any shape. So a matrix is taken in chunks of few fixed
sizes, of which the last goes back over rows that are done already; what is smaller than all of them is not compiled.

Compiling takes seconds, once a process for each formula, dtype and shape of a chunk, of which a type of blocks has two: the
logger ``glft_schema`` says how long. torch starts processes for it and keeps what it made in a folder of its own, as its
documentation says. Where it is not possible, as without Triton, a `RuntimeWarning` says so once, and formulas are run operation
by operation; ``TORCH_COMPILE_DISABLE=1`` asks for that.

What is decoded is bit for bit what a processor decodes: products of codes and scales are exact, so that a GPU's fused addition
rounds as two steps do. Codes made on a GPU may differ by one where a quotient lies half way, as it divides less exactly.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import warnings
from collections.abc import Callable, Hashable, Iterator
from types import FunctionType
from typing import Any

from glft_schema.lazy import torch
from glft_schema.tensor_types.engine.scaled import Fields

Step = Callable[[Any, Fields, Fields], None]  # formula, what it takes, where its results go

SIZES = (1 << 26, 1 << 22)  # numbers in a chunk: a large one pays for the call, a small one for tensors that are no larger
ALIGNED = 16  # rows of which a chunk has a multiple, so that it begins where vectors of any of its fields may begin
BACKEND = "inductor"
LOG = logging.getLogger("glft_schema")

_COMPILED: dict[Hashable, Step] = {}
_FAILED: dict[str, Exception] = {}  # why nothing is compiled in this process, by type of device
_ON_PROCESSORS: list[bool] = [False]
_LOCK = threading.RLock()  # torch compiles in one thread at a time


def compile_formulas(enabled: bool = True) -> None:
    """Has formulas compiled for the processor too, from now on in this process, or no longer.

    Compiled, weights come several times faster, and are bit for bit the same, as long as formulas compute in float32. It takes
    a C++ compiler, seconds for torch's code generator at its first use, and one or two more for each type and dtype, of which
    torch keeps the result for the next process. Tensors below 2^22 weights are dequantized as before. On a GPU formulas are
    compiled anyhow.
    """
    _ON_PROCESSORS[0] = enabled


def compiles_decoding(out: torch.Tensor) -> bool:
    """Tells whether what makes such weights is compiled."""
    if out.device.type != "cpu":
        return out.is_cuda
    return _ON_PROCESSORS[0] and "cpu" not in _FAILED and os.environ.get("TORCH_COMPILE_DISABLE") != "1"


def compiles_encoding(out: torch.Tensor) -> bool:
    """Tells whether what makes such a field of weights is compiled. For processors the code generator makes it slower."""
    return out.is_cuda


def fixed_chunks(rows: int, columns: int) -> Iterator[tuple[slice, bool]]:
    """Yields slices that cover all rows, and whether each is of a fixed size; a last one may begin in the one before."""
    wanted = (size // columns for size in SIZES)
    steps = [step for size in wanted if 0 < (step := size - size % ALIGNED if size > ALIGNED else size) <= rows]
    if not steps:
        yield slice(0, rows), False
        return
    done = 0
    while done < rows:
        step = next((step for step in steps if step <= rows - done), steps[-1])
        first = min(done, rows - step)
        yield slice(first, first + step), True
        done = first + step


def run_compiled(step: Step, formula: Any, taken: Fields, made: Fields) -> None:
    """Runs ``step(formula, taken, made)``, compiled for exactly such tensors."""
    tensors = [*taken.values(), *made.values()]
    key = step, formula, *(_kind(tensor) for tensor in tensors)
    with torch.no_grad():
        if key not in _COMPILED:
            with _LOCK:
                if key not in _COMPILED:
                    first = [{name: tensor[:1] for name, tensor in given.items()} for given in (taken, made)]
                    step(formula, *first)  # what is made once, as grids are, cannot be made while compiling
                    failed = tensors[0].device.type in _FAILED
                    _COMPILED[key] = step if failed else _compile(step, formula, taken, made)
        _COMPILED[key](formula, taken, made)


def _kind(tensor: torch.Tensor) -> Hashable:
    """Returns what a compiled function is made for; on a GPU of the address, too, whether vectors may be loaded from it."""
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device, not tensor.is_cuda or tensor.data_ptr() % 16 == 0


def _compile(step: Step, formula: Any, taken: Fields, made: Fields) -> Step:
    """Returns the step compiled, after a first run; or as it is where that is not possible."""
    start = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the code generator's, of what it imports and of halves beside bfloat16
            compiled: Step = torch.compile(_own(step), dynamic=False, backend=BACKEND)
            compiled(formula, taken, made)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # of torch, of the code generator, of the compilers that it starts
        _FAILED[next(iter(made.values())).device.type] = error
        reason = " ".join(str(error).split("\n")[:2])  # torch's own words, and what the code generator said
        warnings.warn(f"formulas are not compiled, and slower for it: {reason}", RuntimeWarning, stacklevel=3)
        return step
    shapes = {name: list(tensor.shape) for name, tensor in {**taken, **made}.items()}
    LOG.info("compiled a formula for %s in %.1f s", shapes, time.perf_counter() - start)
    return compiled


def _own(step: Step) -> Step:
    """Returns a copy of a function with code of its own: torch keeps what it compiled, and a limit of how often, by code."""
    assert isinstance(step, FunctionType)
    return FunctionType(step.__code__.replace(), step.__globals__, step.__name__)
