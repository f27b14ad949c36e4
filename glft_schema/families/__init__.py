"""Architectures: pages that map Hugging Face folders to GGUF and back, and how to declare one."""

from typing import TYPE_CHECKING

from glft_schema.lazy import on_first_use

if TYPE_CHECKING:
    from glft_schema.families.operations import (
        Chain,
        MoveRows,
        PermuteRows,
        PlusOne,
        Stack,
        TensorOperation,
        Transpose,
    )
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
]

LATER = {
    "families.operations": "Chain MoveRows PermuteRows PlusOne Stack TensorOperation Transpose",
    "families.page": "ANY Bias F Family K T",
    "families.registry": "families register_family",
    "families.requirements": "limit",
}
__getattr__, __dir__ = on_first_use(globals(), LATER, ("operations", "pages", "rows"))
