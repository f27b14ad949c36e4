"""Draws the corpus again: ``python -m tests.corpus``, in a few minutes.

Many candidates are drawn. Those with features, errors or findings that no other file has are kept
first, the smallest of them if there are several, and then any until the numbers below are reached.
A feature that no candidate has is searched for.
"""

from __future__ import annotations

import json
import re
import tarfile
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any

from hypothesis import HealthCheck, find, reject, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable

from glft_schema import Container
from glft_schema.errors import OptionError
from glft_schema.formats.format import Format
from glft_schema.formats.gguf import GGUF
from glft_schema.formats.glft import GLFT
from glft_schema.formats.safetensors import SAFETENSORS
from glft_schema.testing import Case, containers, rule_ids, write_corpus
from glft_schema.testing.damage import aspects
from glft_schema.testing.faults import FIELD_FAULTS, Breaker, FieldFault
from glft_schema.testing.fuzzing import CORRUPTED, DAMAGED, VALID, corrupted_files, damaged_files, draw_examples
from tests.corpus import FOLDER, FORMATS, verdict_on
from tests.corpus.features import features, required
from tests.corpus.other_readers import other_numbers, rewritten
from tests.formats.safetensors_files import random_file
from tests.tools import gguf_strategies, glft_strategies

LONGEST = 3000  # bytes of a file, if shorter ones are drawn
CANDIDATES = 400  # of each source
VALID_FILES, OF_A_RULE, OF_A_DAMAGE, DAMAGED_FILES = 110, 2, 12, 80  # numbers of files
SOURCES: dict[Format, list[st.SearchStrategy[bytes]]] = {
    GLFT: [glft_strategies.files().map(lambda made: made[0])],
    GGUF: [gguf_strategies.files().map(lambda file: file.bytes()), gguf_strategies.loose_files()],
    SAFETENSORS: [],
}
SEARCH = settings(max_examples=20_000, database=None, derandomize=True, suppress_health_check=list(HealthCheck))

Key = Callable[[Case], Iterable[str]]


def main() -> None:
    warnings.simplefilter("ignore")  # of NaN, and of strategies that are larger than usual
    for format in FORMATS:
        cases = {case.sha256: (case, damage) for case, damage in of_format(format)}
        write(format, list(cases.values()))


def of_format(format: Format) -> Iterator[tuple[Case, str | None]]:
    """Yields the files of a format, each with the name of the damage done to it, if it has one."""
    sets = [(), *((name,) for name in format.keeps_to), format.keeps_to]
    valid = [containers(format, rules=rules).map(lambda stored, rules=rules: Case(stored, VALID, rules)) for rules in sets]
    valid += [source.map(lambda stored: Case(stored, VALID)) for source in SOURCES[format]]
    found = chosen(candidates(valid), lambda case: features(case.stored), VALID_FILES)
    missing = required(format) - {feature for case in found for feature in features(case.stored)}
    print(f"{format.name}: {len(missing)} features to search for")
    for feature in sorted(missing):
        found.append(find(st.one_of(valid), lambda case, feature=feature: feature in features(case.stored), settings=SEARCH))
    yield from ((case, None) for case in found)
    for rule in rule_ids(format):
        with suppress(OptionError):  # no values are known that break it
            broken = valid[-1 - len(SOURCES[format])].flatmap(partial(corrupted_files, rule=rule))
            yield from ((case, None) for case in chosen(candidates([broken], 24), outcome, OF_A_RULE, OF_A_RULE))
    for fault in dict.fromkeys(fault for faults in FIELD_FAULTS.values() for fault in faults):
        made = st.one_of(valid).flatmap(partial(harmed, fault))
        yield from ((case, name_of(fault)) for case in chosen(candidates([made], 100), outcome, 0, OF_A_DAMAGE))
    any_damage = aspects().flatmap(lambda aspect: st.one_of(valid).flatmap(lambda case: damaged_files(case.stored, aspect)))
    cases = candidates([any_damage], 2 * CANDIDATES)
    cases += [Case(random_file(Random(seed)), DAMAGED) for seed in range(CANDIDATES)] * (format is SAFETENSORS)
    yield from ((case, None) for case in chosen(cases, outcome, DAMAGED_FILES))


