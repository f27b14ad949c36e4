"""Comparisons of two checkpoints as JSON data, and as rows of tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from glft_schema.checks.compare import Comparison, MetadataChange, TensorComparison, TensorVersion
from glft_schema.codec.typed_text import entry_data, texts_of_change
from glft_schema.codec.typed_values import Typed
from glft_schema.display import percent
from glft_schema.errors import safe
from glft_schema.tensor_types.differences import NumberErrors

VALUE = 50  # characters shown of a value


def metadata_rows(changes: Sequence[MetadataChange]) -> list[tuple[str, ...]]:
    """Returns a header and a row for each change, or an empty list without changes."""
    rows = [(safe(c.key), c.state, *texts_of_change(c.before, c.after, VALUE)) for c in changes]
    return [("key", "metadata", "in A", "in B"), *rows] if rows else []


def tensor_rows(differing: list[TensorComparison]) -> list[tuple[str, ...]]:
    """Returns a header and a row for each tensor, or an empty list without tensors."""
    head = ("tensor", "state", "A to B", "RMSE", "relative", "SNR", "cosine", "worst row", "its error")
    rows = [(safe(t.name), t.state, _change_text(t), *_errors_texts(t)) for t in differing]
    return [head, *rows] if rows else []


def _change_text(tensor: TensorComparison) -> str:
    """Describes the change of a tensor: name, type, shape, non-finite numbers, and problem."""
    if not (tensor.before and tensor.after):
        version = tensor.before or tensor.after
        return f"{version.type} {list(version.shape)}" if version else ""
    before, after = tensor.before, tensor.after
    parts = [f"from {safe(before.name)}"] if before.name != after.name else []
    parts += [f"{before.type} to {after.type}"] if before.type != after.type else [after.type]
    parts += [f"{list(before.shape)} to {list(after.shape)}"] if before.shape != after.shape else []
    parts += [f"{tensor.errors.unlike} NaN or infinities"] if tensor.errors and tensor.errors.unlike else []
    return ", ".join([*parts, *([tensor.problem] if tensor.problem else [])])


def _errors_texts(tensor: TensorComparison) -> tuple[str, ...]:
    errors = tensor.errors
    if errors is None:
        return ("",) * 6
    if errors.is_none:
        return ("equal", *("",) * 5)
    row = str(list(errors.worst_row)) if errors.worst_row else ""  # none of a vector
    worst = percent(errors.worst_row_error) if errors.worst_row is not None else ""
    return f"{errors.rmse:.3g}", percent(errors.relative), f"{errors.snr:.1f} dB", f"{errors.cosine:.6f}", row, worst


def comparison_data(comparison: Comparison) -> dict[str, Any]:
    """Returns a comparison as JSON data; equal entries and tensors are only counted."""
    return {
        "same": comparison.is_same,
        "summary": comparison.summary,
        "metadata": [
            {"key": c.key, "state": c.state, "a": _value_data(c.before), "b": _value_data(c.after)} for c in comparison.metadata
        ],
        "same_metadata": comparison.entries - len(comparison.metadata),
        "tensors": [
            {
                "name": t.name,
                "state": t.state,
                "a": _version_data(t.before),
                "b": _version_data(t.after),
                **({"errors": errors_data(t.errors)} if t.errors else {}),
                **({"problem": t.problem} if t.problem else {}),
            }
            for t in comparison.differing
        ],
        "same_tensors": len(comparison.tensors) - len(comparison.differing),
        "errors": errors_data(comparison.errors),
    }


def _value_data(value: Typed | str | None) -> Any:
    return entry_data(value.type, value.value) if isinstance(value, Typed) else value


def _version_data(version: TensorVersion | None) -> dict[str, Any] | None:
    return version and {**version._asdict(), "shape": list(version.shape)}


def errors_data(errors: NumberErrors) -> dict[str, Any]:
    """Returns error measures as JSON data; None for NaN and infinite measures."""
    names = ("rmse", "relative", "snr", "cosine", "largest", *(["worst_row_error"] if errors.worst_row is not None else []))
    measures = {name: value if math.isfinite(value := getattr(errors, name)) else None for name in names}
    row = {} if errors.worst_row is None else {"worst_row": list(errors.worst_row)}
    return {"count": errors.count, "unlike": errors.unlike, **measures, **row}
