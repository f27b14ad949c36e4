"""Identifiers for generated code: valid in the language, not reserved, and distinct."""

from __future__ import annotations

import re
from collections.abc import Collection

from glft_schema.codec.expressions import Constant, Expression, Length, Operation, Reference
from glft_schema.errors import UnsupportedError

# fmt: off
SIGNS = {
    "==": "is", "!=": "is_not", "<": "is_below", "<=": "is_at_most", ">": "is_above", ">=": "is_at_least",
    "&": "and", "|": "or", "+": "plus", "-": "minus", "*": "times", "//": "over", "%": "modulo", "^": "xor", "<<": "shifted_up",
    ">>": "shifted_down",
}
# fmt: on


class Identifiers:
    """Hands out distinct identifiers.

    Args:
        reserved: words that mean something else in the language.
        taken: identifiers that are in use.
    """

    def __init__(self, reserved: Collection[str] = (), *taken: str) -> None:
        self._reserved = reserved
        self._taken = set(map(self._key, taken))

    def new(self, name: str) -> str:
        """Returns `name` as an identifier, with a number appended if it is taken."""
        legal = free = identifier(name, self._reserved)
        number = 1
        while self._key(free) in self._taken:
            number += 1
            free = f"{legal}_{number}"
        self._taken.add(self._key(free))
        return free

    @staticmethod
    def _key(name: str) -> str:
        """Returns the form of an identifier that must be distinct."""
        return name


def identifier(name: str, reserved: Collection[str]) -> str:
    """Returns `name` in letters, digits and underscores, and not a reserved word."""
    legal = re.sub(r"[^A-Za-z0-9_]", "_", name) or "unnamed"
    legal = f"_{legal}" if legal[0].isdigit() else legal
    return f"{legal}_" if legal in reserved else legal


def name_of(expression: Expression) -> str:
    """Returns an expression as part of a name: ``header.version == 1`` becomes ``version_is_1``.

    Raises:
        UnsupportedError: if it contains anything except fields, constants, lengths and operations.
    """
    match expression:
        case Reference():
            return expression.names[-1]
        case Constant():
            return str(expression.value)
        case Operation():
            return f"{name_of(expression.left)}_{SIGNS[expression.sign]}_{name_of(expression.right)}"
        case Length():
            return f"length_of_{name_of(expression.of)}"
    raise UnsupportedError(f"cannot derive a name from the expression {expression}")
