"""Decodes fields into weights by a type's formula: in the compiled library on a CPU, otherwise by
operations of torch on arrays."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import TYPE_CHECKING

from glft_schema.lazy import torch
from glft_schema.scalar import compiled_arrays, torch_arrays
from glft_schema.scalar.as_arrays import decoder
from glft_schema.scalar.checking import check
from glft_schema.tensor_types.engine.chunks import in_chunks
from glft_schema.tensor_types.engine.compiled import compiles
from glft_schema.tensor_types.engine.functions import Fields, Formula
from glft_schema.tensor_types.engine.workers import run_parts
from glft_schema.tensor_types.library.loading import function_of
from glft_schema.tensor_types.scalar_decoders import layout_of

if TYPE_CHECKING:
    from glft_schema.tensor_types.tensor_type import TensorType

WRITTEN = ("float32", "float16", "bfloat16")  # dtypes that the library writes
LEAST, MOST = 1 << 16, 1 << 20  # weights in a part: fewer are not worth a thread
Run = Callable[[int, int], None]  # decodes rows, from the first to the last


def decode(type_: TensorType, fields: Fields, out: torch.Tensor) -> None:
    """Writes the weights of fields [rows, numbers per row] into `out` [rows, columns], contiguous,
    of any float dtype, on the device of the fields."""
    if not out.numel():
        return
    is_fused = compiles(out)
    in_library = type_.is_scalar and not is_fused and all(map(_is_plain, (out, *fields.values())))
    if in_library and (run := _compiled(type_, fields, out)):
        run_parts(*run)
        return
    columns = out.shape[1]
    cell = type_.cell(columns)
    given = type_.columns(type_.cells(fields, columns, cell), words=type_.is_scalar)
    step, formula, out = _by_tensors, type_.formula, out.view(-1, cell)
    if type_.is_scalar and is_fused:
        step, formula = _by_compiler, _as_arrays(type_, cell, out.device, True)
        out = out.view(len(out), *_dims(formula, given, out))
    elif type_.is_scalar:
        step, formula = _by_operations, _as_arrays(type_, cell, out.device, False)
    for _ in in_chunks(step, formula, given, {"weights": out}, len(out), cell, is_fused):
        pass


def is_compiled(type_: TensorType) -> bool:
    """Tells whether the library decodes a type on a CPU."""
    return type_.is_scalar and function_of(type_.scheme, "float32") is not None


def _compiled(type_: TensorType, fields: Fields, out: torch.Tensor) -> tuple[Run, int, int, int] | None:
    """Returns the arguments of `run_parts` that decode by the library; None if it lacks the
    type."""
    dtype = str(out.dtype).removeprefix("torch.")
    is_written = dtype in WRITTEN
    function = function_of(type_.scheme, dtype if is_written else WRITTEN[0])
    if function is None:
        return None
    given, unit = [fields[name] for name, _ in type_.fields()], type_.unit([1, out.shape[1]])
    if type_.block and given[0].is_contiguous():  # any blocks make up a part
        out = out.view(-1, unit)
        given = [given[0].view(len(out), -1)]
    (rows, columns), inference = out.shape, torch.is_inference_mode_enabled()

    def run(first: int, last: int) -> None:
        count, weights = last - first, out[first:last]
        parts = [field[first:last].contiguous() for field in given]
        target = weights if is_written else torch.empty(count, columns)
        sizes = [count * columns // unit] if type_.block else [count, columns]
        function(*(part.data_ptr() for part in parts), target.data_ptr(), *sizes)
        if not is_written:
            with torch.inference_mode(inference):
                weights.copy_(target)

    return run, rows, max(LEAST // columns, 1), max(MOST // columns, 1)


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
def _as_arrays(type_: TensorType, cell: int, device: torch.device, compiled: bool) -> Formula:
    """Returns the formula of a block, or of a row of `cell` weights, as operations on arrays."""
    function = check(type_.formula, layout_of(type_).arrays(columns=None if type_.block else cell))
    run = decoder(function, compiled_arrays if compiled else torch_arrays, device)
    return lambda w, **given: run(w=w, **{name: given[name] for name in function.parameters if name != "w"})


_DIMS: dict[Hashable, tuple[int, ...]] = {}


def _dims(formula: Formula, given: Fields, out: torch.Tensor) -> tuple[int, ...]:
    """Returns the axes of a formula's weights, each of which becomes a loop if it is compiled."""
    key = formula, *(field.shape[1:] for field in given.values())
    if key not in _DIMS:
        row = formula(w=out[:1], **{name: field[:1] for name, field in given.items()})
        _DIMS[key] = tuple(row.shape[1:])
    return _DIMS[key]
