"""Settings of the suite, and fixtures that several files use.

A property gets 25 examples, 300 with ``--full``, and 100,000 with ``-m fuzz`` if marked.
``HYPOTHESIS_PROFILE=thorough`` tries 20,000. docs/background/contributing.md says what each tier
shows.
"""

import os
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.golden import golden

FOREIGN = Path(__file__).with_name("foreign")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # each core runs a test process
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # waiting threads of torch yield the core
if not any(map(os.path.exists, ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd"))):
    os.environ.setdefault("TRITON_INTERPRET", "1")  # without a GPU, Triton's kernels run in numpy
default = settings(max_examples=25, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("default", default)
settings.register_profile("full", default, max_examples=300)
settings.register_profile("thorough", default, max_examples=20_000)
settings.register_profile("fuzz", default, max_examples=100_000)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run every test at its full depth, in half an hour")


def pytest_configure(config: pytest.Config) -> None:
    """Sets the number of examples before tests are imported and derive their settings."""
    full, fuzz = config.getoption("full"), config.getoption("markexpr") == "fuzz"
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fuzz" if fuzz else "full" if full else "default"))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skips tests of other clients unless selected by mark or path."""
    if collection_path != FOREIGN or "foreign" in config.getoption("markexpr"):
        return None
    named = [Path(argument.partition("::")[0]).resolve() for argument in config.args]
    return None if any(FOREIGN in (path, *path.parents) for path in named) else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects tests of the full tier unless selected."""
    selecting = config.getoption("markexpr")
    if config.getoption("full") or any(mark in selecting for mark in ("full", "fuzz", "foreign")):
        return
    left = [item for item in items if item.get_closest_marker("full")]
    if left and not any("::" in argument for argument in config.args):
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips a test of what this system does not do."""
    for name, is_here in (("posix", os.name == "posix"), ("linux", sys.platform == "linux")):
        if (mark := item.get_closest_marker(name)) and not is_here:
            pytest.skip(f"only {'POSIX' if name == 'posix' else 'Linux'} {mark.args[0]}")


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Iterator[None]:
    """Skips a test that itself uses what this system lacks, such as `os.fork`."""
    try:
        return (yield)
    except AttributeError as error:
        files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
        if (
            sys.platform == "linux"
            or error.obj not in (os, signal, socket)
            or Path(__file__).parent not in Path(files[-1]).parents
        ):
            raise
        pytest.skip(f"this system lacks {error.obj.__name__}.{error.name}")


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
