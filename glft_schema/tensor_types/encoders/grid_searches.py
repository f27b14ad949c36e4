"""Searches for scales and grid entries of groups of 16 or 32 weights.

The search minimizes the sum of ``count * (weight - scale * value) ** 2`` over a group. Given
entries, the best scale follows by least squares, see `trials.by_fit`. Given a scale,
weights are divided by it and rounded, and points off the grid move to a neighbour on it.
So the search tries scales that bring the largest weight near the grid's largest value. The entries
for each of them give a better scale, and the best scale is kept. Finally, depending on the type,
some entries are chosen again for that scale.

All groups are searched at once: each scalar variable of the C code is a tensor [groups]. Weights
are [values, vectors, groups], so that the sum over a vector adds up whole rows in order, as C does.

Source: the quantize functions of ggml-quants.c of llama.cpp; checked against them bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from glft_schema.lazy import torch
from glft_schema.tensor_types.encoders.code_searches import scale_of_bytes
from glft_schema.tensor_types.encoders.grid_neighbours import OFF_GRID, Neighbours, best_entries, fields_of, neighbours, points
from glft_schema.tensor_types.encoders.scale_searches import by_importance
from glft_schema.tensor_types.encoders.trials import by_fit, keep_better, tries
from glft_schema.tensor_types.engine.arithmetic import is_less, nearest, pick, root, total
from glft_schema.tensor_types.engine.chunks import cache_slices
from glft_schema.tensor_types.engine.steps import step

BLOCK = 256  # weights in a block
NO_GOOD = 1 << 29  # the bit of a word that marks a group for which no trial was any good
PIECE = 1 << 16  # vectors searched at once: torch sorts fewer many times more slowly, and more leave the cache


def cut(blocks: torch.Tensor, vectors: int, values: int) -> torch.Tensor:
    """Lays out weights [blocks, 256] as contiguous [values, vectors, groups of a block, blocks]."""
    return blocks.reshape(len(blocks), -1, vectors, values).permute(3, 2, 1, 0).contiguous()


def by_blocks(numbers: torch.Tensor) -> torch.Tensor:
    """[vectors, groups of a block, blocks] -> [blocks, vectors of a block]."""
    return numbers.permute(2, 1, 0).flatten(1)


def counted(blocks: torch.Tensor, importance: torch.Tensor, factor: int = 2) -> torch.Tensor:
    """Returns the counts of weights [blocks, 256] with an importance, see `by_importance`."""
    return by_importance(blocks, importance, BLOCK, BLOCK, factor).t()


def overflows(weights: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Returns the mask [blocks] of blocks whose errors overflow, so that every trial fails."""
    return (counts * weights * weights).sum((0, 1, 2)).isfinite().logical_not_()


def digits(weights: torch.Tensor, inverse: torch.Tensor, most: int) -> torch.Tensor:
    """Returns (n - 1) / 2 for the odd n nearest to weight * inverse: int32 from 0 to `most`."""
    return nearest((weights * inverse).sub_(1).mul_(0.5)).clamp_(0, most)


