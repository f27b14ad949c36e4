"""Suggestions for misspelled names: commands, options, types, tensors, metadata keys."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from glft_schema.errors import alternatives, quote

COMPARED = 100  # names that difflib compares, at 0.3 ms each
SHOWN = 3  # names that begin with an unknown one
SIMILAR = 0.6  # the minimum similarity of a suggestion


class MissingKeyError(KeyError):
    """A KeyError whose text suggests the closest key.

    Args:
        key: the unknown key.
        names: the known keys; only texts are suggested.
    """

    def __init__(self, key: object, names: Iterable[object]) -> None:
        super().__init__(key)
        self._names = names

    def __str__(self) -> str:
        key, known = self.args[0], list(self._names)
        if known and not isinstance(key, str) and all(isinstance(name, str) for name in known):
            return f"{quote(key)}; keys are names, such as {quote(known[0])}"
        return f"{quote(key)}{suggestion(key, (name for name in known if isinstance(name, str)))}"

    def __reduce__(self) -> tuple[type[KeyError], tuple[object, ...]]:
        return KeyError, self.args


def missing_attribute(problem: str, name: str, names: Iterable[str]) -> AttributeError:
    """Returns an AttributeError that suggests public names. Private names get no suggestion."""
    public = [known for known in names if not known.startswith("_")] if not name.startswith("_") else []
    return AttributeError(f"{problem}{suggestion(name, public)}")


def suggestion(name: object, names: Iterable[str]) -> str:
    """Returns the end of an error about an unknown name: known names that it may stand for.

    Case is ignored. These are an equal name, otherwise the first that begin with `name`, otherwise
    the closest, if one is close.
    """
    by_lower, text = {known.lower(): known for known in names}, str(name).lower()
    longer = [known for known in by_lower if text and known.startswith(text)]
    matches = [text] if text in by_lower else longer[:SHOWN]
    if not matches and (close := closest(text, [*by_lower])) is not None:
        matches = [close]
    return f"; did you mean {alternatives(quote(by_lower[known]) for known in matches)}?" if matches else ""


def closest(text: str, names: Sequence[str]) -> str | None:
    """Returns the name that `text` is probably a typo of, or None.

    Of many names, difflib compares only the `COMPARED` that share the most letter pairs with the
    text.
    """
    from difflib import get_close_matches  # slow to import

    pairs = {text[i : i + 2] for i in range(len(text) - 1)}

    def similarity(name: str) -> float:
        return sum(name[i : i + 2] in pairs for i in range(len(name) - 1)) / (len(text) + len(name))

    fitting = (name for name in names if 2 * min(len(text), len(name)) >= SIMILAR * (len(text) + len(name)))
    likely = heapq.nlargest(COMPARED, fitting, key=similarity)  # without long names, which take seconds
    return next(iter(get_close_matches(text, likely, n=1, cutoff=SIMILAR)), None)
