"""The contents of a GGUF file by a client, in one form for all clients.

Metadata are compared exactly: an integral number by its integer, any other float by its bits, NaN as
NaN. This also suits JavaScript, which has a single type for numbers. The module imports neither torch
nor this package: the clients' processes start fast.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np


class Values(NamedTuple):
    """A tensor: shape in torch's order, the client's name for the dtype, values in C order."""

    shape: tuple[int, ...]
    dtype: str
    values: np.ndarray


class Info(NamedTuple):
    """A tensor info: dims as stored, code of the type, offset, position in the file."""

    dims: tuple[int, ...]
    code: int
    offset: int
    position: int


@dataclass(frozen=True)
class Reading:
    """The contents of a file by a client; a field is empty if the client lacks it.

    Attributes:
        error: the exception as ``NAME: text``, or the signal that ended the process.
        metadata: values by key, see `exact`.
        types: types by key; ``array[array]`` for any nested array.
        tensors: tensors by name.
        infos: rows of the table of tensors by name.
        version: of the format.
        order: ``little`` or ``big``.
    """

    error: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    tensors: dict[str, Values] = field(default_factory=dict)
    infos: dict[str, Info] = field(default_factory=dict)
    version: int = 0
    order: str = ""


def exact(value: Any) -> Any:
    """Returns a value in comparable form: ``n:INTEGER``, ``f:BITS`` of a float64, ``s:STRING``."""
    if isinstance(value, (Sequence, np.ndarray)) and not isinstance(value, (str, bytes)):
        return [exact(element) for element in value]
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, (int, np.integer)):
        return f"n:{int(value)}"
    if not isinstance(value, (float, np.floating)):
        return f"s:{value}" if isinstance(value, str) else value
    number = float(value)
    if math.isnan(number):
        return "n:nan"
    is_whole = number.is_integer() and (number or math.copysign(1, number) > 0)  # -0 is not 0
    return f"n:{int(number)}" if is_whole else f"f:{struct.pack('>d', number).hex()}"


def of_torch(tensor: Any) -> Values:
    """Returns the values of a torch tensor; bfloat16, which numpy lacks, as float32."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Values(tuple(tensor.shape), dtype, (tensor.float() if dtype == "bfloat16" else tensor).numpy().copy())


def same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    """Tells whether arrays have equal shapes, dtypes and bits; all NaN are equal."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    equal = one.view(f"u{one.itemsize}") == other.view(f"u{one.itemsize}")
    if one.dtype.kind == "f":
        equal |= np.isnan(one) & np.isnan(other)
    return bool(equal.all())
