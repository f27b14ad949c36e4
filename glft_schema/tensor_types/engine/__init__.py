"""Runs the formulas of tensor types: in chunks, compiled, on packed bits."""
