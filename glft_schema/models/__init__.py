"""Models that run in torch: loaded by transformers, and measured on texts."""
