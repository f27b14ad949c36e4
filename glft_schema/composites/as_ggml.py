"""Composite weights as ggml's types that hold the same values: codes and scales move, and nothing
is rounded.

The smallest type that fits is chosen from all codes and scales of a weight, which are read in
chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from glft_schema.composites.nibbles import one_by_one, to_halves
from glft_schema.storage.dtypes import BFLOAT16, Array
from glft_schema.tensor_types import TensorType
from glft_schema.tensor_types.chunks import row_chunks
from glft_schema.tensor_types.composite import is_composite
from glft_schema.tensor_types.conversions import convert
from glft_schema.tensor_types.ggml.fp4 import MXFP4, NVFP4
from glft_schema.tensor_types.ggml.legacy import Q4_0, Q4_1, Q5_0, Q5_1, Q8_0
from glft_schema.tensor_types.payload_layout import matrix
from glft_schema.tensors.stored_tensor import Slices, StoredTensor, of_packed
from glft_schema.tensors.tensor import Tensor

Fields = Mapping[str, Array]
ROUNDED = "with rounded products"  # suffix of the origin of NVFP4 weights whose scale is not a power of two
NAN = 0x7F  # of E4M3; ggml reads it as 0
EXPONENTS = range(27, 228)  # of float32 scales: products with floats of eight bits fit bfloat16


class GridType(NamedTuple):
    """A type of ggml whose weights are d * code, or d * code + m.

    Attributes:
        type: the type.
        least, most: of the codes.
        has_minimum: whether a block has m.
    """

    type: TensorType
    least: int
    most: int
    has_minimum: bool = False


TARGETS = (
    GridType(Q4_0, -8, 7),
    GridType(Q4_1, 0, 15, True),
    GridType(Q5_0, -16, 15),
    GridType(Q5_1, 0, 31, True),
    GridType(Q8_0, -128, 127),
)


def in_one_type(parts: Sequence[StoredTensor], *, exact: bool = False) -> list[StoredTensor]:
    """Returns tensors that become one as `in_ggml` does, in one type if one holds all of them."""
    found = [in_ggml(part, exact=exact) for part in parts]
    if len({part.packed.type for part in found if part.packed}) > 1:
        for target in TARGETS:
            again = [in_ggml(part, exact=exact, targets=[target]) for part in parts]
            if all(part.packed for part in again):
                return again
    return found


def in_ggml(stored: StoredTensor, *, exact: bool = False, targets: Sequence[GridType] = TARGETS) -> StoredTensor:
    """Returns a composite weight in the type of ggml that holds its values, else as its values.
    Other tensors are returned unchanged.

    Args:
        stored: the tensor.
        exact: do not use NVFP4 if the scale of the tensor is rounded, or rounds products.
        targets: the types for integers, the first that fits.
    """
    tensor = stored.packed
    if tensor is None or not is_composite(tensor.type):
        return stored
    values, name = values_of(stored), tensor.type.name
    if name.startswith("FP8") and all(map(_are_powers, chunks_of(tensor))):
        return replace(
            values,
            dtype=BFLOAT16,
            load=lambda: convert(stored.values(), BFLOAT16),
            read=lambda index: convert(stored.part(index), BFLOAT16),
        )
    if name == "FP4_E8M0":
        return packed_as(stored, values, MXFP4, _to_mxfp4)
    if name.startswith("FP4_E4M3"):
        return _in_nvfp4(stored, values, exact)
    fitting = [target for target in targets if name in ("UINT4", "UINT8", "INT8", "AFFINE4", "AFFINE8")]
    for fields in chunks_of(tensor) if fitting else ():
        fitting = [target for target in fitting if _fits(target, fields)]
        if not fitting:
            break
    if not fitting:
        return values
    return packed_as(stored, values, fitting[0].type, lambda fields: _to_blocks(fitting[0], fields))


def values_of(stored: StoredTensor) -> StoredTensor:
    """Returns a tensor as its values, without the codes."""
    return replace(stored, file_tensor=None, read=stored.part, companions={}) if stored.packed else stored


def packed_as(stored: StoredTensor, values: StoredTensor, type_: TensorType, blocks: Callable[[Fields], Array]) -> StoredTensor:
    """Returns a weight whose payload has another type, if that can hold its shape.

    Args:
        stored: the composite weight.
        values: the same as values.
        type_: the other type, of blocks.
        blocks: converts the fields of rows to the blocks of these rows, u8 [rows, bytes].
    """
    tensor = stored.packed
    assert tensor is not None
    if type_.refusal(stored.shape):
        return values
    rows = range(matrix(stored.shape)[0])

    def read(index: Slices) -> Array:
        return blocks(tensor.rows(rows[index[0]]))[:, index[1]]

    return replace(values, file_tensor=of_packed(tensor.name, stored.shape, type_, read).file_tensor)


def chunks_of(tensor: Tensor) -> Iterator[Fields]:
    """Yields the fields of a few rows at a time."""
    for part in row_chunks(*matrix(tensor.shape)):
        yield tensor.rows(range(part.start, part.stop))


# Integers


def _codes(fields: Fields) -> Array:
    """Returns codes one by one, i16 [rows, columns]."""
    codes, first = fields["codes"], next(number for name, number in fields.items() if name != "codes")
    if codes.shape[1] < 32 * first.shape[1]:  # two a byte
        codes = one_by_one(codes)
    return codes.astype(np.int16)


def _parts(target: GridType, fields: Fields) -> tuple[Array, Array, Array | None] | None:
    """Returns zero points, i16, d and m of units [rows, columns // 32]; None if d or m is not a
    float16, or weights without m have one."""
    scales, minimum = fields["scales"], None
    zeros = np.zeros(scales.shape, np.int16) if "biases" in fields else fields["zeros"]
    if target.has_minimum:
        minimum = fields["biases"] if "biases" in fields else -scales * zeros
        zeros = np.zeros_like(zeros)
    elif "biases" in fields:
        if not np.array_equal(fields["biases"], target.least * scales):
            return None
        zeros = np.full_like(zeros, -target.least)
    if not _are_halves(scales) or (minimum is not None and not _are_halves(minimum)):
        return None
    return zeros, scales, minimum


def _fits(target: GridType, fields: Fields) -> bool:
    parts = _parts(target, fields)
    if parts is None:
        return False
    zeros, codes = parts[0], fields["codes"]
    most = 15 if codes.shape[1] < 32 * zeros.shape[1] else np.iinfo(codes.dtype).max
    if target.least <= np.iinfo(codes.dtype).min - int(zeros.max()) and most - int(zeros.min()) <= target.most:
        return True  # whatever the codes are
    numbers = _codes(fields) - zeros.repeat(32, 1)
    return bool(target.least <= numbers.min() and numbers.max() <= target.most)


def _to_blocks(target: GridType, fields: Fields) -> Array:
    """Returns the blocks of rows, u8 [rows, bytes]."""
    parts = _parts(target, fields)
    assert parts is not None
    zeros, scales, minimum = parts
    numbers = _codes(fields) - zeros.repeat(32, 1)
    codes = (numbers - (0 if target.type == Q8_0 else target.least)).astype(np.uint8).reshape(-1, 32)
    columns = [_bytes(scales)] if minimum is None else [_bytes(scales), _bytes(minimum)]
    if target.most in (15, 31) and target.type != Q4_1:
        columns.append(np.packbits(codes >> 4, -1, "little"))
    columns.append(codes if target.type == Q8_0 else codes[:, :16] & 15 | codes[:, 16:] << 4)
    return np.concatenate(columns, 1).reshape(len(scales), -1)


def _bytes(floats: Array) -> Array:
    halves = floats.astype(np.float16).reshape(-1, 1)
    return halves.view(np.uint8)


def _are_halves(floats: Array) -> bool:
    with np.errstate(over="ignore"):
        halves = floats.astype(np.float16)
        return bool((np.isfinite(halves) & (halves.astype(np.float32) == floats)).all())


# Floats


def _to_mxfp4(fields: Fields) -> Array:
    """Returns the blocks of rows, u8 [rows, bytes]."""
    codes, scales = fields["codes"].reshape(-1, 16), fields["scales"].reshape(-1, 1)
    return np.concatenate((scales, to_halves(codes)), 1).reshape(len(fields["codes"]), -1)


def _to_nvfp4(fields: Fields) -> Array:
    """Returns the blocks of rows, u8 [rows, bytes], without the scale of the tensor."""
    codes, scales = fields["codes"].reshape(-1, 4, 8), fields["scales"].reshape(-1, 4)
    return np.concatenate((scales, to_halves(codes).reshape(-1, 32)), 1).reshape(len(fields["codes"]), -1)


def _in_nvfp4(stored: StoredTensor, values: StoredTensor, exact: bool) -> StoredTensor:
    """Returns a weight as NVFP4 with the scale of the tensor as its companion: one number, or one
    for each matrix of a stack. ggml has no sign and no NaN in scales."""
    tensor = stored.packed
    assert tensor is not None
    count = stored.shape[0] if len(stored.shape) > 2 else 1
    factors = np.concatenate([fields["factors"] for fields in chunks_of(tensor)]).reshape(count, -1)
    are_alike = (factors == factors[:, :1]).all()
    if not are_alike or any(
        (fields["scales"] & NAN == NAN).any() or (fields["scales"] > 128).any() for fields in chunks_of(tensor)
    ):
        return values
    factors = factors[:, 0]
    with np.errstate(divide="ignore", over="ignore"):
        scale = np.float32(1) / factors if "DIVIDED" in tensor.type.name else factors
    if not np.isfinite(scale).all() or (exact and rounds_products(scale)):
        return values
    packed = packed_as(stored, values, NVFP4, _to_nvfp4)
    if packed is values:
        return values
    if rounds_products(scale):
        packed = replace(packed, origin=f"{stored.origin}, {ROUNDED}")
    return replace(packed, companions={} if (scale == 1).all() else {"scale": scale})


def rounds_products(scale: Array) -> bool:
    """Tells whether a product may depend on the order of factors, since a scale is not a power of
    two."""
    return bool((np.frexp(scale)[0] != 0.5).any())


def _are_powers(fields: Fields) -> bool:
    """Tells whether all scales are powers of two by which floats of eight bits become bfloat16."""
    bits = fields["scales"].view(np.uint32)
    exponents = bits >> 23 & 255
    return not (bits & 0x7FFFFF).any() and EXPONENTS.start <= exponents.min() and exponents.max() < EXPONENTS.stop
