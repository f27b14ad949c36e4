"""Formulas and products on a GPU, as kernels of Triton; see `scalar.as_triton`.

Each kernel is printed from the type's formula when it is first used. Triton compiles it in less
than a second, once per kind of GPU, and keeps it in a folder; see Triton's documentation. At its
first use in a process, a kernel is compared with the decoder of the CPU, or with decoding and
multiplying. A kernel that differs or fails is not used; a `RuntimeWarning` says so.

`multiply` takes the fastest way at its first use of a shape: sums over rows of x, Triton's product
of matrices, or decoding and `torch.mm`.
"""

from __future__ import annotations

import linecache
import math
import time
import warnings
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, lru_cache, partial
from importlib.util import find_spec
from itertools import chain
from typing import Any, TypeAlias

from glft_schema.errors import one_line
from glft_schema.lazy import torch
from glft_schema.scalar.as_triton import Field, Trace
from glft_schema.scalar.checking import check
from glft_schema.scalar.kinds import KINDS
from glft_schema.storage.torch_tensors import as_tensor
from glft_schema.tensor_types.scalar_layout import Formula, ScalarField, ScalarLayout
from glft_schema.tensor_types.tensor_type import TensorType

DEVICES = ("cuda", "xpu")  # of torch, also for ROCm, that Triton compiles for
WEIGHTS = 1024  # of a program that decodes
STEP = 256  # weights of a row in a step of a product
MOST = 16  # rows of x in a product
CHECKED = 1 << 12  # weights that are compared at first use
ERROR = 2e-2  # of the largest result: weights rounded to bfloat16 in one of two products
# Ways to multiply: sums or a product of matrices, rows of weights in a program, and warps.
SUMS = ((False, 2, 1), (False, 4, 1))
DOTS = ((True, 16, 4), (True, 32, 4))

Parts: TypeAlias = Sequence["torch.Tensor"]  # of packed rows, u8 [rows, bytes], for each field of the payload

_CHOSEN: dict[Hashable, Any] = {}  # whether a decoder is used, and the way to multiply


@cache
def serves(device: str) -> bool:
    """Tells whether Triton compiles for a type of device."""
    return device in DEVICES and find_spec("triton") is not None


def decode(type_: TensorType, parts: Parts, columns: int, out: torch.Tensor) -> bool:
    """Writes the weights of `parts`, u8 [rows, bytes] each, into `out` [rows, columns]. Returns
    False if no kernel can do so.

    Args:
        type_: quantized.
        parts: one for each field of the payload; the bytes of a row are contiguous.
        columns: numbers per row.
        out: contiguous, of a float dtype, on the device of the parts.
    """
    key = type_, out.dtype, out.device, _alignments(parts)
    if key not in _CHOSEN:
        if out.dtype.itemsize == 1 or _is_capturing(out):
            return False
        _CHOSEN[key] = _decodes(type_, parts, columns, out)
    if _CHOSEN[key]:
        _decode(type_, parts, columns, out)
    return bool(_CHOSEN[key])


