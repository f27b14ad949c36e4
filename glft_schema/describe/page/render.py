"""A file as a page of HTML: one file that needs no other, opens from disk and asks nothing of the network.

`page.html.jinja` is its frame, `page.css` its look, and the scripts below bring it to life. What comes from the file reaches it
as text that was escaped, or as JSON that the scripts put into the page as text.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from glft_schema.describe.page.content import Content, Original
from glft_schema.describe.page.text import as_json
from glft_schema.display import Progress
from glft_schema.files.file import File
from glft_schema.weights.stored_tensors import StoredTensor

if TYPE_CHECKING:
    import jinja2

STYLE = "page.css"
SCRIPTS = ("dom.js", "treemap.js", "tensors.js", "details.js", "metadata.js", "fields.js", "bytes.js", "start.js")


def page(
    file: File,
    against: Mapping[str, StoredTensor] | None = None,
    *,
    against_name: str = "the source",
    progress: Progress | None = None,
) -> str:
    """Returns a page that shows a file: what it is, its tensors, metadata and bytes.

    Args:
        file: an open file, or a set of files opened as one.
        against: what it was made from, as `open_checkpoint` gives it; quantization errors are measured against it.
        against_name: what the page calls it.
        progress: called with a tensor's name and how much is done, from 0 to 1.

    Raises:
        ClosedError: after the file was closed.
    """
    from importlib.metadata import version  # both take a while

    import jinja2

    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("glft_schema.describe", "page"), autoescape=True, undefined=jinja2.StrictUndefined
    )
    content = Content(file, None if against is None else Original(against_name, against), progress)
    style = _text(templates, STYLE)
    script = '"use strict";\n(() => {\n' + "\n".join(_text(templates, name) for name in SCRIPTS) + "})();\n"
    return templates.get_template("page.html.jinja").render(
        content.texts,
        version=version("glft_schema"),
        style=style,
        style_hash=content_hash(style),
        script=script,
        script_hash=content_hash(script),
        data=as_json(content.data),
    )


def _text(templates: jinja2.Environment, name: str) -> str:
    assert templates.loader
    return templates.loader.get_source(templates, name)[0]


def content_hash(text: str) -> str:
    """Returns what a Content-Security-Policy calls an inline script or style by, so that no other runs."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}"
