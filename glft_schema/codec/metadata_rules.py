"""Rules on metadata: required keys, and the values of entries.

=================  ============================================================
`has_key`          metadata with a key
`each`, `lengths`  all values of one type, or all lengths, within an entry's value
`an_integer`       integers of any width
`not_nested`       values other than arrays of arrays
`KeyType`          the rule that a value's type suits its well-known key
=================  ============================================================
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from construct import this
from construct.expr import FuncPath

from glft_schema.codec.arrays import StoredNumbers, StoredStrings
from glft_schema.codec.context import Context
from glft_schema.codec.expressions import as_expression, nbytes
from glft_schema.codec.metadata import KeyTypes
from glft_schema.codec.numbers import Number
from glft_schema.codec.predicates import utf8
from glft_schema.codec.rules import Check, Predicate
from glft_schema.codec.typed_values import Typed, ValueType, arrays_within, with_type
from glft_schema.errors import quote

PIECE = 1 << 16  # numbers that are checked at a time

__all__ = [
    "KeyType",
    "an_integer",
    "each",
    "has_key",
    "lengths",
    "not_nested",
]


@dataclass(frozen=True, eq=False, repr=False)
class HasKey(Predicate):
    """The predicate of metadata with a key."""

    key: str = ""


def has_key(key: str) -> HasKey:
    """Returns the predicate of metadata with a key."""
    has = FuncPath(lambda metadata: key in metadata)
    return HasKey(
        f"the key {key}", has, show=lambda metadata: f"{len(metadata)} other key{'s' * (len(metadata) != 1)}", key=key
    )


def each(name: str, must: Predicate) -> Predicate:
    """Returns the predicate of entries whose values of type `name`, also in arrays, meet `must`."""
    holds = as_expression(must.on(this)).compiled

    def within(typed: Typed) -> bool:
        if typed.type == name:
            return bool(holds(typed.value))
        if not typed.is_array or typed.element_type != name:
            return True
        if isinstance(typed.value, StoredStrings) and must is utf8:
            return typed.value.are_utf8()
        if isinstance(typed.value, StoredNumbers):
            pieces = (typed.value[first : first + PIECE] for first in range(0, len(typed.value), PIECE))
            with suppress(AttributeError, OverflowError, TypeError):  # a condition that numpy cannot evaluate
                return all(holds(numbers).all() for numbers in pieces)
        return all(map(holds, typed.value))

    return _of_values(f"{name} values that are {must.text}", within, must.broken_by)


def lengths(must: Predicate) -> Predicate:
    """Returns the predicate of entries with string lengths (bytes) and array lengths that meet
    `must`."""
    holds = as_expression(must.on(this)).compiled

    def within(typed: Typed) -> bool:
        if isinstance(typed.value, str):
            return bool(holds(nbytes(typed.value)))
        if not typed.is_array or not holds(len(typed.value)):
            return not typed.is_array
        if isinstance(typed.value, StoredStrings):
            return all(map(holds, np.unique(typed.value.lengths()).tolist()))
        if isinstance(typed.value, StoredNumbers):
            return True
        return all(holds(nbytes(text)) for text in typed.value if isinstance(text, str))

    return _of_values(must.text, within)


def _of_values(text: str, within: Callable[[Typed], bool], broken_by: tuple[Any, ...] = ()) -> Predicate:
    """Returns the predicate of rows whose value, and each array in it, meet a condition."""

    def on(of: Any) -> Callable[[Any], bool]:
        value_of = as_expression(of)
        return lambda at: all(map(within, arrays_within(with_type(at.type, value_of(at)))))

    return Predicate(text, on, broken_by, _show)


def _show(value: Any) -> str:
    """Returns a row's value as text, an array without its type."""

    def bare(value: Any) -> Any:
        if not isinstance(value, Typed):
            return value
        return [bare(element) for element in value.value] if value.is_nested else value.value

    return quote(bare(value))


def an_integer(must: Predicate) -> Predicate:
    """Returns the predicate of integers, of any type except bool, that meet `must`."""

    def on(of: Any) -> Callable[[Any], bool]:
        holds = as_expression(must.on(of))
        return lambda at: is_integer(at.type) and bool(holds(at))

    return Predicate(f"an integer {must.text}", on, must.broken_by, _show)


def is_integer(type_: ValueType) -> bool:
    """Tells whether the values of a type are integers; bools are not."""
    return isinstance(type_.field, Number) and not type_.field.is_float and type_.name != "bool"


not_nested = Predicate(
    "no nested arrays", FuncPath(lambda value: not (isinstance(value, Typed) and value.is_nested)), ([[]],), _show
)


class KeyType(Check):
    """The rule that the type of a value suits its well-known key.

    Attributes:
        keys: the types of the well-known keys.
    """

    expected = "a type that suits the well-known key"

    def __init__(self, id: str, keys: KeyTypes, sets: tuple[str, ...]) -> None:
        super().__init__(id, "type", sets)
        self.keys, self.example = keys, keys.example

    def check(self, context: Context, path: str) -> None:
        if problem := self.keys.refusal(context.key, with_type(context.type, context.value).type):
            self.report(context, problem, f"{path} -> {self.field}")
