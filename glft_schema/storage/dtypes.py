"""The dtypes of stored numbers, by their names in torch.

Arrays of dtypes that numpy lacks consist of records with one field, the bits of a number. numpy
refuses to compute with records; `words` returns the bits.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]
Dtype: TypeAlias = np.dtype[Any]

SMALL_FLOATS = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2")
RECORDS = {"bfloat16": np.dtype([("bfloat16", "<u2")]), **{name: np.dtype([(name, "u1")]) for name in SMALL_FLOATS}}
BFLOAT16, FLOAT32, FLOAT64 = RECORDS["bfloat16"], np.dtype("float32"), np.dtype("float64")

# The float dtypes with one number per element, which float32 or float64 holds exactly.
FLOATS = ("float64", "float32", "float16", *RECORDS)[:-1]
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "bool")
WORDS = ("uint16", "uint32", "uint64", "complex64")  # only copied
CODES = ("int8", "uint8", "int32", "uint32", "float8_e4m3fn", "float8_e5m2", "NVFP4")  # dtypes and a type of codes
NAMES = (*FLOATS, "float4_e2m1fn_x2", *INTEGERS, *WORDS)

LARGEST = {"bfloat16": 2.0**128 - 2.0**120, **{name: float(np.finfo(name).max) for name in ("float16", "float32", "float64")}}


def dtype_of(name: str) -> Dtype:
    """Returns the dtype with a name. Raises TypeError if there is none."""
    return RECORDS[name] if name in RECORDS else np.dtype(name)


def as_dtype(given: Any) -> Dtype:
    """Returns the numpy dtype for a torch dtype or a name. Raises TypeError if there is none."""
    return given if isinstance(given, np.dtype) else dtype_of(str(given).removeprefix("torch."))


@lru_cache(maxsize=1 << 8)
def name_of(dtype: Dtype) -> str:
    """Returns the name of a dtype of numpy or ml_dtypes, or of a record."""
    return dtype.names[0] if dtype.names else dtype.name


def is_float(dtype: Dtype) -> bool:
    """Tells whether arrays of a dtype hold floats that can be stored."""
    return name_of(dtype) in FLOATS


def is_integer(dtype: Dtype) -> bool:
    """Tells whether arrays of a dtype hold integers that can be stored."""
    return name_of(dtype) in INTEGERS


def words(array: Array) -> Array:
    """Returns the bits of records as integers, and other arrays unchanged."""
    return array[array.dtype.names[0]] if array.dtype.names else array


def address(array: Array) -> int:
    """Returns the address of an array's first number."""
    return int(array.__array_interface__["data"][0])


def with_own_dtype(array: Array) -> Array:
    """Converts an array of ml_dtypes to records, and big-endian numbers to little-endian. Returns
    other arrays unchanged."""
    if array.dtype.byteorder == ">":
        return array.astype(array.dtype.newbyteorder("<"))
    name = array.dtype.name
    return array.view(RECORDS[name]) if name in RECORDS and not array.dtype.names else array
