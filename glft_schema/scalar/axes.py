"""Axes of loops. An index is a number that depends only on loops, as an array [*axes]."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from glft_schema.scalar import tree
from glft_schema.scalar.tree import Literal, Variable, walk

WORD = 4  # numbers of a byte in a word

Index: TypeAlias = np.ndarray[Any, Any]  # int64, float32 or bool


def fit(index: Index, rank: int) -> Index:
    """Returns an index with `rank` axes; those that it lacks are innermost, of size 1."""
    fitted: Index = index.reshape(index.shape + (1,) * (rank - index.ndim))
    return fitted


def steps_of(whole: Index, used: Index) -> tuple[int, tuple[int, ...], Index] | None:
    """Returns the first number, the steps and all numbers of the linear index that equals `whole`
    wherever it is used, or None if there is none."""
    products, steps = np.zeros(whole.shape, np.int64), []
    for axis, place in enumerate(np.indices(whole.shape)):
        both = np.delete(used, 0, axis) & np.delete(used, -1, axis)
        differences = np.diff(whole, axis=axis)[both]
        steps.append(int(differences[0]) if differences.size else 0)
        products += steps[-1] * place
    first = int((whole - products)[used][0]) if used.any() else 0
    places = products + first
    return None if (places != whole)[used].any() else (first, tuple(steps), places)


def reduce_index(index: Index) -> Index:
    """Returns an index with one number along the axes that it does not depend on."""
    for axis in range(index.ndim):
        first = index.take([0], axis)
        index = first if (index == first).all() else index
    return np.asarray(index.reshape(())) if index.size == 1 else index


def as_tuples(index: Index) -> str:
    """Returns the text of an index, as nested tuples."""
    return str(index.tolist()).replace("[", "(").replace("]", ",)")


def with_axes(text: str, axes: int, rank: int) -> str:
    """Returns a text with axes of size 1 added at the end."""
    return f"{text}[..., {', '.join(['None'] * (rank - axes))}]" if rank > axes else text


def dense(sizes: Sequence[int]) -> list[int]:
    """Returns the steps of contiguous axes; axes of size 1 are left out."""
    longer = [size for size in sizes if size > 1]
    return [math.prod(longer[axis + 1 :]) for axis in range(len(longer))]


def parts_of(loop: tree.For, count: int) -> tuple[int, ...]:
    """Returns the sizes of a loop's axes. Divisions and comparisons of its variable split it; a
    loop over the numbers of a table's entry is split into words of four."""
    cuts = set[int]()
    for part in walk(loop.body):
        if isinstance(part, tree.Load) and part.array.table is not None and isinstance(part.at, tree.Binary):
            sides = part.at.left, part.at.right
            cuts |= {WORD for side in sides if isinstance(side, Variable) and side.name == loop.name}
        if isinstance(part, tree.Binary) and part.sign in ("//", "%", "<", ">=") and isinstance(part.right, Literal):
            cut, left = int(part.right.value), part.left
            if isinstance(left, tree.Binary) and left.sign == "//" and isinstance(left.right, Literal):
                cut, left = cut * int(left.right.value), left.left
            if isinstance(left, Variable) and left.name == loop.name:
                cuts.add(cut)
    sizes: list[int] = []
    for cut in sorted((cut for cut in cuts if 1 < cut < count), reverse=True):
        if count % cut == 0:
            sizes.append(count // cut)
            count = cut
    return (*sizes, count)