def multiply(
    type_: TensorType,
    x: torch.Tensor,
    packed: torch.Tensor,
    rows: int,
    decoded: Callable[[], torch.Tensor],
) -> torch.Tensor:
    """Returns ``x @ weights.T`` [count, rows] in the dtype of x.

    Args:
        type_: of the weights.
        x: [count, columns].
        packed: u8 [rows, bytes of a row], or with several rows of weights in each of its rows.
        rows: of the weights.
        decoded: returns the product by decoding and multiplying.
    """
    count, columns = x.shape
    if not 0 < count <= MOST or x.dtype == torch.float64 or not x.numel() or not rows:
        return decoded()
    parts = [packed[:, span] for _, span, _ in type_.spans_of_row(rows // len(packed) * columns)]
    batch = 1 << (count - 1).bit_length()
    key = type_, x.dtype, x.device, _alignments(parts), batch, rows, columns
    if key not in _CHOSEN:
        if _is_capturing(x):
            return decoded()
        _CHOSEN[key] = _fastest(type_, x, parts, rows, batch, decoded)
    if _CHOSEN[key] is None:
        return decoded()
    return _multiply(type_, x.contiguous(), parts, rows, batch, _CHOSEN[key])


# The first use


def _decodes(type_: TensorType, parts: Parts, columns: int, out: torch.Tensor) -> bool:
    """Tells whether the kernel decodes some rows as the CPU does."""
    few = [part[: max(CHECKED // columns, 1)] for part in parts]
    fields = {
        name: part.cpu().contiguous().numpy().view(number.dtype)
        for part, (name, _, number) in zip(few, type_.spans_of_row(columns), strict=True)
    }
    expected = as_tensor(type_.decode(fields, columns)).to(out.dtype)
    return _is_right(
        type_,
        lambda: _decode(type_, few, columns, torch.empty_like(expected, device=out.device)),
        lambda found: torch.equal(found.cpu().nan_to_num(7.0), expected.nan_to_num(7.0)),
    )


def _fastest(
    type_: TensorType, x: torch.Tensor, parts: Parts, rows: int, batch: int, decoded: Callable[[], torch.Tensor]
) -> tuple[bool, int, int] | None:
    """Returns the fastest way to multiply whose results are right; None for decoding."""
    expected = decoded().float()
    finite = expected.isfinite()
    bound = ERROR * expected.where(finite, 0).abs().max()

    def is_close(found: torch.Tensor) -> bool:
        error = (found.float() - expected).where(finite, 0).abs()
        return bool(((error <= bound) & (found.isfinite() == finite)).all())

    times: dict[tuple[bool, int, int] | None, float] = {None: _seconds(decoded, x.device)}
    for way in chain(SUMS if batch <= 4 else (), DOTS if batch > 1 else ()):
        run = partial(_multiply, type_, x.contiguous(), parts, rows, batch, way)
        if _is_right(type_, run, is_close):
            times[way] = _seconds(run, x.device)
    return min(times, key=times.__getitem__)


def _is_right(type_: TensorType, run: Callable[[], torch.Tensor], check: Callable[[torch.Tensor], bool]) -> bool:
    """Tells whether a kernel gives the right results, with a warning if it does not."""
    try:
        if check(run()):
            return True
        problem = f"Triton's kernel of {type_} gives other numbers than the decoder"
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # from Triton, its compiler or its driver
        problem = f"Triton cannot run a kernel of {type_}: {one_line(str(error), 200)}"
    warnings.warn(f"{problem}; a slower way is used", RuntimeWarning, stacklevel=3)
    return False


def _is_capturing(tensor: torch.Tensor) -> bool:
    """Tells whether launches are recorded into a graph, so that no result can be read."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def _seconds(run: Callable[[], object], device: torch.device) -> float:
    """Returns the seconds of a call, the second of several in turn."""
    if device.type == "cpu":
        start = time.perf_counter()
        run()
        return time.perf_counter() - start
    first, last = (torch.Event(device, enable_timing=True) for _ in range(2))
    first.record()
    for _ in range(5):
        run()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) / 5


# Launches


def _decode(type_: TensorType, parts: Parts, columns: int, out: torch.Tensor) -> torch.Tensor:
    layout = type_.scalar_layout
    rows, unit = len(out), layout.unit
    cells, pitches = columns // unit, [part.stride(0) for part in parts]
    if layout.weights and (rows == 1 or pitches == [cells * layout.offsets[-1]]):
        rows, cells = 1, rows * cells  # blocks without a gap
    step = _power(WEIGHTS // unit)
    chunks = -(-cells // step)
    kernel, tables = kernel_of(layout, type_.formula, _alignments(parts), "decode")
    with _on(out.device):
        kernel[(rows * chunks,)](
            *parts, out, cells, chunks, *pitches, *tables(out.device), CELLS=step, num_warps=4, enable_fp_fusion=False
        )
    return out


def _multiply(
    type_: TensorType, x: torch.Tensor, parts: Parts, rows: int, batch: int, way: tuple[bool, int, int]
) -> torch.Tensor:
    """Returns the product of contiguous x [count, columns] in a way of SUMS or DOTS."""
    by_dot, height, warps = way
    count, columns = x.shape
    layout, together = type_.scalar_layout, rows // len(parts[0])
    cells, step = columns // layout.unit, _power(STEP // layout.unit)
    form = ("dot", MOST) if by_dot else ("sum", batch)
    kernel, tables = kernel_of(layout, type_.formula, _alignments(parts), *form, whole=cells % step == 0)
    out = torch.empty((count, rows), dtype=x.dtype, device=x.device)
    with _on(x.device):
        kernel[(-(-rows // height),)](
            *parts,
            x,
            out,
            count,
            rows,
            together,
            cells,
            *(part.stride(0) for part in parts),
            *tables(x.device),
            ROWS=height,
            CELLS=step,
            num_warps=warps,
        )
    return out


def _alignments(parts: Parts) -> tuple[int, ...]:
    """Returns, for each part, the largest of 1, 2 and 4 that divides the addresses of all rows."""
    return tuple(math.gcd(part.data_ptr(), part.stride(0), 4) for part in parts)


def _on(device: torch.device) -> AbstractContextManager[Any]:
    """Returns a context in which kernels are launched on a device."""
    return torch.get_device_module(device).device(device) if device.type in DEVICES else nullcontext()


def _power(number: int) -> int:
    """Returns the largest power of two that is not above a number, at least 1."""
    return 1 << max(number, 1).bit_length() - 1


# Kernels


@lru_cache(maxsize=1 << 8)
def kernel_of(
    layout: ScalarLayout, formula: Formula, alignments: tuple[int, ...], form: str, batch: int = 1, whole: bool = False
) -> tuple[Any, Callable[[torch.device], list[torch.Tensor]]]:
    """Returns a kernel, and a function that returns its tables on a device.

    Args:
        layout: of a block or a row.
        formula: of it.
        alignments: of the addresses of each part.
        form: decode, sum or dot.
        batch: the most rows of x, a power of two.
        whole: whether each step of a product has all of its cells.

    Raises:
        ScalarError: if the formula cannot run on arrays.
    """
    text, arrays = _print_kernel(layout, formula, alignments, form, batch, whole)
    path = f"<{form} {layout.name} {alignments} {batch} {whole} {id(formula)}>"
    linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)  # where Triton finds the source
    scope: dict[str, Any] = {"__name__": "glft_schema.kernels"}
    exec(compile(text, path, "exec"), scope)

    @lru_cache
    def tables(device: torch.device) -> list[torch.Tensor]:
        return [torch.from_numpy(array).to(device) for array in arrays]

    return scope[form], tables


def _print_kernel(
    layout: ScalarLayout, formula: Formula, alignments: Sequence[int], form: str, batch: int, whole: bool
) -> tuple[str, list[Any]]:
    """Returns the text of a kernel, and its tables; see `kernel_of`."""
    leading = 1 if form == "decode" else 2
    unit, cell, fields = layout.unit, "cell[None, :]" if leading == 2 else "cell", dict[str, Field]()
    starts = []
    for number, alignment in enumerate(alignments):
        size = layout.offsets[-1] if layout.weights else _size(layout.fields[number], unit)
        starts.append(f"start_{number} = part_{number} + packed_row * pitch_{number} + (first + {cell}) * {size}")
        for field, at in zip(layout.fields, layout.offsets, strict=False) if layout.weights else [(layout.fields[number], 0)]:
            fields[field.name] = Field(f"start_{number} + {at}", field.number, math.gcd(alignment, size, at, 4))
    trace = Trace(check(formula, layout.arrays(columns=unit)), fields, leading)
    body = {"decode": _print_decode, "sum": _print_sum, "dot": _print_dot}[form](
        trace, [*starts, *trace.lines], unit, batch, whole
    )
    parts, pitches = ([f"{name}_{number}" for number in range(len(alignments))] for name in ("part", "pitch"))
    sizes = ["out", "cells", "chunks"] if form == "decode" else ["x", "out", "count", "rows", "together", "cells"]
    constants = ["ROWS: tl.constexpr"] * (form != "decode") + ["CELLS: tl.constexpr"]
    head = f"def {form}({', '.join([*parts, *sizes, *pitches, *trace.tables, *constants])}):"
    lines = ["import triton", "import triton.language as tl", "", "", "@triton.jit", head, *(f"    {line}" for line in body)]
    return "\n".join(lines) + "\n", list(trace.tables.values())


def _size(field: ScalarField, unit: int) -> int:
    """Returns the bytes of a field that a cell of a row has; 0 if the whole row shares them."""
    return 0 if field.count else KINDS[field.number].size * field.count_in(unit)


def _print_decode(trace: Trace, lines: Sequence[str], unit: int, batch: int, whole: bool) -> list[str]:
    stores = []
    for part in trace.stored:
        up = _axes(":", part.sizes)
        value = f"{part.value}.to(out.dtype.element_ty)"
        stores.append(f"tl.store(out + places{up} + ({part.places}), {value}, mask={_mask(f'used{up}', part.live)})")
    return [
        "packed_row, first = (tl.program_id(0) // chunks).to(tl.int64), 0",
        "index = tl.program_id(0) % chunks * CELLS + tl.arange(0, CELLS)",
        "used, cell = index < cells, tl.minimum(index, cells - 1).to(tl.int64)",
        f"places = (packed_row * cells + cell) * {unit}",
        *lines,
        *stores,
    ]


def _print_product(trace: Trace, lines: Sequence[str], before: Sequence[str], each: Sequence[str]) -> list[str]:
    """Returns the lines of a product: `before` the loop over the cells of a row, and `each` after
    its weights are decoded."""
    return [
        "row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)",
        "kept = tl.minimum(row, rows - 1)",
        "packed_row = (kept // together).to(tl.int64)[:, None]",
        "first = (kept % together).to(tl.int64)[:, None] * cells",
        *before,
        "for begin in range(0, cells, CELLS):",
        "    index = begin + tl.arange(0, CELLS)",
        "    used, cell = index < cells, tl.minimum(index, cells - 1).to(tl.int64)",
        *(f"    {line}" for line in [*lines, *each]),
    ]


def _print_sum(trace: Trace, lines: Sequence[str], unit: int, batch: int, whole: bool) -> list[str]:
    before, each, after = [], [], []
    for q in range(batch):
        sums = []
        for number, part in enumerate(trace.stored):
            name, up = f"sum_{number}_{q}", _axes("None, :", part.sizes)
            mask = _mask("" if whole else f"used{up}", part.live)
            before.append(f"{name} = tl.zeros([{', '.join(map(str, ('ROWS', 'CELLS', *part.sizes)))}], tl.float32)")
            place = f"x + tl.minimum({q}, count - 1) * cells * {unit} + (cell * {unit}){up} + ({part.places})"
            product = f"{part.value} * tl.load({place}).to(tl.float32)"
            each.append(f"{name} += tl.where({mask}, {product}, 0.0)" if mask else f"{name} += {product}")
            total = name
            for axis in range(len(part.sizes) + 1, 0, -1):
                total = f"tl.sum({total}, {axis})"
            sums.append(total)
        stored = f"({' + '.join(sums)}).to(out.dtype.element_ty)"
        after += [f"if {q} < count:", f"    tl.store(out + {q} * rows + row, {stored}, mask=row < rows)"]
    return [*_print_product(trace, lines, before, each), *after]


def _print_dot(trace: Trace, lines: Sequence[str], unit: int, batch: int, whole: bool) -> list[str]:
    each = []
    for part in trace.stored:
        up, sizes = _axes("None, :", part.sizes), ", ".join(map(str, ("CELLS", *part.sizes)))
        length = f"CELLS * {math.prod(part.sizes)}"
        mask = _mask("" if whole else f"used{up}", part.live)
        weights = f"tl.where({mask}, {part.value}, 0.0)" if mask else part.value
        at = f"(batch * cells * {unit}){_axes(':, None', part.sizes)} + (cell * {unit}){up} + ({part.places})"
        each += [
            f"inputs = tl.reshape(tl.load(x + {at}), [{batch}, {length}])",
            f"weights = tl.broadcast_to({weights}, [ROWS, {sizes}])",
            f"weights = tl.reshape(weights, [ROWS, {length}]).to(x.dtype.element_ty)",
            'total += tl.dot(inputs, tl.trans(weights), input_precision="ieee")',
        ]
    before = [
        f"numbers = tl.arange(0, {batch})",
        "batch = tl.minimum(numbers, count - 1)",
        f"total = tl.zeros([{batch}, ROWS], tl.float32)",
    ]
    mask = "(numbers < count)[:, None] & (row < rows)[None, :]"
    store = f"tl.store(out + numbers[:, None] * rows + row[None, :], total.to(out.dtype.element_ty), mask={mask})"
    return [*_print_product(trace, lines, before, each), store]


def _mask(*masks: str) -> str:
    """Returns the text of the masks that are not empty."""
    return " & ".join(mask for mask in masks if mask)


def _axes(leading: str, sizes: Sequence[int]) -> str:
    """Returns the text that adds axes to a tensor with one axis, which `leading` places."""
    return f"[{', '.join([leading, *['None'] * len(sizes)])}]" if sizes or "None" in leading else ""
