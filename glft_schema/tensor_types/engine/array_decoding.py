"""Decodes fields into weights by operations of torch on arrays: on GPUs, without the compiled
library, and by formulas of tensors."""

from __future__ import annotations

from collections.abc import Callable, Hashable
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
from glft_schema.tensor_types.engine.workers import in_one_thread


def by_arrays(formula: Formula, layout: Layout | None, cells: Callable[[], Fields], out: torch.Tensor) -> None:
    """Writes the weights of blocks, groups or rows into `out`, by operations of torch.

    Args:
        formula: a scalar function, or without a layout a function of tensors.
        layout: of the block or row.
        cells: returns the fields [rows, numbers], see `TensorType.columns`.
        out: [rows, weights], contiguous.
    """

    def run() -> None:
        fields, (rows, weights), is_fused = cells(), out.shape, compiles(out)
        used, memory, step = formula, out, _by_tensors
        if layout:
            used = _as_arrays(formula, layout, weights, out.device, is_fused)
            step = _by_compiler if is_fused else _by_operations
            memory = out.view(rows, *_dims(used, fields, out)) if is_fused else out
        in_chunks(step, used, fields, {"weights": memory}, rows, weights, is_fused)

    run() if out.is_cuda else in_one_thread(run)


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
