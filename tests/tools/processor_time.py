"""Processor time of tests and fixtures: a limit in the default tier, and a list of the longest.

Children are counted, and so are the children of multiprocessing's fork server.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest

LIMIT = 3.0  # seconds of a test, or of a fixture, without a mark
LISTED = 1.0  # seconds from which a test or a fixture is listed
REFERENCE = 0.034  # seconds of `calibration` on the machine on which the marks were set
PROPERTY = "processor time"
TICK = 1 / os.sysconf("SC_CLK_TCK")
IMPORTED = (  # by the warm-up, if installed: the first import of each takes a second or more
    "diffusers",
    "gguf",
    "peft",
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "transformers.models.llama.modeling_llama",
    "xllamacpp",
)


class Clock:
    """Measures from its making on, without what runs under `not_charged`."""

    free = 0.0  # seconds of this process under `not_charged`

    def __init__(self) -> None:
        self.start, self.processor = time.perf_counter() - Clock.free, processor_time() - Clock.free

    def seconds(self) -> float:
        """Returns the processor time, or the wall time if that is less: a child of another test may
        have ended."""
        return min(processor_time() - self.processor, time.perf_counter() - self.start) - Clock.free


@contextmanager
def not_charged() -> Iterator[None]:
    """Charges no test for what runs inside, such as a download."""
    clock = Clock()
    try:
        yield
    finally:
        Clock.free += clock.seconds()


def processor_time() -> float:
    """Returns the seconds of this process and of its children that have ended."""
    seconds = sum(os.times()[:4])
    server = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    with suppress(OSError):
        fields = Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()
        seconds += sum(map(int, fields[11:15])) * TICK
    return seconds


def calibration() -> float:
    """Returns the seconds of a fixed piece of work, the best of three."""
    found = []
    for _ in range(3):
        start = time.process_time()
        sorted(str(i * i) for i in range(200_000))
        found.append(time.process_time() - start)
    return min(found)


def warm_up() -> None:
    """Imports libraries, computes tables, starts the fork server: no test is charged for them."""
    for name in IMPORTED:
        with suppress(ImportError):
            importlib.import_module(name)
    import torch  # not at the top: the process that only distributes tests does without
    from hypothesis import strategies

    from glft_schema.errors import TensorError
    from glft_schema.tensor_types.ggml import GGML_TYPES
    from tests.tools import forked

    strategies.text().validate()  # makes a table of characters, which fork servers read from a file
    forked.run("glft_schema", "--version")  # starts the fork server
    weights, importance = torch.linspace(-1, 1, 512).reshape(2, 256), torch.ones(256)
    for type_ in GGML_TYPES:
        if type_.has_encoder and not type_.exact:
            with suppress(TensorError):  # i-quants without the library
                type_.encode(weights, "warm-up", importance=importance if type_.takes_importance else None)


class ProcessorTime:
    """A plugin of each process that runs tests; `limited` if it fails tests above the limit."""

    def __init__(self, limited: bool) -> None:
        self.limited = limited
        self.in_fixtures = 0.0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self) -> None:
        warm_up()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self.item = item

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
        clock, inner = Clock(), self.in_fixtures
        try:
            found = yield
        finally:
            seconds = clock.seconds() - (self.in_fixtures - inner)
            self.in_fixtures += seconds
        self.check(f"fixture {fixturedef.argname}", seconds)
        return found

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, Any, None]:
        clock, in_fixtures = Clock(), self.in_fixtures
        yield
        self.check("test", clock.seconds() - (self.in_fixtures - in_fixtures))

    def check(self, what: str, seconds: float) -> None:
        """Lists what took long, and fails if the test has no mark that allows it."""
        if seconds > LISTED:
            self.item.user_properties.append((PROPERTY, (what, seconds)))
        if not self.limited or seconds <= LIMIT or self.item.get_closest_marker("long"):
            return
        limit = LIMIT * max(1.0, calibration() / REFERENCE)  # a machine that is slow or busy now takes longer
        if seconds > limit:
            pytest.fail(
                f"the {what} took {seconds:.1f} s of processor time, and the limit of the default tier is {limit:.1f} s: "
                "make it smaller, or mark the test `full` (only with --full) or, for a user's whole job, `long`",
                pytrace=False,
            )


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Lists tests and fixtures by processor time, the longest first."""
    found = {
        (value[1], report.nodeid, value[0])
        for reports in terminalreporter.stats.values()
        for report in reports
        for name, value in getattr(report, "user_properties", ())
        if name == PROPERTY
    }
    if found:
        terminalreporter.section(f"above {LISTED:.0f} s of processor time")
        for seconds, nodeid, what in sorted(found, reverse=True):
            terminalreporter.line(f"{seconds:6.1f} s  {nodeid}" + (f"  ({what})" if what != "test" else ""))
