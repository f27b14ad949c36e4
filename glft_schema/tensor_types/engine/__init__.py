"""Runs the formulas of tensor types: chunking, compilation, bit unpacking."""
