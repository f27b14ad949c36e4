"""Tensors in a file, the data region with their payloads, and uploads to a GPU."""
