"""Settings of the suite, and fixtures that several files use.

A property gets 300 examples, 25 in the fast tier, and 100,000 with ``-m fuzz`` if marked.
``HYPOTHESIS_PROFILE=thorough`` tries 20,000.
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.golden import golden

FOREIGN = Path(__file__).with_name("foreign")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # each core runs a test process
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # waiting threads of torch yield the core
os.environ["GLFT_KERNELS"] = "off"  # tests do not depend on the kernels of who runs them
default = settings(max_examples=300, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("default", default)
settings.register_profile("thorough", default, max_examples=20_000)
settings.register_profile("fuzz", default, max_examples=100_000)
settings.register_profile("fast", default, max_examples=25)
PROFILES = {"fuzz": "fuzz", "not slow": "fast"}  # by the argument of -m


def pytest_configure(config: pytest.Config) -> None:
    """Sets the number of examples before tests are imported and derive their settings."""
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", PROFILES.get(config.getoption("markexpr"), "default")))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skips tests of other clients unless selected by mark or path."""
    if collection_path != FOREIGN or "foreign" in config.getoption("markexpr"):
        return None
    named = [Path(argument.partition("::")[0]).resolve() for argument in config.args]
    return None if any(FOREIGN in (path, *path.parents) for path in named) else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skips tests that build all kernels unless selected by mark."""
    if "kernels" not in config.getoption("markexpr"):
        for item in items:
            if item.get_closest_marker("kernels"):
                item.add_marker(pytest.mark.skip(reason="builds for minutes; -m kernels selects it"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Runs folders in up to four processes, and single files or tests in this process."""
    return min(os.cpu_count() or 1, 4) if all(map(os.path.isdir, config.args)) else 0


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that all users can access, unlike pytest's."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A path to write to."""
    return tmp_path / "model.glft"


@pytest.fixture
def four_types(path: Path) -> Path:
    """A GLFT file with a tensor of each type."""
    path.write_bytes(golden("four_types"))
    return path
