"""Tables of the grids for scalar functions: the candidates of each point.

A vector divided by a scale and rounded is a point, a vector of digits. Its number has these digits,
the first one lowest, in base 3 (6561 points of eight digits) or 8 (4096 points of four digits). Its
word has them as fields, of 2 bits in base 3 and of 4 bits in base 8. A grid has few of the points.
The candidates of a point off the grid are the entries closest to it: all entries at the smallest
distance, or at the smallest two or three distances. A point has 1 to 292 candidates; most points
have only a few.

A grid has three tables:

- INDICES: for each point, its index in the grid, or -1 if it is off the grid.
- STARTS: for each point, the start of its candidates in CANDIDATES, in units of eight. The last
  number is the end. A point on the grid has no candidates.
- CANDIDATES: words of entries in ascending order of distance, then of index. The last eight of a
  point are filled up with its first candidate.

Source: iq2xs_init_impl and iq3xs_init_impl of ggml-quants.c of llama.cpp.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from glft_schema.scalar.language import LookupTable
from glft_schema.tensor_types.grids import VALUES, digits


def _tables(name: str, distances: int) -> tuple[LookupTable, LookupTable, LookupTable]:
    """Returns INDICES, STARTS and CANDIDATES of a grid, computed when they are first read.

    The candidates of a point are the entries at the `distances` smallest distances.
    """

    @cache
    def tables() -> tuple[np.ndarray[Any, Any], ...]:
        grid, base = digits(name).astype(np.int32), len(VALUES[name])
        places = np.arange(grid.shape[1])
        points = np.arange(base ** len(places))[:, np.newaxis] // base**places % base
        words = (grid << 16 // len(places) * places).sum(1)

        squares = (points * points).sum(1, keepdims=True) + (grid * grid).sum(1)
        squares = (squares - 2 * (points.astype(np.float32) @ grid.T.astype(np.float32))).astype(np.uint8)  # of distances
        limit = squares.min(1, keepdims=True)
        indices = np.where(limit[:, 0] == 0, squares.argmin(1), -1)
        for _ in range(distances - 1):
            limit = np.where(squares > limit, squares, 255).min(1, keepdims=True)
        starts, candidates = [0], []
        for index, row, near in zip(indices, squares, squares <= limit, strict=True):
            listed = np.flatnonzero(near) if index < 0 else np.empty(0, int)
            listed = listed[row[listed].argsort(kind="stable")]
            candidates += [words[listed], words[listed[:1]].repeat(-len(listed) % 8)]
            starts.append(starts[-1] + -(-len(listed) // 8))
        return indices, np.array(starts), np.concatenate(candidates)

    return LookupTable(lambda: tables()[0]), LookupTable(lambda: tables()[1]), LookupTable(lambda: tables()[2])


IQ2_XXS_INDICES, IQ2_XXS_STARTS, IQ2_XXS_CANDIDATES = _tables("iq2_xxs", 2)
IQ2_XS_INDICES, IQ2_XS_STARTS, IQ2_XS_CANDIDATES = _tables("iq2_xs", 2)
IQ2_S_INDICES, IQ2_S_STARTS, IQ2_S_CANDIDATES = _tables("iq2_s", 1)
IQ3_XXS_INDICES, IQ3_XXS_STARTS, IQ3_XXS_CANDIDATES = _tables("iq3_xxs", 2)
IQ3_S_INDICES, IQ3_S_STARTS, IQ3_S_CANDIDATES = _tables("iq3_s", 3)
IQ1_INDICES, IQ1_STARTS, IQ1_CANDIDATES = _tables("iq1_s", 3)
