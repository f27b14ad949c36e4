"""Layers to omit, and the new numbers of the others."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from glft_schema.errors import OptionError

LAYER_NUMBER = re.compile(r"(?<=blk\.)[0-9]{1,9}(?=\.)")  # in the names of a layer's tensors


def renumber(names: Collection[str], pruned: Iterable[int]) -> tuple[dict[str, str], int]:
    """Returns the names without pruned layers and their new names, and the number of layers left.

    Raises OptionError if the names have no tensor of a pruned layer.
    """
    layer_of = {name: int(found[0]) for name in names if (found := LAYER_NUMBER.search(name))}
    layers, omitted, numbers, count = set(layer_of.values()), set(pruned), dict[int, int](), 0
    if missing := sorted(omitted - layers):
        raise OptionError(f"expected layers of the model to prune, of {len(layers)} layers, found {missing[0]}")
    for layer in sorted(layers - omitted):
        numbers[layer] = count if any(other < layer for other in omitted) else layer
        count = numbers[layer] + 1
    kept = (name for name in names if layer_of.get(name) not in omitted)
    return {name: LAYER_NUMBER.sub(lambda found: str(numbers[int(found[0])]), name, count=1) for name in kept}, count
