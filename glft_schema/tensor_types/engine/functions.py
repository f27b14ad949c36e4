"""Formulas and encoders: the kinds of functions that a tensor type is declared with."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from inspect import CO_VARARGS, CO_VARKEYWORDS, signature
from types import FunctionType
from typing import Any

from glft_schema.storage.dtypes import Array

# A scalar function of one block or row, which writes `w`; see docs/scalar-functions.md. Or a
# function of torch tensors: the fields of a payload or block as keywords, each [rows, numbers] ->
# weights [rows, n].
Formula = Callable[..., Any]
# A scalar function of one block or row, which reads `w` and writes the fields. Or a function of
# torch tensors: numbers [rows, n], and by keyword their importance if the encoder has such a
# parameter -> the fields of a payload or block by name, each [rows, numbers].
Encoder = Callable[..., Any]

STARRED = CO_VARARGS | CO_VARKEYWORDS
Fields = Mapping[str, Array]


def is_scalar(function: Callable[..., Any], fields: Collection[str]) -> bool:
    """Tells whether a formula or an encoder is a scalar function: `w` is a parameter and not a
    field."""
    return "w" not in fields and "w" in parameters_of(function)


def parameters_of(function: Callable[..., Any]) -> Collection[str]:
    """Returns the names of a function's parameters. For a plain function, this takes a tenth of the
    time of `signature`."""
    if isinstance(function, FunctionType) and not function.__code__.co_flags & STARRED and not hasattr(function, "__wrapped__"):
        return function.__code__.co_varnames[: function.__code__.co_argcount + function.__code__.co_kwonlyargcount]
    return signature(function).parameters
