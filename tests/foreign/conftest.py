"""Fixtures: the clients, each started once, skipped if not installed."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.foreign import npm
from tests.foreign.clients import CLIENTS, HUGGINGFACE, NODE_LLAMA_CPP
from tests.foreign.python_readers import Client
from tests.foreign.readings import Reading
from tests.quantizer.conftest import folder  # noqa: F401, of test_llama_quantize.py

VERSIONS = {client.name: client for client in CLIENTS}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.foreign)


def require(name: str) -> None:
    """Skips the test if a package is not installed; fails for another version than the table's."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"needs {name}: pip install -e '.[dev,foreign]'")
    assert importlib.metadata.version(name) == VERSIONS[name].version


@pytest.fixture(scope="session")
def packages(request: pytest.FixtureRequest) -> Path:
    """The folder of npm's packages."""
    return npm.installed(request)


@pytest.fixture(scope="session")
def read(request: pytest.FixtureRequest) -> Iterator[Callable[[str, Path], Reading]]:
    """Returns a function that reads a file with a client, such as ``diffusers_default``."""
    started: dict[str, Client] = {}

    def reading(name: str, path: Path) -> Reading:
        if name in (HUGGINGFACE, NODE_LLAMA_CPP):
            return npm.readings(request.getfixturevalue("packages"), name, [path])[0]
        require(name.partition("_")[0])
        return started.setdefault(name, Client(name))(path)

    yield reading
    for client in started.values():
        client.close()
