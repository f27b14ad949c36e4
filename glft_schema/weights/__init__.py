"""Writes weights to files: checkpoints, type schemes, importance, saving and conversion."""

from typing import TYPE_CHECKING

from glft_schema.lazy import on_first_use

if TYPE_CHECKING:
    from glft_schema.tensors.stored_tensor import StoredTensor
    from glft_schema.weights.checkpoints import open_checkpoint
    from glft_schema.weights.edit import Change, Edited
    from glft_schema.weights.importance import ColumnSums, ImportanceMatrix
    from glft_schema.weights.importance_statistics import ColumnStatistics
    from glft_schema.weights.payloads import WrittenTensor

__all__ = [
    "Change",
    "ColumnStatistics",
    "ColumnSums",
    "Edited",
    "ImportanceMatrix",
    "StoredTensor",
    "WrittenTensor",
    "open_checkpoint",
]

LATER = {
    "tensors.stored_tensor": "StoredTensor",
    "weights.checkpoints": "open_checkpoint",
    "weights.edit": "Change Edited",
    "weights.importance": "ColumnSums ImportanceMatrix",
    "weights.importance_statistics": "ColumnStatistics",
    "weights.payloads": "WrittenTensor",
}
__getattr__, __dir__ = on_first_use(globals(), LATER)
