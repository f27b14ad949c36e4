"""Searches for scales and grid entries of i1-quants, whose values are -1, 0 and 1, all shifted by
1/8 up or down.

The search minimizes the same sum as `grid_searches`. With three values, weights in ascending order
are
best split into three parts: the first becomes -1, the middle 0, the last 1. So all splits are tried
(561 for 32 weights, 153 for 16), each with every shift. Each has a best scale, see `trials.by_fit`;
a negative scale mirrors the values. Only then do vectors off the grid move to it.

The C code keeps a running best with rounded comparisons. This module takes the argmin, and replays
C's loop only for groups with a near-tie.

Source: the quantize functions of ggml-quants.c of llama.cpp; checked against them bit by bit. C
sorts equal weights in the order of the library's qsort. Here the sort is stable, like glibc's merge
sort.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from glft_schema.lazy import torch
from glft_schema.tensor_types.encoders.grid_neighbours import OFF_GRID, Neighbours, best_entries, neighbours, points
from glft_schema.tensor_types.encoders.grid_searches import counted, cut, overflows
from glft_schema.tensor_types.encoders.trials import by_fit, keep_better
from glft_schema.tensor_types.engine.arithmetic import is_less, total
from glft_schema.tensor_types.engine.chunks import slices

GROUPS = 1 << 11  # whose splits are all tried at once
CLOSE = 1 + 2.0**-19  # two splits are nearly tied if the quotient of their errors is less: rounding may decide
DELTA = 0.125
UP = (-1 + DELTA, DELTA, 1 + DELTA)  # the values with the shift upwards
DOWN = (-1 - DELTA, -DELTA, 1 - DELTA)


class Sorted(NamedTuple):
    """Groups [weights, groups] in ascending order of weights; products are counts times weights."""

    products: torch.Tensor
    weights: torch.Tensor
    counts: torch.Tensor
    places: torch.Tensor  # the original positions

    def some(self, groups: slice | torch.Tensor) -> Sorted:
        return Sorted(*(part[:, groups] for part in self))


def splits(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns all splits of `size` weights: the sizes of the first part, and of the first two
    parts, [splits] each.

    They are sorted by the second number; C tries them sorted by the first one.
    """
    second, first = torch.tril_indices(size + 1, size + 1, device="cpu")
    return first, second


# Groups -> the sums of count * weight * value and of count * value ** 2, for split w with shift s
# in row w * shifts + s: [splits times shifts, groups] each.
Sums = Callable[[Sorted], "tuple[torch.Tensor, torch.Tensor]"]


def sums_by_group(groups: Sorted) -> tuple[torch.Tensor, torch.Tensor]:
    """Uses one shift per group. The sum of each part is the difference of two prefix sums."""
    size, count = groups.weights.shape
    out_shape = (size + 1) * (size + 2) // 2, 2, count  # splits, shifts, groups
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
    """Uses a shift per half, whose sum is that of the last value, corrected for the others."""
    size, count = groups.weights.shape
    out_shape = (size + 1) * (size + 2) // 2, 2, 2, count  # splits, shifts of the first half, of the second half, groups
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
    """Returns the sums of the first 0, 1, 2 ... rows, added up in order."""
    sums = torch.zeros(len(rows) + 1, rows.shape[1], device=rows.device)
    for i, row in enumerate(rows):
        torch.add(sums[i], row, out=sums[i + 1])
    return sums


def times(numbers: torch.Tensor, value: float, power: int) -> torch.Tensor:
    """Multiplies by a value once or twice, rounding each time."""
    return numbers * value if power == 1 else numbers * value * value


