"""torch modules whose weights stay packed in memory, as the file stores them."""

from glft_schema.nn.load_into import Unmatched
from glft_schema.nn.modules import Conv2d, Embedding, Experts, Linear, Packed
from glft_schema.nn.saving import stored_tensors

__all__ = [
    "Conv2d",
    "Embedding",
    "Experts",
    "Linear",
    "Packed",
    "Unmatched",
    "stored_tensors",
]
