"""The reference of tensor types in Markdown: for each its block, field by field, and its formula."""

from __future__ import annotations

import inspect
from collections.abc import Iterable

from glft_schema.tensor_types import TensorType


def type_reference(types: Iterable[TensorType]) -> str:
    """Returns a section for each type, by code."""
    return "\n".join(_section(type_) for type_ in sorted(types, key=lambda type_: type_.code))


def _section(type_: TensorType) -> str:
    weights = type_.least_row
    nbytes = type_.nbytes([1, weights])
    count = f"{weights} weights" if weights > 1 else "a weight"
    title = f"### {type_.name}, code {type_.code}: {count} in {nbytes} bytes, {8 * nbytes / weights:g} bits a weight"
    rows, at = ["| byte | field | type | |", "| ---: | --- | --- | --- |"], 0
    for field in (type_.block or type_.payload).subcons:
        kind = repr(field.subcon) if type_.block else field.subcon.number.kind
        rows.append(f"| {at} | `{field.name}` | {kind} | {field.docs} |")
        at += int(field.sizeof()) if type_.block else 0
    formula = inspect.getdoc(type_.dequantize) or ""
    return "\n".join([title, "", *rows, "", formula.replace("*", r"\*"), ""])
