"""Searches for scales and codes, and the encoders built on them."""
