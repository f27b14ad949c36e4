"""Formats, one module each in the order of the specification; their registry; and the classes and
functions that a declaration needs in addition to `glft_schema.codec`."""

from glft_schema.formats.format import Format, ShardIndex, ShardKeys
from glft_schema.formats.registry import FORMATS, format_named, register_format
from glft_schema.tensors.layout_rules import Contiguous, has_quantized, is_padded_to, zero_gaps
from glft_schema.tensors.region import TensorData, TensorFits, nbytes_of_payload

__all__ = [
    "FORMATS",
    "Contiguous",
    "Format",
    "ShardIndex",
    "ShardKeys",
    "TensorData",
    "TensorFits",
    "format_named",
    "has_quantized",
    "is_padded_to",
    "nbytes_of_payload",
    "register_format",
    "zero_gaps",
]