def name_of(fault: FieldFault) -> str:
    """Returns the name of a kind of fault, with its aspect."""
    if isinstance(fault, partial):
        return f"{fault.func.__name__} {fault.keywords['aspect']}"
    return fault.__name__


@st.composite
def harmed(draw: st.DrawFn, fault: FieldFault, case: Case) -> Case:
    """Draws files with one broken field."""
    made = fault(Breaker(draw, Container.parse(case.stored)))
    return Case(made.stored, CORRUPTED, corruption=made) if made else reject()


def candidates(sources: Iterable[st.SearchStrategy[Case]], number: int = CANDIDATES) -> list[Case]:
    found: dict[str, Case] = {}
    for seed, source in enumerate(sources):
        with suppress(Unsatisfiable):
            draw_examples(source, number, seed, lambda case: found.setdefault(case.sha256, case) and None, shrink=False)
    cases = sorted(found.values(), key=lambda case: len(case.stored))
    return [case for case in cases if len(case.stored) <= LONGEST] or cases


def chosen(cases: list[Case], keys: Key, number: int, most: int | None = None) -> list[Case]:
    """Returns `number` cases, and more, up to `most`, as long as each adds a key."""
    left = {case: frozenset(keys(case)) for case in cases}
    seen: set[str] = set()
    found: list[Case] = []
    while left and (most is None or len(found) < most):
        best = max(left, key=lambda case: len(left[case] - seen) / (len(case.stored) + 100))
        if not left[best] - seen:
            break
        seen |= left.pop(best)
        found.append(best)
    spread = list(left)[:: max(len(left) // max(number - len(found), 1), 1)]  # of all sizes
    return found + spread[: max(number - len(found), 0)]


def outcome(case: Case) -> list[str]:
    """Returns the errors and findings of a file, with fields but without numbers and names."""
    verdict = verdict_on(case.stored)
    refused, breaks = verdict.get("refused"), verdict.get("breaks", ())
    found = [f"{refused[0]} {refused[3]} {refused[1]}"] if refused else [f"{rule} {path}" for rule, path, _ in breaks]
    sentence = case.corruption.sentence if case.corruption else ""
    return [re.sub(r"'.*'|[0-9]+|in .*", "", text) for text in (*found, sentence)] or ["read"]


def write(format: Format, cases: list[tuple[Case, str | None]]) -> None:
    """Writes the archive and the manifest of a format."""
    name = format.name.lower()
    with tempfile.TemporaryDirectory() as folder:
        manifest = json.loads(write_corpus((case for case, _ in cases), folder, format=format).read_bytes())
        with tarfile.open(FOLDER / f"{name}.tar.xz", "w:xz", preset=9) as archive:
            for entry in manifest["files"]:
                stored = Path(folder, entry["file"]).read_bytes()
                member = tarfile.TarInfo(entry["file"])
                member.size = len(stored)
                archive.addfile(member, BytesIO(stored))
    entries = manifest.pop("files")
    for entry, (case, damage) in zip(entries, cases, strict=True):
        entry |= {"damage": damage} if damage else {}
        entry |= facts(case.stored)
    head = json.dumps(manifest, indent=1).removesuffix("\n}")
    lines = ",\n".join(json.dumps(entry, ensure_ascii=True, separators=(",", ":")) for entry in entries)
    FOLDER.joinpath(f"{name}.json").write_text(f'{head},\n "files": [\n{lines}\n]}}\n', "utf-8")
    nbytes = sum(path.stat().st_size for path in FOLDER.glob(f"{name}.*"))
    print(f"{format.name}: {len(cases)} files, {sum(len(case.stored) for case, _ in cases):,} bytes, stored in {nbytes:,}")


def facts(stored: bytes) -> dict[str, Any]:
    """Returns what the manifest says of a file in addition to `write_corpus`."""
    verdict = verdict_on(stored)
    if "refused" in verdict:
        return verdict
    file = Container.parse(stored)
    assert rewritten(file, stored) in (None, stored)
    return {"has": sorted(features(stored)), **verdict, "numbers": other_numbers(file, stored)}


if __name__ == "__main__":
    main()
