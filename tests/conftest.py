"""Settings for the whole suite: 1,000 examples of a property, 25 in the fast tier, 100,000 of those that ``-m fuzz`` asks for.

``HYPOTHESIS_PROFILE=thorough`` looks at twenty times as many examples of each property.
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

FOREIGN = Path(__file__).with_name("foreign")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # a process of the tests for each processor, and so one thread of torch's in each
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # torch's threads, where they wait, leave the processors to other processes
default = settings(max_examples=1000, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("default", default)
settings.register_profile("thorough", default, max_examples=20_000)
settings.register_profile("fuzz", default, max_examples=100_000)
settings.register_profile("fast", default, max_examples=25)
PROFILES = {"fuzz": "fuzz", "not slow": "fast"}  # by what is asked for with -m


def pytest_configure(config: pytest.Config) -> None:
    """Picks how many examples there are, before the tests are imported, whose settings start from it."""
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", PROFILES.get(config.getoption("markexpr"), "default")))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out the tests of other clients, unless they are asked for by mark or by path."""
    if collection_path != FOREIGN or "foreign" in config.getoption("markexpr"):
        return None
    named = [Path(argument.partition("::")[0]).resolve() for argument in config.args]
    return None if any(FOREIGN in (path, *path.parents) for path in named) else True


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Runs the tests of a folder in a process for each of up to four processors, files or tests that are named in this one."""
    return min(os.cpu_count() or 1, 4) if all(map(os.path.isdir, config.args)) else 0


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that everybody can reach, as those of pytest are not."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)
