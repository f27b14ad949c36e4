"""Frame of all pages: security policy, style, the common script, and escapes for texts and data.

A page opens from disk and loads no other resources. Texts are escaped. Data is embedded as JSON,
from which scripts insert text, not HTML.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from glft_schema.display import parameters_text, size_text
from glft_schema.errors import without_controls

if TYPE_CHECKING:
    import jinja2

STYLE, FIRST = "page.css", "dom.js"
LONGEST = 200  # characters of a name, by default
MARKUP = {ord(letter): f"\\u{ord(letter):04x}" for letter in "<>&"}


def render(template: str, texts: Mapping[str, Any], data: Any, scripts: Iterable[str]) -> str:
    """Returns a page.

    Args:
        template: the name of a template, which extends `frame.html.jinja`.
        texts: for the template.
        data: for the scripts.
        scripts: the names of scripts, in order. `FIRST` is inserted before them.
    """
    from importlib.metadata import version  # slow to import, as jinja2 is

    import jinja2

    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("glft_schema.describe", "page"), autoescape=True, undefined=jinja2.StrictUndefined
    )
    templates.filters |= {"visible": visible, "size": size_text, "parameters": parameters_text}
    style = _text(templates, STYLE)
    script = '"use strict";\n(() => {\n' + "\n".join(_text(templates, name) for name in (FIRST, *scripts)) + "})();\n"
    return templates.get_template(template).render(
        texts,
        version=version("glft_schema"),
        style=style,
        style_hash=content_hash(style),
        script=script,
        script_hash=content_hash(script),
        data=as_json(data),
    )


def _text(templates: jinja2.Environment, name: str) -> str:
    assert templates.loader
    return templates.loader.get_source(templates, name)[0]


def content_hash(text: str) -> str:
    """Returns the hash by which a Content-Security-Policy allows an inline script or style."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}"


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
