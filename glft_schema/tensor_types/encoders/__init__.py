"""Encoders of quantized types: a module per group, and the searches that they share."""
