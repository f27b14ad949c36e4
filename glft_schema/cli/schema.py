"""`glft schema NAME --as LANGUAGE`: a format or tensor type as documentation, another language's reader, or data."""

from __future__ import annotations

from enum import Enum
from importlib import import_module
from typing import Annotated

import typer

from glft_schema.cli.terminal import request
from glft_schema.container import FORMATS
from glft_schema.describe.schema import schema_of
from glft_schema.errors import SchemeError, shown
from glft_schema.formats.format import Format
from glft_schema.tensor_types import TensorType

# The module of describe that writes each language; its function is called as the last part of its name.
WRITERS = {"markdown": "as_markdown", "json": "as_json", "kaitai": "kaitai.as_kaitai", "c": "as_c", "imhex": "as_imhex"}
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
        module = import_module(f"glft_schema.describe.{WRITERS[language.value]}")  # the others are not needed
        print(getattr(module, WRITERS[language.value].rpartition(".")[2])(schema_of(described)), end="")


def find(name: str) -> Format | TensorType:
    """Returns the format or tensor type of this name, in letters of either case.

    Raises:
        SchemeError: where there is none.
    """
    for format in FORMATS:
        if name.lower() == format.name.lower():
            return format
    for format in FORMATS:
        if name.lower() in format.types and isinstance(type_ := format.types[name.lower()], TensorType):
            return type_
    types = dict.fromkeys(type_.scheme for format in FORMATS for type_ in format.types)
    raise SchemeError(
        f"expected {' or '.join(format.name.lower() for format in FORMATS)}, or one of {', '.join(types)}; found {shown(name)}"
    )
