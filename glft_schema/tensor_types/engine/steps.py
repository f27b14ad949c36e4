"""Steps of encoders, which kernels can replace.

A search becomes slower if it is compiled as a whole. One step of it, such as the trial of one scale
for all groups, is a single loop over the groups if it is compiled, and dozens of passes over a
chunk otherwise. So Python runs the loop over the trials, and a kernel each trial.

The tensors of a step are contiguous and passed by position, constants by keyword. A step writes
into some of the tensors, or returns new ones as a tuple.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from glft_schema.lazy import torch
from glft_schema.tensor_types.engine.bits import by_words

if TYPE_CHECKING:
    from glft_schema.tensor_types.kernels.in_use import Identity

Declared = TypeVar("Declared", bound=Callable[..., Any])
Result = tuple["torch.Tensor", ...] | None

# Options of torch's code generator for a `step`. Sums over at most 32 rows are unrolled, in order,
# and no [rows, groups] are stored in between, so that a step becomes a single loop over the groups.
OPTIONS = {"unroll_reductions_threshold": 33, "realize_reads_threshold": 20, "max_fusion_size": 512}


class Step(NamedTuple):
    """A declared step.

    Attributes:
        name: of the function.
        function: without the use of kernels.
        last: whether a kernel takes any length of the last dims, or else of the first dims.
    """

    name: str
    function: Callable[..., Result]
    last: bool

    def identity(self, variant: str) -> Identity:
        """Returns what identifies the kernel for a variant, see `variant_of`."""
        from glft_schema.tensor_types.kernels.in_use import Identity  # slow to import

        return Identity(self.name, (self.function,), variant, tuple(OPTIONS.items()) if self.last else ())


class Call(NamedTuple):
    """A call of a step, as an example for its kernel.

    Attributes:
        step: that was called.
        tensors: copies of the tensors.
        constants: by keyword.
    """

    step: Step
    tensors: tuple[torch.Tensor, ...]
    constants: dict[str, Any]


STEPS: dict[str, Step] = {}  # by name
_VARIANTS: dict[Hashable, str] = {}
_RECORDED: list[dict[str, Call]] = []
_WATCHED: list[list[bool]] = []


def step(function: Declared) -> Declared:
    """Declares a step of columns [..., groups]: a kernel takes any lengths of last dims."""
    return _with_kernels(function, last=True)


def row_step(function: Declared) -> Declared:
    """Declares a step of rows [blocks, ...]: a kernel takes any number of blocks.

    Kernels are compiled without `OPTIONS`.
    """
    return _with_kernels(function, last=False)


@contextmanager
def recorded() -> Iterator[dict[str, Call]]:
    """Yields a dict that gets the largest call of each kernel by name and variant."""
    calls: dict[str, Call] = {}
    _RECORDED.append(calls)
    try:
        yield calls
    finally:
        _RECORDED.remove(calls)


@contextmanager
def watched() -> Iterator[list[bool]]:
    """Yields a list that gets whether a kernel ran, for each call of a step."""
    calls: list[bool] = []
    _WATCHED.append(calls)
    try:
        yield calls
    finally:
        _WATCHED[:] = [other for other in _WATCHED if other is not calls]


def _with_kernels(function: Declared, last: bool) -> Declared:
    name = function.__name__.strip("_")
    step = STEPS[name] = Step(name, function, last)

    @wraps(function)
    def run(*tensors: torch.Tensor, **constants: Any) -> Result:
        if _RECORDED:
            _record(step, tensors, constants)
        made = None
        if by_words(tensors[0]):
            from glft_schema.tensor_types.kernels.in_use import find  # slow to import

            kernel = find(step.identity(variant_of(last, tensors, constants)), is_required=False)
            made = kernel.run(tensors) if kernel else None
        for calls in _WATCHED:
            calls.append(made is not None)
        return cast(Result, function(*tensors, **constants)) if made is None else made or None

    return cast(Declared, run)


def variant_of(last: bool, tensors: tuple[torch.Tensor, ...], constants: dict[str, Any]) -> str:
    """Returns what a kernel is compiled for: constants, dtypes, fixed dims, equal other dims."""
    lengths = [part.shape[-1:] if last else part.shape[:1] for part in tensors]
    fixed = [part.shape[:-1] if last else part.shape[1:] for part in tensors]
    key = last, *constants.items(), *zip((part.dtype for part in tensors), fixed, map(lengths.index, lengths), strict=True)
    if key not in _VARIANTS:
        texts = [f"{name} {value!r}" for name, value in constants.items()]
        for part, sizes, length in zip(tensors, fixed, map(lengths.index, lengths), strict=True):
            free = [f"n{length}"] * (part.dim() > 0)
            dims = [*sizes, *free] if last else [*free, *sizes]
            texts.append(f"{str(part.dtype).removeprefix('torch.')}[{' '.join(map(str, dims))}]")
        _VARIANTS[key] = ", ".join(texts)
    return _VARIANTS[key]


def _record(step: Step, tensors: tuple[torch.Tensor, ...], constants: dict[str, Any]) -> None:
    key, size = f"{step.name} {variant_of(step.last, tensors, constants)}", sum(map(torch.Tensor.numel, tensors))
    for calls in _RECORDED:
        if key not in calls or size > sum(map(torch.Tensor.numel, calls[key].tensors)):
            copies = tuple(tensor.clone(memory_format=torch.contiguous_format) for tensor in tensors)
            calls[key] = Call(step, copies, constants)