def best_split(groups: Sorted, sums: Sums, shifts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the row of the best split and shift, or -1, and its scale: [groups] each."""
    count = groups.weights.shape[1]
    chosen = torch.empty(count, dtype=torch.int32, device=groups.weights.device)
    scales, tied = torch.empty_like(groups.weights[0]), torch.empty_like(chosen, dtype=torch.bool)
    for part in slices(count, GROUPS):
        chosen[part], scales[part], tied[part] = _least(*sums(groups.some(part)))
    first, second = splits(len(groups.weights))
    order = (first * len(first) + second).argsort().unsqueeze(1) * shifts + torch.arange(shifts, device="cpu")
    replayed = tied.nonzero().squeeze(1)
    for part in slices(len(replayed), GROUPS):
        some = replayed[part]
        chosen[some], scales[some] = _replay(*sums(groups.some(some)), order.flatten())
    return chosen, scales


def _least(fit: torch.Tensor, size: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns the row with the least size / fit ** 2, its scale, and the mask of near-ties."""
    errors = torch.div(size, fit * fit)
    limit = errors.amin(0) * CLOSE
    number = torch.arange(1, len(fit) + 1, dtype=torch.int32, device=fit.device).unsqueeze(1)
    last = is_less(errors, limit).bitwise_and_(number).amax(0) - 1
    chosen = last.to(torch.int64).clamp_(min=0).unsqueeze(0)
    best = torch.cat([part.gather(0, chosen) for part in (fit, size)])
    normal = ((best.abs() > 1e-12) & (best.abs() < 1e12)).all(0)  # no number that matters underflowed or overflowed
    others = errors.scatter_(0, chosen, torch.inf).amin(0)
    return chosen[0].to(torch.int32), best[0] / best[1], ~(normal & (others > limit))


def _replay(fit: torch.Tensor, size: torch.Tensor, order: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Runs C's loop over the rows in `order`. Returns the best row and its scale: [groups] each."""
    best = torch.full_like(fit[0], torch.finfo(torch.float32).min)
    scale, chosen = torch.zeros_like(best), torch.full_like(best, -1, dtype=torch.int32)
    number = torch.arange(len(fit), dtype=torch.int32, device=fit.device).unsqueeze(1)
    keep_better((best, scale, chosen), (by_fit(best, fit[row], size[row], number[row]) for row in order.tolist()))
    return chosen, scale


class Split(NamedTuple):
    """The best split of each group, before vectors move to the grid."""

    digits: torch.Tensor  # int32 [weights of a group, groups]: the part of each weight, 0, 1 or 2
    down: torch.Tensor  # int32 [vectors, groups], 1 if values are shifted downwards
    scales: torch.Tensor  # [groups], none negative
    exists: torch.Tensor  # [groups], whether any split is better than none


class BestSplits(NamedTuple):
    """The result of a search, [..., groups of a block, blocks]."""

    weights: torch.Tensor  # as laid out by `cut`
    counts: torch.Tensor
    scales: torch.Tensor  # none negative
    largest: torch.Tensor  # the largest scale of a block, [blocks]; infinite if sums overflow
    entries: torch.Tensor  # int32 [vectors, ...], indices into the grid
    words: torch.Tensor  # the entries as words
    down: torch.Tensor  # int32 [vectors, ...], 1 if values are shifted downwards


@dataclass(frozen=True)
class SplitSearch:
    """The search of a type."""

    vectors: int  # of eight weights, per group
    least: float  # groups whose weights are all smaller become zeros
    shifts: int  # of a group: two of a whole group or four of its halves
    sums: Sums  # `sums_by_group` or `sums_by_half`

    def __call__(self, blocks: torch.Tensor, importance: torch.Tensor | None = None) -> BestSplits:
        """Searches for float32 [blocks, 256]. Without an importance, an error counts w^2."""
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
        return BestSplits(weights, counts, scales, largest, known.entries(words), words, down)

    def _split(self, weights: torch.Tensor, counts: torch.Tensor) -> Split:
        """Searches for the best split of each group of weights and counts [8, vectors, groups]."""
        weights, counts = (part.transpose(0, 1).flatten(0, 1) for part in (weights, counts))
        ascending, order = weights.T.contiguous().sort(dim=1, stable=True)
        places, ascending = order.T.contiguous(), ascending.T.contiguous()
        counts = counts.gather(0, places)
        row, scales = best_split(Sorted(counts * ascending, ascending, counts, places), self.sums, self.shifts)
        exists, row = row >= 0, row.clamp(min=0)

        first, second = (part.to(row.device)[row // self.shifts] for part in splits(len(places)))
        rank = torch.empty_like(order).scatter_(1, order, torch.arange(len(places), device=order.device).expand_as(order)).T
        digits = rank.ge(first).to(torch.int32) + rank.ge(second).to(torch.int32)
        shift, turned = row % self.shifts, scales < 0
        digits = torch.where(turned, 2 - digits, digits)
        shift = torch.where(turned, self.shifts - 1 - shift, shift).to(torch.int32)
        # a shift is one bit for all vectors, or a bit for each half, the first half's above
        bits = [self.vectors - 1 - vector if self.shifts == 4 else 0 for vector in range(self.vectors)]
        return Split(digits, torch.stack([shift >> bit & 1 for bit in bits]), scales.abs(), exists)


def ternary(device: torch.device) -> Neighbours:
    """Returns the tables of the grid of both types."""
    return neighbours("iq1_s", 3, device, odd=False)


def shifted(known: Neighbours, words: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """Returns the shifted values of entries: float32 [8, ...] for words and `down` [...]."""
    return known.fields(words).to(torch.float32).add_(least_values(down))


def least_values(down: torch.Tensor) -> torch.Tensor:
    """Returns the shifted value of the digit 0: float32, for `down` of any shape."""
    return -1 + DELTA - 2 * DELTA * down.to(torch.float32)


def on_grid(known: Neighbours, weights: torch.Tensor, counts: torch.Tensor, split: Split) -> tuple[torch.Tensor, torch.Tensor]:
    """Moves vectors of weights [8, vectors, groups] to the grid, and fits the scales of their
    groups again.

    Returns:
        The words of the entries, int32 [vectors, groups], and the scales [groups].
    """
    vectors, groups = split.down.shape
    numbers = points(split.digits.view(vectors, 8, groups).transpose(0, 1).flatten(1), known.base)
    scales, shifts = split.scales.expand(vectors, groups).flatten(), least_values(split.down).flatten()
    words = best_entries(known, numbers, weights.flatten(1), counts.flatten(1), scales, shifts).view(vectors, groups)
    values = shifted(known, words, split.down)
    parts = counts * values
    fit, size = (total((parts * other).transpose(0, 1).flatten(0, 1)) for other in (weights, values))
    moved = ((words & OFF_GRID) != 0).any(0) & (fit > 0) & (size > 0)
    return words, torch.where(moved, fit / size, split.scales)
