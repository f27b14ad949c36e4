"""Finds scales and entries of a grid for groups of 16 or 32 weights, so that ``scale * entry`` is near the weights.

What is minimized is the sum of ``count * (weight - scale * value) ** 2`` over a group, where `count` says how much a weight
counts. For given entries the best scale is known: the sum of ``count * weight * value`` divided by that of
``count * value ** 2``; and the error is the less, the larger the first sum, squared, is against the second. For a given scale
good entries are known, too: weights are divided by it and rounded, and what is not on the grid moves to a neighbour on it. So
scales are tried, of those that bring the largest weight near the largest value of the grid: each gives entries, and these give
a better scale, of which the best is kept. At last entries that were moved are chosen once more, for that scale.

All groups are searched at once, a number [group] where C has a variable; tensors of weights are [values, vectors, groups], so
that the values of a vector are added up one after another, as C does it, by adding whole rows.

Source: the quantize functions of ggml-quants.c of llama.cpp; checked against them bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from glft_schema.lazy import torch
from glft_schema.tensor_types.c_arithmetic import is_less, nearest, pick, root, total
from glft_schema.tensor_types.code_searches import scale_of_bytes
from glft_schema.tensor_types.grid_neighbours import OFF_GRID, Neighbours, best_entries, neighbours

BLOCK = 256  # weights in a block
PIECE = 1 << 16  # vectors that are searched at once: torch sorts fewer many times more slowly, and more leave the cache


def cut(blocks: torch.Tensor, vectors: int, values: int) -> torch.Tensor:
    """Lays out weights for a search: [blocks, 256] -> contiguous [values, vectors, groups of a block, blocks]."""
    return blocks.reshape(len(blocks), -1, vectors, values).permute(3, 2, 1, 0).contiguous()


def mean_square(cut_: torch.Tensor, times: int = 2) -> torch.Tensor:
    """Returns the mean of the squares of each block, added up one after another, some times: [blocks]."""
    squares = cut_ * cut_
    return total(squares.permute(2, 1, 0, 3).flatten(0, 2)) * times / BLOCK


def counted(cut_: torch.Tensor, importance: torch.Tensor, times: int = 2) -> torch.Tensor:
    """Returns how much weights count that are more or less important: large ones and those of large neighbours more, too.

    Args:
        cut_: the weights, as `cut` has them.
        importance: as many numbers, block by block.
        times: how much the neighbours do, as in `mean_square`.
    """
    values, vectors = cut_.shape[:2]
    return root((cut_ * cut_).add_(mean_square(cut_, times))).mul_(cut(importance.reshape(-1, BLOCK), vectors, values))


def overflows(cut_: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Tells in which blocks the errors are too large for float32, so that no search finds anything: [blocks]."""
    return (counts * cut_ * cut_).sum((0, 1, 2)).isfinite().logical_not_()


def digits(weights: torch.Tensor, inverse: torch.Tensor, most: int) -> torch.Tensor:
    """Rounds weights to the odd numbers that are the values of entries, and returns these halved: int32 from 0 to `most`."""
    return nearest((weights * inverse).sub_(1).mul_(0.5)).clamp_(0, most)


