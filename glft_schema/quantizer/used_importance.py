"""The importance matrix that a model is quantized with, and the metadata that names it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from glft_schema.errors import OptionError, TensorError, quote
from glft_schema.quantizer.recipe_rules import TensorRole
from glft_schema.storage.locations import shown
from glft_schema.storage.source import StrPath
from glft_schema.tensors.stored_tensor import StoredTensor
from glft_schema.weights.importance import ImportanceMatrix, with_importance

KEYS = "quantize.imatrix."
MAX_BYTES = 127  # of a text under these keys


class UsedImportance(NamedTuple):
    """An importance matrix, or a part of it.

    Attributes:
        columns: float32 [columns] or [experts, columns], by tensor.
        keys: the metadata of llama-quantize that names the matrix.
    """

    columns: Mapping[str, Any]
    keys: Mapping[str, Any]

    @classmethod
    def of(
        cls,
        importance: StrPath | ImportanceMatrix | Mapping[str, Any] | None,
        include: str | Iterable[str] = (),
        exclude: str | Iterable[str] = (),
    ) -> UsedImportance:
        """Returns the importance of the tensors whose names contain one of the texts in `include`,
        if any, and none of the texts in `exclude`.

        Raises:
            OptionError: if both `include` and `exclude` have texts, the texts select all tensors or
                none, or `importance` is of another kind.
            FormatError, OSError: if the file is not an importance matrix or cannot be read.
        """
        include, exclude = ([texts] if isinstance(texts, str) else list(texts) for texts in (include, exclude))
        if include and exclude:
            raise OptionError("expected include_weights or exclude_weights (--include-weights, --exclude-weights), found both")
        path = os.fspath(importance) if isinstance(importance, (str, os.PathLike)) else None
        matrix = ImportanceMatrix.open(path) if path is not None else importance
        columns = matrix.importance() if isinstance(matrix, ImportanceMatrix) else {} if matrix is None else matrix
        if not isinstance(columns, Mapping):
            raise OptionError(f"expected an importance matrix, its file, or importance by tensor, found {quote(importance)}")
        selected = {
            name: column
            for name, column in columns.items()
            if not any(text in name for text in exclude) and (not include or any(text in name for text in include))
        }
        if (include or exclude) and matrix is None:
            raise OptionError("include_weights and exclude_weights require an importance matrix (--imatrix)")
        if (include or exclude) and len(selected) in (0, len(columns)):
            texts, effect = ", ".join(map(quote, include or exclude)), "all" if selected else "none"
            raise OptionError(f"expected names with {texts} in the importance matrix: {effect} of {len(columns)} would be used")
        if not selected or not isinstance(matrix, ImportanceMatrix):
            return cls(selected, {})
        entries = {
            "file": path and _cut(shown(path)),
            "dataset": matrix.datasets and _cut(matrix.datasets[0]),
            "entries_count": len(selected),
            "chunks_count": matrix.chunk_count,
        }
        return cls(selected, {KEYS + key: value for key, value in entries.items() if value})

    @property
    def name(self) -> str:
        """The importance matrix with its path, for messages; empty without columns."""
        path = self.keys.get(f"{KEYS}file")
        return f"the importance matrix{f' {quote(path)}' * bool(path)}" if self.columns else ""

    def apply(self, tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
        """Returns the tensors with their importance. Raises OptionError if it does not fit them."""
        try:
            fitting = {name: column for name, column in self.columns.items() if not _is_misfit(name, column, tensors)}
            return with_importance(tensors, fitting)
        except TensorError as error:
            raise OptionError(f"the importance matrix is not of this model: {error}") from None


def _is_misfit(name: str, column: Any, tensors: Mapping[str, StoredTensor]) -> bool:
    """Returns whether `column` is for a token embedding of another width, and so is ignored."""
    return (
        TensorRole.of(name) is TensorRole.EMBEDDING and name in tensors and math.prod(column.shape) != tensors[name].shape[-1]
    )


def _cut(text: str) -> str:
    """Returns a text cut to whole characters within `MAX_BYTES` bytes of UTF-8."""
    return text.encode("utf-8", "surrogateescape")[:MAX_BYTES].decode("utf-8", "ignore")
