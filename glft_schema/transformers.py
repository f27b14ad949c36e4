"""Models of transformers from and to GGUF files; needs ``glft_schema[transformers]``.

Its import registers the method ``glft``, so that `from_pretrained` packs models with a
`GlftConfig`, and loads those that `save_pretrained` has saved packed.
"""

from importlib.util import find_spec

from glft_schema.models.from_gguf import load
from glft_schema.models.to_gguf import save
from glft_schema.weights.glft_config import GlftConfig

__all__ = ["GlftConfig", "load", "save"]

if find_spec("transformers") is not None:
    from glft_schema.nn.transformers_quantizer import register

    register()