def eight(numbers: torch.Tensor) -> list[torch.Tensor]:
    """Returns the first of each eight weights, the second, and so on: 8 views [eights, groups]."""
    halves = numbers.view(len(numbers), -1, 8 // len(numbers), numbers.shape[2])  # one half if a vector has eight values
    return [value for half in halves.unbind(2) for value in half]


def flip_least(numbers: torch.Tensor, negative: torch.Tensor, counts: torch.Tensor) -> None:
    """Makes the number of negative weights in each eight even, in place, by flipping the sign that
    matters least.

    `numbers` are absolute weights [values, vectors, groups], in which a weight with a flipped sign
    becomes negative, and `negative` is 1 for negative weights, else 0.
    """
    signs, errors = eight(negative), eight(counts * numbers * numbers)
    least, at = errors[0].clone(), torch.zeros_like(signs[0])
    for place, error in enumerate(errors):
        pick(is_less(error, least), torch.full_like(at, place), at)
        torch.minimum(least, error, out=least)
    odd = sum(signs) & 1
    for place, (sign, number) in enumerate(zip(signs, eight(numbers), strict=True)):
        flip = odd * (at == place)
        sign ^= flip
        number *= (1 - 2 * flip).to(torch.float32)


def sums(numbers: torch.Tensor, counts: torch.Tensor, words: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the sums of count * number * value and of count * value ** 2 of each group.

    The words are int32 [vectors, groups], numbers and counts [values, vectors, groups].
    """
    values = fields_of(words, len(numbers), width).to(torch.float32)
    parts = (counts * numbers).mul_(values), (counts * values).mul_(values)
    fit, size = (total(part.transpose(0, 1).flatten(0, 1)) for part in parts)
    return fit, size


class BestEntries(NamedTuple):
    """The result of a search."""

    d: torch.Tensor  # float16 [blocks, 1]
    scales: torch.Tensor  # u8 [blocks, groups of a block], of four bits
    entries: torch.Tensor  # int32 [blocks, vectors of a block], indices into the grid
    signs: torch.Tensor  # u8 [blocks, 32], a bit per weight


# The vectors whose entries are chosen again, as a mask: words [vectors, groups] -> the same shape.
# One of these three.


def moved(words: torch.Tensor) -> torch.Tensor:
    """Vectors that were moved to the grid."""
    return words & OFF_GRID != 0


def groups_of_moved(words: torch.Tensor) -> torch.Tensor:
    """All vectors of groups in which one was moved, or for which no trial was any good."""
    return (words & (OFF_GRID | NO_GOOD) != 0).any(0).expand_as(words)


def all_vectors(words: torch.Tensor) -> torch.Tensor:
    """All vectors, since a point on the grid for one scale may be off the grid for another."""
    return torch.ones_like(words, dtype=torch.bool)


@dataclass(frozen=True)
class GridSearch:
    """The search of a type."""

    grid: str
    shells: int  # the number of distances of candidates, see `neighbours`
    values: int  # per vector
    vectors: int  # per group
    tries: int  # the number of scales tried on either side of the first one
    step: float  # between tries, in units of the grid's values
    least: float  # groups whose weights are all smaller become zeros
    factor: float  # d, the largest scale / 31, is stored times this factor
    counts: Callable[[torch.Tensor], torch.Tensor] | None  # the default; None if the type requires an importance
    even: bool  # whether the number of negative weights in each eight is even: seven signs imply the eighth
    fits: bool  # whether the first scale fits integers best; else it maps the largest weight to the largest value
    again: Callable[[torch.Tensor], torch.Tensor]  # the vectors whose entries are chosen again for the best scale

    def __call__(self, blocks: torch.Tensor, importance: torch.Tensor | None) -> BestEntries:
        """Searches for float32 [blocks, 256] with an importance of as many numbers."""
        importance = None if importance is None else importance.reshape(blocks.shape)
        size = PIECE * self.values // BLOCK
        parts = [
            self._search(blocks[part], None if importance is None else importance[part])
            for part in cache_slices(len(blocks), size, blocks.device, 16 * size)
        ]
        return BestEntries(*map(torch.cat, zip(*parts, strict=True)))

    def _search(self, blocks: torch.Tensor, importance: torch.Tensor | None) -> BestEntries:
        if importance is not None:
            counts = counted(blocks, importance, 1 if self.counts is None else 2)
        else:
            assert self.counts
            counts = self.counts(blocks)
        weights, counts = (cut(part, self.vectors, self.values) for part in (blocks, counts))
        shape, lost = weights.shape[2:], overflows(weights, counts)
        counts = counts.flatten(2)
        signed = weights.flatten(2)
        numbers, negative = signed.abs(), (signed < 0).to(torch.int32)  # -0 is not negative
        if self.even:
            flip_least(numbers, negative, counts)
        known = neighbours(self.grid, self.shells, blocks.device)
        words, scale, zeros = self._fitted(known, numbers, counts)

        scale = torch.where(zeros, 0.0, scale)
        signs = sum(bit << i for i, bit in enumerate(eight(negative))) ^ 255 * (scale < 0).to(torch.int32)
        entries, signs = ((part * ~zeros).view(-1, *shape) for part in (known.entries(words), signs))
        scale = scale.abs().view(shape)
        largest = scale.amax(0).masked_fill_(lost, torch.inf)
        if self.even:  # a block without a scale is all zeros
            entries, signs = entries * (largest > 0), signs * (largest > 0)
        d = largest / 31
        return BestEntries(
            (d * self.factor).to(torch.float16).unsqueeze(1),
            digits(scale, 1 / d, 15).T.to(torch.uint8),
            by_blocks(entries),
            by_blocks(signs).to(torch.uint8),
        )

    def _fitted(
        self, known: Neighbours, numbers: torch.Tensor, counts: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Searches for numbers and counts [values, vectors, groups].

        Returns words [vectors, groups], scales [groups], and the mask of groups that become zeros.
        """
        top = 2 * known.base - 1
        roots = root(counts)
        largest = numbers.amax((0, 1))
        scale, reach = largest / top, largest  # the first trial maps a number as large as `reach` to the largest value
        if self.fits:
            rows, row_counts = (part.transpose(0, 1).flatten(0, 1) for part in (numbers, counts))
            scale = scale_of_bytes(rows, row_counts, known.base + 1)
            reach = scale * known.base
        zeros = (largest < self.least) | (reach <= 0)
        words = (known.lowest() | NO_GOOD).repeat(numbers.shape[1:])
        best = torch.zeros_like(scale)

        def entries(inverse: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
            (points,) = _points(numbers, inverse, base=known.base)
            scales = scale.expand(numbers.shape[1:]).flatten()
            return best_entries(known, points.flatten(), numbers.flatten(1), roots.flatten(1), scales).view(words.shape)

        for number in tries(0, self.step, range(-self.tries, self.tries + 1), top):
            inverse = number / reach
            tried = entries(inverse, 1 / inverse)
            _keep_better(numbers, counts, tried, best, scale, words, width=known.width)

        again = self.again(words) & (scale > 0)
        pick(-again.to(torch.int32), entries(1 / scale, scale), words)
        fit, size = _sums(numbers, counts, words, width=known.width)
        return words, torch.where(again.any(0) & (size > 0), fit / size, scale), zeros


@step
def _points(numbers: torch.Tensor, inverse: torch.Tensor, *, base: int) -> tuple[torch.Tensor]:
    """Returns the points, see `Neighbours.points`, of numbers [values, vectors, groups]."""
    return (points(digits(numbers, inverse, base - 1), base),)


@step
def _keep_better(
    numbers: torch.Tensor,
    counts: torch.Tensor,
    tried: torch.Tensor,
    best: torch.Tensor,
    scale: torch.Tensor,
    words: torch.Tensor,
    *,
    width: int,
) -> None:
    """Replaces the last three if the words tried are better."""
    keep_better((best, scale, words), [by_fit(best, *sums(numbers, counts, tried, width), tried)])


@step
def _sums(numbers: torch.Tensor, counts: torch.Tensor, words: torch.Tensor, *, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """See `sums`."""
    return sums(numbers, counts, words, width)
