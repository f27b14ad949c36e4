"""Pages of architectures, which map Hugging Face folders to GGUF and back; see `families`."""

from glft_schema.families import rows
from glft_schema.families.operations import Chain, MoveRows, PermuteRows, PlusOne, Stack, TensorOperation, Transpose
from glft_schema.families.page import ANY, Bias, F, Family, K, T
from glft_schema.families.registry import families, register_family
from glft_schema.families.requirements import limit

__all__ = [
    "ANY",
    "Bias",
    "Chain",
    "F",
    "Family",
    "K",
    "MoveRows",
    "PermuteRows",
    "PlusOne",
    "Stack",
    "T",
    "TensorOperation",
    "Transpose",
    "families",
    "limit",
    "register_family",
    "rows",
]
