"""A small language for decoders and encoders of single blocks: a subset of Python that is checked,
run as it is, and printed as C or as operations on arrays.

The package needs numpy only, and knows nothing of tensor types. The language is described in
docs/concepts/scalar-functions.md.
"""

from glft_schema.scalar.language import (
    LookupTable,
    ScalarError,
    alone,
    as_bits,
    as_float,
    as_float16,
    float16,
    float32,
    floats,
    int32,
    integers,
    nearest,
    root,
    run,
    truncated,
)

__all__ = [
    "LookupTable",
    "ScalarError",
    "alone",
    "as_bits",
    "as_float",
    "as_float16",
    "float16",
    "float32",
    "floats",
    "int32",
    "integers",
    "nearest",
    "root",
    "run",
    "truncated",
]
