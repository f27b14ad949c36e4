"""LoRA adapters, merged into quantized models."""

from typing import TYPE_CHECKING

from glft_schema.lazy import on_first_use

if TYPE_CHECKING:
    from glft_schema.adapters.merging import MergedTensor, merge_lora

__all__ = [
    "MergedTensor",
    "merge_lora",
]

LATER = {
    "adapters.merging": "MergedTensor merge_lora",
}
__getattr__, __dir__ = on_first_use(globals(), LATER)
