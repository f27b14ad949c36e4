"""Finds scales and entries of the grid of i1-quants, whose values are -1, 0 and 1, all shifted by 1/8 up or down.

What is minimized is the same as in `grid_searches`. But with three values, weights in ascending order are best cut in three:
the first ones become -1, those in the middle 0, the last ones 1. So all ways to cut them are tried, 561 of 32 weights and 153
of 16, each with all shifts; each has a best scale, and the best way is the one whose first sum, squared, is largest against the
second. (With a scale below 0 all is turned round.) Only then are vectors moved to the grid, if they are not on it.

C takes the ways in turn, and one that is better than the best so far by a comparison of rounded numbers. Here the best is taken
at once, where no other is as good but for rounding; groups in which one is go through all ways in turn, as in C.

Source: the quantize functions of ggml-quants.c of llama.cpp; checked against them bit by bit. Weights that are equal are there
in the order in which the C library's qsort leaves them; here they stay in theirs, as with glibc's merge sort.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from glft_schema.lazy import torch
from glft_schema.tensor_types.encoders.grid_neighbours import OFF_GRID, Neighbours, best_entries, neighbours
from glft_schema.tensor_types.encoders.grid_searches import counted, cut, overflows
from glft_schema.tensor_types.engine.arithmetic import is_less, total

GROUPS = 1 << 11  # of which all ways are tried at once
CLOSE = 1 + 2.0**-19  # the quotient up to which rounding may decide which of two ways is better
DELTA = 0.125
UP = (-1 + DELTA, DELTA, 1 + DELTA)  # the values with the shift upwards
DOWN = (-1 - DELTA, -DELTA, 1 - DELTA)


class Sorted(NamedTuple):
    """Groups in ascending order of their weights: [weights of a group, groups].

    Attributes:
        products: how much weights count, times the weights.
        weights: these.
        counts: how much they count.
        places: where they were.
    """

    products: torch.Tensor
    weights: torch.Tensor
    counts: torch.Tensor
    places: torch.Tensor

    def some(self, groups: slice | torch.Tensor) -> Sorted:
        return Sorted(*(part[:, groups] for part in self))


def ways(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns all ways to cut so many weights, as how many are in the first part, and in the first two: [ways] each.

    They are sorted by the second number; C goes through them sorted by the first one.
    """
    second, first = torch.tril_indices(size + 1, size + 1, device="cpu")
    return first, second


# Groups -> the sums of count * weight * value and of count * value ** 2, of way w with shift s in row w * shifts + s: [ways
# times shifts, groups] each.
Sums = Callable[[Sorted], "tuple[torch.Tensor, torch.Tensor]"]


def sums_by_group(groups: Sorted) -> tuple[torch.Tensor, torch.Tensor]:
    """With one shift for the whole group: each part's sum is the difference of two of those from the first weight on."""
    size, count = groups.weights.shape
    out_shape = (size + 1) * (size + 2) // 2, 2, count  # ways, shifts, groups
    fits, sizes = (torch.empty(out_shape, device=groups.weights.device) for _ in range(2))
    for numbers, out, power in ((groups.products, fits, 1), (groups.counts, sizes, 2)):
        so_far = prefixes(numbers)
        left = [times(so_far, values[0], power) for values in (UP, DOWN)]
        right = [times(so_far[-1] - so_far, values[2], power) for values in (UP, DOWN)]
        at = 0
        for second in range(size + 1):
            middle = so_far[second] - so_far[: second + 1]
            for shift, values in enumerate((UP, DOWN)):
                rows = torch.mul(middle, values[1], out=out[at : at + second + 1, shift])
                if power == 2:
                    rows.mul_(values[1])
                rows.add_(left[shift][: second + 1]).add_(right[shift][second])
            at += second + 1
    return fits.flatten(0, 1), sizes.flatten(0, 1)


