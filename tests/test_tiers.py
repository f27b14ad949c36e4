"""The limit of processor time in the default tier, and the options that select a tier."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.tools import forked

ROOT = Path(__file__).parents[1]
CONFTEST = """
from tests.tools import processor_time
processor_time.LIMIT, processor_time.LISTED = 0.05, 0.03
processor_time.warm_up = lambda: None

def pytest_configure(config):
    config.addinivalue_line("markers", "long: allowed to take longer")
    config.pluginmanager.register(processor_time, "list")
    config.pluginmanager.register(processor_time.ProcessorTime(limited=True), "limit")
"""
TESTS = """
import subprocess, sys, time, pytest
from tests.tools.processor_time import not_charged

def work(seconds):
    start = time.process_time()
    while time.process_time() - start < seconds:
        pass

BUSY = "import time\\nwhile time.process_time() < 0.25: pass"

@pytest.fixture
def quick(): work(0.035)

@pytest.fixture(scope="module")
def slow(): work(0.25)

def test_waits(): time.sleep(0.25)
def test_works(): work(0.25)
def test_works_in_a_child(): subprocess.run([sys.executable, "-c", BUSY])
def test_fixtures_are_counted_alone(quick): work(0.035)
def test_of_a_slow_fixture(slow): pass
def test_downloads():
    with not_charged(): work(0.25)
def test_after_it(slow): pass
@pytest.mark.long
def test_whole_job(): work(0.25)
"""


def run(folder: Path, *options: object) -> tuple[str, int]:
    """Runs pytest in a process of its own."""
    command = ["pytest", "-q", "-p", "no:cacheprovider", "-p", "no:warnings", *options]  # of modules imported already
    done = forked.run(*command, environment={"PYTHONPATH": str(ROOT)}, folder=folder)
    return done.stdout, done.returncode


@pytest.mark.long
def test_tests_and_fixtures_above_the_limit_fail(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_some.py").write_text(TESTS)
    out, code = run(tmp_path, "test_some.py", "-rfE")
    assert code == 1
    assert set(re.findall(r"^(FAILED|ERROR) test_some.py::(\w+)", out, re.MULTILINE)) == {
        ("FAILED", "test_works"),
        ("FAILED", "test_works_in_a_child"),
        ("ERROR", "test_of_a_slow_fixture"),
    }
    assert re.search(
        r"the test took [01]\.\d s of processor time, and the limit of the default tier is \d\.\d s: make it smaller, or mark "
        r"the test `full` \(only with --full\) or, for a user's whole job, `long`",
        out,
    )
    assert re.search(r"the fixture slow took [01]\.\d s", out)
    listed = re.findall(r"^ +\d\.\d s  test_some.py::(\w+)(?:  \((.*)\))?$", out, re.MULTILINE)
    assert {("test_whole_job", ""), ("test_of_a_slow_fixture", "fixture slow")} <= {*listed}
    assert not {"test_waits", "test_after_it"} & {name for name, _ in listed}


OF_A_TIER = """
import pytest
def test_one(): pass
@pytest.mark.full
def test_two(): pass
"""


@pytest.mark.parametrize(
    ("options", "passed", "deselected"),
    [
        (["."], 1, 1),
        ([".", "--full"], 2, 0),
        pytest.param([".", "-m", "full"], 1, 1, marks=pytest.mark.full),
        pytest.param(["test_some.py::test_two"], 1, 0, marks=pytest.mark.full),
    ],
)
def test_what_is_selected(options: list[str], passed: int, deselected: int, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from tests.conftest import *")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    full\n")
    (tmp_path / "test_some.py").write_text(OF_A_TIER)
    out, code = run(tmp_path, "-p", "no:xdist", *options)
    assert code == 0
    assert out.splitlines()[-1].startswith(f"{passed} passed{f', {deselected} deselected' if deselected else ''} in ")
