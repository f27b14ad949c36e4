"""Finds scales and entries of a grid for groups of 16 or 32 weights, so that ``scale * entry`` is near the weights.

What is minimized is the sum of ``count * (weight - scale * value) ** 2`` over a group, where `count` says how much a weight
counts. For given entries the best scale is known: the sum of ``count * weight * value`` divided by that of
``count * value ** 2``; and the error is the less, the larger the first sum, squared, is against the second. For a given scale
good entries are known, too: weights are divided by it and rounded, and what is not on the grid moves to a neighbour on it. So
scales are tried, of those that bring the largest weight near the largest value of the grid: each gives entries, and these give
a better scale, of which the best is kept. At last some entries, of each type others, are chosen once more, for that scale.

All groups are searched at once, a number [group] where C has a variable; tensors of weights are [values, vectors, groups], so
that the values of a vector are added up one after another, as C does it, by adding whole rows.

Source: the quantize functions of ggml-quants.c of llama.cpp; checked against them bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from glft_schema.lazy import torch
from glft_schema.tensor_types.encoders.code_searches import scale_of_bytes
from glft_schema.tensor_types.encoders.grid_neighbours import OFF_GRID, Neighbours, best_entries, neighbours
from glft_schema.tensor_types.encoders.scale_searches import by_importance, divided, tries
from glft_schema.tensor_types.engine.arithmetic import is_less, nearest, pick, root, total

BLOCK = 256  # weights in a block
NO_GOOD = 1 << 29  # the bit of a word that says that no try for its group was any good
PIECE = 1 << 16  # vectors that are searched at once: torch sorts fewer many times more slowly, and more leave the cache


def cut(blocks: torch.Tensor, vectors: int, values: int) -> torch.Tensor:
    """Lays out weights for a search: [blocks, 256] -> contiguous [values, vectors, groups of a block, blocks]."""
    return blocks.reshape(len(blocks), -1, vectors, values).permute(3, 2, 1, 0).contiguous()


def counted(blocks: torch.Tensor, importance: torch.Tensor, factor: int = 2) -> torch.Tensor:
    """Returns how much weights count that are more or less important, see `by_importance`: [blocks, 256] each -> as many."""
    return by_importance(blocks, importance, BLOCK, BLOCK, factor).t()


def overflows(weights: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Tells in which blocks the errors are too large for float32, so that no search finds anything: [blocks].

    Args:
        weights: as `cut` has them.
        counts: how much they count.
    """
    return (counts * weights * weights).sum((0, 1, 2)).isfinite().logical_not_()


def digits(weights: torch.Tensor, inverse: torch.Tensor, most: int) -> torch.Tensor:
    """Returns (n - 1) / 2 for the odd number n nearest to each weight * inverse, of any shape: int32 from 0 to `most`."""
    return nearest((weights * inverse).sub_(1).mul_(0.5)).clamp_(0, most)


