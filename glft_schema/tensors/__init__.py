"""Tensors in a file, the region of payloads, and copies to a GPU."""
