"""Encoders of quantized types: a module per family, and the searches for scales and codes that they share."""
