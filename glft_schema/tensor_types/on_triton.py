"""Formulas and products on a GPU, as kernels of Triton; see `scalar.as_triton`.

Each kernel is printed from the type's formula when it is first used. Triton compiles it, once for
each kind of GPU, and keeps it in a folder; see Triton's documentation. At its first use in a
process, a kernel is compared with the decoder of the CPU, or with decoding and multiplying. A
kernel that differs or fails is not used; a `RuntimeWarning` says so.

`multiply` takes the fastest method at its first use of a shape: sums over rows of x, Triton's
product of matrices, or decoding and `torch.mm`.
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
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

from glft_schema.errors import one_line
from glft_schema.lazy import torch
from glft_schema.scalar.as_triton import CellField, KernelTrace, power_from
from glft_schema.scalar.checking import check
from glft_schema.scalar.kinds import KINDS
from glft_schema.storage.torch_tensors import as_tensor
from glft_schema.tensor_types.scalar_layout import Formula, ScalarField, ScalarLayout
from glft_schema.tensor_types.tensor_type import TensorType


class KernelMethod(NamedTuple):
    """The form of a kernel, and the size of its programs.

    Attributes:
        form: decode, sum, or dot for Triton's product of matrices.
        height: rows of weights in a program of a product.
        warps: of a program.
    """

    form: str
    height: int
    warps: int


class Kernel(NamedTuple):
    """A kernel that is ready for a type on a device.

    Attributes:
        run: the function of Triton.
        tables: on the device.
        cells: of a program that decodes, or of a step of a product.
        method: see `KernelMethod`.
    """

    run: Any
    tables: list[torch.Tensor]
    cells: int
    method: KernelMethod


Parts: TypeAlias = Sequence["torch.Tensor"]  # packed rows, u8 [rows, bytes], for each field of the payload

DEVICES = ("cuda", "xpu")  # of torch, also for ROCm, that Triton compiles for
DECODE = KernelMethod("decode", 0, 4)
SUMS = (KernelMethod("sum", 2, 1), KernelMethod("sum", 4, 1))
DOTS = (KernelMethod("dot", 16, 4), KernelMethod("dot", 32, 4))
WEIGHTS = {"decode": 1024, "sum": 256, "dot": 256}  # of a program, or of a row in a step of a product
MAX_ROWS = 16  # of x in a product
CHECKED_WEIGHTS = 1 << 12  # at the first use of a decoder
SAMPLES = 8  # inputs with which a product is compared: few sums cancel in all of them
TOLERANCES = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 2e-2}  # of products, by the dtype of x

_KERNELS: dict[Hashable, Kernel | None] = {}  # None if a kernel is slower than decoding, wrong or cannot run


@cache
def serves(device: str) -> bool:
    """Returns whether Triton compiles for a type of device."""
    return device in DEVICES and find_spec("triton") is not None


def decode(type_: TensorType, parts: Parts, columns: int, out: torch.Tensor) -> bool:
    """Writes the weights of `parts` into `out` [rows, columns]. Returns False if no kernel can do
    so.

    Args:
        type_: quantized.
        parts: the bytes of each row are contiguous.
        columns: numbers per row.
        out: contiguous, of a float dtype, on the device of the parts.

    Raises:
        RuntimeError: at a first use while a CUDA graph is captured.
    """
    if out.dtype.itemsize == 1:
        return False
    key = type_, out.dtype, out.device, _alignments(parts), out.data_ptr() % 16
    if key not in _KERNELS:
        if _is_capturing(out):
            raise RuntimeError("expected a first call before the capture of a CUDA graph, at which kernels are compiled")
        _KERNELS[key] = _checked_decoder(type_, parts, columns, out)
    kernel = _KERNELS[key]
    if kernel is not None:
        _decode(kernel, type_.scalar_layout, parts, columns, out)
    return kernel is not None


def multiply(
    type_: TensorType, x: torch.Tensor, packed: torch.Tensor, rows: int, decoded: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Returns ``x @ weights.T`` [count, rows] in the dtype of x.

    Args:
        type_: of the weights.
        x: [count, columns].
        packed: contiguous u8 [rows, bytes of a row], or with several rows of weights in each row.
        rows: of the weights.
        decoded: returns the product of any x by decoding and multiplying.
    """
    count, columns = x.shape
    if not 0 < count <= MAX_ROWS or _name(x.dtype) not in TOLERANCES or not columns or not rows:
        return decoded(x)
    parts = [packed[:, span] for _, span, _ in type_.spans_of_row(rows // len(packed) * columns)]
    batch = power_from(count)
    key = type_, x.dtype, x.device, _alignments(parts), batch, rows, columns
    if key not in _KERNELS and not _is_capturing(x):
        _choose(key, type_, parts, decoded)
    kernel = _KERNELS.get(key)
    if kernel is None:
        return decoded(x)
    x = x.contiguous()
    return _multiply(kernel, parts, rows, x if x.data_ptr() % 16 == 0 else x.clone())


# The first use


def _checked_decoder(type_: TensorType, parts: Parts, columns: int, out: torch.Tensor) -> Kernel | None:
    """Returns the kernel for tensors of these alignments and pitches, if it decodes random bytes as
    the CPU does."""
    unit = type_.scalar_layout.unit
    cells = columns // unit
    columns = unit * min(cells, max(CHECKED_WEIGHTS // unit, 16) // 16 * 16 + cells % 16)
    rows, random, fields, few = max(CHECKED_WEIGHTS // columns, 1), torch.Generator().manual_seed(0), {}, []
    for part, (name, span, number) in zip(parts, type_.spans_of_row(columns), strict=True):
        content = torch.randint(0, 256, (rows, span.stop - span.start), dtype=torch.uint8, generator=random)
        fields[name] = content.numpy().view(number.dtype)
        few.append(_placed_like(part, content))
    expected = as_tensor(type_.decode(fields, columns)).to(out.dtype)

    def run() -> torch.Tensor:
        found = _placed_like(out, torch.zeros_like(expected))
        _decode(kernel, type_.scalar_layout, few, columns, found)
        return found.cpu()

    kernel = _kernel(type_, parts, DECODE, out.device)
    problem = _problem(type_, run, lambda found: torch.equal(_bits(found), _bits(expected)))
    if problem:
        _warn(problem)
    return None if problem else kernel


def _placed_like(given: torch.Tensor, content: torch.Tensor) -> torch.Tensor:
    """Returns rows on the device of a tensor, with its pitch, and an address that has the same
    remainder by 16."""
    rows, width = content.shape
    pitch = max(given.stride(0), width)
    memory = torch.empty((rows - 1) * pitch + width + 16, dtype=content.dtype, device=given.device)
    first = (given.data_ptr() - memory.data_ptr()) % 16 // memory.itemsize
    return memory[first:].as_strided((rows, width), (pitch, 1)).copy_(content)


def _bits(numbers: torch.Tensor) -> torch.Tensor:
    """Returns the bytes of numbers; each NaN has the same."""
    return torch.where(numbers.isnan(), torch.nan, numbers).contiguous().view(torch.uint8)


def _choose(key: Any, type_: TensorType, parts: Parts, decoded: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Stores the kernel of the fastest method whose results are right, or None for decoding.
    Stores nothing for weights that show no difference, such as zeros."""
    _, dtype, device, _, batch, rows, columns = key
    samples = torch.randn(SAMPLES, batch, columns, generator=torch.Generator().manual_seed(0)) / columns**0.5
    samples = samples.to(device, dtype)
    expected = decoded(samples.view(-1, columns)).view(SAMPLES, batch, rows).float()
    finite = expected.isfinite()
    size = expected.where(finite, 0).norm()
    if not size > 0:
        return
    bound, times = TOLERANCES[_name(dtype)] * size, list[tuple[float, Kernel | None]]()
    wrong, failed = list[str](), list[str]()

    def is_close(found: torch.Tensor) -> bool:
        return bool((found.float() - expected).where(finite, 0).norm() <= bound)

    for method in (*(SUMS if batch <= 4 else ()), *(DOTS if batch > 1 else ())):
        kernel = _kernel(type_, parts, method, device, batch, columns)
        run = partial(_multiply, kernel, parts, rows)
        problem = _problem(type_, lambda run=run: torch.stack([run(x) for x in samples]), is_close)  # type: ignore[misc]
        if problem:
            (failed if "cannot run" in problem else wrong).append(problem)
        else:
            times.append((_seconds(partial(run, samples[0]), device), kernel))
    for problem in wrong or ([] if times else failed)[:1]:
        _warn(problem)
    times.append((_seconds(partial(decoded, samples[0]), device), None))
    _KERNELS[key] = min(times, key=itemgetter(0))[1]


def _problem(type_: TensorType, run: Callable[[], torch.Tensor], is_right: Callable[[torch.Tensor], bool]) -> str | None:
    """Returns what is wrong with the results of a kernel, or None."""
    try:
        return None if is_right(run()) else f"Triton's kernel of {type_} gives other numbers than the decoder"
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # from Triton, its compiler or its driver
        return f"Triton cannot run a kernel of {type_}: {one_line(str(error), 200)}"


def _warn(problem: str) -> None:
    warnings.warn(f"{problem}; a slower method is used", RuntimeWarning, stacklevel=4)


def _is_capturing(tensor: torch.Tensor) -> bool:
    """Returns whether launches are recorded into a graph, so that no result can be read."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def _seconds(run: Callable[[], object], device: torch.device) -> float:
    """Returns the seconds of a call, the mean of some."""
    if device.type == "cpu":
        start = time.perf_counter()
        run()
        return time.perf_counter() - start
    with _on(device):
        first, last = (torch.Event(device, enable_timing=True) for _ in range(2))
        run()
        first.record()
        for _ in range(5):
            run()
        last.record()
        last.synchronize()
    return float(first.elapsed_time(last)) / 5


# Launches


def _decode(kernel: Kernel, layout: ScalarLayout, parts: Parts, columns: int, out: torch.Tensor) -> None:
    rows, cells, pitches = len(out), columns // layout.unit, [part.stride(0) for part in parts]
    if layout.weights and (rows == 1 or pitches == [cells * layout.offsets[-1]]):
        rows, cells = 1, rows * cells  # blocks without a gap
    grid = (rows * -(-cells // kernel.cells),)
    constants = {"CELLS": kernel.cells, "num_warps": DECODE.warps, "enable_fp_fusion": False}
    with _on(out.device):
        kernel.run[grid](*parts, out, cells, *pitches, *kernel.tables, **constants)


def _multiply(kernel: Kernel, parts: Parts, rows: int, x: torch.Tensor) -> torch.Tensor:
    """Returns the product of contiguous x [count, columns]."""
    _, height, warps = kernel.method
    out, together = torch.empty((len(x), rows), dtype=x.dtype, device=x.device), rows // len(parts[0])
    numbers = len(x), rows, together, x.shape[1], *(part.stride(0) for part in parts)
    with _on(x.device):
        kernel.run[(-(-rows // height),)](
            *parts, x, out, *numbers, *kernel.tables, ROWS=height, CELLS=kernel.cells, num_warps=warps
        )
    return out


def _on(device: torch.device) -> AbstractContextManager[Any]:
    """Returns a context in which kernels are launched on a device."""
    return torch.get_device_module(device).device(device) if device.type in DEVICES else nullcontext()


def _alignments(parts: Parts) -> tuple[int, ...]:
    """Returns, for each part, the largest power of two, at most 16, that divides the addresses of
    all rows."""
    return tuple(math.gcd(part.data_ptr(), part.stride(0), 16) for part in parts)


def cells_of(form: str, unit: int) -> int:
    """Returns the cells of `unit` weights in a program or a step, a power of two."""
    return 1 << max(WEIGHTS[form] // unit, 1).bit_length() - 1


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _kernel(
    type_: TensorType, parts: Parts, method: KernelMethod, device: torch.device, batch: int = 1, columns: int = 0
) -> Kernel:
    """Returns a type's kernel for a device; see `kernel_of`."""
    layout = type_.scalar_layout
    cells = cells_of(method.form, layout.unit)
    batch = MAX_ROWS if method.form == "dot" else batch
    whole = columns // layout.unit % cells == 0
    alignments = tuple(math.gcd(one, 4) for one in _alignments(parts))
    run, arrays = kernel_of(layout, type_.formula, alignments, method.form, batch, whole)
    return Kernel(run, [torch.from_numpy(array).to(device) for array in arrays], cells, method)


# Kernels


@lru_cache(maxsize=1 << 8)
def kernel_of(
    layout: ScalarLayout,
    formula: Formula | None,
    alignments: tuple[int, ...],
    form: str,
    batch: int = 1,
    whole: bool = False,
) -> tuple[Any, list[Any]]:
    """Returns a function of Triton and its tables, arrays of numpy.

    Args:
        layout: of a block or a row.
        formula: of it.
        alignments: of the addresses of each part, at most 4.
        form: decode, sum or dot.
        batch: the most rows of x, a power of two.
        whole: whether each step of a product has all of its cells.

    Raises:
        ScalarError: if the formula cannot run on arrays.
    """
    assert formula
    text, tables = _print_kernel(layout, formula, alignments, form, batch, whole)
    path = f"<{form} {layout.name} {alignments} {batch} {whole} {id(formula)}>"
    linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)  # where Triton finds the source
    scope: dict[str, Any] = {"__name__": "glft_schema.kernels"}
    exec(compile(text, path, "exec"), scope)
    return scope[form], tables


def _print_kernel(
    layout: ScalarLayout, formula: Formula, alignments: Sequence[int], form: str, batch: int, whole: bool
) -> tuple[str, list[Any]]:
    """Returns the text of a kernel, and its tables; see `kernel_of`."""
    leading = 1 if form == "decode" else 2
    unit, cell, fields = layout.unit, "cell[None, :]" if leading == 2 else "cell", dict[str, CellField]()
    starts = []
    for number, alignment in enumerate(alignments):
        size = layout.offsets[-1] if layout.weights else _size(layout.fields[number], unit)
        starts.append(f"start_{number} = part_{number} + packed_row * pitch_{number} + (first + {cell}) * {size}")
        for field, at in zip(layout.fields, layout.offsets, strict=False) if layout.weights else [(layout.fields[number], 0)]:
            fields[field.name] = CellField(f"start_{number} + {at}", field.number, math.gcd(alignment, size, at))
    trace = KernelTrace(check(formula, layout.arrays(columns=unit)), fields, leading)
    body = {"decode": _print_decode, "sum": _print_sum, "dot": _print_dot}[form](
        trace, [*starts, *trace.lines], unit, batch, whole
    )
    parts, pitches = ([f"{name}_{number}" for number in range(len(alignments))] for name in ("part", "pitch"))
    sizes = ["out", "cells"] if form == "decode" else ["x", "out", "count", "rows", "together", "columns"]
    general = ["cells"] * bool(layout.weights) if form == "decode" else sizes[2:5]  # one kernel for all values
    constants = ["ROWS: tl.constexpr"] * (form != "decode") + ["CELLS: tl.constexpr"]
    head = f"def {form}({', '.join([*parts, *sizes, *pitches, *trace.tables, *constants])}):"
    jit = f"@triton.jit(do_not_specialize={general})"
    lines = ["import triton", "import triton.language as tl", "", "", jit, head, *(f"    {line}" for line in body)]
    return "\n".join(lines) + "\n", list(trace.tables.values())


def _size(field: ScalarField, unit: int) -> int:
    """Returns the bytes of a field that a cell of a row has; 0 if the whole row shares them."""
    return 0 if field.count else KINDS[field.number].size * field.count_in(unit)


def _print_decode(trace: KernelTrace, lines: Sequence[str], unit: int, batch: int, whole: bool) -> list[str]:
    stores = []
    for part in trace.stored:
        up = _axes(":", part.sizes)
        value = f"{part.value}.to(out.dtype.element_ty)"
        stores.append(f"tl.store(out + places{up} + ({part.places}), {value}, mask={_mask(f'used{up}', part.live)})")
    return [
        "chunks = tl.cdiv(cells, CELLS)",
        "packed_row, first = (tl.program_id(0) // chunks).to(tl.int64), 0",
        "index = tl.program_id(0) % chunks * CELLS + tl.arange(0, CELLS)",
        "used, cell = index < cells, tl.minimum(index, cells - 1).to(tl.int64)",
        f"places = (packed_row * cells + index) * {unit}",
        *lines,
        *stores,
    ]


def _print_product(lines: Sequence[str], before: Sequence[str], each: Sequence[str], unit: int, whole: bool) -> list[str]:
    """Returns the lines of a product: `before` the loop over the cells of a row, and `each` after
    its weights are decoded."""
    cell = "index" if whole else "tl.minimum(index, cells - 1)"
    return [
        f"cells = columns // {unit}",
        "row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)",
        "kept = tl.minimum(row, rows - 1)",
        "packed_row = (kept // together).to(tl.int64)[:, None]",
        "first = (kept % together).to(tl.int64)[:, None] * cells",
        *before,
        "for begin in range(0, cells, CELLS):",
        "    index = begin + tl.arange(0, CELLS)",
        f"    used, cell = index < cells, ({cell}).to(tl.int64)",
        *(f"    {line}" for line in [*lines, *each]),
    ]


def _print_sum(trace: KernelTrace, lines: Sequence[str], unit: int, batch: int, whole: bool) -> list[str]:
    before, each, after = [], [], []
    for q in range(batch):
        sums = []
        for number, part in enumerate(trace.stored):
            name, up = f"sum_{number}_{q}", _axes("None, :", part.sizes)
            mask = _mask("" if whole else f"used{up}", part.live)
            before.append(f"{name} = tl.zeros([{', '.join(map(str, ('ROWS', 'CELLS', *part.sizes)))}], tl.float32)")
            place = f"x + tl.minimum({q}, count - 1) * columns + (cell * {unit}){up} + ({part.places})"
            product = f"{part.value} * tl.load({place}).to(tl.float32)"
            each.append(f"{name} += tl.where({mask}, {product}, 0.0)" if mask else f"{name} += {product}")
            total = name
            for axis in range(len(part.sizes) + 1, 0, -1):
                total = f"tl.sum({total}, {axis})"
            sums.append(total)
        stored = f"({' + '.join(sums)}).to(out.dtype.element_ty)"
        after += [f"if {q} < count:", f"    tl.store(out + {q} * rows + row, {stored}, mask=row < rows)"]
    return [*_print_product(lines, before, each, unit, whole), *after]


def _print_dot(trace: KernelTrace, lines: Sequence[str], unit: int, batch: int, whole: bool) -> list[str]:
    each = []
    for part in trace.stored:
        up, sizes = _axes("None, :", part.sizes), ", ".join(map(str, ("CELLS", *part.sizes)))
        length = f"CELLS * {math.prod(part.sizes)}"
        mask = _mask("" if whole else f"used{up}", part.live)
        weights = f"tl.where({mask}, {part.value}, 0.0)" if mask else part.value
        at = f"(batch * columns){_axes(':, None', part.sizes)} + (cell * {unit}){up} + ({part.places})"
        each += [
            f"inputs = tl.reshape(tl.load(x + {at}{f', mask={mask}, other=0.0' if mask else ''}), [{batch}, {length}])",
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
    return [*_print_product(lines, before, each, unit, whole), store]


def _mask(*masks: str) -> str:
    """Returns the text of the masks that are not empty."""
    return " & ".join(mask for mask in masks if mask)


def _axes(leading: str, sizes: Sequence[int]) -> str:
    """Returns the text that adds axes to a tensor with one axis, which `leading` places."""
    return f"[{', '.join([leading, *['None'] * len(sizes)])}]" if sizes or "None" in leading else ""
