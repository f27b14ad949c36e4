"""The promises hold for every file of the coverage-guided search."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from glft_schema.testing.fuzzing import PropertyError
from tests.fuzz.kinds import KINDS, kind_of
from tests.fuzz.promises import check_promises
from tests.fuzz.seeds import CORPUS
from tests.tools.depth import some_by_default

ROOT = Path(__file__).parents[2]
FILES = sorted(CORPUS.glob("*"))


@pytest.mark.parametrize("part", some_by_default(range(8), 4))
def test_promises_hold_for_every_file(part: int) -> None:
    for path in FILES[part::8]:
        try:
            check_promises(path.read_bytes())
        except PropertyError as error:
            pytest.fail(f"{path.name}: {error}")


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
