"""Tensors in a file, and the data region with their payloads."""
