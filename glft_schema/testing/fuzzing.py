"""Properties that hold for any bytes, and the search for bytes for which they do not.

    escaped      a file is read, or refused with a FormatError: nothing else is raised
    rebuilt      what is read is built again byte for byte
    bounded      time and memory are at most what `SECONDS` and `MEMORY` say for a file of its size
    accepted     what is valid by construction is read, and keeps to the rules that it was made for
    reported     of a file with one thing broken exactly that is reported

Files are `Case`s: generated ones, random damage to them, and corruptions that know what has to be reported. A failure is shrunk
by hypothesis to the smallest file that still shows it.
"""

from __future__ import annotations

import hashlib
import time
import tracemalloc
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from glft_schema.codec.rules import GGML, SPEC
from glft_schema.display import Progress
from glft_schema.errors import FormatError, OptionError, TensorError, one_line
from glft_schema.files.container import Container
from glft_schema.files.file import File
from glft_schema.files.parsing import check_rules
from glft_schema.formats.format import Format
from glft_schema.testing.strategies import Corruption, containers, corruptions, rule_ids
from glft_schema.testing.strategies.aspects import aspects, drawn_aspect, evenly, places_by_aspect

import hypothesis  # isort: skip  # after the strategies, which say how to install it
from hypothesis import strategies as st  # isort: skip

SECONDS = (2.0, 200e-6)  # for a file, and for each byte of it; with memory being traced, which is slow
MEMORY = (1 << 24, 1000)  # bytes for a file, and for each byte of it
TIMES = 3  # that a file is tried before it counts as too much: the first time imports what is needed
NUMBERS = 1 << 16  # of a tensor that is also decoded
VALID, DAMAGED, CORRUPTED, GIVEN = "valid", "damaged", "corrupted", "given"
WORDS = [b"\0" * 8, b"\xff" * 8, b"\x7f" + b"\xff" * 7, b"\xff" * 7 + b"\x7f", b"\1" + b"\0" * 7, b"\0" * 7 + b"\1"]


class PropertyError(AssertionError):
    """A property that does not hold. `name` says which."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(name, problem)
        self.name = name
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.name}: {self.problem}"


@dataclass(frozen=True, repr=False)
class Case:
    """A file to be tried.

    Attributes:
        stored: its bytes.
        kind: `VALID`, `DAMAGED`, `CORRUPTED`, or `GIVEN`, of which nothing is known.
        rules: the rule sets that a valid one keeps to.
        corruption: what has to be reported of a corrupted one.
    """

    stored: bytes
    kind: str
    rules: tuple[str, ...] = ()
    corruption: Corruption | None = None

    def __repr__(self) -> str:
        return f"<{len(self.stored)} bytes, {self.kind}>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Shows it in hypothesis's reports: not the bytes, of which there may be many."""
        printer.text(repr(self))

    @property
    def sha256(self) -> str:
        """The SHA-256 of its bytes."""
        return hashlib.sha256(self.stored).hexdigest()


@dataclass
class Failure:
    """A property that does not hold, and the smallest file for which it does not."""

    case: Case
    error: PropertyError


@dataclass
class Fuzzed:
    """What became of the files that were tried.

    Attributes:
        counts: of each kind.
        read: of each kind but the valid ones, how many of these were read all the same.
        hashes: of the bytes of each; one that was tried twice is there once.
        seconds: the longest time that one took.
        memory: the most bytes that one took, beyond its own.
        failure: the first failure, shrunk as far as there was time for; None where there is none.
        interrupted: whether it was ended from the keyboard.
    """

    counts: Counter[str] = field(default_factory=Counter)
    read: Counter[str] = field(default_factory=Counter)
    hashes: set[bytes] = field(default_factory=set)
    seconds: float = 0.0
    memory: int = 0
    failure: Failure | None = None
    interrupted: bool = False


