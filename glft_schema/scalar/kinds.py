"""The kinds of numbers: how each is stored, in Python, numpy, torch and C."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np

Span: TypeAlias = tuple[int, int]  # the least and the greatest value
ANY: Span = (-(2**31), 2**31 - 1)


class Kind(NamedTuple):
    """A kind of number.

    Attributes:
        name: in declarations.
        letter: in the module `struct`; "" if it lacks the kind.
        numpy: the words, without a byte order.
        dtype: the name of the dtype in numpy and torch.
        c: the type of a value in C.
        unaligned: the type in printed C of a number that begins at any byte.
        computed: the kind of its value in scalar functions; "" if they have none.
    """

    name: str
    letter: str
    numpy: str
    dtype: str
    c: str
    unaligned: str
    computed: str = ""

    @property
    def size(self) -> int:
        """Bytes of a number."""
        return int(self.numpy[1:])

    @property
    def span(self) -> Span:
        """The integers that scalar functions read; u32 is read as the int32 of its bits."""
        if self.numpy[0] == "f" or self.size >= 4:
            return ANY
        limits = np.iinfo(self.numpy)
        return int(limits.min), int(limits.max)


# fmt: off
KINDS = {kind.name: kind for kind in (
    Kind("i8",   "b", "i1", "int8",     "int8_t",   "int8_t",  "int32"),
    Kind("u8",   "B", "u1", "uint8",    "uint8_t",  "uint8_t", "int32"),
    Kind("i16",  "h", "i2", "int16",    "int16_t",  "i16",     "int32"),
    Kind("u16",  "H", "u2", "uint16",   "uint16_t", "u16",     "int32"),
    Kind("i32",  "l", "i4", "int32",    "int32_t",  "i32",     "int32"),
    Kind("u32",  "L", "u4", "uint32",   "uint32_t", "u32",     "int32"),
    Kind("i64",  "q", "i8", "int64",    "int64_t",  "i64"),
    Kind("u64",  "Q", "u8", "uint64",   "uint64_t", "u64"),
    Kind("f16",  "e", "f2", "float16",  "uint16_t", "u16",     "float32"),
    Kind("bf16", "",  "u2", "bfloat16", "uint16_t", "u16",     "float32"),
    Kind("f32",  "f", "f4", "float32",  "float",    "f32",     "float32"),
    Kind("f64",  "d", "f8", "float64",  "double",   "f64"),
)}
# The kinds of expressions of scalar functions, as values.
COMPUTED = {"float32": KINDS["f32"], "int32": KINDS["i32"], "bool": Kind("bool", "?", "b1", "bool", "int32_t", "int32_t")}
READ = [name for name, kind in KINDS.items() if kind.computed and kind.letter]  # by scalar functions
OUTPUTS = {"f32": "", "f16": "_f16", "bf16": "_bf16"}  # kinds that decoders write, and the ends of their names in C
# fmt: on