def without_signs(weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Takes the signs from weights of any shape: returns what is left, and int32 that is 1 where one is below 0 (-0 is not)."""
    return weights.abs(), (weights < 0).to(torch.int32)


def eight(numbers: torch.Tensor) -> list[torch.Tensor]:
    """Returns the first of each eight weights, the second, and so on: [values, vectors, groups] -> 8 views [eights, groups]."""
    halves = numbers.view(len(numbers), -1, 8 // len(numbers), numbers.shape[2])  # or wholes, where a vector has eight
    return [value for half in halves.unbind(2) for value in half]


def flip_least(numbers: torch.Tensor, negative: torch.Tensor, counts: torch.Tensor) -> None:
    """Makes even how many of each eight weights are negative, in place, by the other sign for the one that matters least.

    Args:
        numbers: the weights without signs, [values, vectors, groups]; the one whose sign is now wrong gets below 0.
        negative: their signs.
        counts: how much they count.
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


def sums(known: Neighbours, words: torch.Tensor, counts: torch.Tensor, products: torch.Tensor) -> torch.Tensor:
    """Returns the sums of count * weight * value and of count * value ** 2 of each group: [2, groups].

    Args:
        known: of the grid.
        words: the entries, int32 [vectors, groups].
        counts: [values, vectors, groups].
        products: the counts times the weights.
    """
    parts = torch.empty((*counts.shape[:2], 2, counts.shape[2]), dtype=torch.float32, device=words.device)
    values = known.fields(words).to(torch.float32)
    torch.mul(products, values, out=parts[:, :, 0])
    torch.mul(counts, values, out=parts[:, :, 1]).mul_(values)
    return total(parts.transpose(0, 1).flatten(0, 1))


class FoundEntries(NamedTuple):
    """What a search found.

    Attributes:
        d: float16 [blocks, 1].
        scales: u8 [blocks, groups of a block], of four bits.
        entries: int32 [blocks, vectors of a block], their numbers in the grid.
        signs: u8 [blocks, 32], a bit for each weight.
    """

    d: torch.Tensor
    scales: torch.Tensor
    entries: torch.Tensor
    signs: torch.Tensor


# Words [vectors, groups] -> which vectors get an entry once more, as much: one of these three.


def moved(words: torch.Tensor) -> torch.Tensor:
    """Those that were moved to the grid."""
    return words & OFF_GRID != 0


def groups_of_moved(words: torch.Tensor) -> torch.Tensor:
    """All of groups in which some were moved, or no try was any good."""
    return (words & (OFF_GRID | NO_GOOD) != 0).any(0).expand_as(words)


def all_of_them(words: torch.Tensor) -> torch.Tensor:
    """All, since what is on the grid for one scale need not be for another."""
    return torch.ones_like(words, dtype=torch.bool)


@dataclass(frozen=True)
class GridSearch:
    """A search, as each type has its own.

    Attributes:
        grid: its name.
        shells: how many distances candidates may have, see `grid_neighbours.neighbours`.
        values: in a vector.
        vectors: in a group.
        tries: how many scales are tried below the first one, and above it.
        step: from one try to the next, as a part of a value's 1.
        least: a group without a weight as large as this becomes zeros.
        factor: what d, which is the largest scale / 31, is stored times.
        counts: blocks [blocks, 256] -> how much their weights count, where nobody says how important they are;
            None where somebody must.
        even: whether an even number of each eight weights is negative, so that seven signs say the eighth.
        fits: whether the first scale is the one with which integers fit best, were there no grid; else it is the one that
            brings the largest weight to the largest value.
        again: words -> which vectors get the best entry for the scale that was found, once more.
    """

    grid: str
    shells: int
    values: int
    vectors: int
    tries: int
    step: float
    least: float
    factor: float
    counts: Callable[[torch.Tensor], torch.Tensor] | None
    even: bool
    fits: bool
    again: Callable[[torch.Tensor], torch.Tensor]

    def __call__(self, blocks: torch.Tensor, importance: torch.Tensor | None) -> FoundEntries:
        """Searches for float32 [blocks, 256], and how important each weight is, as many."""
        piece = PIECE if blocks.device.type == "cpu" else 16 * PIECE
        pieces = max(len(blocks) * BLOCK // (piece * self.values), 1)
        importances = [None] * pieces if importance is None else importance.reshape(blocks.shape).tensor_split(pieces)
        found = [self._search(*piece) for piece in zip(blocks.tensor_split(pieces), importances, strict=True)]
        return FoundEntries(*map(torch.cat, zip(*found, strict=True)))

    def _search(self, blocks: torch.Tensor, importance: torch.Tensor | None) -> FoundEntries:
        weights, counts = (cut(part, self.vectors, self.values) for part in (blocks, self._counts(blocks, importance)))
        shape, lost = weights.shape[2:], overflows(weights, counts)
        counts = counts.flatten(2)
        numbers, negative = without_signs(weights.flatten(2))
        if self.even:
            flip_least(numbers, negative, counts)
        known = neighbours(self.grid, self.shells, blocks.device)
        words, scale, zeros = self._fitted(known, numbers, counts)

        scale = torch.where(zeros, 0.0, scale)
        signs = sum(bit << i for i, bit in enumerate(eight(negative))) ^ 255 * (scale < 0).to(torch.int32)
        entries, signs = ((part * ~zeros).view(-1, *shape) for part in (known.entries(words), signs))
        scale = scale.abs().view(shape)
        largest = scale.amax(0).masked_fill_(lost, torch.inf)
        if self.even:  # then nothing is left of a block without a scale
            entries, signs = entries * (largest > 0), signs * (largest > 0)
        d = largest / 31
        return FoundEntries(
            (d * self.factor).to(torch.float16).unsqueeze(1),
            digits(scale, 1 / d, 15).T.to(torch.uint8),
            by_blocks(entries),
            by_blocks(signs).to(torch.uint8),
        )

    def _counts(self, blocks: torch.Tensor, importance: torch.Tensor | None) -> torch.Tensor:
        """Returns how much each weight counts: [blocks, 256]."""
        if importance is not None:
            return counted(blocks, importance, 1 if self.counts is None else 2)
        assert self.counts
        return self.counts(blocks)

    def _fitted(
        self, known: Neighbours, numbers: torch.Tensor, counts: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Searches words [vectors, groups] and scales [groups] for numbers [values, vectors, groups], which count so much.

        Returns:
            The words, the scales, and which groups become zeros.
        """
        top = 2 * known.base - 1
        products, roots = counts * numbers, root(counts)
        largest = numbers.amax((0, 1))
        scale, reach = largest / top, largest  # the first try brings a number that is as large as `reach` to the largest value
        if self.fits:
            rows, their = (part.transpose(0, 1).flatten(0, 1) for part in (numbers, counts))
            scale = scale_of_bytes(rows, their, known.base + 1)
            reach = scale * known.base
        zeros = (largest < self.least) | (reach <= 0)
        words = (known.lowest() | NO_GOOD).repeat(numbers.shape[1:])
        best = torch.zeros_like(scale)

        def entries(inverse: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
            points = digits(numbers, inverse, known.base - 1).flatten(1)
            scales = scale.expand(numbers.shape[1:]).flatten()
            return best_entries(known, points, numbers.flatten(1), roots.flatten(1), scales).view(words.shape)

        for number in tries(0, self.step, range(-self.tries, self.tries + 1), top):
            inverse = divided(number, reach)
            other = entries(inverse, 1 / inverse)
            fit, size = sums(known, other, counts, products)
            better = (size > 0) & (fit * fit > best * size)
            scale = torch.where(better, fit / size, scale)
            best = torch.where(better, scale * fit, best)
            pick(-better.to(torch.int32), other, words)

        again = self.again(words) & (scale > 0)
        pick(-again.to(torch.int32), entries(1 / scale, scale), words)
        fit, size = sums(known, words, counts, products)
        return words, torch.where(again.any(0) & (size > 0), fit / size, scale), zeros


def by_blocks(numbers: torch.Tensor) -> torch.Tensor:
    """[vectors, groups of a block, blocks] -> [blocks, vectors of a block]."""
    return numbers.permute(2, 1, 0).flatten(1)
