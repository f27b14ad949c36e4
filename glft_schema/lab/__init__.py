"""The lab: a small GPT trained, quantized, written to files, read back, verified layer by layer, measured and reported."""
