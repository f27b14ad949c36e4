"""Finds, for vectors of weights, the entries of a grid that stand for them best.

A vector, divided by a scale and rounded number by number, is a point of which a grid has few: of the 4096 points of four
numbers from 0 to 7 it holds 256 or 512, of the 6561 of eight numbers from 0 to 2 it holds 256 to 2048. A point that is not on
the grid stands for all entries that are nearly as close to it as the closest one: its candidates. Which of them is best depends
on where the weights lie around the point, and on how much each of them counts.

Points have from 1 to 292 candidates, most of them few. So vectors are sorted by how many their points have: then the first
candidates of all vectors are tried at once, then the second ones of those that have two, and so on, each time a shorter piece
from the front.

Source: the tables and searches of ggml-quants.c of llama.cpp; checked against them bit by bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from glft_schema.lazy import torch
from glft_schema.tensor_types.engine.arithmetic import is_less, pick, total
from glft_schema.tensor_types.grids import VALUES, levels

TILE = 1 << 16  # entries that are tried at once
OFF_GRID = 1 << 30  # the bit of a word that says that its entry was chosen for a point that is not on the grid


class Candidates(NamedTuple):
    """The candidates of some ranks: the seventh to the ninth of each point, say.

    Attributes:
        ranks: how many.
        points: how many points have at least the first of them.
        rows: int32 [ranks, 1], where the words of each rank begin.
        words: int32 [ranks * points], for these points; those that have not all of them
            have their first candidate again.
    """

    ranks: int
    points: int
    rows: torch.Tensor
    words: torch.Tensor


class Neighbours(NamedTuple):
    """What a search knows of a grid.

    Points are numbered, value 0 having the lowest digit, and have places: those with most candidates come first, those with
    a single one, as the points on the grid have, last.

    Attributes:
        base: how many numbers a digit may be.
        values: how many values an entry has.
        width: bits of a word's field.
        odd: whether fields are twice the digit and 1, or the digit itself.
        shifts: int32 [values], where the fields begin.
        place: int16 [base ** values], of each point.
        first: int32 [base ** values], the first candidate of the point in each place; of a point on the grid its entry.
        others: the next candidates, in steps that grow.
        ends: int16 [steps], how many points each of these has.
        entry: int16 [base ** values], the number of each entry in the grid; what it is for other points means nothing.
    """

    base: int
    values: int
    width: int
    odd: bool
    shifts: torch.Tensor
    place: torch.Tensor
    first: torch.Tensor
    others: list[Candidates]
    ends: torch.Tensor
    entry: torch.Tensor

    def points(self, digits: torch.Tensor) -> torch.Tensor:
        """Numbers points: integers [values, ...] from 0 on -> [...]."""
        *others, number = digits.unbind()
        for digit in reversed(others):
            number = torch.add(digit, number, alpha=self.base)
        return number

    def fields(self, words: torch.Tensor) -> torch.Tensor:
        """Returns the fields of words of any shape, int32 [values, ...]."""
        return (words >> self.shifts.view(-1, *[1] * words.dim())).bitwise_and_((1 << self.width) - 1)

    def lowest(self) -> torch.Tensor:
        """Returns the word of the entry whose digits are all 0: int32 []."""
        return self.first[self.place[0].to(torch.int32)]

    def entries(self, words: torch.Tensor) -> torch.Tensor:
        """Returns the numbers of entries in the grid, int32, of words of any shape."""
        digits = self.fields(words)
        digits = digits >> 1 if self.odd else digits
        return self.entry.index_select(0, self.points(digits).flatten()).reshape(words.shape).to(torch.int32)


@cache
def neighbours(name: str, shells: int, device: torch.device, odd: bool = True) -> Neighbours:
    """Returns what is known of a grid, made at its first use on a device: in 0.1 to 0.4 s, on a processor.

    Args:
        name: the grid's.
        shells: the candidates of a point are the entries at its least distance, at the next one, and so on: how many.
        device: where it is used.
        odd: as in `Neighbours`.
    """
    with torch.device("cpu"):
        grid = levels(name).to(torch.int32)
        base, values = len(VALUES[name]), grid.shape[1]
        width = 4 if values == 4 else 3
        numbers = (grid * base ** torch.arange(values, dtype=torch.int32)).sum(1)
        shifts = width * torch.arange(values, dtype=torch.int32)
        words = ((2 * grid + 1 if odd else grid) << shifts).sum(1, dtype=torch.int32)
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
        others, begin = [], 1
        while points := int((counts > begin).sum()):
            rows = torch.arange(0, points * ((begin + 2) // 3), points, dtype=torch.int32).unsqueeze(1)
            step = Candidates(len(rows), points, rows, closest[:points].repeat(len(rows)))
            among = (rank >= begin) & (rank < begin + step.ranks)
            step.words[(rank[among] - begin) * points + at[among]] = listed[among]
            step.words.bitwise_or_(OFF_GRID)
            others.append(step._replace(rows=rows.to(device), words=step.words.to(device)))
            begin += step.ranks
        first = closest | OFF_GRID * (1 - on_grid[by_place]).to(torch.int32)
        ends = torch.tensor([step.points for step in others], dtype=torch.int16)
        entry = torch.zeros(len(counts), dtype=torch.int16)
        entry[numbers] = torch.arange(len(grid), dtype=torch.int16)
    shifts, place, first, ends, entry = (part.to(device) for part in (shifts, place.to(torch.int16), first, ends, entry))
    return Neighbours(base, values, width, odd, shifts, place, first, others, ends, entry)


def _pairs(grid: torch.Tensor, base: int, shells: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns all pairs of a point and a candidate of it, as their numbers, and the squares of the distances between them."""
    every = torch.arange(base ** grid.shape[1])
    digits = torch.stack([every // base**i % base for i in range(grid.shape[1])], 1).to(torch.float32)
    entries = grid.to(torch.float32)
    found = []
    for begin in range(0, len(digits), 1024):
        part = digits[begin : begin + 1024]  # products of small integers are exact
        squares = (part * part).sum(1, keepdim=True) + (entries * entries).sum(1) - 2 * part @ entries.T
        shell = squares.amin(1, keepdim=True)
        on_grid = shell == 0
        for _ in range(shells - 1):
            shell = squares.masked_fill(squares <= shell, torch.inf).amin(1, keepdim=True)
        within = squares <= shell.masked_fill_(on_grid, 0)  # an entry itself has no other candidates
        point, near = within.nonzero(as_tuple=True)
        found.append(torch.stack((point + begin, near, squares[within].to(torch.int64))))
    point, near, distance = torch.cat(found, 1)
    return point, near, distance


def best_entries(
    known: Neighbours,
    digits: torch.Tensor,
    weights: torch.Tensor,
    counts: torch.Tensor,
    scales: torch.Tensor,
    shifts: torch.Tensor | None = None,
) -> torch.Tensor:
    """Returns the best entry for each of n vectors, as words, int32 [n].

    It is the one of the candidates whose values q make the sum of ``count * (scale * q - weight) ** 2`` least, and the first
    one of several that do. A point that is on the grid is its own entry.

    Args:
        known: of the grid.
        digits: the vectors' points, int32 [values, n].
        weights: float32 [values, n].
        counts: how much each of them counts, float32 [values, n], none below 0.
        scales: float32 [n].
        shifts: what is added to the values of entries, float32 [n].
    """
    place, order = known.place.index_select(0, known.points(digits)).sort()
    words = known.first.index_select(0, place.to(torch.int32))
    ends = torch.searchsorted(place, known.ends).tolist()  # how many vectors each step has
    if ends and ends[0]:
        chosen = order[: ends[0]]
        taken = _Vectors(
            known,
            torch.stack([row.index_select(0, chosen) for row in weights]),
            torch.stack([row.index_select(0, chosen) for row in counts]),
            scales.index_select(0, chosen),
            None if shifts is None else shifts.index_select(0, chosen),
        )
        _choose(taken, words[: ends[0]], place[: ends[0]].to(torch.int32), ends)
    return torch.empty_like(words).scatter_(0, order, words)


class _Vectors(NamedTuple):
    """Vectors that are sorted by place, value by value."""

    known: Neighbours
    weights: torch.Tensor
    counts: torch.Tensor
    scales: torch.Tensor
    shifts: torch.Tensor | None

    def distances(self, words: torch.Tensor, part: slice) -> torch.Tensor:
        """Returns how badly entries [ranks, n] stand for n of the vectors."""
        values = self.known.fields(words).to(torch.float32)
        if self.shifts is not None:
            values.add_(self.shifts[part])
        values.mul_(self.scales[part]).sub_(self.weights[:, part].unsqueeze(1))
        return total((values * self.counts[:, part].unsqueeze(1)).mul_(values))


def _choose(taken: _Vectors, words: torch.Tensor, place: torch.Tensor, ends: list[int]) -> None:
    """Replaces words, which are the first candidates, by better ones."""
    least = torch.empty(len(words), device=words.device)
    for part in _tiles(len(words), 1, words):
        least[part] = taken.distances(words[part].unsqueeze(0), part).squeeze(0)
    for step, n in zip(taken.known.others, ends, strict=True):
        for part in _tiles(n, step.ranks, words):
            every = step.words.index_select(0, (step.rows + place[part]).flatten()).view(step.ranks, -1)
            keep_less(least[part], words[part], *least_of(taken.distances(every, part), every))


def _tiles(n: int, ranks: int, like: torch.Tensor) -> Iterator[slice]:
    """Cuts n vectors, of which some ranks are tried at once, into pieces that stay in a processor's cache."""
    step = max(TILE // ranks, 1) if like.device.type == "cpu" else n
    for begin in range(0, n, step):
        yield slice(begin, min(begin + step, n))


def least_of(numbers: torch.Tensor, words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the least of the numbers in each column, and the first of the words that belong to it: [k, n] -> [n].

    Each two neighbouring rows play, then the winners; in place. torch's own search for a least number is slow.
    """
    while len(numbers) > 1:
        pairs = len(numbers) // 2
        keep_less(numbers[0::2][:pairs], words[0::2][:pairs], numbers[1::2], words[1::2])
        numbers, words = numbers[0::2], words[0::2]
    return numbers.squeeze(0), words.squeeze(0)


def keep_less(least: torch.Tensor, words: torch.Tensor, numbers: torch.Tensor, others: torch.Tensor) -> None:
    """Puts numbers in the place of greater ones, and their words in the place of the words of those."""
    pick(is_less(numbers, least), others, words)
    torch.minimum(least, numbers, out=least)
