"""The languages that a schema can be written in."""

from __future__ import annotations

from importlib import import_module

from glft_schema.describe.nodes import Schema
from glft_schema.errors import OptionError, quote

# The module of each language. Its function has the name of the module.
WRITERS = {"markdown": "as_markdown", "json": "as_json", "kaitai": "kaitai.as_kaitai", "c": "as_c"}


def write(schema: Schema, language: str) -> str:
    """Returns a schema in a language: ``markdown``, ``json``, ``kaitai`` or ``c``.

    Raises:
        OptionError: if there is no such language.
        UnsupportedError: if the language cannot express the schema.
    """
    if language not in WRITERS:
        raise OptionError(f"expected one of {', '.join(WRITERS)}, found {quote(language)}")
    module = import_module(f"glft_schema.describe.{WRITERS[language]}")  # imports no other writer
    text: str = getattr(module, WRITERS[language].rpartition(".")[2])(schema)
    return text
