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
from glft_schema.codec.typed_values import ARRAY, Array, StoredValue, ValueType, values_within

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

    def within(value: Any, type_: ValueType) -> bool:
        if type_.name == name:
            return bool(holds(value))
        if not isinstance(value, Array) or value.type.name != name:
            return True
        if isinstance(value.values, StoredNumbers):
            with suppress(AttributeError, OverflowError, TypeError):  # a condition that numpy cannot evaluate
                return all(holds(numbers).all() for numbers in value.values.pieces())
        if isinstance(value.values, StoredStrings) and must is utf8:
            return value.values.are_utf8()
        return all(map(holds, value.values))

    return _of_values(f"{name} values that are {must.text}", within, must.broken_by)


def lengths(must: Predicate) -> Predicate:
    """Returns the predicate of entries with string lengths (bytes) and array lengths that meet
    `must`."""
    holds = as_expression(must.on(this)).compiled

    def within(value: Any, type_: ValueType) -> bool:
        if isinstance(value, str):
            return bool(holds(nbytes(value)))
        if not isinstance(value, Array) or not holds(len(value.values)):
            return not isinstance(value, Array)
        if isinstance(value.values, StoredStrings):
            return all(map(holds, np.unique(value.values.lengths()).tolist()))
        return all(holds(nbytes(text)) for text in value.values if isinstance(text, str))

    return _of_values(must.text, within)


def _of_values(text: str, within: Callable[[Any, ValueType], bool], broken_by: tuple[Any, ...] = ()) -> Predicate:
    def on(of: Any) -> Callable[[Any], bool]:
        value_of = as_expression(of)
        return lambda at: all(within(value, type_) for type_, value in values_within(value_of(at), at.type))

    return Predicate(text, on, broken_by)


def an_integer(must: Predicate) -> Predicate:
    """Returns the predicate of integers, of any type except bool, that meet `must`."""

    def on(of: Any) -> Callable[[Any], bool]:
        holds = as_expression(must.on(of))
        return lambda at: is_integer(at.type) and bool(holds(at))

    return Predicate(f"an integer {must.text}", on, must.broken_by)


def is_integer(type_: ValueType) -> bool:
    """Tells whether the values of a type are integers; bools are not."""
    return isinstance(type_.field, Number) and not type_.field.is_float and type_.name != "bool"


def _is_not_nested(value: Any) -> bool:
    return not (isinstance(value, Array) and value.type.name == ARRAY)


not_nested = Predicate("no nested arrays", FuncPath(_is_not_nested), ([[]],))


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
        found = StoredValue(context.type, context.value)
        if problem := self.keys.refusal(context.key, found.type_text):
            self.report(context, problem, f"{path} -> {self.field}")
