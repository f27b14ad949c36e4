"""Torch operators on packed weights, u8 [rows, bytes of a row]; see `TensorType.packed`.

Each operator serves all types, given by name. `linear` and its gradient decode some rows at a time
into a buffer that is reused; for few rows of x, a kernel multiplies by the packed weights. Autograd
saves only the packed weights. `torch.compile` sees one opaque call.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import torch
from torch import nn
from torch._C import DispatchKey, DispatchKeySet, _dispatch_keys
from torch._C import _dispatch_tls_local_exclude_set as _excluded
from torch._C import _dispatch_tls_local_include_set as _included
from torch.autograd import forward_ad

from glft_schema.formats.registry import registered_type
from glft_schema.storage.torch_tensors import array_in, array_to_read, has_plain_memory
from glft_schema.tensor_types import on_torch, on_triton
from glft_schema.tensor_types.chunks import slices
from glft_schema.tensor_types.library.loading import function_named, function_of
from glft_schema.tensor_types.scalar_layout import MOST_ROWS
from glft_schema.tensor_types.workers import parts_of, run_parts

FEW = 4  # rows of a half-precision input up to which float32 is faster than converting weights
HALF = (torch.float16, torch.bfloat16)
FLOATS = (*HALF, torch.float32, torch.float64)
LEAST = 1 << 20  # weights that are worth another thread: fewer are multiplied before it has begun
PRODUCTS = FLOATS[:3]  # dtypes of x that the library multiplies
CHUNK = 1 << 22  # weights decoded at a time on a CPU: 16 MiB as float32; fewer have more overhead in Python
ON_GPU = 1 << 26  # weights decoded at a time on a GPU
DEVICES = ("cpu", "cuda", "xpu")  # whose autocast is followed
LIBRARY: Any = torch.library.Library("glft_schema", "DEF")  # type: ignore[no-untyped-call]
LIBRARY.define("linear(Tensor x, Tensor packed, str type, int rows, int columns) -> Tensor")
LIBRARY.define("linear_backward(Tensor grad, Tensor packed, str type, int rows, int columns) -> Tensor")
LIBRARY.define("dequantize(Tensor packed, str type, int columns, ScalarType dtype) -> Tensor")

_KEPT = threading.local()
PLAIN = 0  # dispatch keys of tensors on a CPU, for which the dispatcher only calls the function itself
for key in ("CPU", "AutogradCPU", "ADInplaceOrView", "BackendSelect"):
    PLAIN |= DispatchKeySet(getattr(DispatchKey, key)).raw_repr()


def packed_linear(x: torch.Tensor, packed: torch.Tensor, type: str, rows: int, columns: int) -> torch.Tensor:
    """Returns ``x @ weights.T`` [..., rows] in the dtype of x [..., columns].

    Args:
        x: floats.
        packed: u8; each of its rows holds one row of the weights, or several.
        type: the name of their type.
        rows: of the weights.
        columns: of the weights.

    Raises:
        RuntimeError: if x is not a float tensor with this number of columns.
    """
    if not torch.compiler.is_compiling() and _is_plain(x, packed):
        return _linear(x, packed, type, rows, columns)
    operator, others = torch.ops.glft_schema.linear, (packed, type, rows, columns)
    dual: Any = forward_ad
    primal, tangent = dual.unpack_dual(x) if dual._current_level >= 0 else (x, None)
    result: torch.Tensor = operator(primal, *others)
    if tangent is not None:  # torch calls an operator of a library without it
        result = dual.make_dual(result, operator(tangent, *others))
    return result


def packed_weights(packed: torch.Tensor, type: str, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """Returns the weights [rows, columns] in a float dtype."""
    result: torch.Tensor = torch.ops.glft_schema.dequantize(packed, type, columns, dtype)
    return result


def _linear(x: torch.Tensor, packed: torch.Tensor, type: str, rows: int, columns: int) -> torch.Tensor:
    _check_input(x, columns)
    multiplied = _multiply(x, packed, type, rows, columns)
    if multiplied is not None:
        return multiplied
    flat = x.reshape(math.prod(x.shape[:-1]), columns)
    given, stored = flat.detach(), packed.detach()
    if on_torch.by_triton(given, stored):
        decoded = partial(_by_parts, packed=stored, type=type, rows=rows, columns=columns)
        return on_triton.multiply(registered_type(type), given, stored.contiguous(), rows, decoded).view(*x.shape[:-1], rows)
    if len(flat) <= FEW and x.dtype in HALF:
        flat = flat.float()
    return _by_parts(flat, packed, type, rows, columns).to(x.dtype).view(*x.shape[:-1], rows)


def _by_parts(flat: torch.Tensor, packed: torch.Tensor, type: str, rows: int, columns: int) -> torch.Tensor:
    """Returns the product of x [count, columns], with some of the weights decoded at a time."""
    out = flat.new_empty(len(flat), rows)

    def multiply(part: slice, weights: torch.Tensor) -> None:
        if len(flat) == 1:
            torch.mv(weights, flat[0], out=out[0, part])
        else:
            torch.mm(flat, weights.t(), out=out[:, part])

    _for_each_part(multiply, packed, type, rows, columns, flat.dtype)
    return out


def _is_plain(x: torch.Tensor, packed: torch.Tensor) -> bool:
    """Tells whether nothing but `_linear` happens in a call of its operator: no gradient, no mode,
    no transform, and tensors of torch's own classes on the CPU."""
    if type(x) is not torch.Tensor or type(packed) not in (torch.Tensor, nn.Parameter):
        return False
    keys = _dispatch_keys(x).raw_repr() | _dispatch_keys(packed).raw_repr() | _included().raw_repr()
    needs_gradient = x.requires_grad and torch.is_grad_enabled()
    in_mode = torch._C._is_torch_function_mode_enabled() or forward_ad._current_level >= 0
    return not (needs_gradient or in_mode or keys & ~_excluded().raw_repr() & ~PLAIN)


