"""A comparison of two files as a self-contained HTML page."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator, Sequence
from itertools import islice

from glft_schema.checks.compare import Comparison
from glft_schema.codec.typed_values import Typed
from glft_schema.describe.page.frame import render, visible

MOST = 5000  # rows of a table
TEXT = 80  # characters: longer texts on average, or texts of several lines, are shown as a diff
LONGEST, LINES = 1 << 16, 2000  # characters and lines of a text that are compared
LINE = 100  # characters: texts with longer lines are split after Jinja's tags, too
LINE_END = re.compile("\n")
TAG_OR_LINE_END = re.compile(r"\n|(?<=[%}]})(?=.)")


def comparison_page(
    comparison: Comparison,
    files: Sequence[tuple[str, str]] = (("A", ""), ("B", "")),
    *,
    more: Sequence[str] = (),
) -> str:
    """Returns an HTML page: the summary, tensors and metadata that differ, changed texts line by
    line.

    Args:
        comparison: of A and B.
        files: the name of each, and a line about it.
        more: sentences below the summary.
    """
    tensors = comparison.tensor_rows()
    errors = [tensor.errors.relative if tensor.errors else 0.0 for tensor in comparison.differing]
    largest = max(filter(math.isfinite, errors), default=0.0) or 1.0
    texts = {
        "name": visible(" and ".join(name for name, _ in files)),
        "files": [(visible(name), visible(about)) for name, about in files],
        "summary": [*comparison.summary, *more],
        "tensors": tensors,
        "bars": [f"{100 * min(error / largest, 1.0):.4g}" for error in errors],
        "metadata": comparison.metadata_rows(),
        "most": MOST,
        "diffs": list(_diffs(comparison)),
    }
    return render("comparison.html.jinja", texts, {}, ["comparison.js"] if tensors else [])


def _diffs(comparison: Comparison) -> Iterator[tuple[str, list[str]]]:
    """Yields the key of each long text that changed, and the lines of a unified diff."""
    for change in comparison.metadata[:MOST]:
        before, after = (version.value if isinstance(version, Typed) else version for version in change[1:])
        if isinstance(before, str) and isinstance(after, str) and ("\n" in before + after or len(before + after) > 2 * TEXT):
            ends = LINE_END if all(len(line) <= LINE for line in f"{before}\n{after}".split("\n")) else TAG_OR_LINE_END
            one, other = (ends.split(visible(text, LONGEST, "\n\t"))[:LINES] for text in (before, after))
            yield visible(change.key), list(islice(difflib.unified_diff(one, other, lineterm=""), 2, None))
