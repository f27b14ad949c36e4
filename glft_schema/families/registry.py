"""The families of architectures: those of `pages`, then those that `register_family` has added."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache

from glft_schema import plugins
from glft_schema.errors import quote
from glft_schema.families.page import BLOCK_COUNT, Family
from glft_schema.families.pages import FAMILIES
from glft_schema.families.pages.every_model import SIZES
from glft_schema.families.vocabulary import KINDS
from glft_schema.formats.gguf_names import EMBEDDING
from glft_schema.words import suggestion

REGISTERED = [*FAMILIES]


def register_family(family: Family) -> Family:
    """Registers the page of an architecture in this process. Folders of its classes then convert.

    A package announces its pages as entry points of ``glft_schema.families``; see
    `glft_schema.plugins`.

    Returns:
        `family`. Registering it again changes nothing.

    Raises:
        TypeError: if it is not a `Family`.
        ValueError: if a class has a page, or the page cannot work. The message names the row.
    """
    if not isinstance(family, Family):
        raise TypeError(f"expected a Family, found {quote(family)}")
    if any(family is known for known in REGISTERED):
        return family
    taken = {name for known in REGISTERED for name in known.architectures}.intersection(family.architectures)
    if fault := f"expected classes without a page, found {quote(min(taken))}" if taken else first_fault(family):
        raise ValueError(f"{family.arch}: {fault}")
    REGISTERED.append(family)
    return family


def first_fault(family: Family) -> str:
    """Returns why a page cannot work, with the row, or an empty text."""
    return next(_faults(family), "")


def _faults(family: Family) -> Iterator[str]:
    if not family.architectures:
        yield "architectures: expected a class of config.json, found none"
    for name in family.vocabularies:
        if name not in KINDS:
            yield f"vocabularies: expected one of {', '.join(KINDS)}, found {quote(name)}"
    loaded = family.loader_tensors
    counts = Counter((row.name, row.when) for row in loaded if not row.name.endswith("scale"))
    if twice := next((name for (name, _), count in counts.items() if count > 1), None):
        yield f"tensors: expected one row for {quote(twice)}, found several"
    for what, names, needed in (
        ("keys", [key.key for key in family.keys], BLOCK_COUNT),
        ("tensors", [row.name for row in loaded], EMBEDDING),
    ):
        if needed not in names:
            yield f"{what}: expected a row for {needed}, found none"
    in_block = {row.name.removeprefix("blk.{i}.") for row in loaded}
    for row in family.tensors:
        for name in (row.name, *row.names):
            if other := set(re.findall(r"\{.*?\}", name)) - {"{i}", "{part}"}:
                yield f"tensors -> {name}: expected the placeholders {{i}} and {{part}}, found {min(other)}"
        if row.name and any(("{i}" in row.name) is not ("{i}" in name) for name in row.names):
            yield f"tensors -> {row.name}: expected {{i}} in both names, found {quote(row.gguf)}"
        ending = {"only": ".bias", "bare": ""}.get(row.bias, ".weight")
        if row.name and not {name + ending for name in row.names} <= {one.name for one in loaded}:
            yield f"tensors -> {row.name}: expected a row with the dims of {quote(row.gguf)}, found none"
        for word in (part for dim in row.dims.split() for part in dim.split("+") if not part.isdigit()):
            if word not in SIZES:
                yield f"tensors -> {row.names[0]}: expected a size as dim, found {quote(word)}{suggestion(word, SIZES)}"
        for word in (condition.removeprefix("no ") for condition in row.when.split(", ") if condition):
            if word not in {*SIZES, *in_block}:
                yield f"tensors -> {row.names[0]}: expected a size or a tensor of the block as condition, found {quote(word)}"


@cache
def load_plugins() -> None:
    """Registers the families of other packages."""
    plugins.load(plugins.FAMILIES, register_family)


def families() -> Iterator[Family]:
    """Yields the families, and loads plugins before it yields theirs."""
    yield from (known := list(REGISTERED))
    load_plugins()
    yield from REGISTERED[len(known) :]


def families_of(arch: object) -> list[Family]:
    """Returns the families of an architecture in GGUF. Loads plugins if none is known."""
    known = [family for family in REGISTERED if family.arch == arch]
    return known or [family for family in families() if family.arch == arch]


def family_with(arch: object) -> Family | None:
    """Returns the first family of an architecture in GGUF, or None."""
    return next(iter(families_of(arch)), None)


def archs() -> list[str]:
    """Returns the architectures in GGUF."""
    return [*dict.fromkeys(family.arch for family in families())]
