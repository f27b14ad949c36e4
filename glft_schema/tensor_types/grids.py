"""The fixed grids of ggml's i-quants: codebooks of short vectors. Each vector of weights is
replaced by the index of an entry.

The grids are stored in ``ggml_grids.bin``, declared by `Grids`. An entry is stored as indices into
its grid's list in VALUES.

Source: ggml-common.h of llama.cpp; checked against the grids of gguf-py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from glft_schema.codec.numbers import u8
from glft_schema.codec.structs import Struct
from glft_schema.scalar.language import LookupTable

# fmt: off
Grids = Struct(
    "iq2_xxs" / u8[256, 2]  * "256 entries of 8 values, 2 bits each, the lowest first",
    "iq2_xs"  / u8[512, 2]  * "512 entries of 8 values, 2 bits each",
    "iq2_s"   / u8[1024, 2] * "1024 entries of 8 values, 2 bits each",
    "iq3_xxs" / u8[256, 2]  * "256 entries of 4 values, 4 bits each",
    "iq3_s"   / u8[512, 2]  * "512 entries of 4 values, 4 bits each",
    "iq1_s"   / u8[2048, 2] * "2048 entries of 8 values, 2 bits each",
)

VALUES = {
    "iq2_xxs": (8, 25, 43),
    "iq2_xs":  (8, 25, 43),
    "iq2_s":   (8, 25, 43),
    "iq3_xxs": (4, 12, 20, 28, 36, 44, 52, 62),
    "iq3_s":   (1, 3, 5, 7, 9, 11, 13, 15),
    "iq1_s":   (-1, 0, 1),
}
# fmt: on

GRIDS = Path(__file__).with_name("ggml_grids.bin")


def digits(name: str) -> np.ndarray[Any, Any]:
    """Returns a grid as u8 [entries, values]: the index of each value in VALUES."""
    sizes = {field.name: field.sizeof() for field in Grids.subcons}
    start = sum(size for other, size in list(sizes.items())[: list(sizes).index(name)])
    packed = np.fromfile(GRIDS, np.uint8, sizes[name], offset=start).reshape(-1, 2, 1)
    width = 2 if len(VALUES[name]) <= 4 else 4
    unpacked = packed >> np.arange(0, 8, width, dtype=np.uint8) & (1 << width) - 1
    return unpacked.reshape(len(packed), -1)


def _table(name: str) -> LookupTable:
    """Returns the numbers of a grid, entry by entry, for scalar functions."""
    return LookupTable(lambda: np.array(VALUES[name], np.int8)[digits(name)].reshape(-1))


IQ2_XXS_GRID, IQ2_XS_GRID, IQ2_S_GRID = _table("iq2_xxs"), _table("iq2_xs"), _table("iq2_s")
IQ3_XXS_GRID, IQ3_S_GRID, IQ1_GRID = _table("iq3_xxs"), _table("iq3_s"), _table("iq1_s")
