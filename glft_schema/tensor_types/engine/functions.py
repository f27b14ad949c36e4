"""Formulas and encoders: the functions that a tensor type is declared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from glft_schema.storage.dtypes import Array

# Scalar functions of one block or row, see docs/scalar-functions.md. A formula writes `w`, an
# encoder reads `w` and writes the fields.
Formula = Callable[..., Any]
Encoder = Callable[..., Any]
Fields = Mapping[str, Array]
