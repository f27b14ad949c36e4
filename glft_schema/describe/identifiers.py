"""What the writers of other languages share: names that are legal there, structs before their users, sentences of rules."""

from __future__ import annotations

import re
from collections.abc import Collection

import glft_schema.describe.nodes as s
from glft_schema.codec.expressions import Constant, Expression, Length, Operation, Reference
from glft_schema.codec.rules import REQUIRED, Check
from glft_schema.errors import without_controls

# fmt: off
SIGNS = {
    "==": "is", "!=": "is_not", "<": "is_below", "<=": "is_at_most", ">": "is_above", ">=": "is_at_least",
    "&": "and", "|": "or", "+": "plus", "-": "minus", "*": "times", "//": "over", "%": "modulo", "^": "xor", "<<": "shifted_up",
    ">>": "shifted_down",
}
# fmt: on


MATRIX = (
    "A tensor is seen as a matrix: `dims` are its sizes in torch's order, the slowest first; `out` is the first of them, `in`"
    " the product of the others; with fewer than two dims there is one row."
)


class Identifiers:
    """Hands out identifiers: letters, digits and underscores, none of them reserved, none twice.

    Args:
        reserved: words that mean something else in the language.
    """

    def __init__(self, reserved: Collection[str]) -> None:
        self._reserved = reserved
        self._taken: set[str] = set()

    def of(self, name: str) -> str:
        """Returns `name`, or what is nearest to it and free."""
        wanted = free = identifier(name, self._reserved)
        number = 2
        while free in self._taken:
            free, number = f"{wanted}_{number}", number + 1
        self._taken.add(free)
        return free


def identifier(name: str, reserved: Collection[str]) -> str:
    """Returns what is nearest to `name` and neither reserved nor anything else than letters, digits and underscores."""
    legal = re.sub(r"[^A-Za-z0-9_]", "_", name) or "unnamed"
    legal = f"_{legal}" if legal[0].isdigit() else legal
    return f"{legal}_" if legal in reserved else legal


def words(expression: Expression) -> str:
    """Returns an expression as a part of a name: ``header.version == 1`` becomes ``version_is_1``.

    Raises:
        NotImplementedError: for an expression of other than fields, numbers and operations.
    """
    if isinstance(expression, Reference):
        return expression.names[-1]
    if isinstance(expression, Constant):
        return str(expression.value)
    if isinstance(expression, Operation):
        return f"{words(expression.left)}_{SIGNS[expression.sign]}_{words(expression.right)}"
    if isinstance(expression, Length):
        return f"length_of_{words(expression.of)}"
    raise NotImplementedError(f"no name can be made of the expression {expression}")


def rule_text(rule: Check) -> str:
    """Returns a rule as a comment has it: ``rule glft-name, required: expected at least one character``."""
    return f"rule {rule.id}, {held_by(rule)}: expected {rule.expected}"


def held_by(rule: Check) -> str:
    """Returns in whose eyes a rule holds."""
    return REQUIRED if rule.is_required else ", ".join(rule.sets)


def one_line_of(text: str) -> str:
    """Returns text on one line, without control characters."""
    return " ".join(without_controls(text, lambda letter: " ").split())


def length_name(field: str) -> str:
    """Returns what the length before a text is called."""
    return f"{field}_len"


def count_name(field: str) -> str:
    """Returns what the length before a list is called."""
    return f"n_{field}"


def in_order(schema: s.Schema) -> tuple[list[str], list[str]]:
    """Returns the names of the structs so that each comes after those that it is made of.

    Returns:
        The names, and those among them that are needed before they are complete: structs in which they are themselves.
    """
    ordered: list[str] = []
    early: list[str] = []

    def visit(name: str, above: tuple[str, ...]) -> None:
        if name in above and name not in early:
            early.append(name)
        if name in ordered or name in above:
            return
        for part in schema.structs[name].fields:
            for inner in s.refs(part.node):
                visit(inner, (*above, name))
        ordered.append(name)

    for name in schema.structs:
        visit(name, ())
    return ordered, early
