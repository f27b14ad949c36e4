"""Sources of bytes and atomic writes. Knows nothing of what the bytes mean."""