def cases(source: Format | bytes) -> st.SearchStrategy[Case]:
    """Returns a strategy of files of a format, or of ones made from a file: valid, damaged and corrupted ones.

    Of a file that is not valid itself there are only damaged ones.
    """
    if isinstance(source, Format):
        sets = st.sampled_from([(), *([source.keeps_to] if source.keeps_to else [])])
        valid = sets.flatmap(lambda rules: containers(source, rules=rules).map(lambda stored: Case(stored, VALID, rules)))
        broken = aspects().flatmap(
            lambda aspect: valid.flatmap(lambda case: damaged(case, aspect) | corrupted(case, aspect=aspect))
        )
        return valid | broken | broken
    given = Case(source, GIVEN)
    try:
        Container.parse(source)
    except FormatError:
        return damaged(given)
    return damaged(given) | corrupted(given)


def corrupted(valid: Case, rule: str | None = None, aspect: str | None = None) -> st.SearchStrategy[Case]:
    """Returns a strategy of corruptions of a valid file, see `corruptions`."""
    return corruptions(valid.stored, rule, aspect=aspect).map(lambda made: Case(made.stored, CORRUPTED, corruption=made))


@st.composite
def damaged(draw: st.DrawFn, case: Case, aspect: str | None = None) -> Case:
    """Damages a file without knowing what it means: bytes changed, cut off, cut out, or copied over others.

    The place is drawn by aspect, see `glft_schema.testing.strategies.aspects`: the first time from `aspect`.
    """
    stored, places = case.stored, places_by_aspect(case.stored)
    for _ in range(draw(st.integers(1, 3))):
        start, end = evenly(draw, places[aspect if aspect in places else drawn_aspect(draw, places)])
        aspect = None
        at, to = min(draw(st.integers(start, end)), len(stored)), draw(st.integers(0, len(stored)))
        match draw(st.sampled_from(["byte", "byte", "bit", "word", "end", "out", "copy"])):
            case "byte":
                stored = stored[:at] + bytes([draw(st.integers(0, 255))]) + stored[at + 1 :]
            case "bit" if at < len(stored):
                stored = stored[:at] + bytes([stored[at] ^ 1 << draw(st.integers(0, 7))]) + stored[at + 1 :]
            case "word":
                stored = stored[:at] + draw(st.sampled_from(WORDS)) + stored[at + 8 :]
            case "end":
                stored = stored[:at]
            case "out":
                stored = stored[: min(at, to)] + stored[max(at, to) :]
            case "copy":
                part = stored[to : to + draw(st.integers(1, 64))]
                stored = stored[:at] + part + stored[at + draw(st.sampled_from([0, len(part)])) :]
    return Case(stored, DAMAGED)


# The properties


def check(case: Case, fuzzed: Fuzzed | None = None) -> None:
    """Checks all properties on a file.

    Args:
        case: the file.
        fuzzed: where time, memory and what became of it are added up.

    Raises:
        PropertyError: for the first that does not hold.
    """
    if case.corruption is not None:
        with escaping():
            problem = case.corruption.problem()
        if problem:
            raise PropertyError("reported", problem)
    file: File | None = None

    def examine() -> None:
        nonlocal file
        file = examined(case)

    bounded(examine, len(case.stored), fuzzed)
    if fuzzed is not None:
        fuzzed.counts[case.kind] += 1
        fuzzed.read[case.kind] += case.kind in (DAMAGED, CORRUPTED) and file is not None
        fuzzed.hashes.add(hashlib.sha256(case.stored).digest())


def examined(case: Case) -> File | None:
    """Reads a file, looks at all that is in it, and builds it again; time and memory are not judged.

    Returns:
        The file, or None where it is refused.

    Raises:
        PropertyError: for the first property that does not hold.
    """
    file = _read(case)
    if file is not None:
        _look(file)
        _rebuild(file, case.stored)
    return file


@contextmanager
def escaping(*known: type[Exception]) -> Iterator[None]:
    """Turns whatever is raised but `known` into the failure of a property."""
    passed: tuple[type[BaseException], ...] = (PropertyError, ModuleNotFoundError, *known)  # the second is not the file's fault
    try:
        yield
    except passed:
        raise
    except Exception as error:
        raise PropertyError(
            "escaped", f"expected a FormatError or none, found {type(error).__name__}: {one_line(str(error))}"
        ) from error


