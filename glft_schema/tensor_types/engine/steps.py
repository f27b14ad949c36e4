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
    """A call of a step.

    Attributes:
        step: that was called.
        tensors: its arguments, or copies of them.
        constants: by keyword.
    """

    step: Step
    tensors: tuple[torch.Tensor, ...]
    constants: dict[str, Any]

    @property
    def size(self) -> int:
        """The numbers in all tensors."""
        return sum(map(torch.Tensor.numel, self.tensors))


STEPS: dict[str, Step] = {}  # by name
_VARIANTS: dict[Hashable, str] = {}
_LISTENERS: list[Callable[[Call, bool], None]] = []  # called before a step, with whether there is a kernel


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

    def record(call: Call, _: bool) -> None:
        key = f"{call.step.name} {variant_of(call.step.last, call.tensors, call.constants)}"
        if key not in calls or call.size > calls[key].size:
            copies = tuple(tensor.clone(memory_format=torch.contiguous_format) for tensor in call.tensors)
            calls[key] = call._replace(tensors=copies)

    with _heard_by(record):
        yield calls


@contextmanager
def watched() -> Iterator[list[bool]]:
    """Yields a list that gets whether there is a kernel, for each call of a step."""
    found: list[bool] = []
    with _heard_by(lambda _, has_kernel: found.append(has_kernel)):
        yield found


@contextmanager
def _heard_by(listener: Callable[[Call, bool], None]) -> Iterator[None]:
    _LISTENERS.append(listener)
    try:
        yield
    finally:
        _LISTENERS.remove(listener)


def _with_kernels(function: Declared, last: bool) -> Declared:
    name = function.__name__.strip("_")
    if name in STEPS:
        raise ValueError(f"expected a new name for a step, found {name}")
    step = STEPS[name] = Step(name, function, last)

    @wraps(function)
    def run(*tensors: torch.Tensor, **constants: Any) -> Result:
        kernel = None
        if by_words(tensors[0]):
            from glft_schema.tensor_types.kernels.in_use import find  # slow to import

            kernel = find(step.identity(variant_of(last, tensors, constants)))
        for listener in tuple(_LISTENERS):
            listener(Call(step, tensors, constants), kernel is not None)
        made = kernel.run(tensors) if kernel else None
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
