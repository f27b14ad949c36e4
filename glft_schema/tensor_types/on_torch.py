"""Decodes torch tensors: on the CPU by the functions for arrays, without a copy; on a GPU by
kernels of Triton; elsewhere, or while torch traces, by operations of torch. All give the same bits.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import lru_cache

from glft_schema.codec.numbers import Number
from glft_schema.lazy import torch
from glft_schema.scalar.as_torch import decoder
from glft_schema.scalar.checking import check
from glft_schema.scalar.language import ScalarError
from glft_schema.storage.torch_tensors import array_in, array_to_read, as_tensor, dtype_in_torch, has_plain_memory
from glft_schema.tensor_types import on_triton
from glft_schema.tensor_types.chunks import row_chunks
from glft_schema.tensor_types.library.loading import DTYPES
from glft_schema.tensor_types.payload_layout import Fields
from glft_schema.tensor_types.scalar_layout import Formula, ScalarLayout
from glft_schema.tensor_types.tensor_type import TensorType

Tensors = Mapping[str, "torch.Tensor"]

PLAIN = ("cpu", "meta")  # devices without a GPU

_UNSAID = [True]  # one warning per process


def decode(
    type_: TensorType,
    fields: Tensors,
    columns: int,
    *,
    dtype: torch.dtype | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Returns the numbers [rows, columns] of fields [rows, numbers per row], on their device; see
    `TensorType.decode`.

    Args:
        type_: of the fields.
        fields: by name.
        columns: numbers per row.
        dtype: a float dtype; by default the dtype of `out` or the type's own. Numbers that keep
            their dtype are not copied.
        out: the destination, contiguous, of this shape, dtype and device; new memory by default.

    Raises:
        FormatError: if rows of the type cannot have `columns` numbers.
        ValueError: if a field or `out` of a quantized type has another shape or dtype.
    """
    dtype = dtype or (dtype_in_torch(type_.dtype) if out is None else out.dtype)
    if type_.exact:
        numbers = next(iter(fields.values()))
        return numbers.to(dtype) if out is None else out.copy_(numbers)
    if out is None:
        first = next(iter(fields.values()))
        out = torch.empty((first.shape[0], columns), dtype=dtype, device=first.device)
    if not out.numel():
        return out
    given = [fields[name] for name, _ in type_.fields()]
    if all(map(has_plain_memory, (out, *given))):
        decode_arrays(type_, {name: array_to_read(field) for name, field in fields.items()}, columns, out)
        return out
    type_.check_shapes({name: field.shape for name, field in fields.items()}, out.shape, columns)
    if not by_triton(out, *given) or not on_triton.decode(type_, list(map(_bytes, given)), columns, out):
        _by_operations(type_, fields, columns, out)
    return out


def decode_packed(type_: TensorType, packed: torch.Tensor, columns: int, out: torch.Tensor) -> torch.Tensor:
    """Writes the numbers of packed rows, see `TensorType.pack`, into `out` [rows, columns]."""
    spans, packed = list(type_.spans_of_row(columns)), packed.contiguous()
    if by_triton(out, packed) and on_triton.decode(type_, [packed[:, span] for _, span, _ in spans], columns, out):
        return out
    fields = {}
    for name, span, number in spans:
        part = packed if span == slice(0, packed.shape[1]) else packed[:, span].contiguous()
        fields[name] = part.view(dtype_in_torch(number.dtype))
    return decode(type_, fields, columns, out=out)


def by_triton(*tensors: torch.Tensor) -> bool:
    """Returns whether kernels of Triton may read and write tensors, which are on one device. Warns
    once if Triton does not serve the device."""
    device = tensors[0].device.type
    if device in PLAIN or in_mode() or torch.compiler.is_compiling():
        return False
    if not on_triton.serves(device) and _UNSAID:
        _UNSAID.clear()
        reason = "Triton is not installed" if device in on_triton.DEVICES else f"Triton does not serve {device}"
        warnings.warn(f"{reason}: formulas run as operations of torch, several times slower", RuntimeWarning, stacklevel=3)
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    return on_triton.serves(device) and all(
        type(one) is torch.Tensor and one.device == tensors[0].device and not wrapped(one) for one in tensors
    )


def _bytes(field: torch.Tensor) -> torch.Tensor:
    """Returns a field as u8 [rows, bytes]."""
    return field.reshape(len(field), -1).contiguous().view(torch.uint8)


def decode_arrays(type_: TensorType, fields: Fields, columns: int, out: torch.Tensor) -> None:
    """Writes the numbers of arrays of numpy into a tensor on the CPU. Raises like `decode`."""
    if type_.exact:
        out.copy_(as_tensor(type_.decode(fields, columns)))
    elif not has_plain_memory(out):
        decode(type_, {name: as_tensor(field) for name, field in fields.items()}, columns, out=out)
    elif str(out.dtype).removeprefix("torch.") not in (*DTYPES, "float64"):
        out.copy_(as_tensor(type_.decode(fields, columns)))
    else:
        type_.decode(fields, columns, out=array_in(out))
        if not out.is_inference():
            torch.autograd.graph.increment_version(out)


def _by_operations(type_: TensorType, fields: Tensors, columns: int, out: torch.Tensor) -> None:
    """Decodes by operations of torch."""
    assert type_.functions
    layout = type_.functions.layout
    cell, given = layout.cell(columns), dict[str, torch.Tensor]()
    for name, part in type_.fields():
        cells = fields[name].reshape(-1, fields[name].shape[1] * cell // columns)
        for own, span, number in part.parts(name):
            given[own] = _numbers(cells, span, number)
    formula, axes = (_formula.__wrapped__ if in_mode() else _formula)(type_.formula, layout, cell, out.device)
    weights = out.view(-1, *axes)
    for rows in row_chunks(len(weights), cell):
        weights[rows].copy_(formula(w=weights[rows], **{name: field[rows] for name, field in given.items()}))


def _numbers(rows: torch.Tensor, span: slice | None, number: Number) -> torch.Tensor:
    """Returns the numbers of a field: a view if possible. Unsigned words, which few torch
    operations support, become signed words."""
    size = number.itemsize
    is_word = number.is_unsigned and size > 1
    dtype = getattr(torch, f"int{8 * size}") if is_word else dtype_in_torch(number.dtype)
    if span is None or size == 1:
        return (rows if span is None else rows[:, span]).view(dtype)
    ends = (span.start, span.stop, *rows.shape[1:], rows.stride(0), rows.storage_offset())
    if torch.compiler.is_compiling() or any(end % size for end in ends):
        return rows[:, span].clone(memory_format=torch.contiguous_format).view(dtype)  # one row may be unaligned
    return rows.view(dtype)[:, span.start // size : span.stop // size]


@lru_cache(maxsize=1 << 8)
def _formula(formula: Formula, layout: ScalarLayout, weights: int, device: torch.device) -> tuple[Formula, tuple[int, ...]]:
    """Returns a scalar formula as torch operations, and the axes of its result. Raises ScalarError
    if it cannot run on arrays."""
    function = check(formula, layout.arrays(columns=weights))
    try:
        run, axes = decoder(function, device)
    except ScalarError as error:
        raise ScalarError(f"{error}; glft.types.compile compiles it as C") from None
    return lambda w, **fields: run(w=w, **{name: fields[name] for name in function.parameters if name != "w"}), axes


def in_mode() -> bool:
    """Tells whether a mode such as FakeTensorMode is active, whose tensors are of no use outside
    it."""
    return bool(torch._C._len_torch_dispatch_stack())
