"""A model's tensors as a tree of modules, split at the dots in their names, with sizes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from glft_schema.describe.page.frame import visible

DEEPEST = 8  # levels of modules; deeper names keep their dots

Node = list[Any]  # label, bytes, and either the index of a tensor or a list of nodes
Module = dict[str | None, Any]  # modules by name; under None, tensors: (last part of the name, bytes, index)


def modules(tensors: Iterable[tuple[str, int]]) -> Node:
    """Returns the root of the tree for (name, bytes) of each tensor, in order.

    A module with a single child is merged with it. Nodes are lists, which are short in JSON.
    """
    root: Module = {}
    for i, (name, nbytes) in enumerate(tensors):
        at = root
        *path, last = name.split(".", DEEPEST)
        for part in path:
            at = at.setdefault(part, {})
        at.setdefault(None, []).append((last, nbytes, i))
    return _node(None, root)


def _node(label: str | None, module: Module) -> Node:
    children: list[Node] = []
    for key, inner in module.items():
        if key is None:
            children += [[visible(last), nbytes, i] for last, nbytes, i in inner]
        else:
            children.append(_node(key, inner))
    if label is not None and len(children) == 1:
        [[below, nbytes, inner]] = children
        return [f"{visible(label)}.{below}", nbytes, inner]
    return [visible(label or ""), sum(child[1] for child in children), children]
