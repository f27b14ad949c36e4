"""`glft schema`: a format or tensor type as documentation, code in another language, or JSON."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

from glft_schema.cli.options import Choice, argument, option
from glft_schema.describe.languages import WRITERS, write
from glft_schema.errors import OptionError, quote
from glft_schema.formats.format import Format
from glft_schema.formats.registry import FORMATS, format_named, registered_type
from glft_schema.quantizer.recipes_as_markdown import recipes_as_markdown
from glft_schema.tensor_types import TensorType
from glft_schema.words import suggestion

DEFAULT = next(iter(WRITERS))
RECIPES = "recipes"


def schema(
    name: Annotated[str, argument("NAME", "A format such as gguf, a tensor type such as q4_k, or recipes.")],
    language: Annotated[
        str, option(None, "Output format: a document, data, or source code.", "--as", type=Choice([*WRITERS]))
    ] = DEFAULT,
) -> None:
    """Prints the schema of a format or tensor type.

    For recipes, prints the types that glft quantize gives to tensors.

    The schema is derived from the declaration that reads and writes the files. The Markdown output
    shows which bits make up each weight.

    Examples:
        glft schema q4_k
        glft schema gguf --as kaitai
    """
    if name.lower() == RECIPES:
        if language != DEFAULT:
            raise OptionError(f"recipes are a document: expected --as {DEFAULT}, found {language}")
        print(recipes_as_markdown(), end="")
        return
    print(write(find(name), language), end="")


def find(name: str) -> Format | TensorType:
    """Returns a format or tensor type by name in any case. Raises OptionError if unknown."""
    for type_ in (type_ for format in FORMATS for type_ in format.types):
        if type_.scheme == name.lower():
            return type_
    with suppress(OptionError):
        return format_named(name)
    with suppress(OptionError):
        return registered_type(name)
    types = dict.fromkeys(type_.scheme for format in FORMATS for type_ in format.types)
    raise OptionError(
        f"expected {' or '.join(format.name.lower() for format in FORMATS)}, or one of {', '.join(types)}; found {quote(name)}"
        f"{suggestion(name, types)}"
    )
