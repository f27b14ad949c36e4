"""Decodes fields into weights by a type's formula: in the compiled library on a CPU, otherwise by
operations of torch on arrays."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache

from glft_schema.lazy import torch
from glft_schema.scalar import compiled_arrays, torch_arrays
from glft_schema.scalar.as_arrays import decoder
from glft_schema.scalar.checking import check
from glft_schema.scalar.language import ScalarError
from glft_schema.scalar.layout import Layout
from glft_schema.tensor_types.engine.chunks import in_chunks
from glft_schema.tensor_types.engine.compiled import compiles
from glft_schema.tensor_types.engine.functions import Fields, Formula
from glft_schema.tensor_types.engine.workers import in_one_thread, run_parts
from glft_schema.tensor_types.library.loading import function_of

WRITTEN = ("float32", "float16", "bfloat16")  # dtypes that the library writes
LEAST, MOST = 1 << 16, 1 << 20  # weights in a part: fewer are not worth a thread


def by_library(layout: Layout, fields: Sequence[torch.Tensor], out: torch.Tensor) -> bool:
    """Writes the weights of fields [rows, numbers per row] into `out` [rows, columns], contiguous,
    by the compiled library.

    Returns False if the library lacks the type, or cannot use this memory.
    """
    if compiles(out) or not all(map(_is_plain, (out, *fields))) or out.data_ptr() % out.itemsize:
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


def by_arrays(formula: Formula, layout: Layout | None, fields: Fields, out: torch.Tensor) -> None:
    """Writes the weights of blocks, groups or rows into `out`, by operations of torch.

    Args:
        formula: a scalar function, or without a layout a function of tensors.
        layout: of the block or row.
        fields: [rows, numbers], see `TensorType.columns`.
        out: [rows, weights], contiguous.
    """
    is_fused, (rows, weights), step = compiles(out), out.shape, _by_tensors
    if layout:
        formula = _as_arrays(formula, layout, weights, out.device, is_fused)
        step = _by_compiler if is_fused else _by_operations
        out = out.view(rows, *_dims(formula, fields, out)) if is_fused else out

    def run() -> None:
        for _ in in_chunks(step, formula, fields, {"weights": out}, rows, weights, is_fused):
            pass

    run() if out.is_cuda else in_one_thread(run)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Tells whether the library can use the memory of a tensor."""
    return (
        type(tensor) is torch.Tensor
        and tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and not (tensor.requires_grad or tensor.is_neg())
    )


def _by_tensors(formula: Formula, given: Fields, out: Fields) -> None:
    """Runs a formula that returns a tensor."""
    weights = formula(**given)
    if weights.numel() != out["weights"].numel():
        expected, found = list(out["weights"].shape), list(weights.shape)
        raise ValueError(f"expected weights {expected} from the formula, found {found}")
    out["weights"].copy_(weights.reshape(out["weights"].shape))


def _by_operations(formula: Formula, given: Fields, out: Fields) -> None:
    """Runs a scalar formula operation by operation, in the memory of float32 weights."""
    weights = out["weights"]
    target = weights if weights.dtype == torch.float32 else torch.empty_like(weights, dtype=torch.float32)
    formula(w=target, **given)
    if target is not weights:
        weights.copy_(target)


def _by_compiler(formula: Formula, given: Fields, out: Fields) -> None:
    """Runs a scalar formula as one expression, for torch.compile."""
    out["weights"].copy_(formula(w=out["weights"], **given).reshape(out["weights"].shape))


@lru_cache(maxsize=1 << 8)
def _as_arrays(formula: Formula, layout: Layout, weights: int, device: torch.device, is_fused: bool) -> Formula:
    """Returns a scalar formula as operations on arrays. Raises ScalarError if it has no such
    form."""
    function = check(formula, layout.arrays(columns=None if layout.weights else weights))
    try:
        run = decoder(function, compiled_arrays if is_fused else torch_arrays, device)
    except ScalarError as error:
        raise ScalarError(f"{error}; glft.types.compile makes it C") from None
    return lambda w, **fields: run(w=w, **{name: fields[name] for name in function.parameters if name != "w"})


_DIMS: dict[Hashable, tuple[int, ...]] = {}


def _dims(formula: Formula, given: Fields, out: torch.Tensor) -> tuple[int, ...]:
    """Returns the axes of a formula's weights, each of which becomes a loop if it is compiled."""
    key = formula, *(field.shape[1:] for field in given.values())
    if key not in _DIMS:
        row = formula(w=out[:1], **{name: field[:1] for name, field in given.items()})
        _DIMS[key] = tuple(row.shape[1:])
    return _DIMS[key]
