"""Fuzzing: properties that hold for any bytes, and the search for a file that violates one.

    escaped      a file is parsed, or rejected with a FormatError; no other exception is raised
    rebuilt      a parsed file is rebuilt byte for byte
    bounded      time and memory stay within `SECONDS` and `MEMORY` for a file of its size
    accepted     a file that is valid by construction is parsed, and keeps to its rule sets
    reported     if one rule or field is broken, exactly that is reported

Files are `Case`s: generated files, random damage to them, and corruptions with known errors.
Hypothesis shrinks a failure to the smallest file that still fails.
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
from typing import Any, TypeVar

import hypothesis
from hypothesis import strategies as st

from glft_schema.display import Progress
from glft_schema.errors import FormatError, OptionError, TensorError, one_line
from glft_schema.files.container import Container
from glft_schema.files.file import File
from glft_schema.files.parsing import check_rules
from glft_schema.formats.format import Format
from glft_schema.formats.registry import format_named
from glft_schema.testing.containers import containers
from glft_schema.testing.corruption import corruptions, distinct_rules
from glft_schema.testing.damage import Corruption, aspects, damaged

T = TypeVar("T")

SECONDS = (2.0, 200e-6)  # per file, and per byte of it; memory is traced, which is slow
MEMORY = (1 << 24, 1000)  # bytes per file, and per byte of it
TRIALS = 3  # runs before a file counts as too slow or large; the first one imports modules
NUMBERS = 1 << 16  # bytes: larger payloads are not dequantized
VALID, DAMAGED, CORRUPTED, GIVEN = "valid", "damaged", "corrupted", "given"


class PropertyError(AssertionError):
    """A property, `name`, is violated."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(name, problem)
        self.name = name
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.name}: {self.problem}"


@dataclass(frozen=True, repr=False)
class Case:
    """A file to try.

    Attributes:
        stored: its bytes.
        kind: `VALID`, `DAMAGED`, `CORRUPTED`, or `GIVEN`, if nothing is known about it.
        rules: the rule sets that a valid file satisfies.
        corruption: the expected error or findings of a corrupted file.
    """

    stored: bytes
    kind: str
    rules: tuple[str, ...] = ()
    corruption: Corruption | None = None

    def __repr__(self) -> str:
        return f"<{len(self.stored)} bytes, {self.kind}>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Prints the case in hypothesis's reports without its bytes."""
        printer.text(repr(self))

    @property
    def sha256(self) -> str:
        """The SHA-256 of its bytes."""
        return hashlib.sha256(self.stored).hexdigest()


@dataclass
class Failure:
    """A violated property, and the smallest file found that violates it."""

    case: Case
    error: PropertyError


@dataclass
class Fuzzed:
    """The results of fuzzing.

    Attributes:
        counts: the number of files of each kind.
        read: the number of damaged and of corrupted files that were parsed nevertheless.
        hashes: the SHA-256 of each distinct file.
        seconds: the longest CPU time for a file.
        memory: the highest peak of memory for a file in bytes, excluding the file itself.
        failure: the first failure, shrunk as far as possible, or None.
        interrupted: whether the user interrupted the search.
    """

    counts: Counter[str] = field(default_factory=Counter)
    read: Counter[str] = field(default_factory=Counter)
    hashes: set[bytes] = field(default_factory=set, repr=False)
    seconds: float = 0.0
    memory: int = 0
    failure: Failure | None = None
    interrupted: bool = False


def cases(source: str | Format | bytes) -> st.SearchStrategy[Case]:
    """Returns a strategy of valid, damaged and corrupted files, of a format or made from a file.
    Raises OptionError for an unknown name.

    If the given file is invalid, all cases are damaged copies of it.
    """
    source = format_named(source) if isinstance(source, str) else source
    if isinstance(source, Format):
        valid = st.sampled_from([(), source.rule_sets]).flatmap(partial(valid_files, source))
        broken = aspects().flatmap(
            lambda aspect: valid.flatmap(lambda case: damaged_files(case.stored, aspect) | corrupted_files(case, aspect=aspect))
        )
        return valid | broken | broken
    try:
        Container.parse(source)
    except FormatError:
        return damaged_files(source)
    return damaged_files(source) | corrupted_files(Case(source, GIVEN))


def valid_files(format: Format, rules: tuple[str, ...] = ()) -> st.SearchStrategy[Case]:
    """Returns a strategy of files that satisfy rule sets; see `containers`."""
    return containers(format, rules=rules).map(lambda stored: Case(stored, VALID, rules))


