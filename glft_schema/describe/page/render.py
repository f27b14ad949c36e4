"""A file as a self-contained HTML page.

`page.html.jinja` is the structure, `page.css` the style.
"""

from __future__ import annotations

from collections.abc import Mapping

from glft_schema.describe.page.content import Content, Original
from glft_schema.describe.page.frame import render
from glft_schema.display import Progress
from glft_schema.errors import FormatError
from glft_schema.files.container import as_file
from glft_schema.files.file import File
from glft_schema.storage.source import StrPath
from glft_schema.tensors.stored_tensor import StoredTensor

SCRIPTS = (
    "treemap.js", "tensors.js", "details.js", "metadata.js", "tokenizer.js", "fields.js", "bytes.js", "start.js",
)  # fmt: skip


def page(
    file: File | StrPath,
    against: Mapping[str, StoredTensor] | None = None,
    *,
    against_name: str = "the source",
    progress: Progress | None = None,
    fault: FormatError | None = None,
) -> str:
    """Returns a page of HTML that shows a file's summary, tensors, metadata and bytes.

    Args:
        file: an open file, a set of files opened as one, or a path.
        against: the source checkpoint, from `open_checkpoint`, for quantization errors.
        against_name: the name of the checkpoint on the page.
        progress: called with a tensor's name and the fraction done, from 0 to 1.
        fault: the error of a broken file, which is shown instead of broken rules.

    Raises:
        ClosedError: if the file is closed.
        FormatError, OSError: if the file at a path cannot be opened.
    """
    content = Content(as_file(file), None if against is None else Original(against_name, against), progress, fault)
    return render("page.html.jinja", content.texts, content.data, SCRIPTS)