def _read(case: Case) -> File | None:
    try:
        with escaping(FormatError):
            return Container.parse(case.stored)
    except FormatError as error:
        if case.kind == VALID:
            raise PropertyError("accepted", f"expected a valid file to be read, found {error.text}") from error
        if case.kind != CORRUPTED and (not error.path or error.offset is None or not 0 <= error.offset <= len(case.stored)):
            raise PropertyError("escaped", f"expected a field and a byte of the file, found {error.text}") from error
        return None
    finally:
        if case.rules:
            _keeps_to(case)


def _keeps_to(case: Case) -> None:
    """Checks that a valid file keeps to the rules that it was made for."""
    with escaping():
        try:
            broken = check_rules(Container.parse(case.stored), case.rules)
        except FormatError:
            return
    if broken:
        raise PropertyError("accepted", f"expected no finding of {case.rules}, found {broken[0].rule} at {broken[0].path}")


def _look(file: File) -> None:
    """Looks at everything in a file that was read."""
    with escaping(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        str(file), dict(file.metadata), check_rules(file, (SPEC, GGML))
        for tensor in file.tensors.values():
            if not tensor.dtype.is_known:
                bytes(tensor.raw)
            elif tensor.nbytes <= NUMBERS:
                try:
                    tensor.dequantize()
                except TensorError as error:
                    raise PropertyError("escaped", f"expected numbers, found {error}") from error


def _rebuild(file: File, stored: bytes) -> None:
    with escaping():
        try:
            built = Container.build(file)
        except FormatError as error:
            raise PropertyError("rebuilt", f"expected the same bytes, found {error.text}") from error
    if built != stored:
        at = next(
            (i for i, (one, other) in enumerate(zip(built, stored, strict=False)) if one != other), min(len(built), len(stored))
        )
        raise PropertyError(
            "rebuilt", f"expected the same {len(stored)} bytes, found {len(built)}, other ones from byte {at} on"
        )


def bounded(action: Callable[[], None], nbytes: int, fuzzed: Fuzzed | None = None) -> None:
    """Checks that an action takes no more time and memory than a file of `nbytes` may; the best of a few times counts."""
    seconds, memory = (fixed + each * nbytes for fixed, each in (SECONDS, MEMORY))
    for _ in range(TIMES):
        took, peak = measured(action)
        if took <= seconds and peak <= memory:
            break
    if fuzzed is not None:
        fuzzed.seconds, fuzzed.memory = max(fuzzed.seconds, took), max(fuzzed.memory, peak)
    if took > seconds:
        raise PropertyError("bounded", f"expected at most {seconds:.1f} s for {nbytes} bytes, found {took:.1f} s")
    if peak > memory:
        raise PropertyError("bounded", f"expected at most {memory:,} bytes of memory for {nbytes} bytes, found {peak:,}")


def measured(action: Callable[[], None]) -> tuple[float, int]:
    """Returns the seconds of processor time that an action takes, and the most bytes that Python holds meanwhile."""
    was_tracing = tracemalloc.is_tracing()
    if not was_tracing:
        tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before, start = tracemalloc.get_traced_memory()[0], time.process_time()
        action()
        return time.process_time() - start, tracemalloc.get_traced_memory()[1] - before
    finally:
        if not was_tracing:
            tracemalloc.stop()


# The search


def drawn(
    strategy: st.SearchStrategy[Case], examples: int, seed: int, use: Callable[[Case], None], shrink: bool = True
) -> None:
    """Calls `use` with so many examples; where it raises, with ever smaller ones, too."""
    phases = [hypothesis.Phase.generate, *([hypothesis.Phase.shrink] if shrink else [])]

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=phases,
        report_multiple_bugs=False,
        print_blob=False,
        verbosity=hypothesis.Verbosity.quiet,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(strategy)
    def run(case: Case) -> None:
        use(case)

    run()


def fuzz(
    source: Format | bytes, examples: int, *, seed: int = 0, progress: Progress | None = None, given: Sequence[Case] = ()
) -> Fuzzed:
    """Looks for a file for which a property does not hold.

    The same seed gives the same files in one environment. Hypothesis also takes numbers and texts from the source of modules
    that are loaded and not installed, so another version of anything, or a checkout in place of a package, gives other ones.
    An interrupt from the keyboard ends it, with what was found until then; it is a failure of the file that is being tried,
    where that has taken too long already.

    Args:
        source: a format, or a file as bytes.
        examples: how many files to try, beside `given`.
        seed: where the search begins.
        progress: called with what is being done, and how much of it is done, from 0 to 1.
        given: files that are tried first, as they are.
    """
    fuzzed = Fuzzed()
    tried, last = 0, None

    def use(case: Case) -> None:
        nonlocal tried, last
        tried += 1
        started = time.monotonic()
        try:
            check(case, fuzzed if last is None else None)
        except PropertyError as error:
            last = Failure(case, error)
            raise
        except KeyboardInterrupt:
            seconds, limit = time.monotonic() - started, TIMES * (SECONDS[0] + SECONDS[1] * len(case.stored))
            if last is None and seconds > limit:
                last = Failure(
                    case, PropertyError("bounded", f"expected at most {limit:.1f} s, found no end after {seconds:.1f} s")
                )
            raise
        finally:
            if progress:
                progress(case.kind if last is None else "shrinking", min(tried / max(examples + len(given), 1), 1.0))

    try:
        for case in given:
            use(case)
        if examples:
            drawn(cases(source), examples, seed, use)
    except (PropertyError, hypothesis.errors.Flaky):
        fuzzed.failure = last
    except KeyboardInterrupt:
        fuzzed.failure, fuzzed.interrupted = last, True
    return fuzzed


def corpus(source: Format | bytes, examples: int, *, seed: int = 0) -> list[Case]:
    """Returns files for the tests of other readers: valid ones, one for each rule that can be broken, and other corruptions.

    Args:
        source: a format, or a valid file as bytes, from which all corruptions are made then.
        examples: how many there are of valid ones and of other corruptions, together, at most.
        seed: as for `fuzz`.
    """
    found: dict[tuple[str | None, ...], Case] = {}

    def use(case: Case) -> None:
        found.setdefault((case.sha256, case.kind, case.corruption.rule if case.corruption else None), case)

    def collect(strategy: st.SearchStrategy[Case], examples: int) -> None:
        with suppress(hypothesis.errors.Unsatisfiable, OptionError):  # a rule that the file has no place for, or nobody knows
            drawn(strategy, examples, seed, use, shrink=False)

    if isinstance(source, Format):
        valid = containers(source, rules=source.keeps_to).map(lambda stored: Case(stored, VALID, source.keeps_to))
        collect(valid, max(examples // 4, 1))
        collect(containers(source).map(lambda stored: Case(stored, VALID)), max(examples // 4, 1))
        format = source
    else:
        valid, format = st.just(Case(source, VALID)), Container.parse(source).format
        collect(valid, 1)
    for rule in rule_ids(format):
        collect(valid.flatmap(partial(corrupted, rule=rule)), 2)
    collect(valid.flatmap(corrupted), max(examples // 2, 1))
    return list(found.values())


def as_entry(case: Case, file: str) -> dict[str, Any]:
    """Returns a case as a manifest has it, stored under the name `file`."""
    entry: dict[str, Any] = {"file": file, "sha256": case.sha256, "bytes": len(case.stored), "kind": case.kind}
    if case.kind == VALID:
        return {**entry, "rules": list(case.rules)}
    if (made := case.corruption) is None:
        return entry
    return {
        **entry,
        "sentence": made.sentence,
        "rule": made.rule,
        "field": made.path,
        "offset": made.offset,
        "error": made.error.__name__ if made.error else None,
        "reported": made.reported,
        "within": made.within,
        "sets": list(made.sets),
        "findings": [list(finding) for finding in made.findings],
        "expected": made.expected,
    }
