"""Models and tokenizers of transformers, from GGUF files; needs ``glft_schema[transformers]``."""

from glft_schema.models.loading import load

__all__ = ["load"]
