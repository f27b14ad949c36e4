"""The promises hold for every file of the coverage-guided search, which notices a broken one."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from random import Random

import pytest

from glft_schema.testing.fuzzing import GIVEN, Case, PropertyError, exercise
from tests.fuzz import promises
from tests.fuzz.kinds import KINDS, kind_of
from tests.fuzz.mutator import mutated
from tests.fuzz.promises import check_promises
from tests.fuzz.seeds import CORPUS, LONGEST, seeds, write_seeds
from tests.golden import golden
from tests.oracles.peers import makes_examples_of_bytes
from tests.tools.depth import FULL, some_by_default

ROOT = Path(__file__).parents[2]
FILES = sorted(CORPUS.glob("*"))


def test_corpus_is_small_and_of_both_formats() -> None:
    stored = [path.read_bytes() for path in FILES]
    assert len(stored) > 100
    assert max(map(len, stored)) <= LONGEST
    assert sum(map(len, stored)) < 300_000
    assert {b"GGUF", b"TFLG"} <= {file[:4] for file in stored}


@pytest.mark.parametrize("part", some_by_default(range(8), 4))
def test_promises_hold_for_every_file(part: int) -> None:
    for path in FILES[part::8]:
        try:
            check_promises(path.read_bytes())
        except PropertyError as error:
            pytest.fail(f"{path.name}: {error}")


def test_a_broken_promise_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = golden("four_types")
    check_promises(stored)
    with monkeypatch.context() as patched:
        patched.setattr("tests.fuzz.views.byte_counts", lambda file: "\x1b[31mred")
        with pytest.raises(PropertyError, match=r"described: expected printable text of byte counts, found '\\x1b\[31mred'"):
            check_promises(stored)
    with monkeypatch.context() as patched:
        patched.setattr("tests.fuzz.views.byte_counts", lambda file: {}["none"])
        with pytest.raises(PropertyError, match="escaped: expected a FormatError or no error, found KeyError: 'none'"):
            check_promises(stored)
    with monkeypatch.context() as patched:
        whole = promises.byte_map_of
        patched.setattr(promises, "byte_map_of", lambda source: (list(whole(source)[0])[1:], None))
        with pytest.raises(PropertyError, match="described: expected a span from byte 0 on, found one from 4 to 8"):
            check_promises(stored)


@makes_examples_of_bytes
def test_mutations_break_one_thing() -> None:
    count = 60 if FULL else 18
    stored, made = golden("gguf_little"), [mutated(golden("gguf_little"), Random(number)) for number in range(count)]
    assert len({file for file in made if file is not None}) > count // 2
    assert stored not in made
    assert made == [mutated(stored, Random(number)) for number in range(count)]
    refused = sum(exercise(Case(file, GIVEN)) is None for file in made if file is not None)
    assert count // 6 < refused < count
    assert all(mutated(stored[:40], Random(number)) for number in range(5))  # of a broken file, too


def test_seeds_are_written_by_their_hashes(tmp_path: Path) -> None:
    write_seeds(tmp_path / "new" / "folder", seeds())
    written = {path.read_bytes() for path in (tmp_path / "new" / "folder").iterdir()}
    assert written == {stored for stored in seeds() if len(stored) <= LONGEST}
    assert len(written) > 70


@pytest.mark.parametrize("kind", KINDS)
def test_kinds(kind: str) -> None:
    kept, check = kind_of(kind)
    check(next(stored for stored in kept if stored))


@pytest.mark.skipif(find_spec("atheris") is None, reason="atheris is not installed: pip install 'atheris>=3'")
@pytest.mark.parametrize("kind", KINDS)
def test_the_search_runs(kind: str, tmp_path: Path) -> None:
    program = [sys.executable, "-m", "tests.fuzz.target", "--kind", kind, str(tmp_path / "work"), "-runs=400"]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "cov:" in done.stderr
    assert "DONE" in done.stderr
    assert len(list((tmp_path / "work").iterdir())) > 1
