"""Suggestions for misspelled names: commands, options, types, tensors, metadata keys."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from glft_schema.errors import shown

COMPARED = 100  # names that difflib compares, at 0.3 ms each
SIMILAR = 0.6  # the least ratio of a suggestion, difflib's default


def suggestion(name: object, names: Iterable[str]) -> str:
    """Returns the end of an error about an unknown name: the closest name, if one is close."""
    close = closest(str(name), list(names))
    return f"; did you mean {shown(close)}?" if close is not None else ""


def closest(text: str, names: Sequence[str]) -> str | None:
    """Returns the name that `text` is probably a slip for, or None.

    difflib compares those `COMPARED` names that have the most pairs of letters of the text.
    """
    from difflib import get_close_matches  # slow to import

    pairs = {text[i : i + 2] for i in range(len(text) - 1)}

    def shared(name: str) -> float:
        return sum(name[i : i + 2] in pairs for i in range(len(name) - 1)) / (len(text) + len(name))

    if len(names) > COMPARED:
        fitting = [name for name in names if 2 * min(len(text), len(name)) >= SIMILAR * (len(text) + len(name))]
        names = heapq.nlargest(COMPARED, fitting, key=shared)
    return next(iter(get_close_matches(text, names, n=1, cutoff=SIMILAR)), None)