def sums_by_half(groups: Sorted) -> tuple[torch.Tensor, torch.Tensor]:
    """With a shift for each half: each half's sum is that of all its weights with the last value, and what others add to it."""
    size, count = groups.weights.shape
    out_shape = (size + 1) * (size + 2) // 2, 2, 2, count  # ways, shifts of the first half, of the second one, groups
    fits, sizes = (torch.empty(out_shape, device=groups.weights.device) for _ in range(2))
    in_first = (groups.places < size // 2).to(torch.float32)
    for numbers, out, power in ((groups.products, fits, 1), (groups.counts, sizes, 2)):
        so_far = torch.stack([prefixes(numbers * part) for part in (in_first, 1 - in_first)])  # [halves, weights + 1, groups]
        last = torch.stack([times(so_far[:, -1:], values[2], power) for values in (UP, DOWN)])  # [shifts, halves, 1, groups]
        steps = [[values[i] ** 2 - values[i + 1] ** 2 for values in (UP, DOWN)] for i in range(2)]
        by_value = [torch.stack([so_far * step for step in part]) for part in steps]  # [shifts, halves, weights + 1, groups]
        at = 0
        for second in range(size + 1):
            if power == 1:  # values are 1 apart
                halves = last - (so_far[:, second : second + 1] + so_far[:, : second + 1])
            else:
                halves = by_value[0][:, :, : second + 1] + last + by_value[1][:, :, second : second + 1]
            rows = out[at : at + second + 1].permute(1, 2, 0, 3)
            torch.add(halves[:, 0].unsqueeze(1), halves[:, 1].unsqueeze(0), out=rows)
            at += second + 1
    return fits.flatten(0, 2), sizes.flatten(0, 2)


def prefixes(rows: torch.Tensor) -> torch.Tensor:
    """Returns the sums of the first 0, 1, 2 ... rows, added up one after another."""
    sums = torch.zeros(len(rows) + 1, rows.shape[1], device=rows.device)
    for i, row in enumerate(rows):
        torch.add(sums[i], row, out=sums[i + 1])
    return sums


def times(numbers: torch.Tensor, value: float, power: int) -> torch.Tensor:
    """Multiplies by a value once or twice, rounding each time."""
    return numbers * value if power == 1 else numbers * value * value


def best_way(groups: Sorted, sums: Sums, shifts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the row of the best way and shift of each group, -1 where none is any good, and the scale: [groups] each.

    Args:
        groups: their weights.
        sums: what makes the sums.
        shifts: how many rows of these a way has.
    """
    count = groups.weights.shape[1]
    chosen = torch.empty(count, dtype=torch.int64, device=groups.weights.device)
    scales, doubtful = torch.empty_like(groups.weights[0]), torch.empty_like(chosen, dtype=torch.bool)
    for begin in range(0, count, GROUPS):
        piece = slice(begin, begin + GROUPS)
        fit, size = sums(groups.some(piece))
        chosen[piece], doubtful[piece] = _least(fit, size)
        scales[piece] = _scale(fit, size, chosen[piece])
    first, second = ways(len(groups.weights))
    turns = (first * len(first) + second).argsort().unsqueeze(1) * shifts + torch.arange(shifts, device="cpu")
    left = doubtful.nonzero().squeeze(1)
    for begin in range(0, len(left), GROUPS):
        some = left[begin : begin + GROUPS]
        fit, size = sums(groups.some(some))
        chosen[some] = _taken_in_turn(fit, size, turns.flatten())
        scales[some] = _scale(fit, size, chosen[some])
    return chosen, scales


def _least(fit: torch.Tensor, size: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the row with the least size / fit ** 2 of each group, and where rounding may decide: [groups] each."""
    errors = torch.div(size, fit * fit)
    limit = errors.amin(0) * CLOSE
    number = torch.arange(1, len(fit) + 1, dtype=torch.int32, device=fit.device).unsqueeze(1)
    last = is_less(errors, limit).bitwise_and_(number).amax(0) - 1
    chosen = last.to(torch.int64).clamp_(min=0).unsqueeze(0)
    of_best = torch.cat([part.gather(0, chosen) for part in (fit, size)])
    ordinary = ((of_best.abs() > 1e-12) & (of_best.abs() < 1e12)).all(0)  # nothing that matters became 0 or infinite
    others = errors.scatter_(0, chosen, torch.inf).amin(0)
    return chosen[0], ~(ordinary & (others > limit))


def _taken_in_turn(fit: torch.Tensor, size: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """Returns the last row of those in turns that is better than the best before it, of each group: [groups]."""
    best = torch.full_like(fit[0], torch.finfo(torch.float32).min)
    chosen = torch.full_like(fit[0], -1, dtype=torch.int64)
    squares, scores = fit * fit, fit / size * fit
    for number in turns.tolist():
        better = (size[number] > 0) & (squares[number] > best * size[number])
        best = torch.where(better, scores[number], best)
        chosen = torch.where(better, number, chosen)
    return chosen


def _scale(fit: torch.Tensor, size: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    """Returns the scale that fits best in a row of each group: [groups]."""
    at = row.clamp(min=0).unsqueeze(0)
    return (fit.gather(0, at) / size.gather(0, at)).squeeze(0)


class Split(NamedTuple):
    """The best way to cut each group, before anything is moved to the grid.

    Attributes:
        digits: int32 [weights of a group, groups]: 0, 1 or 2, the part in which each weight is.
        down: int32 [vectors, groups], 1 where values are shifted downwards.
        scales: [groups], none below 0.
        exists: [groups], whether there is any that is better than none.
    """

    digits: torch.Tensor
    down: torch.Tensor
    scales: torch.Tensor
    exists: torch.Tensor


class FoundSplits(NamedTuple):
    """What a search found, [..., groups of a block, blocks].

    Attributes:
        weights: as `cut` has them.
        counts: how much they count.
        scales: none below 0.
        largest: the largest of a block, [blocks]; infinite where sums overflow.
        entries: int32 [vectors, ...], their numbers in the grid.
        words: the same as words.
        down: int32 [vectors, ...], 1 where values are shifted downwards.
    """

    weights: torch.Tensor
    counts: torch.Tensor
    scales: torch.Tensor
    largest: torch.Tensor
    entries: torch.Tensor
    words: torch.Tensor
    down: torch.Tensor


@dataclass(frozen=True)
class SplitSearch:
    """A search, as each type has its own.

    Attributes:
        vectors: of eight weights, in a group.
        least: a group without a weight as large as this becomes zeros.
        shifts: of the vectors of a group, together; two of a whole group or four of its halves.
        sums: `sums_by_group` or `sums_by_half`.
    """

    vectors: int
    least: float
    shifts: int
    sums: Sums

    def __call__(self, blocks: torch.Tensor, importance: torch.Tensor | None = None) -> FoundSplits:
        """Searches for float32 [blocks, 256], and how important each weight is, as many; by their squares without."""
        counts = blocks * blocks if importance is None else counted(blocks, importance)
        weights, counts = (cut(part, self.vectors, 8) for part in (blocks, counts))
        parts = weights.flatten(2), counts.flatten(2)
        split = self._split(*parts)
        zeros = (parts[0].abs().amax((0, 1)) < self.least) | ~split.exists
        known = ternary(blocks.device)
        words, scales = on_grid(known, *parts, split)

        shape = weights.shape[2:]
        scales = torch.where(zeros, 0.0, scales).view(shape)
        largest = scales.amax(0).masked_fill_(overflows(weights, counts), torch.inf)
        words, down = torch.where(zeros, known.lowest(), words).view(-1, *shape), (split.down * ~zeros).view(-1, *shape)
        return FoundSplits(weights, counts, scales, largest, known.entries(words), words, down)

    def _split(self, weights: torch.Tensor, counts: torch.Tensor) -> Split:
        """Searches the best way to cut each group: [8, vectors, groups] each."""
        weights, counts = (part.transpose(0, 1).flatten(0, 1) for part in (weights, counts))
        ascending, order = weights.T.contiguous().sort(dim=1, stable=True)
        places, ascending = order.T.contiguous(), ascending.T.contiguous()
        counts = counts.gather(0, places)
        row, scales = best_way(Sorted(counts * ascending, ascending, counts, places), self.sums, self.shifts)
        exists, row = row >= 0, row.clamp(min=0)

        first, second = (part.to(row.device)[row // self.shifts] for part in ways(len(places)))
        rank = torch.empty_like(order).scatter_(1, order, torch.arange(len(places), device=order.device).expand_as(order)).T
        digits = rank.ge(first).to(torch.int32) + rank.ge(second).to(torch.int32)
        shift, turned = row % self.shifts, scales < 0
        digits = torch.where(turned, 2 - digits, digits)
        shift = torch.where(turned, self.shifts - 1 - shift, shift).to(torch.int32)
        # of two shifts, one is for all vectors; of four, a bit for each half, the first half's above
        bits = [self.vectors - 1 - vector if self.shifts == 4 else 0 for vector in range(self.vectors)]
        return Split(digits, torch.stack([shift >> bit & 1 for bit in bits]), scales.abs(), exists)


def ternary(device: torch.device) -> Neighbours:
    """Returns what is known of the grid of both types."""
    return neighbours("iq1_s", 3, device, odd=False)


def shifted(known: Neighbours, words: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """Returns the values of entries, shifted: float32 [8, ...] of words, and whether they are shifted downwards, [...]."""
    return known.fields(words).to(torch.float32).add_(least_values(down))


def least_values(down: torch.Tensor) -> torch.Tensor:
    """Returns the value of the digit 0 where values are shifted downwards, or upwards: float32, of any shape."""
    return -1 + DELTA - 2 * DELTA * down.to(torch.float32)


def on_grid(known: Neighbours, weights: torch.Tensor, counts: torch.Tensor, split: Split) -> tuple[torch.Tensor, torch.Tensor]:
    """Moves vectors to the grid, which gives their groups other scales.

    Args:
        known: of the grid.
        weights: [8, vectors, groups].
        counts: how much they count.
        split: of these groups.

    Returns:
        The words of the entries, int32 [vectors, groups], and the scales [groups].
    """
    vectors, groups = split.down.shape
    points = split.digits.view(vectors, 8, groups).transpose(0, 1).flatten(1)
    scales, shifts = split.scales.expand(vectors, groups).flatten(), least_values(split.down).flatten()
    words = best_entries(known, points, weights.flatten(1), counts.flatten(1), scales, shifts).view(vectors, groups)
    values = shifted(known, words, split.down)
    parts = counts * values
    fit, size = (total((parts * other).transpose(0, 1).flatten(0, 1)) for other in (weights, values))
    moved = ((words & OFF_GRID) != 0).any(0) & (fit > 0) & (size > 0)
    return words, torch.where(moved, fit / size, split.scales)
