"""Alternating measurements, and ratios with goals; `rows` of each group yields them."""

from __future__ import annotations

import gc
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

Runs = Mapping[str, Callable[[], object]]


@dataclass(frozen=True)
class Row:
    """One measurement.

    Attributes:
        what: the operation.
        ours: our time, amount or rate in `unit`.
        peer: the package or operation to compare with.
        theirs: the peer's time, amount or rate.
        unit: of both.
        goal: for ours / theirs: the least of a rate, whose unit ends in "/s", or else the most.
    """

    what: str
    ours: float
    peer: str
    theirs: float
    unit: str
    goal: float | None = None

    @property
    def ratio(self) -> float:
        return self.ours / self.theirs

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None without a goal."""
        if self.goal is None:
            return None
        return self.ratio >= self.goal if self.unit.endswith("/s") else self.ratio <= self.goal

    def cells(self) -> list[str]:
        ours, theirs = quantity(self.ours, self.unit), quantity(self.theirs, self.unit)
        goal = "" if self.goal is None else f"{'>=' if self.unit.endswith('/s') else '<='} {ratio(self.goal)}"
        return [self.what, ours, self.peer, theirs, ratio(self.ratio), goal, {None: "", True: "yes", False: "NO"}[self.met]]


HEADS = ["what", "ours", "against", "theirs", "ratio", "goal", "met"]


def ratio(number: float) -> str:
    """Formats a ratio, as a fraction if it is far below 1."""
    return f"{number:.3g}" if number > 0.09 else f"1/{1 / number:.0f}"


def quantity(number: float, unit: str) -> str:
    return f"{number * 1e3:.3g} ms" if unit == "s" and number < 1 else f"{number:.3g} {unit}"


def seconds_of(run: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    start = clock()
    made = run()
    taken = clock() - start
    del made
    return taken


def in_turn(runs: Runs, repeats: int = 5, measure: Callable[[Callable[[], object]], float] = seconds_of) -> dict[str, float]:
    """Returns the best seconds of each in `repeats` alternating rounds after a warm-up."""
    gc.collect()
    rounds = [{name: measure(run) for name, run in runs.items()} for _ in range(repeats + 1)]
    return {name: min(times[name] for times in rounds[1:]) for name in runs}


def compared(
    what: str,
    ours: Callable[[], object],
    peers: Runs,
    goals: Mapping[str, float] | float = {},
    amount: float = 0,
    repeats: int = 5,
    measure: Callable[[Callable[[], object]], float] = seconds_of,
) -> Iterator[Row]:
    """Measures in turn with peers; yields a row for each.

    Args:
        what: the operation.
        ours: does it.
        peers: do it, too.
        goals: of some peers, or of all.
        amount: gigabytes that make rates of the times.
        repeats: the number of rounds.
        measure: returns the seconds of a run.
    """
    figures = {name: amount / time if amount else time for name, time in in_turn({"": ours, **peers}, repeats, measure).items()}
    for peer in peers:
        goal = goals.get(peer) if isinstance(goals, Mapping) else goals
        yield Row(what, figures[""], peer, figures[peer], "GB/s" if amount else "s", goal)


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


def table(rows: Iterable[Row], markdown: bool = False) -> str:
    cells = [HEADS, *(row.cells() for row in rows)]
    if markdown:
        cells.insert(1, ["---"] * len(HEADS))
        return "\n".join("| " + " | ".join(line) + " |" for line in cells)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in cells)
