"""The languages that a schema can be written in."""

from __future__ import annotations

from importlib import import_module

from construct import Struct

from glft_schema.describe.nodes import Schema
from glft_schema.describe.schema import schema_of
from glft_schema.errors import OptionError, quote
from glft_schema.formats.format import Format
from glft_schema.tensor_types import TensorType

# The module of each language. Its function has the name of the module.
WRITERS = {"markdown": "as_markdown", "json": "as_json", "kaitai": "kaitai.as_kaitai", "c": "as_c"}


def write(described: Schema | Format | TensorType | Struct, language: str) -> str:
    """Returns a schema, or the schema of a declaration, in a language: ``markdown``, ``json``,
    ``kaitai`` or ``c``.

    Args:
        described: a schema, or what `schema_of` reads.
        language: the language.

    Raises:
        TypeError: if `described` is anything else.
        OptionError: if there is no such language.
        UnsupportedError: if the language cannot express the schema.
    """
    schema = described if isinstance(described, Schema) else schema_of(described)
    if language not in [*WRITERS]:  # which may be a Format, if the arguments are in the wrong order
        raise OptionError(f"expected one of {', '.join(WRITERS)}, found {quote(language)}")
    module = import_module(f"glft_schema.describe.{WRITERS[language]}")  # imports no other writer
    text: str = getattr(module, WRITERS[language].rpartition(".")[2])(schema)
    return text
