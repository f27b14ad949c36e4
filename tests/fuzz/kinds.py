"""Kinds of input that the coverage-guided search knows: their seeds and their promises."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module

CONTAINERS = "containers"  # GGUF, GLFT and safetensors
KINDS = (CONTAINERS, "torch_files", "folders", "index_files", "adapters")


def kind_of(name: str) -> tuple[Iterator[bytes], Callable[[bytes], None]]:
    """Returns the seeds of a kind, and the function that raises if bytes break a promise."""
    modules = ("seeds", "promises") if name == CONTAINERS else (name, name)
    seeds, promises = (import_module(f"tests.fuzz.{module}") for module in modules)
    return seeds.seeds(), promises.check_promises
