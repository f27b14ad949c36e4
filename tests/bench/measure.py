"""Alternating measurements, and ratios with goals; `rows` of each group yields them."""

from __future__ import annotations

import gc
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One measurement.

    Attributes:
        what: the operation.
        ours: our time, amount or rate in `unit`.
        peer: the package or operation to compare with.
        theirs: the peer's time, amount or rate.
        unit: of both.
        at_most: the goal for ours / theirs of a time or amount.
        at_least: the goal for ours / theirs of a rate.
    """

    what: str
    ours: float
    peer: str
    theirs: float
    unit: str
    at_most: float | None = None
    at_least: float | None = None

    @property
    def ratio(self) -> float:
        return self.ours / self.theirs

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None without a goal."""
        if self.at_most is not None:
            return self.ratio <= self.at_most
        return None if self.at_least is None else self.ratio >= self.at_least

    @property
    def goal(self) -> str:
        if self.at_most is not None:
            return f"<= {ratio(self.at_most)}"
        return "" if self.at_least is None else f">= {ratio(self.at_least)}"

    def cells(self) -> list[str]:
        met = {None: "", True: "yes", False: "NO"}[self.met]
        ours, theirs = quantity(self.ours, self.unit), quantity(self.theirs, self.unit)
        return [self.what, ours, self.peer, theirs, ratio(self.ratio), self.goal, met]


HEADS = ["what", "ours", "against", "theirs", "ratio", "goal", "met"]


def ratio(number: float) -> str:
    """Formats a ratio, as a fraction if it is far below 1."""
    return f"{number:.3g}" if number > 0.09 else f"1/{1 / number:.0f}"


def quantity(number: float, unit: str) -> str:
    if unit == "s" and number < 1:
        return f"{number * 1e3:.3g} ms"
    return f"{number:.3g} {unit}"


def processor_time_of_children() -> float:
    """Returns the processor time in seconds of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def in_turn(
    runs: Mapping[str, Callable[[], object]], repeats: int = 5, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Returns the best seconds of each in `repeats` alternating rounds after a warm-up."""
    best = dict.fromkeys(runs, float("inf"))
    gc.collect()
    for number in range(repeats + 1):
        for name, run in runs.items():
            start = clock()
            made = run()
            taken = clock() - start
            del made
            if number:
                best[name] = min(best[name], taken)
    return best


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Keeps as many processes busy."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def once(run: Callable[[], object]) -> float:
    """Returns the seconds of one run, for slow operations."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def table(rows: Iterable[Row], markdown: bool = False) -> str:
    cells = [HEADS, *(row.cells() for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(HEADS))]
    if markdown:
        cells.insert(1, ["---"] * len(HEADS))
        return "\n".join("| " + " | ".join(line) + " |" for line in cells)
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells)
