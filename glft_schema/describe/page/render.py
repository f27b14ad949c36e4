"""A file as a self-contained HTML page, which can be opened from disk and loads no other resources.

`page.html.jinja` is the structure, `page.css` the style. The file's content is inserted as escaped
text, or as JSON that the scripts insert as text.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from glft_schema.describe.page.content import Content, Original
from glft_schema.describe.page.text import as_json
from glft_schema.display import Progress
from glft_schema.files.container import as_file
from glft_schema.files.file import File
from glft_schema.storage.source import StrPath
from glft_schema.weights.stored_tensors import StoredTensor

if TYPE_CHECKING:
    import jinja2

STYLE = "page.css"
SCRIPTS = ("dom.js", "treemap.js", "tensors.js", "details.js", "metadata.js", "fields.js", "bytes.js", "start.js")


def page(
    file: File | StrPath,
    against: Mapping[str, StoredTensor] | None = None,
    *,
    against_name: str = "the source",
    progress: Progress | None = None,
) -> str:
    """Returns a page of HTML that shows a file's summary, tensors, metadata and bytes.

    Args:
        file: an open file, a set of files opened as one, or a path.
        against: the source checkpoint, from `open_checkpoint`, for quantization errors.
        against_name: the name of the checkpoint on the page.
        progress: called with a tensor's name and the fraction done, from 0 to 1.

    Raises:
        ClosedError: if the file is closed.
        FormatError, OSError: if the file at a path cannot be opened.
    """
    from importlib.metadata import version  # slow to import, as jinja2 is

    import jinja2

    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("glft_schema.describe", "page"), autoescape=True, undefined=jinja2.StrictUndefined
    )
    content = Content(as_file(file), None if against is None else Original(against_name, against), progress)
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
    """Returns the hash by which a Content-Security-Policy allows an inline script or style."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}"
