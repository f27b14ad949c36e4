"""The table of other clients, without the clients: pinned versions, and files that we read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from glft_schema import Container
from glft_schema.tensor_types.ggml import GGML_TYPES
from tests.foreign.clients import CLIENTS, FAULTS, LAYOUTS, NOT_READ, TENSORS, Fault
from tests.foreign.our_reading import ours

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_the_extra_has_the_versions_of_the_table() -> None:
    (extra,) = re.findall(r"^foreign = \[(.*?)^\]", PYPROJECT.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    pinned = dict(re.findall(r'"([^"=]+)==([^"]+)"', extra))
    assert pinned == {client.package: client.version for client in CLIENTS if client.registry == "PyPI"}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.client}: {fault.files}")
def test_what_clients_get_wrong_is_read(tmp_path: Path, fault: Fault) -> None:
    path = tmp_path / "file.gguf"
    value = fault.example()
    Container.build_file(value, path)
    found = ours(path)
    assert list(found.metadata) == list(value["metadata"])
    assert list(found.tensors) == [row["name"] for row in value["tensor_infos"]]


def test_tables_are_about_the_clients() -> None:
    names = {client.name for client in CLIENTS}
    assert LAYOUTS.keys() == NOT_READ.keys() == {fault.client for fault in FAULTS} == names - {"safetensors"}
    for client, verdicts in TENSORS.items():
        types = [name for group in verdicts.values() for name in group.split()]
        assert len(types) == len(set(types)), client
        assert set(types) <= {type_.name for type_ in GGML_TYPES}, client
