"""Formulas and encoders: the kinds of functions that a tensor type is declared with."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from inspect import signature
from typing import Any

from glft_schema.lazy import torch

# A scalar function of one block or row, which writes `w`; see docs/scalar-functions.md. Or a
# function of tensors: the fields of a payload or block as keywords, each [rows, numbers] -> weights
# [rows, n].
Formula = Callable[..., Any]
# Numbers [rows, n], and by keyword their importance if the encoder has such a parameter -> the
# fields of a payload or block by name, each [rows, numbers].
Encoder = Callable[..., Mapping[str, "torch.Tensor"]]

Fields = Mapping[str, "torch.Tensor"]


def is_scalar(formula: Formula, fields: Collection[str]) -> bool:
    """Tells whether a formula of fields is a scalar function: it writes `w`, which is no field."""
    return "w" not in fields and "w" in signature(formula).parameters