def damaged_files(stored: bytes, aspect: str | None = None) -> st.SearchStrategy[Case]:
    """Returns a strategy of random damage to a file; see `damaged`."""
    return damaged(stored, aspect).map(lambda stored: Case(stored, DAMAGED))


def corrupted_files(valid: Case, rule: str | None = None, aspect: str | None = None) -> st.SearchStrategy[Case]:
    """Returns a strategy of corruptions of a valid file; see `corruptions`."""
    return corruptions(valid.stored, rule, aspect=aspect).map(lambda broken: Case(broken.stored, CORRUPTED, corruption=broken))


# The properties


def check(case: Case, fuzzed: Fuzzed | None = None) -> None:
    """Checks all properties of a file.

    Args:
        case: the file.
        fuzzed: results to update with those of the file.

    Raises:
        PropertyError: for the first violated property.
    """
    if case.corruption is not None:
        with escaping():
            problem = case.corruption.problem()
        if problem:
            raise PropertyError("reported", problem)
    file = check_bounds(partial(exercise, case), len(case.stored), fuzzed)
    if fuzzed is not None:
        fuzzed.counts[case.kind] += 1
        fuzzed.read[case.kind] += case.kind in (DAMAGED, CORRUPTED) and file is not None
        fuzzed.hashes.add(hashlib.sha256(case.stored).digest())


def exercise(case: Case) -> File | None:
    """Parses a file, reads all its contents, and rebuilds it. Time and memory are not limited.

    Returns:
        The file, or None if it is rejected.

    Raises:
        PropertyError: for the first violated property.
    """
    file = _parse(case)
    if file is not None:
        _read_contents(file)
        _rebuild(file, case.stored)
    return file


@contextmanager
def escaping(*known: type[Exception]) -> Iterator[None]:
    """Raises PropertyError for any exception except `known` and ModuleNotFoundError."""
    expected: tuple[type[Exception], ...] = (PropertyError, ModuleNotFoundError, *known)
    try:
        yield
    except expected:
        raise
    except Exception as error:
        raise PropertyError(
            "escaped", f"expected a FormatError or no error, found {type(error).__name__}: {one_line(str(error))}"
        ) from error


def _parse(case: Case) -> File | None:
    try:
        with escaping(FormatError):
            file = Container.parse(case.stored)
            broken = check_rules(file, case.rules) if case.rules else ()
    except FormatError as error:
        if case.kind == VALID:
            raise PropertyError("accepted", f"expected a valid file to be accepted, found {error.text}") from error
        if case.kind != CORRUPTED and (not error.path or error.offset is None or not 0 <= error.offset <= len(case.stored)):
            raise PropertyError("escaped", f"expected an error with a field and a byte offset, found {error.text}") from error
        return None
    if broken:
        raise PropertyError("accepted", f"expected no finding of {case.rules}, found {broken[0].rule} at {broken[0].path}")
    return file


