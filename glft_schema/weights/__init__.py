"""From weights to a file: checkpoints, type schemes, importance, saving and conversion."""
