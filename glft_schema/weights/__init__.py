"""Writes weights to files: checkpoints, type schemes, importance, saving and conversion."""
