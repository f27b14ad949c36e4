"""Models of transformers from and to GGUF files; needs ``glft_schema[transformers]``.

Importing it registers the quantization method ``glft``. `from_pretrained` then packs models if
given a `GlftConfig`, and loads packed models that `save_pretrained` has saved.
"""

from importlib.util import find_spec

from glft_schema.models.from_gguf import load
from glft_schema.models.to_gguf import save
from glft_schema.weights.glft_config import GlftConfig

__all__ = ["GlftConfig", "load", "save"]

if find_spec("transformers") is not None:
    from glft_schema.nn.transformers_quantizer import register

    register()
