"""The quantization lab that GLFT comes from: quantizers, a file writer and reader, and the full
run."""

from glft_schema.lab.gguf_lite import read_gguf_lite, write_gguf_lite
from glft_schema.lab.quantizing import (
    QuantizedTensor,
    dequantize_symmetric,
    fake_quantize,
    quantize_symmetric_per_channel,
    quantize_symmetric_per_group,
)

__all__ = [
    "QuantizedTensor",
    "dequantize_symmetric",
    "fake_quantize",
    "quantize_symmetric_per_channel",
    "quantize_symmetric_per_group",
    "read_gguf_lite",
    "write_gguf_lite",
]
