"""Plugins: formats, tensor types and families that other packages announce as entry points.

    [project.entry-points."glft_schema.formats"]
    toy = "toy_package:TOY"

A group is loaded at the first lookup of a name, code, file format or architecture that this package
lacks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from glft_schema.errors import PluginWarning, one_line, warn

FORMATS = "glft_schema.formats"
TYPES = "glft_schema.types"
FAMILIES = "glft_schema.families"


def load(group: str, register: Callable[[Any], object]) -> None:
    """Loads the entry points of a group, and registers each.

    Warns:
        PluginWarning: for an entry point that cannot be loaded or registered.
    """
    from importlib.metadata import entry_points  # slow to import

    for entry in entry_points(group=group):
        try:
            register(entry.load())
        except Exception as error:
            package = entry.dist.name if entry.dist else "an unknown package"
            problem = f"{entry.name} of {package} ({group}) is not available: {type(error).__name__}: {one_line(str(error))}"
            warn(problem, PluginWarning)
