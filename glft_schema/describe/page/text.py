"""Text from files as a page can show it, and data as a page can hold it. Both are hostile until they have been here."""

from __future__ import annotations

import json
import math
from typing import Any

from glft_schema.errors import without_controls

LONGEST = 200  # characters of a name, unless more are asked for
MARKUP = {ord(letter): f"\\u{ord(letter):04x}" for letter in "<>&"}


def visible(text: str, limit: int = LONGEST, keep: str = "") -> str:
    """Returns a text in which every character can be seen: control, direction and unknown ones as their codes, ``\\u202e``.

    Args:
        text: from a file.
        limit: characters; of a longer text the beginning is shown, and how long it is.
        keep: characters that stay as they are, such as line breaks.
    """
    shown = without_controls(text[:limit], _code, keep)
    return shown if len(text) <= limit else f"{shown} … ({len(text):,} characters in all)"


def _code(letter: str) -> str:
    code = ord(letter)
    return f"\\x{code:02x}" if code < 1 << 8 else f"\\u{code:04x}" if code < 1 << 16 else f"\\U{code:08x}"


def as_json(data: Any) -> str:
    """Returns JSON in ASCII that can stand in a script element: nothing in it ends the element or begins a comment."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).translate(MARKUP)


def number(value: float, digits: int = 6) -> float | str:
    """Returns a number as JSON can hold it: rounded to so many significant digits; NaN and infinities as text."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else f"{value}"
