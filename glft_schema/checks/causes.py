"""Finds metadata numbers that are missing or that the tensors contradict.

For each number that expected dims depend on, the values that give the stored dims are found. The
model is checked again with the best values, and the value that removes the most findings is their
common cause.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from heapq import nlargest

from glft_schema.errors import Finding
from glft_schema.families.loader import (
    BLOCK,
    ModelSizes,
    broken_limits,
    broken_tensors,
    dims_of,
    is_array,
    is_read,
    pad_dims,
    read_keys,
)
from glft_schema.families.pages import BY_ARCH
from glft_schema.families.pages.every_model import LOADER_TYPES, PER_BLOCK, SIZES
from glft_schema.families.requirements import ARCHITECTURE
from glft_schema.files.file import File

SMALL = range(513)  # values tried besides the stored dims: counts of heads, blocks and experts, lengths of heads
EQUATIONS = 12  # solved at most, those of the most tensors
TRIALS = 8  # values with which the whole model is checked, at most
LEAST = 2  # findings that a cause must explain; also more than half of all

Equations = Counter[tuple[str, tuple[int, ...]]]  # (dims in terms of `SIZES`, dims as stored) -> number of tensors


class Trial(ModelSizes):
    """Numbers of a model: those used, in `stated`, and one `replaced`, a key and its value."""

    def __init__(self, file: File, arch: str) -> None:
        super().__init__(file, arch)
        self.replaced, self.stated = ("", 0), dict[str, int | None]()

    def number(self, key: str, default: int = 0) -> int:
        if key == self.replaced[0]:
            return self.replaced[1]
        if key not in self.stated:
            self.stated[key] = None if self.value(key) is None else super().number(key)
        stated = self.stated[key]
        return default if stated is None else stated

    def count(self, key: str) -> int:
        if key not in self.stated and key != self.replaced[0]:
            self.stated[key] = super().count(key)
        return self.number(key)


def explain(file: File, findings: list[Finding]) -> str:
    """Sets the repair of findings about missing numbers, and of those that one number explains.

    Returns:
        A sentence about the number that explains most findings, or an empty string.
    """
    arch = file.metadata.get(ARCHITECTURE)
    if not findings or not isinstance(arch, str) or arch not in BY_ARCH or any(one.name == ARCHITECTURE for one in findings):
        return ""
    numbers = Trial(file, arch)
    list(read_keys(numbers))

    def broken(key: str = "", value: int = 0) -> dict[tuple[str, str, str], Finding]:
        numbers.replaced = key, value
        return {_place(one): one for one in (*broken_limits(numbers), *broken_tensors(numbers))}

    before = broken()
    equations = _equations(numbers)
    for finding in findings:
        key = finding.name.removeprefix(f"{arch}.")
        if finding.name in numbers.unknown and finding.name not in file.metadata:
            (most, value), (second, _), *_ = sorted(_fits(numbers, equations, key), reverse=True) + [(0, 0)] * 2
            if most > second and len(broken(key, value)) <= len(before):
                finding.repair = "set", finding.name, value
    candidates = list[tuple[int, bool, str, int]]()
    for key in list(numbers.stated):
        name = numbers.full(key)
        if name in numbers.read and not (LOADER_TYPES.get(key) == PER_BLOCK and is_array(file, name)):
            candidates += [(fit, name in file.metadata, key, value) for fit, value in _fits(numbers, equations, key)]
    best = nlargest(TRIALS, candidates, key=lambda one: one[:2])
    trials = [(numbers.full(key), value, broken(key, value)) for *_, key, value in best]
    name, value, after = min(trials, key=lambda trial: len(trial[2]), default=("", 0, before))
    if len(before) - len(after) < max(LEAST, len(findings) // 2 + 1):
        return ""
    for finding in findings:
        finding.explained = _place(finding) in before.keys() - after
        if finding.explained and not is_array(file, name):
            finding.repair = "set", name, value
        elif same := after.get(_place(finding)):
            finding.repair = finding.repair or same.repair  # a tensor to rename, whose dims are known now
    count = sum(finding.explained for finding in findings)
    return f"{_state(file, name)} explains {count} of {len(findings)} violations: the tensors fit {value}"


def _place(finding: Finding) -> tuple[str, str, str]:
    """Returns a key that identifies a finding across trials."""
    return finding.rule, finding.path, finding.name


def _fits(numbers: Trial, equations: Equations, key: str) -> Iterator[tuple[int, int]]:
    """Yields (number of tensors that get their dims, value of a key)."""
    for value in sorted({*SMALL, *(size for _, dims in equations for size in dims)}):
        numbers.replaced = key, value
        if fit := sum(count for (text, dims), count in equations.items() if _sizes(text, numbers) == dims):
            yield fit, value


def _equations(numbers: Trial) -> Equations:
    """Returns at most `EQUATIONS` equations that do not hold."""
    equations, blocks, rows = Equations(), 0, {row.name: row for row in numbers.family.loader_tensors}
    for name, tensor in numbers.file.tensors.items():
        match = BLOCK.match(name)
        block = int(match[1]) if match else 0
        blocks = max(blocks, block + bool(match))
        if row := rows.get(BLOCK.sub("blk.{i}.", name, count=1)):
            equations[row.dims, tuple(pad_dims(tensor.dims))] += 1
            word = row.when.removeprefix("no ")
            if word in SIZES and word != row.when and is_read(row, block, numbers) is False:
                equations[word, (0, 1, 1, 1)] += 1
    equations["layers", (blocks, 1, 1, 1)] += 1
    broken = Equations({one: count for one, count in equations.items() if _sizes(one[0], numbers) != one[1]})
    return Equations(dict(broken.most_common(EQUATIONS)))


def _sizes(text: str, numbers: ModelSizes) -> tuple[int, ...]:
    return tuple(pad_dims(dims_of(text, numbers) or ()))


def _state(file: File, name: str) -> str:
    if name not in file.metadata:
        return f"the missing {name}"
    value = file.metadata[name]
    return f"{name} with {len(value)} elements" if is_array(file, name) else f"{name} = {value}"