def positive(weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Takes the signs from weights: returns what is left, and int32 that is 1 where a weight is below 0 (-0 is not)."""
    return weights.abs(), (weights < 0).to(torch.int32)


def flip_least(weights: torch.Tensor, negative: torch.Tensor, counts: torch.Tensor, cut_: torch.Tensor) -> None:
    """Makes the number of negative weights of each eight even, by the other sign for the one that matters least.

    In place; all of them are as `cut` has them, four or eight to a vector.
    """
    eights = cut_.reshape(*cut_.shape[:1], -1, 8 // len(cut_), *cut_.shape[2:])  # [values, eights, 1 or 2, groups ...]
    errors = (counts * cut_ * cut_).reshape(eights.shape)
    least, at = errors[0, :, 0].clone(), torch.zeros_like(errors[0, :, 0], dtype=torch.int32)
    for half in range(eights.shape[2]):
        for i in range(len(cut_)):
            found = is_less(errors[i, :, half], least)
            pick(found, torch.full_like(at, half * len(cut_) + i), at)
            torch.minimum(least, errors[i, :, half], out=least)
    signs, numbers = negative.view(eights.shape), weights.view(eights.shape)
    odd = signs.sum((0, 2)) & 1
    for half in range(eights.shape[2]):
        for i in range(len(cut_)):
            flip = odd * (at == half * len(cut_) + i)
            signs[i, :, half] ^= flip
            numbers[i, :, half] *= (1 - 2 * flip).to(torch.float32)


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


class Found(NamedTuple):
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
        counts: weights, as they are cut -> how much they count, where nobody says how important they are;
            None where somebody must.
        even: whether an even number of each eight weights is negative, so that seven signs say the eighth.
        again: which entries are chosen once more for the scale that was found: those that were ``moved``, all of ``groups`` in
            which some were, or ``all`` there are. In the last case tries begin from a scale that was found without the grid.
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
    again: str

    def __call__(self, weights: torch.Tensor, importance: torch.Tensor | None) -> Found:
        """Searches for float32 [blocks, 256], and how important each weight is, as many."""
        piece = PIECE if weights.device.type == "cpu" else 16 * PIECE
        pieces = max(len(weights) * BLOCK // (piece * self.values), 1)
        importances = [None] * pieces if importance is None else importance.reshape(weights.shape).tensor_split(pieces)
        found = [self._search(*piece) for piece in zip(weights.tensor_split(pieces), importances, strict=True)]
        return Found(*map(torch.cat, zip(*found, strict=True)))

    def _search(self, blocks: torch.Tensor, importance: torch.Tensor | None) -> Found:
        weights = cut(blocks, self.vectors, self.values)
        shape = weights.shape
        counts = self._counts(weights, importance)
        lost = overflows(weights, counts)
        weights, counts = weights.flatten(2), counts.flatten(2)
        numbers, negative = positive(weights)
        if self.even:
            flip_least(numbers, negative, counts, weights)
        words, scale, zeros = self._scaled(numbers, counts)

        known = neighbours(self.grid, self.shells, blocks.device)
        scale = torch.where(zeros, 0.0, scale)
        entries = known.entries(words) * ~zeros
        signs = (self._signs(negative) ^ 255 * (scale < 0).to(torch.int32)) * ~zeros
        scale = scale.abs().view(shape[2:])
        largest = scale.amax(0).masked_fill_(lost, torch.inf)
        if self.even:  # then nothing is left of a block without a scale
            entries, signs = (part.view(-1, *shape[2:]) * (largest > 0) for part in (entries, signs))
        d = largest / 31
        return Found(
            (d * self.factor).to(torch.float16).unsqueeze(1),
            digits(scale, 1 / d, 15).T.to(torch.uint8),
            entries.view(-1, *shape[2:]).permute(2, 1, 0).flatten(1),
            signs.view(-1, *shape[2:]).permute(2, 1, 0).flatten(1).to(torch.uint8),
        )

    def _counts(self, weights: torch.Tensor, importance: torch.Tensor | None) -> torch.Tensor:
        """Returns how much each weight counts."""
        if importance is not None:
            return counted(weights, importance, 1 if self.counts is None else 2)
        assert self.counts
        return self.counts(weights)

    def _scaled(self, numbers: torch.Tensor, counts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns the words [vectors, groups] and the scale of each group, and which groups become zeros."""
        known = neighbours(self.grid, self.shells, numbers.device)
        top = 2 * known.base - 1
        products, roots = counts * numbers, root(counts)
        most = numbers.amax((0, 1))
        zeros = most < self.least
        if self.again == "all":
            rows, their = (part.transpose(0, 1).flatten(0, 1) for part in (numbers, counts))
            scale = scale_of_bytes(rows, their, known.base + 1)
            most = scale * known.base
            zeros |= most <= 0
        else:
            scale = most / top
        words = torch.full(numbers.shape[1:], self._nothing(known), dtype=torch.int32, device=numbers.device)
        best = torch.zeros_like(scale)

        def entries(inverse: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
            points = digits(numbers, inverse, known.base - 1)
            scales = scale.expand(numbers.shape[1:]).flatten()
            points, vectors, counted = (part.flatten(1) for part in (points, numbers, roots))
            return best_entries(known, points, vectors, counted, scales).view(words.shape)

        tries = torch.arange(-self.tries, self.tries + 1, device=most.device) * self.step + top
        for tried in tries:  # of a number, torch would multiply by the inverse
            inverse = tried / most
            other = entries(inverse, 1 / inverse)
            fit, size = sums(known, other, counts, products)
            better = (size > 0) & (fit * fit > best * size)
            scale = torch.where(better, fit / size, scale)
            best = torch.where(better, scale * fit, best)
            pick(-better.to(torch.int32), other, words)

        moved = (words & OFF_GRID) != 0
        again = {"moved": moved, "groups": moved.any(0), "all": torch.ones_like(zeros)}[self.again] & (scale > 0)
        pick(-again.to(torch.int32), entries(1 / scale, scale), words)
        fit, size = sums(known, words, counts, products)
        changed = again.view(-1, len(scale)).any(0) & (size > 0)
        return words, torch.where(changed, fit / size, scale), zeros

    def _nothing(self, known: Neighbours) -> int:
        """Returns the word of a group of which no try was better than none."""
        word = int(known.first[int(known.place[0])])
        return word | OFF_GRID if self.again == "groups" else word

    def _signs(self, negative: torch.Tensor) -> torch.Tensor:
        """Packs the signs of each eight weights: [values, vectors, groups] -> int32 [eights, groups]."""
        bits = sum(row << i for i, row in enumerate(negative))
        assert isinstance(bits, torch.Tensor)
        return bits if self.values == 8 else bits[0::2] | bits[1::2] << 4
