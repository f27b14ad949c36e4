"""Common cause of many findings: a number of the metadata that the tensors contradict.

Each number that the expected dims depend on is solved for the stored dims. The model is checked
again with the best values, and the value that removes the most findings is the cause.
"""

from __future__ import annotations

from collections import Counter
from heapq import nlargest

from glft_schema.checks.models import (
    BLOCK,
    Numbers,
    broken_limits,
    broken_tensors,
    dims_of,
    is_array,
    is_read,
    padded,
    read_keys,
)
from glft_schema.checks.roles import ARCHITECTURE
from glft_schema.families.loading import PER_BLOCK, SIZES, TYPES
from glft_schema.families.page import Family
from glft_schema.families.pages import BY_ARCH
from glft_schema.files.file import File

SMALL = range(513)  # values tried besides the stored dims: counts of heads, blocks and experts, lengths of heads
EQUATIONS = 12  # solved at most, those of the most tensors
TRIALS = 8  # values with which the whole model is checked, at most
LEAST = 2  # findings that a cause explains, and more than half of all

Equations = Counter[tuple[str, tuple[int, ...]]]  # (dims in terms of `SIZES`, dims as stored) -> number of tensors


class Trial(Numbers):
    """Numbers of a model: those used, in `stated`, and one `replaced`, a key and its value."""

    def __init__(self, file: File, arch: str) -> None:
        super().__init__(file, arch)
        self.replaced, self.stated = ("", 0), dict[str, int | None]()

    def number(self, key: str, default: int = 0) -> int:
        if key not in self.stated:
            self.stated[key] = None if self.value(key) is None else super().number(key)
        stated = self.replaced[1] if key == self.replaced[0] else self.stated[key]
        return default if stated is None else stated

    def count(self, key: str) -> int:
        if key not in self.stated:
            self.stated[key] = super().count(key)
        return self.number(key)


def common_cause(file: File, total: int) -> str:
    """Returns which number of a model explains most of its `total` findings, or an empty string."""
    arch, first = file.metadata.get(ARCHITECTURE), file.shards[0]
    if total < LEAST or not isinstance(arch, str) or arch not in BY_ARCH:
        return ""
    numbers, family = Trial(file, arch), BY_ARCH[arch]
    list(read_keys(first, numbers, family))

    def findings() -> int:
        return len([*broken_limits(first, numbers, family), *broken_tensors(file, numbers, family)])

    before = findings()
    cause, most = "", max(LEAST - 1, total // 2)
    for _, key, value in _candidates(file, numbers, family):
        numbers.replaced = key, value
        if (explained := before - findings()) > most:
            most = explained
            cause = f"{_stated(file, numbers.full(key))} explains {explained} of {total} violations: the tensors fit {value}"
    return cause


def _candidates(file: File, numbers: Trial, family: Family) -> list[tuple[int, str, int]]:
    """Returns (number of tensors that get their dims, key, value), the best first."""
    found, equations = list[tuple[int, str, int]](), _equations(file, numbers, family)
    values = sorted({*SMALL, *(size for _, dims in equations for size in dims)})
    for key in list(numbers.stated):
        name = numbers.full(key)
        if name not in numbers.read - numbers.unknown or (TYPES.get(key) == PER_BLOCK and is_array(file, name)):
            continue
        for value in values:
            numbers.replaced = key, value
            fit = sum(count for (text, dims), count in equations.items() if _sizes(text, numbers) == dims)
            found += [(fit, key, value)] if fit else []
    return nlargest(TRIALS, found, key=lambda one: (one[0], numbers.full(one[1]) in file.metadata))


def _equations(file: File, numbers: Trial, family: Family) -> Equations:
    """Returns equations that do not hold."""
    equations, blocks, rows = Equations(), 0, {row.name: row for row in family.loaded}
    for name, tensor in file.tensors.items():
        match = BLOCK.match(name)
        block = int(match[1]) if match else 0
        blocks = max(blocks, block + bool(match))
        if row := rows.get(BLOCK.sub("blk.{i}.", name, count=1)):
            equations[row.dims, tuple(padded(tensor.dims))] += 1
            word = row.when.removeprefix("no ")
            if word in SIZES and word != row.when and is_read(row, block, numbers, file.tensors) is False:
                equations[word, (0, 1, 1, 1)] += 1
    equations["layers", (blocks, 1, 1, 1)] += 1
    broken = Equations({one: count for one, count in equations.items() if _sizes(one[0], numbers) != one[1]})
    return Equations(dict(broken.most_common(EQUATIONS)))


def _sizes(text: str, numbers: Numbers) -> tuple[int, ...]:
    return tuple(padded(dims_of(text, numbers) or ()))


def _stated(file: File, name: str) -> str:
    if name not in file.metadata:
        return f"the missing {name}"
    value = file.metadata[name]
    return f"{name} with {len(value)} elements" if is_array(file, name) else f"{name} = {value}"
