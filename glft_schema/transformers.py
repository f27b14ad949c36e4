"""Models of transformers from and to GGUF files; needs ``glft_schema[transformers]``."""

from glft_schema.models.loading import load
from glft_schema.models.saving import save

__all__ = ["load", "save"]
