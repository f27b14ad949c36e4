"""From weights to a file: checkpoints, schemes, importance, save and convert."""
