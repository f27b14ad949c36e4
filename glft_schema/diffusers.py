"""Packed models of diffusers; needs ``glft_schema[diffusers]``.

Importing it registers the quantization method ``glft``. `from_pretrained` then packs models if
given a `GlftConfig`, and loads packed models that `save_pretrained` has saved.
"""

from importlib.util import find_spec

from glft_schema.nn.gguf_linear import replace_gguf_linear
from glft_schema.weights.glft_config import GlftConfig

__all__ = ["GlftConfig", "replace_gguf_linear"]

if find_spec("diffusers") is not None:
    from glft_schema.nn.diffusers_quantizer import register

    register()
