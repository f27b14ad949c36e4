"""Recipes as text files: a main type, and types of tensors by name or pattern.

Each line is ``NAME=TYPE``; ``default=TYPE`` is the main type, and ``#`` starts a comment. The last
line that matches a tensor wins.
"""

from __future__ import annotations

from pathlib import Path

from glft_schema.errors import OptionError, quote
from glft_schema.formats.file_types import MOSTLY
from glft_schema.formats.registry import WITH_TYPES
from glft_schema.quantizer.recipe_rules import Recipe
from glft_schema.storage.opening import read_text
from glft_schema.storage.source import StrPath
from glft_schema.weights.schemes import type_named

DEFAULT = "default"


def read_recipe(path: StrPath) -> Recipe:
    """Reads a recipe.

    Raises:
        OptionError: if a line is not ``NAME=TYPE``, repeats a name or has an unknown type, with its
            number; if ``default`` is missing, or not the main type of a file type.
        OSError: if the file cannot be read.
    """
    name, types = Path(path).name, dict[str, str]()
    for number, line in enumerate(read_text(path).splitlines(), 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        key, equals, type_ = (part.strip() for part in text.rpartition("="))
        if not (key and equals and type_):
            raise OptionError(f"{name}: line {number}: expected NAME=TYPE, found {quote(text)}")
        if key in types:
            raise OptionError(f"{name}: line {number}: expected each name once, found {quote(key)} twice")
        try:
            types[key] = type_named(type_, WITH_TYPES.types).scheme
        except OptionError as error:
            raise OptionError(f"{name}: line {number}: {error}") from None
    if DEFAULT not in types:
        raise OptionError(f"{name}: expected a line {DEFAULT}=TYPE, found none")
    default = types.pop(DEFAULT)
    if default not in MOSTLY:
        problem = f"expected a default that general.file_type can have, one of {', '.join(MOSTLY)}"
        raise OptionError(f"{name}: {problem}; found {default}")
    return Recipe(Path(path).stem, MOSTLY[default], default, tensors=types)


def recipe_text(recipe: Recipe) -> str:
    """Returns a recipe as text, without its rules."""
    return "".join(f"{name}={type_}\n" for name, type_ in [(DEFAULT, recipe.default), *recipe.tensors.items()])
