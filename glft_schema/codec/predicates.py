"""Predicates for rules: a condition on a value, its description, and values that violate it.

==================================  ==================================
`equals`, `one_of`, `differs_from`  constants; numbers computed from other fields
`above`, `at_least`, `at_most`      bounds, with a unit
`multiple_of`, `power_of_two`       alignments
`pattern`, `utf8`                   text
`zeros`                             bytes
`member_of`, `meets`                members of a set; other conditions
==================================  ==================================

A predicate applied to an expression, as in ``at_most(4).on(len_(this.dims))``, returns another
expression. So a rule states its constant once; the check, the error message, the documentation and
the test files that break the rule follow from it.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

import numpy as np
from construct.expr import ExprMixin, FuncPath

from glft_schema.codec.expressions import matches, outermost, read
from glft_schema.codec.rules import Predicate
from glft_schema.codec.text import is_utf8
from glft_schema.errors import alternatives, quote

__all__ = [
    "above",
    "at_least",
    "at_most",
    "differs_from",
    "equals",
    "meets",
    "member_of",
    "multiple_of",
    "one_of",
    "pattern",
    "power_of_two",
    "utf8",
    "zeros",
]


def _words(value: Any, show: Callable[[Any], str] = str) -> str:
    """Returns the text of a constant or of an expression."""
    if not isinstance(value, ExprMixin):
        return show(value)
    return outermost(tree) if (tree := read(value)) else str(value).replace("_(", "(")  # construct writes len_(this)


def _plain(value: Any) -> Any:
    """Returns an array or tuple as a list, to which fields are compared."""
    return list(value) if isinstance(value, (tuple, np.ndarray)) else value


def equals(value: Any, text: str = "", *, show: Callable[[Any], str] = quote) -> Predicate:
    """Returns the predicate of values equal to `value`, or to the number of an expression. `text`
    describes the expression; errors then have the number, too."""
    value = _plain(value)
    return Predicate(text or _words(value, show), lambda of: of == value, show=show, number=value if text else None)


def differs_from(value: Any, text: str, *, show: Callable[[Any], str] = quote) -> Predicate:
    """Returns the predicate of values other than `value`; `text` describes them."""
    value = _plain(value)
    return Predicate(text, lambda of: of != value, (value,), show)


def one_of(*integers: int) -> Predicate:
    """Returns the predicate of these integers. Raises ValueError if they are not consecutive."""
    first, last = integers[0], integers[-1]
    if integers != tuple(range(first, last + 1)):
        raise ValueError(f"expected consecutive integers, found {integers}")
    return Predicate(alternatives(map(str, integers)), lambda of: (of >= first) & (of <= last), (first - 1, last + 1))


def above(bound: int) -> Predicate:
    """Returns the predicate of numbers greater than `bound`."""
    return Predicate(f"above {_words(bound)}", lambda of: of > bound, (bound,))


def at_least(bound: int, unit: str = "") -> Predicate:
    """Returns the predicate of numbers not less than `bound`, in a unit."""
    return Predicate(f"at least {_words(bound)} {unit}".rstrip(), lambda of: of >= bound, (bound - 1,))


def at_most(bound: int, unit: str = "") -> Predicate:
    """Returns the predicate of numbers not greater than `bound`, in a unit."""
    return Predicate(f"at most {_words(bound)} {unit}".rstrip(), lambda of: of <= bound, (bound + 1,))


def multiple_of(step: Any, text: str = "") -> Predicate:
    """Returns the predicate of multiples of an integer, or of an expression that `text` names."""
    broken_by = (step // 2, step + 1) if isinstance(step, int) else ()
    return Predicate(f"a multiple of {text or step}", lambda of: of % step == 0, broken_by)


power_of_two = Predicate("a power of two", lambda of: (of > 0) & (of & (of - 1) == 0), (0, 3, 24))
utf8 = Predicate("UTF-8", FuncPath(is_utf8), ("\udcff",))


def is_zero(stored: bytes | memoryview) -> bool:
    """Tells whether all bytes are zero."""
    return not bytes(stored).strip(b"\0")


zeros = Predicate("zeros", FuncPath(is_zero))


def pattern(regex: str, text: str) -> Predicate:
    """Returns the predicate of texts that match a regular expression as a whole."""
    return Predicate(text, matches(regex), ("", " "))


def member_of(values: Container[Any], text: str, *others: Any) -> Predicate:
    """Returns the predicate of members of `values`; `text` describes them, `others` are none."""
    return Predicate(text, FuncPath(values.__contains__), others)


def meets(condition: Any, text: str) -> Predicate:
    """Returns the predicate of any condition on the fields: an expression or a function."""
    return Predicate(text, lambda of: condition)