def _multiply(x: torch.Tensor, packed: torch.Tensor, type: str, rows: int, columns: int) -> torch.Tensor | None:
    """Returns `linear` of a few rows of x by the compiled library, None if it does not serve them.

    The library decodes some hundred weights at a time, and multiplies them at once.
    """
    batch = x.numel() // max(columns, 1)
    if not (0 < batch <= MOST_ROWS and x.dtype in PRODUCTS and x.is_cpu and packed.is_cpu and packed.is_contiguous()):
        return None
    first, product = packed.data_ptr(), function_named(f"multiply_{type.lower()}")
    *starts, pitch = _places(type, columns)
    if not product or not first or packed.numel() != rows * pitch or (len(starts) > 1 and packed.shape[0] != rows):
        return None  # no memory, or rows of several fields that share a packed row
    given = (x if x.dtype is torch.float32 else x.float()).contiguous()
    out = given.new_empty((*x.shape[:-1], rows))
    result, source = out.data_ptr(), given.data_ptr()

    def run(part: slice) -> None:
        at = first + part.start * pitch
        fields = [at + start for start in starts]
        product(*fields, source, result + 4 * part.start, part.stop - part.start, columns, batch, pitch, rows)

    least = max(5 * LEAST // (columns * (4 + batch)), 1)  # decoding takes as long as four rows of x
    if rows < 2 * least:
        run(slice(0, rows))
    else:
        run_parts(run, parts_of(rows, least, rows))
    return out if x.dtype is torch.float32 else out.to(x.dtype)


@lru_cache(maxsize=1 << 12)
def _places(type: str, columns: int) -> tuple[int, ...]:
    """Returns the first byte of each field in a packed row, and the size of the row."""
    spans = [span for _, span, _ in registered_type(type).spans_of_row(columns)]
    return *(span.start for span in spans), spans[-1].stop


def _for_each_part(
    function: Callable[[slice, torch.Tensor], object],
    packed: torch.Tensor,
    type: str,
    rows: int,
    columns: int,
    dtype: torch.dtype,
    *,
    in_threads: bool = True,
) -> None:
    """Calls a function with parts of the decoded weights, whose buffers are then reused. Calls may
    run in parallel if `in_threads`, otherwise they run in order."""
    together = rows // max(len(packed), 1)  # weight rows per row of bytes
    numbers, threads = together * columns, torch.get_num_threads()
    in_library = packed.device.type == "cpu" and function_of(type.lower(), "float32") is not None
    is_parallel = in_threads and in_library and threads > 1 and rows * columns >= LEAST
    most = CHUNK if packed.device.type == "cpu" else ON_GPU
    size = max(min(most // max(numbers, 1), -(-len(packed) // (2 * threads)) if is_parallel else len(packed)), 1)
    type_, stored = registered_type(type), packed.detach()
    mode = torch.inference_mode if torch.is_inference_mode_enabled() else torch.no_grad  # also in other threads
    array = array_to_read(stored) if has_plain_memory(stored) and dtype in FLOATS else None

    def run(part: slice) -> None:
        with mode():
            weights = _memory((part.stop - part.start) * numbers, dtype, packed.device).view(-1, numbers)
            if array is None:
                _decode(packed[part], type, weights)
            else:
                type_.decode(type_.unpack(array[part], numbers), numbers, out=array_in(weights))
            function(slice(part.start * together, part.stop * together), weights.view(-1, columns))

    parts = slices(len(packed), size)
    if is_parallel:
        run_parts(run, parts, here=False)
    else:
        for part in parts:
            run(part)


def _linear_backward(grad: torch.Tensor, packed: torch.Tensor, type: str, rows: int, columns: int) -> torch.Tensor:
    """Returns ``grad @ weights`` [..., columns], the gradient of `linear`'s input."""
    flat = grad.reshape(math.prod(grad.shape[:-1]), rows)
    out = grad.new_zeros(len(flat), columns)

    def add(part: slice, weights: torch.Tensor) -> None:
        out.addmm_(flat[:, part], weights)

    _for_each_part(add, packed, type, rows, columns, grad.dtype, in_threads=False)  # sums depend on the order
    return out.view(*grad.shape[:-1], columns)


def _dequantize(packed: torch.Tensor, type: str, columns: int, dtype: torch.dtype) -> torch.Tensor:
    return _decode(packed.detach(), type, packed.new_empty((len(packed), columns), dtype=dtype))


def _decode(packed: torch.Tensor, type: str, out: torch.Tensor) -> torch.Tensor:
    type_, columns = registered_type(type), out.shape[1]
    return on_torch.decode_packed(type_, packed, columns, out)


def _memory(numbers: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Returns a buffer for some numbers. On the CPU each thread reuses its own; on a GPU the
    allocator does so."""
    if device.type != "cpu":
        return torch.empty(numbers, dtype=dtype, device=device)
    kept: dict[torch.dtype, torch.Tensor] = _KEPT.__dict__.setdefault("by_dtype", {})
    if dtype not in kept or kept[dtype].numel() < numbers:
        with torch.inference_mode(False):  # or later passes that train could not write into it
            kept[dtype] = torch.empty(numbers, dtype=dtype, device="cpu")
    return kept[dtype][:numbers]


def _check_input(x: torch.Tensor, columns: int) -> None:
    if x.dim() == 0 or x.shape[-1] != columns or not x.is_floating_point():
        raise RuntimeError(f"expected floats in {columns} columns, found {x.dtype} {list(x.shape)}")


def _of_linear(x: torch.Tensor, packed: torch.Tensor, type: str, rows: int, columns: int) -> torch.Tensor:
    _check_input(x, columns)
    return x.new_empty((*x.shape[:-1], rows))


def _of_linear_backward(grad: torch.Tensor, packed: torch.Tensor, type: str, rows: int, columns: int) -> torch.Tensor:
    return grad.new_empty((*grad.shape[:-1], columns))


def _of_dequantize(packed: torch.Tensor, type: str, columns: int, dtype: torch.dtype) -> torch.Tensor:
    return packed.new_empty((packed.shape[0], columns), dtype=dtype)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    _, packed, *ctx.others = inputs
    ctx.save_for_backward(packed)


def _gradient_by(operator: str) -> Any:
    """Returns the gradient that calls `operator`; `linear` and its backward are each other's."""

    def gradient(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (packed,) = ctx.saved_tensors
        return getattr(torch.ops.glft_schema, operator)(grad, packed, *ctx.others), None, None, None, None

    return gradient


def _under_autocast(device: str) -> Any:
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, f"Autocast{device.upper()}"))

    def run(x: torch.Tensor, *others: Any) -> Any:
        dtype = x.dtype if x.dtype == torch.float64 or not x.is_floating_point() else torch.get_autocast_dtype(device)
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return torch.ops.glft_schema.linear(x.to(dtype), *others)

    return run


for name, function, of_fakes in (
    ("linear", _linear, _of_linear),
    ("linear_backward", _linear_backward, _of_linear_backward),
    ("dequantize", _dequantize, _of_dequantize),
):
    LIBRARY.impl(name, function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"glft_schema::{name}", of_fakes, lib=LIBRARY)
for name, other in (("linear", "linear_backward"), ("linear_backward", "linear")):
    torch.library.register_autograd(f"glft_schema::{name}", _gradient_by(other), setup_context=_keep, lib=LIBRARY)
for key in DEVICES:
    LIBRARY.impl("linear", _under_autocast(key), f"Autocast{key.upper()}")
