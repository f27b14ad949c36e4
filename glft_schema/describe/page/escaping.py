"""Makes untrusted text and data safe for a page."""

from __future__ import annotations

import json
import math
from typing import Any

from glft_schema.errors import without_controls

LONGEST = 200  # characters of a name, by default
MARKUP = {ord(letter): f"\\u{ord(letter):04x}" for letter in "<>&"}


def visible(text: str, limit: int = LONGEST, keep: str = "") -> str:
    """Returns text with unprintable characters as escapes such as ``\\u202e``.

    Args:
        text: from a file.
        limit: in characters; a longer text is cut, and its length appended.
        keep: characters that are not escaped, such as line breaks.
    """
    shown = without_controls(text[:limit], _code, keep)
    return shown if len(text) <= limit else f"{shown} … ({len(text):,} characters)"


def _code(letter: str) -> str:
    code = ord(letter)
    return f"\\x{code:02x}" if code < 1 << 8 else f"\\u{code:04x}" if code < 1 << 16 else f"\\U{code:08x}"


def as_json(data: Any) -> str:
    """Returns JSON in ASCII that is safe in a script element."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).translate(MARKUP)


def number(value: float, digits: int = 6) -> float | str:
    """Returns a number for JSON, rounded to significant digits; NaN and infinities as text."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else f"{value}"
