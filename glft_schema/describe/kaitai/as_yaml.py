"""Plain data as YAML text, in block style. Every scalar that a parser could take for something else is quoted."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from glft_schema.errors import without_controls

PLAIN = re.compile(r"-?[A-Za-z_][\w.()/*+<>=?,;'-]*(?: [\w.()/*+<>=?,;'-]+)*", re.ASCII)
WORDS = ("true", "false", "null", "yes", "no", "on", "off", "y", "n")  # those that YAML 1.1 takes for other than text


def as_yaml(value: Mapping[str, Any]) -> str:
    """Returns mappings, lists, texts, integers and booleans as YAML."""
    return "\n".join(_lines(value)) + "\n"


def _lines(value: Any) -> Iterator[str]:
    """Yields the lines of a mapping or list that is not empty."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _entry(f"{_scalar(key)}:", part)
    else:
        for part in value:
            first, *others = _lines(part) if isinstance(part, (Mapping, list)) and part else [_scalar(part)]
            yield f"- {first}"
            yield from (f"  {line}" for line in others)


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
    """Tells whether a text is one of several lines that can stand as they are."""
    lines = text.split("\n")
    return len(lines) > 1 and all(line.isprintable() and line and line[0] != " " and line[-1] != " " for line in lines)


def _scalar(value: Any) -> str:
    """Returns a text, an integer or a boolean; or what is empty."""
    if not isinstance(value, str):
        return json.dumps(value)
    if PLAIN.fullmatch(value) and value.lower() not in WORDS:
        return value
    return without_controls(json.dumps(value, ensure_ascii=False), _escaped)


def _escaped(letter: str) -> str:
    """Returns a letter that YAML does not show as it writes it between double quotes."""
    if 0xD800 <= ord(letter) < 0xE000:
        return "\\uFFFD"  # half of a surrogate pair, which no YAML can say
    return f"\\u{ord(letter):04X}" if ord(letter) < 0x10000 else f"\\U{ord(letter):08X}"
