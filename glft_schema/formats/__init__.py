"""The formats, one module each, in the order of the specification, and the registry."""

from glft_schema.formats.format import Format, ShardIndex, ShardKeys
from glft_schema.formats.registry import FORMATS, format_named, register_format
from glft_schema.tensors.region import TensorData, TensorFits

__all__ = ["FORMATS", "Format", "ShardIndex", "ShardKeys", "TensorData", "TensorFits", "format_named", "register_format"]
