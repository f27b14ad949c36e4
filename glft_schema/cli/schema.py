"""`glft schema NAME --as LANGUAGE`: a format or tensor type as documentation, another language's reader, or data."""

from __future__ import annotations

from contextlib import suppress
from enum import Enum
from typing import Annotated

import typer

from glft_schema.cli.terminal import request
from glft_schema.describe.languages import WRITERS, write
from glft_schema.describe.schema import schema_of
from glft_schema.errors import OptionError, shown
from glft_schema.formats.format import Format
from glft_schema.formats.registry import FORMATS, format_named
from glft_schema.tensor_types import TensorType

Language = Enum("Language", {name: name for name in WRITERS}, type=str)  # type: ignore[misc]
DEFAULT = next(iter(Language))


def schema(
    name: Annotated[str, typer.Argument(help="glft, gguf, or a tensor type such as q4_k.")],
    language: Annotated[Language, typer.Option("--as", help="What to write.")] = DEFAULT,
) -> None:
    """Print the schema of a format or a tensor type, derived from its declaration.

    Markdown shows which bit is which weight, and needs torch for that; the other languages do not.
    """
    with request():
        described = find(name)
        print(write(schema_of(described), language.value), end="")


def find(name: str) -> Format | TensorType:
    """Returns the format or tensor type of this name, in letters of either case.

    Raises:
        OptionError: where there is none.
    """
    with suppress(OptionError):
        return format_named(name)
    for format in FORMATS:
        if name.lower() in format.types and isinstance(type_ := format.types[name.lower()], TensorType):
            return type_
    types = dict.fromkeys(type_.scheme for format in FORMATS for type_ in format.types)
    raise OptionError(
        f"expected {' or '.join(format.name.lower() for format in FORMATS)}, or one of {', '.join(types)}; found {shown(name)}"
    )
