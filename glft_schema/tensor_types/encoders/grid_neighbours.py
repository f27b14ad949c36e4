"""Searches for the best grid entry for each vector of weights.

A vector divided by a scale and rounded is a point. A grid has few points: 256 or 512 of the 4096
points of four numbers from 0 to 7, 256 to 2048 of the 6561 points of eight numbers from 0 to 2. The
candidates of a point off the grid are all entries nearly as close to it as the closest one. Which
one is best depends on the weights around the point and on their counts.

A point has 1 to 292 candidates, most points only a few. So vectors are sorted by their number of
candidates, the largest first. The first candidates of all vectors are tried at once, then the
second candidates of the vectors that have at least two, and so on, each time on a shorter prefix.

Source: the tables and searches of ggml-quants.c of llama.cpp; checked against them bit by bit.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

from glft_schema.lazy import torch
from glft_schema.tensor_types.engine.arithmetic import is_less, pick
from glft_schema.tensor_types.engine.bits import along, is_fused, looked_up_word, once
from glft_schema.tensor_types.engine.chunks import cache_slices
from glft_schema.tensor_types.engine.steps import step
from glft_schema.tensor_types.grids import VALUES, levels

TILE = 1 << 18  # entries tried at once
OFF_GRID = 1 << 30  # the bit of a word whose entry was chosen for a point off the grid


class Candidates(NamedTuple):
    """The candidates of some consecutive ranks, say the seventh to the ninth of each point."""

    points: int  # that have at least the first of these ranks
    rows: torch.Tensor  # int32 [ranks], the index of each rank's first word
    words: torch.Tensor  # int32 [ranks * points]; a missing candidate is replaced by the point's first one


class Neighbours(NamedTuple):
    """A grid's entries and candidates, as tables for the search.

    A word is an entry: a field per value, its digit or 2 * digit + 1. Points are numbers in base
    `base`, value 0 being the lowest digit. They are sorted into places: points with most candidates
    first, points with one, as on the grid, last.
    """

    base: int  # the number of digits
    values: int  # per entry
    width: int  # bits of a word's field
    odd: bool  # whether a field is 2 * digit + 1
    place: torch.Tensor  # int16 [base ** values], of each point
    first: torch.Tensor  # int32 [base ** values], the first candidate of the point in each place
    others: list[Candidates]  # the next candidates, in steps of increasing size
    ends: torch.Tensor  # int16 [steps], the number of points in each step
    entry: torch.Tensor  # int16 [base ** values], the index of each entry in the grid; undefined for other points

    def fields(self, words: torch.Tensor) -> torch.Tensor:
        """Returns the fields of words of any shape, int32 [values, ...]."""
        return fields_of(words, self.values, self.width)

    def lowest(self) -> torch.Tensor:
        """Returns the word of the entry whose digits are all 0: int32 []."""
        return self.first[self.place[0].to(torch.int32)]

    def entries(self, words: torch.Tensor) -> torch.Tensor:
        """Returns the indices of entries in the grid, int32, for words of any shape."""
        digits = self.fields(words)
        digits = digits >> 1 if self.odd else digits
        return self.entry.index_select(0, points(digits, self.base).flatten()).reshape(words.shape).to(torch.int32)


def fields_of(words: torch.Tensor, values: int, width: int) -> torch.Tensor:
    """Returns the fields of words of any shape, int32 [values, ...]."""
    shifts = torch.arange(0, width * values, width, dtype=torch.int32, device=words.device)
    return (words >> along(0, shifts, words.dim() + 1)).bitwise_and_((1 << width) - 1)


def points(digits: torch.Tensor, base: int) -> torch.Tensor:
    """Returns the numbers of points: digits [values, ...] -> [...]."""
    *others, number = digits.unbind()
    for digit in reversed(others):
        number = torch.add(digit, number, alpha=base)
    return number


@cache
def neighbours(name: str, shells: int, device: torch.device, odd: bool = True) -> Neighbours:
    """Returns the tables of a grid, computed on the CPU in 0.1 to 0.4 s at their first use on a
    device.

    Entries at the `shells` least distances from a point are its candidates.
    """
    with torch.device("cpu"):
        grid = levels(name).to(torch.int32)
        base, values = len(VALUES[name]), grid.shape[1]
        width = 4 if values == 4 else 3
        numbers = (grid * base ** torch.arange(values, dtype=torch.int32)).sum(1)
        words = ((2 * grid + 1 if odd else grid) << width * torch.arange(values, dtype=torch.int32)).sum(1, dtype=torch.int32)
        point, near, distance = _pairs(grid, base, shells)

        counts = point.bincount(minlength=base**values)
        on_grid = torch.zeros_like(counts)
        on_grid[numbers] = 1
        by_place = (2 * counts - on_grid).argsort(descending=True, stable=True)  # points on the grid after all others
        place = torch.empty_like(by_place).scatter_(0, by_place, torch.arange(len(by_place)))
        keys = (place[point] << 10 | distance) * len(grid) + near  # by place, then by distance, then as in the grid
        order = keys.argsort()
        starts = counts[by_place].cumsum(0) - counts[by_place]
        at, listed = place[point][order], words[near[order]]
        rank = torch.arange(len(order)) - starts[at]

        closest = listed[starts]
        others, begin = [], 0
        while points := int((counts > max(begin, 1)).sum()):
            ranks = max((begin + 2) // 3, 2 - begin)
            rows = torch.arange(0, points * ranks, points, dtype=torch.int32)
            step = Candidates(points, rows, closest[:points].repeat(ranks))
            among = (rank >= begin) & (rank < begin + ranks) & (at < points)
            step.words[(rank[among] - begin) * points + at[among]] = listed[among]
            step.words.bitwise_or_(OFF_GRID)
            others.append(step._replace(rows=rows.to(device), words=step.words.to(device)))
            begin += ranks
        first = closest | OFF_GRID * (1 - on_grid[by_place]).to(torch.int32)
        ends = torch.tensor([step.points for step in others], dtype=torch.int16)
        entry = torch.zeros(len(counts), dtype=torch.int16)
        entry[numbers] = torch.arange(len(grid), dtype=torch.int16)
    place, first, ends, entry = (part.to(device) for part in (place.to(torch.int16), first, ends, entry))
    return Neighbours(base, values, width, odd, place, first, others, ends, entry)


def _pairs(grid: torch.Tensor, base: int, shells: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns all pairs of a point and its candidate, as numbers, and their squared distances."""
    every = torch.arange(base ** grid.shape[1])
    digits = torch.stack([every // base**i % base for i in range(grid.shape[1])], 1).to(torch.float32)
    entries = grid.to(torch.float32)
    pairs = []
    for begin in range(0, len(digits), 1024):
        part = digits[begin : begin + 1024]  # products of small integers are exact
        squares = (part * part).sum(1, keepdim=True) + (entries * entries).sum(1) - 2 * part @ entries.T
        shell = squares.amin(1, keepdim=True)
        on_grid = shell == 0
        for _ in range(shells - 1):
            shell = squares.masked_fill(squares <= shell, torch.inf).amin(1, keepdim=True)
        within = squares <= shell.masked_fill_(on_grid, 0)  # an entry is its only candidate
        point, near = within.nonzero(as_tuple=True)
        pairs.append(torch.stack((point + begin, near, squares[within].to(torch.int64))))
    point, near, distance = torch.cat(pairs, 1)
    return point, near, distance


def best_entries(
    known: Neighbours,
    points: torch.Tensor,
    weights: torch.Tensor,
    counts: torch.Tensor,
    scales: torch.Tensor,
    shifts: torch.Tensor | None = None,
) -> torch.Tensor:
    """Returns the best entry for each of n vectors, as words, int32 [n].

    The best entry is the candidate whose values q minimize the sum of ``count * (scale * q -
    weight) ** 2``, the first one of several. A point on the grid is its own entry. Points are int32
    [n], weights and counts float32 [values, n]; scales, and shifts, which are added to the values,
    are float32 [n].
    """
    place, order = known.place.index_select(0, points).sort()
    words = known.first.index_select(0, place.to(torch.int32))
    ends = torch.searchsorted(place, known.ends).tolist()  # the number of vectors in each step
    if ends and ends[0]:
        chosen, place = order[: ends[0]], place[: ends[0]].to(torch.int32)
        sums = [scales, *weights, *counts, *([] if shifts is None else [shifts])]
        vectors = [row.index_select(0, chosen) for row in sums]
        least = torch.full_like(vectors[0], math.inf)
        for step_, n in zip(known.others, ends, strict=True):
            for part in cache_slices(n, TILE // len(step_.rows), words.device, n):
                tried = (row[part] for row in (place, words, least, *vectors))
                _try_candidates(step_.words, step_.rows, *tried, width=known.width, values=known.values)
    return torch.empty_like(words).scatter_(0, order, words)


@step
def _try_candidates(
    table: torch.Tensor,
    rows: torch.Tensor,
    place: torch.Tensor,
    words: torch.Tensor,
    least: torch.Tensor,
    scales: torch.Tensor,
    *vectors: torch.Tensor,
    width: int,
    values: int,
) -> None:
    """Replaces the words of n vectors, and their least distances, by those of nearer candidates.

    Args:
        table: the words of candidates.
        rows: for each rank, the index of the word for place 0.
        place: the places of the points.
        words: the best entry of each vector so far.
        least: its distance, the sum of ``count * (scale * value - weight) ** 2``.
        scales: of the vectors.
        vectors: weights and counts, one tensor [n] per value, and perhaps shifts of all values.
        width: bits of a word's field.
        values: per vector.
    """
    every = looked_up_word(table, rows.unsqueeze(1) + place)
    distances = torch.zeros_like(every, dtype=torch.float32)
    shifts = vectors[2 * values :]
    for number, (weight, count) in enumerate(zip(vectors[:values], vectors[values : 2 * values], strict=True)):
        wrong = (every >> width * number).bitwise_and_((1 << width) - 1).to(torch.float32)
        for shift in shifts:
            wrong.add_(shift)
        wrong.mul_(scales).sub_(weight)
        distances.add_((wrong * count).mul_(wrong))
    if is_fused(distances):
        nearest, rank = once(distances).min(0)
        keep_less(least, words, nearest, looked_up_word(table, looked_up_word(rows, rank) + place))
    else:
        keep_less(least, words, *least_of(distances, every))


def least_of(numbers: torch.Tensor, words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the least number of each column and the word of the first one: [k, n] -> [n],
    overwriting both.

    A knockout of neighbouring rows: torch's argmin is slow.
    """
    while len(numbers) > 1:
        pairs = len(numbers) // 2
        keep_less(numbers[0::2][:pairs], words[0::2][:pairs], numbers[1::2], words[1::2])
        numbers, words = numbers[0::2], words[0::2]
    return numbers.squeeze(0), words.squeeze(0)


def keep_less(least: torch.Tensor, words: torch.Tensor, numbers: torch.Tensor, others: torch.Tensor) -> None:
    """Replaces numbers by smaller ones, and their words by the others, in place."""
    pick(is_less(numbers, least), others, words)
    torch.minimum(least, numbers, out=least)