def _read_contents(file: File) -> None:
    with escaping(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        str(file), dict(file.metadata), check_rules(file, file.format.rule_sets)
        for tensor in file.tensors.values():
            if tensor.type.bytes_only:
                bytes(tensor.raw)
            elif tensor.nbytes <= NUMBERS:
                try:
                    tensor.array()
                except TensorError as error:
                    raise PropertyError("escaped", f"expected numbers, found {error}") from error


def _rebuild(file: File, stored: bytes) -> None:
    with escaping():
        try:
            built = Container.build(file)
        except FormatError as error:
            raise PropertyError("rebuilt", f"expected the same bytes, found {error.text}") from error
    if built != stored:
        pairs = enumerate(zip(built, stored, strict=False))
        at = next((i for i, (new, old) in pairs if new != old), min(len(built), len(stored)))
        problem = f"expected the same {len(stored)} bytes, found {len(built)} that differ from byte {at} on"
        raise PropertyError("rebuilt", problem)


def check_bounds(action: Callable[[], T], nbytes: int, fuzzed: Fuzzed | None = None) -> T:
    """Checks the time and memory of an action against the limits of a file of `nbytes`.

    The action is repeated up to `TRIALS` times until it is within the limits. Returns its result.
    """
    seconds, memory = (fixed + each * nbytes for fixed, each in (SECONDS, MEMORY))
    for _ in range(TRIALS):
        result, took, peak = measure(action)
        if took <= seconds and peak <= memory:
            break
    if fuzzed is not None:
        fuzzed.seconds, fuzzed.memory = max(fuzzed.seconds, took), max(fuzzed.memory, peak)
    if took > seconds:
        raise PropertyError("bounded", f"expected at most {seconds:.1f} s for {nbytes} bytes, found {took:.1f} s")
    if peak > memory:
        raise PropertyError("bounded", f"expected at most {memory:,} bytes of memory for {nbytes} bytes, found {peak:,}")
    return result


def measure(action: Callable[[], T]) -> tuple[T, float, int]:
    """Returns the result of an action, its CPU time in seconds, and its peak of memory in bytes."""
    was_tracing = tracemalloc.is_tracing()
    if not was_tracing:
        tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before, start = tracemalloc.get_traced_memory()[0], time.process_time()
        result = action()
        return result, time.process_time() - start, tracemalloc.get_traced_memory()[1] - before
    finally:
        if not was_tracing:
            tracemalloc.stop()


# The search


def draw_examples(
    strategy: st.SearchStrategy[Case], examples: int, seed: int, use: Callable[[Case], None], shrink: bool = True
) -> None:
    """Calls `use` with examples and, if it raises and `shrink` is set, with smaller ones."""
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

    with warnings.catch_warnings():  # meant for users of hypothesis, not of this package
        warnings.filterwarnings("ignore", "Generating overly large repr", hypothesis.errors.HypothesisWarning)
        run()


def fuzz(
    source: str | Format | bytes, examples: int, *, seed: int = 0, progress: Progress | None = None, given: Sequence[Case] = ()
) -> Fuzzed:
    """Searches for a file that violates a property.

    The same seed gives the same files in the same environment. Hypothesis also draws constants from
    the source of local modules, so another version of a package, or a checkout instead of an
    installed one, changes the files.

    A keyboard interrupt ends the search and keeps the results. If the current file has already
    exceeded its time limit, it is reported as a failure.

    Args:
        source: a format or its name, or a file as bytes.
        examples: the number of files to try, in addition to `given`.
        seed: the random seed.
        progress: called with the current activity, and the share that is done, from 0 to 1.
        given: files to try first, unchanged.

    Raises:
        OptionError: for an unknown name of a format.
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
            seconds, limit = time.monotonic() - started, TRIALS * (SECONDS[0] + SECONDS[1] * len(case.stored))
            if last is None and seconds > limit:
                problem = f"expected at most {limit:.1f} s, still running after {seconds:.1f} s"
                last = Failure(case, PropertyError("bounded", problem))
            raise
        finally:
            if progress:
                progress(case.kind if last is None else "shrinking", min(tried / max(examples + len(given), 1), 1.0))

    try:
        for case in given:
            use(case)
        if examples:
            draw_examples(cases(source), examples, seed, use)
    except (PropertyError, hypothesis.errors.Flaky):
        fuzzed.failure = last
    except KeyboardInterrupt:
        fuzzed.failure, fuzzed.interrupted = last, True
    return fuzzed


def corpus(source: str | Format | bytes, examples: int, *, seed: int = 0) -> list[Case]:
    """Returns valid files, and corruptions of every rule, to test other readers. Rules of tensor
    types with the same sentence count as one rule.

    Args:
        source: a format or its name, or a valid file as bytes, of which all corruptions are made.
        examples: the maximum number of valid files and further corruptions together; the latter
            must not parse.
        seed: as for `fuzz`.

    Raises:
        OptionError: for an unknown name of a format.
    """
    source = format_named(source) if isinstance(source, str) else source
    distinct: dict[tuple[str | None, ...], Case] = {}

    def use(case: Case) -> None:
        distinct.setdefault((case.sha256, case.kind, case.corruption.rule if case.corruption else None), case)

    def collect(strategy: st.SearchStrategy[Case], examples: int) -> None:
        with suppress(hypothesis.errors.Unsatisfiable, OptionError):  # the rule cannot be broken here
            draw_examples(strategy, examples, seed, use, shrink=False)

    if isinstance(source, Format):
        valid, format = valid_files(source, source.rule_sets), source
        collect(valid, max(examples // 4, 1))
        collect(valid_files(source), max(examples // 4, 1))
    else:
        valid, format = st.just(Case(source, VALID)), Container.parse(source).format
        collect(valid, 1)
    for rule in distinct_rules(format):
        collect(valid.flatmap(partial(corrupted_files, rule=rule)), 2)
    collect(
        valid.flatmap(corrupted_files).filter(lambda case: bool(case.corruption and case.corruption.error)),
        max(examples // 2, 1),
    )
    return list(distinct.values())
