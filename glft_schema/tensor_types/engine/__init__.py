"""Runs the formulas and encoders of tensor types, in chunks and in several threads."""
