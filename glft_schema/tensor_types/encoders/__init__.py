"""Encoders of quantized types: a module per family, and the searches that they share."""
