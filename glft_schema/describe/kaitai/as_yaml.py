"""Plain data as YAML in block style. Scalars that a parser could misread are quoted."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from glft_schema.errors import without_controls

PLAIN = re.compile(r"-?[A-Za-z_][\w.()/*+<>=?,;'-]*(?: [\w.()/*+<>=?,;'-]+)*", re.ASCII)
WORDS = ("true", "false", "null", "yes", "no", "on", "off", "y", "n")  # not text in YAML 1.1


def as_yaml(value: Mapping[str, Any]) -> str:
    """Returns mappings, lists, texts, integers and booleans as YAML."""
    return "\n".join(_lines(value)) + "\n"


def _lines(value: Any) -> Iterator[str]:
    """Yields the lines of a non-empty mapping or list."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _entry(f"{_scalar(key)}:", part)
    else:
        for part in value:
            first, *rest = _lines(part) if isinstance(part, (Mapping, list)) and part else [_scalar(part)]
            yield f"- {first}"
            yield from (f"  {line}" for line in rest)


def _entry(key: str, value: Any) -> Iterator[str]:
    if isinstance(value, (Mapping, list)) and value:
        yield key
        yield from (f"  {line}" for line in _lines(value))
    elif isinstance(value, str) and _is_literal(value):
        yield f"{key} |-"
        yield from (f"  {line}" for line in value.split("\n"))
    else:
        yield f"{key} {_scalar(value)}"


def _is_literal(text: str) -> bool:
    """Tells whether a text has several lines and needs no escape."""
    lines = text.split("\n")
    return len(lines) > 1 and all(line.isprintable() and line and line[0] != " " and line[-1] != " " for line in lines)


def _scalar(value: Any) -> str:
    """Returns a text, an integer, a boolean, or an empty list or mapping."""
    if not isinstance(value, str):
        return json.dumps(value)
    if PLAIN.fullmatch(value) and value.lower() not in WORDS:
        return value
    return without_controls(json.dumps(value, ensure_ascii=False), _escape)


def _escape(letter: str) -> str:
    """Returns the escape of an unprintable letter in double quotes."""
    if 0xD800 <= ord(letter) < 0xE000:
        return "\\uFFFD"  # YAML cannot hold lone surrogates
    return f"\\u{ord(letter):04X}" if ord(letter) < 0x10000 else f"\\U{ord(letter):08X}"
